"""The line of notices, which is there while there is one; a click dismisses it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from textual import events

from dlrover_lite.tui.pages.notices_page import Notice, notice_line
from dlrover_lite.tui.widgets.toned import Lines

__all__ = ["NoticeLine"]


class NoticeLine(Lines):
    """The line of notices. It has a line of the screen for itself, so it covers nothing."""

    DEFAULT_CSS = """
    NoticeLine { height: 1; padding: 0 1; background: $boost; display: none; }
    NoticeLine.-told { display: block; }
    Dialog NoticeLine, Palette NoticeLine { dock: bottom; margin-bottom: 1; background: $panel; }
    """
    ALLOW_SELECT = True

    def __init__(self, ask: Callable[[], Sequence[Notice]]) -> None:
        """``ask`` for the notices that stand, the oldest first."""
        super().__init__(id="notice")
        self._ask = ask

    def on_mount(self) -> None:
        self.tell()

    def tell(self) -> None:
        """Show the newest notice."""
        self.set_class(bool(self._ask()), "-told")
        self._draw()

    def _draw(self) -> None:
        self.show([notice_line(self._ask(), self.size.width)] if self.size.width else [])

    def on_resize(self) -> None:
        self._draw()

    async def on_click(self, event: events.Click) -> None:
        event.stop()
        await self.run_action("app.dismiss_notice")
