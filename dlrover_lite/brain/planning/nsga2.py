"""The paper's search for the front, by a genetic algorithm (NSGA-II): the baseline of the exact one. Needs the extra ``nsga2`` (pymoo)."""

from __future__ import annotations

from typing import Any

import numpy as np

from dlrover_lite.brain.planning.pareto import ThroughputModel
from dlrover_lite.brain.planning.plan_grid import IntArray, Lattice
from dlrover_lite.core.errors import UsageError

__all__ = ["nsga2_front"]


def nsga2_front(
    lattice: Lattice,
    model: ThroughputModel,
    *,
    most_cores: float,
    fitting: IntArray,
    population: int = 100,
    generations: int = 100,
    seed: int = 0,
) -> IntArray:
    """Search for the front as ``pareto.fastest`` does: indices of points of at most ``most_cores`` that none of those found beats; often
    not on the front, and often without its ends. The same seed finds the same.

    Raises UsageError when pymoo isn't installed.
    """
    try:
        from pymoo.algorithms.moo.nsga2 import NSGA2
        from pymoo.core.problem import Problem
        from pymoo.operators.crossover.sbx import SBX
        from pymoo.operators.mutation.pm import PM
        from pymoo.operators.repair.rounding import RoundingRepair
        from pymoo.operators.sampling.rnd import IntegerRandomSampling
        from pymoo.optimize import minimize
    except ImportError as error:
        raise UsageError(
            f"NSGA-II can't be used: {error}",
            hint='Install it: pip install "dlrover-lite[nsga2]". The exact front needs nothing.',
        ) from error

    room = np.broadcast_to(fitting, (len(lattice.servers), len(lattice.worker_sizes), len(lattice.ps_cores)))

    class Plans(Problem):  # type: ignore[misc]
        def __init__(self) -> None:
            last = [size - 1 for size in lattice.shape]
            super().__init__(n_var=3, n_obj=2, n_ieq_constr=2, xl=[0, 0, 0], xu=last, vtype=int)

        def _evaluate(self, x: Any, out: dict[str, Any], *_args: Any, **_kwargs: Any) -> None:
            p, n, s = x.astype(np.int64).T
            cores = (lattice.worker_units[n] + lattice.ps_units[p, s]) * lattice.unit_milli / 1000
            rate = model.predict(*lattice.parts(np.ravel_multi_index((p, n, s), lattice.shape)))[0]
            out["F"] = np.column_stack([cores, -rate])
            out["G"] = np.column_stack([cores - most_cores, lattice.workers[n] - room[p, lattice.size_of_side[n], s]])

    algorithm = NSGA2(
        pop_size=population,
        sampling=IntegerRandomSampling(),
        crossover=SBX(prob=0.9, eta=15, vtype=float, repair=RoundingRepair()),
        mutation=PM(prob=1.0 / 3, eta=20, vtype=float, repair=RoundingRepair()),
        eliminate_duplicates=True,
    )
    found = minimize(Plans(), algorithm, ("n_gen", generations), seed=seed, verbose=False)
    if found.X is None:
        return np.empty(0, np.int64)
    p, n, s = np.atleast_2d(found.X).astype(np.int64).T
    flat: IntArray = np.unique(np.ravel_multi_index((p, n, s), lattice.shape))
    return flat
