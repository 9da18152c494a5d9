"""``story``: of jobs that run, by their master; of ended ones, from their directory; as a timeline and as JSON."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from dlrover_lite.cli.commands.job.story import timeline
from dlrover_lite.cli.main import main
from dlrover_lite.client.handle import JobHandle
from dlrover_lite.core.errors import UsageError
from dlrover_lite.jobs import events
from dlrover_lite.jobs.store import Job, Result
from dlrover_lite.protocol.questions import Story, StoryEntry, StoryRequest, to_builtins
from dlrover_lite.transport.frames import UNUSABLE, Failure
from tests.cli.documented import check
from tests.cli.scripted_master import make_job, running_job, status_of

Capture = pytest.CaptureFixture[str]

BEGAN = 1_800_000_000.0
ENTRIES = [
    StoryEntry(BEGAN + 0.01, "worker-0", "launched with 0.75 cores and 1 GiB"),
    StoryEntry(
        BEGAN + 62.5, "0/17", "raised ValueError: not this many; it is tried alone by another worker", "worker-0"
    ),
    StoryEntry(BEGAN + 90_000, "worker-0", "ended (OOMKilled)\nwith more lines"),
]


@pytest.fixture(autouse=True)
def home(tmp_path: Path) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DLROVER_LITE_HOME", str(tmp_path / "home"))
        patch.setenv("TZ", "UTC")
        time.tzset()
        yield tmp_path / "home"
    time.tzset()


@pytest.fixture
def ended(home: Path) -> Job:
    job = make_job()
    job.write_record(msgspec.structs.replace(job.record(), started_at=BEGAN))
    events.append(job.directory, ENTRIES)
    job.write_result(Result("failed", BEGAN + 90_001, "no more memory", status=to_builtins(status_of(job))))
    return job


def test_story_prints_a_timeline(ended: Job, capsys: Capture) -> None:
    assert main(["story"]) == 0
    output = capsys.readouterr()
    assert output.err == ""
    assert output.out.splitlines() == [
        f"{ended.id}; the job began 2027-01-15 08:00:00",
        "    +0:00.01        08:00:00  worker-0  launched with 0.75 cores and 1 GiB",
        "    +1:02.50        08:01:02  0/17      worker-0: raised ValueError: not this many; it is tried alone by another worker",
        "+25:00:00.00  01-16 09:00:00  worker-0  ended (OOMKilled)",
        "                                        with more lines",
    ]


def test_story_wraps_on_a_narrow_terminal() -> None:
    lines = list(timeline(ENTRIES, BEGAN, 80))
    assert max(map(len, lines)) <= 80
    told = " ".join(" ".join(lines).split())
    assert "worker-0: raised ValueError: not this many; it is tried alone by another worker" in told


def test_a_story_line_names_its_worker_once() -> None:
    (line,) = timeline([StoryEntry(BEGAN, "0/17", "leased to worker-0", "worker-0")], BEGAN, None)
    assert line.endswith("0/17  leased to worker-0")


def test_control_characters_in_a_story_are_removed() -> None:
    (line,) = timeline([StoryEntry(BEGAN, "ps-0", "\x1b[2Jred\ttab")], BEGAN, None)
    assert line.endswith("ps-0   [2Jred tab")


@pytest.mark.parametrize(
    ("subject", "found"),
    [("worker-0", 3), ("0/17", 1), ("0/1-100", 1), ("ps-0", 0), ("master", 0), ("", 3)],
)
def test_story_of_an_ended_job_by_subject(subject: str, found: int, ended: Job, capsys: Capture) -> None:
    assert main(["story", subject, ended.id, "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    check("## story", value)
    assert (value["job"], value["subject"], value["started_at"]) == (ended.id, subject, BEGAN)
    assert len(value["entries"]) == found
    for entry in value["entries"]:
        check("### entries", entry)
    assert main(["story", subject]) == 0
    output = capsys.readouterr()
    assert ("kept nothing" in output.err) == (found == 0) == (output.out == "")


def test_story_takes_a_single_argument_for_a_job(ended: Job, capsys: Capture) -> None:
    for reference in (ended.id, "last"):
        assert main(["story", reference]) == 0
        assert capsys.readouterr().out.startswith(f"{ended.id}; ")


def test_a_torn_last_line_of_the_story_is_reported(ended: Job, capsys: Capture) -> None:
    with (ended.directory / events.FILE).open("ab") as file:
        file.write(b'{"at": 18000')
    assert main(["story", "--json"]) == 0
    output = capsys.readouterr()
    assert len(json.loads(output.out)["entries"]) == len(ENTRIES)
    assert "incomplete" in output.err and str(ended.directory) in output.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["worker-7"], "never been a node 'worker-7'; there are worker-0"),
        (["1/5"], "nearest kept: 0/17"),
        (["eval:1/5"], "nearest kept: 0/17"),
        (["17"], "neither a node nor minibatches: write "),
        (["0/9-3"], "write 0/3-9"),
        (["eval", "0/5"], "story eval:0/5"),
        (["no such"], "neither a node nor minibatches: write "),
    ],
)
def test_bad_story_subjects_are_refused_in_one_line(
    arguments: list[str], said: str, ended: Job, capsys: Capture
) -> None:
    assert main(["story", *arguments]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    (line,) = output.err.splitlines()
    assert said in line


def test_story_of_an_unknown_job_names_the_nearest(ended: Job, capsys: Capture) -> None:
    assert main(["story", "worker-0", "nosuch"]) == 1
    assert f"the nearest: {ended.id}" in capsys.readouterr().err


def test_story_of_a_running_job_is_asked_of_its_master(capsys: Capture) -> None:
    asked: list[str] = []

    def answer(request: msgspec.Struct) -> msgspec.Struct:
        assert isinstance(request, StoryRequest)
        asked.append(request.subject)
        if request.subject == "worker-9":
            return Failure(UNUSABLE, "There has never been a node 'worker-9'; there are worker-0")
        return Story(ENTRIES[:1], forgotten=1200)

    with running_job(answer) as job:
        assert main(["story", "eval:0/05-7"]) == 0
        output = capsys.readouterr().out
        assert output.splitlines()[1] == "(1,200 older ones are no longer kept)"
        assert JobHandle.find(job.id).story("worker-0") == Story(ENTRIES[:1], 1200)
        with pytest.raises(UsageError, match="never been"):
            JobHandle.find(job.id).story("worker-9")
        assert main(["story", "worker-9"]) == 2
    assert asked == ["eval 0/5-7", "worker-0", "worker-9", "worker-9"]


def test_story_of_a_job_whose_keeper_was_killed_is_read_from_its_file(capsys: Capture) -> None:
    """Its socket is still there, its master isn't."""
    with running_job(lambda _: Story()) as job:
        record = job.record()
    gone = msgspec.structs.replace(record.launcher, started="never")
    job.write_record(msgspec.structs.replace(record, keeper=gone, launcher=gone))
    events.append(job.directory, ENTRIES[:1])
    assert main(["story", "worker-0"]) == 0
    assert "launched with" in capsys.readouterr().out
