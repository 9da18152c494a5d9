"""The arithmetic of the throughput model over many plans: the form `bottleneck`, and throughputs with their bands.

In plain numpy on purpose: a brain decides at once on a machine where nothing has been compiled yet, and imports no compiler.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "Rates",
    "bottleneck_rows",
    "bottleneck_sides",
    "even_card_share",
    "minibatch_cpu_seconds",
    "rates_with_variance",
    "shared_cores_limit",
    "shared_cores_times",
]

Floats = NDArray[np.float64]
_ROUNDING = 1e-6
"""Cores by which a size may be off a whole number."""
_LEAST_LEFT = 0.5
"""Least part of a limit that a worker gets done when the limit holds it back: stopping it in each period costs a fixed part of a core."""
_CPU_TIMES, _CPU_COEFFICIENTS = 4, 6
"""Numbers of times and coefficients that every job has. Each coefficient that follows has a time of its own."""


class Rates(NamedTuple):
    """Rates of n settings, [n] each."""

    seconds: Floats
    """Seconds per minibatch."""
    variance: Floats
    """Relative variance that the coefficients give it."""
    outside: Floats
    """Number of doublings by which settings lie outside of what was seen, added up over the axes."""


def _of_worker(
    cores: Floats, speed: Floats | float, engine: Sequence[float], shared_cores: Floats | bool
) -> tuple[Floats, Floats, Floats]:
    """Return, for one worker, the cores that it can use, times its speed; how much faster its threads are than one; and the minibatches
    that it has under way. ``shared_cores``: nodes share the cores that they have together, so that no limit of
    its own holds it back."""
    deep, shallow, compute_share, _, _, lost, parallel_share, _ = engine
    threads = np.maximum(np.floor(cores + _ROUNDING), 1.0)
    threads = 1 / (1 - parallel_share + parallel_share / threads)  # Amdahl's law
    depth = np.where(cores >= 1, deep, shallow)
    limit = np.where(shared_cores, np.inf, _left_of(cores, lost))
    return np.minimum(limit, threads / compute_share) * speed, threads, depth


def _left_of(cores: Floats, lost: Floats | float) -> Floats:
    """Return what is left of a limit where ``lost`` cores of it are spent on stopping who is held back by it."""
    return np.asarray(np.maximum(cores - lost, cores * _LEAST_LEFT))


def even_card_share(servers: Floats, hosts: Floats | float) -> Floats:
    """Return the share of the bytes of pulled rows, and as many of gradients, that come in through the fullest host's network card, for
    nodes that are spread evenly over ``hosts``. Rows come in for its workers from other hosts' PS, gradients for its PS from other hosts'
    workers. With fewer PS than hosts, a host has one of them or none."""
    workers_there, servers_there = 1 / hosts, np.maximum(1 / hosts, 1 / servers)
    return np.asarray(workers_there + servers_there - 2 * workers_there * servers_there)


def bottleneck_rows(table: Floats, engine: Sequence[float], known: int = 9) -> Floats:
    """Compute [n, 7, 9]: seconds per minibatch and unit of each coefficient, for the settings of ``table`` [13, n], the fields of
    ``Setting``. ``engine``: the depth with and without a whole core, the compute and the serial share, the cores that a PS can use,
    those that a worker loses where its limit holds it back, the share of its work that its threads do at the same time, and the bytes of a
    sample's rows. Only the first ``known`` coefficients are computed, of at least six, and the times that these are part of.

    A limit of CPU is a limit of the rate, not of the speed: who is below it runs at the speed of a whole core. So the pipeline's time holds
    CPU seconds as they are, and limits of less than a core don't lengthen it.
    """
    (
        batch, workers, worker_cores, worker_speed, ps, ps_cores, ps_speed, ps_share, free_power, host_workers, host_ps, card_share,
        shared_cores,
    ) = table  # fmt: skip
    _, _, _, serial_share, most_ps_cores, lost, _, sample_bytes = engine
    shared_cores = shared_cores > 0
    power, threads, depth = _of_worker(worker_cores, worker_speed, engine, shared_cores)
    free_power = np.where(shared_cores, _left_of(free_power, lost * workers * host_workers * worker_speed), free_power)
    depth = depth * workers
    pipeline = serial_share / depth
    of_ps = 1 / (np.where(shared_cores, most_ps_cores, np.minimum(ps_cores, most_ps_cores)) * ps_speed)
    own = known - _CPU_COEFFICIENTS
    rows = np.zeros((_CPU_TIMES + own, known, table.shape[1]))
    by_limit = (0, 1 / (workers * power)), (2, pipeline / (worker_speed * threads)), (3, host_workers / free_power)
    for limit, factor in by_limit:
        rows[limit, 0] = batch * factor  # of a worker, by sample, minibatch and request
        rows[limit, 1] = factor
        rows[limit, 2] = ps * factor
    for limit, factor in ((1, of_ps), (2, pipeline / ps_speed)):
        rows[limit, 3] = batch * ps_share * factor  # of the busiest PS, by sample and request
        rows[limit, 4] = factor
    rows[3, 3] = batch * host_ps / free_power
    rows[3, 4] = ps * host_ps / free_power
    rows[2, 5] = 1 / depth
    if own:
        # of workers' own readers, of the source that all read from, and of the fullest network card
        times = batch / workers, batch, batch * card_share * sample_bytes
        for at, seconds in enumerate(times[:own]):
            rows[_CPU_TIMES + at, _CPU_COEFFICIENTS + at] = seconds
    return rows.transpose(2, 0, 1)


def bottleneck_sides(
    plans: tuple[Floats, Floats, Floats],
    coefficients: Floats,
    engine: Sequence[float],
    *,
    exponent: float,
    batch: float,
    speeds: tuple[Floats | float, Floats | float],
    power: float,
    hosts: float,
    shared_cores: bool = False,
) -> tuple[Floats, Floats, Floats]:
    """Compute the times of ``bottleneck_rows`` to the power of ``exponent``, for ``plans`` of these numbers of PS [P] and sizes of workers
    [A] and PS [S], of nodes spread evenly over ``hosts``. ``speeds``: of workers' and of PS' cores, for all plans or for each number of PS
    [P]; ``power``: free cores of a host times their speed. Return the times of one worker, its pipeline and its reader [P, A]; of the
    fullest host, of its network card and of the source that all read from, which depend on neither size [P]; and of a PS [P, S].
    ``shared_cores``: nodes share the cores that they have together; the time of these isn't among what is returned
    (``shared_cores_times``)."""
    worker_speed, ps_speed = (np.asarray(speed, np.float64).reshape(-1, 1) for speed in speeds)
    servers, worker_sizes, ps_sizes = plans
    latency, reader, source, network = coefficients[5:].tolist()
    _, _, _, serial_share, most_ps_cores, _, _, sample_bytes = engine
    of_worker_cores, threads, depth = _of_worker(worker_sizes, worker_speed, engine, shared_cores)
    work, served = minibatch_cpu_seconds(servers, coefficients, batch)
    worker, ps = work[:, None], served[:, None]
    pipeline = serial_share / depth * (worker / (worker_speed * threads) + ps / ps_speed) + latency / depth
    ps_limits = np.full(len(ps_sizes), most_ps_cores) if shared_cores else np.minimum(ps_sizes, most_ps_cores)
    of_ps = ps / (ps_limits * ps_speed)
    of_worker = (worker / of_worker_cores) ** exponent + pipeline**exponent
    fixed = np.zeros(len(servers)) if shared_cores else ((work + served * servers) / (hosts * power)) ** exponent
    if reader or source:
        of_worker += (batch * reader) ** exponent
        fixed += (batch * source) ** exponent
    if network:
        fixed += (batch * network * sample_bytes * even_card_share(servers, hosts)) ** exponent
    return of_worker, fixed, of_ps**exponent


def minibatch_cpu_seconds(servers: Floats, coefficients: Floats, batch: float) -> tuple[Floats, Floats]:
    """Compute the CPU seconds that a minibatch takes of its worker, and of each of so many PS [P]."""
    worker_sample, worker_minibatch, worker_request, ps_sample, ps_request = coefficients[:5].tolist()
    return batch * worker_sample + worker_minibatch + servers * worker_request, batch * ps_sample / servers + ps_request


def shared_cores_times(
    seconds: Floats, cores: Floats, workers: Floats, engine: Sequence[float], speed: float
) -> Floats:
    """Compute the time of ``seconds`` of CPU on ``cores`` that nodes share, for so many workers. Arguments broadcast."""
    return np.asarray(seconds / (_left_of(cores, engine[5] * workers) * speed))


def shared_cores_limit(table: Floats, coefficients: Floats, covariance: Floats) -> tuple[Floats, Floats]:
    """Compute the seconds per minibatch [n] that the CPU work of workers and PS takes on the cores of the fullest host, with nothing lost
    by waiting nor by stopping anybody, and their relative variance. ``table`` [13, n]: the fields of ``Setting``."""
    batch, _, _, _, ps, _, _, _, free_power, host_workers, host_ps, _, _ = table
    of_workers, of_ps = host_workers / free_power, host_ps / free_power
    row = np.array([batch * of_workers, of_workers, ps * of_workers, batch * of_ps, ps * of_ps])
    known = len(row)
    seconds = np.maximum(coefficients[:known] @ row, 1e-300)
    return seconds, ((covariance[:known, :known] @ row) * row).sum(axis=0) / seconds**2


def rates_with_variance(
    rows: Floats, coefficients: Floats, covariance: Floats, exponent: float, axes: Floats, region: Floats
) -> Rates:
    """Compute the rates of ``rows`` [n, t, k] with ``axes`` [a, n], of which ``region`` [a, 2] has been seen."""
    by_term = rows.transpose(1, 2, 0)
    times = coefficients @ by_term
    largest = np.maximum(times.max(axis=0), 1e-300)
    part = times / largest
    weight = part ** (exponent - 1)
    norm = (weight * part).sum(axis=0) ** (1 / exponent)
    seconds = largest * norm
    slope = (weight[:, None] * by_term).sum(axis=0)
    design = slope / (norm ** (exponent - 1) * seconds)
    variance = ((covariance @ design) * design).sum(axis=0)
    if not len(region):
        return Rates(seconds, variance, np.zeros(len(seconds)))
    factor = np.maximum(region[:, :1] / axes, axes / region[:, 1:])
    return Rates(seconds, variance, np.log2(np.maximum(factor, 1.0)).sum(axis=0))
