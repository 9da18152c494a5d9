"""Plans on simulated hosts (``physics.queues``): where their nodes go, how fast they train, and the best one."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from dlrover_lite.backends.sim.physics.machines import Machine
from dlrover_lite.backends.sim.physics.queues import Costs, Node, Window, run
from dlrover_lite.backends.sim.physics.shared_cores import share_cores
from dlrover_lite.brain.job_tracker import candidate
from dlrover_lite.brain.planning.decision import Decision
from dlrover_lite.brain.planning.plan_grid import Candidate

__all__ = ["SIMULATED_SECONDS", "Best", "best_plan", "measure", "place", "placed_by", "rate_of"]

SIMULATED_SECONDS = 2.0
"""Seconds of a window that are simulated; it goes on as they do."""
_ROUNDING = 1e-6


def place(
    plan: Candidate, machines: Sequence[Machine], held: Sequence[float] = (), *, by_speed: bool = False
) -> list[int] | None:
    """Put each worker, then each PS, on a host: where most cores are free, PS first; return their hosts, None if one finds no room.
    ``held``: cores that others have of each host. ``by_speed``: the fastest hosts that have room come first."""
    free = [machine.cores - taken for machine, taken in zip(machines, held or [0.0] * len(machines), strict=True)]
    hosts = []
    for cores in [plan.ps_cores] * plan.servers + [plan.worker_cores] * plan.workers:
        having = [at for at, left in enumerate(free) if left >= cores - _ROUNDING]
        if not having:
            return None
        most = max(having, key=lambda at: (machines[at].speed if by_speed else 0.0, free[at], -at))
        free[most] -= cores
        hosts.append(most)
    return hosts[plan.servers :] + hosts[: plan.servers]


def placed_by(decision: Decision, machines: Sequence[Machine], held: Sequence[float]) -> list[int] | None:
    """Put the nodes of a decision's plan where it says, or anywhere if it doesn't; None if there is no room for them."""
    plan = candidate(decision.plan) if decision.plan is not None else None
    assert plan is not None
    if not decision.placement:
        return place(plan, machines, held)
    at = {f"host-{at}": at for at in range(len(machines))}
    workers = [at[one.host] for one in decision.placement for _ in range(one.workers)]
    servers = [at[one.host] for one in decision.placement for _ in range(one.servers)]
    free = [machine.cores - taken for machine, taken in zip(machines, held, strict=True)]
    for hosts, cores in ((workers, plan.worker_cores), (servers, plan.ps_cores)):
        for host in hosts:
            free[host] -= cores
    if min(free) < -_ROUNDING or (len(workers), len(servers)) != (plan.workers, plan.servers):
        return None
    return workers + servers


def measure(
    plan: Candidate,
    hosts: Sequence[int],
    machines: Sequence[Machine],
    costs: Costs,
    *,
    seed: int,
    seconds: float,
    shares: Sequence[float] = (),
    shared_cores: bool = False,
) -> Window:
    """Simulate a plan. ``shared_cores``: its nodes share the cores that they have together on a machine."""
    workers = [Node(plan.worker_cores, host) for host in hosts[: plan.workers]]
    servers = [Node(plan.ps_cores, host) for host in hosts[plan.workers :]]
    if shared_cores:
        workers, servers, machines = share_cores(workers, servers, machines)
    return run(workers, servers, machines, costs, seed=seed, seconds=seconds, shares=shares)


def rate_of(
    plan: Candidate,
    machines: Sequence[Machine],
    costs: Costs,
    *,
    seed: int = 0,
    seconds: float = SIMULATED_SECONDS,
    by_speed: bool = False,
    shared_cores: bool = False,
) -> float:
    """Samples/s of a plan; 0 for one that has no room. ``by_speed``: nodes are on the fastest hosts, and PS have slots as their hosts are
    fast. ``shared_cores``: as of ``measure``."""
    hosts = place(plan, machines, by_speed=by_speed)
    if hosts is None:
        return 0.0
    shares: list[float] = []
    if by_speed:
        speeds = [machines[host].speed for host in hosts[plan.workers :]]
        shares = [speed / sum(speeds) for speed in speeds]
    window = measure(plan, hosts, machines, costs, seed=seed, seconds=seconds, shares=shares, shared_cores=shared_cores)
    return float(window.minibatches.sum()) * costs.batch_size / seconds


# --- the best plan --------------------------------------------------------------------------------------------------

_EIGHTHS = (0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 1.0)
_WORKER_SIZES = (*_EIGHTHS, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0)
_PS_SIZES = _EIGHTHS
"""As fine as the brain's."""
_FEW_CORES = 8.0


class Best(NamedTuple):
    plan: Candidate
    samples_per_second: float


def best_plan(machines: Sequence[Machine], costs: Costs) -> Best:
    """Find the fastest plan by simulating: a coarse search over all shapes, then from the best of these on by single steps, as long as one
    is faster. On hosts of different speed, with slots and places by speed, too."""
    unlike = len({one.speed for one in machines}) > 1
    seen: dict[Candidate, float] = {}

    def rate(plan: Candidate, *, seed: int, seconds: float) -> float:
        ways = (False, True) if unlike else (False,)
        return max(rate_of(plan, machines, costs, seed=seed, seconds=seconds, by_speed=way) for way in ways)

    def look(plan: Candidate) -> float:
        if plan not in seen:
            seen[plan] = rate(plan, seed=0, seconds=1.0)
        return seen[plan]

    for plan in _shapes(machines):
        look(plan)
    for start in sorted(seen, key=seen.__getitem__, reverse=True)[:4]:
        here = start
        while (there := max(_steps(here), key=look)) and look(there) > look(here) * 1.002:
            here = there
    finalists = sorted(seen, key=seen.__getitem__, reverse=True)[:6]
    rates = {plan: rate(plan, seed=1, seconds=4.0) for plan in finalists}
    best = max(rates, key=rates.__getitem__)
    return Best(best, rates[best])


def _shapes(machines: Sequence[Machine]) -> Iterator[Candidate]:
    cores, largest = sum(one.cores for one in machines), max(one.cores for one in machines)
    if cores <= _FEW_CORES:
        yield from _all_shapes(cores)
        return
    most = max(1, math.ceil(cores / 3))
    servers = sorted({round(most ** (part / 8)) for part in range(9)})
    for size in (0.5, 1.0, 2.0, 4.0, 8.0, 16.0):
        if size > largest:
            continue
        for count in servers:
            for ps_size in (0.5, 1.0):
                workers = int((cores - count * ps_size) / size + _ROUNDING)
                for part in (1.0, 0.75):
                    plan = Candidate(max(1, int(workers * part)), count, size, ps_size)
                    while plan.workers > 1 and place(plan, machines) is None:
                        plan = msgspec.structs.replace(plan, workers=plan.workers - 1)
                    yield plan


def _all_shapes(cores: float) -> Iterator[Candidate]:
    """List all plans that use nearly all cores, workers and PS in quarters of a core."""
    quarters = [size for size in _PS_SIZES if size * 4 == int(size * 4)]
    for servers, worker_cores, ps_cores in itertools.product(range(1, 4), quarters, quarters):
        workers = int((cores - servers * ps_cores) / worker_cores + _ROUNDING)
        if workers >= 1:
            yield Candidate(workers, servers, worker_cores, ps_cores)


def _steps(plan: Candidate) -> Iterator[Candidate]:
    if plan.cores <= _FEW_CORES:  # what one step takes has to come from another one
        yield from _around(plan)
    for field_name, sizes in (("worker_cores", _WORKER_SIZES), ("ps_cores", _PS_SIZES)):
        at = sizes.index(getattr(plan, field_name))
        for other in sizes[max(0, at - 2) : at + 3]:
            yield msgspec.structs.replace(plan, **{field_name: other})
    for field_name in ("workers", "servers"):
        count = getattr(plan, field_name)
        step = max(1, count // 8)
        for other in {count - step, count - 1, count + 1, count + step}:
            if other >= 1:
                yield msgspec.structs.replace(plan, **{field_name: other})
    # as many cores in more or fewer workers
    for other in _WORKER_SIZES:
        count = round(plan.workers * plan.worker_cores / other)
        if count >= 1 and 0.5 <= other / plan.worker_cores <= 2.0:
            yield msgspec.structs.replace(plan, workers=count, worker_cores=other)
    # a PS more for a worker less, and the other way round
    for step in (-1, 1):
        if plan.workers - step >= 1 and plan.servers + step >= 1:
            yield msgspec.structs.replace(plan, workers=plan.workers - step, servers=plan.servers + step)


def _around(plan: Candidate) -> Iterator[Candidate]:
    """List all plans that differ by at most one step in each of the counts and sizes."""
    worker_at, ps_at = _WORKER_SIZES.index(plan.worker_cores), _PS_SIZES.index(plan.ps_cores)
    for workers, servers, worker_cores, ps_cores in itertools.product(
        range(max(1, plan.workers - 1), plan.workers + 2),
        range(max(1, plan.servers - 1), plan.servers + 2),
        _WORKER_SIZES[max(0, worker_at - 1) : worker_at + 2],
        _PS_SIZES[max(0, ps_at - 1) : ps_at + 2],
    ):
        yield Candidate(workers, servers, worker_cores, ps_cores)
