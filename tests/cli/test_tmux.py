"""The README's way through the screens, in a real terminal, beside a real job whose plan the brain has chosen."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dlrover_lite.brain.store import preferences
from dlrover_lite.brain.store.database import ConfigStore
from dlrover_lite.brain_server import brain_process
from dlrover_lite.brain_server.files import BrainFiles
from dlrover_lite.client.handle import JobHandle
from tests.backends.support import until
from tests.cli.conftest import ENDLESS, PATIENCE_SECONDS, ROOT, start
from tests.directories import own_directories

__all__ = ["own_directories"]

TMUX = shutil.which("tmux")
pytestmark = pytest.mark.skipif(TMUX is None, reason="tmux isn't installed here: apt-get install tmux")
RECIPE = f"""\
version: 1
name: ads
model: {{use: wide_deep, options: {{embedding_dim: 4}}}}
data: {{format: synthetic, samples: {ENDLESS}, eval_samples: 1000, ids_per_field: 200}}
training: {{batch_size: 256}}
"""


class Tmux:
    """A server of its own with one window, in which a shell runs."""

    def __init__(self, directory: Path) -> None:
        self._command = [str(TMUX), "-u", "-S", str(directory / "tmux"), "-f", "/dev/null"]
        plain = {"PS1": "$ ", "LC_ALL": "C.UTF-8", "PYTHONPATH": str(ROOT), "ENV": "", "TERM": "xterm-256color"}
        inherited = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
        self._run("new-session", "-d", "-x", "140", "-y", "30", "sh", env={**inherited, **plain})
        self._run("set-option", "-g", "status", "off")

    def _run(self, *arguments: str, env: dict[str, str] | None = None) -> str:
        done = subprocess.run(
            [*self._command, *arguments], env=env, capture_output=True, text=True, check=True, timeout=PATIENCE_SECONDS
        )
        return done.stdout

    def write(self, text: str) -> None:
        """All at once, as a terminal pastes."""
        self._run("send-keys", "-l", text)

    def type(self, command: str) -> None:
        self.write(command)
        self.press("Enter")

    def press(self, *keys: str) -> None:
        self._run("send-keys", *keys)

    def resize(self, width: int, height: int) -> None:
        self._run("resize-window", "-x", str(width), "-y", str(height))

    @property
    def text(self) -> str:
        return self._run("capture-pane", "-p")

    def shows(self, *parts: str) -> str:
        """Waits until all of these are there at once; the screen."""

        def found() -> str:
            text = self.text
            return text if all(part in text for part in parts) else ""

        try:
            return str(until(found, f"{parts} on the screen", PATIENCE_SECONDS))
        except AssertionError as error:
            raise AssertionError(f"{error}:\n{self.text}") from error

    def close(self) -> None:
        self._run("kill-server")


@pytest.fixture
def job(own_directories: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[JobHandle]:
    """``dlrover-lite run ads.yaml --detach``, of which the first decision has been made. It leaves most of the machine to others: it
    trains for as long as the screens are looked at."""
    monkeypatch.setenv("DLROVER_LITE_BRAIN", "daemon")
    BrainFiles().make()
    with ConfigStore(BrainFiles().database) as store:
        preferences.change(store, {"capacity_cores": 0.5})
    recipe = tmp_path / "ads.yaml"
    recipe.write_text(RECIPE)
    done = start(["run", str(recipe), "--detach"])
    out, said = done.communicate(timeout=PATIENCE_SECONDS)
    assert done.returncode == 0, said
    handle = JobHandle.find(out.strip())
    yield handle
    if not handle.known().over:
        handle.stop(kill=True)
    handle.wait(PATIENCE_SECONDS)
    brain_process.stop(kill=True)


@pytest.fixture
def tmux(own_directories: Path) -> Iterator[Tmux]:
    one = Tmux(own_directories)
    yield one
    one.close()


def test_the_tui_runs_in_tmux_through_all_its_screens(job: JobHandle, tmux: Tmux, tmp_path: Path) -> None:
    command = f"{sys.executable} -m dlrover_lite"
    file = tmp_path / "ads.jsonl"
    tmux.type(f"echo before; {command} tui --record {file}; echo code=$?")
    tmux.shows("Jobs 1 running", job.id, "● training", "LAST CHANGE")
    tmux.press("Enter")
    tmux.shows("samples/s", "shards", "decided", "ps-0", "worker-0")
    for text in (":theme dark", ":theme light"):
        tmux.write(text)
        tmux.shows(f": {text[1:]}", "Complete")
        tmux.press("Enter")
    tmux.shows("Decisions", "Scale")
    saved = job.status().checkpoints
    assert saved is not None
    assert (saved.newest, saved.under_way) == (None, None)  # t is a key that takes one
    tmux.resize(80, 24)
    tmux.press("v")
    tmux.shows(f"Decisions for {job.id}", "1 start", "● start")
    tmux.press("Enter")
    tmux.shows(f"Decision 1 for {job.id}", "start")
    tmux.press("Escape")
    tmux.shows(f"Decisions for {job.id}")
    tmux.press("q")
    assert "Decisions" not in tmux.shows("before", "code=0")

    tmux.type(f"clear; {command} tui --replay {file} --job {job.id[:6]} --at end --speed 0; echo code=$?")
    tmux.shows(job.id, "■ ended", "ps-0", "┃")
    tmux.press("[")
    tmux.shows("■ stands")
    tmux.press("q")
    tmux.shows("code=0")

    tmux.resize(60, 12)
    tmux.type(f"clear; echo before; {command} top; echo code=$?")
    tmux.shows(job.id, "● training", "ps-0", "q leaves")
    job.stop(now=True)
    assert "q leaves" not in tmux.shows("before", job.id, "■ stopped", "code=1")
