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
    the number of workers makes of ``of_worker``.

    What is slower than something cheaper of the same side is so beside every other side, and isn't looked at.
    """
    sides, sizes, most = len(workers), of_ps.shape[1], len(slowness) - 1
    useful = np.empty(sizes, np.int64)
    for p in range(len(fixed)):
        count, lowest = 0, np.inf
        for s in range(sizes):
            if of_ps[p, s] < lowest:
                lowest = of_ps[p, s]
                useful[count] = s
                count += 1
        lowest = np.inf
        for n in range(sides):
            one = of_worker[p, size_of_side[n]] * shrink[n] + fixed[p]
            if not (one < lowest and workers[n] <= fitting[p]):
                continue
            lowest = one
            for at in range(count):
                s = useful[at]
                cost = worker_units[n] + ps_units[p, s]
                if cost > most:
                    break
                total = one + of_ps[p, s]
                if total < slowness[cost]:
                    slowness[cost] = total
                    flat[cost] = (p * sides + n) * sizes + s
