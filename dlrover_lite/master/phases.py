"""How a master that never waits is written down in the order of its life.

A phase is a generator: where it has nothing more to do it yields the time when it is to go on, and is sent the requests that have come by
then, or that have woken it before. Whoever drives the master has the only loop, clock and sockets.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeAlias, TypeVar

import msgspec

from dlrover_lite.transport.frames import Request

__all__ = ["Outbox", "Phase", "StepClock"]

T = TypeVar("T")
Phase: TypeAlias = Generator[float, list[Request], T]
"""Yields the time on the master's steady clock when it is to go on, in seconds; is sent requests; returns T when it is over."""


class StepClock:
    """The time of the step that is being taken: it stands still within a step."""

    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class Outbox:
    """Answers that are to be sent when the step is over, in their order."""

    def __init__(self) -> None:
        self._answers: list[tuple[Request, msgspec.Struct]] = []

    def reply(self, request: Request, body: msgspec.Struct) -> None:
        self._answers.append((request, body))

    def take(self) -> list[tuple[Request, msgspec.Struct]]:
        """Return what is to be sent, and keep nothing of it."""
        answers, self._answers = self._answers, []
        return answers
