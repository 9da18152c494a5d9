"""The line at the bottom in which a filter or a command is written, and lines of forms that are written into."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Literal, Protocol

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.suggester import Suggester
from textual.widgets import Input, Label

__all__ = ["Kind", "LineInput", "Prompt"]

Kind = Literal["/", ":"]


class Written(Protocol):
    def __call__(self, kind: Kind, text: str, *, done: bool) -> None:
        """Take what is written, whenever it gets more or less; ``done``: enter was pressed, and the prompt is gone again."""


class _Completing(Suggester):
    def __init__(self, complete: Callable[[str], str | None]) -> None:
        super().__init__(use_cache=False, case_sensitive=True)
        self._complete = complete

    async def get_suggestion(self, value: str) -> str | None:
        return self._complete(value)


class LineInput(Input):
    """An input that says what it has to say before the next key is taken: ``changed`` is told what is written with each change, ``submit``
    is called when enter was pressed."""

    def __init__(self, changed: Callable[[str], None], submit: Callable[[], None], **settings: Any) -> None:
        super().__init__(compact=True, select_on_focus=False, **settings)
        self._changed, self._submit = changed, submit

    def watch_value(self, value: str) -> None:
        self._changed(value)

    async def action_submit(self) -> None:
        self._submit()


class _Written(LineInput):
    BINDINGS: ClassVar[list[BindingType]] = [Binding("tab", "complete", "Complete", show=False)]

    def __init__(
        self, complete: Callable[[str], str | None], changed: Callable[[str], None], submit: Callable[[], None]
    ) -> None:
        super().__init__(changed, submit, suggester=_Completing(complete))
        self._completed = complete

    def action_complete(self) -> None:
        if found := self._completed(self.value):
            self.value = found
            self.cursor_position = len(found)


class Prompt(Horizontal):
    """The prompt, which isn't there until it is opened. ``complete`` is asked for the rest of a command; ``written`` is told what is
    written."""

    DEFAULT_CSS = """
    Prompt { height: 1; display: none; background: $panel; }
    Prompt.-open { display: block; }
    Prompt Label { width: 2; text-style: bold; color: $text-accent; }
    Prompt Input { width: 1fr; height: 1; border: none; padding: 0; background: $panel; }
    """

    def __init__(self, complete: Callable[[str], str | None], written: Written) -> None:
        super().__init__()
        self._complete, self._told = complete, written
        self._kind: Kind = "/"
        self._label = Label(self._kind)
        self._quiet = False
        """Whether what changes isn't written by a person."""
        self._written = _Written(
            lambda text: self._complete(text) if self._kind == ":" else None, self._changed, self._submit
        )

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
        """Show it, and give it the focus: what is pressed next is written into it."""
        self._kind = kind
        self._label.update(kind)
        self._quiet = True
        self._written.value = text
        self._quiet = False
        self._written.cursor_position = len(text)
        self.add_class("-open")
        self.screen.set_focus(self._written)

    def close(self) -> None:
        self.remove_class("-open")

    def _changed(self, text: str) -> None:
        if self.is_open and not self._quiet:
            self._told(self._kind, text, done=False)

    def _submit(self) -> None:
        self.close()
        self._told(self._kind, self._written.value, done=True)
