"""What can be asked of a job's nodes and slots, and what to say when it can't."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

from dlrover_lite.core.errors import JobError, UsageError
from dlrover_lite.core.units import LEAST_CORES, LEAST_MEMORY, MOST_CORES, MOST_MEMORY, format_bytes, parse_memory
from dlrover_lite.jobs.store import Job
from dlrover_lite.protocol.messages import Topology
from dlrover_lite.protocol.questions import Status
from dlrover_lite.recipe.schema import MOST_NODES

if TYPE_CHECKING:
    from dlrover_lite.core.slot_sets import SlotSet

__all__ = ["check", "has_ended", "limits", "slot_set", "slots_of", "too_late"]

_OPTIONS: tuple[tuple[Literal["worker", "ps"], str, str], ...] = (
    ("worker", "--workers", "workers"),
    ("ps", "--ps", "parameter servers"),
)


def check(workers: int | None, ps: int | None) -> None:
    """Check numbers of nodes. Raises UsageError unless there is a number, and each is one that some job could have."""
    if workers is None and ps is None:
        raise UsageError("Nothing to change: write --workers N, --ps N, or both")
    for (_, option, what), count in zip(_OPTIONS, (workers, ps), strict=True):
        if count is None:
            continue
        if count < 1:
            raise UsageError(
                f"{option} {count}: a job needs at least one; write {option} 1 or more, or end the job with dlrover-lite stop"
            )
        if count > MOST_NODES:
            raise UsageError(f"{option} {count}: a job can have at most {MOST_NODES:,} {what}")


def limits(cores: float | None, memory: int | str | None) -> tuple[float | None, int | None]:
    """Return cores and bytes. Raises UsageError unless there is one of them, and each is what some node could have. What this machine can
    give is for the master to judge."""
    if cores is None and memory is None:
        raise UsageError("Nothing to change: write --cores X, --memory SIZE, or both")
    if cores is not None and not LEAST_CORES <= cores <= MOST_CORES:
        bounds = f"from {LEAST_CORES:g} to {MOST_CORES:,.0f} cores"
        raise UsageError(f"--cores {cores:g}: a node can have {bounds}, as in --cores 1.5")
    try:
        size = None if memory is None else parse_memory(memory)
    except (ValueError, OverflowError) as error:
        raise UsageError(f"--memory {memory}: {error}") from error
    if size is not None and not LEAST_MEMORY <= size <= MOST_MEMORY:
        bounds = f"from {format_bytes(LEAST_MEMORY)} to {format_bytes(MOST_MEMORY)}"
        raise UsageError(f"--memory {memory}: a node can have {bounds}, as in --memory 2GiB")
    return cores, size


def has_ended(job: Job, last: Status, workers: int | None, ps: int | None) -> JobError:
    """Return an error that says how the job ended, and the command that goes on with these numbers, or trains it again where there is
    nothing to go on from."""
    from dlrover_lite.jobs.endings import again, look
    from dlrover_lite.jobs.restore_point import Usable

    settings = " ".join(_settings(job, last, workers, ps))
    how, command = "train it again so", again(job)
    if last.state != "succeeded" and isinstance(point := look(job, over=True), Usable) and not point.is_origin:
        how, command = "go on so, as a new job", f"dlrover-lite run --from {job.id}"
    return JobError(f"{job.id} can't be scaled: it has {_end(job, last)}. To {how}: {command} {settings}")


def too_late(job: Job, last: Status, what: str) -> JobError:
    """Return the error for a wish that comes after the job's end. ``what``: "there are no slots to move"."""
    return JobError(f"{what}: {job.id} has {_end(job, last)}")


def _end(job: Job, last: Status) -> str:
    """Describe how the job ended: ``failed at 12:00:00 on 2025-01-01 (ps-0 has run out of memory)``."""
    result = job.result()
    at = (result.ended_at if result else job.record().ended_at) or None
    when = time.strftime(" at %H:%M:%S on %Y-%m-%d", time.localtime(at)) if at else ""
    first = last.message.partition("\n")[0].rstrip(" :")
    why = f" ({first})" if first else ""
    how = {"stopped": "been stopped", "suspended": "been suspended", "lost": "been lost"}.get(last.state, last.state)
    return f"{how}{when}{why}"


def _settings(job: Job, last: Status, workers: int | None, ps: int | None) -> list[str]:
    """List the settings for these numbers of nodes. Of a role whose resources were chosen for it, all must be given."""
    settings = []
    for (role, _, _), count in zip(_OPTIONS, (workers, ps), strict=True):
        if count is None:
            continue
        settings.append(f"--set resources.{role}.count={count}")
        like = next((node for node in last.nodes if node.role == role), None)
        if getattr(job.recipe.resources, role) is None and like is not None:
            settings += [f"--set resources.{role}.cores={like.cores:g}", f"--set resources.{role}.memory={like.memory}"]
    return settings


def slot_set(wanted: Iterable[int] | str) -> SlotSet:
    """Return the set of these slots. Raises UsageError for slots that there aren't."""
    from dlrover_lite.core import slot_sets

    if isinstance(wanted, str):
        return slot_sets.parse(wanted)
    numbers = list(wanted)
    if not numbers or not all(0 <= number < slot_sets.SLOTS for number in numbers):
        raise UsageError(f"{numbers[:8]} are no slots", hint=f"They are numbered from 0 to {slot_sets.SLOTS - 1}.")
    return slot_sets.of(numbers)


def slots_of(topology: Topology, node: str) -> SlotSet:
    """Return the slots that a PS owns. Raises UsageError for one that has none."""
    import numpy as np

    ids = [server for server, _ in topology.ps]
    if node not in ids:
        raise UsageError(f"{node} has no slots to move", hint=f"Those that have: {', '.join(ids)}.")
    return np.asarray(np.frombuffer(topology.slots, "<u2") == ids.index(node))
