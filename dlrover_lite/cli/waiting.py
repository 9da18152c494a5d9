"""``--wait``: staying until what was asked for is done, with what is under way on stderr."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from dlrover_lite.client.checkpoint_words import saving
from dlrover_lite.core.errors import JobError
from dlrover_lite.core.units import format_bytes
from dlrover_lite.core.words import count, duration, plural

if TYPE_CHECKING:
    from dlrover_lite.client.handle import JobHandle
    from dlrover_lite.core.slot_sets import SlotSet
    from dlrover_lite.jobs.store import Result
    from dlrover_lite.protocol.questions import NodeStatus, Status

__all__ = [
    "check_moved",
    "ended",
    "has_checkpoint",
    "has_left",
    "has_limits",
    "has_nodes",
    "is_at_rest",
    "under_way",
    "until",
]

POLL_SECONDS = 0.2
_UNHEARD_SECONDS = 0.2
"""Seconds after which a job is told again that couldn't be told yet."""

Judge = Callable[["Status"], bool]
"""Function that says whether a wish is done. Raises JobError when it isn't going to be."""


def until(handle: JobHandle, label: str, judge: Judge, *, outlives: bool = False) -> None:
    """Wait until ``judge`` says so. Raises JobError when the job ends first; with ``outlives`` only if it isn't done then."""
    from dlrover_lite.cli.output import progress

    with progress(label) as report:
        while True:
            if (status := _status(handle)) is not None:
                report(note=under_way(status))
                if judge(status):
                    return
            try:
                result = handle.wait(POLL_SECONDS, progress=False)
            except TimeoutError:
                continue
            if outlives and judge(handle.status()):
                return
            raise JobError(f"{handle.id} has ended ({result.state}) before it was done")


def ended(handle: JobHandle, tell: Callable[[], bool]) -> Result:
    """Tell a job to end until it has heard it, and wait for its end."""
    while True:
        told = tell()
        try:
            return handle.wait(None if told else _UNHEARD_SECONDS, progress=False)
        except TimeoutError:
            pass  # there was nothing to tell yet


def _status(handle: JobHandle) -> Status | None:
    """Return the status; None while the master is just being started again."""
    try:
        return handle.status()
    except JobError:
        return None


def under_way(status: Status) -> str:
    """Say what is under way: ``move 3: 512 slots from ps-0 to ps-1, copying, 12,345 rows; ps-2 started``."""
    parts = []
    for move in status.moves:
        rows = f", {plural(move.rows, 'row')}" if move.state == "copying" and move.rows else ""
        moved = f", {count(move.moved_slots)} have moved" if move.left and move.moved_slots else ""
        rest = f", {duration(move.seconds_left)} left" if move.seconds_left is not None else ""
        what = f"move {move.id}: {count(move.slots)} from {move.source} to {move.target}"
        parts.append(f"{what}, {move.state}{rows}{moved}{rest}")
    parts += [f"{node.id} {node.state}" for node in _running(status) if node.state != "up"]
    parts += [text for text in [saving(status)] if text]
    parts += [f"{node.id} {node.waits_for}" for node in _running(status) if node.waits_for]
    return "; ".join(parts)


def has_checkpoint(number: int) -> Judge:
    """Judge whether this checkpoint, or a newer one, is durable."""
    from dlrover_lite.jobs import final_status

    return lambda status: final_status.has_checkpoint(status, number)


def has_nodes(workers: int | None, ps: int | None) -> Judge:
    """Judge whether so many nodes are up, and no others run; slots are where they are to be. None: whatever number there is."""

    def judge(status: Status) -> bool:
        running = _running(status)
        for role, wanted in (("worker", workers), ("ps", ps)):
            states = [node.state for node in running if node.role == role]
            if wanted is not None and (len(states) != wanted or set(states) != {"up"}):
                if role == "ps" and status.slots_settled and len(states) > wanted and set(states) == {"up"}:
                    raise JobError(
                        f"{status.job} keeps {len(states)} parameter servers: somebody has asked for that meanwhile"
                    )
                return False
        return ps is None or (status.slots_settled and status.slot_map_version > 0)

    return judge


def is_at_rest(status: Status) -> bool:
    """Judge whether no slot moves, or is going to."""
    return status.slots_settled


def has_left(node: str) -> Judge:
    def judge(status: Status) -> bool:
        found = [other for other in _running(status) if other.id == node]
        if found and found[0].role == "ps" and status.slots_settled:
            raise JobError(f"{node} stays: its moves have been cancelled meanwhile")
        return not found

    return judge


def has_limits(node: str, cores: float | None, memory: int | None) -> Judge:
    """Judge whether a node has what it was to have; None: whatever it has."""

    def judge(status: Status) -> bool:
        found = next((other for other in _running(status) if other.id == node), None)
        if found is None:
            raise JobError(f"{node} has ended before it was resized")
        if found.wanted_memory is not None:
            return False
        if (cores not in (None, found.cores)) or (memory not in (None, found.memory)):
            raise JobError(
                f"{node} stays with {found.cores:g} cores and {format_bytes(found.memory)}",
                hint=f"dlrover-lite story {node} says why.",
            )
        return True

    return judge


def check_moved(handle: JobHandle, members: SlotSet, target: str) -> None:
    """Check that these slots are where they were to go. Raises JobError unless they are."""
    from dlrover_lite.client import scaling

    missing = int((members & ~scaling.slots_of(handle.slot_map(), target)).sum())
    if missing:
        raise JobError(f"{plural(missing, 'slot')} did not move to {target}: the move has been cancelled meanwhile")


def _running(status: Status) -> list[NodeStatus]:
    return [node for node in status.nodes if not node.state.startswith("ended")]
