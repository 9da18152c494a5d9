"""A table, and below it what more is known of its chosen row."""

from __future__ import annotations

from typing import Any

from dlrover_lite.tui.pages.heights import Want, fitted
from dlrover_lite.tui.screens.acting import ActingPage
from dlrover_lite.tui.text import Line
from dlrover_lite.tui.widgets.grid import Grid
from dlrover_lite.tui.widgets.panel import Panel, Part, Stack

__all__ = ["TableAndDetails"]

_LEAST_ROWS, _LEAST_DETAILS = 5, 4
"""Minimum numbers of lines of the table and of what says more of its row."""


class TableAndDetails(ActingPage, inherit_bindings=False):
    """A screen whose table shares its lines with the details of the row that is chosen."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.pane = Panel(id="pane")
        self.stack = Stack(self.parts(), self.draw_details)

    def parts(self) -> list[Part]:
        """Return what is above each other."""
        return [(self.grid, self._rows), (self.pane, self._details)]

    def details_title(self) -> str:
        """Return the title of the details; "" where no row is chosen."""
        raise NotImplementedError

    def details(self, width: int) -> list[Line]:
        """Write all that is known of the chosen row; nothing where there is none."""
        raise NotImplementedError

    def draw_details(self) -> None:
        """Say more of the row that is chosen."""
        if not self.is_mounted:
            return
        self.pane.entitle(self.details_title())
        self.pane.show(fitted(self.details(self.pane.size.width), self.pane.size.height))
        self.stack.share()

    def _rows(self, _width: int) -> Want:
        return Want(_LEAST_ROWS, len(self.grid.table.shown) + 1)

    def _details(self, width: int) -> Want:
        lines = self.details(width - 4)
        return Want(_LEAST_DETAILS, len(lines) + self.pane.frame, grows=True, rank=1) if lines else Want(0, 0)

    def on_lines_resized(self, event: Panel.Resized) -> None:
        event.stop()
        self.draw_details()

    def on_grid_moved(self, event: Grid.Moved) -> None:
        super().on_grid_moved(event)
        self.draw_details()

    def filter_changed(self, text: str) -> None:
        super().filter_changed(text)
        self.draw_details()
