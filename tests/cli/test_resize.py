"""``resize``: what a person may ask for, and what they are told."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dlrover_lite.cli.main import main
from dlrover_lite.cli.waiting import under_way
from dlrover_lite.client.handle import JobHandle
from dlrover_lite.core.errors import UsageError
from dlrover_lite.core.units import MIB
from dlrover_lite.jobs.store import Job, Result
from dlrover_lite.protocol.questions import NodeStatus, ResizeRequest, Scaled, Status
from dlrover_lite.transport.frames import UNUSABLE, Failure
from tests.cli.documented import check
from tests.cli.scripted_master import make_job, running_job, status_of

Capture = pytest.CaptureFixture[str]
ACTIONS = ["ps-0 is resized from 1 core and 1 GiB to 1 core and 2 GiB"]
WAITS = "waits to be tidied up before its memory is lowered to 512 MiB"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DLROVER_LITE_HOME", str(tmp_path / "home"))


def server(memory: int, **changes: Any) -> NodeStatus:
    return NodeStatus(**{"id": "ps-0", "role": "ps", "state": "up", "cores": 0.5, "memory": memory, **changes})


def waiting() -> NodeStatus:
    return server(1 << 30, wanted_cores=0.5, wanted_memory=512 * MIB, waits_for=WAITS)


class Master:
    """Each status has the next of ``stages`` as its only node; the last one stays."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.answer: Scaled | Failure = Scaled(ACTIONS)
        self.stages = [server(1 << 30)]

    def __call__(self, request: msgspec.Struct) -> msgspec.Struct:
        self.asked.append(request)
        return self.answer

    def status(self, job: Job) -> Status:
        return status_of(job, nodes=[self.stages.pop(0) if len(self.stages) > 1 else self.stages[0]])


@pytest.fixture
def master() -> Iterator[Master]:
    answers = Master()
    with running_job(answers, status=answers.status):
        yield answers


def test_resize_changes_cores_and_memory_of_a_node(master: Master, capsys: Capture) -> None:
    assert main(["resize", "ps-0", "--memory", "2GiB"]) == 0
    assert capsys.readouterr().out.splitlines() == ACTIONS
    master.answer = Scaled()
    assert main(["resize", "worker-0", "last", "--cores", "1.5", "--memory", "100000000"]) == 0
    assert capsys.readouterr().out == "worker-0 has that already.\n"
    assert master.asked == [ResizeRequest("ps-0", None, 2 << 30), ResizeRequest("worker-0", 1.5, 100_000_000)]


def test_resize_as_json_and_by_job_handle(master: Master, capsys: Capture) -> None:
    assert main(["resize", "ps-0", "--cores", "2", "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    check("## resize", value)
    assert value == {"job": value["job"], "node": "ps-0", "cores": 2.0, "memory": None, "actions": ACTIONS}
    handle = JobHandle.find()
    assert handle.resize("ps-0", memory="1.5GiB") == handle.resize("ps-0", memory=3 << 29) == ACTIONS
    assert master.asked[1] == master.asked[2]
    for wrong in (dict[str, Any](), {"cores": 0}, {"cores": float("inf")}, {"memory": -1}, {"memory": "much"}):
        with pytest.raises(UsageError):
            handle.resize("ps-0", **wrong)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["resize"], "Which node?"),
        (["resize", "ps-0"], "Nothing to change"),
        (["resize", "ps-0", "--cores", "few"], "write a number of cores"),
        (["resize", "ps-0", "--cores", "-1"], "from 0.01 to 100,000 cores"),
        (["resize", "ps-0", "--cores", "nan"], "from 0.01 to 100,000 cores"),
        (["resize", "ps-0", "--memory", "2 apples"], "write 512MiB, 1.5GiB"),
        (["resize", "ps-0", "--cores", "1e-300"], "from 0.01 to 100,000 cores"),
        (["resize", "ps-0", "--cores", "1e308"], "from 0.01 to 100,000 cores"),
        (["resize", "ps-0", "--memory", "0"], "from 16 MiB to 1024 TiB"),
        (["resize", "ps-0", "--memory", "1024"], "from 16 MiB to 1024 TiB"),
        (["resize", "ps-0", "--memory", "99999999999999TiB"], "from 16 MiB to 1024 TiB"),
        (["resize", "ps-0", "--memory", f"{'9' * 400}TiB"], "Error: --memory"),
    ],
)
def test_senseless_resize_arguments_are_refused(
    arguments: list[str], said: str, master: Master, capsys: Capture
) -> None:
    assert main(arguments) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert said in output.err
    assert len(output.err.splitlines()) <= 2
    assert master.asked == []


@pytest.mark.parametrize(("code", "exit_code"), [("refused", 1), (UNUSABLE, 2)])
def test_a_refused_resize_is_an_error_with_its_hint(code: str, exit_code: int, master: Master, capsys: Capture) -> None:
    master.answer = Failure(code, "500 MiB are in use", "Move slots off it.")
    assert main(["resize", "ps-0", "--memory", "512MiB", "--wait"]) == exit_code
    assert capsys.readouterr().err == "Error: 500 MiB are in use\nMove slots off it.\n"


def test_resize_of_an_ended_job_is_refused(capsys: Capture) -> None:
    job = make_job()
    job.write_result(Result("stopped", time.time(), "by request"))
    assert main(["resize", "ps-0", "--cores", "2"]) == 1
    assert f"there is no node to resize: {job.id} has been stopped" in capsys.readouterr().err


def test_resize_wait_ends_when_the_node_has_its_size_or_never_will(master: Master, capsys: Capture) -> None:
    master.stages = [waiting(), waiting(), server(512 * MIB)]
    assert main(["resize", "ps-0", "--memory", "512MiB", "--wait"]) == 0
    assert len(master.stages) == 1
    assert main(["resize", "ps-0", "--memory", "256MiB", "--wait"]) == 1
    error = capsys.readouterr().err
    assert "ps-0 stays with 0.5 cores and 512 MiB\ndlrover-lite story ps-0 says why." in error
    master.stages = [server(1 << 30, state="ended (Killed)")]
    assert main(["resize", "ps-0", "--memory", "256MiB", "--wait"]) == 1
    assert "ps-0 has ended before it was resized" in capsys.readouterr().err


def test_status_shows_what_a_resize_waits_for(master: Master, capsys: Capture) -> None:
    master.stages = [waiting()]
    assert main(["status"]) == 0
    assert f"\nresizing   ps-0 {WAITS}\n" in capsys.readouterr().out
    assert under_way(master.status(JobHandle.find().job)) == f"ps-0 {WAITS}"
    assert main(["status", "--json"]) == 0
    (node,) = json.loads(capsys.readouterr().out)["nodes"]
    check("### nodes", node)
