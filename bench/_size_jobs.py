"""A job whose tables grow as ``bench/size.py`` says: one parameter server, one worker. Everything is done, and seen, as a user could: by
the job's handle, its status, its logs, and the files of its checkpoints.

Nothing is waited for without end: what isn't there in time raises ``NotDone``, with what it was.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from _size_ids import TABLES
from _size_worker import write_wish
from _train_worker import BATCH_SIZE, TIMES

__all__ = ["GIB", "NotDone", "SizedJob", "Sizes", "restore_seconds", "rows_of"]

GIB = 1 << 30
ROW_BYTES = 4 * 17 * 2
"""Values and Adagrad state of a row: 16 of the embedding and a linear weight."""
NEVER = 1e9
"""Seconds: checkpoints are taken on request."""
LOOK_SECONDS = 0.1
"""A look takes the CPU of this process and of the master."""
FILE_LOOK_SECONDS = 0.005
END_SECONDS = 60.0
WORKER_MEMORY = GIB


class NotDone(Exception):
    """Why something of a phase couldn't be done."""


def rows_of(gib: float) -> int:
    """Rows of each table: whole minibatches of them, an even number."""
    return max(2, round(gib * GIB / (ROW_BYTES * TABLES * BATCH_SIZE)) // 2 * 2) * BATCH_SIZE


class Sizes:
    """Bytes of memory that nodes of a job of this size get: with room for the index, and a quarter of all rows kept for a
    checkpoint."""

    def __init__(self, gib: float) -> None:
        self.first = int((0.9 * gib + 0.4) * GIB)
        """Memory limit of a parameter server as it starts, in bytes: half of the rows fit."""
        self.raised = int((1.6 * gib + 0.7) * GIB)
        """Its memory limit in bytes when it is to hold all rows."""

    def restored(self, servers: int) -> int:
        """Return the memory limit, in bytes, of each of so many servers that restore all rows together."""
        return self.raised // servers + GIB // 2


class SizedJob:
    """Trains until it is ended, on tables that grow to what ``let_grow`` says."""

    def __init__(
        self, home: Path, gib: float, kind: str, *, servers: int = 1, memory: int | None = None, beginning: Any = None
    ) -> None:
        from dlrover_lite.backends.keeper.options import KeeperOptions
        from dlrover_lite.backends.local.jobs.local_jobs import LocalJobs
        from dlrover_lite.client.handle import launch
        from dlrover_lite.jobs.backend import RunOptions
        from dlrover_lite.recipe.load import parse_recipe

        self.home, self.gib, self.kind = home, gib, kind
        self.sizes = Sizes(gib)
        recipe = parse_recipe(
            {
                "version": 1,
                "name": "bench-size",
                "model": {"use": "wide_deep", "options": {"embedding_dim": 16, "hidden": [256, 128]}},
                "data": {"format": "synthetic", "samples": 1_000_000_000, "eval_samples": 0},
                "training": {
                    "batch_size": BATCH_SIZE,
                    "shuffle": False,
                    "optimizer": {"use": "adagrad", "learning_rate": 0.02},
                },
                "resources": {
                    "ps": {"count": servers, "cores": 1, "memory": memory or self.sizes.first},
                    "worker": {"count": 1, "cores": 1.5, "memory": WORKER_MEMORY},
                },
                "export": {"format": "none"},
                "checkpoint": {"every_seconds": NEVER, "full_every": 1, "keep": 1},
                "directory": str(home),
            }
        )
        entries = {"ps": "dlrover_lite.ps.server.main:main", "worker": "_size_worker:main"}
        backend = LocalJobs(KeeperOptions(entries=entries))  # type: ignore[arg-type]
        self.handle = launch(recipe, options=RunOptions(), beginning=beginning, backend=backend)

    # --- what is seen -------------------------------------------------------------------------------------------------

    def until(self, done: Callable[[Any], bool], what: str, seconds: float) -> float:
        """Look at the status until ``done``; when that was, on the monotonic clock."""
        end = time.monotonic() + seconds
        while True:
            status = self.handle.status()
            now = time.monotonic()
            if status.state in ("failed", "stopped", "succeeded", "lost"):
                raise NotDone(f"the job has {status.state} before {what}: {status.message}")
            if done(status):
                return now
            if now > end:
                raise NotDone(f"not within {seconds:.0f} s: {what}")
            time.sleep(LOOK_SECONDS)

    def runs(self) -> bool:
        return self.handle.state() in ("starting", "running")

    def servers(self) -> list[Any]:
        """Nodes that are parameter servers and haven't ended."""
        return [node for node in self.handle.status().nodes if _is_server(node)]

    def cpu_seconds(self) -> dict[str, float]:
        """CPU seconds that the nodes of each role have used."""
        nodes = self.handle.status().nodes
        return {role: sum(node.cpu_seconds for node in nodes if node.role == role) for role in ("ps", "worker")}

    def server(self) -> Any:
        """The node that owns the most slots."""
        if found := self.servers():
            return max(found, key=lambda node: node.slots or 0)
        raise NotDone(f"no parameter server runs; the job is {self.handle.status().state}")

    def pid(self, node: str) -> int:
        keeper = self.handle.job.record().keeper
        if keeper is not None:
            for process in psutil.Process(keeper.pid).children(recursive=True):
                if process.name() == f"dl:{node}":
                    return int(process.pid)
        raise NotDone(f"{node} doesn't run")

    # --- what is done -------------------------------------------------------------------------------------------------

    def let_grow(self, rows: int, seconds: float) -> tuple[float, float]:
        """Have the tables grow to so many rows each: when that began, and when they were there."""
        began = time.monotonic()
        write_wish(self.home, rows, self.kind)
        ended = self.until(lambda status: status.rows >= rows * TABLES, f"each table had {rows:,} rows", seconds)
        return began, ended

    def raise_memory(self, node: str, memory: int) -> tuple[float, float]:
        """From the request until the limit is in force."""

        def raised(status: Any) -> bool:
            return any(one.id == node and one.memory == memory and not one.wanted_memory for one in status.nodes)

        began = time.monotonic()
        self.handle.resize(node, memory=memory)
        return began, self.until(raised, f"{node} had a limit of {memory} bytes", 60)

    def save(self, seconds: float) -> tuple[int, float, float]:
        """Take a checkpoint: its number, when it was asked for, and when it was complete."""
        asked = time.monotonic()
        least = self.handle.checkpoint(wait=False)
        while not (there := [number for number in self._complete() if number >= least]):
            if time.monotonic() > asked + seconds or not self.runs():
                why = f"checkpoint {least} wasn't complete within {seconds:.0f} s{self._problem()}"
                raise NotDone(f"{why}; it is tried on, beside all that follows")
            time.sleep(FILE_LOOK_SECONDS)
        return max(there), asked, time.monotonic()

    def _complete(self) -> list[int]:
        found = self.handle.directory.glob("checkpoints/cut-*/manifest.json")
        return [int(path.parent.name.removeprefix("cut-")) for path in found]

    def _problem(self) -> str:
        known = self.handle.status().checkpoints
        problem = known.problem if known is not None else None
        return f": checkpoint {problem.number} came to nothing, {problem.why}" if problem is not None else ""

    def parts(self, cut: int) -> list[Path]:
        """The files of a checkpoint that have rows."""
        return sorted(self.handle.directory.glob(f"checkpoints/cut-{cut:08d}/*.part"))

    def kill_server(self, seconds: float) -> float:
        """kill -9 of the parameter server; when that was. Returns when training has gone on."""
        status, node = self.handle.status(), self.server()
        pid = self.pid(node.id)
        killed = time.monotonic()
        os.kill(pid, signal.SIGKILL)

        def goes_on(now: Any) -> bool:
            others = [one for one in now.nodes if _is_server(one) and one.id != node.id and one.slots]
            return bool(others) and now.samples > status.samples + 50 * BATCH_SIZE

        self.until(goes_on, f"training had gone on after kill -9 of {node.id}", seconds)
        return killed

    def move_half(self, seconds: float) -> tuple[float, float, float, float]:
        """Start a second parameter server: when the first row was asked for, when it had its slots, and when both had tidied up; and
        its share of all slots."""
        source = self.server().id

        def target(status: Any) -> Any:
            return next((node for node in status.nodes if _is_server(node) and node.id != source), None)

        def begun(status: Any) -> bool:
            under_way = any(move.state == "copying" for move in status.moves)
            return under_way or bool((node := target(status)) and node.slots)

        def moved(status: Any) -> bool:
            node, open_moves = target(status), [m for m in status.moves if m.state in ("queued", "copying")]
            return not open_moves and node is not None and bool(node.slots)

        self.handle.scale(ps=2)
        began = self.until(begun, "a second parameter server asked for slots", 120)
        ended = self.until(moved, "it had them", seconds)
        tidy = self.until(lambda status: not status.moves, "both had tidied up", seconds)
        share = (target(self.handle.status()).slots or 0) / sum(node.slots or 0 for node in self.servers())
        return began, ended, tidy, share

    def end(self) -> list[float]:
        """When each minibatch was read, on the monotonic clock, in seconds."""
        self.handle.stop(now=True)
        try:
            self.handle.wait(END_SECONDS, progress=False)
        except TimeoutError:
            self.kill()
        found = self.handle.directory.glob(TIMES.format(node="*"))
        return sorted(at for path in found for at in json.loads(path.read_text()))

    def kill(self) -> None:
        """End it at once, whatever it is at."""
        self.handle.stop(kill=True)
        self.handle.wait(END_SECONDS, progress=False)


def _is_server(node: Any) -> bool:
    return node.role == "ps" and not node.state.startswith("ended")


# --- restoring --------------------------------------------------------------------------------------------------------


def restore_seconds(origin: SizedJob, cut: int, servers: int, seconds: float) -> float:
    """Have a new job begin with a checkpoint on so many parameter servers: from the first that begins to the last that has it all."""
    from dlrover_lite.client import resuming
    from dlrover_lite.jobs.checkpoint_location import locate

    beginning = resuming.beginning_of(resuming.choose(locate(origin.handle.id), cut))
    memory = origin.sizes.restored(servers)
    job = SizedJob(origin.home, origin.gib, origin.kind, servers=servers, memory=memory, beginning=beginning)
    try:
        logs = [job.handle.job.log(f"ps-{number}") for number in range(servers)]
        began = _until_said(job, logs, "restores checkpoint", any, seconds)
        return _until_said(job, logs, "has restored", all, seconds) - began
    finally:
        job.kill()


def _until_said(
    job: SizedJob, logs: list[Path], what: str, of_logs: Callable[[list[bool]], bool], seconds: float
) -> float:
    end = time.monotonic() + seconds
    while not of_logs([log.exists() and what in log.read_text(errors="replace") for log in logs]):
        if time.monotonic() > end or not job.runs():
            last = [log.read_text(errors="replace").splitlines()[-1:] for log in logs if log.exists()]
            raise NotDone(f"not within {seconds:.0f} s: '{what}' in the parameter servers' logs, which end with {last}")
        time.sleep(FILE_LOOK_SECONDS)
    return time.monotonic()
