"""``run --resume``, ``run --from``, ``export --from`` and ``evaluate --from``: what is refused before anything is started, and exports of a
cut that is read straight from its files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest

from dlrover_lite.checkpoint.locate import destination, locate
from dlrover_lite.checkpoint.store import CheckpointStore
from dlrover_lite.cli.main import main
from dlrover_lite.errors import JobError
from dlrover_lite.jobs import resuming
from dlrover_lite.jobs.store import Job, Result, create_job
from dlrover_lite.master.ledger_store import LedgerStore
from dlrover_lite.master.progress import Evaluations, Progress
from dlrover_lite.master.recovery import facts_for
from dlrover_lite.master.shard_plan import shard_plan
from dlrover_lite.master.shards import ShardService
from dlrover_lite.models.serving import load_model
from dlrover_lite.ps.engine import Engine
from dlrover_lite.ps.layout import BLOCK
from dlrover_lite.ps.marks import ALL_SLOTS
from dlrover_lite.recipe.load import parse_recipe, resolved_yaml
from dlrover_lite.recipe.schema import Recipe
from tests.ps.engine_cuts import write_cut

SMALL = {
    "version": 1,
    "name": "small",
    "model": {"use": "wide_deep", "options": {"embedding_dim": 4, "hidden": [8]}},
    "data": {"format": "synthetic", "samples": 4096, "eval_samples": 256, "ids_per_field": 50},
    "training": {"batch_size": 64, "epochs": 2, "seed": 5},
}


class Ran(NamedTuple):
    exit_code: int
    stdout: str
    stderr: str


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    monkeypatch.setenv("DLROVER_LITE_HOME", str(tmp_path / "home"))

    def run(*arguments: str) -> Ran:
        code = main(list(arguments))
        return Ran(code, *capsys.readouterr())

    return run


def recipe_of(**changes: Any) -> Recipe:
    return parse_recipe(SMALL, overrides=changes)


def ended_job(recipe: Recipe, state: Any = "stopped") -> Job:
    """As one that somebody else has run and that is over."""
    job = create_job(recipe, resolved_yaml(recipe))
    record = job.record()
    gone = msgspec.structs.replace(record.launcher, pid=record.launcher.pid, started="long ago")
    job.write_record(msgspec.structs.replace(record, state="ended", launcher=gone))
    if state != "lost":
        job.write_result(Result(state, 1.0, "stopped by request"))
    return job


def cut_of(job: Job, cut: int = 1) -> Engine:
    """A cut after 3 minibatches, and the engine with what is in it."""
    from dlrover_lite.worker.declared import declare

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
        shards = ShardService(store, shard_plan(job.recipe))
        progress = Progress(window_samples=1, max_bad_share=0, began=0.0)
        facts = facts_for(job.recipe, shards, Evaluations(), progress, now=1.0)
    where = CheckpointStore(destination(job.recipe, job.id, job.directory))
    write_cut(where, cut, [engine], facts=facts, job=job.id)
    return engine


def refused(run: Any, *arguments: str) -> str:
    """Message and hint."""
    result = run(*arguments)
    assert result.exit_code in (1, 2), result.stdout
    return str(result.stderr)


def test_options_that_do_not_go_together(run: Any) -> None:
    assert "choose one of them" in refused(run, "run", "--resume", "--from", "x")
    assert "nothing can be changed" in refused(run, "run", "--resume", "--set", "training.epochs=3")
    assert "--cut needs --resume or --from" in refused(run, "run", "x.yaml", "--cut", "3")
    assert "--only-parameters needs --from" in refused(run, "run", "x.yaml", "--only-parameters")
    assert "Missing argument 'RECIPE'" in refused(run, "run")


def test_jobs_that_can_not_go_on(run: Any) -> None:
    recipe = recipe_of()
    nothing = ended_job(recipe)
    text = refused(run, "run", "--resume", nothing.id)
    assert f"There are no checkpoints of {nothing.id}" in text
    assert "To train it again: dlrover-lite run" in text
    done = ended_job(recipe, "succeeded")
    said = refused(run, "run", "--resume", done.id)
    assert "nothing left to do" in said
    assert ("run --from" in said) == bool(list(done.directory.glob("checkpoints/*/manifest.json"))), (
        "no advice that can't work"
    )
    runs = create_job(recipe, resolved_yaml(recipe))
    assert "still runs" in refused(run, "run", "--resume", runs.id)
    assert "No job is called" in refused(run, "run", "--resume", "nobody")
    off = ended_job(recipe_of(checkpoint="off"))
    assert "`checkpoint: off`" in refused(run, "run", "--resume", off.id)


def test_the_newest_whole_checkpoint_is_chosen_and_another_on_demand(run: Any) -> None:
    job = ended_job(recipe_of())
    for cut in (1, 2, 3):
        cut_of(job, cut)
    (part,) = (job.directory / "checkpoints" / "cut-00000003").glob("*.part")
    part.unlink()
    chosen = resuming.chosen_for(job)
    assert (chosen.manifest.cut, chosen.exactly) == (2, False)
    assert [line.partition(":")[0] for line in chosen.passed_over] == ["checkpoint 3"]
    assert resuming.chosen_for(job, 1).exactly
    assert "There are: 1, 2, 3" in refused(run, "run", "--resume", job.id, "--cut", "7")
    assert part.name in refused(run, "run", "--resume", job.id, "--cut", "3")
    for cut in (1, 2):
        next((job.directory / "checkpoints" / f"cut-0000000{cut}").glob("*.part")).unlink()
    text = refused(run, "run", "--resume", job.id)
    assert all(f"checkpoint {cut}: " in text for cut in (1, 2, 3))


def test_where_a_checkpoint_is(run: Any) -> None:
    job = ended_job(recipe_of())
    url = str(job.directory / "checkpoints")
    for reference in (f"{job.id}:12", f"{job.id}/cut-00000012", f"{url}:12", f"{url}/cut-00000012"):
        assert (locate(reference).cut, locate(reference).store.url) == (12, url)


def test_a_recipe_that_does_not_fit(run: Any) -> None:
    job = ended_job(recipe_of())
    cut_of(job)
    chosen = resuming.choose(locate(job.id))
    fits = {"resources.ps": {"count": 3, "cores": 1, "memory": "1GiB"}, "training.epochs": 5, "export.format": "none"}
    resuming.check_fits(chosen, recipe_of(**fits), only_parameters=False)
    for changes, what in (
        ({"training.batch_size": 128}, "128 samples a minibatch instead of 64"),
        ({"data.samples": 8192}, "data.samples is 8192 instead of 4096"),
        ({"training.shuffle": False}, "training.shuffle is False instead of True"),
        ({"training.seed": 6}, "training.seed is 6 instead of 5"),
        ({"training.optimizer": {"use": "adam"}}, "training.optimizer.use is adam instead of adagrad"),
        ({"model.options": {"embedding_dim": 8, "hidden": [8]}}, "table C1 has dim 9 and init_scale 0.05 instead of 5"),
        ({"model.options": {"embedding_dim": 4, "hidden": [4096]}}, "blocks of parameters"),
    ):
        with pytest.raises(JobError) as raised:
            resuming.check_fits(chosen, recipe_of(**changes), only_parameters=False)
        assert what in str(raised.value)
    resuming.check_fits(chosen, recipe_of(**{"data.samples": 8192}), only_parameters=True)
    assert "data.samples" in refused(run, "run", "--from", job.id, "--set", "data.samples=8192")


def test_an_export_of_a_checkpoint_has_what_the_servers_had(run: Any, tmp_path: Path) -> None:
    job = ended_job(recipe_of(**{"export.optimizer_state": True}))
    engine = cut_of(job)
    result = run("export", "--from", f"{job.id}:1", "--to", str(tmp_path / "model"), "--json")
    assert result.exit_code == 0, result.stderr
    found = msgspec.json.decode(result.stdout)
    assert (found["job"], found["rows"]) == (job.id, sum(group.rows for group in engine.groups if not group.complete))
    model = load_model(tmp_path / "model")
    assert model is not None
    from safetensors.numpy import load_file

    dense = load_file(tmp_path / "model" / "dense.safetensors")
    (blocks,) = [group for group in engine.groups if group.complete]
    rows, _ = blocks.scan(0, blocks.used)
    flat = rows.values[np.argsort(rows.ids)].reshape(-1)
    values = np.concatenate([tensor.reshape(-1) for tensor in dense.values()])
    assert np.isin(values, flat).all()


def test_a_checkpoint_is_evaluated(run: Any) -> None:
    job = ended_job(recipe_of())
    cut_of(job)
    result = run("evaluate", "--from", job.id, "--json")
    assert result.exit_code == 0, result.stderr
    assert msgspec.json.decode(result.stdout)["samples"] == 256
    assert "which model is meant" in refused(run, "evaluate", job.id, "--from", job.id)
