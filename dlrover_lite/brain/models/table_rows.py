"""How many rows an embedding table will have: Heaps' law with a finite limit, one fit per table.

    rows(n) = L (1 - exp(-K n^g / L)) + c n,  and  K n^g + c n  where L is infinite

Only samples that can bring new ids count as n: those of the first epoch; where rows are evicted when they haven't been seen for some
samples, at most that many. Then, where each epoch has the same order and its ids change with time, those of its end are there beside those
of the next one's beginning: what half of the samples bring, and of that as much again as has changed meanwhile.

How large L is can rarely be told from the beginning of the curve. So none is chosen: every L of a grid is fitted, the power law among
them, weighed by how well it fits, and all together give the band. So it is with c, which is 0 where ids are drawn at random, and is not
where they change with time: part of the curve goes on as straight as it is then. Beside them stands the power law of the last part of the
curve alone, in case that only begins to bend it up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["Growth", "RowFit", "fit_rows", "quantile_rows"]

Floats = NDArray[np.float64]

_POINTS = 24
"""Number of points of the curve that are used, at equal ratios of n, back to 1 / ``_SPAN`` of n."""
_SPAN = 64.0
_MISFIT = 0.01
"""Relative error of the law itself: the curve is smooth, so its points differ from the law by more than by chance."""
_INDEPENDENT = 5.0
"""Number of independent points that all points of a curve count as together."""
_SLOPE, _SLOPE_SD = 0.7, 0.3
"""Mean and standard deviation of the prior of g."""
_LIMITS = 60
_FURTHEST = 1e4
"""The largest finite L, as a multiple of the rows there are."""
_NEAREST, _HEADS, _FURTHEST_HEAD = 0.002, 8, 100.0
"""How far beyond the rows there are the nearest L is, in parts of them; how many there are of the part that doesn't grow straight, and the
furthest of these."""
_SHARES = np.arange(1, 10) / 10
"""Values of c n, as parts of the rows there are."""
_STRAIGHT, _STRAIGHT_IN_ORDER = 0.03, 0.15
"""Prior weight of c > 0; where rows are evicted and epochs have the same order, that is rather the order of time, and much follows from
it."""
_LEAST_REST = 1e-3
"""Least part of the rows there are that isn't taken to grow straight."""
_LATEST, _LATEST_WEIGHT = 3.0, 0.15
"""The power law of the curve's end is fitted from this part of n on (1/3 to 1), and is given this weight however the others fit."""
_DRIFT_SD = 0.03
"""Standard deviation of g from now on, beside its error of measurement: ids that change with time follow no law of the past."""


class Growth(msgspec.Struct, frozen=True):
    """Which samples bring new rows."""

    epoch_samples: float = math.inf
    """Number of samples in one epoch: later ones bring the same ids again."""
    evict_after_samples: float = math.inf
    """Number of samples after which rows that weren't seen in them are removed."""
    in_order: bool = False
    """Each epoch's samples come in the same order."""

    @property
    def alone_until(self) -> float:
        """Number of samples from which on rows of an epoch's end and of the next one's beginning are there together."""
        return self.epoch_samples if self.in_order and self.evict_after_samples < self.epoch_samples else math.inf

    @property
    def met_by(self) -> float:
        """Number of samples by which as many of these are there together as ever are."""
        return self.alone_until + self.evict_after_samples / 2

    def counted(self, samples: ArrayLike) -> Floats:
        """Compute n, for samples since the job began, over all epochs."""
        return np.minimum(np.asarray(samples, np.float64), min(self.epoch_samples, self.evict_after_samples))


class RowFit(msgspec.Struct, frozen=True, dict=True):
    """A table's curve, as a mixture of laws: lists of equal length."""

    growth: Growth
    rows: float
    """Rows that there are now, or, where rows are evicted, that there were at the most; at ``counted``. The laws go through this point."""
    counted: float
    bound: float
    """The most rows that any law goes to."""
    weights: list[float]
    limits: list[float]
    factors: list[float]
    """ln K of each law."""
    slopes: list[float]
    """g of each law."""
    slope_sds: list[float]
    rates: list[float] = []
    """c of each law, in rows per sample; empty: all 0."""
    met: float = 0.0
    """The most rows since the first epoch's end met the next one's beginning."""
    met_at: float = math.inf
    """Number of samples at which they will have met for the first time."""

    @property
    def most(self) -> float:
        """The most rows that there have been."""
        return max(self.rows, self.met)


class _Laws(NamedTuple):
    """[l]: ln K and g of each limit, standard deviation of g, and log of the weight."""

    factors: Floats
    slopes: Floats
    sds: Floats
    scores: Floats


def fit_rows(
    samples: Sequence[float] | Floats,
    rows: Sequence[float] | Floats,
    *,
    growth: Growth | None = None,
    limit: float | None = None,
) -> RowFit | None:
    """Fit the curve of a table through its measurements [n], ``samples`` rising since the job began, over all epochs; None without a row.

    ``limit``: a bound of the number of different ids, known from their type or from a count over the data.
    """
    growth = growth or Growth()
    at, there = np.asarray(samples, np.float64), np.asarray(rows, np.float64)
    alone = at <= growth.alone_until
    if not alone.any():  # nothing is known of the first epoch: later ones are all there is to go by
        alone[:] = True
    n, y = _thinned(growth.counted(at[alone]), there[alone])
    if not len(n):
        return None
    now = y[-1]
    largest = _FURTHEST * now if limit is None else max(limit, now)
    prior_straight = _STRAIGHT_IN_ORDER if math.isfinite(growth.alone_until) else _STRAIGHT
    shapes = _shapes(n, y, largest, limit, prior_straight)
    laws = _fit_laws(np.log(n), y, shapes)
    scores = laws.scores + np.log(shapes.prior)
    weights = np.exp(scores - scores.max())
    weights /= weights.sum()
    kept = weights > 1e-4
    slope = _latest_slope(np.log(n), np.log(y))
    weights = weights[kept] / weights[kept].sum() * (1 - _LATEST_WEIGHT)
    return RowFit(
        growth=growth,
        rows=float(now),
        counted=float(n[-1]),
        bound=limit if limit is not None else math.inf,
        weights=[*weights.tolist(), _LATEST_WEIGHT],
        limits=[*shapes.limits[kept].tolist(), math.inf],
        factors=[*laws.factors[kept].tolist(), float(np.log(now) - slope * np.log(n[-1]))],
        slopes=[*laws.slopes[kept].tolist(), slope],
        slope_sds=[*laws.sds[kept].tolist(), 0.0],
        rates=[*shapes.rates[kept].tolist(), 0.0],
        met=float(there[~alone].max(initial=0.0)),
        met_at=growth.met_by if at[-1] < growth.met_by else math.inf,
    )


class _Shapes(NamedTuple):
    """Laws that are to be fitted, [l] each."""

    limits: Floats
    """L of each law."""
    rates: Floats
    """c of each law."""
    prior: Floats


def _shapes(n: Floats, y: Floats, largest: float, limit: float | None, prior_straight: float) -> _Shapes:
    """List the laws that are to be fitted. Nothing is known of the limit's size beforehand: each e-fold of it is as likely, and no limit as
    likely as any. Nor is anything known of the rate, so each part of the present one is as likely."""
    now = float(y[-1])
    # most of them are near: the nearer, the more it tells how far it is
    beyond = largest / now - 1
    finite = now * (1 + np.geomspace(_NEAREST, beyond, _LIMITS)) if beyond > _NEAREST else np.array([largest])
    limits = finite if limit is not None else np.append(finite, math.inf)
    prior = np.gradient(np.log(finite)) if len(finite) > 1 else np.ones(1)
    prior /= prior.sum()
    if limit is None:
        prior = np.append(prior, 1.0) / 2
    # a part that goes on as it does, beside one that has a limit of its own, or none
    heads = np.append(1 + np.geomspace(_NEAREST, _FURTHEST_HEAD, _HEADS), math.inf)
    shares, heads = (grid.ravel() for grid in np.meshgrid(_SHARES, heads, indexing="ij"))
    straight = np.full(len(shares), 1 / len(shares))
    return _Shapes(
        np.concatenate([limits, heads * (1 - shares) * now]),
        np.concatenate([np.zeros(len(limits)), shares * now / n[-1]]),
        np.concatenate([prior * (1 - prior_straight), straight * prior_straight]),
    )


def _latest_slope(log_n: Floats, log_y: Floats) -> float:
    latest = log_n >= log_n[-1] - math.log(_LATEST)
    x, y = log_n[latest], log_y[latest]
    if len(x) < 3:
        return _SLOPE
    x = x - x.mean()
    return float(np.clip((x * y).sum() / (x * x).sum(), 0.0, 1.0))


def _thinned(n: Floats, y: Floats) -> tuple[Floats, Floats]:
    """Thin the points out to about equal ratios of n, the last one among them; of those with the same n (later epochs, and after evictions,
    when there may be fewer for a while) keep the one with the most rows."""
    good = (n > 0) & (y > 0)
    n, y = n[good], y[good]
    if not len(n):
        return n, y
    first_of_n = np.flatnonzero(np.diff(n, prepend=0.0))
    n, y = n[first_of_n], np.maximum.reduceat(y, first_of_n)
    wanted = np.geomspace(max(n[0], n[-1] / _SPAN), n[-1], _POINTS)
    chosen = np.unique(np.clip(np.searchsorted(n, wanted * (1 - 1e-9)), 0, len(n) - 1))
    return n[chosen], y[chosen]


def _fit_laws(log_n: Floats, y: Floats, shapes: _Shapes) -> _Laws:
    """Fit a line for each shape, all at once: ln(-L ln(1 - (rows - c n)/L)) = ln K + g ln n. Points count fully at the end of the curve and
    less at its beginning, since a slope that falls slowly is best known from there."""
    recent = np.exp((log_n - log_n[-1]) / math.log(_SPAN))  # 1 at the end, 1/e at the beginning
    count = min(_INDEPENDENT, float(len(log_n)))
    weights = recent / recent.sum() * count
    limits, straight = shapes.limits[:, None], shapes.rates[:, None] * np.exp(log_n)
    rest = np.maximum(y - straight, _LEAST_REST * y)
    with np.errstate(divide="ignore", invalid="ignore"):
        # a limit below rows once seen, as after an eviction, says as much as one just above
        share = np.minimum(rest / limits, 1 - 1e-6)
        line = np.where(share > 0, np.log(-np.log1p(-share)) + np.log(limits), np.log(rest))
        # how much the line moves for a relative error of rows: errors count where they are made
        lever = y / rest * np.where(share > 0, share / (-(1 - share) * np.log1p(-share)), 1.0)
    w = weights[None, :] / (lever * _MISFIT) ** 2
    total = w.sum(axis=1)
    x_mean = (w * log_n).sum(axis=1) / total
    line_mean = (w * line).sum(axis=1) / total
    x = log_n[None, :] - x_mean[:, None]
    information = (w * x**2).sum(axis=1) + 1 / _SLOPE_SD**2
    slopes = np.clip(
        ((w * x * (line - line_mean[:, None])).sum(axis=1) + _SLOPE / _SLOPE_SD**2) / information, 1e-3, 1.2
    )
    factors = line_mean - slopes * x_mean
    fitted = _law(limits, factors[:, None] + slopes[:, None] * log_n) + straight
    off = np.log(fitted / y) / _MISFIT
    squares = (weights * off**2).sum(axis=1) + ((slopes - _SLOPE) / _SLOPE_SD) ** 2
    return _Laws(factors, slopes, 1 / np.sqrt(information), -0.5 * squares - 0.5 * np.log(information))


def quantile_rows(fit: RowFit, samples: ArrayLike, quantiles: ArrayLike) -> Floats:
    """Compute the rows [quantiles, samples] when the job has trained on ``samples`` since it began, over all epochs.

    The laws' slopes are uncertain too, and so is whether ids will go on as they did: five values of each law stand for that. A fit keeps
    what it was asked: all parameter servers of a job ask the same.
    """
    n = np.atleast_1d(fit.growth.counted(samples))
    met = np.atleast_1d(np.asarray(samples, np.float64) >= fit.met_at)
    wanted = np.atleast_1d(np.asarray(quantiles, np.float64))
    answers: dict[tuple[bytes, ...], Floats] = fit.__dict__.setdefault("answers", {})
    question = n.tobytes(), met.tobytes(), wanted.tobytes()
    if question not in answers:
        answers[question] = _quantile_rows(fit, n, met, wanted)
        answers[question].setflags(write=False)
    return answers[question]


def _quantile_rows(fit: RowFit, n: Floats, met: NDArray[np.bool_], quantiles: Floats) -> Floats:
    ahead = np.log(np.maximum(n / fit.counted, 1.0))
    rates = fit.rates or [0.0] * len(fit.weights)
    limits, factors, slopes, sds, straight = (
        np.array(values)[:, None, None] for values in (fit.limits, fit.factors, fit.slopes, fit.slope_sds, rates)
    )
    offsets, parts = np.array([-2.0, -1.0, 0.0, 1.0, 2.0]), np.array([0.06, 0.24, 0.4, 0.24, 0.06])
    # the line turns about the point where the job is now
    slope = np.maximum(slopes + offsets[None, :, None] * np.hypot(sds, _DRIFT_SD), 0.0)
    now = np.log(fit.counted)
    line = factors + slopes * now + slope * ahead
    bent = _law(limits, line)
    if met.any():
        half = _law(limits, line - slope * math.log(2))
        others = np.minimum(half, straight * (fit.growth.epoch_samples - n))
        bent = np.where(met, np.maximum(bent, half + others), bent)
    grown = bent + straight * fit.counted * np.exp(ahead)
    here = _law(limits, factors + slopes * now) + straight * fit.counted
    values = np.clip(fit.rows * grown / here, fit.most, max(fit.bound, fit.most))  # [laws, offsets, samples]
    weights = (np.array(fit.weights)[:, None] * parts).ravel()
    found = _weighted_quantiles(values.reshape(-1, len(n)), weights, quantiles)
    # where laws cross, quantiles in between could fall by a little
    rising = np.argsort(n, kind="stable")
    found[:, rising] = np.maximum.accumulate(found[:, rising], axis=1)
    return found


def _law(limits: Floats, line: Floats) -> Floats:
    """Compute the rows where K n^g is exp(line)."""
    power = np.exp(line)
    with np.errstate(invalid="ignore"):
        return np.where(np.isinf(limits), power, -limits * np.expm1(-power / limits))


def _weighted_quantiles(values: Floats, weights: Floats, quantiles: Floats) -> Floats:
    """Compute quantiles [q, columns] of values [m, columns], interpolated."""
    order = values.argsort(axis=0)
    ordered = np.take_along_axis(values, order, axis=0)
    cumulated = np.cumsum(weights[order], axis=0) - weights[order] / 2
    return np.stack([np.interp(quantiles, cumulated[:, j], ordered[:, j]) for j in range(values.shape[1])], axis=1)
