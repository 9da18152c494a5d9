"""How busy a parameter server says it is."""

from __future__ import annotations

import pytest

from dlrover_lite.ps.server.busy_meter import BusyMeter, TrainingWatch


class Server:
    """One on a clock that only moves when it does something."""

    def __init__(self) -> None:
        self.now = 0.0
        self.meter = BusyMeter(lambda: self.now)

    def pause(self, seconds: float) -> None:
        with self.meter.pausing():
            self.now += seconds

    def serve(self, *seconds: float, all_of_them: bool = True) -> None:
        self.meter.found(all_of_them=all_of_them)
        for each in seconds:
            began = self.now
            self.now += each
            self.meter.answered(began)


def test_requests_to_an_idle_server_have_not_waited() -> None:
    server = Server()
    for _ in range(10):
        server.pause(0.9)
        server.serve(0.1)
    assert server.meter.requests == 10
    assert server.meter.busy_seconds == pytest.approx(1.0)
    assert server.meter.queue_seconds == pytest.approx(0.0)


def test_requests_that_come_together_wait_for_each_other() -> None:
    server = Server()
    server.pause(1.0)
    server.serve(0.1, 0.2, 0.3)
    assert server.meter.queue_seconds == pytest.approx(0.1 + 0.3)
    assert server.meter.busy_seconds == pytest.approx(0.6)


def test_requests_to_a_busy_server_have_waited_half_its_busy_time() -> None:
    server = Server()
    server.pause(1.0)
    server.serve(0.4)
    server.pause(0.0)  # something was there already
    server.serve(0.1)
    assert server.meter.queue_seconds == pytest.approx(0.2)


def test_left_over_requests_have_waited_since_before() -> None:
    server = Server()
    server.pause(1.0)
    server.serve(0.4, all_of_them=False)
    before = server.meter.queue_seconds
    server.serve(0.4)
    assert server.meter.queue_seconds - before == pytest.approx(0.2)
    server.serve(0.0)
    assert server.meter.queue_seconds - before == pytest.approx(0.2 + 0.2)


def test_training_goes_on_until_a_while_after_the_last_answer() -> None:
    watch = TrainingWatch(7, 0.5)
    assert not watch.goes_on(7, 0.0), "nothing was answered since it has begun"
    assert watch.goes_on(8, 10.0)
    assert watch.goes_on(8, 10.4)
    assert not watch.goes_on(8, 10.5)
    assert watch.goes_on(12, 11.0)
