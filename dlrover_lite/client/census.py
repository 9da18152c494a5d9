"""The census of a job: whether each of its samples has been applied exactly once in every epoch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from dlrover_lite.core.errors import UsageError
from dlrover_lite.core.progress import Steps, no_steps
from dlrover_lite.jobs.store import Job
from dlrover_lite.recipe.census import CENSUS

if TYPE_CHECKING:
    from dlrover_lite.models.census_check import CensusReport

__all__ = ["check", "exported"]

_RUN_ONE = "Run one: dlrover-lite run recipes/census.yaml"


def check(job: Job, progress: Callable[[int], object] | None = None) -> CensusReport:
    """Return what the census of a job that has succeeded says. It imports torch, and builds the job's model.

    ``progress`` is called with the number of keys done. Raises UsageError for a job that can't be checked, ModelError when its export
    can't be read.
    """
    directory = exported(job)
    from dlrover_lite.models.census_check import check_export

    return check_export(directory, job.recipe, progress)


def exported(job: Job, steps: Steps = no_steps) -> Path:
    """Return the directory of a census' exported model, which is fetched if it is in a cluster.

    Raises UsageError, with what to do, for a job that can't be checked.
    """
    recipe = job.recipe
    if recipe.model.use != CENSUS:
        raise UsageError(f"{job.id} is no census: its model is {recipe.model.use}.", hint=_RUN_ONE)
    from dlrover_lite.client.handle import JobHandle
    from dlrover_lite.client.trained_models import how_it_ended

    result = job.result()  # a job that has ended may have been moved
    state = JobHandle.find(job.id).state() if result is None else result.state
    if state in ("starting", "running"):
        raise UsageError(
            f"{job.id} still runs: what it has counted is exported at its end.",
            hint=f"See how far it is: dlrover-lite status {job.id}",
        )
    if state != "succeeded":
        raise UsageError(
            f"{job.id} can't be checked: it {how_it_ended(state)}, and hasn't applied every sample.",
            hint=f"Why: dlrover-lite status {job.id}. {_RUN_ONE}",
        )
    if recipe.export.format == "none":
        raise UsageError(
            f"{job.id} can't be checked: its recipe says to export nothing.",
            hint="Run it again with --set export.format=npz --set export.optimizer_state=yes",
        )
    if not recipe.export.optimizer_state:
        raise UsageError(
            f"{job.id} can't be checked: its export is without optimizer state.",
            hint="Run it again with --set export.optimizer_state=yes",
        )
    directory = job.model_directory(result.export if result is not None else None, steps)
    if not (directory / "model.json").is_file():
        raise UsageError(f"{job.id} can't be checked: its exported model is gone from {directory}.", hint=_RUN_ONE)
    return directory
