"""A question before something is done that can't be undone."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical

from dlrover_lite.tui.pages.acting_page import Question
from dlrover_lite.tui.screens.dialog import Dialog
from dlrover_lite.tui.text import Span, line, wrapped
from dlrover_lite.tui.widgets.toned import Wrapped

__all__ = ["Answer", "Confirm"]

Answer = Literal["yes", "instead", "no"]


class Confirm(Dialog[Answer]):
    """A dialog with a question: y does it, r something else, where there is that; n, esc, enter and a click elsewhere don't."""

    DEFAULT_CSS = """
    Confirm { align: center middle; }
    Confirm Vertical { width: 62; max-width: 100%; height: auto; padding: 1 2; background: $panel; border: round $text-warning; }
    """
    BINDINGS: ClassVar[list[Any]] = [
        Binding("y", "answer('yes')", "Yes"),
        Binding("r", "answer('instead')", "Instead"),
        Binding("n,escape,enter,q", "answer('no')", "No"),
    ]

    def __init__(self, question: Question) -> None:
        super().__init__()
        self._question = question

    def compose(self) -> ComposeResult:
        text, consequence, instead = self._question
        others = [Span("    "), Span("r", "accent"), Span(f" {instead}")] if instead else []
        yield self.notice_line()
        with Vertical():
            yield Wrapped(
                lambda width: [
                    *wrapped(text, width, "title"),
                    (),
                    *wrapped(consequence, width),
                    (),
                    line(("y", "accent"), " yes", *others, "    ", ("n", "accent"), " no"),
                ]
            )

    def action_answer(self, answer: Answer) -> None:
        if answer != "instead" or self._question.instead:
            self.dismiss(answer)

    def leave(self) -> None:
        self.dismiss("no")
