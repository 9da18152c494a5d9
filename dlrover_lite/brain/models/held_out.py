"""How far the throughput of plans that a job never had is off what its model says: judged by the plans that it had, each of them predicted
from the others alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from dlrover_lite.brain.models.throughput import Fit, Uncertainty, uncertainty
from dlrover_lite.brain.models.throughput_forms import Floats, Setting
from dlrover_lite.protocol.profiles import Observation

__all__ = ["HeldOut", "RunBand", "held_out", "run_band", "scale_of"]

_MOST_PLANS = 12
"""The most plans that are held out, those with the newest observations."""
_MISFIT = 1.5
"""Standard deviation of a plan's throughput about its model, where all plans like it were measured, over that of an interval
(``Fit.noise``), which is fitted to."""
_COSTS_DOUBT = 0.7
"""Standard deviation that a plan has by its costs, over what their covariance says: that is wide where a cost is but guessed."""
_WIDER = 0.05
"""Relative standard deviation of the first doubling outside of what was seen. Each further one adds as much variance: one may make up for
another. With these three, bands of simulated jobs hold what they say (``bench/whatif.py``, on jobs with other seeds than those that are
reported)."""
_USUAL_WORTH = 4.0
"""Weight of what bands say by themselves, as a number of plans held out."""
_MOST_SQUARE = 9.0
"""The most that a plan held out counts, in squared standard deviations: something else may have happened there."""


class HeldOut(NamedTuple):
    """A plan that was measured, predicted from the others alone."""

    error: float
    """Logarithm of measured over predicted throughput."""
    sd: float
    """Standard deviation that the prediction said it had."""


class RunBand(NamedTuple):
    """Samples per second of whole runs, arrays as the setting's; ``low`` to ``high`` holds 80% of them."""

    samples_per_second: Floats
    low: Floats
    high: Floats


def held_out(observations: Sequence[Observation], fit: Callable[[Sequence[Observation]], Fit]) -> list[HeldOut]:
    """Predict each plan from the observations of the others; ``fit`` fits a model to these. Empty where there are fewer than two plans."""
    plans: dict[tuple[float, ...], list[int]] = {}
    for at, one in enumerate(observations):
        plans.setdefault((one.workers, one.ps, one.worker_cores, one.ps_cores), []).append(at)
    if len(plans) < 2:
        return []
    newest = sorted(plans.values(), key=lambda of: -of[-1])[:_MOST_PLANS]
    return [_held_out(observations, set(of), fit) for of in newest]


def _held_out(
    observations: Sequence[Observation], those: set[int], fit: Callable[[Sequence[Observation]], Fit]
) -> HeldOut:
    fitted = fit([one for at, one in enumerate(observations) if at not in those])
    held = [observations[at] for at in sorted(those)]
    found = uncertainty(fitted, Setting.of(held))
    errors = np.log([one.samples_per_second for one in held]) - np.log(found.samples_per_second)
    return HeldOut(float(errors.mean()), float(_sd(fitted, found).mean()))


def run_band(fitted: Fit, setting: Setting, known: Sequence[HeldOut] = ()) -> RunBand:
    """Predict the throughput of a whole run with each setting. ``known``: how good such predictions have been for this job."""
    from scipy.special import stdtrit

    found = uncertainty(fitted, setting)
    rate = found.samples_per_second
    width = np.exp(stdtrit(fitted.freedom, 0.9) * _sd(fitted, found) * scale_of(known))
    return RunBand(rate, rate / width, rate * width)


def _sd(fitted: Fit, found: Uncertainty) -> Floats:
    """Compute the standard deviation of the logarithm of plans' throughput about what is predicted."""
    squares = (_MISFIT * fitted.noise) ** 2 + _COSTS_DOUBT**2 * found.variance + _WIDER**2 * found.counted
    return np.asarray(np.sqrt(squares), np.float64)


def scale_of(known: Sequence[HeldOut]) -> float:
    """Compute a factor on the standard deviations of predictions: by how much those of plans held out were off, against what they said."""
    squares = sum(min((one.error / one.sd) ** 2, _MOST_SQUARE) for one in known)
    return math.sqrt((_USUAL_WORTH + squares) / (_USUAL_WORTH + len(known)))
