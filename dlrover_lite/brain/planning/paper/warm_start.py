"""The paper's warm start: exponential smoothing over the plans of the most similar jobs of the past, whatever they cost there.

The mean of a plan is no plan: counts and sizes are rounded to the nearest one that may be had, by the differences of logarithms.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dlrover_lite.brain.models.similarity import smoothed_plan
from dlrover_lite.brain.planning.pareto import ThroughputModel
from dlrover_lite.brain.planning.plan_grid import Candidate, FloatArray, IntArray, Lattice, to_milli

__all__ = ["SMOOTHING", "nearest_plan", "smoothed"]

SMOOTHING = 0.5
"""Weight of each plan against those of less similar jobs together."""


def smoothed(similar: Sequence[Candidate]) -> FloatArray:
    """Smooth the plans of similar jobs, the most similar first: workers, PS, cores of a worker, cores of a PS, [4]."""
    plans = [(one.workers, one.servers, one.worker_cores, one.ps_cores) for one in similar]
    return np.array(smoothed_plan(plans[::-1], smoothing=SMOOTHING))


def nearest_plan(
    lattice: Lattice, _model: ThroughputModel, *, similar: Sequence[Candidate], most_cores: float, fitting: IntArray
) -> IntArray:
    """Find the plan nearest to the smoothed one, of those of at most ``most_cores`` that are ``Lattice.fitting``: its index, as
    ``pareto.fastest`` returns its own, or none."""
    wanted = np.log(smoothed(similar))
    axes = (lattice.workers[None, :, None], lattice.servers[:, None, None], lattice.worker_cores[None, :, None])
    off = sum(
        (np.abs(np.log(axis) - value) for axis, value in zip((*axes, lattice.ps_cores), wanted, strict=True)),
        np.zeros(lattice.shape),
    )
    units = lattice.worker_units[None, :, None] + lattice.ps_units[:, None, :]
    room = fitting if fitting.shape[1] == 1 else fitting[:, lattice.size_of_side]
    may = (units * lattice.unit_milli <= to_milli(most_cores)) & (lattice.workers[None, :, None] <= room)
    if not may.any():
        return np.empty(0, np.int64)
    return np.array([int(np.where(may, off, np.inf).argmin())])
