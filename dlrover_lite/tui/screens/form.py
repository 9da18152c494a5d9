"""A small form: what is there is filled in, what is possible is said, and what is wrong is told in place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, cast

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Label

from dlrover_lite.errors import UsageError
from dlrover_lite.tui.acting_page import Field
from dlrover_lite.tui.text import line, wrapped
from dlrover_lite.tui.widgets.toned import Lines

if TYPE_CHECKING:
    from dlrover_lite.tui.app import TuiApp

__all__ = ["Form"]

_WIDTH = 66


class Form(ModalScreen[None]):
    """``asked`` makes of what is written what is to be done, or raises UsageError; that is done on a thread of its own, and may raise
    DlroverLiteError. Either error is shown, and the form stays; else it goes, and what follows is told."""

    DEFAULT_CSS = """
    Form { align: center middle; }
    Form > Vertical { width: 72; max-width: 100%; height: auto; padding: 1 2; background: $panel; border: round $text-accent; }
    Form Horizontal { height: 1; }
    Form Label { width: 9; }
    Form Input { width: 14; height: 1; border: none; padding: 0 1; margin-right: 2; background: $surface; }
    Form Input:focus { background: $boost; text-style: bold; }
    Form .note { width: 1fr; height: 1; }
    """
    BINDINGS: ClassVar[list[Any]] = [
        Binding("escape", "leave", "Leave"),
        Binding("enter", "submit", "Do it"),
        Binding("down", "app.focus_next", "Next", show=False),
        Binding("up", "app.focus_previous", "Previous", show=False),
    ]

    def __init__(
        self,
        title: str,
        fields: Sequence[Field],
        facts: str,
        asked: Callable[[Mapping[str, str]], Callable[[], str]],
    ) -> None:
        super().__init__()
        self._title = title
        self._fields = fields
        self._facts = facts
        self._asked = asked
        self._inputs = {
            field.name: Input(field.value, id=f"field-{field.name}", compact=True, select_on_focus=True)
            for field in fields
        }
        self._said = Lines(id="said")
        self._waits = False
        """For an answer."""

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Lines([*wrapped(self._title, _WIDTH, "title"), ()])
            for field in self._fields:
                with Horizontal():
                    yield Label(field.label)
                    yield self._inputs[field.name]
                    yield Lines([line((field.note, "dim"))], classes="note")
            yield Lines([(), *wrapped(self._facts, _WIDTH, "dim"), ()])
            yield self._said

    def on_mount(self) -> None:
        self._say([])
        self._inputs[self._fields[0].name].focus()

    def _say(self, lines: Sequence[Any]) -> None:
        """Above the keys."""
        keys = line(("enter", "accent"), " do it    ", ("tab", "accent"), " next    ", ("esc", "accent"), " leave it")
        self._said.show([*lines, *([()] if lines else []), keys])

    # --- keys -------------------------------------------------------------------------------------------------------

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.action_submit()

    def on_input_changed(self, event: Input.Changed) -> None:
        """What was wrong may not be any more."""
        event.stop()
        if not self._waits:
            self._say([])

    def action_submit(self) -> None:
        if self._waits:
            return
        try:
            what = self._asked({name: written.value for name, written in self._inputs.items()})
        except UsageError as error:
            self._wrong(str(error))
            return
        self._waits = True
        self._say([line(("asking the job's master…", "dim"))])
        cast("TuiApp", self.app).fetch(what, self._done, self._refused)

    def _done(self, what: str) -> None:
        if self.is_current:
            self.dismiss(None)
        cast("TuiApp", self.app).done(what)

    def _refused(self, why: str) -> None:
        self._waits = False
        if self.is_current:
            self._wrong(why)
        else:
            cast("TuiApp", self.app).tell(why, "error")

    def _wrong(self, why: str) -> None:
        self._say(wrapped(f"✗ {why}", _WIDTH, "bad", indent="  "))

    def action_leave(self) -> None:
        self.dismiss(None)

    def on_click(self, event: Any) -> None:
        if event.widget is self:
            self.dismiss(None)
