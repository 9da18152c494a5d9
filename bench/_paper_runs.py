"""The simulated runs of ``bench/paper.py``: small worlds, each with the load for its size of the usual cluster."""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from dlrover_lite.backends.sim.physics.rates import Rates
from dlrover_lite.core.units import GIB
from dlrover_lite.simulation.ablations import ABLATIONS, WHOLE
from dlrover_lite.simulation.brain_runs import simulate_with_brain
from dlrover_lite.simulation.fluid_runs import simulate
from dlrover_lite.simulation.outcomes.records import Run
from dlrover_lite.simulation.policies.costs import CostTable
from dlrover_lite.simulation.traces.cluster import USUAL_CLUSTER, ClusterFile, MachineKind
from dlrover_lite.simulation.traces.generator import generate
from dlrover_lite.simulation.traces.parameters import Arrivals, Habits, Parameters, SizeClass
from dlrover_lite.simulation.traces.trace import Trace

__all__ = ["ASKED_WELL", "BY_PAPER", "FLUIDS", "OURS", "SWEEP", "WITHIN", "Case", "Runs", "Size", "cases_of", "run_all"]

FLUIDS = ("manual", "es", "optimus", "tuned")
OURS = "dlrover"
BY_PAPER = ("es, its paper's costs", "optimus, its paper's costs")
WITHIN = "dlrover, no more cores than asked"
ASKED_WELL = "dlrover, all ask well"
SWEEP = (0.5, 1.0, 2.0, 4.0)
_ASKS_WELL = Habits(well=1.0, too_much=0.0, too_little=0.0, few_servers=0.0, little_memory=0.0)
_SIZES = (
    SizeClass(name="small", share=0.70, cores=(2.0, 4.0), seconds=(300.0, 1800.0)),
    SizeClass(name="medium", share=0.24, cores=(4.0, 8.0), seconds=(600.0, 3600.0)),
    SizeClass(name="large", share=0.06, cores=(8.0, 24.0), seconds=(1200.0, 7200.0)),
)
"""The generator's classes with an eighth of the cores, but two at least, and half of the seconds of large jobs."""

Runs = dict[str, list[Run]]
"""Runs by what they are called in tables."""


@dataclass(frozen=True)
class Size:
    """How much is run."""

    jobs: int = 24
    hours: float = 0.6
    """Hours in which jobs arrive."""
    machines: int = 8
    """Machines of 16 cores and 64 GiB."""
    compared: int = 10
    """Number of seeds of the comparison of policies."""
    ablated: int = 3
    """Number of seeds of each ablation, the first of these."""
    swept: int = 3
    """Number of seeds of each factor of over-asking."""

    @property
    def parameters(self) -> Parameters:
        arrivals = Arrivals(jobs=self.jobs, seconds=self.hours * 3600.0)
        return Parameters(arrivals=arrivals, sizes=_SIZES, worker_cores=(1.0, 2.0), most_cores=24.0)

    @property
    def cluster(self) -> ClusterFile:
        machines = [MachineKind(count=self.machines, cores=16.0, memory=64 * GIB)]
        return ClusterFile(machines=machines, faults=USUAL_CLUSTER.faults)


class Case(NamedTuple):
    """Runs of one seed, one after the other."""

    policies: tuple[str, ...]
    seed: int
    size: Size
    without: str = ""
    """The part that ``dlrover`` is to do without; empty: none."""
    costs: CostTable = "mechanisms"
    within: bool = False
    """No job may have more cores than its user asks for."""
    over_asking: float | None = None
    """All users ask for what suits their jobs, times this; None: as users do. ``dlrover`` isn't told what they ask for: its run is that of
    all factors, with the quotas of jobs whose users ask well."""

    def label(self, policy: str) -> str:
        """Return what the run of a policy is called."""
        if self.over_asking is not None:
            return f"{policy}, all ask well" if policy == OURS else f"{policy}, {self.over_asking:g}x"
        if self.without:
            return f"without {self.without}"
        if self.within:
            return f"{policy}, no more cores than asked"
        return f"{policy}, its paper's costs" if self.costs == "papers" else policy

    @property
    def trace(self) -> Trace:
        its = self.size.parameters
        if self.over_asking is not None:
            habits = msgspec.structs.replace(_ASKS_WELL, over_asking=self.over_asking)
            its = msgspec.structs.replace(its, habits=habits)
        trace = generate(self.seed, its)
        if self.within:
            trace = Trace.of([msgspec.structs.replace(job, most_cores=job.asked_cores) for job in trace.jobs])
        return trace

    def run(self) -> Runs:
        trace, rates, found = self.trace, Rates(self.seed), {}
        for policy in self.policies:
            if policy == OURS:
                without = ABLATIONS[self.without] if self.without else WHOLE
                run = simulate_with_brain(trace, self.size.cluster, seed=self.seed, rates=rates, without=without)
            else:
                run = simulate(trace, self.size.cluster, policy, seed=self.seed, costs=self.costs, rates=rates)
            label = self.label(policy)
            found[label] = [msgspec.structs.replace(run, policy=label)]
        return found


def cases_of(size: Size, seeds: Sequence[int]) -> list[Case]:
    """List all cases, those that take the longest first."""
    compared, ablated, swept = seeds[: size.compared], seeds[: size.ablated], seeds[: size.swept]
    slow = [Case((OURS,), seed, size) for seed in compared]
    slow += [Case((OURS,), seed, size, within=True) for seed in ablated]
    slow += [Case((OURS,), seed, size, without=name) for name in ABLATIONS for seed in ablated]
    slow += [Case((OURS,), seed, size, over_asking=1.0) for seed in swept]
    fast = [Case(("manual",), seed, size, over_asking=factor) for factor in SWEEP for seed in swept]
    fast += [Case(FLUIDS, seed, size) for seed in compared]
    fast += [Case(("es", "optimus"), seed, size, costs="papers") for seed in compared]
    return slow + fast


def run_all(cases: Sequence[Case], processes: int) -> Runs:
    """Run cases, as many at a time as there are processes; return their runs in the order of seeds."""
    found: Runs = {}
    began = time.monotonic()
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        waits = {pool.submit(case.run): case for case in cases}
        for number, done in enumerate(as_completed(waits), 1):
            case = waits[done]
            for label, runs in done.result().items():
                found.setdefault(label, []).extend(runs)
                what = f"{number} of {len(cases)}: {label}, seed {case.seed}"
                print(f"  {time.monotonic() - began:5.0f} s  {what}", file=sys.stderr, flush=True)
    return {label: sorted(runs, key=lambda run: run.seed) for label, runs in sorted(found.items())}
