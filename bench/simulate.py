"""How fast many jobs are simulated.

``sim.physics_speed``: simulated seconds per wall second of 160 jobs that arrive over 8 hours on 64 machines of 16 cores, all of them with
costs, plans and sizes of their own, as fluids under their users' plans; machines become slow and fail meanwhile. Rates are computed in that
time, each for what it depends on; compiling isn't in it. The median over seeds.

``sim.speed``: simulated seconds per wall second with the real brain and the real masters, as of `dlrover-lite simulate --policy dlrover`:
160 jobs that the generator draws, with its quota for each, over 8 hours on the usual 64 machines; each node reports every 15 s, each job
has a profile every 15 s, and there is a round over all jobs every 60 s. All that runs is counted, queues and files included. Where the CPU
goes is told by part: in which one the process was at each hundredth of a second of CPU.
"""

from __future__ import annotations

import argparse
import math
import random
import signal
import sqlite3
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from common import Figure, arguments, emit

from dlrover_lite.backends.sim.fluid.job import JobRequest
from dlrover_lite.backends.sim.fluid.world import FluidWorld
from dlrover_lite.backends.sim.physics.machines import Disturbances, Machine
from dlrover_lite.backends.sim.physics.memory import MemoryCosts, Table
from dlrover_lite.backends.sim.physics.queues import Costs
from dlrover_lite.backends.sim.physics.startup import CLUSTER
from dlrover_lite.core.units import GIB, Resources
from dlrover_lite.simulation.brain_runs import BrainRun
from dlrover_lite.simulation.traces.cluster import USUAL_CLUSTER
from dlrover_lite.simulation.traces.generator import generate
from dlrover_lite.simulation.traces.parameters import Arrivals, Parameters
from dlrover_lite.simulation.traces.seeds import TUNING_SEEDS
from dlrover_lite.simulation.traces.trace import Trace

JOBS, MACHINES, SECONDS = 160, 64, 8 * 3600.0
MACHINE = Machine(16.0)
DISTURBANCES = Disturbances(failing_seconds=30 * 24 * 3600.0, slowing_seconds=24 * 3600.0)
"""A failure of each machine a month, and a slow phase a day: assumptions, as all that ``job`` draws."""


def job(name: str, chance: random.Random) -> JobRequest:
    """Draw a job that would take between five minutes and three hours if its slower role limited it."""
    usual = Costs()
    batch_size = chance.choice([512, 1024, 2048, 4096])
    scale = batch_size / usual.batch_size
    costs = replace(
        usual,
        worker=usual.worker * scale * math.exp(0.5 * chance.gauss(0.0, 1.0)),
        ps=usual.ps * scale * math.exp(0.5 * chance.gauss(0.0, 1.0)),
        batch_size=batch_size,
    )
    workers, servers = chance.randint(1, 12), chance.randint(1, 4)
    worker = Resources(chance.choice([0.5, 1.0, 2.0, 4.0]), 4 * GIB)
    rate = min(workers * worker.cores / costs.worker, servers / costs.ps) * batch_size
    seconds = 300.0 * 36.0 ** chance.random()
    tables = (Table(10 ** chance.uniform(5, 7), count=26, dim=chance.choice([8, 16, 32])),)
    memory = MemoryCosts(tables, epoch_samples=rate * seconds)
    return JobRequest(
        name,
        chance.uniform(0.0, SECONDS),
        rate * seconds,
        costs,
        memory,
        workers,
        worker,
        servers,
        Resources(1.0, chance.choice([2, 4, 8]) * GIB),
    )


def run(seed: int) -> tuple[float, FluidWorld]:
    """Simulate; return the wall seconds that it took, and what became of it."""
    chance = random.Random(seed)
    jobs = [job(f"job-{at}", chance) for at in range(JOBS)]
    began = time.perf_counter()
    world = FluidWorld([MACHINE] * MACHINES, jobs, startup=CLUSTER, seed=seed, disturbances=DISTURBANCES)
    world.run_until(SECONDS)
    return time.perf_counter() - began, world


def physics_speed(seeds: int) -> Figure:
    run(0)  # compiles
    speeds, log = [], 0
    states: Counter[str] = Counter()
    for seed in range(1, seeds + 1):
        seconds, world = run(seed)
        speeds.append(SECONDS / seconds)
        log += len(world.log)
        states.update(one.state for one in world.jobs)
        print(f"seed {seed}: {seconds:.2f} s for {world.rates} rates, {len(world.log)} events", file=sys.stderr)
    detail = {"speeds": speeds, "events": log / seeds, "states": dict(states)}
    return Figure("sim.physics_speed", statistics.median(speeds), "x", ">= 20,000", detail=detail)


PARTS = {
    "backends/sim/physics/": "queues, rates",
    "backends/sim/": "machines",
    "brain_server/": "brain: taking in",
    "brain/store/": "brain: database",
    "brain/healing/": "brain: healing",
    "brain/": "brain: rounds",
    "master/profiling/": "master: profiler",
    "master/work/": "master: work",
    "master/nodes/": "master: nodes",
    "master/autoscale/": "master: autoscale",
    "master/": "master: rest",
    "jobs/": "master: files",
    "simulation/nodes/": "nodes",
    "simulation/fluid_nodes/": "nodes",
    "simulation/": "driver",
    "transport/": "messages",
}
"""Parts by their folders, the first that fits: what runs is of the part of the innermost call that is of any."""
_SAMPLE_SECONDS = 0.01


@contextmanager
def parts_of_cpu() -> Iterator[Counter[str]]:
    """Count in which part the process is, at every hundredth of a second of its CPU."""
    found: Counter[str] = Counter()
    source = str(Path(__file__).resolve().parent.parent / "dlrover_lite") + "/"
    known: dict[str, str] = {}

    def part(file: str) -> str:
        inside = file.removeprefix(source)
        return "" if inside == file else next((of for folder, of in PARTS.items() if inside.startswith(folder)), "")

    def look(_: int, frame: FrameType | None) -> None:
        at = ""
        while frame is not None and not at:
            file = frame.f_code.co_filename
            if file not in known:
                known[file] = part(file)
            at, frame = known[file], frame.f_back
        found[at or "rest"] += 1

    before = signal.signal(signal.SIGPROF, look)
    signal.setitimer(signal.ITIMER_PROF, _SAMPLE_SECONDS, _SAMPLE_SECONDS)
    try:
        yield found
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.signal(signal.SIGPROF, before)


def with_brain(trace: Trace, hours: float, seed: int) -> tuple[float, dict[str, Any]]:
    """Simulate so many hours of a trace; return the wall seconds that it took, and what there was in that time."""
    began, cpu = time.perf_counter(), time.process_time()
    with tempfile.TemporaryDirectory() as directory, parts_of_cpu() as parts:
        simulated = BrainRun(trace, USUAL_CLUSTER, Path(directory), seed=seed)
        simulated.run(hours * 3600.0)
        wall, cpu = time.perf_counter() - began, time.process_time() - cpu
        ends = Counter(record.end for record in simulated.records())
        steps = simulated.world.steps
        simulated.world.close()
        with closing(sqlite3.connect(Path(directory) / "brain.sqlite")) as brain:
            profiles, decisions, rounds = (
                brain.execute(f"select count(*) from {table}").fetchone()[0]
                for table in ("profiles", "decisions", "rounds")
            )
    per_profile = 1e3 * cpu / max(1, profiles)
    samples = max(1, parts.total())
    return wall, {
        "cpu_seconds": cpu,
        "speed_by_cpu": hours * 3600.0 / cpu,
        "profiles_an_hour": profiles / hours,
        "decisions_an_hour": decisions / hours,
        "rounds_an_hour": rounds / hours,
        "steps_an_hour": steps / hours,
        "ends": dict(ends),
        "cpu_ms_a_profile": per_profile,
        "parts_ms_a_profile": {part: per_profile * count / samples for part, count in parts.most_common()},
    }


def speed(*, quick: bool, hours: float) -> Figure:
    with_brain(generate(1, Parameters(arrivals=Arrivals(jobs=1, seconds=1.0))), 0.02, 1)  # compiles, and imports
    parameters, target = Parameters(), ">= 500"
    if quick:  # too short for the figure
        parameters, hours, target = Parameters(arrivals=Arrivals(jobs=8, seconds=600.0)), 0.2, ""
    wall, detail = with_brain(generate(TUNING_SEEDS[0], parameters), hours, TUNING_SEEDS[0])
    value = hours * 3600.0 / wall
    counts = ", ".join(
        f"{detail[name + '_an_hour']:,.0f} {name}" for name in ("profiles", "decisions", "rounds", "steps")
    )
    print(f"with the brain: {counts} in a simulated hour; {detail['speed_by_cpu']:.1f}x by CPU", file=sys.stderr)
    print(f"{detail['cpu_ms_a_profile']:.2f} ms of CPU a profile:", file=sys.stderr)
    for part, of in detail["parts_ms_a_profile"].items():
        print(f"  {of:6.2f} {part}", file=sys.stderr)
    return Figure("sim.speed", value, "x", target, detail=detail)


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--hours", type=float, default=8.0, help="hours of the trace that sim.speed runs (8 is the figure)"
    )


def main() -> None:
    options = arguments("How fast many jobs are simulated.", _options)
    emit(options, [physics_speed(2 if options.quick else 9), speed(quick=options.quick, hours=options.hours)])


if __name__ == "__main__":
    main()
