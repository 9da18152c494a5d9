"""How near simulated jobs come to real ones that they weren't made from.

Jobs as of ``bench/autoscale.py`` train with fixed plans, from launch to end, and one with the brain, of which nothing is known before.
What a minibatch costs is calibrated from the profiles of three of the fixed plans, which have all cores. The others have all, three
quarters or half of them: how the same cores are divided makes little difference where nodes share them, so that an order of such plans
hangs on tenths of seconds. The others, and the one with the brain, are simulated: the fixed ones by their rates, the one with the brain by
the real brain and the real master on a virtual clock, at their usual cadence.
What comes before and after training (launch, evaluation, end) is taken from the three.

``sim.validation_error``: median of how far simulated completion times are off the real ones, as a share, of all jobs that nothing was
calibrated from. ``sim.validation_rank``: rank correlation of simulated and real completion times of the fixed plans among them.

It takes about twenty minutes of a quiet machine (``--quick``: three minutes). ``--rows FILE`` takes windows that ``bench/model_fit.py`` has
kept instead of jobs: costs come from every third plan of a model, and the time of a million samples is told for the others.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import NamedTuple

import msgspec
from scipy.stats import spearmanr

sys.path.insert(0, str(Path(__file__).parent))

from _autoscale_runs import CEILING, FullRun, Workload, full_run, plans_within
from _brain_history import History
from _model_fit_rows import load
from _plan_job import resources_of, set_up, words
from _quiet import Quiet, say
from common import Figure, arguments, emit

from dlrover_lite.backends.sim.physics.machines import Machine
from dlrover_lite.backends.sim.physics.memory import MemoryCosts, Table
from dlrover_lite.backends.sim.physics.queues import Costs
from dlrover_lite.backends.sim.physics.rates import Rates
from dlrover_lite.backends.sim.physics.startup import WORKSTATION
from dlrover_lite.brain.planning.plan_grid import Candidate
from dlrover_lite.core.units import GIB
from dlrover_lite.master.work.shard_plan import ShardPlan
from dlrover_lite.protocol.profiles import Profile
from dlrover_lite.simulation.calibration import calibrate, rate_of
from dlrover_lite.simulation.fluid_nodes.fluid_program import FluidPrograms
from dlrover_lite.simulation.fluid_nodes.fluid_work import FluidWork
from dlrover_lite.simulation.fluid_nodes.job_rates import JobTruth
from dlrover_lite.simulation.job import JobSpec
from dlrover_lite.simulation.world import World

WORKLOAD = Workload("ads-clicks")
REPORT_SECONDS = 1.0
"""Seconds between two reports of a simulated node, of a job whose nodes report about as often."""
ROWS_SAMPLES = 1e6
SHARES = (1.0, 0.75, 0.5)
"""Shares of the machine's cores that plans have which nothing is calibrated from, in turn."""
ONE_IN = 3
"""With ``--rows``, costs come from one plan in so many of each model."""


@dataclass(frozen=True)
class Size:
    """How much is run."""

    seconds: float = 90.0
    """Seconds of the first plan's run, by which the number of samples is chosen."""
    calibrated: int = 3
    """Number of plans that costs are calibrated from."""
    others: int = 6


QUICK = Size(seconds=15.0, calibrated=2, others=3)


class Pair(NamedTuple):
    """A completion time in seconds, real and simulated."""

    name: str
    real: float
    simulated: float
    is_fixed: bool = True

    @property
    def error(self) -> float:
        return self.simulated / self.real - 1.0


# --- real jobs ------------------------------------------------------------------------------------------------------------


def plans_of(size: Size) -> tuple[list[Candidate], list[Candidate]]:
    """Choose the plans to calibrate from, and the others, from all that use the machine: spread over them, and apart from each other. The
    others have different shares of its cores."""
    plans = sorted(plans_within(CEILING["cores"]), key=lambda plan: (plan.servers, plan.workers, plan.worker_cores))
    many = size.calibrated + size.others
    chosen = [plans[round(at * (len(plans) - 1) / (many - 1))] for at in range(many)]
    taken = {round(at * (many - 1) / max(1, size.calibrated - 1)) for at in range(size.calibrated)}
    others = [plan for at, plan in enumerate(chosen) if at not in taken]
    return [plan for at, plan in enumerate(chosen) if at in taken], [
        msgspec.structs.replace(plan, worker_cores=plan.worker_cores * share, ps_cores=plan.ps_cores * share)
        for plan, share in zip(others, cycle(SHARES), strict=False)
    ]


def real_pairs(home: Path, size: Size, quiet: Quiet) -> list[Pair]:
    """Run jobs, calibrate from some, and simulate the others."""
    known, others = plans_of(size)
    samples = int(size.seconds * _rate_at_first(home, known[-1], quiet))
    say(f"{samples:,} samples; costs come from {', '.join(words(plan) for plan in known)}")

    def fixed(plan: Candidate) -> FullRun:
        run = quiet.measure(words(plan), partial(_run_fixed, home, samples, plan)).value
        say(f"  {words(plan)}: {run.seconds:.1f} s")
        return run

    by_known = {plan: fixed(plan) for plan in known}
    profiles = [profile for run in by_known.values() for profile in run.profiles]
    costs, rates = calibrate(profiles), Rates()
    beside = statistics.median(
        run.seconds - samples / rate for plan, run in by_known.items() if (rate := run.rate_with(plan))
    )
    say(f"{costs}; {beside:.1f} s beside training")
    pairs = []
    for plan in others:
        run = fixed(plan)
        like = _set_to(profiles, plan)
        pairs.append(Pair(words(plan), run.seconds, beside + samples / rate_of(costs, like, rates)))
    History(home).forget()
    recipe = WORKLOAD.recipe(home, samples, resources={"total": CEILING})
    with_brain = quiet.measure("brain", partial(full_run, recipe, brain=True)).value
    simulated = beside + brain_seconds(recipe, samples, costs, profiles)
    pairs.append(Pair(f"brain: {', '.join(with_brain.plans)}", with_brain.seconds, simulated, is_fixed=False))
    return pairs


def _rate_at_first(home: Path, plan: Candidate, quiet: Quiet) -> float:
    """Return the samples/s of a plan, of a short run after another one, in which kernels may still be compiled."""
    _run_fixed(home, 100_000, plan)
    run = quiet.measure("first", partial(_run_fixed, home, 1_000_000, plan)).value
    return run.rate_with(plan) or 1_000_000 / run.seconds


def _run_fixed(home: Path, samples: int, plan: Candidate) -> FullRun:
    recipe = WORKLOAD.recipe(home, samples, resources=resources_of(plan), autoscale="off")
    return full_run(recipe, brain=False)


def _set_to(profiles: Sequence[Profile], plan: Candidate) -> Profile:
    """Return a profile of a plan on the host as it was at other times: that which others took of it is the median."""
    from msgspec.structs import replace as changed

    usual = sorted(profiles, key=lambda one: sum(host.other_cores for host in one.hosts))[len(profiles) // 2]
    worker, server = usual.workers[0], usual.ps[0]
    return changed(
        usual,
        workers=tuple(changed(worker, node=f"worker-{at}", cores=plan.worker_cores) for at in range(plan.workers)),
        ps=tuple(changed(server, node=f"ps-{at}", cores=plan.ps_cores) for at in range(plan.servers)),
    )


def brain_seconds(recipe: dict[str, object], samples: int, costs: Costs, profiles: Sequence[Profile]) -> float:
    """Simulate a job with the real brain; return the seconds that it trains."""
    from dlrover_lite.client.handle import this_machine
    from dlrover_lite.recipe.load import parse_recipe

    parsed = parse_recipe(dict(recipe), machine=this_machine())
    cores = statistics.median(sum(host.cores - host.other_cores for host in one.hosts) for one in profiles)
    dims = int(WORKLOAD.options["embedding_dim"])
    memory = MemoryCosts((Table(float(WORKLOAD.ids), count=26, dim=dims),), epoch_samples=float(samples))
    spec = JobSpec(
        parsed,
        ShardPlan(samples=samples, batch_size=WORKLOAD.batch_size, epochs=1, eval_samples=0),
        work=FluidWork(costs, memory),
        program=FluidPrograms(JobTruth(costs, memory), Rates(), report_seconds=REPORT_SECONDS),
    )
    with tempfile.TemporaryDirectory(prefix="dl-bench-sim-") as name:
        machines = {"localhost": Machine(cores, memory=16 * GIB)}
        shared = profiles[-1].shared_cores
        world = World(Path(name), machines=machines, startup=WORKSTATION, latency=False, shared_cores=shared)
        try:
            world.add(spec)
            while not world.is_over:
                world.happen()
            return world.clock.now
        finally:
            world.close()


# --- rows that were kept ----------------------------------------------------------------------------------------------------


def row_pairs(path: Path) -> list[list[Pair]]:
    """Return the pairs of each model, from windows of one plan after the other."""
    by_model = defaultdict(list)
    for row in load(path):
        if row.fits:
            by_model[row.model].append(row)
    found = []
    for rows in by_model.values():
        plans = list(dict.fromkeys(row.plan for row in rows))
        known = set(plans[::ONE_IN])
        costs, rates = calibrate([row.profile for row in rows if row.plan in known]), Rates()
        pairs = []
        for row in rows:
            if row.plan not in known:
                real, simulated = row.profile.samples_per_second, rate_of(costs, row.profile, rates)
                name = f"{row.model}: {words(row.plan)}"
                pairs.append(Pair(name, ROWS_SAMPLES / real, ROWS_SAMPLES / simulated))
        found.append(pairs)
    return found


# --- figures --------------------------------------------------------------------------------------------------------------


def rank_correlation(pairs: Sequence[Pair]) -> float:
    """Return Spearman's correlation of real and simulated times."""
    return float(spearmanr([pair.real for pair in pairs], [pair.simulated for pair in pairs]).statistic)


def figures_of(groups: Sequence[Sequence[Pair]]) -> list[Figure]:
    pairs = [pair for group in groups for pair in group]
    for pair in pairs:
        say(f"  {pair.name:60}  {pair.real:7.1f} s  simulated {pair.simulated:7.1f} s  {pair.error:+.1%}")
    ranks = [rank_correlation(fixed) for group in groups if len(fixed := [one for one in group if one.is_fixed]) > 2]
    detail = {pair.name: round(pair.error, 4) for pair in pairs}
    figures = [
        Figure("sim.validation_error", statistics.median(abs(one.error) for one in pairs), "", "<= 0.15", detail=detail)
    ]
    if ranks:
        figures.append(Figure("sim.validation_rank", min(ranks), "", ">= 0.9"))
    return figures


def extend(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--rows", type=Path, metavar="FILE", help="windows that model_fit.py has kept, in the place of jobs"
    )
    parser.add_argument("--seconds", type=float, help="of the first plan's run (default 90; 15 with --quick)")


def main() -> None:
    options = arguments("How near simulated jobs come to real ones.", extend)
    if options.rows is not None:
        emit(options, figures_of(row_pairs(options.rows)))
        return
    set_up()
    size = QUICK if options.quick else Size()
    size = replace(size, seconds=options.seconds or size.seconds)
    with tempfile.TemporaryDirectory(prefix="dl-bench-") as name, Quiet() as quiet:
        os.environ["DLROVER_LITE_HOME"] = name
        history = History(Path(name))
        try:
            pairs = real_pairs(Path(name), size, quiet)
        finally:
            history.forget()
    emit(options, figures_of([pairs]))


if __name__ == "__main__":
    main()
