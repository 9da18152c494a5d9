"""Parts of a screen with a title and a border, and the column that shares the lines of a screen among its parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widget import Widget

from dlrover_lite.tui.pages.heights import Want, divide
from dlrover_lite.tui.widgets.toned import Lines

__all__ = ["Panel", "Part", "Stack"]


class Panel(Lines):
    """Lines with a title. In a small terminal there is a line above them, in a large one a border around them."""

    DEFAULT_CSS = """
    Panel { border-top: solid $foreground 35%; border-title-color: $text-accent; border-title-style: bold; padding: 0 1; }
    """

    def __init__(self, title: str = "", *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.border_title = title

    def entitle(self, title: str) -> None:
        if self.border_title != title:
            self.border_title = title

    @property
    def frame(self) -> int:
        """Number of lines that the border takes."""
        return self.gutter.height


Part = tuple[Widget, Callable[[int], Want]]
"""A widget, and a function of the width that returns what lines it wants."""


class Stack(Vertical):
    """Widgets above each other, each as high as what it shows, as far as there is room."""

    DEFAULT_CSS = """
    Stack { height: 1fr; overflow: hidden; }
    """

    def __init__(self, parts: Sequence[Part], shared: Callable[[], None] = lambda: None) -> None:
        """``shared`` is called when the parts have other heights."""
        super().__init__()
        self._parts = parts
        self._shared = shared
        self._heights: list[int] = []

    def compose(self) -> ComposeResult:
        for widget, _ in self._parts:
            yield widget

    def on_resize(self, _event: events.Resize) -> None:
        self.share()

    def share(self) -> None:
        """Give each part its lines, which what it shows may have changed."""
        if not self.size.width:
            return
        heights = divide(self.size.height, [want(self.size.width) for _, want in self._parts])
        if heights == self._heights:
            return
        self._heights = heights
        for (widget, _), height in zip(self._parts, heights, strict=True):
            widget.styles.height = height
            widget.display = height > 0
        self.call_after_refresh(self._shared)
