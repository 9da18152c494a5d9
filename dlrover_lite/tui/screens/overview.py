"""The machine, or the clusters, as a picture, of whose jobs one is pointed to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from dlrover_lite.tui.keys import EVERYWHERE, OVERVIEW, READING, Key
from dlrover_lite.tui.model import JobsView
from dlrover_lite.tui.pages.overview_page import jobs_in, overview
from dlrover_lite.tui.screens.page import bindings
from dlrover_lite.tui.screens.reading import ReadingScreen
from dlrover_lite.tui.text import Line, line, plain

__all__ = ["OverviewScreen"]


class OverviewScreen(ReadingScreen, inherit_bindings=False):
    """The overview, drawn again as time goes on."""

    KEYS: ClassVar[tuple[Sequence[Key], ...]] = (OVERVIEW, READING[:-1], EVERYWHERE)
    BINDINGS: ClassVar[list[Any]] = bindings(*KEYS)

    def __init__(self) -> None:
        super().__init__("Overview", self._write, live=True)
        self.chosen = ""
        """Id of the job that is pointed to; empty: there is none."""

    def _write(self, width: int, height: int) -> list[Line]:
        view = self.tui.view
        if view is None:
            return [line(("asking…", "dim"))]
        jobs = self._jobs(view)
        if self.chosen not in jobs:
            self.chosen = jobs[0] if jobs else ""
        return overview(view, width, max(10, height), self.tui.now(), self.chosen)

    def _jobs(self, view: JobsView | None) -> list[str]:
        return jobs_in(view, self.tui.now()) if view is not None else []

    def why_not(self, action: str) -> str:
        if action == "open" or action.startswith("job("):
            return "" if self._jobs(self.tui.view) else "There is no job that runs or waits"
        return super().why_not(action)

    def action_job(self, step: int) -> None:
        """Point to another job, and have its line in sight."""
        jobs = self._jobs(self.tui.view)
        if self.refused("job(") or not jobs:
            return
        self.chosen = jobs[(jobs.index(self.chosen) + step) % len(jobs)] if self.chosen in jobs else jobs[0]
        self.draw()
        at = next((at for at, one in enumerate(self.lines) if plain(one).startswith("▸")), None)
        if (
            at is not None
            and not self.pager.scroll_offset.y <= at < self.pager.scroll_offset.y + self.pager.size.height
        ):
            self.pager.scroll_to(y=max(0, at - self.pager.size.height // 2), animate=False)

    def action_open(self) -> None:
        if not self.refused("open"):
            self.draw()
            self.tui.open_job(self.chosen)
