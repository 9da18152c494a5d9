"""However a job has ended, and whatever is left of it: the words name what it can go on from, and the commands that work then."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from dlrover_lite.cli.main import main
from dlrover_lite.client import handle, resuming
from dlrover_lite.core.errors import JobError
from dlrover_lite.jobs import endings
from dlrover_lite.jobs.checkpoint_location import destination
from dlrover_lite.jobs.store import Beginning, Job
from dlrover_lite.protocol.questions import to_builtins
from tests.cli.ended_jobs import cut_of, ended_job, recipe_of

ENDS = ("stopped", "failed", "lost")
Say = Callable[..., str]


@pytest.fixture
def say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Say:
    """All that a command prints."""
    monkeypatch.setenv("DLROVER_LITE_HOME", str(tmp_path / "home"))

    def say(*arguments: str, code: int | tuple[int, ...] = 0) -> str:
        got = main(list(arguments))
        out, err = capsys.readouterr()
        assert got in (code if isinstance(code, tuple) else (code,)), out + err
        return out + err

    return say


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """Jobs that were about to be started, with the checkpoint that they begin with (None: with none)."""
    found: list[tuple[str, Any]] = []

    def go_on(job: Job, chosen: Any, **_: Any) -> None:
        found.append((job.id, chosen))
        raise JobError("it was to be started")

    def launch(recipe: Any, *, beginning: Any = None, **_: Any) -> None:
        found.append((recipe.name, beginning))
        raise JobError("it was to be started")

    monkeypatch.setattr(handle, "go_on", go_on)
    monkeypatch.setattr(handle, "launch", launch)
    return found


def commands(text: str) -> list[list[str]]:
    """Those named after a colon at a line's end, as arguments."""
    return [shlex.split(found) for found in re.findall(r": dlrover-lite (.*)$", text, re.MULTILINE)]


def recorded(job: Job, number: int) -> None:
    """As the master wrote its status last."""
    newest = {"number": number, "at": 1.0, "samples": 192, "rows": 1, "bytes": 1, "seconds": 1.0}
    from dlrover_lite.jobs import final_status

    checkpoints = {"newest": newest, "under_way": None, "problem": None, "stalls": []}
    job.write_status({**to_builtins(final_status.starting(job)), "checkpoints": checkpoints})


class Left(NamedTuple):
    job: Job
    where: Path
    """The destination of its checkpoints."""


def left(state: str, tmp_path: Path, **changes: Any) -> Left:
    job = ended_job(recipe_of(**{"checkpoint.directory": str(tmp_path / "mount"), **changes}), state)
    return Left(job, Path(destination(job.recipe, job.id, job.directory)))


@pytest.mark.parametrize("state", ENDS)
def test_ended_job_with_a_whole_checkpoint_says_how_to_resume(say: Say, begun: Any, tmp_path: Path, state: str) -> None:
    job, _ = left(state, tmp_path)
    cut_of(job, 1), cut_of(job, 2)
    text = say("status", job.id)
    assert "go on from checkpoint 2: " in text
    assert ("Once that is mended" in text) == (state == "failed")
    assert "train it again" not in text
    resume, export, evaluate = commands(text)
    assert resume == ["run", "--resume", job.id]
    say(*resume, code=1)
    ((who, chosen),) = begun
    assert (who, chosen.manifest.cut) == (job.id, 2)
    assert export == ["export", "--from", job.id, "--to", "DIR"]
    say(*export[:-1], str(tmp_path / "model"))
    assert (tmp_path / "model" / "model.json").is_file()
    assert "AUC" in say(*evaluate)
    assert f"export --from {job.id}" in say("export", job.id, "--to", "x", code=1)
    assert f"evaluate --from {job.id}" in say("evaluate", job.id, code=1)


@pytest.mark.parametrize("state", ENDS)
@pytest.mark.parametrize("off", [False, True])
def test_ended_job_without_checkpoints_says_train_again(
    say: Say, begun: Any, tmp_path: Path, state: str, off: bool
) -> None:
    job = left(state, tmp_path).job if not off else ended_job(recipe_of(checkpoint="off"), state)
    for text in (say("status", job.id), say("run", "--resume", job.id, code=1)):
        assert "What it had learned is gone." in text
        assert ("`checkpoint: off`" in text) == off
        (again,) = commands(text)
        say(*again, code=1)
        assert begun.pop() == ("small", None)
    assert f"There are no checkpoints of {job.id}" in say("checkpoints", job.id)


@pytest.mark.parametrize("state", ENDS)
@pytest.mark.parametrize("how", ["unmounted", "emptied"])
@pytest.mark.parametrize("record", ["status", "beginning"])
def test_ended_job_whose_destination_is_not_mounted_says_so(
    say: Say, tmp_path: Path, state: str, how: str, record: str
) -> None:
    """Its keeper may have been killed right after ``run --resume``: then nothing but the beginning is there of what it had."""
    job, where = left(state, tmp_path)
    cut_of(job, 27)
    if record == "status":
        recorded(job, 27)
    else:
        job.write_beginning(Beginning(1, str(where), 27))
    shutil.rmtree(where.parent)
    (where if how == "emptied" else where.parent).mkdir(parents=True)
    for text in (
        say("status", job.id),
        say("run", "--resume", job.id, code=1),
        say("checkpoints", job.id, code=1),
        say("checkpoint", "verify", job.id, code=2),
        say("export", "--from", job.id, "--to", str(tmp_path / "x"), code=1),
    ):
        assert f"Checkpoint 27 of {job.id} was complete, but there is none at {where} now." in text
        assert "Is its disk mounted, or was it emptied?" in text
        assert "train it again" not in text and "is gone" not in text
        assert ["run", "--resume", job.id] in commands(text)


def test_job_killed_right_after_resuming_can_be_resumed(say: Say, begun: Any, tmp_path: Path) -> None:
    job, where = left("lost", tmp_path)
    cut_of(job, 27)
    job.write_beginning(Beginning(1, str(where), 27))
    shown = msgspec.json.decode(say("status", job.id, "--json"))
    assert shown["checkpoints"]["newest"]["number"] == 27
    assert commands(shown["hint"])[0] == ["run", "--resume", job.id]


@pytest.mark.parametrize("state", ENDS)
def test_ended_job_whose_destination_can_not_be_read_says_so(say: Say, tmp_path: Path, state: str) -> None:
    job, where = left(state, tmp_path)
    where.parent.symlink_to(where.parent)
    for text in (say("status", job.id), say("run", "--resume", job.id, code=1)):
        assert f"The checkpoints of {job.id} can't be read now: " in text
        assert "train it again" not in text and "is gone" not in text.replace("destination is gone", "")
        assert ["run", "--resume", job.id] in commands(text)
    say("checkpoints", job.id, code=1)


def test_ended_job_whose_destination_hangs_is_told_of_in_time(
    say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import threading

    from dlrover_lite.checkpoint.local import LocalDirectory

    job, _ = left("stopped", tmp_path)
    answers = threading.Event()
    monkeypatch.setattr(LocalDirectory, "exists", lambda _: answers.wait(60) and False)
    monkeypatch.setattr(endings, "PATIENCE_SECONDS", 0.05)
    try:
        text = say("status", job.id)
    finally:
        answers.set()
    assert "hasn't answered for 0.05 s" in text
    assert "train it again" not in text


@pytest.mark.parametrize("state", ENDS)
def test_ended_job_with_only_damaged_checkpoints_says_train_again(
    say: Say, begun: Any, tmp_path: Path, state: str
) -> None:
    job, where = left(state, tmp_path)
    for cut in (1, 2):
        cut_of(job, cut)
        next((where / f"cut-0000000{cut}").glob("*.part")).unlink()
    for text in (say("status", job.id), say("run", "--resume", job.id, code=1)):
        assert f"No checkpoint of {job.id} can be used:" in text
        assert text.index("  checkpoint 2: ") < text.index("  checkpoint 1: ")
        (again,) = commands(text)
        say(*again, code=1)
        assert begun.pop() == ("small", None)


def test_checkpoint_found_damaged_while_restoring_is_passed_over(say: Say, tmp_path: Path) -> None:
    job, where = left("failed", tmp_path)
    cut_of(job, 1), cut_of(job, 2)
    job.write_beginning(Beginning(3, str(where), 2, damaged={str(where): {2: "block 3 is another"}}))
    text = say("status", job.id)
    assert "Passed over: checkpoint 2: block 3 is another" in text
    assert "go on from checkpoint 1: " in text
    assert re.search(r"^ +2 .* damaged$", say("checkpoints", job.id), re.MULTILINE)


def test_missing_newest_checkpoint_is_passed_over_for_an_older_one(say: Say, tmp_path: Path) -> None:
    job, _ = left("lost", tmp_path)
    cut_of(job, 1)
    recorded(job, 3)
    text = say("status", job.id)
    assert "Passed over: checkpoint 3: it isn't there any more" in text
    assert "go on from checkpoint 1: " in text


@pytest.mark.parametrize("state", ENDS)
@pytest.mark.parametrize("only_parameters", [False, True])
def test_job_without_own_checkpoints_begins_again_with_its_first(
    say: Say, begun: Any, tmp_path: Path, state: str, only_parameters: bool
) -> None:
    other, elsewhere = left("stopped", tmp_path)
    cut_of(other, 4)
    job, _ = left(state, tmp_path)
    job.write_beginning(Beginning(1, str(elsewhere), 4, only_parameters=only_parameters))
    text = say("status", job.id)
    assert f"begin again with checkpoint 4 of {other.id}: " in text
    (resume,) = commands(text)
    say(*resume, code=1)
    ((who, chosen),) = begun
    assert (who, chosen.url, chosen.manifest.cut) == (job.id, str(elsewhere), 4)
    assert chosen.only_parameters == only_parameters
    shutil.rmtree(elsewhere)
    assert "Is its disk mounted, or was it emptied?" in say("status", job.id)


def go_on(job: Job, cut: int | None = None) -> None:
    """As ``run --resume`` notes it, of a job that dies before it has another checkpoint."""
    job.write_beginning(resuming.beginning_of(resuming.chosen_for(job, cut), job))


def spoil(where: Path, *cuts: int) -> None:
    for cut in cuts:
        next((where / f"cut-{cut:08}").glob("*.part")).unlink()


def states(say: Say, job: Job) -> dict[int, str]:
    rows = re.findall(r"^ +(\d+) .*?([a-z, ]+)$", say("checkpoints", job.id), re.MULTILINE)
    return {int(number): state.strip() for number, state in rows}


@pytest.mark.parametrize("state", ENDS)
def test_abandoned_checkpoints_are_resumed_from_only_when_named(
    say: Say, begun: Any, tmp_path: Path, state: str
) -> None:
    job, where = left(state, tmp_path)
    for cut in (1, 2, 3):
        cut_of(job, cut)
    go_on(job, 1)
    text = say("status", job.id)
    assert "Passed over: checkpoints 3, 2: abandoned, the job has gone on from an older one" in text
    assert "go on from checkpoint 1: " in text
    assert msgspec.json.decode(say("status", job.id, "--json"))["checkpoints"]["newest"]["number"] == 1
    assert states(say, job) == {1: "complete", 2: "complete, abandoned", 3: "complete, abandoned"}
    listed = msgspec.json.decode(say("checkpoints", job.id, "--json"))["checkpoints"]
    assert [one["abandoned"] for one in listed] == [False, True, True]
    for command, number in ((("--resume", job.id), 1), (("--resume", job.id, "--cut", "3"), 3)):
        say("run", *command, code=1)
        assert begun.pop()[1].manifest.cut == number
    say("run", "--from", job.id, code=1)
    assert begun.pop()[1].cut == 1

    spoil(where, 1)
    text = say("status", job.id)
    assert f"No checkpoint of {job.id} can be used:" in text
    assert text.index("  checkpoint 1: ") < text.index("  checkpoints 3, 2: abandoned")
    assert ["run", "--resume", job.id, "--cut", "3"] in commands(text)

    go_on(job, 3)
    assert "go on from checkpoint 3: " in say("status", job.id)
    spoil(where, 3)
    assert "go on from checkpoint 2: " in say("status", job.id)
    go_on(job)
    assert "go on from checkpoint 2: " in say("status", job.id)


@pytest.mark.parametrize("only_parameters", [False, True])
def test_job_with_only_damaged_checkpoints_names_the_one_it_began_with(
    say: Say, begun: Any, tmp_path: Path, only_parameters: bool
) -> None:
    """Also when it has gone on from one of its own since, or its master has gone back to one."""
    other, elsewhere = left("stopped", tmp_path)
    cut_of(other, 4)
    job, where = left("stopped", tmp_path)
    cut_of(job, 1), cut_of(job, 2)
    chosen = resuming.choose(resuming.Located(resuming.store_of(other), other, 4))
    job.write_beginning(resuming.beginning_of(chosen, only_parameters=only_parameters))
    go_on(job), go_on(job, 1)
    assert "go on from checkpoint 1: " in say("status", job.id)
    spoil(where, 1, 2)
    text = say("status", job.id)
    assert "Passed over: checkpoint 1: " in text
    assert f"begin again with checkpoint 4 of {other.id}: " in text
    say("run", "--resume", job.id, code=1)
    _, again = begun.pop()
    assert (again.url, again.manifest.cut, again.exactly) == (str(elsewhere), 4, True)
    assert again.only_parameters == only_parameters
    shutil.rmtree(elsewhere)
    (command,) = commands(say("status", job.id))
    options = ["--from", f"{elsewhere}:4", *(["--only-parameters"] if only_parameters else [])]
    assert command == ["run", *options, str(job.directory / "recipe.yaml")]


def test_succeeded_job_offers_no_resume(say: Say, tmp_path: Path) -> None:
    job, _ = left("succeeded", tmp_path)
    cut_of(job, 1)
    assert "--resume" not in say("status", job.id)


def test_scaling_an_ended_job_says_how_to_run_it_again(say: Say, tmp_path: Path) -> None:
    job, _ = left("stopped", tmp_path)
    assert f"run {job.directory / 'recipe.yaml'} --set" in say("scale", job.id, "--workers", "2", code=1)
    cut_of(job, 1)
    assert f"run --from {job.id} --set resources.worker.count=2" in say("scale", job.id, "--workers", "2", code=1)
