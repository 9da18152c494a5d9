"""``history`` and ``brain``: of a job that was trained, of jobs that are only in the database, and of one that loses its brain."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dlrover_lite.brain.planning.decision import Decision, Round
from dlrover_lite.brain.planning.job_view import RoundInputs
from dlrover_lite.brain.planning.pareto import Band
from dlrover_lite.brain.store.database import ConfigStore
from dlrover_lite.brain.store.records import JobEntry
from dlrover_lite.brain_server import brain_process
from dlrover_lite.brain_server.files import BrainFiles
from dlrover_lite.cli.main import main
from dlrover_lite.client.handle import JobHandle
from dlrover_lite.core.units import GIB, MIB, Resources
from dlrover_lite.jobs.store import Job, Result
from dlrover_lite.protocol.outcomes import JobOutcome
from dlrover_lite.protocol.plans import Plan, RolePlan
from dlrover_lite.protocol.questions import to_builtins
from dlrover_lite.protocol.records import NodeRecord, PlanRecord
from tests.backends.support import until
from tests.brain.asked import answering, never
from tests.cli.conftest import ENDLESS, start, write_recipe
from tests.cli.documented import check
from tests.cli.scripted_master import make_job, status_of

Capture = pytest.CaptureFixture[str]
SMALL = Plan(ps=RolePlan(1, Resources(0.5, GIB)), worker=RolePlan(1, Resources(0.5, GIB)))
LARGE = Plan(ps=RolePlan(1, Resources(0.5, GIB)), worker=RolePlan(3, Resources(0.5, GIB)))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("DLROVER_LITE_HOME", str(tmp_path / "home"))
    yield tmp_path / "home"
    brain_process.stop(kill=True)


@pytest.fixture
def past(home: Path) -> None:
    """Two jobs whose files are gone: one that was scaled, and one that failed."""
    files = BrainFiles()
    files.make()
    outcome = JobOutcome(
        seconds=100.0, samples_per_second=5000.0, auc=0.75, peak_memory={"ps": 300 * MIB, "worker": 400 * MIB}
    )
    common: dict[str, Any] = {"owner": "ada", "created_at": 1e9, "started_at": 1e9}
    with ConfigStore(files.database) as store:
        store.put_job(
            JobEntry(
                id="ads-1",
                name="ads",
                model="dcn",
                state="succeeded",
                ended_at=1e9 + 100,
                samples=500_000,
                outcome=outcome,
                **common,
            )
        )
        failed = {**common, "created_at": 1e9 + 500, "message": "worker-0: no such file\nand more"}
        store.put_job(JobEntry(id="news-1", name="news", model="dlrm", state="failed", ended_at=1e9 + 600, **failed))
        for at, plan, decision in ((1.0, SMALL, None), (40.0, LARGE, 1)):
            store.add_plan(PlanRecord(job="ads-1", at=1e9 + at, kind="granted", plan=plan, decision=decision))
        size = {"cores": 0.5, "memory": GIB}
        for at, what, reason, data in (
            (1.0, "launched", "", size),
            (50.0, "ended", "OOMKilled", {"detail": "over 1 GiB"}),
        ):
            event = NodeRecord(job="ads-1", at=1e9 + at, node="worker-0", event=what, reason=reason, data=data)  # type: ignore[arg-type]
            store.add_node_event(event)
        store.commit()
        decision = Decision(job="ads-1", at=1e9 + 30, action="change", plan=LARGE, reason="it changes to more workers")
        inputs = RoundInputs(at=1e9 + 30, capacity=Resources(4.0, GIB), jobs=())
        store.add_round(Round(inputs, (decision,), Resources(1.0, GIB)), ["ads-1"])


def as_json(arguments: list[str], capsys: Capture) -> dict[str, Any]:
    assert main([*arguments, "--json"]) == 0
    value: dict[str, Any] = json.loads(capsys.readouterr().out)
    return value


# --- history --------------------------------------------------------------------------------------------------------------------


def test_a_job_that_was_trained_is_in_the_history(trained: dict[str, Any], capsys: Capture) -> None:
    (job,) = as_json(["history", "--filter", f"id={trained['job']}"], capsys)["jobs"]
    assert (job["state"], job["samples"], job["auc"]) == ("succeeded", 4000, trained["auc"])
    assert job["samples_per_second"] == pytest.approx(trained["samples_per_second"], rel=0.5)
    assert (job["plan"]["worker"]["count"], job["nodes"]) == (1, {"ps": 1, "worker": 1})
    assert job["peak_memory"]["worker"] > 10 * MIB
    assert (job["features"]["tables"], job["features"]["dims"], job["features"]["rows"]) == (26, 130, 4000)
    story = as_json(["history", trained["job"]], capsys)
    happened = {(event["node"], event["event"], event["reason"]) for event in story["events"]}
    assert happened == {
        (node, *what)
        for node in ("ps-0", "worker-0")
        for what in (("launched", ""), ("up", ""), ("ended", "Succeeded"))
    }
    assert [plan["plan"] for plan in story["plans"]] == [job["plan"]]


def test_history_lists_past_jobs_as_table_and_json(past: None, capsys: Capture) -> None:
    assert main(["history"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines[1:]] == [["ads-1", "succeeded"], ["news-1", "failed"]]
    for word in ("500,000", "5,000", "1 ps x 0.5 cores, 3 worker x 0.5 cores", "300 MiB", "400 MiB", "0.7500"):
        assert word in lines[1]
    value = as_json(["history"], capsys)
    check("## history", value)
    check("### a job of the history", value["jobs"][0])
    assert [job["id"] for job in value["jobs"]] == ["ads-1", "news-1"]


@pytest.mark.parametrize(
    ("options", "found"),
    [
        (["--filter", "model=dc*"], ["ads-1"]),
        (["--filter", "state=failed,lost", "--filter", "owner=ada"], ["news-1"]),
        (["--filter", "no such file"], ["news-1"]),
        (["--filter", "since=1d"], []),
        (["--limit", "1"], ["news-1"]),
    ],
)
def test_history_filters_and_limits_jobs(past: None, capsys: Capture, options: list[str], found: list[str]) -> None:
    assert [job["id"] for job in as_json(["history", *options], capsys)["jobs"]] == found


def test_history_of_a_job_tells_its_plans_nodes_and_decisions(past: None, capsys: Capture) -> None:
    assert main(["history", "ads"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "ads-1: succeeded"
    assert [line[21:] for line in lines[1:]] == [
        "it began",
        "it has 1 ps x 0.5 cores, 1 worker x 0.5 cores",
        "worker-0 was launched with 0.5 cores and 1 GiB",
        "decision 1: change: it changes to more workers",
        "it has 1 ps x 0.5 cores, 3 worker x 0.5 cores by decision 1",
        "worker-0 has ended: OOMKilled: over 1 GiB",
        "it has succeeded",
    ]
    value = as_json(["history", "ads-1"], capsys)
    check("## history JOB", {name: value[name] for name in ("plans", "decisions", "events")})
    check("### a plan", value["plans"][0])
    check("### a decision", value["decisions"][0])
    check("### an event", value["events"][0])
    assert main(["history", "news-1"]) == 0
    assert capsys.readouterr().out.startswith("news-1: failed (worker-0: no such file)\n")


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["history", "adz-1"], 1, "The nearest: ads-1"),
        (["history", "--filter", "colour=red"], 2, "can't be filtered by 'colour'"),
        (["history", "ads-1", "--limit", "3"], 2, "its whole story is told"),
        (["history", "--calibration", "--limit", "3"], 2, "--calibration is of all decisions"),
    ],
)
def test_history_refuses_unknown_jobs_and_filters(
    past: None, capsys: Capture, arguments: list[str], code: int, says: str
) -> None:
    assert main(arguments) == code
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["history"],
        ["history", "--json"],
        ["history", "--filter", "model=dc*", "--json"],
        ["history", "ads"],
        ["history", "ads-1", "--json"],
        ["history", "last"],
        ["history", "nobody"],
        ["explain", "ads-1"],
        ["explain", "ads-1", "--json"],
        ["explain", "ads-1", "7"],
        ["tui", "--replay", "ads-1", "--once"],
    ],
    ids=" ".join,
)
def test_what_the_brain_says_is_what_its_files_say(
    past: None, capsys: Capture, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    expected = main(arguments), capsys.readouterr()
    with answering(BrainFiles()):
        monkeypatch.setattr("dlrover_lite.brain_server.history_client.up_to_date", never)
        assert (main(arguments), capsys.readouterr()) == expected


def test_history_without_any_job_says_so_and_makes_no_files(home: Path, capsys: Capture) -> None:
    assert main(["history"]) == 0
    assert capsys.readouterr().err == "There is no history yet.\n"
    assert main(["history", "last"]) == 1
    assert as_json(["history"], capsys) == {"jobs": []}
    assert as_json(["history", "--calibration"], capsys) == {"calibration": {}, "worst": []}
    assert not home.exists()


# --- brain ----------------------------------------------------------------------------------------------------------------------


def test_brain_status_and_stop_without_a_brain(past: None, capsys: Capture) -> None:
    assert main(["brain", "status"]) == 1
    text = capsys.readouterr().out
    assert "No brain runs" in text and "history of 2 jobs" in text
    assert main(["brain", "status", "--json"]) == 1
    check("## brain status", json.loads(capsys.readouterr().out))
    assert main(["brain", "stop"]) == 0
    assert capsys.readouterr().out == "No brain runs.\n"


def test_brain_settings_are_changed_and_shown(home: Path, capsys: Capture) -> None:
    assert main(["brain", "settings", "keep-jobs=500"]) == 0
    assert {"keep-jobs=500", "keep-days=365", "capacity-cores=0"} <= set(capsys.readouterr().out.splitlines())
    value = as_json(["brain", "settings"], capsys)
    check("## brain settings", value)
    assert value["keep_jobs"] == 500
    assert main(["brain", "settings", "keep=1"]) == 2


def has_told(job: JobHandle, what: str) -> bool:
    return any(what in entry.text for entry in job.story("master").entries)


def test_a_job_goes_on_while_its_brain_is_killed(
    home: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DLROVER_LITE_BRAIN", "daemon")
    done = start(["run", str(write_recipe(tmp_path, "going", ENDLESS)), "--detach"])
    out, said = done.communicate(timeout=100)
    assert done.returncode == 0, said
    job = JobHandle.find(out.strip())
    try:
        now = brain_process.ask_status()
        assert now is not None and f"started the brain (pid {now.pid}, idle exit after 15 min)" in said.splitlines()
        until(lambda: job.status().samples > 0, "some samples", 60.0)
        value = as_json(["brain", "status"], capsys)
        check("### registered jobs", value["jobs"][0])
        assert value["jobs"][0]["job"] == job.id
        os.kill(now.pid, signal.SIGKILL)
        before = job.status().samples
        until(lambda: has_told(job, "the brain is lost"), "a word about the loss")
        until(lambda: job.status().samples > before, "more samples")
        brain_process.ensure()
        until(lambda: has_told(job, "the brain is there"), "a word about the new one", 60.0)
        assert main(["brain", "stop"]) == 0
        capsys.readouterr()
    finally:
        job.stop(kill=True)
        job.wait(60)
    (entry,) = as_json(["history"], capsys)["jobs"]  # though nobody was there to be told
    assert (entry["id"], entry["state"], entry["plan"]) == (job.id, "stopped", msgspec.to_builtins(SMALL))


def test_bands_of_decisions_are_kept_in_the_history(past: None, capsys: Capture) -> None:
    """What a decision predicted and brought is part of its object."""
    from dlrover_lite.brain.effect import judge
    from dlrover_lite.brain.planning.decision import Predicted

    with ConfigStore(BrainFiles().database) as store:
        predicted = Predicted(
            throughput=Band(100.0, 90.0, 110.0), seconds=5.0, stay_seconds=9.0, gain=Band(4.0, 3.0, 5.0)
        )
        decision = Decision(job="news-1", at=1e9 + 510, action="change", reason="it may", predicted=predicted)
        inputs = RoundInputs(at=1e9, capacity=Resources(1.0, GIB), jobs=())
        store.add_round(Round(inputs, (decision,), Resources(1.0, GIB)), ["news-1"])
        store.put_effect("news-1", 1, judge(decision, Band(104.0, 100.0, 108.0), windows=3, at=1e9 + 550))
        store.commit()
    (one,) = as_json(["history", "news-1"], capsys)["decisions"]
    assert one["predicted"]["throughput"] == [100.0, 90.0, 110.0]
    assert one["effect"]["error"] == pytest.approx(0.04)
    assert main(["history", "news-1"]) == 0
    assert "decision 1 brought 104 samples/s measured, 100 predicted (+4%)" in capsys.readouterr().out
    value = as_json(["history", "--calibration"], capsys)
    check("## history --calibration", value)
    check("### one of the furthest off", value["worst"][0])
    assert value["calibration"]["change"] == pytest.approx(
        {"decisions": 1, "median_miss": 0.04, "within_band": 1.0, "missed": 0}
    )
    assert as_json(["history", "news-1", "--calibration"], capsys) == value
    assert as_json(["history", "--calibration", "--filter", "state=failed"], capsys) == value
    assert as_json(["history", "--calibration", "--filter", "state=lost"], capsys)["worst"] == []
    assert main(["history", "--calibration"]) == 0
    shown = capsys.readouterr().out
    assert "4.0%" in shown and "news-1, decision 1 (change): 104 samples/s measured" in shown


def _stale(home: Path, **status: Any) -> Job:
    """A job that its brain heard of last after 20 samples."""
    files = BrainFiles()
    files.make()
    job = make_job()
    job.write_status(to_builtins(status_of(job, samples=70, total_samples=100, **status)))
    with ConfigStore(files.database) as store:
        known = {"created_at": 1e9, "started_at": 1e9, "samples": 20, "directory": str(job.directory)}
        store.put_job(JobEntry(id=job.id, name="told", state="running", **known))  # type: ignore[arg-type]
        store.commit()
    return job


@pytest.mark.parametrize("reference", [[], ["last"]])
def test_history_takes_progress_from_the_jobs_files_without_a_brain(
    home: Path, capsys: Capture, reference: list[str]
) -> None:
    def entry() -> dict[str, Any]:
        assert main(["history", *reference, "--json"]) == 0
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        return found if reference else found["jobs"][0]

    job = _stale(home)
    assert (entry()["state"], entry()["samples"]) == ("running", 70)
    job.write_result(Result("stopped", 2e9, "by hand", status={**(job.status() or {}), "samples": 90}))
    assert (entry()["state"], entry()["samples"], entry()["ended_at"]) == ("stopped", 90, 2e9)
