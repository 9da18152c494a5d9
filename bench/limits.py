"""How exact the limits of nodes are on this machine, and how soon a change and an end are known.

``limits.cpu_error``: a busy node with 0.25, 0.5 and 1 core, how far the CPU it gets is from that, at worst. ``limits.resize_ms``: from
the call of resize to the end of the first 40 ms in which the node, which notes its own progress, ran at the new rate, at worst.
``limits.oom_report_s``: from the step at which a node's memory reached its limit to the event with the reason at the caller, at worst.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import psutil
import zmq
from _limits_node import NOTE
from common import Figure, arguments, emit

from dlrover_lite.backends.keeper.client import KeeperClient
from dlrover_lite.backends.keeper.options import KeeperOptions
from dlrover_lite.backends.local.jobs.local_jobs import LocalJobs
from dlrover_lite.client.handle import launch
from dlrover_lite.core.units import MIB, Resources
from dlrover_lite.jobs.backend import RunOptions
from dlrover_lite.protocol.nodes import NodeSpec, Observed
from dlrover_lite.recipe.load import parse_recipe
from dlrover_lite.transport.connector import Connector

CORES = (0.25, 0.5, 1.0)
LOW, HIGH = 0.25, 0.75
RATE_SECONDS = 0.04
SAME_RATE = 0.15
"""A rate so near to the limit, relatively, follows it."""
SETTLE_SECONDS = 0.5
IDLE_CORES = 0.1
MEMORY = 128 * MIB
IDLE = "import signal\nsignal.sigwait([signal.SIGTERM])"


class Job:
    """A job without a master: this process asks for its nodes."""

    def __init__(self, backend: KeeperClient, directory: Path, log: Callable[[str], Path]) -> None:
        self.backend = backend
        self._log = log
        self._directory = directory
        self._launched = 0

    def start(self, what: str, cores: float) -> tuple[str, Path]:
        """The node's id, and where its notes are."""
        self._launched += 1
        node = f"worker-{self._launched}"
        path = self._directory / node
        self.backend.launch(NodeSpec(node, "worker", Resources(cores, MEMORY), f"{what}:{path}"))
        self._until(node, ended=False)
        return node, path

    def end(self, node: str) -> Observed:
        self.backend.terminate(node, grace_seconds=20)
        return self._until(node, ended=True)

    def exit_of(self, node: str) -> Observed:
        return self._until(node, ended=True)

    def cpu_seconds(self, node: str) -> float:
        usage = self.backend.readings().nodes.get(node)
        if usage is None:
            raise SystemExit(f"{node} has ended: {self._log(node).read_text()}")
        return usage.cpu_seconds

    def _until(self, node: str, *, ended: bool) -> Observed:
        """Wait until the node has started, or has ended."""
        after: int | None = None
        while True:
            time.sleep(0.001)
            if (seen := self.backend.observe(after=after)) is not None:
                after, one = seen.version, seen.nodes[node]
                if (one.ended_at if ended else one.started_at) is not None:
                    return one


@contextmanager
def running_job(home: Path) -> Iterator[Job]:
    recipe = parse_recipe(
        {
            "version": 1,
            "name": "bench-limits",
            "model": {"use": "wide_deep"},
            "data": {"format": "synthetic", "samples": 1},
        }
    )
    keeper = KeeperOptions(
        master=[sys.executable, "-c", IDLE],
        entries={"worker": "_limits_node:main"},
        imports={"worker": ["_limits_node"]},
    )
    handle = launch(recipe, options=RunOptions(), backend=LocalJobs(keeper))
    with zmq.Context() as context:
        backend = KeeperClient(handle.job.record().keeper_endpoint, connector=Connector(context=context))
        try:
            yield Job(backend, home, handle.job.log)
        finally:
            backend.close()
            handle.stop(kill=True)
            handle.wait(20)


# --- figures ----------------------------------------------------------------------------------------------------------


def cpu_error(job: Job, windows: int, seconds: float) -> Figure:
    """Windows in which the other processes of the machine left no CPU idle say how busy it is, not how exact a limit: they are
    repeated, a few times, and counted."""
    rates: dict[str, list[float]] = {}
    disturbed = 0
    for cores in CORES:
        node, _ = job.start("busy", cores)
        time.sleep(SETTLE_SECONDS)
        undisturbed: list[float] = []
        measured: list[float] = []
        while len(undisturbed) < windows and len(measured) < 3 * windows:
            rate, idle = _rate(job, node, seconds)
            measured.append(rate)
            if idle >= IDLE_CORES:
                undisturbed.append(rate)
        disturbed += len(measured) - len(undisturbed)
        rates[f"{cores:g}"] = undisturbed or measured
        job.end(node)
    error = max(abs(rate / float(cores) - 1) for cores, measured in rates.items() for rate in measured)
    detail = {"cores": rates, "window_s": seconds, "disturbed_windows": disturbed, "load": round(os.getloadavg()[0], 2)}
    return Figure("limits.cpu_error", error, "", "<= 0.05", detail=detail)


def _rate(job: Job, node: str, seconds: float) -> tuple[float, float]:
    """Cores that the node used, and that stayed idle on the machine."""
    idle, used, at = psutil.cpu_times().idle, job.cpu_seconds(node), time.monotonic()
    time.sleep(seconds)
    used, elapsed = job.cpu_seconds(node) - used, time.monotonic() - at
    return used / elapsed, (psutil.cpu_times().idle - idle) / elapsed


def resize_ms(job: Job, rounds: int) -> Figure:
    node, path = job.start("busy", LOW)
    changes = []
    for _ in range(rounds):
        for cores in (HIGH, LOW):
            time.sleep(SETTLE_SECONDS)
            called = time.monotonic()
            job.backend.resize(node, Resources(cores, MEMORY))
            changes.append((called, cores))
    time.sleep(SETTLE_SECONDS)
    job.end(node)
    notes = [tuple(map(float, line.split())) for line in path.read_text().splitlines()]
    progress = Progress([note[0] for note in notes], [note[1] for note in notes])
    delays = [progress.follows(called, cores) * 1e3 for called, cores in changes]
    return Figure(
        "limits.resize_ms",
        max(delays),
        "ms",
        "<= 200",
        detail={"median": statistics.median(delays), "changes": len(delays)},
    )


class Progress:
    """A node's CPU seconds over time, as it has noted them."""

    def __init__(self, times: list[float], cpu_seconds: list[float]) -> None:
        self._times, self._cpu_seconds = times, cpu_seconds

    def follows(self, called: float, cores: float) -> float:
        """Seconds from the call to the end of the first stretch at the rate of ``cores``."""
        import numpy as np

        for start in np.arange(called, called + SETTLE_SECONDS, 0.001):
            stop = start + RATE_SECONDS
            before, after = np.interp([start, stop], self._times, self._cpu_seconds)
            if abs((after - before) / RATE_SECONDS / cores - 1) <= SAME_RATE:
                return float(stop - called)
        return float("inf")


def oom_report_s(job: Job, rounds: int) -> Figure:
    delays = []
    for _ in range(rounds):
        node, path = job.start("allocate", 1.0)
        ended = job.exit_of(node)
        known = time.monotonic()
        if ended.reason != "OOMKilled":
            raise SystemExit(f"{node} ended with {ended.reason}: {ended.detail}")
        delays.append(known - NOTE.unpack(path.read_bytes())[0])
    return Figure(
        "limits.oom_report_s", max(delays), "s", "<= 1", detail={"median": statistics.median(delays), "rounds": rounds}
    )


def main() -> None:
    options = arguments("How exact limits are, and how soon changes and ends are known.")
    bench = str(Path(__file__).parent)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [bench, os.environ.get("PYTHONPATH", "")]))
    with tempfile.TemporaryDirectory(prefix="dl-bench-") as name:
        os.environ["DLROVER_LITE_HOME"] = name
        with running_job(Path(name)) as job:
            enforcement = job.backend.enforcement()
            print(f"limits by {enforcement.kind}", *enforcement.cannot, sep="; ", file=sys.stderr)
            figures = [
                cpu_error(job, windows=2 if options.quick else 5, seconds=2.0 if options.quick else 5.0),
                resize_ms(job, rounds=5 if options.quick else 20),
                oom_report_s(job, rounds=5 if options.quick else 20),
            ]
    emit(options, figures)


if __name__ == "__main__":
    main()
