"""The keys at the bottom, which can be clicked."""

from __future__ import annotations

from collections.abc import Sequence

from textual import events
from textual.geometry import Size
from textual.strip import Strip

from dlrover_lite.tui.pages.key_line import KeyShown, PlacedKey, line_of, place
from dlrover_lite.tui.text import Line, plain
from dlrover_lite.tui.widgets.toned import Toned

__all__ = ["KeyBar"]


class KeyBar(Toned):
    """A line of keys. (Textual's own footer makes a widget of each key whenever one of them changes.)"""

    DEFAULT_CSS = """
    KeyBar { dock: bottom; height: 1; width: 100%; background: $panel; pointer: pointer; }
    """

    ALLOW_SELECT = False

    def __init__(self) -> None:
        super().__init__()
        self._keys: tuple[KeyShown, ...] = ()
        self._placed: list[PlacedKey] = []
        self._line: Line = ()

    def show(self, keys: Sequence[KeyShown]) -> None:
        if tuple(keys) != self._keys:
            self._keys = tuple(keys)
            self._arrange()

    @property
    def keys(self) -> tuple[KeyShown, ...]:
        """All keys that there are, whether or not there is room for them."""
        return self._keys

    @property
    def text(self) -> str:
        return plain(self._line).rstrip()

    def on_resize(self) -> None:
        self._arrange()

    def _arrange(self) -> None:
        self._placed = place(self._keys, self.size.width)
        self._line = line_of(self._placed, self.size.width)
        self.refresh()

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return 1

    def render_line(self, y: int) -> Strip:
        return self.strip_of(self._line, self.size.width)

    def on_click(self, event: events.Click) -> None:
        """Act as if the key had been pressed; of one that can't be used now, that says why."""
        event.stop()
        for one in self._placed:
            if one.x <= event.x < one.x + one.width:
                self.app.simulate_key(one.shown.key.key.partition(",")[0])
