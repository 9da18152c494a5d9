"""The line at the bottom in which a filter or a command is written."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Literal

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.message import Message
from textual.suggester import Suggester
from textual.widgets import Input, Label

__all__ = ["Prompt"]

Kind = Literal["/", ":"]


class _Completing(Suggester):
    def __init__(self, complete: Callable[[str], str | None]) -> None:
        super().__init__(use_cache=False, case_sensitive=True)
        self._complete = complete

    async def get_suggestion(self, value: str) -> str | None:
        return self._complete(value)


class _Written(Input):
    BINDINGS: ClassVar[list[BindingType]] = [Binding("tab", "complete", "Complete", show=False)]

    def __init__(self, complete: Callable[[str], str | None]) -> None:
        super().__init__(suggester=_Completing(complete), compact=True)
        self._completed = complete

    def action_complete(self) -> None:
        if found := self._completed(self.value):
            self.value = found
            self.cursor_position = len(found)


class Prompt(Horizontal):
    """Not there until it is opened. ``complete`` is asked for the rest of a command."""

    DEFAULT_CSS = """
    Prompt { height: 1; display: none; background: $panel; }
    Prompt.-open { display: block; }
    Prompt Label { width: 2; text-style: bold; color: $text-accent; }
    Prompt Input { width: 1fr; height: 1; border: none; padding: 0; background: $panel; }
    """

    class Changed(Message):
        """More was written, or less."""

        def __init__(self, kind: Kind, text: str, *, done: bool) -> None:
            super().__init__()
            self.kind = kind
            self.text = text
            self.done = done
            """Enter was pressed: the prompt is gone again."""

    def __init__(self, complete: Callable[[str], str | None]) -> None:
        super().__init__()
        self._complete = complete
        self._kind: Kind = "/"
        self._label = Label(self._kind)
        self._written = _Written(lambda text: self._complete(text) if self._kind == ":" else None)

    def compose(self) -> ComposeResult:
        yield self._label
        yield self._written

    @property
    def kind(self) -> Kind:
        return self._kind

    @property
    def is_open(self) -> bool:
        return self.has_class("-open")

    def open(self, kind: Kind, text: str = "") -> None:
        self._kind = kind
        self._label.update(kind)
        written = self._written
        with written.prevent(Input.Changed):
            written.value = text
        written.cursor_position = len(text)
        self.add_class("-open")
        written.focus()

    def close(self) -> None:
        self.remove_class("-open")

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        if self.is_open:
            self.post_message(self.Changed(self._kind, event.value, done=False))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.close()
        self.post_message(self.Changed(self._kind, event.value, done=True))
