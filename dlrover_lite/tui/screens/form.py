"""A small form: what is there is filled in, what is possible is said, and what is wrong is told in place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, cast

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical
from textual.widgets import Label

from dlrover_lite.core.errors import UsageError
from dlrover_lite.tui.pages.acting_page import Field
from dlrover_lite.tui.screens.application import Application
from dlrover_lite.tui.screens.dialog import Dialog
from dlrover_lite.tui.text import Tone, line, wrapped
from dlrover_lite.tui.widgets.prompt import LineInput
from dlrover_lite.tui.widgets.toned import Lines, Wrapped

__all__ = ["Form"]

Asked = Callable[[Mapping[str, str]], Callable[[], str]]


class Form(Dialog[None]):
    """A form. It can be filled in (``fill``) when it is there already; until then nothing can be asked for with it. An error is shown, and
    the form stays; else it goes, and what follows is told."""

    DEFAULT_CSS = """
    Form { align: center middle; }
    Form > Vertical { width: 72; max-width: 100%; height: auto; padding: 1 2; background: $panel; border: round $text-accent; }
    Form Horizontal { height: 1; }
    Form Label { width: 9; }
    Form Input { width: 14; height: 1; border: none; padding: 0 1; margin-right: 2; background: $surface; }
    Form Input:focus { background: $boost; text-style: bold; }
    Form .note { width: 1fr; height: 1; }
    Form.-low.-said #facts { display: none; }
    """
    BINDINGS: ClassVar[list[Any]] = [
        Binding("escape", "leave", "Leave"),
        Binding("enter", "submit", "Do it"),
        Binding("down,tab", "step(1)", "Next", show=False),
        Binding("up,shift+tab", "step(-1)", "Previous", show=False),
    ]

    def __init__(self, title: str, fields: Sequence[Field]) -> None:
        super().__init__()
        self._title = title
        self._fields = fields
        self._inputs = {
            field.name: LineInput(self._written, self.action_submit, id=f"field-{field.name}") for field in fields
        }
        self._notes = {field.name: Lines(classes="note") for field in fields}
        self._facts = Wrapped(lambda _width: [(), line(("reading what there is…", "dim")), ()], id="facts")
        self._asked: Asked | None = None
        self._said = Wrapped(lambda _width: (), id="said")
        self._waits = False
        """Whether it waits for an answer."""

    def compose(self) -> ComposeResult:
        yield self.notice_line()
        with Vertical():
            yield Wrapped(lambda width: [*wrapped(self._title, width, "title"), ()])
            for field in self._fields:
                with Horizontal():
                    yield Label(field.label)
                    yield self._inputs[field.name]
                    yield self._notes[field.name]
            yield self._facts
            yield self._said

    def on_mount(self) -> None:
        self._say("")
        self.set_focus(self._inputs[self._fields[0].name])

    def fill(self, fields: Sequence[Field], facts: str, asked: Asked) -> None:
        """Show what there is; what is written already stays. ``asked`` makes of what is written what is to be done, or raises UsageError;
        that is done on a thread of its own, and may raise DlroverLiteError."""
        for field in fields:
            written = self._inputs[field.name]
            if not written.value:
                written.value = field.value
                written.select_all()
            self._notes[field.name].show([line((field.note, "dim"))])
        self._facts.put(lambda width: [(), *wrapped(facts, width, "dim"), ()])
        self._asked = asked

    def cannot(self, why: str) -> None:
        """Leave the form, as nothing can be asked for with it, and tell why."""
        if self.is_current:
            self.dismiss(None)
        cast("Application", self.app).tell(why, "error")

    def _say(self, what: str, tone: Tone = "dim") -> None:
        """Show this above the keys."""
        keys = line(("enter", "accent"), " do it    ", ("tab", "accent"), " next    ", ("esc", "accent"), " leave it")
        self.set_class(bool(what), "-said")
        self._said.put(lambda width: [*wrapped(what, width, tone, indent="  "), *([()] if what else []), keys])

    # --- keys -------------------------------------------------------------------------------------------------------

    def action_step(self, step: int) -> None:
        """Go to another field, all of which is replaced by what is written."""
        inputs = list(self._inputs.values())
        at = next((number for number, one in enumerate(inputs) if one is self.focused), 0)
        chosen = inputs[(at + step) % len(inputs)]
        self.set_focus(chosen)
        chosen.select_all()

    def _written(self, _text: str) -> None:
        """Take back what was said to be wrong, which may not be any more."""
        if not self._waits:
            self._say("")

    def action_submit(self) -> None:
        if self._waits or self._asked is None:
            return
        try:
            what = self._asked({name: written.value for name, written in self._inputs.items()})
        except UsageError as error:
            self._wrong(str(error))
            return
        self._waits = True
        self._say("asking the job's master…")
        cast("Application", self.app).fetch(what, self._done, self._refused)

    def _done(self, what: str) -> None:
        if self.is_current:
            self.dismiss(None)
        cast("Application", self.app).done(what)

    def _refused(self, why: str) -> None:
        self._waits = False
        if self.is_current:
            self._wrong(why)
        else:
            cast("Application", self.app).tell(why, "error")

    def _wrong(self, why: str) -> None:
        self._say(f"✗ {why}", "bad")

    def action_leave(self) -> None:
        self.leave()
