"""``explain``, and the JSON of all commands about decisions, against docs/json.md."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dlrover_lite.brain.healing.mitigation import HealInputs, NodeNow, Treatment
from dlrover_lite.brain.planning.decision import Decision, Round
from dlrover_lite.brain.planning.plan_grid import Candidate, MemoryBand
from dlrover_lite.brain.store import queries
from dlrover_lite.brain_server.files import BrainFiles
from dlrover_lite.cli.main import main
from dlrover_lite.client.handle import JobHandle
from dlrover_lite.core.expected_end import ExpectedEnd
from dlrover_lite.core.units import GIB, Resources
from dlrover_lite.core.words import at_time
from dlrover_lite.protocol.acts import Resize
from dlrover_lite.protocol.messages import Ack
from dlrover_lite.protocol.questions import AutoscaleRequest, AutoscaleStatus
from dlrover_lite.transport.frames import Failure
from tests.brain.advised import Office, done
from tests.cli.documented import check
from tests.cli.scripted_master import running_job, status_of

Capture = pytest.CaptureFixture[str]
JOB = "ads-1"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DLROVER_LITE_HOME", str(tmp_path / "home"))


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Decision]]:
    """A database with a job that was started, changed, and measured since; and then had a node resized."""
    office = Office(tmp_path_factory.mktemp("history"))
    office.arrives(JOB)
    office.turn()
    job = office.begins(JOB, plan=Candidate(1, 1, 1.0, 0.5))
    office.trains(JOB, windows=4)
    office.turn()
    change = office.adviser.waiting()[JOB]
    assert change.decision.choice is not None
    job.plan = change.decision.choice
    office.trains(JOB, windows=3, busy=True, done=(done(JOB, change.number, office.now),))
    treatment = Treatment(
        at=office.now,
        node="ps-0",
        host="a",
        cause="memory ahead",
        act=Resize(Resources(0.5, 2 * GIB)),
        reason="ps-0 gets more memory, as its tables grow",
        memory=MemoryBand(GIB, GIB // 2, 2 * GIB, 2 * GIB),
    )
    heal = Decision(
        job=JOB,
        at=office.now,
        stage="heal",
        action="heal",
        reason="ps-0 gets more memory, as its tables grow",
        treatment=treatment,
    )
    inputs = HealInputs(job=JOB, at=office.now, profiles=(), nodes=(NodeNow("ps-0", "ps", "a", Resources(0.5, GIB)),))
    office.store.add_treatments(inputs, [heal])
    found = office.decisions(JOB)
    office.close()
    return office.path, found


@pytest.fixture
def decided(history: tuple[Path, list[Decision]]) -> list[Decision]:
    """That job's, in the user's history."""
    files = BrainFiles()
    files.make()
    shutil.copyfile(history[0], files.database)
    return history[1]


def as_json(arguments: list[str], capsys: Capture, code: int = 0) -> dict[str, Any]:
    assert main([*arguments, "--json"]) == code
    value: dict[str, Any] = json.loads(capsys.readouterr().out)
    return value


def number_of(decided: list[Decision], action: str) -> str:
    return str(1 + next(at for at, one in enumerate(decided) if one.action == action))


# --- explain --------------------------------------------------------------------------------------------------------------------


def test_explain_tells_the_newest_decision_that_changes_something(decided: list[Decision], capsys: Capture) -> None:
    assert main(["explain", JOB]) == 0
    text = capsys.readouterr().out
    assert (
        text.splitlines()[0]
        == f"Decision {len(decided)} for {JOB}: heal ps-0. ps-0 gets more memory, as its tables grow."
    )
    assert main(["explain", "ads", number_of(decided, "change")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"Decision {number_of(decided, 'change')} for {JOB}: change. It changes to ")
    assert lines[1].startswith("Predicted: ") and lines[2].startswith("Memory of each PS: ")
    assert any(line.startswith("What it brought: ") for line in lines)
    assert sum(line.startswith("*") for line in lines) == 1
    for part in (
        "What was known:",
        "The model:",
        "The model against what was measured:",
        "Costs:",
        "Memory, as it was foreseen:",
    ):
        assert part in lines
    assert any(line.startswith("What limits ") for line in lines)
    few = len(lines)
    assert main(["explain", JOB, number_of(decided, "change"), "--all"]) == 0
    assert len(capsys.readouterr().out.splitlines()) >= few


def test_explain_says_when_the_job_is_expected_to_end(
    decided: list[Decision], capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = ExpectedEnd(1_800_000_000.0, 90.0)
    assert as_json(["explain", JOB], capsys)["expected_end"] is None  # it isn't on this machine
    with running_job(lambda _: Ack(), status=lambda job: status_of(job, expected_end=end)) as job:
        monkeypatch.setattr(JobHandle, "find", lambda _: JobHandle(job.id))
        assert main(["explain", JOB]) == 0
        last = capsys.readouterr().out.splitlines()[-1]
        assert last == f"As the job stands now, it will have gone through its samples at {at_time(end.at)} ±90s."
        assert as_json(["explain", JOB], capsys)["expected_end"] == {"at": end.at, "error_seconds": 90.0}


def test_explain_as_json(decided: list[Decision], capsys: Capture) -> None:
    value = as_json(["explain", JOB, number_of(decided, "change")], capsys)
    check("## explain", value)
    check("### before", value["before"])
    check("### model", value["model"])
    assert len(value["model"]["points"]) == 4 and value["model"]["limits"]
    (curve,) = value["memory"]
    check("### memory", curve)
    assert value["inputs"]["plan"] == "1 worker x 1, 1 ps x 0.5 cores"
    assert value["missing"] == []
    check("### effect", value["effect"])
    for one in value["candidates"]:
        check("### a candidate", one)
    for band in (value["samples_per_second"], value["gain_seconds"], value["effect"]["samples_per_second"]):
        assert list(band) == ["expected", "lower", "upper"]
    assert [one["chosen"] for one in value["candidates"]].count(True) == 1
    assert [one["present"] for one in value["candidates"]].count(True) == 1
    first = as_json(["explain", JOB, "1"], capsys)
    assert (first["stage"], first["action"], first["before"], first["treatment"]) == ("initial", "start", None, None)
    check("## explain", first)
    healed = as_json(["explain", JOB], capsys)
    check("## explain", healed)
    check("### treatment", healed["treatment"])
    assert (healed["plan"], healed["candidates"], healed["treatment"]["act"]["type"]) == (None, [], "resize")
    assert (healed["model"], healed["peers"][0]["node"]) == (None, "ps-0")
    check("### peers", healed["peers"][0])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [(["ads-9"], "no job"), ([JOB, "99"], "The brain has made no decision 99 for ads-1")],
)
def test_explain_refuses_unknown_jobs_and_decisions(
    decided: list[Decision], capsys: Capture, arguments: list[str], says: str
) -> None:
    assert main(["explain", *arguments]) == 1
    assert says in capsys.readouterr().err


def test_a_reason_can_not_paint_the_terminal(decided: list[Decision], capsys: Capture) -> None:
    office = Office(BrainFiles().database.parent)
    one = queries.decisions(office.store, JOB, number=2)[0]
    inputs = queries.inputs_of(office.store, one)
    painted = msgspec.structs.replace(one.decision, reason="\x1b[31mred\x1b[0m")
    office.store.add_round(Round(inputs, (painted,), Resources(1.0, GIB)), [JOB])  # type: ignore[arg-type]
    office.close()
    assert main(["explain", JOB]) == 0
    text = capsys.readouterr().out
    assert "red" in text and "\x1b" not in text and len(text.splitlines()) > 5


def test_explain_asks_the_other_policy(decided: list[Decision], capsys: Capture) -> None:
    """The other policy gets the same inputs, and its model the same intervals; what is stored stays as it was."""
    number = number_of(decided, "change")
    assert main(["explain", JOB, number, "--policy", "paper"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"What the policy paper would have decided instead of decision {number}, from the same inputs:"
    assert lines[2].startswith(f"{JOB}: change. By the paper's policy: it changes to ")
    value = as_json(["explain", JOB, number, "--policy", "paper"], capsys)
    check("## explain --policy", value)
    assert value["reason"].startswith("by the paper's policy: ")
    assert value["samples_per_second"] != as_json(["explain", JOB, number], capsys)["samples_per_second"]
    assert main(["explain", JOB, number, "--policy", "lite"]) == 0
    assert capsys.readouterr().out.startswith(f"Decision {number} for {JOB}: change. It changes to ")
    assert as_json(["explain", JOB, "1", "--policy", "paper"], capsys)["action"] == "start"


def test_no_policy_decides_about_a_node_or_from_what_is_gone(decided: list[Decision], capsys: Capture) -> None:
    assert main(["explain", JOB, "--policy", "paper"]) == 1
    assert "is about a node" in capsys.readouterr().err
    office = Office(BrainFiles().database.parent)
    with office.store.transaction():
        office.store.db.conn.execute("delete from profiles")
    office.close()
    assert main(["explain", JOB, number_of(decided, "change"), "--policy", "paper"]) == 1
    assert "What was measured of" in capsys.readouterr().err


def test_explain_says_that_inputs_were_pruned(decided: list[Decision], capsys: Capture) -> None:
    office = Office(BrainFiles().database.parent)
    with office.store.transaction():
        office.store.db.conn.execute("pragma defer_foreign_keys = on")
        office.store.db.conn.execute("update rounds set inputs = x'00'")
    office.close()
    assert main(["explain", JOB]) == 0
    text = capsys.readouterr().out
    assert "ps-0 gets more memory, as its tables grow." in text
    assert text.splitlines()[-1] == "What it was decided from isn't kept any more, or can't be read by this version."


# --- the others -----------------------------------------------------------------------------------------------------------------


def test_history_as_json(decided: list[Decision], capsys: Capture) -> None:
    story = as_json(["history", JOB], capsys)
    (change,) = [one for one in story["decisions"] if one["action"] == "change"]
    check("### a decision", change)
    documented = Path(__file__).parents[2].joinpath("docs", "json.md").read_text()
    row = next(line for line in documented.splitlines() if "`stay_seconds`" in line)
    assert set(change["predicted"]) == set(re.findall(r"`(\w+)`", row)) - {"predicted", "null"}
    known = set(as_json(["explain", JOB, str(change["number"])], capsys)["effect"]) - {"samples_per_second"}
    assert set(change["effect"]) == known | {"measured", "outside"}


@pytest.mark.parametrize("what", ["status", "pause", "resume", "accept", "reject"])
def test_autoscale_as_json(what: str, capsys: Capture) -> None:
    def answer(request: msgspec.Struct) -> msgspec.Struct:
        assert request == AutoscaleRequest(what)  # type: ignore[arg-type]
        return AutoscaleStatus("suggest", "by request", 4, "more workers", False)

    with running_job(answer):
        value = as_json(["autoscale", what], capsys)
        check("## autoscale", value)
        assert (value["mode"], value["paused"], value["decision"]) == ("suggest", "by request", 4)
        assert main(["autoscale", what]) == 0
        assert capsys.readouterr().out.splitlines() == [
            f"{value['job']}: autoscaling is suggest, and paused (by request)",
            "decision 4 is suggested: more workers",
        ]


def test_refused_autoscale_command_is_an_error_with_its_hint(capsys: Capture) -> None:
    with running_job(lambda _: Failure("refused", "nothing is suggested", "See: dlrover-lite explain")):
        assert main(["autoscale", "accept"]) == 1
        said = capsys.readouterr()
        assert said.out == "" and "nothing is suggested" in said.err and "See: dlrover-lite explain" in said.err
