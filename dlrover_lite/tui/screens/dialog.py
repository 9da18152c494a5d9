"""What all dialogs have in common: they take only keys that were pressed when they could be seen."""

from __future__ import annotations

from typing import Any, ClassVar, TypeVar, cast

from textual import events
from textual.binding import Binding
from textual.message import Message
from textual.screen import ModalScreen

from dlrover_lite.tui.screens.application import Application
from dlrover_lite.tui.widgets.notice_line import NoticeLine

__all__ = ["Dialog"]

R = TypeVar("R")


class Dialog(ModalScreen[R]):
    """A dialog. Keys that were pressed before it was drawn were meant for something else: the application drops them."""

    VERTICAL_BREAKPOINTS = [(0, "-low"), (20, "-high")]  # noqa: RUF012 - textual has it so
    DEFAULT_CSS = """
    Dialog.-low > Vertical { padding: 0 1; }
    """
    BINDINGS: ClassVar[list[Any]] = [Binding("ctrl+l", "app.dismiss_notice", show=False)]

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

    def notice_line(self) -> NoticeLine:
        """Make the line of notices, which is where that of the screen below is."""
        return NoticeLine(lambda: cast("Application", self.app).notices.shown)

    def leave(self) -> None:
        """Leave with nothing done."""
        self.dismiss(None)
