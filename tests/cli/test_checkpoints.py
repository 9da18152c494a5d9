"""``checkpoints`` and ``checkpoint verify``: of jobs whose directories are made here, without any process."""

from __future__ import annotations

import json
from pathlib import Path

import fsspec
import msgspec
import pytest

from dlrover_lite.backends.local.jobs.local_jobs import create_job
from dlrover_lite.checkpoint.layout import ALIGNMENT
from dlrover_lite.cli.main import main
from dlrover_lite.jobs.checkpoint_location import locate, store_of
from dlrover_lite.jobs.final_status import starting
from dlrover_lite.jobs.store import Job
from dlrover_lite.protocol.questions import CheckpointsStatus, CheckpointStall, to_builtins
from dlrover_lite.recipe.load import parse_recipe
from tests.checkpoint.cuts import keys, write_cut
from tests.cli import documented

Capture = pytest.CaptureFixture[str]
RECIPE = "version: 1\nname: job\nmodel: dcn\ndata: {format: synthetic, samples: 1000}\n"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DLROVER_LITE_HOME", str(tmp_path / "home"))


def job_with_cuts(more: str = "") -> Job:
    """A base of 60 rows, and 10 of them changed."""
    recipe = parse_recipe(RECIPE + more)
    job = create_job(recipe)
    store = store_of(job)
    store.create()
    write_cut(store, 1, dict.fromkeys(keys(60), 1))
    write_cut(store, 2, dict.fromkeys(keys(10), 2), builds_on=1, at=1e9 + 600)
    return job


def part_of(job: Job, cut: int) -> Path:
    return sorted((job.directory / "checkpoints" / f"cut-{cut:08}").glob("*.part"))[0]


def test_checkpoints_lists_cuts_with_size_and_state(capsys: Capture) -> None:
    job = job_with_cuts()
    assert main(["checkpoints"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["CHECKPOINT", "TAKEN", "BUILDS", "ON", "SAMPLES", "ROWS", "SIZE", "STATE"]
    assert [(line[0], line[3], line[4], line[5], line[-1]) for line in lines[1:]] == [
        ("1", "-", "1,000", "60", "complete"),
        ("2", "1", "2,000", "10", "complete"),
    ]
    assert main(["checkpoints", job.id, "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    documented.check("## checkpoints", value)
    documented.check("### a checkpoint", value["checkpoints"][0])
    assert (value["job"], value["url"]) == (job.id, str(job.directory / "checkpoints"))
    assert [one["taken_at"] for one in value["checkpoints"]] == [1e9, 1e9 + 600]


def test_checkpoints_lists_how_long_each_held_training_up(capsys: Capture) -> None:
    job = job_with_cuts()
    stalls = CheckpointsStatus(stalls=[CheckpointStall(2, 1.25, 0.0142, 0.011)])
    job.write_status(to_builtins(msgspec.structs.replace(starting(job), checkpoints=stalls)))
    assert main(["checkpoints"]) == 0
    head, first, second = capsys.readouterr().out.splitlines()
    assert head.split()[-4:] == ["TOOK", "HELD", "UP", "STATE"]
    assert first.split()[-3:] == ["-", "-", "complete"]
    assert second.split()[-5:] == ["1.2", "s", "14", "ms", "complete"]
    assert main(["checkpoints", "--json"]) == 0
    one, two = json.loads(capsys.readouterr().out)["checkpoints"]
    names = ("seconds", "stall_seconds", "usual_stall_seconds")
    assert [one[name] for name in names] == [None] * 3
    assert [two[name] for name in names] == [1.25, 0.0142, 0.011]


def test_verify_reports_whole_checkpoints(capsys: Capture) -> None:
    job = job_with_cuts()
    assert main(["checkpoint", "verify"]) == 0
    assert capsys.readouterr().out.splitlines() == ["checkpoint 1: whole", "checkpoint 2: whole"]
    assert main(["checkpoint", "verify", job.id, "--cut", "2", "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    documented.check("## checkpoint verify", value)
    assert value["whole"]
    assert value["checkpoints"] == [{"number": 2, "whole": True, "problems": []}]
    single = job.directory / "checkpoints" / "cut-00000001"
    assert main(["checkpoint", "verify", str(single)]) == 0
    assert capsys.readouterr().out.splitlines() == ["checkpoint 1: whole"]


def test_verify_names_the_damaged_block_of_a_checkpoint(capsys: Capture) -> None:
    job = job_with_cuts()
    path = part_of(job, 2)
    data = bytearray(path.read_bytes())
    data[ALIGNMENT + 300] ^= 1  # the head ends there
    path.write_bytes(data)
    assert main(["checkpoint", "verify"]) == 1
    out = capsys.readouterr().out.splitlines()
    assert out[:2] == ["checkpoint 1: whole", "checkpoint 2:"]
    assert out[2].startswith(f"  {path} is damaged: block ")
    assert main(["checkpoint", "verify", "--json"]) == 1
    value = json.loads(capsys.readouterr().out)
    documented.check("### checked", value["checkpoints"][1])
    assert value["checkpoints"][1]["problems"][0]["file"] == str(path)
    assert main(["checkpoint", "verify", "--cut", "1"]) == 0


def test_checkpoint_on_a_damaged_base_is_damaged_too(capsys: Capture) -> None:
    job = job_with_cuts()
    path = part_of(job, 1)
    path.unlink()
    assert main(["checkpoints"]) == 0
    out, said = capsys.readouterr()
    assert [line.split()[-1] for line in out.splitlines()[1:]] == ["damaged", "damaged"]
    assert f"checkpoint 2: it builds on checkpoint 1, which is damaged: {path} is damaged: it is missing" in said
    assert main(["checkpoint", "verify", "--cut", "2"]) == 1
    assert f"{path} is damaged: it is missing" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["--cut", "7"], ["no-such-job"], ["gopher://hole/job"], ["./nowhere"]])
def test_verify_refuses_unknown_cuts_jobs_and_places(arguments: list[str], capsys: Capture) -> None:
    job_with_cuts()
    assert main(["checkpoint", "verify", *arguments]) == 2
    assert capsys.readouterr().out == ""


def test_checkpoints_of_a_job_without_any_says_why(capsys: Capture) -> None:
    text = RECIPE + "checkpoint: off\n"
    job = create_job(parse_recipe(text))
    assert main(["checkpoints"]) == 0
    assert capsys.readouterr().err == f"There are no checkpoints of {job.id}. Its recipe says `checkpoint: off`.\n"
    assert main(["checkpoints", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["checkpoints"] == []
    assert main(["checkpoint", "verify"]) == 2


def test_checkpoints_in_destinations_of_the_recipe_are_found(tmp_path: Path, capsys: Capture) -> None:
    job = job_with_cuts(f"directory: {tmp_path}\ncheckpoint: {{directory: kept}}\n")
    assert store_of(job).url == str(tmp_path / "kept" / job.id)
    assert locate(str(tmp_path / "kept" / job.id / "cut-00000002")).cut == 2
    job = job_with_cuts("checkpoint: {directory: 'memory://bucket/all/'}\n")
    url = f"memory://bucket/all/{job.id}"
    assert main(["checkpoint", "verify", f"{url}/cut-00000002"]) == 0
    assert capsys.readouterr().out.splitlines() == ["checkpoint 2: whole"]
    assert main(["checkpoints", url, "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert (value["job"], value["url"], len(value["checkpoints"])) == (None, url, 2)
    fsspec.filesystem("memory").store.clear()
