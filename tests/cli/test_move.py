"""``move``, ``drain`` and ``--wait``: what a person may ask for, and what they are told."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from dlrover_lite.cli.main import main
from dlrover_lite.cli.waiting import under_way
from dlrover_lite.client.handle import JobHandle
from dlrover_lite.client.progress_line import progress_text
from dlrover_lite.core import slot_sets
from dlrover_lite.core.errors import JobError, UsageError
from dlrover_lite.jobs.store import Job, Result
from dlrover_lite.protocol.messages import Topology, TopologyRequest
from dlrover_lite.protocol.questions import (
    CancelMovesRequest,
    DrainRequest,
    KillRequest,
    MoveRequest,
    MoveStatus,
    NodeStatus,
    Scaled,
    Status,
    to_builtins,
)
from dlrover_lite.transport.frames import UNUSABLE, Failure
from tests.cli.documented import check
from tests.cli.scripted_master import make_job, running_job, status_of

Capture = pytest.CaptureFixture[str]
ACTIONS = ["move 1: 100 slots from ps-0 to ps-1"]
MOVES = [
    MoveStatus(1, "ps-0", "ps-1", 100, "copying", 12345, 40, 100 << 20, 30 << 20, 10 << 20, 7.0),
    MoveStatus(2, "ps-1", "ps-0", 7, "queued"),
]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DLROVER_LITE_HOME", str(tmp_path / "home"))


def servers(*states: str) -> list[NodeStatus]:
    return [NodeStatus(f"ps-{i}", "ps", state, 0.5, 1 << 30, slots=2048) for i, state in enumerate(states)]


class Master:
    """Has two PS with half of the slots each, and refuses what it is told to. Each status is the next of ``stages``; the last one
    stays, and with it the map is as ``moved``."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.actions = ACTIONS
        self.refusal: Failure | None = None
        self.stages: list[dict[str, Any]] = [{"nodes": servers("up", "up")}]
        self.moved = slot_sets.none()

    def __call__(self, request: msgspec.Struct) -> msgspec.Struct:
        if isinstance(request, TopologyRequest):
            owners = np.arange(slot_sets.SLOTS) // 2048
            owners[self.moved] = 1
            return Topology(3, [("ps-0", "a"), ("ps-1", "b")], owners.astype(np.uint16).tobytes())
        self.asked.append(request)
        return self.refusal or Scaled(self.actions)

    def status(self, job: Job) -> Status:
        changes = self.stages.pop(0) if len(self.stages) > 1 else self.stages[0]
        return status_of(job, **{"slot_map_version": 3, **changes})


@pytest.fixture
def master() -> Iterator[Master]:
    answers = Master()
    with running_job(answers, status=answers.status):
        yield answers


def test_move_takes_slot_numbers_or_all_slots_of_a_server(master: Master, capsys: Capture) -> None:
    assert main(["move", "--slots", "0-99,200", "--to", "ps-1"]) == 0
    assert capsys.readouterr().out.splitlines() == ACTIONS
    master.actions = []
    assert main(["move", "last", "--from", "ps-0", "--to", "ps-1"]) == 0
    assert capsys.readouterr().out == "ps-1 has them already.\n"
    members = [slot_sets.of([*range(100), 200]), slot_sets.of(range(2048))]
    assert master.asked == [MoveRequest(slot_sets.pack(each), "ps-1") for each in members]


def test_move_cancel_cancels_all_moves(master: Master, capsys: Capture) -> None:
    master.actions = ["move 1 from ps-0 to ps-1 is cancelled", "ps-0 stays"]
    assert main(["move", "--cancel"]) == 0
    assert capsys.readouterr().out.splitlines() == master.actions
    master.actions = []
    assert main(["move", "--cancel", "--wait"]) == 0
    assert "has no move under way" in capsys.readouterr().out
    assert master.asked == [CancelMovesRequest()] * 2


def test_drain_asks_the_master_to_drain_a_node(master: Master, capsys: Capture) -> None:
    master.actions = ["ps-1 leaves when its 2,048 slots have moved to others"]
    assert main(["drain", "ps-1"]) == 0
    assert capsys.readouterr().out.splitlines() == master.actions
    master.actions = []
    assert main(["drain", "ps-1", "last", "--replace"]) == 0
    assert capsys.readouterr().out == "ps-1 is about to leave already.\n"
    assert master.asked == [DrainRequest("ps-1"), DrainRequest("ps-1", replace=True)]


def test_kill_asks_the_master_to_kill_a_node(master: Master, capsys: Capture) -> None:
    master.actions = ["worker-1 is killed by request", "another one takes its place"]
    assert main(["kill", "worker-1"]) == 0
    assert capsys.readouterr().out.splitlines() == master.actions
    master.actions = []
    assert main(["kill", "worker-1", "last"]) == 0
    assert capsys.readouterr().out == "worker-1 is being killed already.\n"
    assert master.asked == [KillRequest("worker-1")] * 2


def test_move_drain_and_kill_as_json(master: Master, capsys: Capture) -> None:
    for heading, arguments in (
        ("## move", ["move", "--from", "ps-0", "--to", "ps-1"]),
        ("## move", ["move", "--cancel"]),
        ("## drain", ["drain", "ps-1", "--replace"]),
        ("## kill", ["kill", "ps-1"]),
    ):
        assert main([*arguments, "--json"]) == 0
        value = json.loads(capsys.readouterr().out)
        check(heading, value)
        assert value["actions"] == ACTIONS


def test_job_handle_moves_slots_and_drains(master: Master) -> None:
    handle = JobHandle.find()
    assert handle.move("0-99", "ps-1") == handle.move(range(100), "ps-1") == handle.drain("ps-0") == ACTIONS
    assert handle.move(source="ps-0", to="ps-1") == handle.cancel_moves() == ACTIONS
    assert master.asked[0] == master.asked[1]
    for wrong in (
        dict[str, Any](),
        {"slots": [1], "source": "ps-0"},
        {"slots": [4096]},
        {"slots": [-1]},
        {"slots": []},
    ):
        with pytest.raises(UsageError):
            handle.move(to="ps-1", **wrong)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["move", "--to", "ps-1"], "either --slots 0-99,200 or --from PS"),
        (["move", "--slots", "1", "--from", "ps-0", "--to", "ps-1"], "don't go together"),
        (["move", "--slots", "1"], "Write --to PS"),
        (["move", "--slots", "1", "--cancel"], "without --slots"),
        (["move", "--from", "ps-1", "--to", "ps-1"], "the same parameter server"),
        (["move", "--slots", "90-4096", "--to", "ps-1"], "there are no slots 90-4096"),
        (["move", "--slots", "a few", "--to", "ps-1"], "is no set of slots"),
        (["move", "--from", "ps-7", "--to", "ps-1"], "ps-7 has no slots to move"),
        (["drain"], "Which node?"),
        (["kill"], "Which node?"),
    ],
)
def test_senseless_move_drain_and_kill_arguments_are_refused(
    arguments: list[str], said: str, master: Master, capsys: Capture
) -> None:
    assert main(arguments) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert said in output.err
    assert len(output.err.splitlines()) <= 2
    assert master.asked == []


@pytest.mark.parametrize(
    "arguments", [["move", "--slots", "1", "--to", "ps-1"], ["drain", "ps-1"], ["move", "--cancel"]]
)
@pytest.mark.parametrize(("code", "exit_code"), [("refused", 1), (UNUSABLE, 2)])
def test_a_refused_move_or_drain_is_an_error_with_its_hint(
    code: str, exit_code: int, arguments: list[str], master: Master, capsys: Capture
) -> None:
    master.refusal = Failure(code, "there is no room", "Start another.")
    assert main([*arguments, "--wait"]) == exit_code
    assert capsys.readouterr().err == "Error: there is no room\nStart another.\n"


@pytest.mark.parametrize(
    "arguments", [["move", "--slots", "1", "--to", "ps-1"], ["drain", "ps-1"], ["move", "--cancel"]]
)
def test_move_drain_and_kill_of_an_ended_job_are_refused(arguments: list[str], capsys: Capture) -> None:
    job = make_job()
    last = status_of(job, message="ps-0 has run out of memory", moves=MOVES)
    job.write_result(Result("failed", time.time(), last.message, status=to_builtins(last)))
    assert main(arguments) == 1
    assert f"{job.id} has failed at" in capsys.readouterr().err
    assert JobHandle(job.id).status().moves == MOVES


def test_move_without_a_slot_map_yet_says_to_ask_again(master: Master, capsys: Capture) -> None:
    master.stages = [{"slot_map_version": 0}]
    assert main(["move", "--from", "ps-0", "--to", "ps-1"]) == 1
    assert "ask again in a moment" in capsys.readouterr().err


def test_move_wait_ends_when_the_slots_have_moved(master: Master, capsys: Capture) -> None:
    moving = {"nodes": servers("up", "up"), "moves": MOVES, "slots_settled": False}
    master.stages = [moving, moving, {"nodes": servers("up", "up")}]
    master.moved = slot_sets.of(range(10))
    assert main(["move", "--slots", "0-9", "--to", "ps-1", "--wait"]) == 0
    assert len(master.stages) == 1
    assert capsys.readouterr().out.splitlines() == ACTIONS
    assert main(["move", "--slots", "0-10", "--to", "ps-1", "--wait"]) == 1
    assert "1 slot did not move to ps-1" in capsys.readouterr().err


def test_scale_ps_wait_ends_when_slots_have_settled(master: Master, capsys: Capture) -> None:
    master.stages = [
        {"nodes": servers("up", "up"), "slots_settled": False},
        {"nodes": servers("up", "up", "started"), "slots_settled": False},
        {"nodes": servers("up", "up", "up"), "slots_settled": False},
        {"nodes": servers("up", "up", "up")},
    ]
    assert main(["scale", "--ps", "3", "--wait"]) == 0
    assert len(master.stages) == 1
    assert main(["scale", "--ps", "2", "--wait"]) == 1  # a cancel called it back
    assert "keeps 3 parameter servers" in capsys.readouterr().err


def test_scale_workers_wait_ends_when_that_many_are_up(master: Master) -> None:
    def workers(*states: str) -> dict[str, Any]:
        return {"nodes": [NodeStatus(f"worker-{i}", "worker", state, 0.5, 1) for i, state in enumerate(states)]}

    master.stages = [
        workers("up", "launched"),
        workers("up", "draining", "up"),
        workers("up", "ended (Succeeded)", "up"),
    ]
    assert main(["scale", "--workers", "2", "--wait"]) == 0
    assert len(master.stages) == 1


def test_drain_wait_ends_when_the_node_has_left(master: Master, capsys: Capture) -> None:
    master.stages = [
        {"nodes": servers("up", "up"), "slots_settled": False},
        {"nodes": servers("up", "draining"), "slots_settled": False},
        {"nodes": servers("up", "ended (Succeeded)")},
    ]
    assert main(["drain", "ps-1", "--wait"]) == 0
    assert main(["drain", "ps-0", "--wait"]) == 1
    assert "ps-0 stays" in capsys.readouterr().err


def test_waiting_ends_with_the_job(master: Master, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    master.stages = [{"slots_settled": False}]
    monkeypatch.setattr(JobHandle, "wait", lambda *_, **__: Result("stopped", time.time()))
    assert main(["scale", "--ps", "3", "--wait"]) == 1
    assert "has ended (stopped) before it was done" in capsys.readouterr().err
    with pytest.raises(JobError, match="has ended"):
        from dlrover_lite.cli.waiting import is_at_rest, until

        until(JobHandle.find(), "waiting", is_at_rest)


def test_status_shows_moves_under_way(master: Master, capsys: Capture) -> None:
    master.stages = [{"nodes": servers("up", "started"), "moves": MOVES, "total_samples": 10}]
    assert main(["status"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:3] for line in lines if line.startswith(("NODE", "ps-1 "))] == [
        ["NODE", "STATE", "SLOTS"],
        ["ps-1", "started", "2,048"],
    ]
    assert lines[-3].split() == ["MOVE", "FROM", "TO", "SLOTS", "STATE", "MOVED", "RATE", "LEFT", "ROWS"]
    moved = ["30", "MiB", "of", "100", "MiB", "10", "MiB/s", "7.0", "s", "12,345"]
    assert lines[-2].split() == ["1", "ps-0", "ps-1", "40/100", "copying", *moved]
    status = master.status(JobHandle.find().job)
    assert under_way(status).split("; ") == [
        "move 1: 100 from ps-0 to ps-1, copying, 12,345 rows, 40 have moved, 7.0 s left",
        "move 2: 7 from ps-1 to ps-0, queued",
        "ps-1 started",
    ]
    assert "67 slots moving" in progress_text(status)
    assert main(["status", "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    check("## status", value)
    for move in value["moves"]:
        check("### moves", move)
