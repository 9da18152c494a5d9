"""The command: a frame for scripts, what it says where it can't work, and that it runs on a terminal."""

from __future__ import annotations

import gzip
import os
import pty
import select
import time
from pathlib import Path
from typing import Any

import pytest

from dlrover_lite.brain.store.database import ConfigStore
from dlrover_lite.brain.store.records import JobEntry, ProfileRecord
from dlrover_lite.brain_server.files import BrainFiles
from dlrover_lite.cli.commands import tui
from dlrover_lite.cli.main import main
from tests.cli.conftest import start

PATIENCE_SECONDS = 100.0


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DLROVER_LITE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_tui_once_needs_no_terminal(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tui", "--once"]) == 0
    assert "dlrover-lite run job.yaml" in capsys.readouterr().out


def test_tui_of_an_unknown_job_is_an_error(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tui", "--once", "--job", "none"]) == 1
    assert "There is no job 'none'" in capsys.readouterr().err


def test_tui_without_a_terminal_names_once(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tui"]) == 2
    assert "dlrover-lite tui --once" in capsys.readouterr().err


def test_tui_without_textual_says_what_to_install(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tui, "_check_terminal", lambda: None)
    monkeypatch.setattr(tui, "find_spec", lambda _: None)
    assert main(["tui"]) == 2
    assert "pip install 'dlrover-lite[tui]'" in capsys.readouterr().err


def test_tui_runs_on_a_terminal_until_q(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leader, terminal = pty.openpty()
    monkeypatch.setenv("TERM", "xterm-256color")
    running = start(["tui"], stdin=terminal, stdout=terminal, stderr=terminal)
    os.close(terminal)
    try:
        _read_until(leader, b"There are no jobs yet")
        os.write(leader, b"q")
        _read_until(leader, None)
        assert running.wait(PATIENCE_SECONDS) == 0
    finally:
        running.kill()
        running.wait()
        os.close(leader)


def _read_until(terminal: int, wanted: bytes | None) -> None:
    """Until this is shown, or (None) until nobody writes any more."""
    shown, end = b"", time.monotonic() + PATIENCE_SECONDS
    while wanted is None or wanted not in shown:
        ready, _, _ = select.select([terminal], [], [], max(0.0, end - time.monotonic()))
        assert ready, shown
        try:
            shown += os.read(terminal, 65536)
        except OSError:  # the other end is closed
            assert wanted is None, shown
            return


# --- recordings and replays ---------------------------------------------------------------------------------------------


@pytest.fixture
def past(home: Path) -> str:
    """A job that the brain knows and that has ended."""
    files = BrainFiles()
    files.make()
    with ConfigStore(files.database) as store:
        ended: dict[str, Any] = {"state": "failed", "ended_at": 1e9 + 90, "message": f"{home}/state/x.py broke"}
        store.put_job(JobEntry(id="ads-1", name="ads", created_at=1e9, started_at=1e9 + 1, **ended))
        store.add_profile(
            ProfileRecord(job="ads-1", at=1e9 + 60, seconds=10.0, samples_per_second=1234.0, workers=1, servers=1)
        )
        store.commit()
    return "ads-1"


Capture = pytest.CaptureFixture[str]


def test_the_history_of_a_job_is_replayed(past: str, capsys: Capture) -> None:
    assert main(["tui", "--replay", "last", "--once"]) == 0
    out = capsys.readouterr().out
    assert "✗ failed" in out
    assert "■ ended  1x    1:30 of 1:30" in out
    assert "keeps no shards" in out
    assert main(["tui", "--replay", "ads", "--once", "--at", "59s"]) == 0
    assert "Nothing is measured yet" in capsys.readouterr().out
    assert main(["tui", "--replay", "ads", "--once", "--at", "60s"]) == 0
    assert "1.23 k" in capsys.readouterr().out


def test_a_history_is_recorded_to_a_file_and_replayed_without_a_terminal(
    past: str, home: Path, capsys: Capture
) -> None:
    file = home / "ads.jsonl"
    assert main(["tui", "--replay", past, "--record", str(file)]) == 0
    assert f"--replay {file}" in capsys.readouterr().err
    written = gzip.decompress(file.read_bytes()).decode()
    assert "~/x.py broke" in written
    assert str(home) not in written
    assert main(["tui", "--replay", str(file), "--once", "--job", "ads"]) == 0
    assert "1:30 of 1:30" in capsys.readouterr().out
    assert main(["tui", "--replay", str(file), "--once"]) == 0
    assert "0 running, 1 in all" in capsys.readouterr().out
    assert main(["tui", "--replay", past, "--record", str(file)]) == 1
    assert "is there already" in capsys.readouterr().err


def test_replay_prefers_a_file_to_a_job_of_the_same_name(
    past: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(past).write_text("something else")
    assert main(["tui", "--replay", past, "--once"]) == 1
    assert "ads-1 is no recording" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--replay", "none"], 1, "There is no job 'none'"),
        (["--replay", "ads-1", "--once", "--at", "noon"], 2, "'noon' is no time"),
        (["--replay", "ads-1", "--once", "--at", "2h"], 2, "1:30 long"),
        (["--replay", "ads-1", "--speed", "100"], 2, "--speed"),
        (["--replay", "ads-1"], 2, "There is no terminal"),
        (["--at", "1m"], 2, "give --replay, too"),
        (["--once", "--record", "x"], 2, "one of --once and --record"),
        (["--record", "x"], 2, "There is no terminal"),
        (["--replay", __file__, "--record", "x"], 2, "is a file already"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_replay_and_record_refuse_senseless_options(
    past: str,
    arguments: list[str],
    code: int,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["tui", *arguments]) == code
    assert said in capsys.readouterr().err
    assert not Path("x").exists()


def test_a_clip_of_a_history_is_written_in_each_format(past: str, tmp_path: Path, capsys: Capture) -> None:
    files = {kind: tmp_path / f"ads.{kind}" for kind in ("svg", "html", "cast")}
    options = [part for kind, file in files.items() for part in (f"--{kind}", str(file))]
    assert main(["tui", "--replay", past, "--from", "30s", "--to", "1m", *options]) == 0
    assert f"{files['cast']}: 32 s of {past}" in capsys.readouterr().err
    assert '"version": 2, "width": 100, "height": 30' in files["cast"].read_text()
    assert main(["tui", "--replay", past, *options]) == 1
    assert "is there already" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--svg", "a.svg"], "about a clip"),
        (["--replay", "ads", "--from", "30s"], "about a clip"),
        (["--replay", "ads", "--svg", "a.svg", "--from", "1m", "--to", "30s"], "would end before it begins"),
        (["--replay", "ads", "--svg", "a.svg", "--from", "soon"], "is no time"),
        (["--replay", "ads", "--svg", "a.svg", "--size", "9x9"], "is no size for a clip"),
        (["--replay", "ads", "--svg", "none/a.svg"], "can't be written"),
    ],
)
def test_clips_that_can_not_be_are_refused(
    past: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture, options: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["tui", *options]) in (1, 2)
    assert said in capsys.readouterr().err
    assert not list(tmp_path.glob("*.svg"))
