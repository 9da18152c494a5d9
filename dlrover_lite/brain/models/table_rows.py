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
from typing import NamedTuple, TypeAlias

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = [
    "Growth",
    "RowFit",
    "fit_rows",
    "fit_tables",
    "growth_exponents",
    "moved_on",
    "quantile_rows",
    "rows_of_tables",
]

Floats = NDArray[np.float64]
IntArray = NDArray[np.int64]
Numbers: TypeAlias = Sequence[float] | Floats

_POINTS = 24
"""Number of points of the curve that are used, at equal ratios of n, back to 1 / ``_SPAN`` of n."""
_SPAN = 64.0
"""Ratio of the last point's n to the first one's: six doublings, of which what came before tells little."""
_MISFIT = 0.01
"""Relative error of the law itself: the curve is smooth, so its points differ from the law by more than by chance."""
_INDEPENDENT = 5.0
"""Number of independent points that all points of a curve count as together."""
_SLOPE, _SLOPE_SD = 0.7, 0.3
"""Mean and standard deviation of the prior of g."""
_LIMITS = 60
"""Number of values of L that are tried, at equal ratios."""
_FURTHEST = 1e4
"""The largest finite L, as a multiple of the rows there are."""
_NEAREST, _HEADS, _FURTHEST_HEAD = 0.002, 8, 100.0
"""How far beyond the rows there are the nearest L is, in parts of them; how many there are of the part that doesn't grow straight, and the
furthest of these."""
_STRAIGHT_SHARES, _STRAIGHT_HEADS = (
    grid.ravel()
    for grid in np.meshgrid(
        np.arange(1, 10) / 10,
        np.append(1 + np.geomspace(_NEAREST, _FURTHEST_HEAD, _HEADS), math.inf),
        indexing="ij",
    )
)
"""Values of c n, as parts of the rows there are, each beside limits of what doesn't grow straight, as multiples of that."""
_STRAIGHT, _STRAIGHT_IN_ORDER = 0.03, 0.5
"""Prior weight of c > 0; where rows are evicted and epochs have the same order, that is as likely as not the order of time."""
_LEAST_WEIGHT = 1e-4
"""Least weight of a law that is kept."""
_AT_ONCE = 4
"""Number of tables that are fitted together: the arrays of more leave the cache."""
_OFFSETS, _PARTS = np.array([-2.0, -1.0, 0.0, 1.0, 2.0]), np.array([0.06, 0.24, 0.4, 0.24, 0.06])
"""Values of a slope that stand for all, in standard deviations, and their weights."""
_LEAST_REST = 1e-3
"""Least part of the rows there are that isn't taken to grow straight."""
_LATEST, _LATEST_WEIGHT = 3.0, 0.15
"""The power law of the curve's end is fitted from this part of n on (1/3 to 1), and is given this weight however the others fit."""
_ASKED = (0.1, 0.5, 0.9, 0.95, 0.99)
"""Quantiles that are asked for again and again, and are computed together."""
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
    """A table's curve, as a mixture of laws: numbers of equal length."""

    growth: Growth
    rows: float
    """Rows that there are now, or, where rows are evicted, that there were at the most; at ``counted``. The laws go through this point."""
    counted: float
    bound: float
    """The most rows that any law goes to."""
    weights: Numbers
    limits: Numbers
    factors: Numbers
    """ln K of each law."""
    slopes: Numbers
    """g of each law."""
    slope_sds: Numbers
    rates: Numbers = ()
    """c of each law, in rows per sample; empty: all 0."""
    met: float = 0.0
    """The most rows since the first epoch's end met the next one's beginning."""
    met_at: float = math.inf
    """Number of samples at which they will have met for the first time."""

    @property
    def most(self) -> float:
        """The most rows that there have been."""
        return max(self.rows, self.met)

    def laws(self) -> Floats:
        """Return weights, limits, factors, slopes, their standard deviations, and rates, [6, laws]."""
        rates = self.rates if len(self.rates) else np.zeros(len(self.weights))
        return np.array([self.weights, self.limits, self.factors, self.slopes, self.slope_sds, rates], np.float64)


class _Laws(NamedTuple):
    """[tables, laws]: ln K and g of each limit, standard deviation of g, and log of the weight."""

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
    return fit_tables(samples, np.asarray(rows, np.float64)[:, None], growth=growth, limit=limit)[0]


def fit_tables(
    samples: Sequence[float] | Floats, rows: Floats, *, growth: Growth | None = None, limit: float | None = None
) -> list[RowFit | None]:
    """Fit the curves of all tables of a job, as ``fit_rows`` does, from ``rows`` [n, tables]; below 0 where a table's aren't known."""
    growth = growth or Growth()
    at, there = np.asarray(samples, np.float64), np.asarray(rows, np.float64)
    found: list[RowFit | None] = [None] * there.shape[1]
    for tables in _alike(there > 0):
        some = there[:, tables]
        n, y = _thinned(growth, at, some)
        if len(n):
            for table, one in zip(tables.tolist(), _fitted(n, y, growth, limit), strict=True):
                found[table] = moved_on(one, at, there[:, table])
    return found


def _alike(known: NDArray[np.bool_]) -> list[IntArray]:
    """Group tables of which rows are known at the same points."""
    groups: dict[bytes, list[int]] = {}
    for table in range(known.shape[1]):
        groups.setdefault(known[:, table].tobytes(), []).append(table)
    return [np.array(group, np.int64) for group in groups.values()]


def moved_on(fit: RowFit, samples: Floats, rows: Floats) -> RowFit:
    """Return the fit with its laws through the last of the points [n], since when there may be more: a curve hardly bends within a few
    percent of its length."""
    growth = fit.growth
    alone = _alone(growth, samples, rows)
    n = growth.counted(samples)
    known = alone & (n > 0) & (rows > 0)
    counted = float(n[known][-1])
    later = rows[~alone]
    return msgspec.structs.replace(
        fit,
        rows=float(rows[known & (n == counted)].max()),
        counted=counted,
        met=max(0.0, float(later.max(initial=0.0))),
        met_at=growth.met_by if samples[-1] < growth.met_by else math.inf,
    )


def growth_exponents(fits: Sequence[RowFit]) -> Floats:
    """Compute how fast each table's rows grow where its laws were fitted: the mean of d ln rows / d ln n, [tables]."""
    found = []
    for fit in fits:
        weights, limits, factors, slopes, _, rates = fit.laws()
        line = factors + slopes * math.log(fit.counted)
        bent, straight = _law(limits, line), rates * fit.counted
        steep = np.exp(line - np.where(np.isinf(limits), 0.0, np.exp(line) / limits))
        found.append(float((weights * (slopes * steep + straight) / (bent + straight)).sum()))
    return np.array(found)


def _alone(growth: Growth, samples: Floats, rows: Floats) -> NDArray[np.bool_]:
    """Say which points are of the first epoch alone; where nothing is known of that, later ones are all there is to go by."""
    alone: NDArray[np.bool_] = samples <= growth.alone_until
    return alone if (alone & (rows > 0)).any() else np.ones(len(samples), np.bool_)


def _fitted(n: Floats, y: Floats, growth: Growth, limit: float | None) -> list[RowFit]:
    """Fit the curves of tables through points ``n`` [n], ``y`` [tables, n]."""
    prior_straight = _STRAIGHT_IN_ORDER if math.isfinite(growth.alone_until) else _STRAIGHT
    fits = []
    for some in np.array_split(y, max(1, math.ceil(len(y) / _AT_ONCE))):
        now = some[:, -1]
        shapes = _shapes(now, float(n[-1]), limit, prior_straight)
        laws = _fit_laws(np.log(n), some, shapes)
        scores = laws.scores + np.log(shapes.prior)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        slopes = _latest_slopes(np.log(n), np.log(some))
        whole = np.stack([weights, shapes.limits, laws.factors, laws.slopes, laws.sds, shapes.rates])
        # the power law of the curve's end stands beside them
        latest = np.zeros((6, len(now), 1))
        latest[0], latest[1], latest[2, :, 0], latest[3, :, 0] = (
            _LATEST_WEIGHT, math.inf, np.log(now) - slopes * np.log(n[-1]), slopes,
        )  # fmt: skip
        bound = limit if limit is not None else math.inf
        for table, each in enumerate(now.tolist()):
            kept = whole[:, table, weights[table] > _LEAST_WEIGHT]
            kept[0] *= (1 - _LATEST_WEIGHT) / kept[0].sum()
            fits.append(RowFit(growth, each, float(n[-1]), bound, *np.concatenate([kept, latest[:, table]], axis=1)))
    return fits


class _Shapes(NamedTuple):
    """Laws that are to be fitted to tables, [tables, laws] each."""

    limits: Floats
    """L of each law."""
    rates: Floats
    """c of each law."""
    prior: Floats


def _shapes(now: Floats, counted: float, limit: float | None, prior_straight: float) -> _Shapes:
    """List the laws that are to be fitted to tables with ``now`` [tables] rows. Nothing is known of the limit's size beforehand: each
    e-fold of it is as likely, and no limit as likely as any. Nor is anything known of the rate, so each part of the present one is as
    likely."""
    # most of them are near: the nearer, the more it tells how far it is
    beyond = np.full(len(now), _FURTHEST - 1) if limit is None else np.maximum(limit / now - 1, 0.0)
    known = beyond <= _NEAREST
    far = np.where(known, _FURTHEST, beyond)
    finite = 1 + _NEAREST * np.exp(np.linspace(0.0, 1.0, _LIMITS) * np.log(far / _NEAREST)[:, None])
    prior = np.gradient(np.log(finite), axis=1)
    prior /= prior.sum(axis=1, keepdims=True)
    if known.any():  # the limit is there already: all its laws are the same one
        finite[known], prior[known] = 1 + beyond[known, None], 1 / _LIMITS
    if limit is None:
        finite = np.concatenate([finite, np.full((len(now), 1), math.inf)], axis=1)
        prior = np.concatenate([prior, np.ones((len(now), 1))], axis=1) / 2
    # a part that goes on as it does, beside one that has a limit of its own, or none
    whole = np.ones((len(now), len(_STRAIGHT_SHARES)))
    limits = np.concatenate([finite, _STRAIGHT_HEADS * (1 - _STRAIGHT_SHARES) * whole], axis=1) * now[:, None]
    rates = np.concatenate([np.zeros(finite.shape), _STRAIGHT_SHARES / counted * whole], axis=1) * now[:, None]
    straight = whole * (prior_straight / len(_STRAIGHT_SHARES))
    return _Shapes(limits, rates, np.concatenate([prior * (1 - prior_straight), straight], axis=1))


def _latest_slopes(log_n: Floats, log_y: Floats) -> Floats:
    latest = log_n >= log_n[-1] - math.log(_LATEST)
    x, y = log_n[latest], log_y[:, latest]
    if len(x) < 3:
        return np.full(len(y), _SLOPE)
    x = x - x.mean()
    return np.asarray(np.clip((x * y).sum(axis=1) / (x * x).sum(), 0.0, 1.0))


def _thinned(growth: Growth, samples: Floats, rows: Floats) -> tuple[Floats, Floats]:
    """Thin the points of tables, ``rows`` [n, tables], out to about equal ratios of n, the last one among them; of those with the same n
    (later epochs, and after evictions, when there may be fewer for a while) keep the one with the most rows. Return n [k] and rows
    [tables, k]."""
    n = growth.counted(samples)
    good = _alone(growth, samples, rows[:, 0]) & (n > 0) & (rows[:, 0] > 0)
    n, y = n[good], np.ascontiguousarray(rows[good].T)
    if not len(n):
        return n, y
    first_of_n = np.flatnonzero(np.concatenate([[n[0]], n[1:] - n[:-1]]))
    n, y = n[first_of_n], np.maximum.reduceat(y, first_of_n, axis=1)
    wanted = np.exp(np.linspace(math.log(max(n[0], n[-1] / _SPAN)), math.log(n[-1]), _POINTS))
    chosen = np.unique(np.clip(np.searchsorted(n, wanted * (1 - 1e-9)), 0, len(n) - 1))
    return n[chosen], np.ascontiguousarray(y[:, chosen])


def _fit_laws(log_n: Floats, y: Floats, shapes: _Shapes) -> _Laws:
    """Fit a line for each shape of each table, all at once: ln(-L ln(1 - (rows - c n)/L)) = ln K + g ln n. Points count fully at the end
    of the curve and less at its beginning, since a slope that falls slowly is best known from there.

    The large arrays [tables, laws, points] are computed in place: to make another one takes as long as a logarithm.
    """
    recent = np.exp((log_n - log_n[-1]) / math.log(_SPAN))  # 1 at the end, 1/e at the beginning
    count = min(_INDEPENDENT, float(len(log_n)))
    weights = recent / recent.sum() * count
    y = y[:, None, :]
    straight = shapes.rates[..., None] * np.exp(log_n)
    line, lever = _straightened(y, straight, shapes.limits)
    lever *= _MISFIT
    lever *= lever
    w = np.divide(weights, lever, out=lever)
    total = w.sum(axis=2)
    x_mean = (w @ log_n) / total
    line_mean = (w * line).sum(axis=2) / total
    x = log_n - x_mean[..., None]
    wx = np.multiply(w, x, out=w)
    x *= wx
    information = x.sum(axis=2) + 1 / _SLOPE_SD**2
    line -= line_mean[..., None]
    line *= wx
    slopes = np.clip((line.sum(axis=2) + _SLOPE / _SLOPE_SD**2) / information, 1e-3, 1.2)
    factors = line_mean - slopes * x_mean
    np.multiply(slopes[..., None], log_n, out=line)
    line += factors[..., None]
    off = _law(shapes.limits[..., None], line)
    off += straight
    off /= y
    np.log(off, out=off)
    off /= _MISFIT
    off *= off
    squares = off @ weights + ((slopes - _SLOPE) / _SLOPE_SD) ** 2
    return _Laws(factors, slopes, 1 / np.sqrt(information), -0.5 * squares - 0.5 * np.log(information))


def _straightened(y: Floats, straight: Floats, limits: Floats) -> tuple[Floats, Floats]:
    """Compute ln(-L ln(1 - (rows - c n)/L)) for rows ``y`` of which ``straight`` are c n, [tables, laws, points]; and how much that moves
    for a relative error of rows, since errors count where they are made."""
    endless = np.isinf(limits[0])  # of one table as of all
    reach = np.where(endless, 1.0, limits)[..., None]
    rest = y - straight
    np.maximum(rest, _LEAST_REST * y, out=rest)
    # a limit below rows once seen, as after an eviction, says as much as one just above
    share = rest / reach
    np.minimum(share, 1 - 1e-6, out=share)
    share[:, endless] = 0.0
    power = np.negative(share)  # of K n^g, over L
    np.log1p(power, out=power)
    np.negative(power, out=power)
    power[:, endless] = rest[:, endless]
    lever = 1 - share
    lever *= power
    np.divide(share, lever, out=lever)
    lever[:, endless] = 1.0
    lever *= np.divide(y, rest, out=rest)
    line = np.log(power, out=power)
    line += np.log(reach)
    return line, lever


def quantile_rows(fit: RowFit, samples: ArrayLike, quantiles: ArrayLike) -> Floats:
    """Compute the rows [quantiles, samples] when the job has trained on ``samples`` since it began, over all epochs.

    The laws' slopes are uncertain too, and so is whether ids will go on as they did: five values of each law stand for that. A fit keeps
    what it was asked: all parameter servers of a job ask the same.
    """
    return rows_of_tables([fit], samples, quantiles)[0]


def rows_of_tables(fits: Sequence[RowFit], samples: ArrayLike, quantiles: ArrayLike) -> list[Floats]:
    """Compute ``quantile_rows`` of several tables, of the same job, together."""
    at = np.atleast_1d(np.asarray(samples, np.float64))
    wanted = tuple(np.atleast_1d(np.asarray(quantiles, np.float64)).tolist())
    computed = _ASKED if set(wanted) <= set(_ASKED) else wanted
    question = np.array([len(at), *at, *computed]).tobytes()  # bytes know their hash
    answers = [_answers(fit) for fit in fits]
    unknown = [fit for fit, known in zip(fits, answers, strict=True) if question not in known]
    for start in range(0, len(unknown), most := max(1, _AT_ONCE * 16 // len(at))):
        some = unknown[start : start + most]
        for fit, found in zip(some, _quantile_rows(some, at, np.array(computed)), strict=True):
            found.setflags(write=False)
            _answers(fit)[question] = found
    if wanted == computed:
        return [known[question] for known in answers]
    chosen = [computed.index(quantile) for quantile in wanted]
    return [known[question][chosen] for known in answers]


def _answers(fit: RowFit) -> dict[bytes, Floats]:
    """Return what a fit has been asked, by numbers of samples and quantiles."""
    found: dict[bytes, Floats] = fit.__dict__.setdefault("answers", {})
    return found


def _quantile_rows(fits: Sequence[RowFit], samples: Floats, quantiles: Floats) -> Floats:
    """Compute [tables, quantiles, samples]."""
    laws = [fit.laws() for fit in fits]
    stacked = np.zeros((len(fits), 6, max(one.shape[1] for one in laws)))
    stacked[:, 1] = math.inf  # what is left over weighs nothing
    for at, one in enumerate(laws):
        stacked[at, :, : one.shape[1]] = one
    mixed, limits, factors, slopes, sds, straight = (column[..., None, None] for column in stacked.swapaxes(0, 1))
    counted, rows, most, bound = (
        np.array(values)[:, None, None, None]
        for values in zip(*((one.counted, one.rows, one.most, max(one.bound, one.most)) for one in fits), strict=True)
    )
    n = np.array([fit.growth.counted(samples) for fit in fits])[:, None, None, :]
    met = np.array([samples >= fit.met_at for fit in fits])[:, None, None, :]
    ahead = np.log(np.maximum(n / counted, 1.0))
    # the line turns about the point where the job is now
    slope = np.maximum(slopes + _OFFSETS[:, None] * np.hypot(sds, _DRIFT_SD), 0.0)
    line = factors + slopes * np.log(counted) + slope * ahead
    bent = _law(limits, line)
    if met.any():
        epochs = np.array([fit.growth.epoch_samples for fit in fits])[:, None, None, None]
        half = _law(limits, line - slope * math.log(2))
        with np.errstate(invalid="ignore"):  # where epochs never end, they don't meet
            others = np.minimum(half, straight * (epochs - n))
        bent = np.where(met, np.maximum(bent, half + others), bent)
    grown = bent + straight * counted * np.exp(ahead)
    here = _law(limits, factors + slopes * np.log(counted)) + straight * counted
    values = np.clip(rows * grown / here, most, bound)  # [tables, laws, offsets, samples]
    tables, _, _, columns = values.shape
    weights = np.broadcast_to(mixed[..., 0] * _PARTS, values.shape[:3]).reshape(tables, 1, -1)
    found = _weighted_quantiles(
        np.ascontiguousarray(values.reshape(tables, -1, columns).swapaxes(1, 2)), weights, quantiles
    ).swapaxes(1, 2)
    # where laws cross, quantiles in between could fall by a little
    rising = np.argsort(samples, kind="stable")
    found[:, :, rising] = np.maximum.accumulate(found[:, :, rising], axis=2)
    return np.ascontiguousarray(found)


def _law(limits: Floats, line: Floats) -> Floats:
    """Compute the rows where K n^g is exp(line)."""
    power = np.exp(line)
    bent = np.negative(power) / limits
    np.expm1(bent, out=bent)
    with np.errstate(invalid="ignore"):
        bent *= -limits
    np.copyto(bent, power, where=np.isinf(limits))
    return bent


def _weighted_quantiles(values: Floats, weights: Floats, quantiles: Floats) -> Floats:
    """Compute quantiles [..., q] of values [..., m], interpolated. ``weights`` [..., m] may be 0."""
    order = values.argsort(axis=-1)
    ordered = np.take_along_axis(values, order, axis=-1)
    own = np.take_along_axis(np.broadcast_to(weights, values.shape), order, axis=-1)
    middles = np.cumsum(own, axis=-1) - own / 2
    last = values.shape[-1] - 1
    above = np.minimum((middles[..., None, :] < quantiles[:, None]).sum(axis=-1), last)
    below = np.maximum(above - 1, 0)
    low, high = (np.take_along_axis(middles, one, axis=-1) for one in (below, above))
    from_, to = (np.take_along_axis(ordered, one, axis=-1) for one in (below, above))
    part = np.clip((quantiles - low) / np.where(high > low, high - low, 1.0), 0.0, 1.0)
    return np.asarray(from_ + part * (to - from_))
