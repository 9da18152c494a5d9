"""The arithmetic of the throughput model over many plans: the form `bottleneck`, and throughputs with their bands, compiled."""

from __future__ import annotations

import math

import numpy as np

from dlrover_lite.kernels import kernel

__all__ = ["bottleneck_rows", "bottleneck_sides", "rates_with_variance"]

_ROUNDING = 1e-6


@kernel
def _row(setting, engine, row):  # type: ignore[no-untyped-def]
    """Fills ``row`` [4, 6], its zeros apart: seconds per minibatch and unit of each coefficient. ``setting``: the fields of ``Setting``;
    ``engine``: the depth with and without a whole core, the compute and the serial share, and the cores that a PS can use.

    A limit of CPU is a limit of the rate, not of the speed: who is below it runs at the speed of a whole core. So the pipeline's time holds
    CPU seconds as they are, and limits of less than a core don't lengthen it.
    """
    deep, shallow, compute_share, serial_share, most_ps_cores = engine
    batch, workers, worker_cores, worker_speed, ps, ps_cores, ps_speed, ps_share, free_power, host_workers, host_ps = (
        setting
    )
    threads = max(math.floor(worker_cores + _ROUNDING), 1.0)
    usable = min(worker_cores, threads / compute_share)
    depth = (deep if worker_cores >= 1 else shallow) * workers
    of_worker = 1 / (workers * usable * worker_speed)
    of_ps = 1 / (min(ps_cores, most_ps_cores) * ps_speed)
    pipeline = serial_share / depth
    for limit, factor in ((0, of_worker), (2, pipeline / (worker_speed * threads)), (3, host_workers / free_power)):
        row[limit, 0] = batch * factor  # of a worker, by sample, minibatch and request
        row[limit, 1] = factor
        row[limit, 2] = ps * factor
    for limit, factor in ((1, of_ps), (2, pipeline / ps_speed)):
        row[limit, 3] = batch * ps_share * factor  # of the busiest PS, by sample and request
        row[limit, 4] = factor
    row[3, 3] = batch * host_ps / free_power
    row[3, 4] = ps * host_ps / free_power
    row[2, 5] = 1 / depth


@kernel
def bottleneck_rows(table, engine, rows):  # type: ignore[no-untyped-def]
    """Fills ``rows`` [n, 4, 6], zero before, for the settings of ``table`` [11, n]; ``engine`` as above."""
    for i in range(table.shape[1]):
        setting = (
            table[0, i], table[1, i], table[2, i], table[3, i], table[4, i], table[5, i], table[6, i], table[7, i],
            table[8, i], table[9, i], table[10, i],
        )  # fmt: skip
        _row(setting, engine, rows[i])


@kernel
def _time(row, limit, coefficients):  # type: ignore[no-untyped-def]
    total = 0.0
    for k in range(len(coefficients)):
        total += row[limit, k] * coefficients[k]
    return total


@kernel
def _power(base, exponent):  # type: ignore[no-untyped-def]
    """``base ** exponent``; for multiples of a half by multiplying, which is much faster than by logarithms."""
    whole = int(exponent)
    rest = exponent - whole
    if rest == 0.0:
        return base**whole
    if rest == 0.5:
        return base**whole * math.sqrt(base)
    return base**exponent


@kernel
def bottleneck_sides(  # type: ignore[no-untyped-def]
    batch, speed, free, hosts, servers, worker_sizes, ps_sizes, engine, coefficients, exponent, of_worker, fixed, of_ps
):
    """The form's times to the power of ``exponent``, of nodes spread evenly over ``hosts`` of that ``speed`` with ``free`` cores each:
    of one worker and its pipeline, ``of_worker`` [P, A]; of the fullest host, which depends on neither size, ``fixed`` [P]; and of a
    PS, ``of_ps`` [P, S]."""
    row = np.zeros((4, 6))
    for p in range(len(servers)):
        count = servers[p]
        for a in range(len(worker_sizes)):
            setting = (
                batch, 1.0, worker_sizes[a], speed, count, 1.0, speed, 1 / count, free * speed, 1 / hosts, 1 / hosts,
            )  # fmt: skip
            _row(setting, engine, row)
            of_worker[p, a] = _power(_time(row, 0, coefficients), exponent) + _power(
                _time(row, 2, coefficients), exponent
            )
        fixed[p] = _power(_time(row, 3, coefficients), exponent)
        for s in range(len(ps_sizes)):
            setting = (
                batch, 1.0, 1.0, speed, count, ps_sizes[s], speed, 1 / count, free * speed, 1 / hosts, 1 / hosts,
            )  # fmt: skip
            _row(setting, engine, row)
            of_ps[p, s] = _power(_time(row, 1, coefficients), exponent)


@kernel
def rates_with_variance(rows, coefficients, covariance, exponent, axes, region, outside, seconds, variance):  # type: ignore[no-untyped-def]
    """For ``rows`` [n, t, k]: fills ``seconds`` [n] per minibatch, ``variance`` [n] that the coefficients give it, relative, and
    ``outside`` [n]: by how many doublings ``axes`` [a, n] lie outside of ``region`` [a, 2], added up."""
    count, terms, width = rows.shape
    times, design = np.empty(terms), np.empty(width)
    for i in range(count):
        largest = 1e-300
        for t in range(terms):
            time = 0.0
            for k in range(width):
                time += rows[i, t, k] * coefficients[k]
            times[t] = time
            largest = max(largest, time)
        total = 0.0
        for t in range(terms):
            part = times[t] / largest
            times[t] = part ** (exponent - 1)
            total += times[t] * part
        norm = total ** (1 / exponent)
        seconds[i] = largest * norm
        for k in range(width):
            slope = 0.0
            for t in range(terms):
                slope += times[t] * rows[i, t, k]
            design[k] = slope / (norm ** (exponent - 1) * seconds[i])
        spread = 0.0
        for k in range(width):
            for other in range(width):
                spread += design[k] * covariance[k, other] * design[other]
        variance[i] = spread
        doublings = 0.0
        for a in range(len(region)):
            factor = max(region[a, 0] / axes[a, i], axes[a, i] / region[a, 1])
            if factor > 1:
                doublings += math.log2(factor)
        outside[i] = doublings
