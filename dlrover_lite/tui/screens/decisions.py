"""The decisions for one job."""

from __future__ import annotations

from typing import Any, ClassVar

from textual.app import ComposeResult

from dlrover_lite.protocol.news import Chosen
from dlrover_lite.tui.actions import Aim
from dlrover_lite.tui.keys import DECISIONS, EVERYWHERE
from dlrover_lite.tui.model import JobDetail
from dlrover_lite.tui.pages import decisions_page
from dlrover_lite.tui.screens.acting import ActingPage
from dlrover_lite.tui.screens.page import bindings
from dlrover_lite.tui.text import Line
from dlrover_lite.tui.widgets.grid import Grid

__all__ = ["DecisionsScreen"]


class DecisionsScreen(ActingPage, inherit_bindings=False):
    DEFAULT_CSS = """
    #decisions { height: 1fr; }
    """
    KEYS = (DECISIONS, EVERYWHERE)
    BINDINGS: ClassVar[list[Any]] = bindings(*KEYS)
    grid: Grid[Chosen]

    def __init__(self, detail: JobDetail) -> None:
        super().__init__(decisions_page.decisions_table(), id="decisions")
        self.detail = detail

    def body(self) -> ComposeResult:
        yield self.grid

    def on_mount(self) -> None:
        self.set_focus(self.grid)
        self.put(self.detail)

    def put(self, detail: JobDetail | None) -> None:
        """Show what is new."""
        if detail is not None and detail.row.id == self.detail.row.id:
            self.detail = detail
        self.grid.put({str(one.number): one for one in self.detail.decisions})
        self.tell_head()
        self.tell_age()
        self.tell_keys()

    def tell_head(self) -> None:
        self.head([decisions_page.headline(self.detail, len(self.grid.table.shown), self.filter_text)])

    def stale(self) -> Line:
        return self.job_stale(self.detail)

    def aim(self) -> Aim:
        return Aim(self.detail.row, self.detail)

    def choose(self) -> None:
        if (one := self.grid.row) is not None:
            self.tui.explain(self.detail.row.id, one.number, otherwise=self._described(one))

    def action_describe(self) -> None:
        if not self.refused("describe") and (one := self.grid.row) is not None:
            self.tui.read(f"Decision {one.number} for {self.detail.row.id}", self._described(one))

    def action_copy(self) -> None:
        if (one := self.grid.row) is not None:
            self.tui.explain(self.detail.row.id, one.number, otherwise=self._described(one), copy=True)

    def _described(self, one: Chosen) -> list[Line]:
        return decisions_page.describe(one, max(20, self.size.width - 8))
