"""``profile``: what was measured of a job, as text and as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dlrover_lite.cli.main import main
from dlrover_lite.jobs.profiles import FILE, Gap, ProfileLog
from dlrover_lite.jobs.store import Job
from dlrover_lite.protocol.profiles import HostUse, Profile, PsUse, TableUse, WorkerUse
from tests.cli.documented import check
from tests.cli.scripted_master import make_job

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    monkeypatch.setenv("DLROVER_LITE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TZ", "UTC")
    return make_job()


def interval(number: int, *, worker_cpu: float = 9.5, workers: int = 1, minibatches: int = 1000) -> Profile:
    """10 s in which each worker takes so much CPU for its minibatches, and the PS 1 s."""
    each = tuple(
        WorkerUse(
            f"worker-{i}",
            "here",
            1.0,
            minibatches,
            worker_cpu,
            0.5,
            {"read": 2.5, "compute": 7.0, "wait": 1.0},
            {"read": 1.0, "compute": 6.0},
            0.5,
        )
        for i in range(workers)
    )
    total = workers * minibatches
    server = PsUse("ps-0", "here", 0.5, total, 1.0, 1.5, 0.4, 0.0, 1234, 5 << 20, 30 << 20, 40 << 20, 2 * total)
    return Profile(
        "told-1",
        1_000_000.0 + 10 * number,
        10.0,
        100,
        100 * total,
        100 * total * number,
        each,
        (server,),
        (HostUse("here", 4.0, 0.25),),
        0.02,
        (TableUse("t", 8, {"ps-0": 1234}),),
    )


def test_profile_before_anything_is_measured(capsys: Capture) -> None:
    assert main(["profile"]) == 0
    said = capsys.readouterr()
    assert said.out == ""
    assert "has no interval of some seconds in which its plan didn't change so far" in said.err


def test_profile_prints_intervals_gaps_and_bottleneck(job: Job, capsys: Capture) -> None:
    log = ProfileLog(job.directory)
    log.keep(Gap(1_000_000.0, None, "the master was killed"))
    for number in range(1, 5):
        log.keep(interval(number))
    assert main(["profile", "--last", "2"]) == 0
    said = capsys.readouterr()
    lines = said.out.splitlines()
    assert lines[0].endswith("minibatches of 100")
    rows = [line.split("  ") for line in lines]
    cells = [[cell.strip() for cell in row if cell.strip()] for row in rows]
    assert ["10.0 s", "1 x 1", "1 x 0.5", "10,000", "2%", "9.50 ms", "1.00 ms", "0.25"] in [each[1:] for each in cells]
    phases = ["1.00 ms", "0.00 ms", "6.00 ms", "0.00 ms", "2.50 ms"]
    assert ["worker-0", "1,000", "9.50 ms", *phases, "0.95 of 1", "20%", "10%", "5%"] in cells
    assert ["ps-0", "15%", "0.20 ms", "1.00 ms", "0.10 of 0.5", "0%", "1,234", "30 MiB", "40 MiB"] in cells
    assert "The bottleneck: the workers' cores, which alone allow 1" in said.out
    assert "fitted to 4 intervals" in said.out
    assert said.err == ""  # the gap is older than what is shown
    assert main(["profile"]) == 0
    assert "An interval is lost: the master was killed." in capsys.readouterr().err


def test_profile_as_json(job: Job, capsys: Capture) -> None:
    log = ProfileLog(job.directory)
    log.keep(interval(1, workers=2))
    log.keep(Gap(1_000_015.0, 10.0, "why"))
    assert main(["profile", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    check("## profile", found)
    (each,) = found["intervals"]
    check("### intervals", each)
    check("### workers", each["workers"][0])
    check("### ps", each["ps"][0])
    check("### bottleneck", found["bottleneck"])
    check("### limits", found["bottleneck"]["limits"][0])
    assert {limit["name"] for limit in found["bottleneck"]["limits"]} == {
        "workers",
        "ps",
        "pipeline",
        "host",
        "reading",
    }
    assert found["gaps"] == [{"kind": "gap", "at": 1_000_015.0, "seconds": 10.0, "why": "why"}]
    assert each["samples_per_second"] == 20_000
    assert each["tables"] == [{"table": "t", "dim": 8, "rows": {"ps-0": 1234}}]


@pytest.mark.parametrize("last", ["0", "-1", "x", "1.5"])
def test_profile_refuses_an_unusable_last(last: str, capsys: Capture) -> None:
    assert main(["profile", f"--last={last}"]) == 2
    assert f"--last {last}: write a number" in capsys.readouterr().err


def test_damaged_profile_lines_are_left_out(job: Job, capsys: Capture) -> None:
    ProfileLog(job.directory).keep(interval(1))
    with (job.directory / FILE).open("ab") as file:
        file.write(b'{"kind":"prof')  # its writer was killed
    ProfileLog(job.directory).keep(interval(2))
    assert main(["profile", "--json"]) == 0
    said = capsys.readouterr()
    assert [each["at"] for each in json.loads(said.out)["intervals"]] == [1_000_010.0, 1_000_020.0]
    assert "1 of 3 lines" in said.err
