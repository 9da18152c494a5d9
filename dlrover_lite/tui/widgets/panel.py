"""Parts of a screen with a title and a border, and what shares the lines of a screen among its parts: a column of them, or two."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from textual import events
from textual.app import ComposeResult
from textual.containers import Container, Vertical
from textual.widget import Widget

from dlrover_lite.tui.pages.heights import Want, divide
from dlrover_lite.tui.widgets.toned import Lines

__all__ = ["Columns", "Panel", "Part", "Stack"]


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


class Columns(Container):
    """Two columns of parts: beside each other in a wide terminal, else the second below the first."""

    DEFAULT_CSS = """
    Columns { height: auto; overflow: hidden; }
    Columns > Vertical { height: auto; }
    """

    def __init__(self, first: Sequence[Part], second: Sequence[Part], *, id: str | None = None) -> None:
        self.first, self.second = first, second
        super().__init__(
            Vertical(*(widget for widget, _ in first), classes="-first"),
            Vertical(*(widget for widget, _ in second)),
            id=id,
        )

    def groups(self, width: int) -> list[list[tuple[Widget, Want]]]:
        """Return the parts that are above each other, and what each wants in its column."""
        wide = self.screen.has_class("-wide")
        left = width * 55 // 100 if wide else width
        right = width - left if wide else width
        first = [(widget, want(left)) for widget, want in self.first]
        second = [(widget, want(right)) for widget, want in self.second]
        return [first, second] if wide else [first + second]

    def want(self, width: int) -> Want:
        """Return what both columns want: at least what never gives way."""
        groups = [[want for _, want in group] for group in self.groups(width)]
        least = max(sum(min(want.least, want.enough) for want in group if not want.rank) for group in groups)
        return Want(least, max(sum(want.enough for want in group) for group in groups), grows=True, rank=1)

    def on_resize(self, _event: events.Resize) -> None:
        self.share()

    def share(self) -> None:
        """Give each part its lines."""
        if not self.size.width:
            return
        for group in self.groups(self.size.width):
            heights = divide(self.size.height, [want for _, want in group])
            for (widget, _), height in zip(group, heights, strict=True):
                widget.styles.height = height
                widget.display = height > 0
