"""Where a job's checkpoints are, and which ones a person means."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from dlrover_lite.checkpoint.store import CheckpointStore, number_of
from dlrover_lite.jobs.store import Job, find_job
from dlrover_lite.recipe.schema import Checkpoint, Recipe

__all__ = ["Located", "destination", "locate", "store_of"]


_NUMBERED = re.compile(r"(.*[^:/]):(\d{1,12})")


class Located(NamedTuple):
    store: CheckpointStore
    job: Job | None
    """The job; None where a path or URL was given."""
    cut: int | None
    """Number of the checkpoint that was named; None: none in particular."""


def destination(recipe: Recipe, job: str, directory: Path) -> str:
    """Return where the checkpoints of the job with this id and directory go (or would, were they not off): a path or URL of its own."""
    chosen = recipe.checkpoint.directory if isinstance(recipe.checkpoint, Checkpoint) else ""
    if not chosen:
        return str(directory / "checkpoints")
    if "://" in chosen:
        return f"{chosen.rstrip('/')}/{job}"
    return str(Path(recipe.directory) / Path(chosen).expanduser() / job)


def store_of(job: Job) -> CheckpointStore:
    """Return the store of a job's checkpoints. Raises JobError for a job whose recipe can't be read."""
    return CheckpointStore(job.destination_at(destination(job.recipe, job.id, job.home)))


def locate(reference: str, find: Callable[[str], Job] = find_job) -> Located:
    """Find a job (its id, the start of one, or ``last``) by ``find``; or a path or URL, of all of a job's cuts. Each with ``:12`` or
    ``/cut-00000012`` at its end for a single one.

    Raises JobError for a job that isn't found and for a URL of an unknown kind.
    """
    if (numbered := _NUMBERED.fullmatch(reference)) and not Path(reference).exists():
        return locate(numbered[1], find)._replace(cut=int(numbered[2]))
    if "://" not in reference and os.sep not in reference and not Path(reference).is_dir():
        job = find(reference)
        return Located(store_of(job), job, None)
    above, _, name = reference.rstrip("/").rpartition("/")
    if (cut := number_of(name)) is not None:
        if above and os.sep not in above and not Path(above).is_dir():
            return locate(above, find)._replace(cut=cut)
        return Located(CheckpointStore(above or os.curdir), None, cut)
    return Located(CheckpointStore(reference), None, None)
