"""Lines of text in the colours that a theme has for their tones."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from rich.segment import Segment
from rich.style import Style
from textual.geometry import Region, Size
from textual.message import Message
from textual.strip import Strip
from textual.style import Style as VisualStyle
from textual.widget import Widget

from dlrover_lite.tui.text import EMPTY, Line, Tone, for_terminal, length, padded, plain

__all__ = ["TONE_STYLES", "Lines", "Toned", "Wrapped"]


TONE_STYLES: dict[Tone, str] = {
    "plain": "",
    "dim": "$text-muted",
    "good": "$text-success",
    "warn": "$text-warning",
    "bad": "bold $text-error",
    "accent": "$text-accent",
    "title": "bold",
    "one": "$text-primary",
    "two": "$text-secondary",
    "three": "$text-accent",
    "found": "underline",
    "here": "bold reverse",
}
"""Styles of tones, with the colours of the theme. Without colours tones look alike, but titles, and what a search has found."""


class Toned(Widget):
    """Draws lines, each tone in its style upon the widget's. (Tones aren't component classes: textual would match the rules for all of
    them in each widget of a screen whenever the focus or a class changes, which takes longer than all else that it does then.)"""

    def __init__(self, *children: Widget, **settings: Any) -> None:
        self._tones: dict[Tone, Style] = {}
        """Styles of those tones that were drawn since styles were updated last."""
        self._toned_by = ""
        """Name of the theme that those styles are of."""
        super().__init__(*children, **settings)

    def tone(self, tone: Tone) -> Style:
        if (style := self._tones.get(tone)) is None:
            named = TONE_STYLES[tone].replace("$text-muted", self.app.theme_variables["text-muted"])
            style = self._tones[tone] = (self.visual_style + VisualStyle.parse(named)).rich_style
            self._toned_by = self.app.theme
        return style

    def notify_style_update(self) -> None:
        super().notify_style_update()
        if self._tones:
            self._tones.clear()
            if self.app.theme != self._toned_by:
                self.refresh()

    def strip_of(self, line: Line, width: int, style: Style | None = None) -> Strip:
        """Make a strip, filled or, with an ellipsis, cut to ``width``; all of it in one ``style``, if that is given."""
        terminal = os.environ.get("TERM", "")
        spans = padded(line, width) if length(line) > width else line
        segments = [Segment(for_terminal(span.text, terminal), style or self.tone(span.tone)) for span in spans]
        return Strip(segments).adjust_cell_length(width, style or self.tone("plain"))


class Lines(Toned):
    """Lines that are replaced by others: only those that differ are drawn again. As high as its lines, unless styles say otherwise."""

    DEFAULT_CSS = "Lines { width: 1fr; height: auto; }"
    ALLOW_SELECT = True

    class Resized(Message):
        """The lines have another size: who draws them to fit does so again."""

    def __init__(self, lines: Sequence[Line] = (), *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self._lines: list[Line] = list(lines)

    def show(self, lines: Sequence[Line]) -> None:
        before, self._lines = self._lines, list(lines)
        if len(before) != len(self._lines):
            self.refresh(layout=self.styles.is_auto_height)
            return
        for y, (one, other) in enumerate(zip(before, self._lines, strict=True)):
            if one != other:
                self.refresh(Region(0, y, self.size.width, 1))

    def on_resize(self) -> None:
        self.post_message(self.Resized())

    @property
    def text(self) -> str:
        return "\n".join(plain(line).rstrip() for line in self._lines)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return max(1, len(self._lines))

    def render_line(self, y: int) -> Strip:
        return self.strip_of(self._lines[y] if y < len(self._lines) else EMPTY, self.size.width)


class Wrapped(Lines):
    """Lines that are made anew for each width."""

    def __init__(self, make: Callable[[int], Sequence[Line]], *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._make = make

    def put(self, make: Callable[[int], Sequence[Line]]) -> None:
        """Show other lines."""
        self._make = make
        self.refresh(layout=True)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        self._lines = list(self._make(max(8, width)))
        return super().get_content_height(container, viewport, width)
