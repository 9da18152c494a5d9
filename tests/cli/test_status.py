"""``status`` of limits, usage and restarts."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import msgspec
import pytest

from dlrover_lite.cli.main import main
from dlrover_lite.client.handle import JobHandle
from dlrover_lite.core.expected_end import ExpectedEnd
from dlrover_lite.core.units import MIB, format_bytes
from dlrover_lite.core.words import at_time
from dlrover_lite.jobs.store import Job, Result
from dlrover_lite.protocol.questions import ExportStatus, NextLook, NodeStatus, RestoreStatus, Status, to_builtins
from dlrover_lite.transport.frames import Failure
from tests.cli.documented import check
from tests.cli.scripted_master import NODES, make_job, running_job, status_of

Capture = pytest.CaptureFixture[str]
ENFORCED = {"enforcement": "cgroup v1", "not_enforced": ["swap", "memory of the page cache"]}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DLROVER_LITE_HOME", str(tmp_path / "home"))


def ended(**changes: object) -> None:
    job = make_job()
    job.write_result(Result("succeeded", time.time(), status=to_builtins(status_of(job, **changes))))


def test_status_shows_limits_usage_and_master_restarts(capsys: Capture) -> None:
    ended(**ENFORCED, master_restarts=1)
    assert main(["status"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1:5] == [
        "limits     cgroup v1",
        "           not enforced: swap",
        "           not enforced: memory of the page cache",
        "master     killed and started again 1 time; the job went on",
    ]
    assert lines[-3].split() == ["NODE", "STATE", "SAMPLES/S", "CORES", "THROTTLED", "MEMORY", "PEAK"]
    assert lines[-2].split()[3:] == ["0.40/0.5", "6%", "300", "MiB/1", "GiB", "400", "MiB"]
    assert lines[-1].split()[3:] == ["0.75/0.75", "40%", "512", "MiB/1", "GiB", "612", "MiB"]
    assert max(map(len, lines)) <= 80


def test_status_as_json(capsys: Capture) -> None:
    ended(**ENFORCED)
    assert main(["status", "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    check("## status", value)
    for node in value["nodes"]:
        check("### nodes", node)
    assert value["limits"] == "cgroup v1; not enforced: swap; not enforced: memory of the page cache"
    assert (value["enforcement"], value["master_restarts"]) == ("cgroup v1", 0)


def test_status_says_that_nodes_share_their_cores(capsys: Capture) -> None:
    """They are throttled together: it is one share of the time for all that run."""
    nodes = [*NODES, NodeStatus("worker-1", "worker", "ended (Killed)", 0.75, 1 << 30, 0.0, 7.5, 0, 5.0)]
    ended(**{**ENFORCED, "enforcement": "cgroup v1", "shared_cores": True, "nodes": nodes})
    assert main(["status"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1:4] == [
        "limits     cgroup v1",
        "           one CPU limit for all nodes: what one doesn't use, others may",
        "           not enforced: swap",
    ]
    share = f"{5.0 / (5.0 + 4.0 + 7.5):.0%}"
    assert [line.split()[:5] for line in lines if "/0." in line and "up" in line] == [
        ["ps-0", "up", "-", "0.40/0.5", share],
        ["worker-0", "up", "52,000", "0.75/0.75", share],
    ]
    assert share not in lines[-1]
    assert max(map(len, lines[:5])) <= 80
    assert main(["status", "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["shared_cores"] and "one CPU limit for all nodes" in value["limits"]


def test_status_of_unknown_limits(capsys: Capture) -> None:
    """Of a job without nodes yet nothing is said; of one from before limits were, that."""
    make_job()
    assert main(["status"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1
    ended()
    assert main(["status"]) == 0
    text = capsys.readouterr().out
    assert "limits     not known" in text and "\nmaster " not in text


def test_status_of_a_failed_job_that_left_no_status(capsys: Capture) -> None:
    job = make_job()
    job.write_result(Result("failed", time.time(), "its keeper could not start"))
    assert main(["status"]) == 0
    assert f"{job.id}: failed (its keeper could not start)" in capsys.readouterr().out


@pytest.mark.parametrize(("size", "text"), [(999 * MIB, "999 MiB"), (1023 * MIB, "1023 MiB"), (1024 * MIB, "1 GiB")])
def test_sizes_are_formatted_shortly(size: int, text: str) -> None:
    assert format_bytes(size) == text


def test_status_shows_a_message_of_several_lines(capsys: Capture) -> None:
    job = make_job()
    job.write_result(Result("failed", time.time(), "the template has ended (killed by SIGKILL):\nlast words"))
    assert main(["status"]) == 0
    assert capsys.readouterr().out.splitlines()[:2] == [
        f"{job.id}: failed (the template has ended (killed by SIGKILL))",
        "last words",
    ]


@pytest.mark.parametrize(
    ("look", "says"),
    [
        (NextLook(time.time() + 86_400, ""), "brain      next look in "),
        (NextLook(1.0, ""), "brain      next look any moment\n"),
        (
            NextLook(None, "autoscaling is paused: by request"),
            "no look for now: autoscaling is paused: by request",
        ),
    ],
)
def test_status_says_when_the_brain_looks_next(look: NextLook, says: str, capsys: Capture) -> None:
    def refuse(_: msgspec.Struct) -> msgspec.Struct:
        return Failure("refused", "nothing else is answered")

    with running_job(refuse, status=lambda job: status_of(job, next_look=look)):
        assert main(["status"]) == 0
        assert says in capsys.readouterr().out
        assert main(["status", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["next_look"] == {"at": look.at, "why": look.why}
    ended(next_look=look)
    assert main(["status"]) == 0
    assert "brain " not in capsys.readouterr().out


def test_all_commands_tell_the_same_expected_end(capsys: Capture) -> None:
    """In the midst of an evaluation hardly anything is trained: the rate of the last seconds says nothing."""
    end = ExpectedEnd(float(int(time.time()) + 250), 20.0)
    clock = time.strftime("%H:%M:%S", time.localtime(end.at))

    def refuse(_: msgspec.Struct) -> msgspec.Struct:
        return Failure("refused", "nothing else is answered")

    def status(job: Job) -> Status:
        return status_of(job, samples=1000, total_samples=500_000, samples_per_second=2.0, expected_end=end)

    def said(*arguments: str) -> str:
        assert main([*arguments]) == 0
        return capsys.readouterr().out

    with running_job(refuse, status=status) as job:
        assert JobHandle(job.id).status().expected_end == end
        assert json.loads(said("status", "--json"))["expected_end"] == {"at": end.at, "error_seconds": 20.0}
        assert re.search(r"4:(0\d|10) left ±20s", said("status"))
        for command in (("top",), ("tui", "--once", "--job", job.id)):
            assert f"ends {clock} ±20s" in said(*command)
        job.write_status(to_builtins(status(job)))
        assert f"{clock} ±20s" in said("tui", "--once")
    ended(expected_end=end)
    assert "left" not in said("status")
    assert json.loads(said("status", "--json"))["expected_end"] is None


def test_status_shows_a_restore_and_an_export_under_way(capsys: Capture) -> None:
    restoring = RestoreStatus(12, 1e9, 9_000_000, 36_000_000, 1 << 30, 4 << 30, 3e6, 210 << 20, 12.0)
    exporting = ExportStatus(1e9, 9_000_000, 36_000_000, 3e6, 9.0)
    with running_job(lambda _: None, status=lambda job: status_of(job, restoring=restoring, exporting=exporting)):
        assert main(["status"]) == 0
        text = capsys.readouterr().out
        since = f", since {at_time(1e9)}"
        assert f"restoring  25%, 9.00 M of 36.0 M rows, 1 GiB of 4 GiB, 210 MiB/s, 0:12 left{since}" in text
        assert f"exporting  25%, 9.00 M of 36.0 M rows, 3.00 M rows/s, 0:09 left{since}" in text
        assert main(["status", "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    check("### restoring", value["restoring"])
    check("### exporting", value["exporting"])


def test_an_export_under_way_is_not_shown_after_the_jobs_end(capsys: Capture) -> None:
    ended(exporting=ExportStatus(1e9, 9, 36))
    assert main(["status", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["exporting"] is None
