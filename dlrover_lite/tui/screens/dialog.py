"""What all dialogs have in common: they take only keys that were pressed when they could be seen."""

from __future__ import annotations

from typing import Any, TypeVar

from textual import events
from textual.message import Message
from textual.screen import ModalScreen

__all__ = ["Dialog"]

R = TypeVar("R")


class Dialog(ModalScreen[R]):
    """A dialog. Keys that were pressed before it was drawn were meant for something else: the application drops them."""

    def __init__(self) -> None:
        super().__init__()
        self._drawn_at: float | None = None

    def on_mount(self) -> None:
        self.call_after_refresh(self._drawn)

    def _drawn(self) -> None:
        self._drawn_at = Message().time

    def takes(self, event: events.Key) -> bool:
        """Say whether the key was pressed when the dialog could be seen."""
        return self._drawn_at is not None and event.time >= self._drawn_at

    def on_click(self, event: Any) -> None:
        """Leave the dialog on a click elsewhere."""
        if event.widget is self:
            self.leave()

    def leave(self) -> None:
        """Leave with nothing done."""
        self.dismiss(None)
