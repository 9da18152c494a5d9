from __future__ import annotations

import threading

import pytest

from dlrover_lite.core.errors import JobError
from dlrover_lite.tui.sources.poller import Feed
from tests.backends.support import until


class Reads:
    """Gives what it holds; waits while it is ``held``."""

    def __init__(self) -> None:
        self.value: object = "first"
        self.error: BaseException | None = None
        self.held = threading.Event()
        self.held.set()
        self.count = 0
        self.waits = False

    def __call__(self) -> object:
        self.waits = not self.held.is_set()
        self.held.wait()
        self.count += 1
        if self.error is not None:
            raise self.error
        return self.value


class Rig:
    def __init__(self) -> None:
        self.reads, self.arrivals, self.now = Reads(), 0, 0.0
        self.feed = Feed(self.reads, self._arrived, name="test-feed", period_seconds=0.001, clock=lambda: self.now)

    def _arrived(self) -> None:
        self.arrivals += 1

    def look_again(self, times: int = 2) -> None:
        before = self.reads.count
        until(lambda: self.reads.count >= before + times, "reads")


@pytest.fixture
def rig():  # type: ignore[no-untyped-def]
    one = Rig()
    one.feed.start()
    yield one
    one.reads.held.set()
    assert one.feed.stop(timeout_seconds=10)


def test_a_value_read_arrives_once(rig: Rig) -> None:
    until(lambda: rig.arrivals == 1, "arrivals")
    assert rig.feed.take() == "first"
    rig.look_again()
    assert rig.arrivals == 1
    rig.reads.value = "second"
    until(lambda: rig.arrivals == 2, "arrivals")
    assert rig.feed.take() == "second"


def test_a_slow_taker_is_told_once_and_gets_the_newest_value(rig: Rig) -> None:
    until(lambda: rig.arrivals == 1, "arrivals")
    for value in "abc":
        rig.reads.value = value
        rig.look_again()
    assert rig.arrivals == 1
    assert rig.feed.take() == "c"


def test_a_failed_read_keeps_the_last_value_until_one_succeeds(rig: Rig) -> None:
    until(lambda: rig.arrivals == 1, "arrivals")
    rig.feed.take()
    rig.look_again()
    rig.reads.error = JobError("no answer\nmore of it")
    until(lambda: rig.arrivals == 2, "arrivals")
    rig.look_again()  # what read before this has set its time
    rig.now = 7.0
    assert (rig.feed.take(), rig.feed.problem, rig.feed.age_seconds) == ("first", "no answer", 7.0)
    rig.look_again()
    assert rig.arrivals == 2
    rig.reads.error = None
    until(lambda: rig.arrivals == 3, "arrivals")
    assert (rig.feed.take(), rig.feed.problem, rig.feed.age_seconds) == ("first", "", 0.0)


def test_a_read_that_hangs_shows_by_its_age(rig: Rig) -> None:
    until(lambda: rig.arrivals == 1, "arrivals")
    rig.reads.held.clear()
    until(lambda: rig.reads.waits, "a read that waits")
    assert rig.feed.take() == "first"
    assert not rig.feed.stop(timeout_seconds=0.01)


def test_a_bug_in_reading_is_raised_to_the_taker() -> None:
    one = Rig()
    one.reads.error = ValueError("a bug")
    one.feed.start()
    until(lambda: one.arrivals == 1, "arrivals")
    with pytest.raises(ValueError, match="a bug"):
        one.feed.take()
    assert one.feed.stop(timeout_seconds=10)


def test_a_feed_that_never_started_can_be_stopped() -> None:
    assert Rig().feed.stop()
