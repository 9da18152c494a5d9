"""The words about a job that is over: what it can go on from, and the commands that work then."""

from __future__ import annotations

import shlex
import threading
import time
from typing import TYPE_CHECKING

import msgspec

from dlrover_lite.core.errors import JobError
from dlrover_lite.jobs import final_status
from dlrover_lite.jobs.checkpoint_location import store_of
from dlrover_lite.jobs.restore_point import (
    Gone,
    InMemory,
    NeverTaken,
    RestorePoint,
    Unreachable,
    Unusable,
    Usable,
    origin_of,
    restore_point_of,
)
from dlrover_lite.jobs.store import Job, Result

if TYPE_CHECKING:
    from dlrover_lite.jobs.backend import JobSummary
    from dlrover_lite.protocol.questions import Status

__all__ = ["again", "ended", "last_status", "look", "model_commands", "next_steps", "why_none"]

PATIENCE_SECONDS = 10.0
"""Seconds after which a destination that hasn't answered is called unreachable: nobody who asks for a status waits longer."""
_MOST_NAMED = 3


def look(job: Job, *, over: bool) -> RestorePoint:
    """Return the restore point as ``restore_point_of``, but a destination that hangs is ``Unreachable`` after a while. Raises as that."""
    found: list[RestorePoint | BaseException] = []

    def ask() -> None:
        try:
            found.append(restore_point_of(job, over=over))
        except BaseException as error:  # noqa: BLE001 - raised below, in the thread that has asked
            found.append(error)

    thread = threading.Thread(target=ask, name="restore-point", daemon=True)
    thread.start()
    thread.join(PATIENCE_SECONDS)
    if not found:
        url = store_of(job).url
        why = f"{url} hasn't answered for {PATIENCE_SECONDS:g} s"
        return Unreachable(url, why, "Is it mounted, and reachable?")
    if isinstance(found[0], BaseException):
        raise found[0]
    return found[0]


def last_status(job: Job, now: JobSummary) -> Status | None:
    """Return how the job stood at its end; None while it runs."""
    return None if now.result is None else _with_checkpoint(job, final_status.final(job, now.result), over=now.over)


def ended(job: Job, now: JobSummary) -> Result | None:
    """Return how the job ended, and at the end of its hint what it can go on from; None while it runs."""
    result = now.result
    if result is None or result.state == "succeeded":
        return result
    try:
        steps = next_steps(job, result, look(job, over=now.over))
    except JobError:  # its files can't be read: what is known stays
        return result
    hint = "\n".join([*(line for line in result.hint.splitlines() if line), *steps])
    return msgspec.structs.replace(result, hint=hint)


def _with_checkpoint(job: Job, last: Status, *, over: bool) -> Status:
    """Return the last status of a job that is over, with the newest checkpoint that there is now: its master may not have known of it, or
    it is gone since."""
    from dlrover_lite.protocol.questions import CheckpointProblem, CheckpointsStatus, CheckpointStatus

    try:
        point = look(job, over=over)
    except JobError:
        return last
    known = last.checkpoints or CheckpointsStatus()
    match point:
        case Usable(_, manifest, _, False) if known.newest is None or known.newest.number != manifest.cut:
            newest = CheckpointStatus(
                manifest.cut, manifest.at, manifest.samples, manifest.rows, manifest.stored_bytes, 0.0
            )
            known = msgspec.structs.replace(known, newest=newest)
        case Gone() | Unreachable() | Unusable():
            message, hint = why_none(job, point, over=over)
            problem = CheckpointProblem(0, time.time(), message.partition("\n")[0], hint, 1)
            known = msgspec.structs.replace(known, newest=None, problem=problem)
        case _:
            return last
    return msgspec.structs.replace(last, checkpoints=known)


def next_steps(job: Job, result: Result, point: RestorePoint) -> list[str]:
    """Return what can be done with a job that was stopped, has failed or was lost: lines, each with the command that does it."""
    if isinstance(point, InMemory):
        return []
    if not isinstance(point, Usable):
        message, hint = why_none(job, point, over=True)
        return [*message.splitlines(), *hint.splitlines()]
    number, mended = point.manifest.cut, "Once that is mended, to" if result.state == "failed" else "To"
    said = [f"Passed over: {line}" for line in point.passed_over[:_MOST_NAMED]]
    resume = f"dlrover-lite {'resume' if result.state == 'suspended' else 'run --resume'} {job.id}"
    if point.is_origin:
        with_it = f"begin again with checkpoint {number} of {point.manifest.job}"
        return [*said, "It has no checkpoint of its own that could be used.", f"{mended} {with_it}: {resume}"]
    return [*said, f"{mended} go on from checkpoint {number}: {resume}", *model_commands(job, point)]


def model_commands(job: Job, point: Usable) -> list[str]:
    """Return how to have the model in the job's own checkpoint without training on: a line for each command."""
    number = point.manifest.cut
    export = f"To have its model of checkpoint {number}: dlrover-lite export --from {job.id} --to DIR"
    if job.recipe.model.use == "census":
        return [export]
    return [export, f"To evaluate that: dlrover-lite evaluate --from {job.id}"]


def why_none(job: Job, point: NeverTaken | Gone | Unreachable | Unusable, *, over: bool) -> tuple[str, str]:
    """Return message and hint where there is no checkpoint that the job could go on from; ``over``: nothing of it runs any more."""
    match point:
        case NeverTaken(off):
            why = "its recipe says `checkpoint: off`" if off else "none was complete before it ended"
            gone = f"There are no checkpoints of {job.id}: {why}. What it had learned is gone."
            return gone, f"To train it again: {again(job)}"
        case Gone(url, recorded):
            message = f"Checkpoint {recorded} of {job.id} was complete, but there is none at {url} now."
            when = f"When it is back: dlrover-lite run --resume {job.id}" if over else ""
            return message, f"Is its disk mounted, or was it emptied? {when}".strip()
        case Unreachable(_, message, hint):
            when = f"When they can: dlrover-lite run --resume {job.id}" if over else ""
            return f"The checkpoints of {job.id} can't be read now: {message}", f"{hint}\n{when}".strip()
        case Unusable(_, wrong, abandoned):
            named = [f"  {line}" for line in wrong[:_MOST_NAMED]]
            named += [f"  and {len(wrong) - _MOST_NAMED} more"] if len(wrong) > _MOST_NAMED else []
            message = "\n".join([f"No checkpoint of {job.id} can be used:", *named])
            hint = f"To train it again: {again(job)}"
            if abandoned and over:
                chosen = f"dlrover-lite run --resume {job.id} --cut {abandoned[0]}"
                hint = f"To go on from one that was abandoned all the same: {chosen}\n{hint}"
            return message, hint


def again(job: Job) -> str:
    """Return the command that trains the job again from its beginning, which may be another job's checkpoint."""
    command, recipe = ["dlrover-lite", "run"], str(job.directory / "recipe.yaml")
    if (origin := origin_of(job)) is not None:
        command += ["--from", f"{origin.url}:{origin.cut}"]
        command += ["--only-parameters"] if origin.only_parameters else []
    return shlex.join([*command, recipe])
