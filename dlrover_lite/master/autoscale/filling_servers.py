"""Parameter servers (PS) that fill up before the brain can be asked: a pure state machine, told what each holds, says who gets more.

The brain foresees what a PS will need from levels, of which there is one a second at most, and its word takes another second to come. A PS
that is full within two or three seconds of its start would be dead by then. But each tells five times a second how large its rows and
index are: enough to see that the limit is near. What it is given then is little, and bridges the time until the brain decides.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

__all__ = ["Filling"]

FULL = 0.95
"""Share of its memory limit from which on a PS gets more memory."""
AHEAD_SECONDS = 1.0
"""Seconds ahead: a PS gets more memory if it would hold that share by then, as it grows."""
LEAST, MOST = 1.2, 1.5
"""Least and largest new limit, in multiples of the present one. The least is no waste if the PS stops growing now; more may follow in a
moment."""
_RATE_SECONDS, _LEAST_RATE_SECONDS = 1.0, 0.15
"""Seconds that a rate is measured over, and the least."""
_ASK_SECONDS = 1.0
"""Seconds between two readings of the memory that a growing PS really takes, while that can't be near its limit."""


class _Mark(NamedTuple):
    at: float
    held: int


class _Server:
    """``beside``: bytes that it takes beside rows and index, as of ``asked_at``."""

    def __init__(self) -> None:
        self.marks: deque[_Mark] = deque()
        self.beside = 0
        self.asked_at = float("-inf")

    def grows(self, now: float, held: int) -> bool:
        """Return whether the PS holds more than before."""
        if not self.marks:
            self.marks.append(_Mark(now, held))
            return False
        if held <= self.marks[-1].held:
            if held < self.marks[-1].held:  # slots have left, and it was tidied up
                self.marks.clear()
                self.marks.append(_Mark(now, held))
            return False
        self.marks.append(_Mark(now, held))
        while len(self.marks) > 2 and self.marks[1].at <= now - _RATE_SECONDS:
            self.marks.popleft()
        return True

    def rate(self) -> float:
        """Return the growth in bytes per second; 0 while that isn't known."""
        first, last = self.marks[0], self.marks[-1]
        seconds = last.at - first.at
        return (last.held - first.held) / seconds if seconds >= _LEAST_RATE_SECONDS else 0.0


class Filling:
    """Times are those of the caller's steady clock, memory is in bytes."""

    def __init__(self) -> None:
        self._servers: dict[str, _Server] = {}

    def look(self, node: str, now: float, *, held: int, limit: int, used: Callable[[], int]) -> int | None:
        """Return the limit that a PS needs now; None if it gets by with the one it has. ``held``: what its rows and index take, as it last
        told; ``used``: gives all that it takes, at some cost."""
        server = self._servers.setdefault(node, _Server())
        if not server.grows(now, held):
            return None
        ahead = server.rate() * AHEAD_SECONDS
        if now < server.asked_at + _ASK_SECONDS and held + server.beside + ahead < FULL * limit:
            return None
        taken = used()
        server.beside, server.asked_at = taken - held, now
        if taken + ahead < FULL * limit:
            return None
        return int(min(max(LEAST * limit, (taken + ahead) / FULL), MOST * limit))

    def keep(self, nodes: set[str]) -> None:
        """Forget all others."""
        for node in self._servers.keys() - nodes:
            del self._servers[node]
