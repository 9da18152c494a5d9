"""Text that is read: it scrolls, is searched, and can stay at its end while more is written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.selection import Selection
from textual.strip import Strip

from dlrover_lite.tui.text import Line, plain
from dlrover_lite.tui.text_view import TextView
from dlrover_lite.tui.widgets.toned import Toned

__all__ = ["Pager"]


class Pager(ScrollView, Toned, can_focus=True):
    DEFAULT_CSS = """
    Pager { overflow-x: hidden; overflow-y: auto; scrollbar-size-vertical: 1; scrollbar-gutter: stable; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "scroll_up", "Up", show=False),
        Binding("down,j", "scroll_down", "Down", show=False),
        Binding("pageup,ctrl+b", "page_up", "Page up", show=False),
        Binding("pagedown,ctrl+f,space", "page_down", "Page down", show=False),
        Binding("home,g", "scroll_home", "First", show=False),
        Binding("end,G", "scroll_end", "Last", show=False),
    ]

    class Stopped(Message):
        """Somebody has scrolled up, or gone to what was found: the end doesn't stay in sight any more."""

    def __init__(self, lines: Sequence[Line], *, follow: bool = False) -> None:
        super().__init__()
        self.text = TextView(lines)
        self.follow = follow
        """Whether the end stays in sight."""
        self.wraps = False
        self._searched_from = 0
        """Row from which on a search that is being written looks."""

    def put(self, lines: Sequence[Line], *, gone: int = 0) -> None:
        """Show these lines in place of those there are, the first ``gone`` of which are gone: what is in sight stays there."""
        rows = self.text.put(lines, gone=gone)
        top = self.scroll_offset.y
        self._sized()
        if rows and not self.follow:
            self._go(max(0, top - rows))

    def look_for(self, text: str, *, begins: bool = False) -> None:
        """Search for a text, and go to the first line with it from where the search has begun on."""
        if begins:
            self._searched_from = self.scroll_offset.y
        self.text.search(text)
        self._sized()
        if self.text.looked_for:
            self._show_row(self.text.first_from(self._searched_from))

    def go_to_match(self, step: int) -> None:
        self._show_row(self.text.next(self.scroll_offset.y, step))

    def show_only(self, only: bool) -> None:
        """Leave out the lines that a search hasn't found, or show them again."""
        self.text.show_only(only)
        self._sized()
        self._show_row(self.text.row_gone_to)

    def wrap(self, wraps: bool) -> None:
        """Show long lines in several rows, or cut them."""
        line = self.text.line_at(self.scroll_offset.y) if self.text.rows else 0
        self.wraps = wraps
        self._sized()
        if not self.follow:
            self._go(self.text.first_row(line))

    def follow_end(self, follow: bool) -> None:
        self.follow = follow
        self._sized()

    @property
    def counts(self) -> tuple[int, int]:
        """Number of lines that are shown, and of all."""
        return len(self.text.shown), len(self.text.lines)

    @property
    def shown(self) -> list[Line]:
        """Lines that are shown."""
        return list(self.text.shown)

    @property
    def in_sight(self) -> list[Line]:
        top, last = self.scroll_offset.y, min(self.scroll_offset.y + self.size.height, self.text.rows) - 1
        return self.text.shown[self.text.line_at(top) : self.text.line_at(last) + 1] if last >= top else []

    @property
    def below(self) -> int:
        """Number of rows below those in sight."""
        return max(0, self.text.rows - self.scroll_offset.y - self.size.height)

    def _sized(self) -> None:
        """Show what there is now; the end of it, while that is followed."""
        self.text.arrange(self.scrollable_size.width, wraps=self.wraps)
        self.virtual_size = Size(self.scrollable_size.width, self.text.rows)
        if self.follow:
            self._go(max(0, self.text.rows - self.size.height))
        self.refresh()

    def _go(self, y: int) -> None:
        self.scroll_to(y=y, animate=False, force=True, immediate=True)

    def _show_row(self, y: int | None) -> None:
        """Have a row in sight that was found; there it stays."""
        if y is not None and self.follow:
            self._stop()
        if y is not None and not self.scroll_offset.y <= y < self.scroll_offset.y + self.size.height:
            self._go(max(0, min(y - self.size.height // 3, self.text.rows - self.size.height)))
        self.refresh()

    def watch_scroll_y(self, before: float, now: float) -> None:
        super().watch_scroll_y(before, now)
        if self.follow and now < before and round(now) < self.text.rows - self.size.height:
            self._stop()

    def _stop(self) -> None:
        self.follow = False
        self.post_message(self.Stopped())

    def on_resize(self) -> None:
        self._sized()

    def render_line(self, y: int) -> Strip:
        at = y + self.scroll_offset.y
        strip = self.strip_of(self.text.row(at), self.scrollable_size.width)
        return self._selectable(strip, at) if at < self.text.rows else strip

    def _selectable(self, strip: Strip, at: int) -> Strip:
        """Have the mouse select in a row, and show what is selected."""
        selection = self.text_selection
        if selection is not None and (span := selection.get_span(at)) is not None:
            begin, end = span[0], strip.cell_length if span[1] < 0 else min(span[1], strip.cell_length)
            chosen = strip.crop(begin, end).apply_style(self.screen.get_component_rich_style("screen--selection"))
            strip = Strip.join([strip.crop(0, begin), chosen, strip.crop(end)])
        return strip.apply_offsets(0, at)

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        rows = (plain(self.text.row(y)).rstrip() for y in range(self.text.rows))
        return selection.extract("\n".join(rows)), "\n"
