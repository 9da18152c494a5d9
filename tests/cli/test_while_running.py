"""Jobs that are followed, stopped, detached, and that fail; on a terminal and without one."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import termios
from pathlib import Path

import pytest

from dlrover_lite.cli.main import main
from dlrover_lite.client.handle import JobHandle
from tests.backends.support import until
from tests.cli.conftest import ENDLESS, PATIENCE_SECONDS, start, write_recipe
from tests.cli.documented import check, fields

Capture = pytest.CaptureFixture[str]
REDRAWN = "\r\x1b[2K"


class Terminal:
    """A command with stdout and stderr on a terminal of 80 columns of its own, ctrl-C included."""

    def __init__(self, *arguments: str) -> None:
        self._fd, inner = pty.openpty()
        fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.process = start(
            arguments, stdin=inner, stdout=inner, stderr=inner, start_new_session=True, preexec_fn=_control_terminal
        )
        os.close(inner)
        self.text = ""

    def read_until(self, pattern: str = "") -> None:
        """Until what it wrote matches; by default until its end."""
        while not (pattern and re.search(pattern, self.text)):
            try:
                new = os.read(self._fd, 1 << 16)
            except OSError:  # all its ends are closed
                break
            if not new:
                break
            self.text += new.decode()
        assert not pattern or re.search(pattern, self.text), self.text

    def press_ctrl_c(self) -> None:
        os.write(self._fd, b"\x03")

    def close(self) -> int:
        """The window is closed; the command's exit code."""
        os.close(self._fd)
        return self.process.wait(PATIENCE_SECONDS)

    def end(self) -> int:
        self.read_until()
        os.close(self._fd)
        return self.process.wait(PATIENCE_SECONDS)


def _control_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def job_of(text: str) -> JobHandle:
    found = re.search(r"^job (\S+)", text.replace(REDRAWN, "\n"), re.MULTILINE)
    assert found is not None, text
    return JobHandle.find(found[1])


def test_run_on_a_terminal_counts_a_bad_line(tmp_path: Path) -> None:
    path = tmp_path / "clicks.csv"
    rows = [f"{i * 7 % 3 % 2},0.{i % 9},u{i % 40}" for i in range(3000)]
    rows[1234] = "maybe,0.5,u1"
    path.write_text("\n".join(["clicked,price,user", *rows]) + "\n")
    recipe = tmp_path / "clicks.yaml"
    recipe.write_text(
        "version: 1\nname: clicks\nmodel: wide_deep\nexport: {format: none}\n"
        "data: {format: csv, train: [clicks.csv], label: clicked, dense: [price], categorical: [user]}\n"
        "training: {batch_size: 128}\n"
        "resources: {ps: {count: 1, cores: 0.5, memory: 1GiB}, worker: {count: 1, cores: 0.5, memory: 1GiB}}\n"
    )
    terminal = Terminal("run", str(recipe), "--set", "training.epochs=2")
    assert terminal.end() == 0, terminal.text
    lines = [line.rstrip("\r") for line in terminal.text.replace(REDRAWN, "\n").split("\n")]
    live = [line for line in lines if re.search(r"\d nodes|starting", line)]
    assert live and max(map(len, live)) < 80
    job = job_of(terminal.text)
    shown = terminal.text
    assert f"{job.id} succeeded" in shown
    assert "5,400 of 5,400 (2 epochs)" in shown
    assert f"{path}:1236: label column 'clicked' is 'maybe', expected 0 or 1" in shown
    assert f"dlrover-lite status {job.id}" in shown
    assert f"dlrover-lite run {recipe} --set training.epochs=4" in shown.replace("\r\n", "")
    assert "best reachable" not in shown
    assert main(["evaluate", job.id]) == 1


def test_ctrl_c_stops_cleanly(tmp_path: Path) -> None:
    terminal = Terminal("run", str(write_recipe(tmp_path, "stopped", ENDLESS)))
    terminal.read_until(r"\d nodes")
    terminal.press_ctrl_c()
    assert terminal.end() == 130
    assert "stopping (ctrl-C again to kill)" in terminal.text
    job = job_of(terminal.text)
    assert job.state() == "stopped" and job.known().over
    assert "no model was exported" in terminal.text and "Traceback" not in terminal.text


def test_ctrl_c_twice_kills(tmp_path: Path) -> None:
    terminal = Terminal("run", str(write_recipe(tmp_path, "killed", ENDLESS)))
    terminal.read_until("starting")
    terminal.press_ctrl_c()
    terminal.read_until("stopping")
    terminal.press_ctrl_c()
    assert terminal.end() == 130
    job = job_of(terminal.text)
    assert job.state() == "stopped" and job.known().over


def test_a_job_is_stopped_when_nobody_reads_its_progress(tmp_path: Path) -> None:
    run = start(["run", str(write_recipe(tmp_path, "unseen", ENDLESS))])
    assert run.stderr is not None and run.stdout is not None
    said = [run.stderr.readline(), run.stderr.readline()]
    run.stderr.close()
    assert run.stdout.read() == ""
    run.stdout.close()
    assert run.wait(PATIENCE_SECONDS) == 1
    job = job_of(said[1])
    assert job.state() == "stopped" and job.known().over


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGKILL])
def test_a_job_ends_when_its_run_command_is_killed(number: int, tmp_path: Path) -> None:
    run = start(["run", str(write_recipe(tmp_path, "orphan", ENDLESS))])
    assert run.stderr is not None
    said = [run.stderr.readline(), run.stderr.readline()]
    run.send_signal(number)
    run.communicate(timeout=PATIENCE_SECONDS)
    assert run.returncode == (-number if number == signal.SIGKILL else 128 + number)
    job = job_of(said[1])
    result = job.wait(PATIENCE_SECONDS)
    what = "command that started the job has ended"
    if number == signal.SIGHUP:
        what = "terminal of the command that started the job was closed"
    assert (result.state, result.message) == ("stopped", f"the {what}")


def test_a_closed_terminal_stops_the_job_cleanly(tmp_path: Path) -> None:
    terminal = Terminal("run", str(write_recipe(tmp_path, "closed", ENDLESS)))
    terminal.read_until(r"\d nodes")
    assert terminal.close() == 128 + signal.SIGHUP
    job = job_of(terminal.text)
    result = job.wait(PATIENCE_SECONDS)
    assert (result.state, result.message) == ("stopped", "the terminal of the command that started the job was closed")
    assert result.status is not None  # the master's own result: it wasn't killed


def test_a_detached_job_is_followed_and_stopped(tmp_path: Path, capsys: Capture) -> None:
    recipe = write_recipe(tmp_path, "detached", ENDLESS)
    done = start(["run", str(recipe), "--detach", "--json"])
    out, said = done.communicate(timeout=PATIENCE_SECONDS)
    assert done.returncode == 0, said
    value = json.loads(out)
    check("## run --detach", value)
    job = value["job"]
    assert f"dlrover-lite logs -f {job}" in said
    logs = start(["logs", "-f", job])
    assert logs.stdout is not None
    assert "begins with 1 ps x 0.5 cores, 1 worker x 0.5 cores" in logs.stdout.readline()
    assert main(["status", job, "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)) == fields("## status")
    assert main(["status", job]) == 0
    shown = capsys.readouterr().out
    assert f"{job}: " in shown and "from start to end" not in shown
    for command in (["evaluate", job], ["export", job, "--to", str(tmp_path / "out")]):
        assert main(command) == 1
        assert f"{job} still runs" in capsys.readouterr().err
    assert main(["stop", job]) == 0
    assert capsys.readouterr().out == f"{job} has been stopped.\n"
    assert "keeper" in logs.communicate(timeout=PATIENCE_SECONDS)[0]
    assert logs.returncode == 0
    assert main(["evaluate", job]) == 1
    assert "was stopped before its end" in capsys.readouterr().err


def test_a_job_whose_keeper_is_killed_keeps_what_was_known(tmp_path: Path, capsys: Capture) -> None:
    done = start(["run", str(write_recipe(tmp_path, "lost", ENDLESS)), "--detach"])
    job = JobHandle.find(done.communicate(timeout=PATIENCE_SECONDS)[0].strip())
    until(lambda: (job.job.status() or {"samples": 0})["samples"] > 0, "a status with samples")
    keeper = job.job.record().keeper
    assert keeper is not None
    os.kill(keeper.pid, signal.SIGKILL)
    assert job.wait(PATIENCE_SECONDS).state == "lost"
    assert main(["jobs", "--json"]) == 0
    (entry,) = [entry for entry in json.loads(capsys.readouterr().out)["jobs"] if entry["id"] == job.id]
    assert main(["status", job.id, "--json"]) == 0
    status = json.loads(capsys.readouterr().out)
    assert entry["state"] == status["state"] == "lost"
    assert entry["samples"] == status["samples"] > 0 and entry["total_samples"] == ENDLESS
    assert {node["id"]: node["state"] for node in status["nodes"]} == {
        "ps-0": "ended (Killed)",
        "worker-0": "ended (Killed)",
    }
    assert main(["status", job.id]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"{job.id}: lost (the job's keeper was killed")
    assert "keeper.log" not in shown and f"dlrover-lite run {job.directory}/recipe.yaml" in shown


MODEL = """\
import torch
from dlrover_lite import EmbeddingField

class Moody(torch.nn.Module):
    def __init__(self, schema):
        super().__init__()
        self.embedding_fields = [EmbeddingField("C1", 2)]
        self.layer = torch.nn.Linear(2, 1)

    def forward(self, dense, embedded):
        if len(dense) > 2:
            raise ValueError("not this many")
        return self.layer(embedded)
"""


@pytest.mark.parametrize(
    ("code", "last_frame"),
    [(MODEL, 'raise ValueError("not this many")'), ("import no_such_thing\nMoody = 1\n", "import no_such_thing")],
)
def test_a_models_error_is_shown_once_with_its_own_traceback(code: str, last_frame: str, tmp_path: Path) -> None:
    (tmp_path / "moody.py").write_text(code)
    recipe = write_recipe(tmp_path, "moody")
    settings = ["--set", "model={use: moody.py:Moody}"]
    run = start(["run", recipe.name, *settings, "--json"], cwd=tmp_path, stdin=subprocess.DEVNULL)
    out, said = run.communicate(timeout=PATIENCE_SECONDS)
    assert run.returncode == 1
    value = json.loads(out)
    assert set(value) == fields("## run")
    assert (value["state"], value["ok"], value["export"], value["best_auc"]) == ("failed", False, None, None)
    assert value["message"] and value["hint"]
    assert said.count("Traceback (most recent call last)") == 1
    assert said.count(last_frame) == 1
    assert "dlrover_lite/" not in said.partition("Traceback")[2]


def test_a_model_that_ends_its_process_silently_is_reported(tmp_path: Path) -> None:
    (tmp_path / "moody.py").write_text(
        "import os\n" + MODEL.replace('raise ValueError("not this many")', "os._exit(3)")
    )
    recipe = write_recipe(tmp_path, "moody")
    run = start(["run", recipe.name, "--set", "model={use: moody.py:Moody}"], cwd=tmp_path, stdin=subprocess.DEVNULL)
    said = run.communicate(timeout=PATIENCE_SECONDS)[1]
    assert run.returncode == 1
    assert "worker-0 ended in the middle of its work, without an error message (exit code 3;" in said, said
    assert "has most likely ended the process, as os._exit does" in said
