"""Jobs that are over, and checkpoints of them, as files: nothing has to run for them."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from dlrover_lite.backends.local.jobs.local_jobs import create_job
from dlrover_lite.checkpoint.store import CheckpointStore
from dlrover_lite.jobs.checkpoint_location import destination
from dlrover_lite.jobs.store import Job, Result
from dlrover_lite.master.checkpoints.restored_ledger import facts_for
from dlrover_lite.master.work.ledger_store import LedgerStore
from dlrover_lite.master.work.progress import Evaluations, Progress
from dlrover_lite.master.work.shard_plan import look_at_data
from dlrover_lite.master.work.shards import ShardService
from dlrover_lite.ps.journal.applied_minibatches import ALL_SLOTS
from dlrover_lite.ps.server.engine import Engine
from dlrover_lite.recipe.load import parse_recipe
from dlrover_lite.recipe.schema import Recipe
from dlrover_lite.tables.layout import BLOCK
from tests.ps.engine_checkpoints import write_checkpoint

SMALL = {
    "version": 1,
    "name": "small",
    "model": {"use": "wide_deep", "options": {"embedding_dim": 4, "hidden": [8]}},
    "data": {"format": "synthetic", "samples": 4096, "eval_samples": 256, "ids_per_field": 50},
    "training": {"batch_size": 64, "epochs": 2, "seed": 5},
}


def recipe_of(**changes: Any) -> Recipe:
    return parse_recipe(SMALL, overrides=changes)


def ended_job(recipe: Recipe, state: Any = "stopped") -> Job:
    """As one that somebody else has run and that is over."""
    job = create_job(recipe)
    record = job.record()
    gone = msgspec.structs.replace(record.launcher, pid=record.launcher.pid, started="long ago")
    job.write_record(msgspec.structs.replace(record, state="ended", launcher=gone))
    if state != "lost":
        job.write_result(Result(state, 1.0, "stopped by request"))
    return job


def cut_of(job: Job, cut: int = 1) -> Engine:
    """A cut after 3 minibatches, and the engine with what is in it."""
    from dlrover_lite.worker.parameters.dry_configuration import declare

    declared = declare(job.recipe)
    engine = Engine(owned=ALL_SLOTS)
    values = declared.flat.values.reshape(-1, BLOCK)
    parameters = declared.flat.spec.parameter_blocks
    engine.configure(declared.configuration, ALL_SLOTS, [(np.arange(parameters, dtype=np.uint64), values[:parameters])])
    for k in range(3):
        slices: list[Any] = []
        for group in engine.groups:
            ids = np.arange(parameters if group.complete else 20, dtype=np.uint64)
            counts = [len(ids)] * len(group.tables)
            grads = np.full((len(ids) * len(counts), group.dim), 0.25 + k, np.float32)
            slices.append((np.tile(ids, len(counts)), counts, grads))
        engine.push(0, k, 1.0, ALL_SLOTS, slices)
    with LedgerStore(job.directory / "ledger.sqlite") as store:
        data = look_at_data(job.recipe)
        shards = ShardService(store, data.plan, id_kinds=data.ids.kinds)
        progress = Progress(window_samples=1, max_bad_share=0, began=0.0)
        facts = facts_for(job.recipe, shards, Evaluations(), progress, now=1.0)
    where = CheckpointStore(destination(job.recipe, job.id, job.directory))
    write_checkpoint(where, cut, [engine], facts=facts, job=job.id)
    return engine
