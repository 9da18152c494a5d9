"""The application on a recording: nothing in it can be changed, and its time is the recording's."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from textual.binding import Binding
from textual.widget import Widget

from dlrover_lite.core.errors import UsageError
from dlrover_lite.tui.app import TuiApp
from dlrover_lite.tui.commands import OF_REPLAYS
from dlrover_lite.tui.keys import REPLAY
from dlrover_lite.tui.model import JobRow
from dlrover_lite.tui.recordings.player import Mark, Now
from dlrover_lite.tui.recordings.recorded import RecordedSource
from dlrover_lite.tui.screens.page import Page
from dlrover_lite.tui.screens.reading import ReadingScreen, help_lines, named
from dlrover_lite.tui.text import Line, line
from dlrover_lite.tui.themes import ThemeFiles
from dlrover_lite.tui.widgets.replay_line import ReplayLine

__all__ = ["ReplayApp"]

_PERIOD_SECONDS = 0.1
"""Seconds between two looks at what is shown: to look takes next to nothing, and at 64 times the speed much happens in half a second."""

_LIVE_SECONDS = 0.25
"""Minimum number of seconds between two pictures of what is drawn as time goes on."""
_TIMES_AS_LONG = 5.0
"""Minimum time between them, by how long one took to draw."""


class ReplayApp(TuiApp):
    """Shows what ``source`` has where its player is."""

    BINDINGS: ClassVar[list[Any]] = [
        Binding(key.key, key.action, key.what, show=False, key_display=key.label, priority=True) for key in REPLAY
    ]
    WITHOUT = frozenset({"logs", "all_logs", "recipe"})
    FIRST_KEYS = tuple(key._replace(shown=key.label.partition(" ")[0]) for key in REPLAY)

    def __init__(
        self,
        source: RecordedSource,
        *,
        job: str | None = None,
        period_seconds: float = _PERIOD_SECONDS,
        themes: ThemeFiles | None = None,
    ) -> None:
        self.player = source.player
        self._begins_at = self.player.at
        self._draws_at = 0.0
        """Time, of a clock that only goes forward, from which on what goes on may be drawn again."""
        super().__init__(source, job=job, period_seconds=period_seconds, clock=lambda: self.player.at, themes=themes)

    def on_mount(self) -> None:
        """Go to the beginning: until now nothing could be seen of it."""
        self.player.go(self._begins_at)
        self.set_interval(_LIVE_SECONDS, self._draw_live)

    def _draw_live(self) -> None:
        """Draw what is drawn as time goes on, which a replay may have go faster than the clock on the wall. A picture of a thousand jobs
        takes a while to draw: it is drawn more seldom."""
        begun = time.monotonic()
        if isinstance(self.shown_screen, ReadingScreen) and begun >= self._draws_at:
            self.shown_screen.tell_age()
            self._draws_at = begun + _TIMES_AS_LONG * (time.monotonic() - begun)

    def below(self) -> Iterable[Widget]:
        yield ReplayLine(self._now, lambda at: self._moved(lambda: self.player.go(at)))

    def _now(self) -> tuple[Now, list[Mark]]:
        return self.player.now, [one for one in self.player.marks if self._job in (None, one.job)]

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Say whether a key's action may be done. While something is written, or chosen from a list, keys are for that."""
        if action.startswith("replay_"):
            screen = self.screen
            searches = isinstance(screen, ReadingScreen) and bool(screen.filter_text)
            if (action, parameters) == ("replay_decision", (1,)) and searches:  # n goes on to what was found
                return False
            return isinstance(screen, Page) and not screen.prompt.is_open
        return super().check_action(action, parameters)

    def command(self, name: str, argument: str) -> None:
        match name:
            case "at":
                self.action_replay_go(argument)
            case "help":
                self.read("Keys and commands", _help)
            case _:
                super().command(name, argument)

    def open_log(self, row: JobRow, process: str = "") -> None:
        self.tell("A replay has no logs", "warning")

    def open_recipe(self, row: JobRow) -> None:
        self.tell("A replay has no recipes", "warning")

    # --- keys -------------------------------------------------------------------------------------------------------

    def action_replay_toggle(self) -> None:
        self._moved(self.player.toggle)

    def action_replay_step(self, steps: int) -> None:
        self._moved(lambda: self.player.step(steps))

    def action_replay_decision(self, steps: int) -> None:
        if self.player.decision(steps, job=self._job) is None:
            self.tell(f"There is no decision {'after' if steps > 0 else 'before'} this")
        self._moved(lambda: None)

    def action_replay_speed(self, steps: int) -> None:
        self._moved(self.player.faster if steps > 0 else self.player.slower)

    def action_replay_go(self, time: str) -> None:
        try:
            at = self.player.time_of(time)
        except UsageError as error:
            self.tell(error.message, "warning")
            return
        self._moved(lambda: self.player.go(at))

    def _moved(self, move: Callable[[], object]) -> None:
        move()
        self.jobs_feed.read_now()
        self.job_feed.read_now()
        for shown in self.screen.query(ReplayLine):
            shown.tell()


def _help(width: int, _height: int) -> list[Line]:
    ours = [one for key in REPLAY for one in named(f"  {key.label}", key.what, 16, width)]
    ours += [one for command in OF_REPLAYS for one in named(f"  {command.written}", command.what, 16, width)]
    return [line(("Replay", "title")), (), *ours, (), *help_lines(width, readonly=True)]
