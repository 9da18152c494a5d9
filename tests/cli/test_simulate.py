"""``simulate``: traces are printed and run, policies compared, and mistakes named without a traceback."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dlrover_lite.cli import main as frame
from dlrover_lite.cli.commands import simulate as command
from dlrover_lite.simulation.policies.choose import POLICIES
from dlrover_lite.simulation.traces.files import parse_trace
from dlrover_lite.simulation.traces.generator import generate
from tests.cli.documented import check

TRACE = """name,arrives_at,workers,worker_cores,worker_memory,servers,server_cores,server_memory,samples,worker_seconds,tables
ads,0,2,2,2GiB,1,1,4GiB,2e7,0.02,26x100000:8
feed,60,2,1,2GiB,1,1,4GiB,1e7,0.02,26x100000:8
full,90,1,1,2GiB,1,1,64MiB,4e7,0.02,26x1000000:16
"""
CLUSTER = "machines:\n  - {count: 2, cores: 4, memory: 16GiB}\n"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DLROVER_LITE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    Path("trace.csv").write_text(TRACE)
    Path("cluster.yaml").write_text(CLUSTER)


def run(*arguments: str) -> int:
    return frame.main(["simulate", *arguments])


def test_a_generated_trace_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--generate", "5") == 0
    assert parse_trace(capsys.readouterr().out) == generate(5)


def test_a_trace_is_run_and_told_as_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("trace.csv", "--cluster", "cluster.yaml") == 0
    output = capsys.readouterr()
    header, line, _, *curves = output.out.splitlines()
    assert header.split()[:2] == ["POLICY", "ENDED"] and line.split()[:2] == ["manual", "66.7%"]
    assert line.split()[-1].startswith("$0.")
    assert [curve.split()[:3] for curve in curves] == [["manual", "cores", "given"], ["manual", "cores", "used"]]


def test_policies_are_compared_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = (
        "trace.csv",
        "--cluster",
        "cluster.yaml",
        "--policy",
        "manual",
        "--policy",
        "es",
        "--seed",
        "1",
        "--seed",
        "2",
        "--json",
    )
    assert run(*arguments) == 0
    first = capsys.readouterr().out
    found = json.loads(first)
    assert [(one["policy"], one["seed"]) for one in found["runs"]] == [
        ("manual", 1),
        ("manual", 2),
        ("es", 1),
        ("es", 2),
    ]
    (comparison,) = found["comparisons"]
    assert (comparison["policy"], comparison["base"], comparison["seeds"]) == ("es", "manual", 2)
    assert comparison["mean_time"]["lower"] <= comparison["mean_time"]["value"] <= comparison["mean_time"]["upper"]
    check("## simulate", found)
    check("### runs", found["runs"][0])
    check("### metrics", found["runs"][0]["metrics"])
    check("### comparisons", comparison)
    assert run(*arguments) == 0
    assert capsys.readouterr().out == first


def test_jobs_that_have_not_ended_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("trace.csv", "--cluster", "cluster.yaml", "--hours", "0.02") == 0
    assert "manual: 3 of 3 jobs hadn't ended by then" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "Missing argument 'TRACE'. `--generate 1 > trace.csv` writes one."),
        (["none.csv"], "none.csv: no such file"),
        (["cluster.yaml"], "cluster.yaml:1: machines:: unknown column; leave it out, or rename it"),
        (["trace.csv", "--cluster", "trace.csv"], "trace.csv:1: expected a section with machines; found the text"),
        (["trace.csv", "--cluster", "none.yaml"], "none.yaml: no such file"),
        (["trace.csv", "--record", "day.gz"], "--policy dlrover, and at most one --seed"),
        (["trace.csv", "--policy", "pollux"], "'pollux' is not one of 'manual', 'es', 'optimus', 'tuned', 'dlrover'"),
        (["trace.csv", "--hours", "nan"], "is not a number"),
        (["trace.csv", "--generate", "1"], "--generate prints a trace, and runs none"),
        (["trace.csv", "--plots", "trace.csv"], "trace.csv is a file; plots go to a directory"),
    ],
)  # fmt: skip
def test_mistakes_are_named(
    arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from dlrover_lite.simulation.outcomes import plots

    monkeypatch.setattr(plots, "find_spec", lambda name: object())
    assert run(*arguments) == 2
    output = capsys.readouterr()
    assert expected in output.err and "Traceback" not in output.err and output.out == ""


def test_policies_to_choose_from_are_those_that_there_are() -> None:
    assert (*POLICIES, "dlrover") == command.POLICIES


def test_a_run_with_the_brain_is_recorded_and_can_be_played(capsys: pytest.CaptureFixture[str]) -> None:
    Path("one.csv").write_text("\n".join(TRACE.splitlines()[:2]) + "\n")
    arguments = ("one.csv", "--cluster", "cluster.yaml", "--policy", "dlrover", "--hours", "0.02", "--record", "day.gz")
    assert run(*arguments) == 0
    assert "tui --replay day.gz" in capsys.readouterr().err
    assert frame.main(["tui", "--replay", "day.gz", "--once"]) == 0
    shown = capsys.readouterr().out
    assert "brain simulated" in shown and "job-00000" in shown
    assert run(*arguments) == 1
    assert "is there already" in capsys.readouterr().err
    assert run("none.csv", *arguments[1:-1], "new.gz") != 0
    assert not Path("new.gz").exists()  # a run that breaks off leaves none


def test_the_brain_decides_for_a_trace_as_any_policy_does(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("trace.csv", "--policy", "manual", "--policy", "dlrover", "--hours", "0.1") == 0
    output = capsys.readouterr().out
    assert [line.split()[0] for line in output.splitlines() if line.startswith(("manual ", "dlrover "))][:2] == [
        "manual",
        "dlrover",
    ]
