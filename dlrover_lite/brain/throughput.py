"""How fast a job trains under a plan: fitted to what was measured, with a band, and saying where it only guesses.

A form's coefficients are costs in seconds (``settings``). They are found by non-negative least squares on relative errors, of throughput and of
measured CPU seconds alike, beside a prior: the coefficients of jobs like this one, or a weak guess from the first measurements. So two
profiles give a usable fit, and what measurements can't tell apart keeps the prior's proportions, and is named.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from dlrover_lite.brain.nnls import nnls
from dlrover_lite.brain.profiles import Observation
from dlrover_lite.brain.settings import AXES, BOTTLENECK, FORMS, Engine, Floats, Form, Setting
from dlrover_lite.errors import DlroverLiteError

__all__ = ["Fit", "Prediction", "Prior", "fit", "power_sum", "predict", "times"]

_NOISE = 0.06
"""Relative error of a form where nothing is known of it yet, and how many observations that is worth."""
_NOISE_WORTH = 3.0
_CPU_NOISE = 0.05
"""Of measured CPU seconds as costs: they vary with what else runs on the host's cores."""
_GUESS_SD = 1.5
"""Relative, of the guess that stands in for a prior."""
_EXPONENT_SD = 0.7
"""Of the exponent's logarithm."""
_ALIKE = 0.998
"""Cosine of two coefficients' effects on all observations from which on they can't be told apart."""
_UNSEEN = 0.5
"""Standard deviations by which a coefficient, at what the prior says of it, moves the observations together: less tells nothing of it."""
_WIDER = 0.12
"""Relative error added to the band for each doubling outside of what was seen."""
_ROUNDS = 12
_ENOUGH = 0.01
"""Steps end when the cost falls by less: it counts squared standard deviations."""


class Prior(msgspec.Struct, frozen=True):
    """What to expect of the coefficients before measuring."""

    coefficients: dict[str, float]
    relative_sd: float = 0.4
    """Of each of them."""
    exponent: float | None = None
    noise: float | None = None
    """Relative error that the form had with them."""


class Fit(msgspec.Struct, frozen=True):
    """A form with its coefficients. Fields are plain data: a stored fit predicts the same again."""

    form: str
    coefficients: dict[str, float]
    exponent: float
    engine: Engine
    observations: int
    relative_error: float
    """Median over the observations."""
    noise: float
    """Standard deviation of an observation about the form, relative."""
    freedom: float
    """Observations that the noise rests on, about."""
    covariance: list[list[float]]
    """Of the coefficients, in the form's order."""
    merged: list[list[str]] = []
    """Coefficients whose sum is measured, and that only the prior divides."""
    unseen: list[str] = []
    """Coefficients that the observations say nothing of: the prior's, at most cut down."""
    region: dict[str, tuple[float, float]] = {}
    """What was seen of each axis."""


class Prediction(NamedTuple):
    """Samples per second, arrays as the setting's; ``low`` to ``high`` holds 80% of what is expected to be measured."""

    samples_per_second: Floats
    low: Floats
    high: Floats
    extrapolated: np.typing.NDArray[np.bool_]
    """Outside of what was seen on some axis: the band is wider."""


class _Data(NamedTuple):
    """All relative: coefficients in units of the prior's (``scale`` [k]), times in units of what was measured."""

    form: Form
    times: Floats
    """[terms, n, k] of unit coefficients."""
    sd: Floats
    """[n] of the observations."""
    linear: Floats
    """[m, k] rows that are linear in the coefficients, in units of their standard deviation, as ``linear_right`` [m] is: those of CPU first,
    then the prior's."""
    linear_right: Floats
    cpu_rows: int
    scale: Floats


class _Solution(NamedTuple):
    x: Floats
    cost: float
    """Squared errors in units of their standard deviations, the prior's included."""
    error: Floats
    """[n] predicted time over measured, less 1."""
    design: Floats
    """[n, k]: its derivatives."""


def fit(
    observations: Sequence[Observation],
    *,
    form: Form = BOTTLENECK,
    engine: Engine | None = None,
    prior: Prior | None = None,
) -> Fit:
    """The form's coefficients for a job.

    Raises DlroverLiteError when there is neither an observation nor a prior.
    """
    engine = engine or Engine()
    observations = [o for o in observations if o.samples_per_second > 0 and o.weight > 0]
    if not observations:
        return _from_prior(form, engine, prior)
    data = _data(observations, form, engine, prior)
    exponent, found = _best_exponent(data, prior)
    weights = (_NOISE / data.sd) ** 2
    rows = found.design / data.sd[:, None]
    spread = np.linalg.inv(rows.T @ rows + data.linear.T @ data.linear)
    used = float(((rows @ spread) * rows).sum())
    freedom = _NOISE_WORTH + max(0.0, len(observations) - used)
    expected = (prior.noise if prior else None) or _NOISE
    noise = math.sqrt((_NOISE_WORTH * expected**2 + float((weights * found.error**2).sum())) / freedom)
    covariance = spread * np.outer(data.scale, data.scale) * max(1.0, (noise / _NOISE) ** 2)
    merged, unseen = _told_apart(data, rows)
    return Fit(
        form=form.name,
        coefficients={name: float(value) for name, value in zip(form.coefficients, found.x * data.scale, strict=True)},
        exponent=exponent,
        engine=engine,
        observations=len(observations),
        relative_error=float(np.median(np.abs(1 / (1 + found.error) - 1))),
        noise=noise,
        freedom=freedom,
        covariance=covariance.tolist(),
        merged=merged,
        unseen=unseen,
        region=_region(observations),
    )


def _from_prior(form: Form, engine: Engine, prior: Prior | None) -> Fit:
    if prior is None:
        raise DlroverLiteError(
            "there is nothing to predict the throughput from: nothing was measured of this job, and no job like it is known",
            hint="Let it train for a few seconds with any plan first.",
        )
    x = np.array([prior.coefficients.get(name, 0.0) for name in form.coefficients])
    return Fit(
        form=form.name,
        coefficients={name: float(value) for name, value in zip(form.coefficients, x, strict=True)},
        exponent=prior.exponent or form.exponent,
        engine=engine,
        observations=0,
        relative_error=0.0,
        noise=prior.noise or _NOISE,
        freedom=_NOISE_WORTH,
        covariance=np.diag((prior.relative_sd * x) ** 2).tolist(),
        unseen=list(form.coefficients),
    )


# --- data -----------------------------------------------------------------------------------------------------------


def _data(observations: Sequence[Observation], form: Form, engine: Engine, prior: Prior | None) -> _Data:
    setting = Setting.of(observations)
    units = np.eye(len(form.coefficients))
    n = len(observations)
    unit_times = np.stack(
        [np.stack([np.broadcast_to(t, n) for t in form.times(unit, setting, engine)]) for unit in units], axis=-1
    )
    seconds = setting.batch_size / np.array([o.samples_per_second for o in observations])
    sd = np.array([math.sqrt((_NOISE**2 + o.relative_sd**2) / o.weight) for o in observations])
    cpu = _cpu_rows(observations) if form is BOTTLENECK else np.zeros((0, len(units)))
    guess = _guess(observations, form, unit_times, seconds)
    if prior is None:
        scale, prior_sd = guess, np.full(len(guess), _GUESS_SD)
    else:
        given = np.array([prior.coefficients.get(name, 0.0) for name in form.coefficients])
        scale = np.maximum(given, 0.05 * guess)  # a coefficient that was 0 elsewhere needn't be so here
        prior_sd = np.full(len(guess), prior.relative_sd)
        guess = given
    weights = _cpu_weights(observations, len(cpu))
    linear = np.concatenate([cpu * scale * weights[:, None], np.diag(1 / prior_sd)])
    right = np.concatenate([weights, guess / scale / prior_sd])
    return _Data(form, unit_times * scale / seconds[:, None], sd, linear, right, len(cpu), scale)


def _cpu_rows(observations: Sequence[Observation]) -> Floats:
    """Of each observation the worker's CPU seconds and the PS's, as far as measured: what each coefficient adds, in parts of what was
    measured."""
    rows = []
    for o in observations:
        if o.worker_cpu_seconds:
            rows.append(np.array([o.batch_size, 1.0, o.ps, 0.0, 0.0, 0.0]) / o.worker_cpu_seconds)
        if o.ps_cpu_seconds:
            rows.append(np.array([0.0, 0.0, 0.0, o.batch_size / o.ps, 1.0, 0.0]) / o.ps_cpu_seconds)
    return np.array(rows).reshape(-1, 6)


def _cpu_weights(observations: Sequence[Observation], count: int) -> Floats:
    found = [
        math.sqrt(o.weight) / _CPU_NOISE
        for o in observations
        for measured in (o.worker_cpu_seconds, o.ps_cpu_seconds)
        if measured
    ]
    return np.array(found[:count])


def _guess(observations: Sequence[Observation], form: Form, unit_times: Floats, seconds: Floats) -> Floats:
    """Coefficients of a plausible size, all above 0: with measured CPU seconds, their usual parts; else equal parts of the time."""
    if form is BOTTLENECK:
        batch, ps = observations[0].batch_size, float(np.mean([o.ps for o in observations]))
        workers = [o.worker_cpu_seconds for o in observations if o.worker_cpu_seconds]
        servers = [o.ps_cpu_seconds * o.ps for o in observations if o.ps_cpu_seconds]
        worker = (
            float(np.mean(workers))
            if workers
            else 0.6 * float(np.median([s * o.worker_power for s, o in zip(seconds, observations, strict=True)]))
        )
        server = float(np.mean(servers)) if servers else 0.25 * worker
        return np.array(
            [
                0.85 * worker / batch,
                0.10 * worker,
                0.05 * worker / ps,
                0.75 * server / batch,
                0.25 * server / ps,
                0.15 * (worker + server),
            ]
        )
    largest = unit_times.sum(axis=0).mean(axis=0)
    return float(seconds.mean()) / len(largest) / np.maximum(largest, 1e-300)


# --- solving --------------------------------------------------------------------------------------------------------


def _best_exponent(data: _Data, prior: Prior | None) -> tuple[float, _Solution]:
    """Uphill among the form's exponents from the expected one, as long as it gets better."""
    choices = data.form.exponents
    expected = (prior.exponent if prior else None) or data.form.exponent

    def solve(i: int, start: Floats) -> tuple[float, _Solution]:
        found = _solve(data, choices[i], start)
        return found.cost + (math.log(choices[i] / expected) / _EXPONENT_SD) ** 2, found

    here = min(range(len(choices)), key=lambda i: abs(math.log(choices[i] / expected)))
    cost, best = solve(here, np.ones(len(data.scale)))
    for step in (-1, 1):
        moved = False
        while 0 <= here + step < len(choices):
            other_cost, other = solve(here + step, best.x)
            if other_cost >= cost:
                break
            here, cost, best, moved = here + step, other_cost, other, True
        if moved:
            break
    return choices[here], best


def _solve(data: _Data, exponent: float, start: Floats) -> _Solution:
    """Gauss-Newton, each step by non-negative least squares: a p-norm of times that are linear in the coefficients is the sum of its
    derivatives times the coefficients, so a step needs no constant. A step that doesn't help is halved."""
    base, base_right = data.linear.T @ data.linear, data.linear.T @ data.linear_right
    now = _evaluate(data, exponent, start)
    for _ in range(_ROUNDS):
        rows = now.design / data.sd[:, None]
        aim = nnls(base + rows.T @ rows, base_right + rows.T @ (1 / data.sd))
        before = now
        for _ in range(5):
            now = _evaluate(data, exponent, aim)
            if now.cost <= before.cost:
                break
            aim = (aim + before.x) / 2
        if now.cost > before.cost - _ENOUGH:
            return now if now.cost <= before.cost else before
    return now


def _evaluate(data: _Data, exponent: float, x: Floats) -> _Solution:
    seconds, shares = _norm(data.times @ x, exponent)
    design = (shares[..., None] * data.times).sum(axis=0)
    error = seconds - 1
    scaled = error / data.sd
    rest = data.linear @ x - data.linear_right
    return _Solution(x, float(scaled @ scaled + rest @ rest), error, design)


def _norm(times: Floats, exponent: float) -> tuple[Floats, Floats]:
    """p-norm over the first axis, and its derivatives by each of the times."""
    largest = np.maximum(times.max(axis=0), 1e-300)
    seconds = largest * ((times / largest) ** exponent).sum(axis=0) ** (1 / exponent)
    return seconds, (times / seconds) ** (exponent - 1)


def _told_apart(data: _Data, rows: Floats) -> tuple[list[list[str]], list[str]]:
    """Groups of coefficients with the same effect on everything measured, and those with none."""
    names = data.form.coefficients
    effects = np.concatenate([rows, data.linear[: data.cpu_rows]])
    sizes = np.sqrt((effects**2).sum(axis=0))
    seen = [i for i in range(len(names)) if sizes[i] >= _UNSEEN]
    groups: list[list[int]] = []
    for i in seen:
        for group in groups:
            if any(effects[:, i] @ effects[:, j] >= _ALIKE * sizes[i] * sizes[j] for j in group):
                group.append(i)
                break
        else:
            groups.append([i])
    merged = [[names[i] for i in group] for group in groups if len(group) > 1]
    return merged, [name for i, name in enumerate(names) if i not in seen]


def _region(observations: Sequence[Observation]) -> dict[str, tuple[float, float]]:
    found = {}
    for axis in AXES:
        values = [float(getattr(o, axis)) for o in observations]
        found[axis] = (min(values), max(values))
    return found


# --- prediction -----------------------------------------------------------------------------------------------------


def times(fitted: Fit, setting: Setting) -> tuple[Floats, ...]:
    """Seconds per minibatch by what limits it, in the form's order: the largest is the bottleneck."""
    form = FORMS[fitted.form]
    return form.times(_vector(fitted), setting, fitted.engine)


def power_sum(fitted: Fit, setting: Setting) -> Floats:
    """Falls as throughput rises, and costs no root: enough to compare settings with. ``batch_size * power_sum ** (-1 / exponent)`` is the
    throughput in samples/s. Each limit is computed on the axes it depends on only, then they are added up."""
    terms = sorted((t**fitted.exponent for t in times(fitted, setting)), key=np.size)
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


def predict(fitted: Fit, setting: Setting) -> Prediction:
    """Throughput of each setting with its band."""
    form = FORMS[fitted.form]
    setting = Setting(*np.broadcast_arrays(*setting))
    units = np.eye(len(form.coefficients))
    unit_times = np.stack([np.stack(form.times(unit, setting, fitted.engine)) for unit in units], axis=-1)
    seconds, shares = _norm(unit_times @ _vector(fitted), fitted.exponent)
    design = np.einsum("t...,t...k->...k", shares, unit_times) / seconds[..., None]
    covariance = np.array(fitted.covariance)
    variance = fitted.noise**2 + np.einsum("...i,ij,...j->...", design, covariance, design)
    outside = _doublings_outside(fitted.region, setting)
    variance = variance + (_WIDER * outside) ** 2
    width = np.exp(_t90(fitted.freedom) * np.sqrt(variance))
    rate = setting.batch_size / seconds
    return Prediction(rate, rate / width, rate * width, outside > 1e-6)


def _vector(fitted: Fit) -> Floats:
    return np.array([fitted.coefficients[name] for name in FORMS[fitted.form].coefficients])


def _doublings_outside(region: Mapping[str, tuple[float, float]], setting: Setting) -> Floats:
    """Factors by which axes lie outside, as logarithms to base 2, added up; a doubling where nothing was seen at all."""
    if not region:
        return np.ones(np.shape(setting.workers))
    total = np.zeros(np.shape(setting.workers))
    for axis, (low, high) in region.items():
        values = getattr(setting, axis)
        total = total + np.log2(np.maximum(1.0, np.maximum(low / values, values / high)))
    return total


def _t90(freedom: float) -> float:
    """The 90th percentile of Student's t (Cornish and Fisher's expansion: within 1% from two degrees of freedom on)."""
    z = 1.2815515655446004
    g1 = (z**3 + z) / 4
    g2 = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    g3 = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + g1 / freedom + g2 / freedom**2 + g3 / freedom**3
