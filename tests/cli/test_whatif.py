"""``whatif``: of a job that the history has, against docs/json.md; and each error."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dlrover_lite.brain.planning.plan_grid import Candidate
from dlrover_lite.brain.store.records import JobEntry
from dlrover_lite.brain_server.files import BrainFiles
from dlrover_lite.cli.main import main
from dlrover_lite.core.units import GIB, MIB
from dlrover_lite.protocol.outcomes import JobOutcome
from dlrover_lite.protocol.records import PlanRecord
from tests.brain.advised import FEATURES, Office, demand, plan_of
from tests.cli.documented import check

Capture = pytest.CaptureFixture[str]
JOB, YOUNG, GONE, BARE = "ads-1", "young-1", "gone-1", "bare-1"
FEATURES_KEPT: dict[str, Any] = {**msgspec.to_builtins(FEATURES), "demand": msgspec.to_builtins(demand())}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DLROVER_LITE_HOME", str(tmp_path / "home"))


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with a job that has ended, of which two plans were measured; and three of which nothing is known."""
    office = Office(tmp_path_factory.mktemp("history"))
    office.arrives(JOB)
    job = office.begins(JOB, plan=Candidate(1, 1, 1.0, 0.5))
    for plan in (job.plan, Candidate(2, 1, 1.0, 0.5)):
        job.plan = plan
        office.store.add_plan(PlanRecord(job=JOB, at=job.at, kind="granted", plan=plan_of(job)))
        office.trains(JOB, windows=3)
    outcome = JobOutcome(peak_memory={"worker": 400 * MIB})
    common: dict[str, Any] = {"created_at": 1e9, "features": FEATURES_KEPT}
    ended: dict[str, Any] = {"state": "succeeded", "ended_at": job.at, "samples": int(job.samples), "outcome": outcome}
    office.store.put_job(JobEntry(id=JOB, name="ads", **{**common, **ended}))
    office.store.put_job(JobEntry(id=YOUNG, name="young", state="queued", source="elsewhere", **common))
    office.store.put_job(JobEntry(id=GONE, name="gone", state="failed", ended_at=1e9, **common))
    office.store.put_job(JobEntry(id=BARE, name="bare", state="failed", created_at=1e9, ended_at=1e9))
    office.store.commit()
    office.close()
    return office.path


@pytest.fixture
def kept(history: Path) -> None:
    files = BrainFiles()
    files.make()
    shutil.copyfile(history, files.database)


def test_whatif_shows_plans_beside_the_one_that_the_job_had(kept: None, capsys: Capture) -> None:
    assert main(["whatif", "ads", "--workers", "4,8", "--ps", "2", "--plan", "40x1+2x1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert (
        lines[0]
        == f"{JOB} ran last with 2x1+1x0.5 (workers x cores + ps x cores); times and costs are those of 40,000,000 samples."
    )
    assert lines[1].startswith("By the job's own costs, from 6 intervals of 2 plans, which the model is within ")
    assert lines[3].split()[:3] == ["PLAN", "SAMPLES/S", "TO"]
    assert lines[4].startswith("=  2x1+1x0.5 ") and lines[5].startswith("   4x1+2x0.5 ")
    assert lines[6].startswith("   8x1+2x0.5 ") and lines[7].startswith("   40x1+2x1 ")
    notes = {line.partition(":")[0]: line for line in lines[9:]}
    assert list(notes) == ["2x1+1x0.5", "4x1+2x0.5", "8x1+2x0.5", "40x1+2x1"]
    assert "it was measured" in notes["2x1+1x0.5"]
    assert "8 workers is four times the most that was measured (2), 2 parameter servers is twice" in notes["8x1+2x0.5"]
    assert ": the band is wide for that" in notes["8x1+2x0.5"]
    assert "the job can't have it: it needs 42 cores, and the job may have 8 cores" in notes["40x1+2x1"]


def test_whatif_as_json(kept: None, capsys: Capture) -> None:
    options = [
        "--plan",
        "4+2",
        "--ps-memory",
        "4GiB",
        "--samples",
        "1000000",
        "--price-core",
        "0.05",
        "--price-gib",
        "0.01",
    ]
    assert main(["whatif", JOB, *options, "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    check("## whatif", value)
    check("### what it rests on", value["measured"])
    (asked,) = value["plans"]
    for one in (value["present"], asked):
        check("### a forecast", one)
        for name in ("samples_per_second", "seconds", "core_hours", "gib_hours", "money"):
            assert 0 < one[name]["lower"] <= one[name]["expected"] <= one[name]["upper"], name
        costs = 0.05 * one["core_hours"]["expected"] + 0.01 * one["gib_hours"]["expected"]
        assert one["money"]["expected"] == pytest.approx(costs)
    assert (value["runs"], value["samples"], value["whole"]) == (False, 1e6, True)
    assert (value["present"]["measured"], value["present"]["saves_seconds"]) == (True, None)
    assert asked["plan"]["worker"]["count"] == 4 and asked["plan"]["worker"]["each"]["cores"] == 1.0
    assert asked["plan"]["ps"] == {"count": 2, "each": {"cores": 0.5, "memory": 4 * GIB}}
    assert asked["worker_memory"]["expected"] == 400 * MIB
    assert not asked["measured"] and asked["saves_seconds"]["expected"] > 0
    assert asked["beyond"] == [
        {"axis": "workers", "asked": 4, "least": 1.0, "most": 2.0},
        {"axis": "ps", "asked": 2, "least": 1.0, "most": 1.0},
    ]
    assert len(asked["notes"]) >= 3


def test_more_samples_take_more_time_and_are_as_fast(kept: None, capsys: Capture) -> None:

    found = []
    for samples in ("1000000", "3,000,000"):
        assert main(["whatif", JOB, "--workers", "4", "--samples", samples, "--json"]) == 0
        found.append(json.loads(capsys.readouterr().out)["plans"][0])
    assert found[1]["seconds"]["expected"] == pytest.approx(3 * found[0]["seconds"]["expected"])
    assert found[1]["samples_per_second"] == found[0]["samples_per_second"]


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["ads-9", "--workers", "2"], 1, "The history knows no job 'ads-9'"),
        ([YOUNG, "--workers", "2"], 1, "Nothing was measured of young-1 so far"),
        ([GONE, "--workers", "2"], 1, "Nothing that was measured of gone-1 is kept"),
        ([BARE, "--workers", "2"], 1, "What bare-1 asked for isn't kept"),
        ([JOB], 2, "No plan is asked about"),
        ([JOB, "--workers", "0"], 2, "--workers: '0' is no number of nodes"),
        ([JOB, "--workers", "2,x"], 2, "--workers: 'x' is no number of nodes"),
        ([JOB, "--ps", "5000"], 2, "--ps: '5000' is no number of nodes"),
        ([JOB, "--worker-cores", "nan"], 2, "--worker-cores: 'nan' is no number of cores"),
        ([JOB, "--plan", "8x1"], 2, "--plan: '8x1' is no plan"),
        ([JOB, "--plan", "8x0+1"], 2, "--plan: '0' is no number of cores"),
        ([JOB, "--workers", "2", "--ps-memory", "1MiB"], 2, "--ps-memory 1MiB: a node can have"),
        ([JOB, "--workers", "2", "--worker-memory", "much"], 2, "--worker-memory: 'much' is not an amount of memory"),
        ([JOB, "--workers", "2", "--samples", "-3"], 2, "--samples: '-3' is no number of samples"),
        ([JOB, "--workers", ",".join(map(str, range(1, 40))), "--ps", "1,2"], 2, "These lists make 78 plans"),
    ],
)
def test_whatif_refuses_what_can_not_be_asked(
    kept: None, capsys: Capture, arguments: list[str], code: int, says: str
) -> None:
    assert main(["whatif", *arguments]) == code
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith(f"Error: {says}")
    assert len(said.err.splitlines()) == 2, "what to do next is said"


def test_whatif_without_a_brain_or_any_history_says_so(capsys: Capture) -> None:
    assert main(["whatif", JOB, "--workers", "2"]) == 1
    assert "There is no history yet." in capsys.readouterr().err
    files = BrainFiles()
    files.make()
    files.database.write_bytes(b"no database at all" * 100)
    assert main(["whatif", JOB, "--workers", "2"]) == 1
    assert "Error: " in (said := capsys.readouterr().err) and "Traceback" not in said
