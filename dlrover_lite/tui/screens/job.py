"""One job."""

from __future__ import annotations

from typing import Any, ClassVar

from textual import events
from textual.app import ComposeResult

from dlrover_lite.tui.actions import Aim
from dlrover_lite.tui.keys import EVERYWHERE, JOB
from dlrover_lite.tui.model import JobDetail, JobRow, NodeRow
from dlrover_lite.tui.pages import decisions_page, job_page, throughput_chart
from dlrover_lite.tui.pages.heights import Want, fitted
from dlrover_lite.tui.pages.last_change import change_of_job, changes
from dlrover_lite.tui.screens.acting import ActingPage
from dlrover_lite.tui.screens.page import bindings
from dlrover_lite.tui.text import Line, line
from dlrover_lite.tui.widgets.grid import Grid
from dlrover_lite.tui.widgets.panel import Columns, Panel, Stack
from dlrover_lite.tui.widgets.toned import Lines

__all__ = ["JobScreen"]

_TALL = 40
"""Number of lines that a screen has to have for a second curve."""
_NO_CHART, _LEAST_CHART, _LOW_CHART, _CHART = 3, 6, 7, 12
"""Number of lines that say that there is no curve yet; minimum number of those of one, and that which is enough in a low terminal and in
others."""
_LEAST_FACTS, _LEAST_NODES, _LEAST_PANE, _MEMORY = 3, 3, 4, 10
"""Minimum numbers of lines of the other parts."""
_CHANGES = 12
"""Maximum number of changes that are told in full."""
_ALL = 60
"""Number of lines in which all facts can be written."""


class JobScreen(ActingPage, inherit_bindings=False):
    """The screen of one job: the curve above the facts above the nodes, each as high as what it shows; on a wide terminal the facts are
    beside the curve, and on a high one there are more: the memory that is foreseen, and all that was said of the changes."""

    DEFAULT_CSS = """
    JobScreen #chart, JobScreen #facts, JobScreen #memory { border: none; padding: 0 1; }
    JobScreen.-wide.-high #chart, JobScreen.-wide.-high #facts, JobScreen.-wide.-high #memory {
        border: round $foreground 35%;
    }
    """
    KEYS = (JOB, EVERYWHERE)
    BINDINGS: ClassVar[list[Any]] = bindings(*KEYS)
    grid: Grid[NodeRow]

    def __init__(self, job: str, row: JobRow | None) -> None:
        super().__init__(job_page.nodes_table(), id="nodes")
        self.job = job
        self.chart, self.facts = Panel("Throughput", id="chart"), Panel("Now", id="facts")
        self.memory, self.pane = Panel("Memory", id="memory"), Panel("Changes", id="pane")
        self.above = Columns(
            ((self.chart, self._want_chart), (self.memory, self._want_memory)),
            ((self.facts, self._want_facts), (self.pane, self._want_changes)),
            id="above",
        )
        self.stack = Stack(((self.above, self.above.want), (self.grid, self._want_nodes)), self._draw)
        self.detail = JobDetail(row=row, heard=False) if row is not None else None
        self.chosen: int | None = None
        """Number of the decision that is chosen in the curve; None: none is."""
        self._told: tuple[JobDetail | None, int, list[Line]] = (None, 0, [])
        self._drawn: tuple[JobDetail | None, tuple[int | None, ...]] | None = None

    def body(self) -> ComposeResult:
        yield self.stack

    # --- the room -----------------------------------------------------------------------------------------------------

    @property
    def _high(self) -> bool:
        return self.has_class("-high")

    def _want_chart(self, _width: int) -> Want:
        if self.detail is None or not throughput_chart.is_drawn(self.detail):
            return Want(_NO_CHART + self.chart.frame, _NO_CHART + self.chart.frame, grows=True)
        return Want(
            _LEAST_CHART + self.chart.frame, (_CHART if self._high else _LOW_CHART) + self.chart.frame, grows=True
        )

    def _want_facts(self, width: int) -> Want:
        lines = (
            len(job_page.facts(self.detail, max(20, width - 4), _ALL, self.tui.now(), look_first=True))
            if self.detail is not None
            else 1
        )
        return Want(_LEAST_FACTS + self.facts.frame, lines + self.facts.frame, rank=1)

    def _want_memory(self, width: int) -> Want:
        shown = self.size.height >= _TALL and self.detail is not None and job_page.memory(self.detail, width, _TALL)
        return Want(_MEMORY, _MEMORY + self.memory.frame, rank=2) if shown else Want(0, 0)

    def _want_nodes(self, _width: int) -> Want:
        return Want(_LEAST_NODES, len(self.grid.table.shown) + 1)

    def _want_changes(self, width: int) -> Want:
        """Return what the changes want, of which a low terminal has the line of the last one alone."""
        lines = self._change_lines(width - 4) if self._high else []
        return Want(_LEAST_PANE, len(lines) + self.pane.frame, rank=3) if lines else Want(0, 0)

    def _change_lines(self, width: int) -> list[Line]:
        """Write all that was said of each change, the last one first; once for each job that was read, and width."""
        if self._told[0] is not self.detail or self._told[1] != width:
            found: list[Line] = []
            for one in reversed(changes(self.detail)[-_CHANGES:] if self.detail is not None else []):
                found += [*([()] if found else []), *decisions_page.describe(one, max(20, width))]
            self._told = self.detail, width, found
        return self._told[2]

    def on_mount(self) -> None:
        self.set_focus(self.grid)
        self.put(self.detail)

    def on_lines_resized(self, event: Lines.Resized) -> None:
        event.stop()
        self._draw()

    def put(self, detail: JobDetail | None) -> None:
        """Show what is new."""
        if detail is not None and detail.row.id == self.job:
            self.detail = detail
            self.grid.put({row.id: row for row in detail.nodes})
        self._draw()
        super().tell_age()
        self.tell_keys()

    def _draw(self) -> None:
        if self.detail is None:
            self.head([line((self.job, "title"), ("  asking…", "dim"))])
            return
        self.stack.share()
        self.above.share()
        chart, facts, memory, pane = self.chart, self.facts, self.memory, self.pane
        width = max(20, self.size.width - 2)
        sizes = (self.grid.table.left_out, *self.size, *chart.size, *facts.size, *memory.size, *pane.size)
        if self._drawn is not None and self._drawn[0] is self.detail and self._drawn[1] == (self.chosen, *sizes):
            return
        self._drawn = self.detail, (self.chosen, *sizes)
        self.head(
            [
                *job_page.headline(self.detail, width, left_out=self.grid.table.left_out),
                change_of_job(self.detail, width),
            ]
        )
        chart.show(throughput_chart.chart(self.detail, chart.size.width, chart.size.height, self.chosen))
        self._draw_facts()
        memory.show(job_page.memory(self.detail, memory.size.width, memory.size.height) if memory.display else [])
        pane.show(fitted(self._change_lines(pane.size.width), pane.size.height))

    def _draw_facts(self) -> None:
        if self.detail is not None and (size := self.facts.size).width:
            self.facts.show(job_page.facts(self.detail, size.width, size.height, self.tui.now(), look_first=True))

    def tell_age(self) -> None:
        """Draw once a second what is stale, and the facts: what counts down goes on."""
        super().tell_age()
        self._draw_facts()

    def stale(self) -> Line:
        return self.job_stale(self.detail)

    # --- keys -------------------------------------------------------------------------------------------------------

    def aim(self) -> Aim:
        return Aim(self.detail.row if self.detail else None, self.detail, self.grid.row)

    def choose(self) -> None:
        """Read the log of the chosen node; or, where a decision is chosen in the curve, explain that."""
        one = next((one for one in self.detail.decisions if one.number == self.chosen), None) if self.detail else None
        if one is None:
            self.action_logs()
        else:
            self.tui.explain(self.job, one.number, otherwise=lambda width, _: decisions_page.describe(one, width))

    def why_not(self, action: str) -> str:
        return "" if action == "open" and self.chosen is not None else super().why_not(action)

    def action_decision(self, steps: int) -> None:
        """Choose the decision in the curve that is so many after the one that is chosen."""
        self._choose(throughput_chart.step(self.detail, self.chosen, steps) if self.detail is not None else None)
        if self.chosen is None:
            self.tui.tell("Nothing has been decided for this job so far that changed something", "warning")

    def _choose(self, decision: int | None) -> None:
        if decision != self.chosen:
            self.chosen = decision
            self._draw()
            self.tell_keys()

    def on_click(self, event: events.Click) -> None:
        """Choose the decision that is nearest to a click into the curve; explain it with the second one."""
        place = event.get_content_offset(self.chart) if event.widget is self.chart else None
        if place is None or self.detail is None:
            return
        before, found = self.chosen, throughput_chart.nearest(self.detail, self.chart.size.width, place.x)
        if found is not None and found == before:
            self.choose()
        else:
            self._choose(found)

    def can_go_back(self) -> bool:
        return self.chosen is not None or super().can_go_back()

    def action_back(self) -> None:
        if self.chosen is not None and not (self.prompt.is_open or self.filter_text):
            self._choose(None)
        else:
            super().action_back()

    def on_grid_moved(self, event: Grid.Moved) -> None:
        """Take keys to be about nodes again."""
        self._choose(None)
        super().on_grid_moved(event)

    def has_ended(self, row: NodeRow) -> bool:
        return not row.alive

    def filter_changed(self, text: str) -> None:
        super().filter_changed(text)
        self._draw()

    def action_describe(self) -> None:
        if not self.refused("describe") and (row := self.grid.row) is not None:
            self.tui.read(f"{self.job} {row.id}", lambda width, _: job_page.describe_node(row, width))

    def action_decisions(self) -> None:
        if self.detail is not None:
            self.tui.open_decisions(self.detail)

    def to_copy(self) -> tuple[str, str] | None:
        found = self.grid.row.id if self.grid.row is not None else self.job
        return found, found

    def action_logs(self) -> None:
        if self.detail is not None:
            node = self.grid.row
            self.tui.open_log(self.detail.row, node.id if node else "master")

    def action_all_logs(self) -> None:
        if self.detail is not None:
            self.tui.open_log(self.detail.row)
