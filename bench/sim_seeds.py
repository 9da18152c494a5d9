"""Simulated jobs with faults that a seed draws: how many seeds run in five minutes, what they find, and whether they find what is planted.

``sim.seeds``: seeds that this machine's cores run in 300 s, by the time of 1,000 of them (``make sim-seeds`` runs the same ones). Each has
at least 500 steps of masters, brain, nodes and people, with a look at what must hold after each, and at least 5 faults that strike; a seed
with fewer counts as one that fails. ``sim.violations``: seeds that fail. ``sim.planted``: bugs planted on purpose, which are in
``tests/simulation/planted_bugs.py``, that a seed up to 1,000 finds, each searched for from seed 1 on. How often faults of each kind have
struck is told.
"""

from __future__ import annotations

import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent))

from common import Figure, arguments, emit

from dlrover_lite.simulation.fuzz.run import run_seed
from dlrover_lite.simulation.fuzz.seeds import Tally, run_seeds
from tests.simulation.planted_bugs import PLANTED

SECONDS, SEEDS = 300.0, 1000
QUICK_SEEDS = 40


def seeds_figures(seeds: int, processes: int) -> list[Figure]:
    """Run that many seeds, and say how fast, and what they have found."""
    began, tally = time.monotonic(), Tally()
    for ran in run_seeds(iter(range(1, seeds + 1)), processes):
        tally.add(ran)
        if ran.problems:
            print(ran.report(), file=sys.stderr, flush=True)
    seconds = time.monotonic() - began
    print(tally.describe(seconds), file=sys.stderr, flush=True)
    detail = {
        "seeds": tally.seeds,
        "seconds": round(seconds, 1),
        "steps": tally.steps,
        "least_steps": tally.least_steps,
        "least_faults": tally.least_faults,
        "faults": dict(sorted(tally.kinds.items())),
    }
    return [
        Figure("sim.seeds", SECONDS * tally.seeds / seconds, "seeds", f">= {SEEDS}", detail=detail),
        Figure("sim.violations", tally.failing, "seeds", "<= 0", detail={"kinds": len(tally.kinds)}),
    ]


def first_seed(bug: str) -> int | None:
    """Return the first seed that finds a planted bug; None: none of the thousand does."""
    with PLANTED[bug].there():
        return next((seed for seed in range(1, SEEDS + 1) if run_seed(seed).problems), None)


def planted_figure(processes: int) -> Figure:
    with ProcessPoolExecutor(processes) as pool:
        found = dict(zip(PLANTED, pool.map(first_seed, PLANTED), strict=True))
    for bug, seed in found.items():
        print(f"{'no seed' if seed is None else f'seed {seed}'} finds that {bug}", file=sys.stderr)
    count = sum(seed is not None for seed in found.values())
    return Figure("sim.planted", count, f"of {len(found)} bugs", ">= 10", detail=found)


def main() -> None:
    options = arguments("Seeds of simulated faults: how many run in five minutes, and what they find.")
    processes = os.cpu_count() or 1
    figures = seeds_figures(QUICK_SEEDS if options.quick else SEEDS, processes)
    if not options.quick:
        figures.append(planted_figure(processes))
    emit(options, figures)


if __name__ == "__main__":
    main()
