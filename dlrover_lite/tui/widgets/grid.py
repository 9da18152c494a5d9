"""A table that may have thousands of rows, of which some change several times a second: it draws those in sight that have changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar, Generic, TypeVar

from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.reactive import reactive
from textual.scroll_view import ScrollView
from textual.strip import Strip

from dlrover_lite.tui.table import Placed, Table
from dlrover_lite.tui.widgets.toned import Toned

__all__ = ["Grid"]

R = TypeVar("R")
_HEAD = 1
"""Number of lines of headings, which stay when rows scroll."""


class Grid(ScrollView, Toned, Generic[R], can_focus=True):
    """Shows a ``Table``. Columns that there is no room for are left out; nothing scrolls sideways. (Textual's own table keeps every cell of
    every row, and drops all that it has drawn with each cell that changes.)"""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"grid--cursor", "grid--head"}
    DEFAULT_CSS = """
    Grid {
        overflow-x: hidden;
        overflow-y: auto;
        scrollbar-size-vertical: 1;
        scrollbar-gutter: stable;
        & > .grid--cursor { background: $block-cursor-blurred-background; color: $foreground; text-style: bold; }
        & > .grid--head { background: $panel; color: $foreground; text-style: bold; }
        &:focus > .grid--cursor { background: $block-cursor-background; color: $block-cursor-foreground; text-style: bold; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "Up", show=False),
        Binding("down,j", "move(1)", "Down", show=False),
        Binding("pageup,ctrl+b", "page(-1)", "Page up", show=False),
        Binding("pagedown,ctrl+f", "page(1)", "Page down", show=False),
        Binding("home,g", "first", "First", show=False),
        Binding("end,G", "last", "Last", show=False),
    ]

    cursor: reactive[str | None] = reactive[str | None](None, repaint=False)
    """Id of the row that keys are about."""

    class Chosen(Message):
        """A row was chosen by the mouse: a click on the row that has the cursor."""

    class Moved(Message):
        """The cursor is on another row, or on none."""

    def __init__(self, table: Table[R], *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.table = table
        self._placed: list[Placed] = []

    # --- what is shown ----------------------------------------------------------------------------------------------

    def put(self, rows: Mapping[str, R]) -> None:
        empty = self.table.empty
        changed = self.table.put(rows)
        if self.table.empty != empty:
            self._placed = self.table.place(self.width)
            changed = None
        if changed is None:
            self._arranged()
            return
        if not changed:
            return
        top, shown = self.scroll_offset.y, self.table.shown
        for y, name in enumerate(shown[top : top + self._room]):
            if name in changed:
                self.refresh(Region(0, y + _HEAD, self.width, 1))

    def look_for(self, text: str) -> None:
        self.table.look_for(text)
        self._arranged()

    def leave_out(self, is_left_out: Callable[[R], bool] | None) -> None:
        """Leave out the rows of which this is true; None: show all."""
        self.table.leave_out(is_left_out)
        self._arranged()

    def sort_by(self, column: str) -> None:
        self.table.sort_by(column)
        self._arranged()

    @property
    def row(self) -> R | None:
        """The row with the cursor; None also where a filter hides it, as it does when it leaves no row."""
        return self.table.rows.get(self.cursor) if self.cursor in self.table.shown else None

    @property
    def width(self) -> int:
        """Columns that rows have, beside the scroll bar."""
        return max(0, self.scrollable_size.width)

    @property
    def _room(self) -> int:
        return max(0, self.size.height - _HEAD)

    def _arranged(self) -> None:
        """Show the rows after their order, or their number, has changed. The cursor stays with its row, and in sight if it was."""
        shown = self.table.shown
        size = Size(self.width, len(shown) + _HEAD)
        if size != self.virtual_size:
            self.virtual_size = size
        if self.cursor not in self.table.rows or (self.cursor not in shown and shown):
            top = min(self.scroll_offset.y, len(shown) - 1)
            self.cursor = shown[top] if shown else None
        self.refresh()

    def on_resize(self) -> None:
        self._placed = self.table.place(self.width)
        self.virtual_size = Size(self.width, len(self.table.shown) + _HEAD)
        self._to_cursor()

    def render_line(self, y: int) -> Strip:
        width = self.width
        if y < _HEAD:
            return self.strip_of(
                self.table.head(self._placed, width), width, self.get_component_rich_style("grid--head")
            )
        at = y - _HEAD + self.scroll_offset.y
        if at >= len(self.table.shown):
            return Strip.blank(width, self.tone("plain"))
        name = self.table.shown[at]
        chosen = name == self.cursor
        style = self.get_component_rich_style("grid--cursor") if chosen else None
        return self.strip_of(self.table.line(name, self._placed, width, chosen=chosen), width, style)

    # --- the cursor -------------------------------------------------------------------------------------------------

    def watch_cursor(self, before: str | None, now: str | None) -> None:
        self.post_message(self.Moved())
        top = self.scroll_offset.y
        for y, name in enumerate(self.table.shown[top : top + self._room]):
            if name in (before, now):
                self.refresh(Region(0, y + _HEAD, self.width, 1))

    @property
    def _at(self) -> int:
        try:
            return self.table.shown.index(self.cursor or "")
        except ValueError:
            return 0

    def _go(self, at: int) -> None:
        if self.table.shown:
            self.cursor = self.table.shown[max(0, min(len(self.table.shown) - 1, at))]
            self._to_cursor()

    def _to_cursor(self) -> None:
        at, top = self._at, self.scroll_offset.y
        if at < top:
            self.scroll_to(y=at, animate=False, force=True)
        elif at >= top + self._room > 0:
            self.scroll_to(y=at - self._room + 1, animate=False, force=True)

    def action_move(self, step: int) -> None:
        self._go(self._at + step)

    def action_page(self, step: int) -> None:
        self._go(self._at + step * max(1, self._room - 1))

    def action_first(self) -> None:
        self._go(0)

    def action_last(self) -> None:
        self._go(len(self.table.shown) - 1)

    def on_click(self, event: events.Click) -> None:
        """Sort by the heading that was clicked. A click on a row puts the cursor there; where it is already, the row is chosen."""
        if event.y < _HEAD:
            for one in self._placed:
                column = self.table.columns[one.at]
                if one.x <= event.x < one.x + one.width and column.sort is not None:
                    self.sort_by(column.name)
            return
        at = event.y - _HEAD + self.scroll_offset.y
        if at < len(self.table.shown):
            if self.table.shown[at] == self.cursor:
                self.post_message(self.Chosen())
            else:
                self._go(at)
