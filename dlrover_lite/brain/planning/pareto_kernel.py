"""The search of ``pareto`` over very many plans, compiled: it pays where hundreds of jobs share a cluster."""

from __future__ import annotations

import numpy as np

from dlrover_lite.core.kernels.compile import kernel

__all__ = ["fastest_by_sides"]


@kernel
def fastest_by_sides(  # type: ignore[no-untyped-def]
    of_worker, fixed, of_ps, shrink, workers, size_of_side, fitting, worker_units, ps_units, slowness, flat
):
    """Lower ``slowness``, the smallest sum of each cost, and keep in ``flat`` the index that has it, for ``Sides`` with ``shrink`` [N] what
    the number of workers makes of ``of_worker``. ``fitting``: [P, A, S].

    What is slower than something cheaper of the same side is so beside every other side, and isn't looked at.
    """
    sides, sizes, most = len(workers), of_ps.shape[1], len(slowness) - 1
    for p in range(len(fixed)):
        fastest_ps = np.inf
        for s in range(sizes):
            if not of_ps[p, s] < fastest_ps:
                continue
            fastest_ps = of_ps[p, s]
            lowest = np.inf
            for n in range(sides):
                cost = worker_units[n] + ps_units[p, s]
                if cost > most:
                    break
                one = of_worker[p, size_of_side[n]] * shrink[n] + fixed[p]
                if not (one < lowest and workers[n] <= fitting[p, size_of_side[n], s]):
                    continue
                lowest = one
                total, index = one + of_ps[p, s], (p * sides + n) * sizes + s
                if total < slowness[cost] or (total == slowness[cost] and index < flat[cost]):
                    slowness[cost] = total
                    flat[cost] = index
