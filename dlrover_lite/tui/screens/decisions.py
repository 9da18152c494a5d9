"""The decisions for one job."""

from __future__ import annotations

from typing import Any, ClassVar

from textual.app import ComposeResult

from dlrover_lite.tui.actions import Aim
from dlrover_lite.tui.keys import DECISIONS, EVERYWHERE
from dlrover_lite.tui.model import JobDetail
from dlrover_lite.tui.pages import decisions_page
from dlrover_lite.tui.pages.decisions_page import Run
from dlrover_lite.tui.screens.page import bindings
from dlrover_lite.tui.screens.table_and_details import TableAndDetails
from dlrover_lite.tui.text import Line, Write
from dlrover_lite.tui.widgets.grid import Grid

__all__ = ["DecisionsScreen"]


class DecisionsScreen(TableAndDetails, inherit_bindings=False):
    """The decisions for a job as a table, and below it the one that is chosen."""

    KEYS = (DECISIONS, EVERYWHERE)
    BINDINGS: ClassVar[list[Any]] = bindings(*KEYS)
    grid: Grid[Run]

    def __init__(self, detail: JobDetail) -> None:
        super().__init__(decisions_page.decisions_table(), id="decisions")
        self.detail = detail
        self.only_changes = False
        self.each = False
        """Whether decisions that changed nothing have a row each."""

    def body(self) -> ComposeResult:
        yield self.stack

    def on_mount(self) -> None:
        self.set_focus(self.grid)
        self.put(self.detail)

    def put(self, detail: JobDetail | None) -> None:
        """Show what is new."""
        if detail is not None and detail.row.id == self.detail.row.id:
            self.detail = detail
        rows = self.grid.table.rows
        runs = decisions_page.runs(self.detail, each=self.each, only_changes=self.only_changes)
        self.grid.put({name: rows[name] if rows.get(name) == run else run for name, run in runs.items()})
        self.tell_head()
        self.tell_age()
        self.tell_keys()
        self.draw_details()

    def details_title(self) -> str:
        run = self.grid.row
        return "" if run is None else f"Decision {run.newest.number}"

    def details(self, width: int) -> list[Line]:
        run = self.grid.row
        return [] if run is None else decisions_page.describe_run(run, max(20, width))

    def tell_head(self) -> None:
        which = "changes only" if self.only_changes else ""
        shown = len(self.grid.table.shown)
        self.head([decisions_page.headline(self.detail, shown, self.filter_text, which=which)])

    def stale(self) -> Line:
        return self.job_stale(self.detail)

    # --- keys ---------------------------------------------------------------------------------------------------------

    def aim(self) -> Aim:
        return Aim(self.detail.row, self.detail)

    def action_only_changes(self) -> None:
        self.only_changes = not self.only_changes
        self.put(None)

    def action_each(self) -> None:
        self.each = not self.each
        self.put(None)

    def choose(self) -> None:
        if (run := self.grid.row) is not None:
            self.tui.explain(self.detail.row.id, run.newest.number, otherwise=_described(run))

    def action_describe(self) -> None:
        if not self.refused("describe") and (run := self.grid.row) is not None:
            self.tui.read(f"Decision {run.newest.number} for {self.detail.row.id}", _described(run))

    def action_copy(self) -> None:
        if (run := self.grid.row) is not None:
            self.tui.explain(self.detail.row.id, run.newest.number, otherwise=_described(run), copy=True)


def _described(run: Run) -> Write:
    return lambda width, _height: decisions_page.describe_run(run, width)
