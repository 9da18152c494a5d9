"""A question before something is done that can't be undone."""

from __future__ import annotations

from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.screen import ModalScreen

from dlrover_lite.tui.text import line, wrapped
from dlrover_lite.tui.widgets.toned import Lines

__all__ = ["Confirm"]

_WIDTH = 56


class Confirm(ModalScreen[bool]):
    """y does it; n, esc, enter and a click elsewhere don't."""

    DEFAULT_CSS = """
    Confirm { align: center middle; }
    Confirm Vertical { width: 62; max-width: 100%; height: auto; padding: 1 2; background: $panel; border: round $text-warning; }
    """
    BINDINGS: ClassVar[list[Any]] = [
        Binding("y", "answer(True)", "Yes"),
        Binding("n,escape,enter,q", "answer(False)", "No"),
    ]

    def __init__(self, question: str, consequence: str) -> None:
        super().__init__()
        self._question = question
        self._consequence = consequence

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Lines(
                [
                    *wrapped(self._question, _WIDTH, "title"),
                    (),
                    *wrapped(self._consequence, _WIDTH),
                    (),
                    line(("y", "accent"), " yes    ", ("n", "accent"), " no"),
                ]
            )

    def action_answer(self, yes: bool) -> None:
        self.dismiss(yes)

    def on_click(self, event: Any) -> None:
        if event.widget is self:
            self.dismiss(False)
