"""Two policies compared on the same traces, seed by seed, with how sure that is: intervals by the bootstrap over seeds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import msgspec
import numpy as np

from dlrover_lite.core.errors import UsageError
from dlrover_lite.simulation.outcomes.metrics import metrics_of
from dlrover_lite.simulation.outcomes.records import Run

__all__ = ["Comparison", "Interval", "compare"]

_DRAWS = 2000
"""Number of times that seeds are drawn anew."""
_SURE = 0.95
_SEED = 20241126


class Interval(msgspec.Struct, frozen=True):
    """A value, and the interval within which it would lie with other seeds, 95 times of 100."""

    value: float
    lower: float | None = None
    """None: there is one seed, which says nothing of others."""
    upper: float | None = None


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """A policy beside another one, the base. None: there is nothing to say it of."""

    policy: str
    base: str
    seeds: int
    mean_time: Interval | None
    """Mean completion time over the base's, of the jobs that ended well under both: the geometric mean over seeds."""
    median_time: Interval | None
    p90_time: Interval | None
    completion: Interval | None
    """Completion rate less the base's, in percentage points; as the two that follow."""
    cpu_use: Interval | None
    memory_use: Interval | None
    cost: Interval | None
    """Cost over the base's."""
    worst_time: float | None
    """The largest completion time of a job over that under the base."""


def compare(runs: Sequence[Run], base: Sequence[Run]) -> Comparison:
    """Compare the runs of one policy with those of another one, by their seeds. Raises UsageError where these aren't the same."""
    ours, theirs = _by_seed(runs), _by_seed(base)
    if not ours or ours.keys() != theirs.keys():
        raise UsageError(
            f"seeds {sorted(ours)} can't be compared with seeds {sorted(theirs)}", hint="Run both with the same seeds."
        )
    seeds = sorted(ours)
    pairs = [(_times(ours[seed], theirs[seed])) for seed in seeds]
    metrics = [(metrics_of(ours[seed]), metrics_of(theirs[seed])) for seed in seeds]

    def points(name: str) -> Interval | None:
        values = [(getattr(a, name), getattr(b, name)) for a, b in metrics]
        return _interval([None if a is None or b is None else 100 * (a - b) for a, b in values])

    def ratio(of: Callable[[list[float]], float]) -> Interval | None:
        return _ratio([of([a for a, _ in pair]) / of([b for _, b in pair]) if pair else None for pair in pairs])

    return Comparison(
        policy=runs[0].policy,
        base=base[0].policy,
        seeds=len(seeds),
        mean_time=ratio(lambda values: float(np.mean(values))),
        median_time=ratio(lambda values: float(np.median(values))),
        p90_time=ratio(lambda values: float(np.quantile(values, 0.9))),
        completion=points("completion_rate"),
        cpu_use=points("cpu_use"),
        memory_use=points("memory_use"),
        cost=_ratio([a.cost / b.cost if a.cost and b.cost else None for a, b in metrics]),
        worst_time=max((a / b for pair in pairs for a, b in pair if b > 0.0), default=None),
    )


def _by_seed(runs: Sequence[Run]) -> Mapping[int, Run]:
    return {run.seed: run for run in runs}


def _times(run: Run, base: Run) -> list[tuple[float, float]]:
    """Return the completion times of the jobs that ended well in both."""
    theirs = {job.name: job.seconds for job in base.jobs}
    found = []
    for job in run.jobs:
        other = theirs.get(job.name)
        if job.seconds is not None and other is not None:
            found.append((job.seconds, other))
    return found


def _ratio(values: Sequence[float | None]) -> Interval | None:
    """Return the geometric mean of ratios."""
    found = _interval([None if value is None else math.log(value) for value in values])
    if found is None:
        return None
    ends = [None if end is None else math.exp(end) for end in (found.lower, found.upper)]
    return Interval(math.exp(found.value), *ends)


def _interval(values: Sequence[float | None]) -> Interval | None:
    """Return the mean of what there is, with its interval by drawing seeds anew, always by the same chance."""
    present = np.array([value for value in values if value is not None])
    if not len(present):
        return None
    mean = float(present.mean())
    if len(present) == 1:
        return Interval(mean)
    drawn = np.random.default_rng(_SEED).integers(len(present), size=(_DRAWS, len(present)))
    lower, upper = np.quantile(present[drawn].mean(axis=1), [(1 - _SURE) / 2, (1 + _SURE) / 2])
    return Interval(mean, float(lower), float(upper))
