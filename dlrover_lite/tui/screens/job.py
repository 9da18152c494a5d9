"""One job."""

from __future__ import annotations

from typing import Any, ClassVar

from textual import events
from textual.app import ComposeResult
from textual.containers import Container

from dlrover_lite.tui.actions import Aim
from dlrover_lite.tui.keys import EVERYWHERE, JOB
from dlrover_lite.tui.model import JobDetail, JobRow, NodeRow
from dlrover_lite.tui.pages import decisions_page, job_page, rate_chart
from dlrover_lite.tui.pages.change_line import change_of_job
from dlrover_lite.tui.screens.acting import ActingPage
from dlrover_lite.tui.screens.page import bindings
from dlrover_lite.tui.text import Line, line
from dlrover_lite.tui.widgets.grid import Grid
from dlrover_lite.tui.widgets.toned import Lines

__all__ = ["JobScreen"]

_TALL = 40
"""Number of lines that a screen has to have for a second curve."""


class JobScreen(ActingPage, inherit_bindings=False):
    """The screen of one job: the curve above the facts above the nodes; on a wide terminal the facts are beside the curve, and on a high
    one the memory that is foreseen is below them."""

    DEFAULT_CSS = """
    #above { height: auto; padding: 0 1; }
    #chart { height: 7; }
    #facts { height: 8; }
    #memory { height: 10; padding: 0 1; display: none; }
    #nodes { height: 1fr; min-height: 3; }
    JobScreen.-high #chart { height: 12; }
    JobScreen.-high #facts { height: 9; }
    JobScreen.-wide #above { layout: horizontal; height: 14; }
    JobScreen.-wide #chart { width: 55%; height: 100%; margin-right: 2; }
    JobScreen.-wide #facts { width: 1fr; height: 100%; }
    JobScreen.-wide.-low #above { height: 9; }
    JobScreen.-foreseen #memory { display: block; }
    """
    KEYS = (JOB, EVERYWHERE)
    BINDINGS: ClassVar[list[Any]] = bindings(*KEYS)
    grid: Grid[NodeRow]

    def __init__(self, job: str, row: JobRow | None) -> None:
        super().__init__(job_page.nodes_table(), id="nodes")
        self.job = job
        self.chart, self.facts, self.memory = Lines(id="chart"), Lines(id="facts"), Lines(id="memory")
        self.detail = JobDetail(row=row) if row is not None else None
        self.chosen: int | None = None
        """Number of the decision that is chosen in the curve; None: none is."""
        self._drawn: tuple[JobDetail | None, tuple[int | None, ...]] | None = None

    def body(self) -> ComposeResult:
        with Container(id="above"):
            yield self.chart
            yield self.facts
        yield self.memory
        yield self.grid

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
            self.head([line((self.job, "title"), ("  reading…", "dim"))])
            return
        chart, facts, memory = self.chart, self.facts, self.memory
        width = max(20, self.size.width - 2)
        seen = (self.detail, (self.chosen, width, self.size.height, *chart.size, *facts.size, *memory.size))
        if self._drawn is not None and self._drawn[0] is seen[0] and self._drawn[1] == seen[1]:
            return
        self._drawn = seen
        foreseen = self.size.height >= _TALL and bool(job_page.memory(self.detail, width, _TALL))
        if foreseen != self.has_class("-foreseen"):
            self.set_class(foreseen, "-foreseen")
            self.call_after_refresh(self._draw)  # it has a place then
        self.head([*job_page.headline(self.detail, width), change_of_job(self.detail, width)])
        chart.show(rate_chart.chart(self.detail, chart.size.width, chart.size.height, self.chosen))
        self._draw_facts()
        memory.show(job_page.memory(self.detail, memory.size.width, memory.size.height) if foreseen else [])

    def _draw_facts(self) -> None:
        if self.detail is not None and (size := self.facts.size).width:
            self.facts.show(job_page.facts(self.detail, size.width, size.height, self.tui.now()))

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
            described = decisions_page.describe(one, max(20, self.size.width - 8))
            self.tui.explain(self.job, one.number, otherwise=described)

    def why_not(self, action: str) -> str:
        return "" if action == "open" and self.chosen is not None else super().why_not(action)

    def action_decision(self, steps: int) -> None:
        """Choose the decision in the curve that is so many after the one that is chosen."""
        self._choose(rate_chart.step(self.detail, self.chosen, steps) if self.detail is not None else None)
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
        before, found = self.chosen, rate_chart.nearest(self.detail, self.chart.size.width, place.x)
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

    def action_describe(self) -> None:
        if not self.refused("describe") and (row := self.grid.row) is not None:
            self.tui.read(f"{self.job} {row.id}", job_page.describe_node(row, max(20, self.size.width - 8)))

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
