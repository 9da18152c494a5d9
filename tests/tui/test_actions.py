"""What is asked of a job's master, and what is said of its answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dlrover_lite.client.handle import JobHandle
from dlrover_lite.core.errors import JobError, UsageError
from dlrover_lite.protocol.questions import (
    AutoscaleRequest,
    AutoscaleStatus,
    CheckpointPromise,
    CheckpointRequest,
    DrainRequest,
    KillRequest,
    NodeStatus,
    ResizeRequest,
    Scaled,
    ScaleRequest,
)
from dlrover_lite.transport.frames import UNUSABLE, Failure
from dlrover_lite.tui.actions import Actions, Wanted
from dlrover_lite.tui.model import Autoscaling, JobRow, RoleNow
from tests.cli.scripted_master import NODES, running_job, status_of


class Master:
    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.answer: msgspec.Struct = Scaled(["one thing", "another"])

    def __call__(self, request: msgspec.Struct) -> msgspec.Struct:
        self.asked.append(request)
        return self.answer


@pytest.fixture
def master() -> Master:
    return Master()


@pytest.fixture
def row(master: Master, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[JobRow]:
    monkeypatch.setenv("DLROVER_LITE_HOME", str(tmp_path / "home"))
    leaving = NodeStatus("worker-1", "worker", "draining", 9.0, 1)
    ended = NodeStatus("worker-2", "worker", "ended (Killed)", 9.0, 1)
    with running_job(master, status=lambda job: status_of(job, nodes=[*NODES, leaving, ended])) as job:
        yield JobRow(id=job.id, state="training", created_at=0.0, directory=str(job.directory))


def test_scale_resize_drain_and_kill_ask_the_master(master: Master, row: JobRow) -> None:
    changed: list[int] = []
    actions = Actions(lambda: changed.append(1))
    said = [
        actions.scale(row, 3, None),
        actions.resize(row, "ps-0", 1.5, 1 << 30),
        actions.drain(row, "ps-0", replace=True),
        actions.kill(row, "worker-0"),
    ]
    assert said == ["one thing\nanother"] * 4
    assert master.asked == [
        ScaleRequest(3, None),
        ResizeRequest("ps-0", 1.5, 1 << 30),
        DrainRequest("ps-0", True),
        KillRequest("worker-0"),
    ]
    assert len(changed) == 4
    master.answer = Scaled()
    assert "already" in actions.scale(row, 3, None)
    assert "already" in actions.kill(row, "worker-0")


def test_a_refused_action_raises_an_error_with_its_hint(master: Master, row: JobRow) -> None:
    changed: list[int] = []
    master.answer = Failure(UNUSABLE, "there is no room", "Ask for at most 4.")
    with pytest.raises(UsageError) as caught:
        Actions(lambda: changed.append(1)).scale(row, 9, None)
    assert str(caught.value) == "there is no room\nAsk for at most 4."
    assert not changed


@pytest.mark.parametrize(
    ("wanted", "before", "after", "decision", "said"),
    [
        ("pause", Autoscaling("on"), AutoscaleStatus("on", "by request"), None, "leaves its plan as it is"),
        (
            "pause",
            Autoscaling("on"),
            AutoscaleStatus("on", "by request", 3, "more", True),
            None,
            "as it is; decision 3 is held",
        ),
        ("resume", Autoscaling("on", "by request"), AutoscaleStatus("on"), None, "goes on"),
        (
            "accept",
            Autoscaling("suggest", "", 3, "more"),
            AutoscaleStatus("suggest", "", 3, "more", True),
            3,
            "is carried out: more",
        ),
        (
            "accept",
            Autoscaling("suggest", "by hand", 3, "more"),
            AutoscaleStatus("suggest", "by hand", 3, "more", True),
            3,
            "when autoscaling goes on, which is paused",
        ),
        ("reject", Autoscaling("suggest", "", 3, "more"), AutoscaleStatus("suggest"), 3, "for ten minutes"),
        ("reject", Autoscaling("on", "", 3, "more", True), AutoscaleStatus("on"), 3, "what was changed already stays"),
    ],
)
def test_autoscale_actions_ask_the_master_and_say_what_follows(
    wanted: Wanted,
    before: Autoscaling,
    after: AutoscaleStatus,
    decision: int | None,
    said: str,
    master: Master,
    row: JobRow,
) -> None:
    master.answer = after
    assert said in Actions().autoscale(row, wanted, before)
    assert master.asked == [AutoscaleRequest(wanted, decision)]


def test_a_checkpoint_is_not_waited_for(master: Master, row: JobRow) -> None:
    master.answer = CheckpointPromise(7)
    assert "Checkpoint 7 of" in Actions().checkpoint(row)
    assert master.asked == [CheckpointRequest()]


def test_room_for_scaling_is_that_of_the_jobs_plan(row: JobRow) -> None:
    room = Actions().room(row)
    assert room.workers == RoleNow(1, 0.75, 1 << 30)
    assert room.servers == RoleNow(1, 0.5, 1 << 30)
    assert room.memory > 1 << 30
    assert room.cores is None


def test_stopping_another_users_job_says_whose_it_is(row: JobRow, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(JobHandle, "stop", refused)
    with pytest.raises(JobError, match="belongs to another user") as caught:
        Actions().stop(row)
    assert "Operation not permitted" in caught.value.hint


def test_a_master_of_another_user_is_an_error_not_a_crash(row: JobRow, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = JobHandle(row.id)
    exists = Path.exists

    def guarded(path: Path) -> bool:
        if path.suffix == ".sock" or "master" in path.name:
            raise PermissionError(13, "Permission denied", str(path))
        return exists(path)

    monkeypatch.setattr(Path, "exists", guarded)
    with pytest.raises(JobError, match=r"The master of .* belongs to another user"):
        handle.drain("ps-0")


def test_autoscaling_state_is_read_again_after_an_action(tmp_path: Path, row: JobRow, master: Master) -> None:
    from dlrover_lite.brain.store.history import FileHistory
    from dlrover_lite.tui.sources.live_job import LiveJob

    now = [1000.0]
    master.answer = AutoscaleStatus("on")
    live = LiveJob(FileHistory(tmp_path / "none.sqlite"), row.id, clock=lambda: now[0])
    detail = live.look()
    assert detail is not None
    assert detail.autoscaling == Autoscaling("on")
    master.answer = AutoscaleStatus("on", "by request")
    before = live.look()
    assert before is not None
    assert before.autoscaling == Autoscaling("on")  # seldom asked for
    live.look_again()
    detail = live.look()
    assert detail is not None
    assert detail.autoscaling == Autoscaling("on", "by request")
    live.close()
