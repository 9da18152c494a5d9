"""One job in a small terminal: what it shows, how it ends, and what it leaves of the terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dlrover_lite.backends.local.jobs.local_jobs import create_job
from dlrover_lite.cli.main import main
from dlrover_lite.jobs.store import Job, Result
from tests.backends.support import recipe
from tests.cli.conftest import start

PATIENCE_SECONDS = 100.0


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    """One that has begun, and will say nothing."""
    monkeypatch.setenv("DLROVER_LITE_HOME", str(tmp_path / "home"))
    return create_job(recipe())


class Terminal:
    """60 x 12, with ``top`` in it."""

    def __init__(self) -> None:
        self.leader, terminal = pty.openpty()
        self.resize(60, 12)
        self.before = termios.tcgetattr(terminal)
        self.running: subprocess.Popen[str] = start(
            ["top", "--interval", "0.1"], stdin=terminal, stdout=terminal, stderr=terminal
        )
        self.terminal = terminal
        self.shown = b""

    def resize(self, width: int, height: int) -> None:
        fcntl.ioctl(self.leader, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    def until(self, wanted: bytes) -> None:
        """Since it was asked last."""
        end = time.monotonic() + PATIENCE_SECONDS
        shown = b""
        while wanted not in shown:
            assert select.select([self.leader], [], [], max(0.0, end - time.monotonic()))[0], shown
            shown += os.read(self.leader, 65536)
        self.shown += shown

    def rest(self) -> str:
        """All that was shown, once it has ended."""
        while select.select([self.leader], [], [], 0)[0]:
            self.shown += os.read(self.leader, 65536)
        return self.shown.decode()

    def ends(self) -> int:
        """Its exit code; the terminal takes keys as it did before."""
        code = self.running.wait(PATIENCE_SECONDS)
        assert termios.tcgetattr(self.terminal) == self.before
        return code

    def close(self) -> None:
        self.running.kill()
        self.running.wait()
        os.close(self.leader)
        os.close(self.terminal)


@pytest.fixture
def terminal(job: Job, monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    monkeypatch.setenv("TERM", "xterm-256color")
    one = Terminal()
    yield one
    one.close()


def test_top_without_a_terminal_prints_one_frame(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top"]) == 0
    out = capsys.readouterr().out
    assert job.id in out
    assert "starting" in out
    assert "\x1b" not in out
    job.write_result(Result("failed", time.time(), "why"))
    assert main(["top", job.id]) == 1
    assert "✗ failed  why" in capsys.readouterr().out


def test_top_of_an_unknown_job_is_an_error(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "none"]) == 1
    assert "There is no job 'none'" in capsys.readouterr().err


def test_top_redraws_on_resize_and_ends_with_the_job(job: Job, terminal: Terminal) -> None:
    terminal.until(b"q leaves")
    assert b"\x1b[?1049h" in terminal.shown
    terminal.resize(80, 24)
    terminal.running.send_signal(signal.SIGWINCH)
    terminal.until(b"\x1b[2J")
    job.write_result(Result("stopped", time.time(), "by hand"))
    terminal.until(b"\x1b[?1049l")
    assert b"\x1b[?7h\x1b[?25h\x1b[?1049l" in terminal.shown
    assert terminal.ends() == 1
    assert "by hand" in terminal.rest()


def test_top_ends_on_q(terminal: Terminal) -> None:
    terminal.until(b"q leaves")
    os.write(terminal.leader, b"q")
    terminal.until(b"\x1b[?1049l")
    assert terminal.ends() == 0


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_top_and_restores_the_terminal(terminal: Terminal, number: int, code: int) -> None:
    terminal.until(b"q leaves")
    terminal.running.send_signal(number)
    terminal.until(b"\x1b[?1049l")
    assert terminal.ends() == code
