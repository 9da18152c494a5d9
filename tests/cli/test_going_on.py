"""``run --resume``, ``run --from``, ``export --from`` and ``evaluate --from``: what is refused before anything is started, and exports of a
cut that is read straight from its files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest

from dlrover_lite.backends.local.jobs.local_jobs import create_job
from dlrover_lite.cli.main import main
from dlrover_lite.client import resuming
from dlrover_lite.core.errors import JobError
from dlrover_lite.jobs.checkpoint_location import locate
from dlrover_lite.models.serving import load_model
from tests.cli.ended_jobs import cut_of, ended_job, recipe_of


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


def refused(run: Any, *arguments: str) -> str:
    """Message and hint."""
    result = run(*arguments)
    assert result.exit_code in (1, 2), result.stdout
    return str(result.stderr)


def test_run_refuses_resume_options_that_do_not_go_together(run: Any) -> None:
    assert "choose one of them" in refused(run, "run", "--resume", "--from", "x")
    assert "nothing can be changed" in refused(run, "run", "--resume", "--set", "training.epochs=3")
    assert "--cut needs --resume or --from" in refused(run, "run", "x.yaml", "--cut", "3")
    assert "--only-parameters needs --from" in refused(run, "run", "x.yaml", "--only-parameters")
    assert "Missing argument 'RECIPE'" in refused(run, "run")


def test_jobs_that_can_not_be_resumed_are_refused(run: Any) -> None:
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
    runs = create_job(recipe)
    assert "still runs" in refused(run, "run", "--resume", runs.id)
    assert "No job is called" in refused(run, "run", "--resume", "nobody")
    off = ended_job(recipe_of(checkpoint="off"))
    assert "`checkpoint: off`" in refused(run, "run", "--resume", off.id)


def test_newest_whole_checkpoint_is_chosen_or_the_one_named(run: Any) -> None:
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


def test_a_checkpoint_is_found_by_job_or_path_and_number(run: Any) -> None:
    job = ended_job(recipe_of())
    url = str(job.directory / "checkpoints")
    for reference in (f"{job.id}:12", f"{job.id}/cut-00000012", f"{url}:12", f"{url}/cut-00000012"):
        assert (locate(reference).cut, locate(reference).store.url) == (12, url)


def test_a_recipe_that_does_not_fit_its_checkpoint_is_refused(run: Any) -> None:
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
    with pytest.raises(JobError, match="table C1 has dim 9"):
        resuming.check_fits(
            chosen, recipe_of(**{"model.options": {"embedding_dim": 8, "hidden": [8]}}), only_parameters=True
        )
    assert "data.samples" in refused(run, "run", "--from", job.id, "--set", "data.samples=8192")


def test_an_export_of_a_checkpoint_has_what_the_servers_had(run: Any, tmp_path: Path) -> None:
    job = ended_job(recipe_of(**{"export.optimizer_state": True}))
    engine = cut_of(job)
    result = run("export", "--from", f"{job.id}:1", "--to", str(tmp_path / "model"), "--json")
    assert result.exit_code == 0, result.stderr
    found = msgspec.json.decode(result.stdout)
    told = [line.partition(":")[0] for line in result.stderr.splitlines() if "100%" in line]
    assert told == ["exporting 100%", "putting files together 100%", "computing digests 100%"]
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


def test_evaluate_from_a_checkpoint(run: Any) -> None:
    job = ended_job(recipe_of())
    cut_of(job)
    result = run("evaluate", "--from", job.id, "--json")
    assert result.exit_code == 0, result.stderr
    assert msgspec.json.decode(result.stdout)["samples"] == 256
    told = [line.partition(",")[0] for line in result.stderr.splitlines() if "100%" in line]
    rows = told[-2].partition(": ")[2]
    assert told[-3:] == [
        f"looking for ids 100%: {rows}",
        f"loading 100%: {rows}",
        "evaluating 100%: 256 of 256 samples",
    ]
    assert "which model is meant" in refused(run, "evaluate", job.id, "--from", job.id)


@pytest.mark.parametrize(
    ("changes", "said", "anew"),
    [
        ({"training.batch_size": "128"}, [], 0),
        ({"training.optimizer.learning_rate": "0.5"}, ["training.optimizer.learning_rate is 0.5 instead of 0.02"], 0),
        ({"training.optimizer.use": "adam"}, ["training.embedding_optimizer.use is adam instead of adagrad"], 2),
        ({"training.embedding_optimizer.use": "ftrl"}, ["training.embedding_optimizer.use is ftrl"], 1),
        ({"training.seed": "7"}, ["training.seed is 7 instead of 5"], 0),
    ],
)
def test_differences_to_the_checkpoints_recipe_are_named(
    run: Any, monkeypatch: pytest.MonkeyPatch, changes: dict[str, str], said: list[str], anew: int
) -> None:
    """What differs is said, and which state doesn't fit; without --only-parameters it is refused, with that as the way out."""
    from dlrover_lite.client import handle

    begun: list[Any] = []

    def launch(recipe: Any, *, beginning: Any, **__: Any) -> None:
        begun.append((recipe, beginning))
        raise JobError("it was to be started")

    monkeypatch.setattr(handle, "launch", launch)
    job = ended_job(recipe_of())
    cut_of(job)
    settings = [word for name, value in changes.items() for word in ("--set", f"{name}={value}")]
    assert "--only-parameters" in refused(run, "run", "--from", job.id, *settings)
    assert not begun
    text = refused(run, "run", "--from", job.id, "--only-parameters", *settings)
    ((_, beginning),) = begun
    assert beginning.only_parameters and beginning.cut == 1
    assert all(line in text for line in said)
    assert text.count("begins anew") == anew
    assert "counts of updates" not in text


@pytest.mark.parametrize("option", [[], ["--only-parameters"]])
@pytest.mark.parametrize("before", ["yes", "no"])
def test_update_counts_that_begin_at_0_are_reported(
    run: Any, monkeypatch: pytest.MonkeyPatch, option: list[str], before: str
) -> None:
    """Where the job is to export counts of updates, and the checkpoint has none."""
    from dlrover_lite.client import handle

    def launch(*_: Any, **__: Any) -> None:
        raise JobError("it was to be started")

    monkeypatch.setattr(handle, "launch", launch)
    job = ended_job(recipe_of(**{"export.optimizer_state": before}))
    cut_of(job)
    text = refused(run, "run", "--from", job.id, *option, "--set", "export.optimizer_state=yes")
    assert "it was to be started" in text
    assert ("  counts of updates of embeddings begin at 0\n" in text) == (before == "no")
