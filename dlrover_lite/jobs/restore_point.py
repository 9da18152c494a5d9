"""What a job can go on from. Whatever says so, or decides it, asks ``restore_point_of``.

A job keeps in its own directory that it has had complete checkpoints (``recorded_cut``), so that a destination that isn't mounted, or was
emptied, isn't taken for a job that never had any.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from dlrover_lite.checkpoint.lineage import Lineage, Origin
from dlrover_lite.checkpoint.manifest import Manifest
from dlrover_lite.checkpoint.store import Checkpoint, CheckpointStore
from dlrover_lite.core.errors import JobError
from dlrover_lite.jobs.checkpoint_location import store_of
from dlrover_lite.jobs.store import Beginning, Job

__all__ = [
    "Gone",
    "InMemory",
    "NeverTaken",
    "RestorePoint",
    "Unreachable",
    "Unusable",
    "Usable",
    "found_damaged",
    "lineage_of",
    "newest_checkpoint",
    "origin_of",
    "own_checkpoint",
    "passed_over",
    "recorded_cut",
    "restore_point",
    "restore_point_of",
]


class Usable(NamedTuple):
    """The newest checkpoint that is whole."""

    url: str
    manifest: Manifest
    passed_over: list[str]
    """Newer checkpoints that can't be used, or are abandoned, and why, newest first."""
    is_origin: bool = False
    """The checkpoint is another job's: the one that this job began with, while it has none of its own."""
    only_parameters: bool = False
    """The job began at epoch 0 with the checkpoint, and does so again."""


class NeverTaken(NamedTuple):
    """No checkpoint of the job has ever been complete."""

    off: bool
    """The job's recipe says ``checkpoint: off``."""


class Gone(NamedTuple):
    """There was a complete checkpoint by the job's own record, and none is at the destination: it isn't mounted, or was emptied."""

    url: str
    recorded: int
    """Number of the newest one that is known to have been complete."""


class Unreachable(NamedTuple):
    """The destination can't be read now."""

    url: str
    message: str
    hint: str


class Unusable(NamedTuple):
    """There are some checkpoints, all damaged, of a format that this version can't read, or abandoned."""

    url: str
    passed_over: list[str]
    """Reasons why each checkpoint can't be used, newest first."""
    abandoned: list[int]
    """Numbers of the checkpoints that are whole, newest first: the job has gone on without them, and does so from them only if a person
    says so."""


class InMemory(NamedTuple):
    """The job runs: its parameter servers have all that it has learned."""


RestorePoint = Usable | NeverTaken | Gone | Unreachable | Unusable | InMemory


def passed_over(one: Checkpoint) -> str:
    """Say why a checkpoint is passed over: ``checkpoint 12: PART is damaged: …``."""
    return f"checkpoint {one.number}: {one.why}"


def _left_behind(numbers: list[int]) -> list[str]:
    """Return a line for abandoned checkpoints, if there are any: ``checkpoints 20, 19, 18: abandoned, …``."""
    if not numbers:
        return []
    named = ", ".join(map(str, numbers[:_MOST_NAMED]))
    more = f" and {len(numbers) - _MOST_NAMED} more" if len(numbers) > _MOST_NAMED else ""
    what = "checkpoint" if len(numbers) == 1 else "checkpoints"
    return [f"{what} {named}{more}: abandoned, the job has gone on from an older one"]


_MOST_NAMED = 3


def restore_point(
    store: CheckpointStore,
    *,
    recorded: int = 0,
    off: bool = False,
    before: int | None = None,
    known_damaged: Mapping[int, str] = MappingProxyType({}),
    lineage: Lineage = Lineage(),  # noqa: B008 - it can't change
) -> Usable | NeverTaken | Gone | Unreachable | Unusable:
    """Look at the checkpoints in ``store``: manifests and ends of parts, not every byte.

    ``recorded``: number of the newest one that is known to have been complete; 0: none. ``before``: only those with lower numbers count.
    ``known_damaged``: numbers of some that are known to be, and why. ``lineage``: of the job whose they are.
    """
    try:
        cuts = store.checkpoints(known_damaged, lineage) if store.exists() else []
    except JobError as error:
        return Unreachable(store.url, error.message, error.hint)
    cuts = [cut for cut in cuts if before is None or cut.number < before]
    if not cuts:
        return Gone(store.url, recorded) if recorded else NeverTaken(off)
    found = next((cut for cut in cuts if cut.state == "complete" and not cut.abandoned), None)
    newer = [cut for cut in cuts if found is None or cut.number > found.number]
    abandoned = [cut.number for cut in newer if cut.state == "complete"]
    gone = recorded > (found.number if found else 0) and all(cut.number != recorded for cut in cuts)
    said = [f"checkpoint {recorded}: it isn't there any more"] if gone else []
    said += [passed_over(cut) for cut in newer if cut.state != "complete"] + _left_behind(abandoned)
    if found is not None and found.manifest is not None:
        return Usable(store.url, found.manifest, said)
    return Unusable(store.url, said, abandoned)


def own_checkpoint(job: Job) -> Usable | NeverTaken | Gone | Unreachable | Unusable:
    """Return the job's own newest checkpoint, whether or not it runs. Raises JobError for a job whose files can't be read."""
    store = store_of(job)
    recorded = recorded_cut(job, store.url, job.beginning())
    off = job.recipe.checkpoint == "off"
    damaged = found_damaged(job, store.url)
    return restore_point(store, recorded=recorded, off=off, known_damaged=damaged, lineage=lineage_of(job))


def newest_checkpoint(job: Job) -> Usable | NeverTaken | Gone | Unreachable | Unusable:
    """Return the job's own newest checkpoint; before it has any, the one that it began with, of another job. Whether or not it runs.

    Raises as ``own_checkpoint``.
    """
    own, began = own_checkpoint(job), origin_of(job)
    if not isinstance(own, NeverTaken | Unusable) or began is None:
        return own
    origin = restore_point(
        CheckpointStore(job.destination_at(began.url)),
        recorded=began.cut,
        before=began.cut + 1,
        known_damaged=found_damaged(job, began.url),
    )
    if isinstance(origin, Usable):
        said = own.passed_over if isinstance(own, Unusable) else []
        return origin._replace(
            passed_over=said + origin.passed_over, is_origin=True, only_parameters=began.only_parameters
        )
    return own if isinstance(own, Unusable) else origin


def restore_point_of(job: Job, *, over: bool) -> RestorePoint:
    """Return what this job can go on from now; ``over``: nothing of it runs any more. Raises as ``own_checkpoint``."""
    return newest_checkpoint(job) if over else InMemory()


def origin_of(job: Job) -> Origin | None:
    """Return the checkpoint of another job that this one began with, whatever it has gone on from since. Raises as ``own_checkpoint``."""
    beginning = job.beginning()
    return None if beginning is None else beginning.began_with(store_of(job).url)


def lineage_of(job: Job) -> Lineage:
    """Say which of its checkpoints led to where the job is."""
    beginning = job.beginning()
    return Lineage() if beginning is None else beginning.lineage


def found_damaged(job: Job, url: str) -> Mapping[int, str]:
    """Return the numbers of the checkpoints at ``url`` that were found damaged when the job last went back to one, and why."""
    beginning = job.beginning()
    return {} if beginning is None else beginning.damaged.get(url, {})


def recorded_cut(job: Job, url: str, beginning: Beginning | None) -> int:
    """Return the number of the newest checkpoint at ``url`` that the job's own files know to have been complete; 0: they know of none."""
    result = job.result()
    kept: list[dict[str, Any] | None] = [job.status(), result.status if result is not None else None]
    newest = [((one or {}).get("checkpoints") or {}).get("newest") or {} for one in kept]
    numbers = [int(one.get("number", 0)) for one in newest]
    if beginning is not None and beginning.url == url:
        numbers.append(beginning.cut)
    return max(numbers)
