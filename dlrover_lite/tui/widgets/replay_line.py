"""Where a replay is, at the bottom of each screen; a click on its bar goes there."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from textual import events

from dlrover_lite.tui.pages.replay_page import at_column, replay_line
from dlrover_lite.tui.recordings.player import Mark, Now
from dlrover_lite.tui.widgets.toned import Lines

__all__ = ["ReplayLine"]

_PERIOD_SECONDS = 0.25


class ReplayLine(Lines):
    """The line of a replay. ``ask`` for where it is, and for its marks, a few times a second; ``go`` to a time."""

    DEFAULT_CSS = """
    ReplayLine { height: 1; padding: 0 1; background: $boost; }
    """

    def __init__(self, ask: Callable[[], tuple[Now, Sequence[Mark]]], go: Callable[[float], None]) -> None:
        super().__init__(id="replay")
        self._ask, self._go = ask, go

    def on_mount(self) -> None:
        self.set_interval(_PERIOD_SECONDS, self.tell)
        self.call_after_refresh(self.tell)

    def on_resize(self) -> None:
        self.tell()

    def tell(self) -> None:
        now, marks = self._ask()
        self.show([replay_line(now, marks, self.size.width)])

    def on_click(self, event: events.Click) -> None:
        event.stop()
        place = event.get_content_offset(self)
        at = None if place is None else at_column(self._ask()[0], self.size.width, place.x)
        if at is not None:
            self._go(at)
