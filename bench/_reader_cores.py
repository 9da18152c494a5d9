"""Cores that a job keeps though reading is what limits it: whatever its plan, it is given 60,000 samples/s.

Two jobs on 16 cores: one whose first plan trains on all of these, and one whose workers have four times the work, so that the limit is
reached on the way. From three intervals after the first in which a job trained on 97% of what can be read, until its first five minutes
are over, the cores of its plan count as far as they are more than those of the cheapest plan that trains on 99%: their mean over that time,
so that what is only tried counts for as long as it lasts. The cheapest plan is found by simulating all plans, the smallest first. Of each
job the median over seeds; the figure is that of the worse one.
"""

from __future__ import annotations

import itertools
import statistics
import sys

from _host_jobs import WINDOW_SECONDS, SimulatedJob, changes_of, run_alone
from _host_plans import rate_of
from common import Figure

from dlrover_lite.backends.sim.physics.machines import Machine
from dlrover_lite.backends.sim.physics.queues import Costs
from dlrover_lite.brain.planning.plan_grid import Candidate

__all__ = ["figure"]

READ = 60_000.0
"""Samples/s."""
MACHINES = [Machine(16.0)]
JOBS = {
    "limited at once": Costs(samples_read_per_second=READ),
    "limited later": Costs(0.08, samples_read_per_second=READ),
}
SECONDS = 300.0
WORK_SECONDS = 1800.0
"""Seconds that all of a job's work takes as fast as it can be read: one near its end has nothing to give back."""
REACHED, CHEAPEST = 0.97, 0.99
INTERVALS = 3
_WORKER_SIZES = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0)
_PS_SIZES = (0.25, 0.5, 0.75, 1.0)


def cheapest(costs: Costs) -> Candidate:
    plans = [
        Candidate(workers, servers, worker_cores, ps_cores)
        for workers, servers, worker_cores, ps_cores in itertools.product(
            range(1, 17), range(1, 4), _WORKER_SIZES, _PS_SIZES
        )
    ]
    for plan in sorted(plans, key=lambda plan: (plan.milli, plan.workers + plan.servers)):
        if rate_of(plan, MACHINES, costs) >= CHEAPEST * READ and (
            rate_of(plan, MACHINES, costs, seed=1, seconds=6.0) >= CHEAPEST * READ
        ):
            return plan
    raise SystemExit(f"No plan reads {CHEAPEST:.0%} of {READ:,.0f} samples/s.")


def kept(costs: Costs, least: float, seed: int) -> float:
    """Return the mean of the cores beyond ``least``."""
    job = SimulatedJob("job", lambda _: costs, WORK_SECONDS * READ, seed)
    run_alone(job, MACHINES, SECONDS)
    for one in changes_of(job):
        plan = one.choice.describe() if one.choice is not None else ""
        print(f"    {one.at - job.began:5.0f} s: {one.action} {plan}: {one.reason}", file=sys.stderr)
    reached = [at for at, _, rate in job.history if rate >= REACHED * READ]
    if not reached:
        raise SystemExit(f"No plan of the job with seed {seed} was limited by reading.")
    since = reached[0] + INTERVALS * WINDOW_SECONDS
    return statistics.mean(max(0.0, plan.cores - least) for at, plan, _ in job.history if at > since)


def figure(seeds: int) -> Figure:
    found = {}
    for name, costs in JOBS.items():
        plan = cheapest(costs)
        print(f"{name}: {plan.describe()} is the cheapest", file=sys.stderr)
        each = [kept(costs, plan.cores, seed) for seed in range(seeds)]
        found[name] = statistics.median(each)
        print(f"  {found[name]:.2f} cores kept ({min(each):.2f} to {max(each):.2f})", file=sys.stderr)
    return Figure("hosts.reader_cores_kept", max(found.values()), "cores", "<= 1", detail=found)
