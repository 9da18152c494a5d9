"""What it costs a worker that its limit stops it in each of the kernel's periods, and lets it go on in the next: it comes back to cold
caches, and to a core that was idle. That is about the same each time, so of a small limit it is a large part: with a quarter of a core
minibatches take a sixth more CPU than with a whole one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dlrover_lite.brain.models.throughput_forms import Floats
from dlrover_lite.protocol.profiles import Observation

__all__ = ["USUAL_CORES", "throttle_cores", "unthrottled"]

USUAL_CORES = 0.03
"""Cores of a limit that are lost by stopping a worker, as long as nothing is measured."""
_SD_CORES = 0.02
"""Standard deviation of that, before anything is measured."""
_MOST_CORES = 0.1
"""The most that is believed, whatever was measured."""
_CPU_NOISE = 0.06
"""Relative error of measured CPU seconds."""
_COST_SD = 2.0
"""Relative standard deviation of the costs of a minibatch about their mean: next to nothing is known."""
_LEAST_COST = 0.1
"""Least cost that is found, as a part of what was measured."""
_FROM, _TO = 0.75, 0.95
"""Parts of its limit that a worker uses, from which on the limit stops it sometimes, and in each period."""


def throttle_cores(observations: Sequence[Observation]) -> float:
    """Estimate the cores of its limit that a worker loses when the limit holds it back. It follows from measured CPU seconds, which rise
    with the time that a minibatch takes then. What moves those of workers and of PS alike is the host, and is left out. Ridge regression
    about what is usual."""
    told = [o for o in observations if o.worker_cpu_seconds and o.ps_cpu_seconds]
    if not told:
        return USUAL_CORES
    weight = np.sqrt([o.weight for o in told])
    cpu = np.array([o.worker_cpu_seconds for o in told], np.float64)
    batch, ps = np.array([o.batch_size for o in told]), np.array([o.ps for o in told])
    off = _off(told, batch, ps, weight)
    columns = np.array([_stopped_seconds(told), batch, np.ones(len(told)), ps, off * cpu.mean()]).T
    usual = np.array([USUAL_CORES, 0.0, 0.0, 0.0, 0.0])
    spread = np.array([_SD_CORES, *(_COST_SD * cpu.mean() / columns[:, 1:4].mean(axis=0)), 1.0])
    together = _ridge(columns, cpu, weight, usual, spread)[-1]  # how far workers share what PS are off by
    paces = np.exp(off * min(1.0, max(0.0, together)))
    lost = _ridge(columns[:, :-1], cpu / paces, weight, usual[:-1], spread[:-1])[0]
    return float(np.clip(lost, 0.0, _MOST_CORES))


def _off(observations: Sequence[Observation], batch: Floats, ps: Floats, weight: Floats) -> Floats:
    """Compute by how much, as a logarithm, the PS took more CPU than usual in each observation."""
    cpu = np.array([o.ps_cpu_seconds for o in observations], np.float64) * ps
    columns = np.array([batch, ps]).T
    found = _ridge(columns, cpu, weight, np.zeros(2), _COST_SD * cpu.mean() / columns.mean(axis=0))
    off = np.log(cpu / np.maximum(columns @ found, cpu * _LEAST_COST))
    return np.asarray(off - off.mean())


def _ridge(columns: Floats, measured: Floats, weight: Floats, usual: Floats, spread: Floats) -> Floats:
    """Find the coefficients by ridge regression, with relative errors of what was ``measured``."""
    by = weight / _CPU_NOISE / measured
    rows = columns * by[:, None] * spread  # in units of the standard deviations
    off = rows.T @ (measured * by) - rows.T @ (rows @ (usual / spread))
    normal = rows.T @ rows + np.eye(len(usual))
    try:
        found = np.linalg.solve(normal, off)
    except np.linalg.LinAlgError:  # one that can't be right counts so much that the others are lost in rounding
        found, *_ = np.linalg.lstsq(normal, off, rcond=None)
    return np.asarray(usual + spread * found)


def unthrottled(observations: Sequence[Observation], lost_cores: float) -> list[float | None]:
    """Compute workers' CPU seconds per minibatch, less what is lost by stopping them."""
    seconds = _stopped_seconds(observations)
    return [
        o.worker_cpu_seconds and max(o.worker_cpu_seconds / 2, o.worker_cpu_seconds - lost_cores * stopped)
        for o, stopped in zip(observations, seconds.tolist(), strict=True)
    ]


def _stopped_seconds(observations: Sequence[Observation]) -> Floats:
    """Compute for each observation how long a worker takes from one minibatch to the next, as far as its limit holds it back."""
    found = []
    for o in observations:
        seconds = o.workers * o.batch_size / o.samples_per_second
        if o.shared_cores:  # all nodes are stopped together, when they have used what they have together
            together = (o.worker_cpu_seconds or 0.0) + (o.ps_cpu_seconds or 0.0) * o.ps
            used = together * o.workers / seconds / o.free_power
        else:
            used = (o.worker_cpu_seconds or 0.0) / o.worker_speed / seconds / o.worker_cores
        found.append(seconds * min(1.0, max(0.0, (used - _FROM) / (_TO - _FROM))))
    return np.array(found)
