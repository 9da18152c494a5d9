"""One frame as plain text, without a terminal and without textual."""

from __future__ import annotations

import time

from dlrover_lite.core.errors import JobError
from dlrover_lite.core.words import duration
from dlrover_lite.tui.model import Problem
from dlrover_lite.tui.pages import job_page, jobs_page, throughput_chart
from dlrover_lite.tui.pages.last_change import change_of_job, change_of_jobs
from dlrover_lite.tui.pages.replay_page import replay_line
from dlrover_lite.tui.recordings.player import Player
from dlrover_lite.tui.sources.source import Source
from dlrover_lite.tui.table import text_of
from dlrover_lite.tui.text import Line, line, side_by_side

__all__ = ["frame"]


def frame(
    source: Source, *, job: str | None, width: int, now: float | None = None, replay: Player | None = None
) -> str:
    """Write what the first screen would show of all jobs, or of one, with all its rows. Raises JobError for a job that isn't known.

    ``replay``: where the source is.
    """
    if now is None:
        now = time.time() if replay is None else replay.at
    lines = _jobs(source, width, now) if job is None else _job(source, job, width, now)
    if replay is not None:
        lines += [(), replay_line(replay.now, [one for one in replay.marks if job in (None, one.job)], width)]
    return text_of(lines)


def _jobs(source: Source, width: int, now: float) -> list[Line]:
    view = source.jobs()
    if not view.jobs:
        return jobs_page.nothing_yet(width)
    table = jobs_page.jobs_table()
    table.put(view.jobs)
    change = change_of_jobs(view.jobs.values(), width)
    head = [jobs_page.headline(view, len(view.jobs), ""), *([change] if change else [])]
    return [*head, *_stale(view.problem, now), *table.text(width)]


def _job(source: Source, job: str, width: int, now: float) -> list[Line]:
    detail = source.job(job)
    if detail is None:
        raise JobError(f"No job is called {job!r}", hint="All: dlrover-lite tui --once")
    if width >= 110:
        left = width * 55 // 100
        blocks = (
            (left, throughput_chart.chart(detail, left, 14)),
            (width - left - 2, job_page.facts(detail, width - left - 2, 14, now)),
        )
        above = side_by_side(blocks)
    else:
        above = [*throughput_chart.chart(detail, width, 9), *job_page.facts(detail, width, 12, now)]
    table = job_page.nodes_table()
    table.put({row.id: row for row in detail.nodes})
    nodes = table.text(width) if detail.nodes else [line(("No node is known.", "dim"))]
    head = [*job_page.headline(detail, width), change_of_job(detail, width)]
    return [*head, *_stale(detail.problem, now), *above, (), *nodes]


def _stale(problem: Problem | None, now: float) -> list[Line]:
    if problem is None:
        return []
    return [line(f"! what {problem.what} says is as of {duration(now - problem.since)} ago: {problem.why}")]
