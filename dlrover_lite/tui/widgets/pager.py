"""Text that is read: it scrolls, shows only lines with some words, and can stay at its end while more is written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from dlrover_lite.tui.text import Line, plain
from dlrover_lite.tui.widgets.toned import TONES, Toned, tone_css

__all__ = ["Pager"]


class Pager(ScrollView, Toned, can_focus=True):
    COMPONENT_CLASSES: ClassVar[set[str]] = set(TONES)
    DEFAULT_CSS = (
        tone_css("Pager")
        + """
    Pager { overflow-x: hidden; overflow-y: auto; scrollbar-size-vertical: 1; scrollbar-gutter: stable; }
    """
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "scroll_up", "Up", show=False),
        Binding("down,j", "scroll_down", "Down", show=False),
        Binding("pageup,ctrl+b", "page_up", "Page up", show=False),
        Binding("pagedown,ctrl+f,space", "page_down", "Page down", show=False),
        Binding("home,g", "scroll_home", "First", show=False),
        Binding("end,G", "scroll_end", "Last", show=False),
    ]

    def __init__(self, lines: Sequence[Line]) -> None:
        super().__init__()
        self.follow = False
        """Whether the end stays in sight."""
        self._all = list(lines)
        self._words: list[str] = []
        self._shown = self._all

    def put(self, lines: Sequence[Line]) -> None:
        self._all = list(lines)
        self._choose()

    def look_for(self, text: str) -> None:
        self._words = text.lower().split()
        self._choose()

    @property
    def counts(self) -> tuple[int, int]:
        """Number of lines that are shown, and of all."""
        return len(self._shown), len(self._all)

    @property
    def shown(self) -> list[Line]:
        """Lines that a filter leaves."""
        return list(self._shown)

    @property
    def in_sight(self) -> list[Line]:
        top = self.scroll_offset.y
        return self._shown[top : top + self.size.height]

    def _choose(self) -> None:
        words = self._words
        self._shown = (
            [one for one in self._all if all(word in plain(one).lower() for word in words)] if words else self._all
        )
        self.virtual_size = Size(self.scrollable_size.width, len(self._shown))
        if self.follow:
            self.scroll_to(y=max(0, len(self._shown) - self.size.height), animate=False, force=True)
        self.refresh()

    def on_resize(self) -> None:
        self._choose()

    def render_line(self, y: int) -> Strip:
        at = y + self.scroll_offset.y
        return self.strip_of(self._shown[at] if at < len(self._shown) else (), self.scrollable_size.width)
