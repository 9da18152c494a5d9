"""The command: a frame for scripts, what it says where it can't work, and that it runs on a terminal."""

from __future__ import annotations

import os
import pty
import select
import time
from pathlib import Path

import pytest

from dlrover_lite.cli import tui
from dlrover_lite.cli.main import main
from tests.cli.conftest import start

PATIENCE_SECONDS = 100.0


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DLROVER_LITE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_a_frame_needs_no_terminal(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tui", "--once"]) == 0
    assert "dlrover-lite run job.yaml" in capsys.readouterr().out


def test_an_unknown_job_is_an_error(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tui", "--once", "--job", "none"]) == 1
    assert "There is no job 'none'" in capsys.readouterr().err


def test_without_a_terminal_it_says_what_works(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tui"]) == 2
    assert "dlrover-lite tui --once" in capsys.readouterr().err


def test_without_textual_it_says_what_to_install(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tui, "_check_terminal", lambda: None)
    monkeypatch.setattr(tui, "find_spec", lambda _: None)
    assert main(["tui"]) == 2
    assert "pip install 'dlrover-lite[tui]'" in capsys.readouterr().err


def test_it_runs_on_a_terminal_until_q(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
