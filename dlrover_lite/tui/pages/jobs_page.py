"""The screen of all jobs as text: its table, its headline, and what a newcomer is told."""

from __future__ import annotations

import re

from dlrover_lite.core.words import at_time
from dlrover_lite.jobs.backend import LOCAL
from dlrover_lite.tui import formats
from dlrover_lite.tui.model import JobRow, JobsView
from dlrover_lite.tui.pages.charts import bar, sparkline
from dlrover_lite.tui.pages.last_change import in_list, told_in_full
from dlrover_lite.tui.table import Column, Table, numbers
from dlrover_lite.tui.text import Line, Span, length, line, plain, side_by_side, wrapped

__all__ = ["chosen", "describe", "headline", "jobs_table", "nothing_yet", "recipe_lines"]


_BESIDE = 110
"""Width from which on facts are beside why they are so."""
_NAME = 10
"""Width of the names of facts."""


def jobs_table() -> Table[JobRow]:
    """Make an empty table of jobs. The newest job is first until another order is chosen."""
    return Table(_COLUMNS, _found)


def _found(row: JobRow) -> str:
    reason = row.decision.reason if row.decision else ""
    return " ".join((row.id, row.name, row.owner, row.model, row.state, row.message, row.source, reason))


def _state(row: JobRow, _width: int) -> Line:
    return formats.state(row.state, silent_since=row.silent_since)


def _where(row: JobRow) -> str:
    return row.source or LOCAL


def _source(row: JobRow, _width: int) -> Line:
    return line(_where(row)) if row.source else line((_where(row), "dim"))


def _progress(row: JobRow, width: int) -> Line:
    """Write a job's progress as a number; where there is room with a bar."""
    share = formats.percent(row.share)
    if width < 12 or row.share is None:
        return share
    drawn = bar(row.share, 1.0, width - 5, full=2, high=2)
    return (*drawn, Span(f"{int(row.share * 100):>4}%"))


def _trend(row: JobRow, width: int) -> Line:
    return line((sparkline(row.rates, width), "dim" if row.over else "good")) if row.rates else ()


def _nodes(row: JobRow, _width: int) -> Line:
    if row.workers is None or row.servers is None:
        return formats.DASH
    return line(f"{row.workers}w {row.servers}p")


def _node_count(row: JobRow) -> int | None:
    return None if row.workers is None else row.workers + (row.servers or 0)


def _ends_at(row: JobRow) -> float | None:
    return row.expected.at if row.expected else row.ended_at


def _cpu(row: JobRow, _width: int) -> Line:
    return formats.cores_of(row.used_cores, row.cores)


def _memory(row: JobRow, _width: int) -> Line:
    return formats.memory_of(row.used_memory, row.memory)


def _core_seconds(row: JobRow) -> float | None:
    return row.cost.core_seconds if row.cost else None


def _decision(row: JobRow, _width: int) -> Line:
    """Write a job's last change; why it isn't trained on comes first."""
    if row.message and (row.over or row.state in ("queued", "starting")):
        return line((row.message.partition("\n")[0], "bad" if row.state in ("failed", "lost") else "plain"))
    return in_list(row)


_COLUMNS: tuple[Column[JobRow], ...] = (
    Column("job", "JOB", lambda row, _: line(row.id), lambda row: row.id, least=14, wanted=18, most=22),
    Column("source", "SOURCE", _source, _where, least=12, wanted=16, most=30, rank=2, has=lambda row: bool(row.source)),
    Column("state", "STATE", _state, lambda row: row.state, least=12),
    numbers("progress", "DONE", _progress, lambda row: row.share, least=4, most=12, rank=1),
    Column("ends", "ENDS", formats.ends, _ends_at, least=12, wanted=13, most=17, rank=2),
    numbers("rate", "SAMPLES/S", lambda row, _: formats.number(row.rate), lambda row: row.rate, least=9, rank=3),
    Column("trend", "TREND", _trend, least=6, wanted=8, most=12, rank=6),
    Column("nodes", "NODES", _nodes, _node_count, least=6, wanted=7, rank=5, down=True),
    numbers("cpu", "CPU", _cpu, lambda row: row.used_cores, least=8, rank=7),
    numbers("memory", "MEMORY", _memory, lambda row: row.used_memory, least=13, rank=8),
    numbers("cost", "COST", lambda row, _: formats.cost_of(row), _core_seconds, least=22, rank=9),
    Column("decision", "LAST CHANGE", _decision, None, least=44, wanted=50, most=400, rank=4),
)


def headline(view: JobsView, shown: int, filter_text: str, *, left_out: int = 0) -> Line:
    """Write how many jobs there are, and how many of them run; ``left_out``: those that are over and aren't shown."""
    running = sum(not row.over for row in view.jobs.values())
    parts: list[Span] = [Span("Jobs ", "title"), Span(f"{running} running, {len(view.jobs)} in all")]
    if left_out:
        parts.append(Span(f", {left_out} over left out (e)", "dim"))
    if filter_text:
        parts += [Span("  filter ", "dim"), Span(filter_text, "accent"), Span(f" ({shown} of {len(view.jobs)})", "dim")]
    if view.brain:
        parts += [Span("  brain ", "dim"), Span(view.brain)]
    return tuple(parts)


_ENTRY = re.compile(r"(\s*(?:- +)*)([\w.-]+:)(?= |$)")


def recipe_lines(text: str) -> list[Line]:
    """Write a recipe in YAML, its names apart from its values."""
    found = []
    for one in text.splitlines():
        match = _ENTRY.match(one)
        found.append(line(match[1], (match[2], "accent"), one[match.end() :]) if match else line(one))
    return found


def nothing_yet(width: int) -> list[Line]:
    """Write for who has no job so far."""
    return [
        line(("There are no jobs yet.", "title")),
        (),
        line("A first one, in another terminal:"),
        (),
        line(("  dlrover-lite recipe init job.yaml", "accent")),
        line(("  dlrover-lite run job.yaml", "accent")),
        (),
        *wrapped(
            "It shows up here by itself, and so do the decisions that are made for it. ? lists the keys, q leaves.",
            width,
        ),
    ]


def describe(row: JobRow, width: int, now: float) -> list[Line]:
    """Write all that the list knows of a job."""
    pairs: list[tuple[str, Line]] = [
        ("state", formats.state(row.state, silent_since=row.silent_since)),
        ("model", line(row.model or "-")),
        ("owner", line(row.owner or "-")),
        ("begun", line(_full_time(row.started_at or row.created_at))),
        ("ended" if row.over else "ends", line(_full_time(row.ended_at)) if row.over else formats.ends(row)),
        ("samples", _samples(row)),
        ("samples/s", formats.number(row.rate)),
        ("nodes", _nodes(row, 0)),
        ("cpu", _with(_cpu(row, 0), row.cores, " cores used of those given")),
        ("memory", _with(_memory(row, 0), row.memory, " used of what is given")),
        ("cost", formats.cost_of(row)),
        ("files", line(row.directory or (f"in {row.source}" if row.source else "not on this machine"))),
    ]
    if row.look is not None:
        pairs.insert(-1, ("brain", formats.look(row.look, now)))
    found = [one for name, value in pairs for one in _fact(name, value, width)]
    if row.message:
        found += [(), line(("message", "title")), *wrapped(row.message, width)]
    if row.decision is not None:
        one = row.decision
        head = f"decision {one.number}, {one.action}, {_full_time(one.at)}"
        found += [(), line((head, "title")), *wrapped(one.reason, width)]
    return found


def chosen(row: JobRow, width: int, now: float) -> list[Line]:
    """Write what is known of the job that is chosen: why it is as it is, first."""
    left = width * 55 // 100 if width >= _BESIDE else 0
    facts = describe(row, width - left - 2 if left else width, now)
    facts = facts[: next((at for at, one in enumerate(facts) if not one), len(facts))]
    if not left:
        return [*_why(row, width), (), *facts]
    return side_by_side(((left, _why(row, left)), (width - left - 2, facts)))


def _with(value: Line, known: object, what: str) -> Line:
    """Say what a value is, if it is known."""
    return (*value, Span(what, "dim")) if known else value


def _fact(name: str, value: Line, width: int) -> list[Line]:
    """Write a name and a value; one that is too long goes on below."""
    head = Span(f"{name:<{_NAME}} ", "dim")
    if length(value) <= width - _NAME - 1 or not value:
        return [(head, *value)]
    first, *more = wrapped(plain(value), width - _NAME - 1, value[0].tone)
    return [(head, *first), *(line(" " * (_NAME + 1), *rest) for rest in more)]


def _why(row: JobRow, width: int) -> list[Line]:
    """Write why a job is as it is: what it says, what changed last, and what was seen when it was looked at since."""
    found: list[Line] = []
    if row.message:
        found += wrapped(row.message, width, "bad" if row.state in ("failed", "lost") else "warn")
    one, last = row.change, row.decision
    if one is not None:
        waits = "" if row.is_changed else "not carried out yet"
        found += told_in_full(one, width, is_made=row.is_changed, when=formats.clock(one.at), waits=waits)
    if last is not None and (one is None or last.number > one.number):
        found += wrapped(
            f"{formats.clock(last.at)} {last.action}: {last.reason}", width, "plain" if one is None else "dim"
        )
    return found


def _samples(row: JobRow) -> Line:
    total = f" of {row.total_samples:,}" if row.total_samples else ""
    return line(f"{row.samples:,}{total}")


def _full_time(at: float | None) -> str:
    return "-" if at is None else at_time(at)


READING: Line = line(("Jobs ", "title"), ("reading…", "dim"))
"""The headline before anything has been read."""
