"""Virtual time: what happens in it in order, and where its chance comes from."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable

from dlrover_lite.transport.memory import VirtualClock

__all__ = ["Event", "EventClock", "source_of_chance"]


class Event:
    """Something that is to happen at a time, unless it is called off."""

    __slots__ = ("_act", "at")

    def __init__(self, at: float, act: Callable[[], object]) -> None:
        self.at = at
        self._act: Callable[[], object] | None = act

    @property
    def due(self) -> bool:
        """It has neither happened nor been called off."""
        return self._act is not None

    def cancel(self) -> None:
        self._act = None

    def happen(self) -> None:
        """Do it, if it is still due."""
        act, self._act = self._act, None
        if act is not None:
            act()


class EventClock(VirtualClock):
    """Seconds that pass from one event to the next. Events of one moment happen in the order in which they were made."""

    def __init__(self, now: float = 0.0) -> None:
        super().__init__(now)
        self._events: list[tuple[float, int, Event]] = []
        self._made = 0

    def at(self, moment: float, act: Callable[[], object]) -> Event:
        """Have something happen at a moment; at once, after what is due before, when that has passed."""
        event = Event(max(moment, self.now), act)
        heapq.heappush(self._events, (event.at, self._made, event))
        self._made += 1
        return event

    def after(self, seconds: float, act: Callable[[], object]) -> Event:
        return self.at(self.now + seconds, act)

    @property
    def next_at(self) -> float:
        """Time of the next event; infinite when there is none."""
        while self._events and not self._events[0][2].due:
            heapq.heappop(self._events)
        return self._events[0][0] if self._events else float("inf")

    def run_until(self, moment: float) -> None:
        """Let time pass, with all that happens up to and at that moment."""
        events = self._events
        while events and events[0][0] <= moment:
            at, _, event = heapq.heappop(events)
            if event.due:
                self.advance_to(at)
                event.happen()
        self.advance_to(moment)


def source_of_chance(seed: int, name: str) -> random.Random:
    """Return a source of chance of its own: how often another one is asked changes nothing of what comes from it."""
    return random.Random(f"{seed} {name}")
