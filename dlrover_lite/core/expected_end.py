"""When a job will have gone through its samples: the one estimate for everything that says so.

It goes by the intervals that were measured with the job's present plan. As long as there are too few of them, it goes by what was
predicted for that plan when it was decided. It is a pure function of its arguments.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from dlrover_lite.core.bounds import Seconds, Timestamp

__all__ = ["ExpectedEnd", "PlanIntervals", "PlanShape", "PredictedRate", "TrainedInterval", "expected_end"]

_WINDOW = 12
"""Number of the newest intervals that the estimate goes by."""
_ENOUGH = 3
"""Number of intervals of the plan from which on they count instead of what was predicted."""
_LONGEST_SECONDS = 1e9
"""Remaining seconds above which a job has no end that is worth telling."""
_SHORTEST_SECONDS = 1e-3
"""Length in seconds below which intervals say nothing."""
_T_90 = (3.078, 1.886, 1.638, 1.533, 1.476, 1.440, 1.415, 1.397, 1.383, 1.372, 1.363)
"""90% quantiles of Student's t distribution for 1 to 11 degrees of freedom: 80% lie within plus and minus this."""


class TrainedInterval(msgspec.Struct, frozen=True):
    """An interval of training that was measured."""

    seconds: float
    samples: float


class PredictedRate(msgspec.Struct, frozen=True):
    """Throughput that was predicted for a plan, samples/s."""

    expected: float
    lower: float
    """``lower`` to ``upper`` is the 80% band."""
    upper: float


class ExpectedEnd(msgspec.Struct, frozen=True):
    """When a job will have gone through the samples that it trains on."""

    at: Timestamp
    """Seconds since the epoch."""
    error_seconds: Seconds | None
    """Half the width of the 80% band around ``at``; None: too little is known to say."""


class PlanShape(NamedTuple):
    """Shape of a plan: cores of each node, by role. Its throughput follows from that."""

    workers: tuple[float, ...]
    servers: tuple[float, ...]

    @classmethod
    def of_roles(cls, workers: int, worker_cores: float, servers: int, ps_cores: float) -> PlanShape:
        return cls.of_nodes([worker_cores] * workers, [ps_cores] * servers)

    @classmethod
    def of_nodes(cls, workers: Iterable[float], servers: Iterable[float]) -> PlanShape:
        """Return the shape of a plan of nodes with so many cores each, in whatever order."""
        return cls(tuple(sorted(round(one, 3) for one in workers)), tuple(sorted(round(one, 3) for one in servers)))


class PlanIntervals:
    """The newest intervals that were measured, each with the shape of the plan that it was measured with."""

    def __init__(self) -> None:
        self._newest: deque[tuple[PlanShape, TrainedInterval]] = deque(maxlen=_WINDOW)

    def add(self, shape: PlanShape, interval: TrainedInterval) -> None:
        self._newest.append((shape, interval))

    def since(self, shape: PlanShape) -> list[TrainedInterval]:
        """Return the intervals since the plan has had this shape, the oldest first; none if it had another one when the last was
        measured."""
        found: list[TrainedInterval] = []
        for measured, interval in reversed(self._newest):
            if measured != shape:
                break
            found.append(interval)
        return found[::-1]


def expected_end(
    now: float,
    left: float,
    intervals: Sequence[TrainedInterval],
    *,
    predicted: PredictedRate | None = None,
    recent: float = 0.0,
    pause_seconds: float = 0.0,
) -> ExpectedEnd | None:
    """Estimate when the job will have trained on ``left`` more samples; None: nothing is known to go by.

    ``now``: seconds since the epoch. ``intervals``: those of the present plan, the oldest first. ``predicted``: for that plan. ``recent``:
    samples/s of the last seconds, taken where nothing else is known; 0: unknown. ``pause_seconds``: how long training will be held up on
    the way, by evaluations for instance.
    """
    newest = [one for one in intervals if one.seconds >= _SHORTEST_SECONDS][-_WINDOW:]
    seconds = sum(one.seconds for one in newest)
    rate = sum(one.samples for one in newest) / seconds if newest else 0.0
    training: float
    error: float | None = None
    if len(newest) >= _ENOUGH and rate > 0:
        training, error = _by_intervals(newest, left)
    elif predicted is not None and predicted.expected > 0:
        training, error = _by_prediction(predicted, left)
    elif rate > 0 or recent > 0:
        training = left / (rate or recent)
    else:
        return None
    if left < 0 or not training < _LONGEST_SECONDS:
        return None
    return ExpectedEnd(now + training + pause_seconds, None if error is None else min(error, _LONGEST_SECONDS))


def _by_intervals(intervals: Sequence[TrainedInterval], left: float) -> tuple[float, float]:
    """Estimate the seconds and half the width of their 80% band, with intervals taken as independent of each other.

    What is to come scatters as well as what was: of the mean over as many intervals as are still to come, the variance is theirs, too.
    """
    count = len(intervals)
    total = sum(one.seconds for one in intervals)
    mean = sum(one.samples for one in intervals) / total
    seconds = left / mean
    to_come = max(1.0, seconds / (total / count))
    squares = sum(one.seconds / total * count * (one.samples / one.seconds / mean - 1) ** 2 for one in intervals)
    relative = math.sqrt(squares / (count - 1) * (1 / count + 1 / to_come))
    return seconds, seconds * relative * _T_90[count - 2]


def _by_prediction(predicted: PredictedRate, left: float) -> tuple[float, float | None]:
    if predicted.lower <= 0 or predicted.upper <= 0:
        return left / predicted.expected, None
    return left / predicted.expected, (left / predicted.lower - left / predicted.upper) / 2
