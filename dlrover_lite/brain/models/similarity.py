"""Jobs like this one: what their coefficients tell before anything of it is measured; and the paper's way, to average their plans."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dlrover_lite.brain.models.throughput import Fit, Prior
from dlrover_lite.brain.models.throughput_forms import FORMS
from dlrover_lite.protocol.features import JobFeatures

__all__ = ["JobFeatures", "Neighbour", "distance", "neighbours", "pooled_prior", "smoothed_plan", "weights_of"]

THRESHOLD = 0.25
"""Distance within which a job tells something of another."""
_NEARNESS = 0.08
"""Distance at which a job counts for 1/e of one that is the same."""
_OWN_SD, _FAR_SD = 0.15, 1.0
"""Relative standard deviation of coefficients of a job that is the same, and what is added to it for a distance of 1."""

_NUMBERS = {
    "tables": (1.0, math.log(1000)),
    "dims": (1.0, math.log(256)),
    "batch_size": (1.0, math.log(256)),
    "rows": (0.5, math.log(1e6)),
}
"""Weight of each number, and the range of its logarithm. Fixed, so that a distance doesn't depend on which other jobs there are."""
_MODEL, _OPTIMIZER, _OWNER, _NAME = 2.0, 0.5, 0.5, 0.5
"""Weights of names: what a minibatch costs follows from the model more than from all else; one person's jobs are often alike."""


def distance(one: JobFeatures, other: JobFeatures) -> float:
    """Compute Gower's distance: 0 for the same, 1 for what differs in everything. It is the mean of the features' distances by their
    weights: of numbers the difference of logarithms over a fixed range, of names 0 or 1, of a job's name the part of its letter triples
    that differs. What is unknown of either isn't counted."""
    total, weights = 0.0, 0.0
    for name, (weight, extent) in _NUMBERS.items():
        a, b = getattr(one, name), getattr(other, name)
        if a > 0 and b > 0:
            total += weight * min(1.0, abs(math.log(a / b)) / extent)
            weights += weight
    for weight, a, b in (
        (_MODEL, one.model, other.model),
        (_OPTIMIZER, one.optimizer, other.optimizer),
        (_OWNER, one.owner, other.owner),
    ):
        if a and b:
            total += weight * (a != b)
            weights += weight
    if one.name and other.name:
        mine, theirs = _triples(one.name), _triples(other.name)
        total += _NAME * (1 - len(mine & theirs) / len(mine | theirs))
        weights += _NAME
    return total / weights if weights else 1.0


def _triples(name: str) -> set[str]:
    padded = f"  {name} "
    return {padded[i : i + 3] for i in range(len(padded) - 2)}


class Neighbour(NamedTuple):
    """A job past, with its last fit."""

    job: str
    distance: float
    fit: Fit


def neighbours(
    job: JobFeatures, history: Sequence[tuple[str, JobFeatures, Fit]], *, threshold: float = THRESHOLD, most: int = 8
) -> list[Neighbour]:
    """Find the jobs (id, features, fit) that are near enough, the nearest first; of equally near ones the later in ``history``."""
    found = [
        Neighbour(name, distance(job, features), fit) for name, features, fit in reversed(history) if fit.observations
    ]
    return sorted((n for n in found if n.distance <= threshold), key=lambda n: n.distance)[:most]


def weights_of(near: Sequence[Neighbour]) -> list[float]:
    """Compute what each neighbour counts for, together 1: the near and well measured ones the most."""
    found = [math.exp(-n.distance / _NEARNESS) * n.fit.observations / (n.fit.observations + 3) for n in near]
    return [weight / sum(found) for weight in found]


def pooled_prior(near: Sequence[Neighbour], *, form: str = "bottleneck") -> Prior | None:
    """Compute the coefficients to expect: the geometric mean of the neighbours', the near and well measured ones counting most; None
    without any.

    Means of costs are costs; the mean of a plan with one large worker and one with four small ones is neither. Coefficients are per sample,
    per minibatch and per request, so that jobs with other batch sizes can be pooled.
    """
    near = [n for n in near if n.fit.form == form]
    if not near:
        return None
    weights = np.array(weights_of(near))
    found, spread = {}, 0.0
    for name in FORMS[form].coefficients:
        # a coefficient that a job had no way of telling is no evidence, unless no job had
        told = np.array([_told(n.fit, name) for n in near]) * weights
        if not told.any():
            continue
        told /= told.sum()
        values = np.array([n.fit.coefficients.get(name, 0.0) for n in near])
        floor = max(1e-3 * float(values.max()), 1e-15)
        logs = np.log(np.maximum(values, floor))
        mean = float(told @ logs)
        found[name] = float(math.exp(mean)) if values.max() > 0 else 0.0
        # where samples are read from, and how hosts are connected, tells nothing of how sure the others are
        if name not in FORMS[form].optional:
            spread = max(spread, 0.5 * math.sqrt(float(told @ (logs - mean) ** 2)))
    mean_distance = float(weights @ np.array([n.distance for n in near]))
    exponents = np.array([math.log(n.fit.exponent) for n in near])
    sizes = [n.fit.engine.sample_bytes for n in near if "network_byte" in n.fit.coefficients]
    return Prior(
        found,
        relative_sd=min(1.5, math.hypot(_OWN_SD + _FAR_SD * mean_distance, spread)),
        exponent=float(math.exp(weights @ exponents)),
        noise=float(math.sqrt(weights @ np.array([n.fit.noise**2 for n in near]))),
        sample_bytes=float(np.exp(np.mean(np.log(sizes)))) if sizes else None,
        region=_region_of(near),
    )


def _region_of(near: Sequence[Neighbour]) -> dict[str, tuple[float, float]]:
    """Find the range of each axis that was seen of any of these jobs."""
    regions = [n.fit.region for n in near if n.fit.region]
    axes = regions[0] if regions else ()
    return {axis: (min(its[axis][0] for its in regions), max(its[axis][1] for its in regions)) for axis in axes}


def _told(fitted: Fit, name: str) -> float:
    """Return how far the fit tells a coefficient, 0 to 1."""
    if name not in fitted.coefficients:
        return 0.0
    return 0.05 if name in fitted.unseen else 1.0


def smoothed_plan(plans: Sequence[Sequence[float]], *, smoothing: float = 0.5) -> list[float]:
    """Compute the paper's warm start, to compare with: exponential smoothing of similar jobs' plans, each a list of numbers (workers, PS,
    cores, …), the most similar last: A := smoothing * plan + (1 - smoothing) * A.

    Raises ValueError without plans.
    """
    if not plans:
        raise ValueError("no plans")
    smooth = np.asarray(plans[0], np.float64)
    for plan in plans[1:]:
        smooth = smoothing * np.asarray(plan, np.float64) + (1 - smoothing) * smooth
    return [float(value) for value in smooth]
