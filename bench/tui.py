"""How soon the TUI shows something, what it takes while a thousand jobs or nodes change five times a second, how much memory it has after
an hour of that and by how much that grew, and how soon a key is answered. CPU (in seconds of it, without what makes the changes) and memory
are those of the whole process, with what reads.
"""

from __future__ import annotations

import asyncio
import os
import pty
import random
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import psutil
from common import Figure, arguments, emit

from dlrover_lite.tui.model import JobDetail, JobRow, JobsView, NodeRow

ROOT = Path(__file__).resolve().parent.parent
MANY = 1000
UPDATES_PER_SECOND = 5
SIZE = (200, 60)
GIB = 1 << 30


def first_frame_seconds() -> float:
    """From the command to its first frame on a terminal, imports included."""
    leader, terminal = pty.openpty()
    with tempfile.TemporaryDirectory() as home:
        environment = {**os.environ, "DLROVER_LITE_HOME": home, "PYTHONPATH": str(ROOT), "TERM": "xterm-256color"}
        began = time.perf_counter()
        command = [sys.executable, "-m", "dlrover_lite", "tui"]
        running = subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal, env=environment)
        os.close(terminal)
        shown = b""
        try:
            while b"There are no jobs yet" not in shown:
                if not select.select([leader], [], [], 60.0)[0]:
                    raise TimeoutError(f"no frame came: {shown!r}")
                shown += os.read(leader, 1 << 16)
            return time.perf_counter() - began
        finally:
            running.kill()
            running.wait()
            os.close(leader)


def row(number: int) -> JobRow:
    return JobRow(
        id=f"job-{number:04}",
        state="training",
        created_at=1e9 - number,
        started_at=1e9,
        total_samples=10**9,
        rates=tuple(float(i) for i in range(60)),
        workers=8,
        servers=2,
        cores=10.0,
        memory=16 * GIB,
    )


class Changing:
    """A source of which every row changes with each update."""

    def __init__(self) -> None:
        self._random = random.Random(1)
        self.view = JobsView({f"job-{i:04}": row(i) for i in range(MANY)}, "listens")
        nodes = tuple(NodeRow(id=f"worker-{i}", role="worker", state="up", cores=1.0, memory=GIB) for i in range(MANY))
        self.detail = JobDetail(row=self.view.jobs["job-0000"], nodes=nodes)
        self.making_seconds = 0.0

    def update(self) -> None:
        began, any_of = time.thread_time(), self._random.random
        change = msgspec.structs.replace
        jobs = {
            name: change(one, samples=one.samples + 1000, rate=1e5 * any_of(), rates=(*one.rates[1:], any_of()))
            for name, one in self.view.jobs.items()
        }
        nodes = tuple(change(one, rate=1e4 * any_of(), used_cores=any_of()) for one in self.detail.nodes)
        self.view = change(self.view, jobs=jobs)
        self.detail = change(self.detail, row=jobs["job-0000"], nodes=nodes)
        self.making_seconds += time.thread_time() - began

    def jobs(self) -> JobsView:
        return self.view

    def job(self, job: str) -> JobDetail | None:
        return self.detail if job == self.detail.row.id else None

    def explain(self, job: str, number: int) -> None:
        return None

    def forget(self) -> None:
        pass

    def close(self) -> None:
        pass


async def watch(job: str | None, steps: Callable[[Any, Changing], Any]) -> Any:
    """What ``steps`` returns, given a pilot of the running application and its source."""
    from dlrover_lite.tui.app import TuiApp

    source = Changing()
    app = TuiApp(source, job=job, period_seconds=1 / UPDATES_PER_SECOND)
    async with app.run_test(size=SIZE) as pilot:
        while app.view is None:
            await pilot.pause(0.01)
        return await steps(pilot, source)


async def cpu_share(pilot: Any, source: Changing, seconds: float) -> float:
    """Cores that it uses while everything changes."""
    began, cpu, made = time.monotonic(), time.process_time(), source.making_seconds
    while time.monotonic() - began < seconds:
        source.update()
        await asyncio.sleep(1 / UPDATES_PER_SECOND)
    used = time.process_time() - cpu - (source.making_seconds - made)
    return used / (time.monotonic() - began)


async def memory_bytes(pilot: Any, source: Changing, updates: int) -> tuple[int, int]:
    """The memory of the whole process after so many updates, and by how much it has risen since a tenth of them."""

    async def some(count: int) -> int:
        for _ in range(count):
            source.update()
            pilot.app.jobs_feed.read_now()
            await asyncio.sleep(0.01)
        return int(psutil.Process().memory_info().rss)

    before = await some(updates // 10)
    after = await some(updates)
    return after, after - before


async def key_seconds(pilot: Any, source: Changing) -> float:
    """From a key to the row that it chooses being drawn, while everything changes; the 95th percentile."""
    grid = pilot.app.screen.grid
    taken = []
    for number in range(60):
        source.update()
        drawn = asyncio.Event()
        draw = grid.render_line
        before = grid.cursor

        def watched(y: int, draw: Any = draw, before: Any = before, drawn: asyncio.Event = drawn) -> Any:
            if grid.cursor != before:
                drawn.set()
            return draw(y)

        grid.render_line = watched
        began = time.perf_counter()
        pilot.app.simulate_key("down" if number < 30 else "up")
        await asyncio.wait_for(drawn.wait(), 30.0)
        taken.append(time.perf_counter() - began)
        grid.render_line = draw
        await asyncio.sleep(0.05)
    return sorted(taken)[int(len(taken) * 0.95)]


def main() -> None:
    options = arguments("What the TUI takes, and how soon it answers.")
    quick = options.quick
    first = sorted(first_frame_seconds() for _ in range(3 if quick else 11))
    seconds, updates = (10.0, 300) if quick else (60.0, 18_000)
    memory, growth = asyncio.run(watch(None, lambda pilot, source: memory_bytes(pilot, source, updates)))
    shares = {
        name: asyncio.run(watch(job, lambda pilot, source: cpu_share(pilot, source, seconds)))
        for name, job in (("jobs", None), ("nodes", "job-0000"))
    }
    key = asyncio.run(watch(None, key_seconds))
    emit(
        options,
        [
            Figure("tui.first_frame_s", first[len(first) // 2], "s", "<= 1"),
            Figure("tui.cpu", max(shares.values()), "cores", "<= 0.25", detail=shares),
            Figure("tui.key_ms", key * 1000, "ms", "<= 50"),
            Figure("tui.rss", memory / (1 << 20), "MiB", "<= 100", detail={"updates": updates}),
            Figure("tui.rss_growth", growth / (1 << 20), "MiB", "<= 8", detail={"updates": updates}),
        ],
    )


if __name__ == "__main__":
    main()
