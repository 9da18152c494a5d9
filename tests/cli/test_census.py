"""``census check``: of jobs whose directories are made here, without any process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dlrover_lite.backends.local.jobs.local_jobs import create_job
from dlrover_lite.cli.main import main
from dlrover_lite.client.census import check
from dlrover_lite.jobs.store import Job, Result
from dlrover_lite.recipe.load import parse_recipe, resolved_yaml
from dlrover_lite.recipe.schema import Recipe
from tests.cli import documented
from tests.models.simulated_census import SAMPLES, Fault, SimulatedCensus, census_recipe

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DLROVER_LITE_HOME", str(tmp_path / "home"))


def finished(recipe: Recipe, *faults: Fault, state: str = "succeeded") -> Job:
    job = create_job(recipe)
    export = None
    if state == "succeeded" and recipe.model.use == "census" and recipe.export.format != "none":
        export = str(SimulatedCensus(recipe, *faults).export(job.export))
    job.write_result(Result(state, 0.0, export=export))  # type: ignore[arg-type]
    return job


def as_json(job: Job, code: int, capsys: Capture) -> dict[str, Any]:
    assert main(["census", "check", job.id, "--json"]) == code
    value = json.loads(capsys.readouterr().out)
    assert isinstance(value, dict)
    return value


def test_census_check_passes_an_exact_census(capsys: Capture) -> None:
    job = finished(census_recipe())
    assert main(["census", "check"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{job.id}: 64 samples, 2 epochs of 8 minibatches"
    assert lines[2].split() == ["TABLE", "KEYS", "UPDATES", "MISSING", "EXTRA", "WRONG"]
    assert lines[3].split() == ["sample", "64", "2", "0", "0", "0"]
    assert lines[-1] == "Exact: every sample of every epoch has been applied once."
    value = as_json(job, 0, capsys)
    documented.check("## census check", value)
    documented.check("### counts", value["tables"][0])
    assert (value["exact"], value["errors"], value["examples"]) == (True, 0, [])
    assert check(job).exact


def test_census_check_fails_a_wrong_census(capsys: Capture) -> None:
    job = finished(census_recipe(), Fault("sample", 11, 1, 0), Fault("everyone", 0, 0, 2))
    assert main(["census", "check", job.id]) == 1
    text = capsys.readouterr().out
    assert "Wrong: 2 keys aren't as they must be." in text
    assert "1 update instead of 2; value 0 is" in text and "17 updates instead of 16; value 0 is" in text
    value = as_json(job, 1, capsys)
    assert (value["exact"], value["errors"], len(value["examples"])) == (False, 2, 2)
    documented.check("### wrong keys", value["examples"][0])
    assert check(job).errors == 2


def test_census_check_lists_missing_and_unexpected_keys(capsys: Capture) -> None:
    job = finished(census_recipe())
    census = SimulatedCensus(job.recipe)
    rows = census.tables["sample"]
    gone = int(rows.ids[0])
    rows.ids[0] = SAMPLES + 5
    census.export(job.export)
    assert main(["census", "check"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2].split(maxsplit=2) == ["sample", str(SAMPLES + 5), "not expected; 2 updates found"]
    assert lines[-1].split(maxsplit=2) == ["sample", str(gone), "missing; 2 updates expected"]


def test_jobs_that_cannot_be_checked_say_what_to_do(capsys: Capture) -> None:
    def refused(job: str) -> str:
        assert main(["census", "check", job]) == 2
        output = capsys.readouterr()
        assert output.out == ""
        return output.err

    assert "There are no jobs" in refused("last")
    other = parse_recipe("version: 1\nname: other\nmodel: dcn\ndata: {format: synthetic, samples: 9}\n")
    assert "its model is dcn.\nRun one: dlrover-lite run recipes/census.yaml" in refused(finished(other).id)
    assert "it has failed" in refused(finished(census_recipe(), state="failed").id)
    assert "was stopped before its end" in refused(finished(census_recipe(), state="stopped").id)
    running = create_job(census_recipe())  # by this process, which runs
    assert f"dlrover-lite status {running.id}" in refused(running.id)
    plain = parse_recipe(resolved_yaml(census_recipe()), overrides={"export.optimizer_state": "no"})
    assert "Run it again with --set export.optimizer_state=yes" in refused(finished(plain).id)
    nothing = parse_recipe(resolved_yaml(census_recipe()), overrides={"export.format": "none"})
    assert "--set export.format=npz" in refused(finished(nothing).id)
    job = finished(census_recipe())
    (job.export / "tables" / "sample.npz").write_bytes(b"x")
    assert "sample.npz" in refused(job.id)
    (job.export / "model.json").unlink()
    assert "is gone" in refused(job.id)


def test_a_census_is_checked_and_not_evaluated(capsys: Capture) -> None:
    job = finished(census_recipe())
    assert main(["evaluate", job.id]) == 2
    assert f"dlrover-lite census check {job.id}" in capsys.readouterr().err
    assert main(["evaluate", str(job.export), "--data", "x"]) == 2
    assert "holds a census" in capsys.readouterr().err


def test_a_census_can_be_exported_in_another_format(tmp_path: Path, capsys: Capture) -> None:
    job = finished(census_recipe("adam"))
    assert main(["export", job.id, "--to", str(tmp_path / "copy"), "--format", "parquet"]) == 0
    assert (tmp_path / "copy" / "dense_blocks.parquet").is_file()


def test_census_check_finds_a_job_that_was_moved(tmp_path: Path) -> None:
    job = finished(census_recipe())
    moved = Job(job.directory.rename(tmp_path / "census-elsewhere"))
    assert check(moved).exact


def test_examples_of_infinite_or_missing_values_are_shown(capsys: Capture) -> None:
    job = finished(census_recipe())
    census = SimulatedCensus(job.recipe)
    census.tables["sample"].vectors[0, 1] = np.nan
    census.export(job.export)
    assert main(["census", "check"]) == 1
    assert "value 1 is nan instead of" in capsys.readouterr().out
    assert as_json(job, 1, capsys)["examples"][0]["found"] is None
