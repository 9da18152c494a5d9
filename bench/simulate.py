"""How fast many jobs are simulated.

``sim.physics_speed``: simulated seconds per wall second of 160 jobs that arrive over 8 hours on 64 machines of 16 cores, all of them with
costs, plans and sizes of their own, as fluids under their users' plans; machines become slow and fail meanwhile. Rates are computed in that
time, each for what it depends on; compiling isn't in it. The median over seeds.
"""

from __future__ import annotations

import math
import random
import statistics
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from common import Figure, arguments, emit

from dlrover_lite.backends.sim.fluid.job import JobRequest
from dlrover_lite.backends.sim.fluid.world import FluidWorld
from dlrover_lite.backends.sim.physics.machines import Disturbances, Machine
from dlrover_lite.backends.sim.physics.memory import MemoryCosts, Table
from dlrover_lite.backends.sim.physics.queues import Costs
from dlrover_lite.backends.sim.physics.startup import CLUSTER
from dlrover_lite.core.units import GIB, Resources

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


def main() -> None:
    options = arguments("How fast many jobs are simulated.")
    emit(options, [physics_speed(2 if options.quick else 9)])


if __name__ == "__main__":
    main()
