"""``history``: jobs past and present as the brain knows them, and the story of one."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from dlrover_lite.cli.options import MOST_NUMBER
from dlrover_lite.cli.output import emit_json, fields, hanging, note, table, terminal_width
from dlrover_lite.core.errors import JobError
from dlrover_lite.core.words import at_time, cleaned, count, duration, metric

if TYPE_CHECKING:
    from dlrover_lite.brain.calibration import JudgedDecision
    from dlrover_lite.brain.store.history import Rows
    from dlrover_lite.brain.store.records import JobEntry, StoredDecision
    from dlrover_lite.brain_server.history_client import BrainHistory
    from dlrover_lite.protocol.plans import Plan
    from dlrover_lite.protocol.records import NodeRecord, PlanRecord

__all__ = ["find_entry", "history", "open_history"]

_WORST = 5
"""Number of predictions that are named, those the furthest off."""
_LEAST_FIRST = ("auc", "model", "worker peak", "ps peak", "duration", "samples", "started", "plan")
"""Columns that give way on a narrow terminal."""


@click.command(short_help="List past jobs, and what came of them.")
@click.argument("job", metavar="[JOB]", default="")
@click.option(
    "--filter",
    "conditions",
    multiple=True,
    metavar="KEY=VALUE",
    help="Only jobs with id, name, owner or model like VALUE (* is anything), in a state, since or until 12h, 7d, … ago. "
    "A word alone is looked for anywhere. May be repeated: all must hold.",
)
@click.option("--limit", type=click.IntRange(1, MOST_NUMBER), help="The newest so many (default: 20).")
@click.option("--calibration", "calibrate", is_flag=True, help="How good the brain's predictions have been.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def history(job: str, conditions: tuple[str, ...], limit: int | None, calibrate: bool, as_json: bool) -> None:
    """List jobs past and present, the newest last: their plan, throughput, outcome and the memory they needed. They stay in the
    history when their files are gone, for as long as `brain settings` says.

    With JOB (its id, or the start of one, or "last"), tell the story of its plans: what it was given, what was decided and
    why, what happened to its nodes.

    With --calibration: what decisions were predicted to bring, against what was measured two intervals after they took effect; of JOB,
    or of all jobs that match.
    """
    if job and (conditions or limit is not None):
        raise click.UsageError("--filter and --limit choose from all jobs; of one job, its whole story is told.")
    from dlrover_lite.client.job_history import bring, settle_all

    if job:
        bring(job, note)
    else:
        settle_all(note)
    opened = open_history()
    if calibrate:
        if limit is not None:
            raise click.UsageError("--calibration is of all decisions: --filter chooses their jobs.")
        _calibrate(opened, job, conditions, as_json)
        return
    if opened is None:
        if job:
            raise JobError("There is no history yet.", hint="The brain keeps it: see dlrover-lite brain status")
        entries: list[tuple[JobEntry, Plan | None]] = []
    else:
        with opened:
            if job:
                _tell(opened, find_entry(opened, job), as_json)
                return
            entries = _entries(opened, conditions, limit)
    if as_json:
        emit_json({"jobs": [_as_object(entry, plan) for entry, plan in entries]})
    elif not entries:
        note("There are no such jobs in the history." if conditions else "There is no history yet.")
    else:
        _print_jobs(entries)


def open_history() -> BrainHistory | None:
    """Open the history: the brain's answers, or what its files say; None where there is none: looking doesn't make one."""
    from dlrover_lite.brain_server.files import BrainFiles

    files = BrainFiles()
    if not files.database.exists():
        return None
    from dlrover_lite.brain_server.history_client import BrainHistory, up_to_date

    return BrainHistory(files, read=up_to_date)


def _entries(opened: Rows, conditions: tuple[str, ...], limit: int | None) -> list[tuple[JobEntry, Plan | None]]:
    """List the entries, oldest first, each with the plan it had last."""
    import msgspec

    from dlrover_lite.brain.store import queries

    which = queries.parse_filter(conditions, now=time.time())
    if limit is not None or which.most is None:
        which = msgspec.structs.replace(which, most=limit or 20)
    return [(_as_it_is(entry), plan) for entry, plan in queries.jobs_with_plans(opened, which)[::-1]]


def _as_it_is(entry: JobEntry) -> JobEntry:
    """Return the entry as it is now: a job may have got on, or ended, without anybody to tell; its files say so."""
    import msgspec

    if entry.source or entry.state not in ("starting", "running", "queued"):
        return entry
    from dlrover_lite.brain_server.daemon import look_at
    from dlrover_lite.protocol.outcomes import outcome_of

    ended = look_at(entry.directory)
    if ended is None:
        return msgspec.structs.replace(entry, samples=max(entry.samples, _samples_by_files(entry.directory)))
    samples = ended.status.get("samples")
    return msgspec.structs.replace(
        entry,
        state=ended.state,
        ended_at=ended.at,
        samples=samples if isinstance(samples, int) else entry.samples,
        message=ended.message,
        outcome=outcome_of(ended.status),
    )


def _samples_by_files(directory: str) -> int:
    """Read how many samples a job that runs has gone through; 0 where its files don't say."""
    from pathlib import Path

    from dlrover_lite.jobs.store import Job

    try:
        status = Job(Path(directory)).status() if directory else None
    except JobError:
        return 0
    samples = (status or {}).get("samples")
    return samples if isinstance(samples, int) else 0


def find_entry(opened: Rows, reference: str) -> JobEntry:
    """Find the entry of a job. Raises JobError naming the nearest ids."""
    from difflib import get_close_matches

    from dlrover_lite.brain.store import queries

    known = queries.job_ids(opened)
    found = [job for job in known if job == reference] or [job for job in known if job.startswith(reference)]
    if reference == "last":
        found = known[:1]
    if len(found) == 1 and (entries := queries.jobs(opened, queries.JobsQuestion(id=found[0]))):
        return _as_it_is(entries[0])
    if len(found) > 1:
        shown = ", ".join(found[:5])
        raise JobError(
            f"{len(found)} jobs of the history start with {reference!r}: {shown}{', …' if len(found) > 5 else ''}"
        )
    near = get_close_matches(reference, known, n=3, cutoff=0.5)
    hint = f"The nearest: {', '.join(near)}" if near else "All: dlrover-lite history"
    raise JobError(f"The history knows no job {reference!r}", hint=hint)


# --- all jobs ---------------------------------------------------------------------------------------------------------------


def _print_jobs(entries: list[tuple[JobEntry, Plan | None]]) -> None:
    rows = []
    for entry, plan in entries:
        end = entry.outcome
        began = entry.started_at or entry.created_at
        rate = end.samples_per_second
        rows.append(
            (
                entry.id,
                entry.state,
                at_time(began),
                duration((entry.ended_at or time.time()) - began),
                count(entry.samples),
                f"{rate:,.0f}" if rate else None,
                plan.describe() if plan else None,
                *(_memory(end.peak_memory.get(role)) for role in ("ps", "worker")),
                entry.model or None,
                metric(end.auc),
            )
        )
    columns = (
        "job",
        "outcome",
        "started",
        "duration",
        "samples",
        "samples/s",
        "plan",
        "ps peak",
        "worker peak",
        "model",
        "auc",
    )
    table(columns, rows, drop=_LEAST_FIRST)


def _memory(size: int | None) -> str | None:
    from dlrover_lite.core.units import format_bytes

    return format_bytes(size) if size else None


def _as_object(entry: JobEntry, plan: Plan | None) -> dict[str, Any]:
    """Return one entry of ``--json``; its keys are documented and stay."""
    end = entry.outcome
    return {
        **fields(entry, "id", "name", "owner", "model", "state", "message", "samples", "features", "source"),
        **fields(entry, "created_at", "started_at", "ended_at"),
        "seconds": end.seconds or None,
        "samples_per_second": end.samples_per_second or None,
        **fields(end, "auc", "oom_kills"),
        "plan": plan,
        "peak_memory": {role: end.peak_memory.get(role) for role in ("ps", "worker")},
        "nodes": {role: end.nodes.get(role) for role in ("ps", "worker")},
    }


# --- calibration --------------------------------------------------------------------------------------------------------------


def _calibrate(opened: BrainHistory | None, job: str, conditions: tuple[str, ...], as_json: bool) -> None:
    judged = []
    if opened is not None:
        with opened:
            judged = _judged(opened, job, conditions)
    from dlrover_lite.brain.calibration import calibration

    found = calibration(judged)
    worst = sorted(judged, key=lambda one: -abs(one.effect.error))[:_WORST]
    if as_json:
        emit_json(
            {
                "calibration": {action: one._asdict() for action, one in found.items()},
                "worst": [
                    {**fields(one, "job", "number", "at", "action"), **fields(one.effect, "error", "text")}
                    for one in worst
                ],
            }
        )
    elif not judged:
        note("No decision has been judged yet: that takes two intervals after it took effect.")
    else:
        rows = [
            (action, count(one.decisions), f"{one.median_miss:.1%}", f"{one.within_band:.0%}", count(one.missed))
            for action, one in found.items()
        ]
        table(("decisions to", "number", "median miss", "in the 80% band", "missed by much"), rows)
        click.echo("\nThe furthest off:")
        for one in worst:
            click.echo(cleaned(f"  {one.job}, decision {one.number} ({one.action}): {one.effect.text}"))


def _judged(opened: BrainHistory, job: str, conditions: tuple[str, ...]) -> list[JudgedDecision]:
    from dlrover_lite.brain.store import queries

    if job:
        return queries.judged_decisions(opened, find_entry(opened, job).id)
    found = queries.judged_decisions(opened)
    if not conditions:
        return found
    matching = {entry.id for entry in queries.jobs(opened, queries.parse_filter(conditions, now=time.time()))}
    return [one for one in found if one.job in matching]


# --- one job ------------------------------------------------------------------------------------------------------------------


def _tell(opened: Rows, entry: JobEntry, as_json: bool) -> None:
    from dlrover_lite.brain.store import queries

    plans, decisions = queries.plans(opened, entry.id), queries.decisions(opened, entry.id)
    events = queries.node_events(opened, entry.id)
    granted = [record for record in plans if record.kind == "granted"]
    if as_json:
        emit_json(
            {
                **_as_object(entry, granted[-1].plan if granted else None),
                "plans": [fields(one, "at", "kind", "plan", "decision") for one in plans],
                "decisions": [
                    {
                        **fields(one, "number", "effect"),
                        **fields(one.decision, "at", "action", "reason", "plan", "predicted"),
                    }
                    for one in decisions
                ],
                "events": [{**fields(one, "at", "node", "event", "reason"), **_details(one)} for one in events],
            }
        )
        return
    click.echo(cleaned(f"{entry.id}: {entry.state}" + (f" ({entry.message.splitlines()[0]})" if entry.message else "")))
    width = terminal_width()
    for at, what in sorted(_lines(entry, plans, decisions, events), key=lambda line: line[0]):
        click.echo("\n".join(hanging(f"{at_time(at)}  ", what, width)))


def _details(event: NodeRecord) -> dict[str, Any]:
    names = ("role", "follows", "cores", "memory", "detail")
    return {name: event.data.get(name) for name in names}


def _lines(
    entry: JobEntry, plans: list[PlanRecord], decisions: list[StoredDecision], events: list[NodeRecord]
) -> list[tuple[float, str]]:
    lines = [(entry.started_at or entry.created_at, "it began")]
    for record in plans:
        by = f" by decision {record.decision}" if record.decision is not None else ""
        what = "it has" if record.kind == "granted" else "it is to have"
        lines.append((record.at, f"{what} {record.plan.describe()}{by}"))
    for one in decisions:
        lines.append((one.decision.at, f"decision {one.number}: {one.decision.action}: {one.decision.reason}"))
        if one.effect is not None:
            lines.append((one.effect.at, f"decision {one.number} brought {one.effect.text}"))
    lines += [(event.at, f"{event.node} {_event(event)}") for event in events]
    if entry.ended_at is not None:
        lines.append((entry.ended_at, f"it has {entry.state}" if entry.state != "lost" else "it was lost"))
    return lines


def _event(event: NodeRecord) -> str:
    from dlrover_lite.core.units import format_bytes

    data = event.data
    size = f"{data['cores']:g} cores and {format_bytes(data['memory'])}" if {"cores", "memory"} <= set(data) else ""
    match event.event:
        case "launched":
            follows = f", in place of {data['follows']}" if data.get("follows") else ""
            return f"was launched with {size}{follows}"
        case "resized":
            return f"was resized to {size}"
        case "ended":
            return f"has ended: {event.reason}" + (f": {data['detail']}" if data.get("detail") else "")
        case _:
            return "was up"
