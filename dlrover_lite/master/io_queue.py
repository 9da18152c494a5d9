"""Input and output that may take long: who asks for it goes on, and takes up later what has come of it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

__all__ = ["InlineIo", "IoQueue"]

T = TypeVar("T")


class IoQueue(Protocol):
    """Does one thing after the other, in the order in which it was submitted."""

    @property
    def is_done(self) -> bool:
        """Whether there is something to take up."""

    def submit(self, action: Callable[[], T], then: Callable[[Future[T]], None]) -> None:
        """Have ``action`` run; ``take`` calls ``then`` when it has ended, however."""

    def take(self) -> None:
        """Handle what has come of what was submitted. Never waits."""

    def close(self, patience_seconds: float) -> bool:
        """Begin nothing more after what has been submitted; return whether that has come to its end in time."""


class InlineIo:
    """Runs what is submitted at once: where time is virtual, and storage doesn't hang."""

    def __init__(self) -> None:
        self._done: list[tuple[Callable[[Future[Any]], None], Future[Any]]] = []

    @property
    def is_done(self) -> bool:
        return bool(self._done)

    def submit(self, action: Callable[[], T], then: Callable[[Future[T]], None]) -> None:
        future: Future[T] = Future()
        try:
            future.set_result(action())
        except Exception as error:  # noqa: BLE001 - it is raised again where the result is taken
            future.set_exception(error)
        self._done.append((then, future))

    def take(self) -> None:
        while self._done:
            then, future = self._done.pop(0)
            then(future)

    def close(self, patience_seconds: float) -> bool:
        return True
