"""Failpoints: what the environment says happens where it says, and nowhere else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dlrover_lite.core.errors import UsageError
from dlrover_lite.core.failpoints import Died, active, armed, failpoint, parse

_COMES_THREE_TIMES = """
from dlrover_lite.core.failpoints import failpoint
for number in range(3):
    failpoint("here")
    failpoint("there")
    print(number, flush=True)
"""


def run(points: str) -> tuple[int, str]:
    environment = {**os.environ, "DLROVER_LITE_FAILPOINTS": points}
    command = [sys.executable, "-c", _COMES_THREE_TIMES]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout.replace("\n", "")


def test_a_failpoint_kills_a_process_as_the_variable_says() -> None:
    assert run("") == (0, "012")
    assert run("elsewhere=kill") == (0, "012")
    assert run("here=kill") == (-signal.SIGKILL, "")
    assert run("elsewhere=kill,there=kill:3") == (-signal.SIGKILL, "01")
    assert run("here=kill:4,there=slow:0.001") == (0, "012")


def test_a_failpoint_with_a_file_happens_once(tmp_path: Path) -> None:
    point = f"there=kill:2@{tmp_path / 'once'}"
    assert run(point) == (-signal.SIGKILL, "0")
    assert run(point) == (0, "012")


def test_a_failpoint_pauses_a_process() -> None:
    environment = {**os.environ, "DLROVER_LITE_FAILPOINTS": "here=pause:2"}
    process = subprocess.Popen([sys.executable, "-c", _COMES_THREE_TIMES], env=environment, stdout=subprocess.PIPE)
    try:
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        process.send_signal(signal.SIGCONT)
        output, _ = process.communicate(timeout=20)
        assert output.split() == [b"0", b"1", b"2"]
    finally:
        process.kill()
        process.wait()


def test_an_armed_failpoint_raises_in_the_same_process() -> None:
    failpoint("here")
    with armed("here=raise:2"):
        failpoint("here")
        with pytest.raises(Died):
            failpoint("here")
        failpoint("here")
    assert active("here") is None


def test_a_failpoint_is_slow_until_its_file_is_there(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with armed(f"here=slow:0.05@{gate},here=raise:3"):
        began = time.monotonic()
        failpoint("here")
        assert time.monotonic() - began >= 0.05
        gate.touch()
        failpoint("here")
        with pytest.raises(Died):  # it is both
            failpoint("here")


@pytest.mark.parametrize("text", ["here", "here=", "=kill", "here=burn", "here=kill:0", "here=kill:x", "here=kill:-1"])
def test_texts_that_are_no_failpoints_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is no failpoint"):
        parse(text)
