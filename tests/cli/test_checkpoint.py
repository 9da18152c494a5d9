"""``checkpoint JOB``, and what is said of checkpoints while a job runs: the master is scripted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from dlrover_lite.cli.main import main
from dlrover_lite.client.checkpoint_words import checkpoint_lines, newest_text, open_problem, problem_text
from dlrover_lite.client.handle import JobHandle
from dlrover_lite.client.progress_line import progress_text
from dlrover_lite.core.errors import JobError
from dlrover_lite.jobs.store import Job
from dlrover_lite.protocol.questions import (
    CheckpointProblem,
    CheckpointPromise,
    CheckpointRequest,
    CheckpointsStatus,
    CheckpointStall,
    CheckpointStatus,
    CheckpointUnderWay,
    Status,
    to_builtins,
)
from dlrover_lite.transport.frames import Failure
from tests.cli.documented import check
from tests.cli.scripted_master import make_job, running_job, status_of

Capture = pytest.CaptureFixture[str]
NEWEST = CheckpointStatus(2, 1e9, 4_096, 2_048, 3 << 20, 0.25)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DLROVER_LITE_HOME", str(tmp_path / "home"))


class Master:
    """Has completed 2 and promises 3; ``later`` are its words on checkpoints, one after the other, the last one again and again."""

    def __init__(self) -> None:
        self.asked = 0
        self.refusal: Failure | None = None
        self.later = [
            CheckpointsStatus(NEWEST),
            CheckpointsStatus(NEWEST, CheckpointUnderWay(3, "taking", 100, 1000)),
            CheckpointsStatus(msgspec.structs.replace(NEWEST, number=3)),
        ]

    def __call__(self, request: msgspec.Struct) -> msgspec.Struct:
        assert request == CheckpointRequest()
        self.asked += 1
        return self.refusal or CheckpointPromise(3)

    def status(self, job: Job) -> Status:
        known = self.later.pop(0) if len(self.later) > 1 else self.later[0]
        return status_of(job, checkpoints=known, total_samples=10_000)


@pytest.fixture
def master() -> Iterator[Master]:
    answers = Master()
    with running_job(answers, status=answers.status):
        yield answers


@pytest.mark.parametrize("command", [[], ["last"], ["take"], ["take", "last"], ["--", "last"]])
def test_checkpoint_waits_until_it_is_durable(command: list[str], master: Master, capsys: Capture) -> None:
    assert main(["checkpoint", *command]) == 0
    assert master.asked == 1
    assert len(master.later) == 1
    out = capsys.readouterr().out
    assert out.startswith("checkpoint 3, at 4,096 samples (")
    assert out.endswith("): 2,048 rows, 3 MiB in 0.2 s\n")


def test_checkpoint_no_wait_returns_at_once(master: Master, capsys: Capture) -> None:
    assert main(["checkpoint", "last", "--no-wait"]) == 0
    assert capsys.readouterr().out == "checkpoint 3 is taken as soon as may be.\n"
    assert len(master.later) == 3


def test_checkpoint_take_as_json(master: Master, capsys: Capture) -> None:
    assert main(["checkpoint", "last", "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    check("## checkpoint take", value)
    check("### newest", value["complete"])
    assert (value["number"], value["complete"]["number"]) == (3, 3)
    assert main(["checkpoint", "last", "--json", "--no-wait"]) == 0
    assert json.loads(capsys.readouterr().out)["complete"] is None


def test_job_handle_takes_a_checkpoint(master: Master) -> None:
    handle = JobHandle.find()
    assert handle.checkpoint() == 3
    assert handle.checkpoint(wait=False) == 3


def test_refused_checkpoint_is_an_error_with_its_hint(master: Master, capsys: Capture) -> None:
    master.refusal = Failure("refused", "this job takes no checkpoints", "Remove that line.")
    assert main(["checkpoint", "last"]) == 1
    assert capsys.readouterr().err == "Error: this job takes no checkpoints\nRemove that line.\n"


def test_checkpoint_that_cannot_be_written_is_an_error(master: Master, capsys: Capture) -> None:
    old = CheckpointProblem(2, 1e9, "old", failures=3)
    benign = CheckpointProblem(3, 1e9, "ps-1 has ended")
    full = CheckpointProblem(4, 1e9, "The disk is full", "Make room.", 1)
    master.later = [CheckpointsStatus(NEWEST, problem=problem) for problem in (old, benign, full)]
    assert main(["checkpoint", "last"]) == 1
    assert "Error: checkpoint 4 came to nothing: The disk is full\nMake room.\n" in capsys.readouterr().err
    assert len(master.later) == 1  # those before were no reason
    with pytest.raises(JobError, match="The disk is full"):
        JobHandle.find().checkpoint()


def test_checkpoint_of_an_ended_job_is_refused(capsys: Capture) -> None:
    job = make_job()
    job.write_record(msgspec.structs.replace(job.record(), state="ended"))
    assert main(["checkpoint", job.id]) == 1
    assert main(["checkpoint", "no-such-job"]) == 1
    assert "No job is called 'no-such-job'" in capsys.readouterr().err


def test_status_lines_say_which_checkpoint_is_under_way() -> None:
    job = make_job()
    assert checkpoint_lines(status_of(job)) == []
    problem = CheckpointProblem(3, 1e9, "The disk is full", failures=1)
    status = status_of(
        job, checkpoints=CheckpointsStatus(NEWEST, CheckpointUnderWay(4, "taking", 1_234, 9), problem), total_samples=1
    )
    assert "saving 4" in progress_text(status)
    assert [line.partition(" (")[0] for line in checkpoint_lines(status)] == [
        "2, at 4,096 samples",
        "4 is taking, 1,234 rows",
        "checkpoint 3 failed: The disk is full",
    ]
    over = status_of(job, checkpoints=CheckpointsStatus(msgspec.structs.replace(NEWEST, number=4), None, problem))
    assert open_problem(over) is None
    assert problem_text(CheckpointProblem(0, 0.0, "gone", failures=1)) == "checkpoints failed: gone"


def test_newest_checkpoint_says_how_long_it_held_training_up() -> None:
    held = msgspec.structs.replace(NEWEST, stall_seconds=0.0142)
    assert newest_text(held).endswith("3 MiB in 0.2 s, held training up by 14 ms")
    assert newest_text(NEWEST).endswith("3 MiB in 0.2 s")


def test_status_as_json_has_checkpoints(capsys: Capture) -> None:
    answers = Master()
    answers.later = [
        CheckpointsStatus(
            NEWEST,
            CheckpointUnderWay(3, "waiting"),
            CheckpointProblem(2, 0.0, "why", "hint"),
            [CheckpointStall(2, 0.25, 0.01)],
        )
    ]
    with running_job(answers, status=answers.status):
        assert main(["status", "--json"]) == 0
        value = json.loads(capsys.readouterr().out)["checkpoints"]
        check("### checkpoints of a job that runs", value)
        assert value["newest"] == to_builtins(NEWEST)
        assert main(["status"]) == 0
        assert "checkpoint 2, at 4,096 samples" in capsys.readouterr().out
