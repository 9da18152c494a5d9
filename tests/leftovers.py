"""What a run of the tests may leave behind: nothing. ``Session`` gives each process that runs tests its own directories, and looks
for what is left in them at its end; ``Machine`` looks, at the end of all, for what is left anywhere else."""

from __future__ import annotations

import contextlib
import fnmatch
import os
import shutil
import tempfile
import time
from pathlib import Path

import psutil

from dlrover_lite.backends.host.mounts import hierarchies

__all__ = ["Machine", "Session"]

SHARED_MEMORY = Path("/dev/shm")
CONTROL_GROUPS = "dlrover-lite-*-*"
"""Pattern of the names that keepers give their groups: ``dlrover-lite-<what>-<pid>``."""
PICTURES = "dlrover-lite-*.svg"
"""Pattern of the names that pictures of screens get."""
PATIENCE_SECONDS = 60.0
"""How long processes get to end by themselves, and shared memory and control groups to be removed."""


class Session:
    """The directories of one process that runs tests, named in the environment that the processes it starts inherit.

    They are directly under the temp directory and short: the path of a unix socket has at most 107 bytes.
    """

    def __init__(self) -> None:
        self._saved = dict(os.environ)
        self.directory = Path(tempfile.mkdtemp(prefix="dl-"))
        self.home = self.directory / "h"
        self.runtime = self.directory / "r"
        self.temp = self.directory / "t"
        for directory in (self.home, self.runtime, self.temp):
            directory.mkdir(mode=0o700)
        # pytest's own tmp_path stays where it was, so that a failed test's files can be read afterwards.
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
        os.environ.update(DLROVER_LITE_HOME=str(self.home), XDG_RUNTIME_DIR=str(self.runtime), TMPDIR=str(self.temp))
        # The daemon outlives the job that starts it: tests that want one have homes of their own, and stop it.
        os.environ["DLROVER_LITE_BRAIN"] = "off"
        # torch makes this directory as soon as one of its own optimizers is used.
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(self.directory / "i")
        tempfile.tempdir = None

    def leftovers(self) -> list[str]:
        """A line for each thing left. Processes are killed, so that one run's don't disturb the next."""
        return self._processes() + self._files()

    def close(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)
        os.environ.clear()
        os.environ.update(self._saved)
        tempfile.tempdir = None

    def _processes(self) -> list[str]:
        _, alive = psutil.wait_procs(self._find_processes(), timeout=PATIENCE_SECONDS)
        lines = []
        for process in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                lines.append(f"process {process.pid}: {' '.join(process.cmdline())[:300] or process.name()}")
                process.kill()
        psutil.wait_procs(alive, timeout=PATIENCE_SECONDS)
        return lines

    def _find_processes(self) -> list[psutil.Process]:
        """Our descendants, and those that have cut loose but name this session's directory in environment or command."""
        me = psutil.Process()
        found = {process.pid: process for process in me.children(recursive=True)}
        for process in psutil.process_iter():
            if process.pid == me.pid or process.pid in found:
                continue
            with contextlib.suppress(psutil.Error):
                if any(str(self.directory) in text for text in (*process.environ().values(), *process.cmdline())):
                    found[process.pid] = process
        return list(found.values())

    def _files(self) -> list[str]:
        lines = []
        for what, directory in (("in the runtime directory", self.runtime), ("temp file", self.temp)):
            for name in sorted(_names_in(directory)):
                path = directory / name
                inside = sorted(_names_in(path)) if path.is_dir() else []
                lines.append(f"{what}: {path}" + (f" ({', '.join(inside)})" if inside else ""))
        return lines


class Machine:
    """Shared memory, control groups and pictures in the directory that tests are run from, that weren't there before. Whose they are can't
    be told: all who run tests must have ended."""

    def __init__(self) -> None:
        self._here = Path.cwd()
        self._pictures = _names_in(self._here)
        self._shared_memory = _names_in(SHARED_MEMORY)
        self._control_groups = _control_groups()

    def leftovers(self) -> list[str]:
        """A line for each thing left. Control groups are removed, so that the next run finds none."""
        end = time.monotonic() + PATIENCE_SECONDS
        while (names := sorted(_names_in(SHARED_MEMORY) - self._shared_memory)) and time.monotonic() < end:
            time.sleep(0.05)
        pictures = sorted(fnmatch.filter(_names_in(self._here) - self._pictures, PICTURES))
        return [
            *(f"shared memory: {SHARED_MEMORY / name}" for name in names),
            *(f"picture: {self._here / name}" for name in pictures),
            *self._left_control_groups(),
        ]

    def _left_control_groups(self) -> list[str]:
        """Those whose keeper has ended: another run's jobs may be there at the same time."""
        end = time.monotonic() + PATIENCE_SECONDS
        while True:
            found = _control_groups() - self._control_groups
            left = [path for path in found if not psutil.pid_exists(int(path.name.rpartition("-")[2]))]
            if not left or time.monotonic() >= end:
                break
            time.sleep(0.05)
        for path in left:
            for directory in sorted([path, *(inner for inner in path.rglob("*") if inner.is_dir())], reverse=True):
                with contextlib.suppress(OSError):
                    directory.rmdir()
        return [f"control group: {path}" for path in sorted(left)]


def _control_groups() -> set[Path]:
    """Of all keepers that run, or ran, in the same groups as this process, or above."""
    places = {group for hierarchy in hierarchies() for group in hierarchy.up()}
    found = (path for place in places for path in place.glob(CONTROL_GROUPS))
    return {path for path in found if path.name.rpartition("-")[2].isdigit()}


def _names_in(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()} if directory.is_dir() else set()
