"""``checkpoints`` and ``checkpoint …``: which there are, one more, and whether they are whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from dlrover_lite.cli.groups import CommandGroup
from dlrover_lite.cli.options import MOST_NUMBER, job_argument
from dlrover_lite.cli.output import emit_json, fields, note, progress, table
from dlrover_lite.core.errors import CheckpointDamaged, CheckpointForeign, JobError, UsageError
from dlrover_lite.core.words import at_time, count, duration, pause

if TYPE_CHECKING:
    from dlrover_lite.checkpoint.store import Checkpoint
    from dlrover_lite.jobs.checkpoint_location import Located
    from dlrover_lite.protocol.questions import CheckpointStall

__all__ = ["checkpoint", "checkpoints"]

EXIT_DAMAGED = 1
_LEAST_FIRST = ("held up", "took", "builds on", "rows", "taken", "samples", "size")
"""Columns that give way on a narrow terminal."""


@click.command(short_help="List the checkpoints of a job.")
@click.argument("job", metavar="[JOB|URL]", default="last")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def checkpoints(job: str, as_json: bool) -> None:
    """List the checkpoints of JOB, the newest last. JOB is an id, the start of one, or "last", which is the default; or the
    path or URL of checkpoints.

    One that builds on another has only the rows changed since. "checkpoint verify" reads all of them.
    """
    from dlrover_lite.client.checkpoint_words import stalls_of
    from dlrover_lite.client.job_sources import files_of
    from dlrover_lite.jobs.checkpoint_location import locate

    located = locate(job, files_of)
    found = _cuts(located)
    stalls = stalls_of(located.job) if located.job is not None else {}
    if as_json:
        emit_json({**_head(located), "checkpoints": [_as_object(cut, stalls.get(cut.number)) for cut in found]})
        return
    if not found:
        note(_none(located))
        return
    took = ("took", "held up") if stalls else ()
    columns = ("checkpoint", "taken", "builds on", "samples", "rows", "size", *took, "state")
    rows = [_row(cut) + (_took(stalls.get(cut.number)) if took else ()) + (_state(cut),) for cut in found]
    table(columns, rows, drop=[name for name in _LEAST_FIRST if name in columns])
    for cut in found:
        if cut.why:
            note(f"checkpoint {cut.number}: {cut.why}")
    if located.job is not None and any(cut.abandoned for cut in found):
        command = f"dlrover-lite run --resume {located.job.id} --cut NUMBER"
        note(
            f"The job has gone on from an older one than those abandoned. To go on from one of them all the same: {command}"
        )


class _TakeByDefault(CommandGroup):
    """``checkpoint [JOB] [OPTIONS]`` is ``checkpoint take [JOB] [OPTIONS]``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        named = bool(args) and args[0] in (*self.list_commands(ctx), *ctx.help_option_names)
        return super().parse_args(ctx, args if named or ctx.resilient_parsing else ["take", *args])


@click.group(cls=_TakeByDefault, short_help="Take a checkpoint, or check those there are.")
def checkpoint() -> None:
    """Take a checkpoint of a job, or check those that there are.

    "dlrover-lite checkpoint [JOB]" is short for "dlrover-lite checkpoint take [JOB]".
    """


@checkpoint.command(short_help="Take a checkpoint of a running job.")
@job_argument
@click.option("--wait/--no-wait", default=True, help="Return when it is durable (default), or at once.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def take(job: str, wait: bool, as_json: bool) -> None:
    """Take a checkpoint of JOB while it trains. JOB is an id, the start of one, or "last" (default).

    It holds all that was trained when the command was given. Where one is being taken already, another one follows it.

    Exit codes: 0 done; 1 the job has ended, takes none, or the checkpoint can't be written.
    """
    from dlrover_lite.cli import waiting
    from dlrover_lite.client.handle import JobHandle
    from dlrover_lite.protocol.questions import to_builtins

    handle = JobHandle.find(job)
    number = handle.checkpoint(wait=False)
    newest = None
    if wait:
        waiting.until(handle, f"Saving {handle.id}", waiting.has_checkpoint(number), outlives=True)
        known = handle.status().checkpoints
        newest = known.newest if known else None
    if as_json:
        emit_json({"job": handle.id, "number": number, "complete": to_builtins(newest) if newest else None})
    elif newest is not None:
        from dlrover_lite.client.checkpoint_words import newest_text

        click.echo(f"checkpoint {newest_text(newest)}")
    else:
        click.echo(f"checkpoint {number} is taken as soon as may be.")


@checkpoint.command(short_help="Read checkpoints and compare every checksum.")
@click.argument("job", metavar="[JOB|URL]", default="last")
@click.option("--cut", type=click.IntRange(0, MOST_NUMBER), help="Only this checkpoint, and those it builds on.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def verify(job: str, cut: int | None, as_json: bool) -> None:
    """Read all checkpoints of JOB and compare every checksum. JOB is an id, the start of one, or "last", which is the default;
    or the path or URL of checkpoints, or of a single one.

    Exit codes: 0 all are whole; 1 something is damaged, or can't be read by this version, and is named; 2 there is nothing
    to check, or it can't be reached.
    """
    from dlrover_lite.client.job_sources import files_of
    from dlrover_lite.jobs.checkpoint_location import locate

    try:
        located = locate(job, files_of)
        wanted = located.cut if cut is None else cut
        chosen = [one for one in _cuts(located) if wanted in (None, one.number)]
        if not chosen:
            raise JobError(_none(located, wanted))
        checked = _verified(located, chosen, chain=wanted is not None)
    except JobError as error:  # 1 means that they were checked
        raise UsageError(error.message, hint=error.hint) from error
    whole = not any(problems for _, problems in checked)
    if as_json:
        objects = [
            {
                "number": one.number,
                "whole": not problems,
                "problems": [{"file": file, "why": why} for file, why in problems],
            }
            for one, problems in checked
        ]
        emit_json({**_head(located), "whole": whole, "checkpoints": objects})
    else:
        for one, problems in checked:
            click.echo(f"checkpoint {one.number}: {'whole' if not problems else ''}".rstrip())
            for _, why in problems:
                click.echo(f"  {why}")
    if not whole:
        click.get_current_context().exit(EXIT_DAMAGED)


Problem = tuple[str | None, str]
"""File, and what is wrong with it."""


def _verified(located: Located, cuts: list[Checkpoint], *, chain: bool) -> list[tuple[Checkpoint, list[Problem]]]:
    checked: list[tuple[Checkpoint, list[Problem]]] = []
    sizes = {cut.number: located.store.stored_bytes(cut.number, chain=chain) for cut in cuts}
    before = 0
    with progress("checking", sum(sizes.values()), unit="bytes") as show:
        for cut in cuts:
            note = f"checkpoint {cut.number}"
            show(before, note)
            problems: list[Problem] = []
            try:
                damages: list[CheckpointDamaged] = located.store.verify(
                    cut.number,
                    chain=chain,
                    progress=lambda done, before=before, note=note: show(before + done, note),  # type: ignore[misc]
                )
                problems = [(one.file, one.message) for one in damages]
            except CheckpointForeign as error:
                problems = [(None, error.message)]
            if not problems and cut.state != "complete":  # of one that it builds on
                problems = [(None, cut.why)]
            checked.append((cut, problems))
            before += sizes[cut.number]
            show(before, note)
    return checked


def _cuts(located: Located) -> list[Checkpoint]:
    """List the cuts, oldest first. Raises JobError where there were some, by the job's own record, and none is there now."""
    from dlrover_lite.checkpoint.lineage import Lineage
    from dlrover_lite.client.handle import JobHandle
    from dlrover_lite.jobs.endings import why_none
    from dlrover_lite.jobs.restore_point import Gone, found_damaged, lineage_of, own_checkpoint

    known = found_damaged(located.job, located.store.url) if located.job is not None else {}
    lineage = lineage_of(located.job) if located.job is not None else Lineage()
    found = located.store.checkpoints(known, lineage)[::-1] if located.store.exists() else []
    if not found and located.job is not None and isinstance(point := own_checkpoint(located.job), Gone):
        message, hint = why_none(located.job, point, over=JobHandle.find(located.job.id).known().over)
        raise JobError(message, hint=hint)
    return found


def _none(located: Located, cut: int | None = None) -> str:
    what = "are no checkpoints" if cut is None else f"is no checkpoint {cut}"
    if located.job is None:
        return f"There {what} in {located.store.url}"
    off = " Its recipe says `checkpoint: off`." if located.job.recipe.checkpoint == "off" else ""
    return f"There {what} of {located.job.id}.{off}"


def _head(located: Located) -> dict[str, Any]:
    return {"job": located.job.id if located.job else None, "url": located.store.url}


def _as_object(cut: Checkpoint, stall: CheckpointStall | None) -> dict[str, Any]:
    """Return one entry of ``--json``; its keys are documented and stay."""
    manifest = cut.manifest
    return {
        **fields(cut, "number", "state", "why", "abandoned", "bytes"),
        "taken_at": manifest.at if manifest else None,
        "builds_on": manifest.builds_on if manifest else None,
        "samples": manifest.samples if manifest else None,
        "rows": manifest.rows if manifest else None,
        "servers": len(manifest.parts) if manifest else None,
        "seconds": stall.seconds if stall else None,
        "stall_seconds": stall.stall_seconds if stall else None,
        "usual_stall_seconds": stall.usual_stall_seconds if stall else None,
    }


def _row(cut: Checkpoint) -> tuple[object, ...]:
    """Return all columns of a cut but its state."""
    from dlrover_lite.core.units import format_bytes

    size, manifest = format_bytes(cut.bytes), cut.manifest
    if manifest is None:
        return (cut.number, None, None, None, None, size)
    below = "-" if manifest.builds_on is None else str(manifest.builds_on)
    return (cut.number, at_time(manifest.at), below, count(manifest.samples), count(manifest.rows), size)


def _state(cut: Checkpoint) -> str:
    return f"{cut.state}, abandoned" if cut.abandoned else cut.state


def _took(stall: CheckpointStall | None) -> tuple[object, object]:
    return (duration(stall.seconds), pause(stall.stall_seconds)) if stall is not None else (None, None)
