"""All commands, to choose from: those with the words that are written, and the first of them, or another one, is done."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple, cast

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.screen import ModalScreen

from dlrover_lite.tui.screens.application import Application
from dlrover_lite.tui.table import Column, Table
from dlrover_lite.tui.text import line
from dlrover_lite.tui.widgets.grid import Grid
from dlrover_lite.tui.widgets.notice_line import NoticeLine
from dlrover_lite.tui.widgets.prompt import LineInput

__all__ = ["Choice", "Palette"]


class Choice(NamedTuple):
    title: str
    what: str
    """What the command does, in words."""
    do: Callable[[], object]


class Palette(ModalScreen[None]):
    """The palette of commands. What is typed while it opens is for it. (Textual's own looks for commands beside the keys: what is done when
    enter comes early isn't what was written.)"""

    DEFAULT_CSS = """
    Palette { align: center top; }
    Palette Vertical {
        width: 80; max-width: 100%; height: 80%; margin-top: 1; padding: 0 1; background: $panel; border: round $foreground 35%;
    }
    Palette Input { height: 1; border: none; padding: 0 1; background: $surface; }
    Palette Grid { height: 1fr; }
    """
    BINDINGS: ClassVar[list[Any]] = [
        Binding("escape", "leave", "Leave"),
        Binding("up", "move(-1)", "Up", show=False),
        Binding("down", "move(1)", "Down", show=False),
        Binding("pageup", "page(-1)", "Page up", show=False),
        Binding("pagedown", "page(1)", "Page down", show=False),
        Binding("ctrl+l", "app.dismiss_notice", show=False),
    ]

    def __init__(self, choices: Sequence[Choice]) -> None:
        super().__init__()
        self.grid: Grid[Choice] = Grid(Table(_COLUMNS, lambda one: f"{one.title} {one.what}"))
        self.grid.can_focus = False
        self._choices = {str(number): one for number, one in enumerate(choices)}
        self.words = LineInput(self._look_for, self.action_choose, placeholder="words of a command")

    def compose(self) -> ComposeResult:
        yield NoticeLine(lambda: cast("Application", self.app).notices.shown)
        with Vertical():
            yield self.words
            yield self.grid

    def on_mount(self) -> None:
        self.grid.put(self._choices)
        self.set_focus(self.words)

    def _look_for(self, text: str) -> None:
        self.grid.look_for(text)
        self.grid.action_first()

    def on_grid_chosen(self, event: Grid.Chosen) -> None:
        """Do the command that was chosen by the mouse."""
        event.stop()
        self.action_choose()

    def action_choose(self) -> None:
        if (one := self.grid.row) is not None:
            self.dismiss(None)
            one.do()

    def action_leave(self) -> None:
        self.dismiss(None)

    def on_click(self, event: Any) -> None:
        if event.widget is self:
            self.dismiss(None)

    def action_move(self, step: int) -> None:
        self.grid.action_move(step)

    def action_page(self, step: int) -> None:
        self.grid.action_page(step)


_COLUMNS: tuple[Column[Choice], ...] = (
    Column("title", "COMMAND", lambda one, _: line(one.title), None, least=12, wanted=28, most=40),
    Column("what", "", lambda one, _: line((one.what, "dim")), None, least=10, wanted=40, most=80, rank=1),
)
