"""The recipe that a job of a trace would have: what its user tells of it, and so what the brain knows before it runs. How many ids its
tables have, and what minibatches cost, isn't in a recipe."""

from __future__ import annotations

import re
from typing import Literal

from dlrover_lite.core.units import MOST_MEMORY
from dlrover_lite.recipe.model_options import BUILT_IN_OPTIONS
from dlrover_lite.recipe.schema import (
    Checkpoint,
    CsvData,
    Export,
    Health,
    JobCeiling,
    Model,
    Optimizer,
    Recipe,
    ResourceLimits,
    Training,
)
from dlrover_lite.simulation.traces.trace import TraceJob

__all__ = ["recipe_of"]

_FILE = re.compile(r"[A-Za-z0-9_.-]+")
_OPTIMIZERS: dict[int, Literal["sgd", "adagrad", "adam"]] = {0: "sgd", 1: "adagrad"}


def recipe_of(name: str, job: TraceJob, *, heartbeat_seconds: float) -> Recipe:
    """Return the recipe of a job whose user leaves its resources to the brain. ``name``: that of its directory."""
    dims = {table.dim for table in job.tables}
    if job.model in BUILT_IN_OPTIONS and len(dims) == 1:
        model = Model(use=job.model, options={"embedding_dim": dims.pop()})
    else:
        model = Model(use=f"{job.model if _FILE.fullmatch(job.model) else 'model'}.py:Model")
    columns = [f"C{number}" for number in range(sum(table.count for table in job.tables))]
    return Recipe(
        version=1,
        name=name,
        model=model,
        data=CsvData(train=["samples.csv"], label="label", categorical=columns),
        training=Training(
            batch_size=job.batch_size,
            optimizer=Optimizer(use=_OPTIMIZERS.get(job.state_parts, "adam")),
            pipeline_depth=min(2, job.depth),
        ),
        autoscale="on",
        priority=job.priority,
        checkpoint=Checkpoint(every_seconds=job.checkpoint_seconds) if job.suspendable else "off",
        export=Export(format="none"),
        health=Health(heartbeat_seconds=heartbeat_seconds),
        resources=ResourceLimits(total=JobCeiling(job.most_cores, MOST_MEMORY)),
    )
