"""Virtual time: events come in order, and chance of one source doesn't depend on another."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dlrover_lite.backends.sim.clock import EventClock, source_of_chance


@given(st.lists(st.integers(0, 5), max_size=20), st.sets(st.integers(0, 19)))
def test_events_come_by_time_and_then_as_they_were_made(moments: list[int], called_off: set[int]) -> None:
    clock, seen = EventClock(), list[tuple[float, int]]()
    events = [
        clock.at(moment, lambda number=number: seen.append((clock.now, number)))  # type: ignore[misc]
        for number, moment in enumerate(moments)
    ]
    for number in called_off:
        if number < len(events):
            events[number].cancel()
    clock.run_until(5.0)
    kept = [(float(moment), number) for number, moment in enumerate(moments) if number not in called_off]
    assert seen == sorted(kept)
    assert clock.now == 5.0 and clock.next_at == float("inf")


def test_what_an_event_brings_happens_in_the_same_run_if_it_is_due() -> None:
    clock, seen = EventClock(), list[float]()

    def again() -> None:
        seen.append(clock.now)
        clock.after(1.0, again)

    clock.at(1.0, again)
    clock.run_until(3.5)
    assert seen == [1.0, 2.0, 3.0]
    assert clock.next_at == 4.0


def test_an_event_in_the_past_happens_now() -> None:
    clock = EventClock(10.0)
    event = clock.at(3.0, lambda: None)
    assert event.at == 10.0 and event.due
    clock.run_until(10.0)
    assert not event.due and clock.now == 10.0


def test_a_source_of_chance_does_not_know_of_others() -> None:
    one, other = source_of_chance(7, "failures"), source_of_chance(7, "starts")
    other.random()
    assert one.random() == source_of_chance(7, "failures").random()
    assert len({source_of_chance(seed, name).random() for seed in (1, 2) for name in ("a", "b")}) == 4
