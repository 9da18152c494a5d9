"""The frame: help without imports, exit codes, and what becomes of errors."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest

from dlrover_lite import __version__
from dlrover_lite.cli import main as frame
from dlrover_lite.cli import reference
from dlrover_lite.cli.groups import CommandGroup, LazyCommand
from dlrover_lite.core.errors import JobError, ModelError

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("torch", "numpy", "numba", "zmq", "msgspec", "ruamel", "rich", "psutil", "platformdirs", "pyarrow")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DLROVER_LITE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def add_command(monkeypatch: pytest.MonkeyPatch, body: object) -> None:
    """Add the command ``boom``, which calls ``body``, for this test."""
    command = click.Command("boom", callback=body)  # type: ignore[arg-type]
    monkeypatch.setattr("dlrover_lite.cli.groups.boom", command, raising=False)
    monkeypatch.setitem(frame.COMMANDS, "boom", LazyCommand("dlrover_lite.cli.groups:boom", "Explode."))


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], ["--version"], [], ["nonsense"]])
def test_help_version_and_usage_errors_import_nothing_heavy(arguments: list[str]) -> None:
    code = (
        "import sys; from dlrover_lite.cli.main import main; main(sys.argv[1:]);"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert frame.main(["--help"]) == 0
    text = capsys.readouterr().out
    for name, command in frame.COMMANDS.items():
        assert f"  {name}" in text and command.help in text


@pytest.mark.parametrize("name", list(frame.COMMANDS))
def test_the_tables_help_is_the_commands_own(name: str) -> None:
    _, text = frame.COMMANDS[name]
    command = frame.cli.get_command(click.Context(frame.cli), name)
    assert command is not None
    assert command.name == name
    assert command.get_short_help_str(200) == text


def test_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert frame.main(["--version"]) == 0
    assert capsys.readouterr().out == f"dlrover-lite {__version__}\n"


@pytest.mark.parametrize("arguments", [[], ["recipe"]])
def test_a_group_alone_prints_its_help(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert frame.main(arguments) == 0
    alone = capsys.readouterr()
    assert frame.main([*arguments, "-h"]) == 0
    assert alone == capsys.readouterr()
    assert alone.out.startswith("Usage: dlrover-lite") and alone.err == ""


def test_a_plain_click_group_alone_prints_its_help_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    group = click.Group("boom", help="A plain group.", commands=[click.Command("x")])
    monkeypatch.setattr("dlrover_lite.cli.groups.boom", group, raising=False)
    monkeypatch.setitem(frame.COMMANDS, "boom", LazyCommand("dlrover_lite.cli.groups:boom", "Explode."))
    assert frame.main(["boom"]) == 0
    assert "A plain group." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["validat"], "No such command 'validat'; did you mean 'validate'?"),
        (["Stats"], "No such command 'Stats'; did you mean 'status'?"),
        (["zzz"], "No such command 'zzz'; known are run, jobs, status"),
        (["recipe", "int"], "No such command 'int'; did you mean 'init'?"),
        (["validate"], "Missing argument 'RECIPE'"),
        (["validate", "--jsn", "x"], "No such option"),
        (["--zzz"], "No such option"),
        (["validate", "x", "--set", "epochs"], "--set epochs: write it as KEY=VALUE"),
    ],
)
def test_wrong_usage_exits_with_2_and_says_why(
    arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert frame.main(arguments) == 2
    output = capsys.readouterr()
    assert expected in output.err
    assert output.out == ""


def test_our_errors_are_printed_as_message_and_hint(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise JobError("job clicks has failed", hint="dlrover-lite logs clicks shows why.")

    add_command(monkeypatch, fail)
    assert frame.main(["boom"]) == 1
    output = capsys.readouterr()
    assert output.err == "Error: job clicks has failed\ndlrover-lite logs clicks shows why.\n"


def test_errors_of_user_code_show_the_users_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        error = ModelError("my_model.py raised")
        vars(error)["user_traceback"] = "Traceback: line 3"
        raise error

    add_command(monkeypatch, fail)
    assert frame.main(["boom"]) == 1
    assert capsys.readouterr().err == "Traceback: line 3\nError: my_model.py raised\n"


def test_a_bug_is_reported_in_one_line_and_a_crash_file(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise ZeroDivisionError("by\nzero")

    add_command(monkeypatch, fail)
    assert frame.main(["boom"]) == 70
    (line,) = capsys.readouterr().err.splitlines()
    (crash,) = (home / "state" / "crashes").iterdir()
    assert "This is a bug in dlrover-lite" in line and "ZeroDivisionError" in line and str(crash) in line
    assert "in fail" in crash.read_text()


def test_a_bug_without_a_writable_home_prints_its_traceback(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    home.write_text("a file where the directory should be")
    add_command(monkeypatch, fail)
    assert frame.main(["boom"]) == 70
    error = capsys.readouterr().err
    assert "in fail" in error and "The traceback is above" in error.splitlines()[-1]


def test_exit_codes_of_commands_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    add_command(monkeypatch, lambda: click.get_current_context().exit(3))
    assert frame.main(["boom"]) == 3


def test_ctrl_c_exits_with_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    add_command(monkeypatch, lambda: os.kill(os.getpid(), signal.SIGINT))
    assert frame.main(["boom"]) == 130
    assert capsys.readouterr().err.strip() == "Interrupted."


def test_ctrl_c_during_import_exits_with_130(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("raise KeyboardInterrupt\n")
    path = os.pathsep.join([str(tmp_path), str(Path(frame.__file__).parents[2])])
    done = subprocess.run(
        [sys.executable, "-m", "dlrover_lite"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (130, "Interrupted.\n")


@pytest.mark.parametrize("arguments", [["recipe", "schema"], ["recipe", "init"], ["--help"]])
def test_a_reader_that_goes_away_is_no_error(arguments: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "dlrover_lite", *arguments]
    with os.fdopen(writing, "w") as out:
        done = subprocess.run(command, cwd=ROOT, stdout=out, stderr=subprocess.PIPE, text=True, check=False)
    assert done.stderr == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("arguments", [["recipe", "schema"], ["--help"]])
def test_output_that_finds_no_room_is_no_bug(arguments: list[str], home: Path) -> None:
    command = [sys.executable, "-m", "dlrover_lite", *arguments]
    with Path("/dev/full").open("w") as out:
        done = subprocess.run(command, cwd=ROOT, stdout=out, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert "No space left" in done.stderr
    assert len(done.stderr.splitlines()) == 2 and not home.exists()


def test_a_removed_current_directory_is_an_error_not_a_bug(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert frame.main(["validate", "job.yaml"]) == 2
    assert capsys.readouterr().err == "Error: The current directory doesn't exist any more.\nChange to another one.\n"


def test_windows_is_sent_to_wsl(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    assert frame.main(["--help"]) == 2
    output = capsys.readouterr()
    assert "WSL2" in output.err and len(output.err.splitlines()) == 1 and output.out == ""


def test_command_groups_are_consistent() -> None:
    for name, command, _ in reference.walk():
        assert not isinstance(command, click.Group) or isinstance(command, CommandGroup), name


_NEEDED = {
    "export": ["--to", "x"],
    "scale": ["--workers", "2"],
    "whatif": ["--workers", "2"],
    "move": ["--slots", "1", "--to", "ps-1"],
    "drain": ["ps-0"],
    "kill": ["ps-0"],
    "resize": ["ps-0", "--cores", "1"],
    "run": ["--resume"],
}
_ASKS_THE_BRAIN = {
    "explain": "There is no history yet",
    "top": "There is no job 'last'",
    "whatif": "There is no history yet",
}


def test_every_command_that_takes_a_job_takes_the_newest_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where there is none, all of them say so; ``history`` without a job lists all."""
    monkeypatch.setenv("DLROVER_LITE_HOME", str(tmp_path))
    asked = []
    for name, command, _ in reference.walk():
        takes_job = any("JOB" in (one.metavar or "") for one in command.params if isinstance(one, click.Argument))
        if takes_job and name != "dlrover-lite history":
            words = name.split()[1:]
            asked.append(words[0])
            assert frame.main([*words, *_NEEDED.get(words[0], [])]) in (1, 2), name
            none = _ASKS_THE_BRAIN.get(words[0], "There are no jobs in")
            assert none in capsys.readouterr().err, name
    assert {"status", "stop", "checkpoint", "checkpoints", "export", "autoscale", "run"} <= set(asked)
    for words in (["checkpoint"], ["checkpoint", "--json"], ["checkpoint", "--no-wait"]):
        assert frame.main(words) == 1
        assert "There are no jobs in" in capsys.readouterr().err
    assert frame.main(["checkpoint", "--help"]) == 0


def test_every_command_and_option_is_explained() -> None:
    for name, command, _ in reference.walk():
        assert (command.help or "").strip(), name
        options = [parameter for parameter in command.params if isinstance(parameter, click.Option)]
        assert all(option.help or option.hidden for option in options), name


def test_the_reference_is_up_to_date(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    written = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    assert written == reference.reference(), "run: python -m dlrover_lite.cli.reference > docs/cli.md"
