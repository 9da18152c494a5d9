"""All jobs."""

from __future__ import annotations

from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.geometry import Size

from dlrover_lite.tui.actions import Aim
from dlrover_lite.tui.keys import EVERYWHERE, JOBS
from dlrover_lite.tui.model import JobRow, JobsView
from dlrover_lite.tui.pages import jobs_page, overview_page
from dlrover_lite.tui.pages.heights import Want
from dlrover_lite.tui.pages.last_change import change_of_jobs
from dlrover_lite.tui.screens.page import bindings
from dlrover_lite.tui.screens.table_and_details import TableAndDetails
from dlrover_lite.tui.text import Line
from dlrover_lite.tui.widgets.grid import Grid
from dlrover_lite.tui.widgets.panel import Panel, Part
from dlrover_lite.tui.widgets.toned import Lines

__all__ = ["JobsScreen"]


class JobsScreen(TableAndDetails, inherit_bindings=False):
    DEFAULT_CSS = """
    #jobs { height: 1fr; }
    #empty { height: 1fr; padding: 1 2; display: none; }
    JobsScreen.-empty Stack { display: none; }
    JobsScreen.-empty #empty { display: block; }
    """
    KEYS = (JOBS, EVERYWHERE)
    BINDINGS: ClassVar[list[Any]] = bindings(*KEYS)
    ROW = TableAndDetails.ROW | {"logs", "all_logs", "recipe"}
    grid: Grid[JobRow]

    def __init__(self) -> None:
        self.picture = Panel("Overview", id="picture")
        self._drawn: tuple[int, Size] | None = None
        """Second and size that the picture was drawn for."""
        super().__init__(jobs_page.jobs_table(), id="jobs")
        self.empty = Lines(id="empty")
        self.view: JobsView | None = None

    def parts(self) -> list[Part]:
        return [*super().parts(), (self.picture, self._want_picture)]

    def _want_picture(self, _width: int) -> Want:
        if self.view is None or not overview_page.has_picture(self.view, self.tui.now()):
            return Want(0, 0)
        lines = overview_page.LEAST_PICTURE + self.picture.frame
        return Want(lines, lines, spare=True)

    def draw_details(self) -> None:
        super().draw_details()
        self._draw_picture()

    def _draw_picture(self) -> None:
        """Draw what jobs were given over time, where there is room; once a second, as it takes a while."""
        size, now = self.picture.size, self.tui.now()
        if self.view is None or not self.picture.display or not size.height or self._drawn == (int(now), size):
            return
        self._drawn = int(now), size
        self.picture.show(overview_page.picture(self.view, size.width, size.height, now))

    def body(self) -> ComposeResult:
        yield self.stack
        yield self.empty

    def on_mount(self) -> None:
        self.set_focus(self.grid)
        self.put(self.tui.view)

    def put(self, view: JobsView | None) -> None:
        """Show what is new; None: nothing has been read so far."""
        self.view = view
        if view is not None:
            self.grid.put(view.jobs)
        empty = view is not None and not view.jobs
        self.set_class(empty, "-empty")
        if empty:
            self._draw_empty()
        self.tell_head()
        self.tell_age()
        self.tell_keys()
        self.draw_details()

    def details_title(self) -> str:
        row = self.grid.row
        return "" if row is None else row.id

    def details(self, width: int) -> list[Line]:
        row = self.grid.row
        return [] if row is None else jobs_page.chosen(row, max(20, width), self.tui.now())

    def tell_age(self) -> None:
        super().tell_age()
        self.draw_details()

    def tell_head(self) -> None:
        view = self.view
        if view is None:
            self.head([jobs_page.READING])
            return
        change = change_of_jobs(view.jobs.values(), max(20, self.size.width - 2))
        shown = len(self.grid.table.shown)
        left_out = self.grid.table.left_out
        head = jobs_page.headline(view, shown, self.filter_text, left_out=left_out)
        self.head([head, *([change] if change else [])])

    def on_resize(self) -> None:
        self.tell_head()
        self._draw_empty()

    def _draw_empty(self) -> None:
        self.empty.show(jobs_page.nothing_yet(max(20, self.size.width - 4)))

    def stale(self) -> Line:
        return self.stale_of(self.tui.jobs_feed, self.view.problem if self.view else None)

    # --- keys -------------------------------------------------------------------------------------------------------

    def aim(self) -> Aim:
        return Aim(self.grid.row)

    def choose(self) -> None:
        if (row := self.grid.row) is not None:
            self.tui.open_job(row.id)

    def has_ended(self, row: JobRow) -> bool:
        return row.over

    def action_describe(self) -> None:
        if not self.refused("describe") and (row := self.grid.row) is not None:
            self.tui.read(row.id, lambda width, _: self._described(row.id, row, width), live=True)

    def _described(self, job: str, row: JobRow, width: int) -> list[Line]:
        """Describe a job as it is now; ``row``: as it was when it was asked for, in case it has gone."""
        now = self.view.jobs.get(job, row) if self.view is not None else row
        return jobs_page.describe(now, width, self.tui.now())

    def to_copy(self) -> tuple[str, str] | None:
        row = self.grid.row
        return (row.id, row.id) if row is not None else None

    def action_overview(self) -> None:
        self.tui.command("overview", "")

    def action_logs(self) -> None:
        if not self.refused("logs") and (row := self.grid.row) is not None:
            self.tui.open_log(row, "master")

    def action_all_logs(self) -> None:
        if not self.refused("all_logs") and (row := self.grid.row) is not None:
            self.tui.open_log(row)
