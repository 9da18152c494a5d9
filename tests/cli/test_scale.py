"""``scale``: what a person may ask for, and what they are told."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from dlrover_lite.cli.main import main
from dlrover_lite.client.handle import JobHandle
from dlrover_lite.core.errors import JobError, UsageError
from dlrover_lite.jobs.store import Result
from dlrover_lite.protocol.questions import Scaled, ScaleRequest, Status, to_builtins
from dlrover_lite.transport.frames import UNUSABLE, Failure
from tests.cli.documented import check
from tests.cli.scripted_master import make_job, running_job, status_of

Capture = pytest.CaptureFixture[str]
ACTIONS = ["worker-1 is started", "worker-2 is started"]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DLROVER_LITE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


class Master:
    """Has one worker and one PS, and refuses what it is told to."""

    def __init__(self) -> None:
        self.asked: list[ScaleRequest] = []
        self.refusal: Failure | None = None

    def __call__(self, request: msgspec.Struct) -> msgspec.Struct:
        assert isinstance(request, ScaleRequest)
        self.asked.append(request)
        return self.refusal or Scaled(ACTIONS if request.workers == 3 else [])


@pytest.fixture
def master() -> Iterator[Master]:
    answers = Master()
    with running_job(answers):
        yield answers


def test_scale_prints_the_resulting_actions(master: Master, capsys: Capture) -> None:
    assert main(["scale", "--workers", "3"]) == 0
    assert capsys.readouterr().out.splitlines() == ACTIONS
    assert main(["scale", "last", "--workers", "1", "--ps", "1"]) == 0
    assert "has that many already" in capsys.readouterr().out
    assert master.asked == [ScaleRequest(3, None), ScaleRequest(1, 1)]


def test_scale_as_json(master: Master, capsys: Capture) -> None:
    assert main(["scale", "--workers", "3", "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    check("## scale", value)
    assert (value["workers"], value["ps"], value["actions"]) == (3, None, ACTIONS)


def test_job_handle_scales(master: Master) -> None:
    assert JobHandle.find().scale(workers=3) == ACTIONS
    assert JobHandle.find().scale(ps=1) == []
    with pytest.raises(UsageError):
        JobHandle.find().scale(workers=0)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "write --workers N, --ps N, or both"),
        (["--workers", "0"], "write --workers 1 or more"),
        (["--ps", "-1"], "write --ps 1 or more"),
        (["--workers", "2", "--ps", "0"], "write --ps 1 or more"),
        (["--workers", "many"], "write a whole number of nodes to have, as in --workers 3"),
        (["--workers", "2.5"], "write a whole number"),
        (["--workers", ""], "write a whole number"),
        (["--workers", "²"], "write a whole number"),
        (["--workers", "5000"], "at most 4,096 workers"),
        (["--ps", "9" * 30], "write a whole number"),
    ],
)
def test_scale_refuses_bad_numbers_in_one_line(options: list[str], said: str, master: Master, capsys: Capture) -> None:
    assert main(["scale", *options]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    (line,) = output.err.splitlines()
    assert said in line
    assert master.asked == []


@pytest.mark.parametrize(("code", "exit_code"), [("no_slots", 1), (UNUSABLE, 2)])
def test_a_refused_scale_is_an_error_with_its_hint(code: str, exit_code: int, master: Master, capsys: Capture) -> None:
    master.refusal = Failure(code, "there is no room for 9 workers", "Ask for at most 2.")
    assert main(["scale", "--workers", "9"]) == exit_code
    assert capsys.readouterr().err == "Error: there is no room for 9 workers\nAsk for at most 2.\n"
    with pytest.raises((JobError, UsageError), match="no room") as caught:
        JobHandle.find().scale(workers=9)
    assert caught.value.hint == "Ask for at most 2."


@pytest.mark.parametrize("fixed", [True, False])
def test_scale_of_an_ended_job_says_how_it_ended_and_what_to_do(fixed: bool, capsys: Capture) -> None:
    job = make_job(fixed=fixed)
    last: Status = status_of(job, message="ps-0 has run out of memory\nand more")
    job.write_result(Result("failed", time.time(), last.message, status=to_builtins(last)))
    assert main(["scale", "--workers", "3"]) == 1
    output = capsys.readouterr()
    (line,) = output.err.splitlines()
    assert f"{job.id} can't be scaled: it has failed at " in line
    assert "(ps-0 has run out of memory)" in line
    again = f"dlrover-lite run {job.directory / 'recipe.yaml'} --set resources.worker.count=3"
    assert line.partition(" so: ")[2] == again + (
        "" if fixed else f" --set resources.worker.cores=0.75 --set resources.worker.memory={1 << 30}"
    )


def test_scale_of_a_lost_job_is_refused(capsys: Capture) -> None:
    with running_job(lambda _: Scaled()) as job:
        record = job.record()
    gone = msgspec.structs.replace(record.launcher, started="never")
    job.write_record(msgspec.structs.replace(record, keeper=gone, launcher=gone))
    assert main(["scale", "--ps", "2"]) == 1
    assert re.search(r"it has been lost .*resources\.ps\.count=2$", capsys.readouterr().err.strip())


def test_scale_without_a_master_yet_says_to_ask_again(capsys: Capture) -> None:
    make_job()
    assert main(["scale", "--ps", "2"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "ask again in a moment" in line


def test_scale_of_an_unknown_job_names_the_nearest(master: Master, capsys: Capture) -> None:
    assert main(["scale", "nosuch", "--ps", "2"]) == 1
    assert "the nearest: told-" in capsys.readouterr().err
