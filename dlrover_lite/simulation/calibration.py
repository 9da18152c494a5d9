"""What a real job costs, as simulated ones do: from its profiles. Nothing here is a formula of the brain's.

CPU seconds of a minibatch are what was counted, by role, as a part for each minibatch and one for each server that is asked: least squares
over profiles with different numbers of servers. How much of a worker's are those of threads beside the busiest one has been counted, too.
What can't be counted, the latency, is found by simulating: that with which the simulated rates are nearest to the measured ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from dlrover_lite.backends.sim.physics.machines import Machine
from dlrover_lite.backends.sim.physics.queues import Costs, Node
from dlrover_lite.backends.sim.physics.rates import Rates
from dlrover_lite.backends.sim.physics.shared_cores import share_cores
from dlrover_lite.core.errors import DlroverLiteError
from dlrover_lite.protocol.profiles import Profile

__all__ = ["Setting", "calibrate", "rate_of", "setting_of"]

_LATENCIES = (1e-4, 0.5)
"""Seconds between which the latency is looked for."""
_LATENCY_STEPS = 12
"""Number of times that the interval it lies in is made smaller: to a hundredth of what it is."""
_GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0
_LEAST_CORES = 0.05
_TWO_THREADS = 2.0
"""Cores from which on a worker computes with more threads than one: of those only one's CPU seconds are told."""
_READING = 0.95
"""Share of the time for which all workers read, from which on reading is what limits a job."""


class Setting(NamedTuple):
    """Where a job's nodes were when something was measured, as the physics take it."""

    workers: tuple[Node, ...]
    servers: tuple[Node, ...]
    machines: tuple[Machine, ...]
    """As others left them."""
    shares: tuple[float, ...]
    """Share of the work on rows that each server has."""


def setting_of(profile: Profile) -> Setting:
    """Return where a job's nodes were. Servers have as much of the work on rows as of the rows."""
    positions = {host.host: at for at, host in enumerate(profile.hosts)}
    machines = tuple(Machine(max(_LEAST_CORES, host.cores - host.other_cores)) for host in profile.hosts)
    rows = sum(server.rows for server in profile.ps)
    shares = tuple(server.rows / rows if rows else 1 / len(profile.ps) for server in profile.ps)
    workers = tuple(Node(one.cores, positions.get(one.host, 0)) for one in profile.workers)
    servers = tuple(Node(one.cores, positions.get(one.host, 0)) for one in profile.ps)
    machines = machines or (Machine(1.0),)
    if profile.shared_cores:
        shared = share_cores(workers, servers, machines)
        return Setting(tuple(shared[0]), tuple(shared[1]), tuple(shared[2]), shares)
    return Setting(workers, servers, machines, shares)


def rate_of(costs: Costs, profile: Profile, rates: Rates) -> float:
    """Return the samples/s that a job with these costs has where its nodes were."""
    workers, servers, machines, shares = setting_of(profile)
    return rates.of(costs, workers, servers, machines, shares).samples


def calibrate(profiles: Sequence[Profile], *, usual: Costs | None = None, depth: int = 2) -> Costs:
    """Return what a job costs. ``usual``: costs that what isn't measured is taken from; ``depth``: minibatches under way in a worker.
    Raises DlroverLiteError where nothing was trained."""
    usual = usual or Costs()
    found = [one for one in profiles if one.samples and one.workers and one.ps and one.makes_sense]
    if not found:
        raise DlroverLiteError(
            "Nothing can be simulated of this job: no profile says what its minibatches cost",
            hint="Let it train for half a minute without a change of its plan; `dlrover-lite profile` shows what was measured.",
        )
    servers = [len(one.ps) for one in found]
    of_workers = [sum(worker.cpu_seconds for worker in one.workers) / one.minibatches for one in found]
    of_servers = [sum(server.cpu_seconds for server in one.ps) / one.minibatches for one in found]
    worker, worker_request = _line(servers, of_workers, usual.worker_request / usual.worker)
    ps, ps_request = _line(servers, of_servers, usual.ps_request / usual.ps)
    costs = replace(
        usual,
        worker=worker,
        worker_request=worker_request,
        overlapped=_overlapped(found, usual.overlapped),
        ps=ps,
        ps_request=ps_request,
        batch_size=found[-1].batch_size,
        depth=depth,
        samples_read_per_second=_reading(found),
    )
    latency = _least(lambda seconds: _error(replace(costs, latency=seconds), found), *_LATENCIES)
    return replace(costs, latency=latency)


def _line(counts: Sequence[int], seconds: Sequence[float], usual_slope: float) -> tuple[float, float]:
    """Fit seconds = first + slope * count, neither below 0, relative errors alike. Where all counts are one, or one part would be below 0,
    the slope is ``usual_slope`` times the first."""
    wanted, over = np.ones(len(seconds)), np.maximum(np.asarray(seconds), 1e-12)
    if len(set(counts)) > 1:
        of = np.column_stack([1 / over, np.asarray(counts) / over])
        (first, slope), *_ = np.linalg.lstsq(of, wanted, rcond=None)
        if first > 0 and slope >= 0:
            return float(first), float(slope)
    of = (1 + usual_slope * np.asarray(counts)) / over
    first = float((of * wanted).sum() / (of * of).sum())
    return first, usual_slope * first


def _overlapped(profiles: Sequence[Profile], usual: float) -> float:
    """Return the share of workers' CPU seconds that other threads take than the busiest one: that which computes, or that which reads,
    pulls and pushes. It is told of workers that compute with one thread; ``usual`` where there is none."""
    used = busiest = 0.0
    for worker in (worker for one in profiles for worker in one.workers):
        if worker.cores < _TWO_THREADS and worker.phase_cpu_seconds:
            computes = worker.phase_cpu_seconds.get("compute", 0.0)
            used += worker.cpu_seconds
            busiest += max(computes, sum(worker.phase_cpu_seconds.values()) - computes)
    return max(0.0, 1.0 - busiest / used) if used > 0 else usual


def _reading(profiles: Sequence[Profile]) -> float:
    """Return the samples/s that can be read, where something shows that nothing but reading limits the job; else far more than any job
    needs."""
    limited = []
    for one in profiles:
        read = sum(worker.phase_seconds.get("read", 0.0) for worker in one.workers)
        waits = sum(worker.phase_seconds.get("wait", 0.0) for worker in one.workers)
        if min(read, waits + read) >= _READING * one.seconds * len(one.workers) and waits > 0:
            limited.append(one.samples_per_second)
    return max(limited, default=Costs().samples_read_per_second)


def _error(costs: Costs, profiles: Sequence[Profile]) -> float:
    rates = Rates()
    logarithms = [math.log(max(1e-9, rate_of(costs, one, rates)) / one.samples_per_second) for one in profiles]
    return float(np.mean(np.square(logarithms)))


def _least(error: Callable[[float], float], low: float, high: float) -> float:
    """Return where an error is least that falls and then rises: golden-section search over logarithms."""
    left, right = math.log(low), math.log(high)
    a, b = right - _GOLDEN * (right - left), left + _GOLDEN * (right - left)
    at_a, at_b = error(math.exp(a)), error(math.exp(b))
    for _ in range(_LATENCY_STEPS):
        if at_a <= at_b:
            right, b, at_b = b, a, at_a
            a = right - _GOLDEN * (right - left)
            at_a = error(math.exp(a))
        else:
            left, a, at_a = a, b, at_b
            b = left + _GOLDEN * (right - left)
            at_b = error(math.exp(b))
    return math.exp((left + right) / 2)
