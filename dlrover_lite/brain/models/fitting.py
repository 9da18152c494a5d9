"""How coefficients of a form are found: observations as rows, and Gauss and Newton's steps by non-negative least squares."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from dlrover_lite.brain.models.nnls import nnls
from dlrover_lite.brain.models.throttling import unthrottled
from dlrover_lite.brain.models.throughput_forms import BOTTLENECK, Engine, Floats, Form, Setting
from dlrover_lite.protocol.profiles import Observation

__all__ = ["NOISE", "FitData", "Solution", "Start", "best_exponent", "norm", "prepare", "told_apart"]

NOISE = 0.06
"""Relative error of a form where nothing is known of it yet."""
_CPU_NOISE = 0.05
"""Relative error of measured CPU seconds as costs."""
_PACED = 4
"""Number of observations from which on it can be told which of them were made while the host was slow."""
_PACE_ROUNDS, _PACE_ENOUGH = 10, 0.01
_GUESS_SD = 1.5
"""Relative standard deviation of the guess that stands in for a prior."""
_DISTURBED = 2.0
"""Standard deviations from which on an observation's error counts by its size, not its square: something else may have happened there."""
_EXPONENT_SD = 0.7
"""Standard deviation of the exponent's logarithm."""
_ALIKE = 0.998
"""Cosine of two coefficients' effects on all observations from which on they can't be told apart."""
_UNSEEN = 0.5
"""Standard deviations by which a coefficient, at what the prior says of it, moves the observations together: less tells nothing of it."""
_ROUNDS = 12
_ENOUGH = 0.01
"""Least fall of the cost for which another step is made; the cost counts squared standard deviations."""


class Start(NamedTuple):
    """A prior of the coefficients."""

    coefficients: Mapping[str, float]
    relative_sd: float


class FitData(NamedTuple):
    """Data that coefficients are fitted to. All are relative: coefficients in units of the prior's (``scale`` [k]), times in units of what
    was measured."""

    form: Form
    times: Floats
    """[terms, n, k]: times of unit coefficients."""
    sd: Floats
    """[n]: standard deviations of the observations."""
    linear: Floats
    """[m, k]: rows that are linear in the coefficients, in units of their standard deviation, as ``linear_right`` [m] is: those of CPU
    first, then the prior's."""
    linear_right: Floats
    cpu_rows: int
    scale: Floats
    paces: Floats
    """[n]: what CPU work cost, over what it usually does."""


class Solution(NamedTuple):
    x: Floats
    cost: float
    """Sum of squared errors in units of their standard deviations, the prior's included."""
    error: Floats
    """[n]: predicted time over measured, less 1."""
    design: Floats
    """[n, k]: derivatives of ``error`` by the coefficients."""
    trust: Floats
    """[n]: what the squares of errors count, 1 unless they are large."""


# --- data -----------------------------------------------------------------------------------------------------------


def prepare(observations: Sequence[Observation], form: Form, engine: Engine, start: Start | None) -> FitData:
    setting = Setting.of(observations)
    table, _ = setting.table()
    unit_times = np.ascontiguousarray(form.rows(table, engine).swapaxes(0, 1))
    n = len(observations)
    seconds = setting.batch_size / np.array([o.samples_per_second for o in observations])
    sd = np.array([math.sqrt((NOISE**2 + o.relative_sd**2) / o.weight) for o in observations])
    worker_cpu = unthrottled(observations, engine.throttle_cores)
    observations = [
        msgspec.structs.replace(o, worker_cpu_seconds=its) for o, its in zip(observations, worker_cpu, strict=True)
    ]
    cpu = _cpu_rows(observations) if form is BOTTLENECK else np.zeros((0, len(form.coefficients)))
    guess = _guess(observations, form, unit_times, seconds)
    if start is None:
        scale, prior_sd = guess, np.full(len(guess), _GUESS_SD)
    else:
        given = np.array([start.coefficients.get(name, 0.0) for name in form.coefficients])
        scale = np.maximum(given, 0.05 * guess)  # a coefficient that was 0 elsewhere needn't be so here
        prior_sd = np.full(len(guess), start.relative_sd)
        guess = given
    weights = _cpu_weights(observations, len(cpu))
    linear = np.concatenate([cpu * scale * weights[:, None], np.diag(1 / prior_sd)])
    right = np.concatenate([weights, guess / scale / prior_sd])
    paces = np.ones(n)
    if len(cpu) == 2 * n and n >= _PACED:
        paces = _paces(linear, right)
        linear[: 2 * n] *= np.repeat(paces, 2)[:, None]
    return FitData(form, unit_times * (scale * (paces / seconds)[:, None]), sd, linear, right, len(cpu), scale, paces)


def _paces(linear: Floats, right: Floats) -> Floats:
    """Estimate how much more CPU than usual work cost in each observation: what moves the costs of workers and of PS alike, whatever the
    plan, is the host (other threads on the same core, its caches and clock), and it moves throughput too.

    ``linear``: a row for workers and one for PS of each observation, then the prior's.
    """
    n = (len(right) - linear.shape[1]) // 2
    paces = np.ones(n)
    for _ in range(_PACE_ROUNDS):
        rows = linear.copy()
        rows[: 2 * n] *= np.repeat(paces, 2)[:, None]
        usual = nnls(rows.T @ rows, rows.T @ right)
        logs = np.log(right[: 2 * n] / np.maximum(linear[: 2 * n] @ usual, 1e-12)).reshape(n, 2)
        logs = np.clip(logs - logs.mean(axis=0), -1.0, 1.0)
        together = float((logs[:, 0] * logs[:, 1]).mean())
        if together <= 0:
            return np.ones(n)
        mean = logs.mean(axis=1)
        before, paces = paces, np.exp(mean * min(1.0, together / float((mean**2).mean())))
        if np.abs(paces / before - 1).max() < _PACE_ENOUGH:
            break
    return paces


def _cpu_rows(observations: Sequence[Observation]) -> Floats:
    """Make a row for the worker's CPU seconds and one for the PS's of each observation, as far as measured: what each coefficient adds, in
    parts of what was measured."""
    rows = []
    for o in observations:
        if o.worker_cpu_seconds:
            rows.append(np.array([o.batch_size, 1.0, o.ps, 0.0, 0.0, 0.0]) / o.worker_cpu_seconds)
        if o.ps_cpu_seconds:
            rows.append(np.array([0.0, 0.0, 0.0, o.batch_size / o.ps, 1.0, 0.0]) / o.ps_cpu_seconds)
    return np.array(rows, np.float64).reshape(-1, 6)


def _cpu_weights(observations: Sequence[Observation], count: int) -> Floats:
    found = [
        math.sqrt(o.weight) / _CPU_NOISE
        for o in observations
        for measured in (o.worker_cpu_seconds, o.ps_cpu_seconds)
        if measured
    ]
    return np.array(found[:count])


def _guess(observations: Sequence[Observation], form: Form, unit_times: Floats, seconds: Floats) -> Floats:
    """Guess coefficients of a plausible size, all above 0: with measured CPU seconds, their usual parts; else equal parts of the time."""
    if form is BOTTLENECK:
        batch, ps = observations[0].batch_size, float(np.mean([o.ps for o in observations]))
        workers = [o.worker_cpu_seconds for o in observations if o.worker_cpu_seconds]
        servers = [o.ps_cpu_seconds * o.ps for o in observations if o.ps_cpu_seconds]
        worker = (
            float(np.mean(workers))
            if workers
            else 0.6
            * float(
                np.median(
                    [
                        s * o.workers * o.worker_cores * o.worker_speed
                        for s, o in zip(seconds, observations, strict=True)
                    ]
                )
            )
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
    return np.asarray(float(seconds.mean()) / len(largest) / np.maximum(largest, 1e-300), np.float64)


# --- solving --------------------------------------------------------------------------------------------------------


def best_exponent(data: FitData, expected: float) -> tuple[float, Solution]:
    """Search the form's exponents from the expected one on, as long as it gets better."""
    choices = data.form.exponents

    def solve(i: int, start: Floats) -> tuple[float, Solution]:
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


def _solve(data: FitData, exponent: float, start: Floats) -> Solution:
    """Solve by Gauss-Newton, each step by non-negative least squares: a p-norm of times that are linear in the coefficients is the sum of
    its derivatives times the coefficients, so a step needs no constant. A step that doesn't help is halved."""
    base, base_right = data.linear.T @ data.linear, data.linear.T @ data.linear_right
    now = _evaluate(data, exponent, start)
    for _ in range(_ROUNDS):
        weights = np.sqrt(now.trust) / data.sd
        rows = now.design * weights[:, None]
        aim = nnls(base + rows.T @ rows, base_right + rows.T @ weights)
        before = now
        for _ in range(5):
            now = _evaluate(data, exponent, aim)
            if now.cost <= before.cost:
                break
            aim = (aim + before.x) / 2
        if now.cost > before.cost - _ENOUGH:
            return now if now.cost <= before.cost else before
    return now


def _evaluate(data: FitData, exponent: float, x: Floats) -> Solution:
    seconds, shares = norm(data.times @ x, exponent)
    design = (shares[..., None] * data.times).sum(axis=0)
    error = seconds - 1
    scaled = np.abs(error / data.sd)
    trust = _DISTURBED / np.maximum(scaled, _DISTURBED)
    # Huber's loss: a square, and straight on from there
    loss = np.where(trust < 1, _DISTURBED * (2 * scaled - _DISTURBED), scaled**2)
    rest = data.linear @ x - data.linear_right
    return Solution(x, float(loss.sum() + rest @ rest), error, design, trust)


def norm(times: Floats, exponent: float) -> tuple[Floats, Floats]:
    """Compute the p-norm over the first axis, and its derivatives by each of the times."""
    largest = np.maximum(times.max(axis=0), 1e-300)
    seconds = largest * ((times / largest) ** exponent).sum(axis=0) ** (1 / exponent)
    return seconds, (times / seconds) ** (exponent - 1)


def told_apart(data: FitData, rows: Floats) -> tuple[list[list[str]], list[str]]:
    """Find groups of coefficients with the same effect on everything measured, and the coefficients with none."""
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
