"""A parameter server that fills up faster than anyone can be asked gets more in time, and none gets more that doesn't need it."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import example, given, settings
from hypothesis import strategies as st

from dlrover_lite.core.units import MIB
from dlrover_lite.master.autoscale.filling_servers import Filling

REPORT_SECONDS, TURN_SECONDS = 0.2, 0.1
BESIDE = 70 * MIB


class Server:
    """One that grows as ``held_at`` says, reports as a real one does, and gets what it is given a turn later."""

    def __init__(self, limit: int, held_at: Callable[[float], float], beside: int = BESIDE) -> None:
        self.limit, self.most_used, self.asked = limit, 0, 0
        self._held_at, self._beside = held_at, beside
        self._filling = Filling()

    def used(self, second: float) -> int:
        return self._beside + int(self._held_at(second))

    def run(self, seconds: float) -> None:
        given = self.limit
        for turn in range(int(seconds / TURN_SECONDS)):
            now = turn * TURN_SECONDS
            assert self.used(now) <= self.limit, f"killed after {now:.1f} s, at {self.limit / MIB:.0f} MiB"
            self.limit, self.most_used = given, self.used(now)
            told = int(self._held_at(now // REPORT_SECONDS * REPORT_SECONDS))

            def used(now: float = now) -> int:
                self.asked += 1
                return self.used(now)

            given = self._filling.look("ps-0", now, held=told, limit=self.limit, used=used) or given
            assert given >= self.limit


@settings(max_examples=60, deadline=None)
@given(st.floats(1.0, 300.0), st.integers(100, 1024), st.floats(0.0, 0.5))
@example(30.0, 112, 0.2)
def test_a_growing_server_gets_memory_before_it_is_full(rate_mib: float, limit_mib: int, starts: float) -> None:
    """However early it grows, if it takes longer than half a second to be full."""
    rate = min(rate_mib, 2 * (limit_mib - BESIDE / MIB)) * MIB
    server = Server(limit_mib * MIB, lambda second: max(0.0, second - starts) * rate)
    server.run(6.0)


@settings(max_examples=60, deadline=None)
@given(st.floats(5.0, 100.0), st.integers(100, 512), st.floats(0.0, 5.0))
def test_a_server_that_stops_growing_was_given_little_too_much(rate: float, limit: int, stops: float) -> None:
    rate = min(rate, 0.15 * limit)
    server = Server(limit * MIB, lambda second: min(second, stops + 1.0) * rate * MIB)
    server.run(8.0)
    if server.limit > limit * MIB:
        assert server.limit <= 1.6 * server.most_used


def test_a_server_that_does_not_grow_keeps_its_limit() -> None:
    server = Server(100 * MIB, lambda _: 29 * MIB)
    server.run(5.0)
    assert server.limit == 100 * MIB and server.asked <= 1


def test_a_server_far_from_full_is_looked_at_once_a_second() -> None:
    server = Server(1 << 30, lambda second: second * 10 * MIB)
    server.run(5.0)
    assert server.limit == 1 << 30 and server.asked <= 6


def test_growth_is_measured_anew_after_slots_were_given_away() -> None:
    filling = Filling()

    def look(now: float, held: int) -> int | None:
        return filling.look("ps-0", now, held=held * MIB, limit=300 * MIB, used=lambda: BESIDE + held * MIB)

    assert [look(0.0, 150), look(0.2, 160), look(0.4, 20), look(0.6, 21)] == [None] * 4
    assert look(0.8, 226) is not None


def test_servers_no_longer_running_are_forgotten() -> None:
    filling = Filling()

    def look(node: str, held: int) -> int | None:
        return filling.look(node, 0.0, held=held, limit=100, used=lambda: held)

    assert look("ps-0", 10) is None
    filling.keep({"ps-1"})
    assert look("ps-0", 99) is None  # it may have been so full for a long time
    assert look("ps-0", 100) == 120


def test_a_server_gets_more_the_faster_it_grows_up_to_half_its_limit() -> None:
    given = []
    for held in (140, 200, 300):
        filling = Filling()
        for now, at in ((0.0, 100), (0.5, held)):
            found = filling.look("ps-0", now, held=at * MIB, limit=260 * MIB, used=lambda at=at: at * MIB)  # type: ignore[misc]
        given.append((found or 0) / (260 * MIB))
    assert given[0] == 0.0 and given[1] > 1.2 and given[2] == 1.5
