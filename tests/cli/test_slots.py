"""``slots``: the statistics of slots, as a table and as JSON."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dlrover_lite.cli.main import main
from dlrover_lite.client.handle import JobHandle
from dlrover_lite.jobs.store import Result
from dlrover_lite.protocol.questions import HotSlot, MoveStatus, PsSlots, SlotsReport, SlotsRequest
from tests.cli.documented import check
from tests.cli.scripted_master import make_job, running_job

Capture = pytest.CaptureFixture[str]
REPORT = SlotsReport(
    7,
    [PsSlots("ps-0", 3000, 3 << 20, 120.25, 65_432.1, 0.375, 1.25), PsSlots("ps-1", 1096)],
    [HotSlot(17, "ps-0", 118.0, 12_345.6, 0.0625, 5 << 10), HotSlot(4000, "ps-1", 3.25, 9.96, 0.00012, 100)],
    [MoveStatus(3, "ps-0", "ps-1", 100, "copying", 12345)],
)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DLROVER_LITE_HOME", str(tmp_path / "home"))


class Master:
    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.report = REPORT

    def __call__(self, request: msgspec.Struct) -> msgspec.Struct:
        self.asked.append(request)
        return self.report


@pytest.fixture
def master() -> Iterator[Master]:
    answers = Master()
    with running_job(answers):
        yield answers


def test_slots_are_printed_by_server_and_hottest_first(master: Master, capsys: Capture) -> None:
    assert main(["slots"]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.endswith(": 4,096 slots, map 7; measured 1.2 s ago, not everywhere yet")
    assert [line.split() for line in lines] == [
        [],
        ["PS", "SLOTS", "BUSY", "REQUESTS/S", "ROWS/S", "MEMORY"],
        ["ps-0", "3,000", "37.5%", "120", "65,432", "3", "MiB"],
        ["ps-1", "1,096", "-", "-", "-", "-"],
        [],
        ["SLOT", "PS", "BUSY", "REQUESTS/S", "ROWS/S", "MEMORY"],
        ["17", "ps-0", "6.2%", "118", "12,346", "5", "KiB"],
        ["4000", "ps-1", "0.012%", "3.2", "10.0", "100", "B"],
        [],
        ["MOVE", "FROM", "TO", "SLOTS", "STATE", "MOVED", "RATE", "LEFT", "ROWS"],
        ["3", "ps-0", "ps-1", "100", "copying", "-", "-", "-", "12,345"],
    ]
    assert max(map(len, lines)) <= 80
    assert master.asked == [SlotsRequest(10)]


def test_slots_before_anything_is_measured(master: Master, capsys: Capture) -> None:
    master.report = SlotsReport(1, [PsSlots("ps-0", 4096)])
    assert main(["slots", "last", "--hottest", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("map 1; nothing is measured yet")
    assert len(lines) == 4
    assert master.asked == [SlotsRequest(3)]


def test_slots_as_json_and_by_job_handle(master: Master, capsys: Capture) -> None:
    assert main(["slots", "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    check("## slots", value)
    for heading, key in (("### servers", "servers"), ("### hottest", "hottest"), ("### moves", "moves")):
        for each in value[key]:
            check(heading, each)
    assert value["servers"][1]["busy"] is None
    assert JobHandle.find().slots(hottest=2) == REPORT
    assert master.asked[-1] == SlotsRequest(2)


def test_slots_without_a_slot_map_yet_says_to_ask_again(master: Master, capsys: Capture) -> None:
    master.report = SlotsReport(0)
    assert main(["slots"]) == 1
    assert "no slot map yet: its parameter servers are starting" in capsys.readouterr().err


def test_slots_of_an_ended_job_are_refused(capsys: Capture) -> None:
    job = make_job()
    job.write_result(Result("succeeded", time.time()))
    assert main(["slots"]) == 1
    assert f"there are no slots to measure: {job.id} has succeeded at" in capsys.readouterr().err


@pytest.mark.parametrize("number", ["-1", "many", "4097", "1.5"])
def test_slots_refuses_a_senseless_hottest(number: str, master: Master, capsys: Capture) -> None:
    assert main(["slots", "--hottest", number]) == 2
    assert "as in --hottest 20" in capsys.readouterr().err
    assert master.asked == []
