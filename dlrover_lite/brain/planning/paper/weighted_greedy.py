"""The paper's weighted greedy over jobs: of all steps of all jobs to a plan that weighs more, the one that adds the most WG per core first,
as long as there is room. Nothing else keeps a job from a change: no bands, no tries, and nothing that was measured with a plan before.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

import numpy as np

from dlrover_lite.brain.planning.change_policy import Settled, Verdict
from dlrover_lite.brain.planning.job_view import Policy
from dlrover_lite.brain.planning.plan_grid import to_milli
from dlrover_lite.brain.planning.plan_values import Options
from dlrover_lite.core.units import Resources

__all__ = ["share"]

_LEAST = 1e-9
"""Least WG that a step adds, as a part of the largest WG there is: less is rounding."""


def share(
    options: Sequence[Options],
    capacity: Resources,
    _policy: Policy,
    *,
    alone: bool,
    forced: bool,
    beginnings: Mapping[str, float] | None = None,
) -> Settled:
    """Choose the plans of all admitted jobs, as ``change_policy.settle`` does. Each begins at its smallest plan; what can't be
    changed keeps its own. Whether a job is ``alone``, or others were let in by force, makes no difference, and nobody waits
    (``beginnings``)."""
    pinned = {one.view.job: one.now for one in options if one.view.fixed and one.now is not None}
    chosen = {one.view.job: pinned.get(one.view.job, one.minimum) for one in options}
    walk = _Walk({one.view.job: one for one in options}, capacity, chosen)
    walk.climb([job for job in sorted(chosen) if job not in pinned])
    verdicts = {one.view.job: _verdict(one, chosen[one.view.job]) for one in options}
    return Settled(verdicts, Resources(walk.milli / 1000, walk.memory), {})


def _verdict(one: Options, at: int) -> Verdict:
    if one.now is None:
        return Verdict(at, "start")
    if at == one.now:
        return Verdict(at, "stay", "fixed" if one.view.fixed else "")
    return Verdict(at, "change", "taken" if one.gain[at] < 0 else "")


class _Walk:
    """What is left, in thousandths of a core and bytes, while jobs climb from what they have ``chosen``."""

    def __init__(self, options: Mapping[str, Options], capacity: Resources, chosen: dict[str, int]) -> None:
        self._options, self._chosen = options, chosen
        self.milli = to_milli(capacity.cores) - sum(int(one.points.milli[chosen[job]]) for job, one in options.items())
        self.memory = capacity.memory - sum(int(one.memory[chosen[job]]) for job, one in options.items())

    def climb(self, jobs: Sequence[str]) -> None:
        """Let the jobs take steps until none that adds anything fits."""
        steps = [step for job in jobs if (step := self._best_step(job)) is not None]
        heapq.heapify(steps)
        while steps:
            step = heapq.heappop(steps)
            job, at = step[2:]
            if (again := self._best_step(job)) is None:
                continue
            if again == step:
                self._move(job, at)
                again = self._best_step(job)
            if again is not None:
                heapq.heappush(steps, again)

    def _best_step(self, job: str) -> tuple[float, float, str, int] | None:
        """Find the job's step to the most WG per core that fits, as what sorts the best first: its worth and WG with the sign changed, the
        job, and the plan's position."""
        one, here = self._options[job], self._chosen[job]
        adds = one.value - one.value[here]
        milli, memory = one.points.milli - one.points.milli[here], one.memory - one.memory[here]
        fits = (adds > _LEAST * np.abs(one.value).max()) & (milli <= self.milli) & (memory <= self.memory)
        for plan in one.view.declined:
            fits &= ~one.points.are(plan)
        if not fits.any():
            return None
        worth = np.where(milli > 0, adds / np.maximum(milli, 1), np.inf)
        worth = np.where(fits, worth, -np.inf)
        best = np.flatnonzero(worth == worth.max())
        at = int(best[adds[best].argmax()])
        return -float(worth[at]), -float(adds[at]), job, at

    def _move(self, job: str, at: int) -> None:
        one, here = self._options[job], self._chosen[job]
        self.milli -= int(one.points.milli[at] - one.points.milli[here])
        self.memory -= int(one.memory[at] - one.memory[here])
        self._chosen[job] = at
