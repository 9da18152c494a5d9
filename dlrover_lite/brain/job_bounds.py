"""The plans that a job's recipe and the hosts leave open."""

from __future__ import annotations

import math

import msgspec

from dlrover_lite.brain.planning.plan_grid import Bounds, to_milli
from dlrover_lite.protocol.demands import Demand, within

__all__ = ["bounds_of", "smallest_cores"]

_FINEST = 0.25
"""Cores of the smallest node, where no usual size fits in."""
_FEW_CORES = 4.0
"""The most cores of a job whose nodes come in eighths of a core: a quarter is a large part of so few."""


def bounds_of(demand: Demand) -> Bounds:
    """Return the plans that the recipe and the hosts leave open."""
    cores = within(demand).cores
    sizes = tuple(size for size in _sizes(cores) if to_milli(size) < to_milli(cores)) or (_least_size(cores),)
    small = tuple(size for size in sizes if size <= 1.0)  # one thread does a parameter server's work on rows
    bounds = Bounds(
        max_workers=max(1, int(cores / 0.5)),
        max_servers=max(1, math.ceil(0.75 * cores)),
        worker_sizes=sizes,
        ps_sizes=small or sizes[:1],
    )
    if (fixed := demand.worker) is not None:
        bounds = msgspec.structs.replace(
            bounds, min_workers=fixed.count, max_workers=fixed.count, worker_sizes=(fixed.each.cores,)
        )
    if (fixed := demand.ps) is not None:
        bounds = msgspec.structs.replace(
            bounds, min_servers=fixed.count, max_servers=fixed.count, ps_sizes=(fixed.each.cores,)
        )
    return bounds


def _least_size(cores: float) -> float:
    """Return the cores of a node where there is less than two of the finest; of one that no host is there for, the finest."""
    return min(_FINEST, cores / 2) or _FINEST


def smallest_cores(demand: Demand) -> float:
    """Return the cores of the smallest plan that the job could have."""
    bounds = bounds_of(demand)
    return bounds.min_workers * min(bounds.worker_sizes) + bounds.min_servers * min(bounds.ps_sizes)


def _sizes(cores: float) -> list[float]:
    """List the sizes that a node may have, in cores. Where there are few cores, steps are finer: what a parameter server doesn't need is a
    part of a worker there."""
    if cores <= _FEW_CORES:
        return [eighths / 8 for eighths in range(1, int(_FEW_CORES * 8))]
    return [0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0]
