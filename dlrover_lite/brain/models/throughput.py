"""How fast a job trains under a plan: fitted to what was measured, with a band, and saying where it only guesses.

A form's coefficients are costs in seconds (``settings``). They are found by non-negative least squares on relative errors, of throughput
and of measured CPU seconds alike, beside a prior: the coefficients of jobs like this one, or a weak guess from the first measurements. So
two profiles give a usable fit, and what measurements can't tell apart keeps the prior's proportions, and is named.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from dlrover_lite.brain.models.arithmetic import rates_with_variance, shared_cores_limit
from dlrover_lite.brain.models.fitting import (
    NOISE,
    Start,
    best_exponent,
    doubt_of_readers,
    prepare,
    sample_bytes,
    told_apart,
)
from dlrover_lite.brain.models.throttling import throttle_cores
from dlrover_lite.brain.models.throughput_forms import AXES, BOTTLENECK, DEPTH, FORMS, Engine, Floats, Form, Setting
from dlrover_lite.core.errors import DlroverLiteError
from dlrover_lite.protocol.profiles import Observation

__all__ = ["Fit", "Prediction", "Prior", "Uncertainty", "fit", "predict", "times", "uncertainty", "vector"]

_NOISE_WORTH = 3.0
"""Weight of the expected noise, as a number of observations."""
_PRIOR_QUANTILE = 1.637744353696209
"""90th percentile of Student's t with ``_NOISE_WORTH`` degrees of freedom: scipy's, whose import takes longer than a job's first plan."""
_WIDER = 0.12
"""Relative error added to the band for each doubling outside of what was seen."""
_CPU_WIDER = 0.05
"""The same of the CPU seconds of a minibatch, which have no waiting in them: those of workers differ by 4% where there are half as many of
twice the size."""
_LONGEST_LOG_WIDTH = 20.0
"""The most that the ends of a band are off what is expected, as a logarithm: nothing is known then. Far from all that was measured the
variance grows until its width overflows, and what is infinite can't be stored as JSON."""
_USUAL_PARALLEL_SHARE = 0.9
"""Share of a worker's work that its threads do at the same time. It counts until workers of several cores were measured: then what they
take longer than this says is found as latency."""
_AXES = [Setting._fields.index(axis) for axis in AXES]


class Prior(msgspec.Struct, frozen=True):
    """What to expect of the coefficients before measuring."""

    coefficients: dict[str, float]
    relative_sd: float = 0.4
    """Relative standard deviation of each coefficient."""
    exponent: float | None = None
    noise: float | None = None
    """Relative error that the form had with these coefficients."""
    sample_bytes: float | None = None
    """Bytes of rows per sample that go from host to host, and of gradients that come back; None: not known."""
    region: dict[str, tuple[float, float]] = {}
    """Range of each axis over which the form was seen to hold with these coefficients; empty: not known."""


class Fit(msgspec.Struct, frozen=True):
    """A form with its coefficients. Fields are plain data: a stored fit predicts the same again."""

    form: str
    coefficients: dict[str, float]
    """Coefficients by name. Those that are missing, as nothing was measured of what they cost, are 0."""
    exponent: float
    engine: Engine
    observations: int
    relative_error: float
    """Median relative error over the observations."""
    noise: float
    """Relative standard deviation of an observation about the form."""
    freedom: float
    """About how many observations the noise rests on."""
    covariance: list[list[float]]
    """Covariance of the coefficients that there are, in the form's order."""
    merged: list[list[str]] = []
    """Coefficients whose sum is measured, and that only the prior divides."""
    unseen: list[str] = []
    """Coefficients that the observations say nothing of: the prior's, at most cut down."""
    region: dict[str, tuple[float, float]] = {}
    """Range that was seen of each axis, with this job or with those that its prior comes from."""


class Prediction(NamedTuple):
    """Samples per second, arrays as the setting's; ``low`` to ``high`` holds 80% of what is expected to be measured."""

    samples_per_second: Floats
    low: Floats
    high: Floats
    extrapolated: np.typing.NDArray[np.bool_]
    """The setting lies outside of what was seen on some axis: the band is wider."""


def fit(
    observations: Sequence[Observation],
    *,
    form: Form = BOTTLENECK,
    engine: Engine | None = None,
    depth: float = DEPTH,
    prior: Prior | None = None,
    compute_share: float | None = None,
) -> Fit:
    """Fit the form's coefficients to a job. ``depth``: of its workers' pipelines, unless an ``engine`` is given. ``compute_share``: as
    ``Engine`` has it, as measured; None: it wasn't.

    Raises DlroverLiteError when there is neither an observation nor a prior.
    """
    observations = [o for o in observations if o.samples_per_second > 0 and o.weight > 0]
    engine = engine or Engine(
        depth=depth,
        throttle_cores=throttle_cores(observations),
        parallel_share=_USUAL_PARALLEL_SHARE,
        sample_bytes=1.0
        if form is not BOTTLENECK
        else sample_bytes(observations, prior.sample_bytes if prior else None),
    )
    if compute_share is not None:
        engine = msgspec.structs.replace(engine, compute_share=compute_share)
    if not observations:
        return _from_prior(form, engine, prior)
    start = Start(prior.coefficients, prior.relative_sd) if prior else None
    data = prepare(observations, form, engine, start)
    exponent, found = best_exponent(data, (prior.exponent if prior else None) or form.exponent)
    weights = (NOISE / data.sd) ** 2
    rows = found.design * (np.sqrt(found.trust) / data.sd)[:, None]
    spread = np.linalg.inv(rows.T @ rows + data.linear.T @ data.linear)
    used = float(((rows @ spread) * rows).sum())
    freedom = _NOISE_WORTH + max(0.0, len(observations) - used)
    expected = (prior.noise if prior else None) or NOISE
    squares = _NOISE_WORTH * expected**2 + float((weights * found.error**2).sum())
    noise = math.sqrt(squares / freedom + float(np.var(np.log(data.paces))))
    covariance = spread * np.outer(data.scale, data.scale) * max(1.0, (noise / NOISE) ** 2)
    if (doubt := doubt_of_readers(observations, data.names)) > 0:
        reader = data.names.index("reader_sample")
        covariance[reader, reader] += (doubt * found.x[reader] * data.scale[reader]) ** 2
    merged, unseen = told_apart(data, rows)
    return Fit(
        form=form.name,
        coefficients={name: float(value) for name, value in zip(data.names, found.x * data.scale, strict=True)},
        exponent=exponent,
        engine=engine,
        observations=len(observations),
        relative_error=float(np.median(np.abs(data.paces / (1 + found.error) - 1))),
        noise=noise,
        freedom=freedom,
        covariance=covariance.tolist(),
        merged=merged,
        unseen=unseen,
        region=_region(observations, prior.region if prior else {}),
    )


def _from_prior(form: Form, engine: Engine, prior: Prior | None) -> Fit:
    if prior is None:
        raise DlroverLiteError(
            "there is nothing to predict the throughput from: nothing was measured of this job, and no job like it is known",
            hint="Let it train for a few seconds with any plan first.",
        )
    there = [name for name in form.coefficients if name not in form.optional or prior.coefficients.get(name)]
    x = np.array([prior.coefficients.get(name, 0.0) for name in there])
    return Fit(
        form=form.name,
        coefficients={name: float(value) for name, value in zip(there, x, strict=True)},
        exponent=prior.exponent or form.exponent,
        engine=engine,
        observations=0,
        relative_error=0.0,
        noise=prior.noise or NOISE,
        freedom=_NOISE_WORTH,
        covariance=np.diag((prior.relative_sd * x) ** 2).tolist(),
        unseen=there,
    )


def _region(
    observations: Sequence[Observation], expected: Mapping[str, tuple[float, float]]
) -> dict[str, tuple[float, float]]:
    """Find the range of each axis that was seen, with this job or before it."""
    found = {}
    for axis in AXES:
        values = [*(float(getattr(o, axis)) for o in observations), *expected.get(axis, ())]
        found[axis] = (min(values), max(values))
    return found


# --- prediction -----------------------------------------------------------------------------------------------------


def times(fitted: Fit, setting: Setting) -> Floats:
    """Compute seconds per minibatch [times, …] by what limits it, in the form's order, for settings […]: the largest is the bottleneck."""
    table, shape = setting.table()
    form, x = FORMS[fitted.form], vector(fitted)
    return np.moveaxis(form.rows(table, fitted.engine, len(x)) @ x, -1, 0).reshape(-1, *shape)


def predict(fitted: Fit, setting: Setting) -> Prediction:
    """Predict the throughput of each setting with its band."""
    found = uncertainty(fitted, setting)
    quantile, rate = _quantile(fitted.freedom), found.samples_per_second

    def width(variance: Floats, doublings: Floats) -> Floats:
        spread = np.sqrt(fitted.noise**2 + variance + doublings**2)
        return np.asarray(np.exp(np.minimum(quantile * spread, _LONGEST_LOG_WIDTH)))

    either_way = width(found.variance, _WIDER * found.counted)
    high = rate * either_way
    if (limit := found.cores_limit) is not None:
        # nothing is faster than its cores: what they allow is known better than what is lost by waiting
        by_cores = limit.samples_per_second * width(limit.variance, _CPU_WIDER * found.doublings)
        high = np.minimum(high, np.maximum(by_cores, rate))
    return Prediction(rate, rate / either_way, high, found.doublings > 1e-6)


def _quantile(freedom: float) -> float:
    """Return the 90th percentile of Student's t. Only a fit to measurements has more ``freedom`` than its prior."""
    if freedom == _NOISE_WORTH:
        return _PRIOR_QUANTILE
    from scipy.special import stdtrit

    return float(stdtrit(freedom, 0.9))


class CoresLimit(NamedTuple):
    """Samples per second if nothing but cores that nodes share were a limit, arrays as the setting's."""

    samples_per_second: Floats
    variance: Floats
    """Relative variance that the coefficients give it."""


class Uncertainty(NamedTuple):
    """Predicted samples per second, and what makes them unsure beside the noise, arrays as the setting's."""

    samples_per_second: Floats
    variance: Floats
    """Relative variance that the coefficients give it."""
    doublings: Floats
    """Number of doublings by which the setting lies outside of what was seen, added up over the axes."""
    counted: Floats
    """The same as far as it matters: less of them, the more of the time is the same whatever the plan."""
    cores_limit: CoresLimit | None
    """What the cores allow that nodes share; None where each has its own limits."""


def uncertainty(fitted: Fit, setting: Setting) -> Uncertainty:
    """Predict the throughput of each setting, and say what makes it unsure."""
    table, shape = setting.table()
    x, covariance = _known(fitted)
    rows = FORMS[fitted.form].rows(table, fitted.engine, len(x))
    region = np.array([fitted.region[axis] for axis in AXES], np.float64) if fitted.region else np.empty((0, 2))
    seconds, variance, doublings = rates_with_variance(rows, x, covariance, fitted.exponent, table[_AXES], region)
    if not fitted.region:
        doublings[:] = 1.0  # where nothing was seen at all
    counted = doublings
    if (source := fitted.coefficients.get("source_sample")) is not None:
        # the part of the time that is the same whatever the plan
        counted = doublings * (1 - np.minimum(1.0, table[0] * source / seconds) ** fitted.exponent)
    cores_limit = None
    if fitted.form == BOTTLENECK.name and np.all(setting.shared_cores):
        least_seconds, its_variance = shared_cores_limit(table, x, covariance)
        cores_limit = CoresLimit((table[0] / least_seconds).reshape(shape), its_variance.reshape(shape))
    rate, variance, doublings, counted = (
        values.reshape(shape) for values in (table[0] / seconds, variance, doublings, counted)
    )
    return Uncertainty(rate, variance, doublings, counted, cores_limit)


def vector(fitted: Fit) -> Floats:
    """Return all of the form's coefficients in its order."""
    form, found = FORMS[fitted.form], fitted.coefficients
    return np.array([found.get(name, 0.0) if name in form.optional else found[name] for name in form.coefficients])


def _known(fitted: Fit) -> tuple[Floats, Floats]:
    """Return the form's coefficients up to the last one that there is, and their covariance."""
    names, there = FORMS[fitted.form].coefficients, fitted.coefficients
    known = [at for at, name in enumerate(names) if name in there]
    x, covariance = vector(fitted)[: known[-1] + 1], np.array(fitted.covariance)
    if len(known) == len(x):
        return x, covariance
    spread = np.zeros((len(x), len(x)))
    spread[np.ix_(known, known)] = covariance
    return x, spread
