"""Census jobs that are disturbed: real processes, named failpoints, and what must hold afterwards."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from dlrover_lite.backends.keeper.options import KeeperOptions
from dlrover_lite.client import census
from dlrover_lite.client.handle import JobHandle, this_machine
from dlrover_lite.core.units import Resources
from dlrover_lite.jobs.store import Result
from dlrover_lite.recipe.load import parse_recipe
from dlrover_lite.transport.endpoints import TransportKind
from tests.backends.support import assert_nothing_runs, launch_with
from tests.repository.sources import ROOT

HASTY_MASTER = str(Path(__file__).parent / "hasty_master.py")
BATCH_SIZE = 64
MINIBATCHES = 64
"""Of an epoch."""
GATE = "worker.push.computed"
"""A failpoint where workers are slowed down until the scenario is through."""
VERY_SLOW_SECONDS = 0.2


def recipe(*, ps: int, workers: int, epochs: int, optimizer: str = "adagrad", **sections: Any) -> dict[str, Any]:
    """The census, small: a row for each of 4,096 samples, one for all, and dense values in three blocks."""

    def role(count: int, cores: float) -> dict[str, Any]:
        return {"count": count, "cores": cores, "memory": "256MiB"}

    return {
        "version": 1,
        "name": "chaos",
        "model": {"use": "census", "options": {"embedding_dim": 4, "dense_values": 10_000}},
        "data": {"format": "census", "samples": BATCH_SIZE * MINIBATCHES},
        "training": {
            "batch_size": BATCH_SIZE,
            "epochs": epochs,
            "seed": 1,
            "optimizer": {"use": optimizer, "learning_rate": 0.02},
        },
        "export": {"optimizer_state": True},
        "resources": {"ps": role(ps, 0.5), "worker": role(workers, 1)},
        **sections,
    }


@dataclass
class ChaosJob:
    """A job that runs, with the points where its processes are to die: each has a file, there once it has been passed."""

    handle: JobHandle
    markers: dict[str, Path]
    gate: Path
    """Workers are slow until this file is there."""
    way: Path
    """Is taken away, and workers are very slow, when the job would come to its end before it has come to all points."""
    pause_seconds: float = 0.0
    """For which a process that a failpoint has stopped stays so."""
    _stopped: dict[int, float] = field(default_factory=dict)
    """Such processes, with when they were found."""
    _held_before: set[tuple[int, int]] = field(default_factory=lambda: _anonymous_files(os.getpid()))
    """By this process, as other tests may have left them to the garbage collector."""

    def passed(self) -> set[str]:
        return {name for name, marker in self.markers.items() if marker.exists()}

    def missing(self) -> list[str]:
        return sorted(self.markers.keys() - self.passed())

    def until_all_passed(self, meanwhile: Callable[[], object] = lambda: None, timeout_seconds: float = 400.0) -> None:
        """Call ``meanwhile`` again and again until each point has been passed."""
        end = time.monotonic() + timeout_seconds
        while missing := self.missing():
            assert self.handle.result() is None, f"the job ended before it came to {missing}: {self.handle.result()}"
            assert time.monotonic() < end, f"never came to {missing}\n{self.logs()}"
            self._brake()
            meanwhile()
            self.wake()
            time.sleep(0.01)

    def _brake(self) -> None:
        """Once half of the samples are consumed, as the master writes down every two seconds."""
        status = self.handle.job.status()
        if status is not None and status["samples"] * 2 > status["total_samples"]:
            self.way.unlink(missing_ok=True)

    def wake(self) -> None:
        """Let those go on that were stopped for long enough. They may have been given up, and ended, meanwhile."""
        if not self.pause_seconds:
            return
        now = time.monotonic()
        for process in processes(self.handle).values():
            with suppress(psutil.NoSuchProcess):
                if process.status() != psutil.STATUS_STOPPED:
                    self._stopped.pop(process.pid, None)
                elif now >= self._stopped.setdefault(process.pid, now) + self.pause_seconds:
                    process.send_signal(signal.SIGCONT)

    def finish(self, timeout_seconds: float = 200.0) -> Result:
        """Let it train to its end; it must succeed, and leave nothing (of /dev/shm ``conftest`` knows). Of a census every counter must be
        exact."""
        self.gate.touch()
        self.way.touch()
        end = time.monotonic() + timeout_seconds
        while self.pause_seconds and self.handle.result() is None and time.monotonic() < end:
            self.wake()
            time.sleep(0.05)
        result = self.handle.wait(max(0.1, end - time.monotonic()))
        assert_nothing_runs(self.handle.job)
        assert result.ok, f"{result.state}: {result.message}\n{result.hint}\n{self.logs()}"
        runtime = self.handle.job.record().runtime_directory
        assert not Path(runtime).exists(), f"sockets are left in {runtime}"
        # Those of the job's processes went with them.
        assert not _anonymous_files(os.getpid()) - self._held_before
        if self.handle.job.recipe.model.use == "census":
            report = census.check(self.handle.job)
            assert report.exact, f"{report.tables}\n{report.examples}\n{self.logs()}"
        return result

    def logs(self) -> str:
        return "\n".join(f"--- {name}\n{path.read_text()[-1500:]}" for name, path in self.handle.logs().items())


def start(
    directory: Path,
    plain: Mapping[str, Any],
    points: Iterable[str] = (),
    *,
    slow_seconds: float = 0.0,
    restarts: int = 10_000,
    hasty: bool = True,
    pause_seconds: float = 0.0,
    servers: str = "dlrover_lite.ps.server.main:main",
    slowed: Mapping[str, float] | None = None,
    transport: TransportKind = "unix",
) -> ChaosJob:
    """``points``: where a process is to be killed, or with ``pause_seconds`` stopped for so long, once each. Workers take ``slow_seconds``
    longer for each minibatch until the gate is opened, and so does whoever comes to a point of ``slowed``. ``hasty``: whoever is killed
    comes back without delay. ``servers``: what parameter servers run."""
    directory.mkdir(parents=True, exist_ok=True)
    markers = {name: directory / name for name in points}
    gate = directory / "gate"
    action = "pause" if pause_seconds else "kill"
    told = [f"{name}={action}@{marker}" for name, marker in markers.items()]
    way = directory / "way"
    way.touch()
    if slow_seconds:
        told += [f"{GATE}=slow:{slow_seconds}@{gate}", f"{GATE}=slow:{VERY_SLOW_SECONDS}@{way}"]
    told += [f"{name}=slow:{seconds}@{gate}" for name, seconds in (slowed or {}).items()]
    master = [sys.executable, "-P", HASTY_MASTER] if hasty else KeeperOptions().master
    options = KeeperOptions(
        master=master,
        entries={**KeeperOptions().entries, "ps": servers},
        restarts=restarts,
        longest_restart_delay_seconds=0.05 if hasty else 30.0,
        transport=transport,
    )
    resolved = parse_recipe({**plain, "directory": str(directory)}, machine=_roomy())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DLROVER_LITE_FAILPOINTS", ",".join(told))
        patch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)  # for servers of the tests' own
        handle = launch_with(options, resolved)
    return ChaosJob(handle, markers, gate, way, pause_seconds)


def _roomy() -> Resources:
    """As many cores as the recipe asks for: nodes wait for each other more than they compute."""
    here = this_machine()
    return Resources(max(8.0, here.cores), here.memory)


def processes(handle: JobHandle) -> dict[str, psutil.Process]:
    """The master, the template and the nodes of a job that are there, by name."""
    record = handle.job.record()
    found: dict[str, psutil.Process] = {}
    with suppress(psutil.NoSuchProcess):
        assert record.keeper is not None
        for process in psutil.Process(record.keeper.pid).children(recursive=True):
            if record.master is not None and process.pid == record.master.pid:
                found["master"] = process
            elif (name := process.name()).startswith("dl:"):
                found[name.removeprefix("dl:")] = process
    return found


def _anonymous_files(pid: int) -> set[tuple[int, int]]:
    """Device and number of each that the process holds."""
    found = set()
    for link in Path(f"/proc/{pid}/fd").glob("*"):
        with suppress(FileNotFoundError):
            if str(link.readlink()).startswith("/memfd:"):
                status = link.stat()
                found.add((status.st_dev, status.st_ino))
    return found
