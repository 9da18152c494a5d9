"""What can be done with a job that has ended."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import dlrover_lite
from dlrover_lite.cli.main import main
from tests.cli.documented import check

Capture = pytest.CaptureFixture[str]


def as_json(arguments: list[str], capsys: Capture) -> dict[str, Any]:
    assert main([*arguments, "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert isinstance(value, dict)
    return value


def test_run_prints_one_documented_object(trained: dict[str, Any]) -> None:
    value = {key: value for key, value in trained.items() if key != "stderr"}
    check("## run", value)
    assert (value["state"], value["ok"], value["samples"], value["total_samples"]) == ("succeeded", True, 4000, 4000)
    assert len(value["evaluations"]) >= 2
    check("### evaluations", value["evaluations"][-1])
    assert value["evaluations"][-1]["auc"] == value["auc"]
    assert value["auc"] < value["best_auc"] < 1
    assert Path(value["export"], "model.json").is_file()


def test_progress_is_plain_lines_on_stderr(trained: dict[str, Any]) -> None:
    lines = trained["stderr"].splitlines()
    assert lines[0] == "wide_deep on 4,000 samples, 1 epoch; 1 PS x 0.5, 1 worker x 0.5 cores"
    assert f"job {trained['job']}" in lines
    assert sum(line.startswith("evaluated at") for line in lines) == len(trained["evaluations"])
    assert "\x1b" not in trained["stderr"]


def test_jobs_lists_the_job_as_table_and_json(trained: dict[str, Any], capsys: Capture) -> None:
    value = as_json(["jobs"], capsys)
    check("## jobs", value)
    (mine,) = [job for job in value["jobs"] if job["id"] == trained["job"]]
    check("### jobs", mine)
    assert (mine["state"], mine["samples"], mine["auc"]) == ("succeeded", 4000, trained["auc"])
    assert mine["seconds"] == mine["ended_at"] - mine["started_at"] > 0
    assert main(["jobs"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["JOB", "STATE", "STARTED", "DURATION", "SAMPLES", "AUC"]
    assert any(trained["job"] in line and "4,000" in line for line in lines)


def test_a_job_with_damaged_files_is_listed(trained: dict[str, Any], capsys: Capture) -> None:
    directory = Path(trained["directory"]).with_name("damaged-00000000")
    directory.mkdir()
    (directory / "job.json").write_text("{")
    try:
        states = {job["id"]: job["state"] for job in as_json(["jobs"], capsys)["jobs"]}
    finally:
        (directory / "job.json").unlink()
        directory.rmdir()
    assert states[directory.name] == "unreadable"
    assert states[trained["job"]] == "succeeded"


def test_status_of_an_ended_job_as_text_and_json(trained: dict[str, Any], capsys: Capture) -> None:
    value = as_json(["status", trained["job"]], capsys)
    check("## status", value)
    for node in value["nodes"]:
        check("### nodes", node)
    assert {node["role"] for node in value["nodes"]} == {"ps", "worker"}
    check("### evaluations", value["evaluations"][0])
    assert main(["status", trained["job"]]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"{trained['job']}: succeeded\n")
    assert "4,000 of 4,000 (1 epoch)" in text and "\nlimits " in text and "worker-0" in text


def test_status_of_a_job_killed_before_it_had_nodes_is_one_line(trained: dict[str, Any], capsys: Capture) -> None:
    directory = Path(trained["directory"]).with_name("killed-00000000")
    directory.mkdir()
    shutil.copy(Path(trained["directory"]) / "job.json", directory)
    (directory / "result.json").write_text('{"state": "stopped", "ended_at": 1.0, "message": "killed by request"}')
    try:
        assert main(["status", "killed-0"]) == 0
    finally:
        shutil.rmtree(directory)
    assert capsys.readouterr().out == "killed-00000000: stopped (killed by request)\n"


@pytest.mark.parametrize("command", ["status", "logs", "stop", "evaluate", "export --to x"])
def test_an_unknown_job_is_refused_with_the_nearest_name(
    command: str, trained: dict[str, Any], capsys: Capture
) -> None:
    name, *options = command.split()
    assert main([name, trained["job"][:-1] + "_", *options]) == 1
    output = capsys.readouterr()
    assert f"the nearest: {trained['job']}" in output.err
    assert "Traceback" not in output.err and output.out == ""


def test_stopping_an_ended_job_is_no_error(trained: dict[str, Any], capsys: Capture) -> None:
    assert main(["stop", trained["job"]]) == 0
    assert capsys.readouterr().out == f"{trained['job']} has ended already (succeeded).\n"


def test_logs_are_chosen_by_role_or_node(trained: dict[str, Any], capsys: Capture) -> None:
    assert main(["logs", trained["job"]]) == 0
    everything = capsys.readouterr().out.splitlines()
    assert {line.split("|")[0].strip() for line in everything} >= {"keeper", "master"}
    assert main(["logs", trained["job"], "--role", "master"]) == 0
    masters = capsys.readouterr().out.splitlines()
    assert masters == [line for line in everything if line.startswith("master")] != []
    assert main(["logs", trained["job"], "--node", "master", "-n", "1", "-f"]) == 0
    assert capsys.readouterr().out.splitlines() == masters[-1:]
    assert any("worker-0: launched with 0.5 cores" in line for line in masters)
    assert main(["logs", trained["job"], "--role", "worker"]) == 0
    workers = capsys.readouterr().out
    assert "worker-0 is up with 0.5 cores, 1 thread: " in workers
    assert "worker-0 leaves: nothing is left to do; " in workers
    for options in ([], ["-f"]):
        assert main(["logs", trained["job"], "--node", "workr-0", *options]) == 2
        assert "Did you mean worker-0?" in capsys.readouterr().err


def test_evaluate_gives_what_training_gave(trained: dict[str, Any], capsys: Capture) -> None:
    value = as_json(["evaluate", trained["job"]], capsys)
    check("## evaluate", value)
    assert value["samples"] == 1000 and value["bad_lines"] == 0
    assert value["auc"] == pytest.approx(trained["auc"], abs=1e-6)
    assert value["loss"] == pytest.approx(trained["loss"], abs=1e-5)
    assert value["best_auc"] == trained["best_auc"]
    # What parameter servers said at the end of training, and what the exported tables say.
    assert value["unknown_ids"] == pytest.approx(trained["evaluations"][-1]["unknown_ids"])
    assert len(value["unknown_ids"]) == 26 and 0 < value["unknown_ids"]["C1"] < 1
    assert value["unusual_ids"] == {} and value["warnings"] == []
    exported = json.loads(Path(trained["export"], "model.json").read_text())
    assert exported["unknown_ids"] == pytest.approx(value["unknown_ids"])
    assert exported["id_kinds"]["C26"] == {"kind": "integer", "source": "synthetic"}


def test_export_in_both_formats_and_evaluate_on_a_file(
    trained: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["data", "synth", "more.tsv", "--samples", "300", "--ids-per-field", "200"]) == 0
    with Path("more.tsv").open("a") as file:
        file.write("not a sample\n")
    capsys.readouterr()
    of_job = as_json(["evaluate", trained["job"], "--data", "more.tsv"], capsys)
    assert (of_job["samples"], of_job["bad_lines"], of_job["best_auc"]) == (300, 1, None)
    pytest.importorskip("pyarrow")
    first = as_json(["export", trained["job"], "--to", "tables", "--format", "parquet"], capsys)
    check("## export", first)
    assert (first["directory"], first["format"], first["rows"]) == (
        str(tmp_path / "tables"),
        "parquet",
        trained["rows"],
    )
    assert list(Path("tables", "tables").glob("*.parquet"))
    of_copy = as_json(["evaluate", "tables", "--data", "more.tsv"], capsys)
    assert of_copy == {**of_job, "job": None, "model": str(tmp_path / "tables")}
    assert dlrover_lite.load_model("tables").schema.categorical[0] == "C1"
    # Not over what is there, unless asked to.
    assert main(["export", trained["job"], "--to", "tables"]) == 1
    assert "--overwrite" in capsys.readouterr().err
    assert main(["export", trained["job"], "--to", "tables", "--overwrite"]) == 0
    assert "dlrover_lite.load_model(" in capsys.readouterr().out
    assert list(Path("tables", "tables").glob("*.npz"))


def test_an_export_alone_has_no_data(trained: dict[str, Any], capsys: Capture) -> None:
    assert main(["evaluate", trained["export"]]) == 2
    assert "--data FILE" in capsys.readouterr().err
    assert main(["evaluate", "./nowhere", "--data", "x"]) == 2
    assert "no directory" in capsys.readouterr().err


def test_export_never_replaces_other_things(trained: dict[str, Any], tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "diary.txt").write_text("dear")
    assert main(["export", trained["job"], "--to", str(tmp_path), "--overwrite"]) == 1
    assert "is not an exported model" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["diary.txt"]


def test_evaluate_on_a_missing_file_does_not_blame_the_recipe(trained: dict[str, Any], capsys: Capture) -> None:
    assert main(["evaluate", trained["job"], "--data", "nope.tsv"]) == 1
    said = capsys.readouterr().err
    assert "nope.tsv: no such file" in said and "recipe" not in said
