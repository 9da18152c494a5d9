"""How coefficients of a form are found: observations as rows, and Gauss and Newton's steps by non-negative least squares."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from dlrover_lite.brain.models.throttling import unthrottled
from dlrover_lite.brain.models.throughput_forms import BOTTLENECK, Engine, Floats, Form, Setting
from dlrover_lite.protocol.profiles import Observation

__all__ = [
    "NOISE",
    "FitData",
    "Solution",
    "Start",
    "best_exponent",
    "doubt_of_readers",
    "norm",
    "prepare",
    "sample_bytes",
    "solve",
    "told_apart",
]

NOISE = 0.06
"""Relative error of a form where nothing is known of it yet."""
_CPU_NOISE = 0.05
"""Relative error of measured CPU seconds as costs."""
_READ_NOISE = 0.25
"""Relative error of measured seconds of reading as costs: how long workers wait for each other there is known roughly only."""
_NETWORK_NOISE = 0.1
"""Relative error of measured seconds of transfers as costs."""
_UNTOLD_SD = 0.6
"""Relative standard deviation of a reader's seconds where workers do nothing but read, and it can't be told whether they would read more if
there were more of them."""
_SHARED = 0.5
"""Part of the seconds of reading, beside CPU, that the source is guessed to take where workers do nothing but read."""
_PACED = 4
"""Number of observations from which on it can be told which of them were made while the host was slow."""
_PACE_ROUNDS, _PACE_ENOUGH = 10, 0.01
"""The most steps by which paces are found, and the change of a pace, as a share, from which on there is another one."""
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
_LEAST_PART = 1e-3
"""Part of a minibatch's time that is guessed for what was not measured, but is expected of jobs like this one."""
_LEAST_BYTE_SECONDS = 1e-11
"""Seconds per byte of a network card that nothing was measured of: 100 GB/s."""
_ROUNDS = 12
"""The most steps of a fit: three to five are usual."""
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
    names: tuple[str, ...]
    """Coefficients that are fitted: the form's, but for those of which nothing is known."""
    times: Floats
    """[terms, n, k]: times of unit coefficients."""
    sd: Floats
    """[n]: standard deviations of the observations."""
    linear: Floats
    """[m, k]: rows that are linear in the coefficients, in units of their standard deviation, as ``linear_right`` [m] is: those of what was
    measured first, then the prior's."""
    linear_right: Floats
    measured_rows: int
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
    names = _to_be_found(observations, form, start)
    places = [form.coefficients.index(name) for name in names]
    unit_times = np.ascontiguousarray(form.rows(table, engine, places[-1] + 1)[:, :, places].swapaxes(0, 1))
    unit_times = unit_times[unit_times.any(axis=(1, 2))]
    n = len(observations)
    seconds = setting.batch_size / np.array([o.samples_per_second for o in observations])
    sd = np.array([math.sqrt((NOISE**2 + o.relative_sd**2) / o.weight) for o in observations])
    worker_cpu = unthrottled(observations, engine.throttle_cores)
    observations = [
        msgspec.structs.replace(o, worker_cpu_seconds=its) for o, its in zip(observations, worker_cpu, strict=True)
    ]
    measured, weights, of_cpu = _measured_rows(observations, form)
    guess = _guess(observations, form, unit_times, seconds)[places]
    expected, scale, prior_sd = _expected(names, form, guess, start)
    linear = np.concatenate([measured[:, places] * scale * weights[:, None], np.diag(1 / prior_sd)])
    right = np.concatenate([weights, expected / scale / prior_sd])
    paces = np.ones(n)
    if of_cpu == 2 * n and n >= _PACED:
        paces = _paces(linear, right, n)
        linear[: 2 * n] *= np.repeat(paces, 2)[:, None]
    optional = np.array([name in form.optional for name in names])
    slower = np.where(optional, 1.0, paces[:, None])  # a slow host makes neither disks nor networks slower
    relative_times = unit_times * (scale * slower / seconds[:, None])
    return FitData(form, names, relative_times, sd, linear, right, len(measured), scale, paces)


def _to_be_found(observations: Sequence[Observation], form: Form, start: Start | None) -> tuple[str, ...]:
    """List the coefficients to be fitted: those that every job has, and what else was measured, or is expected."""
    known = {name for name in form.optional if start is not None and start.coefficients.get(name)}
    if any(o.read_seconds for o in observations):
        known |= {"reader_sample", "source_sample"} if _tells_sources(observations) else {"reader_sample"}
    if any(o.byte_seconds for o in observations):
        known.add("network_byte")
    return tuple(name for name in form.coefficients if name not in form.optional or name in known)


def _expected(names: Sequence[str], form: Form, guess: Floats, start: Start | None) -> tuple[Floats, Floats, Floats]:
    """Return what is expected of the coefficients beforehand, their scale, and the relative standard deviation of the first in units of the
    second. Where samples are read from, and how hosts are connected, may be another matter with another job: what is optional is expected
    to be as with jobs like this one, but never surely."""
    if start is None:
        return guess, guess, np.full(len(guess), _GUESS_SD)
    given = np.array([start.coefficients.get(name, 0.0) for name in names])
    optional = np.array([name in form.optional for name in names])
    scale = np.maximum(given, np.where(optional, 1.0, 0.05) * guess)  # one that was 0 elsewhere needn't be so here
    expected = np.where(optional & (given == 0), guess, given)
    return expected, scale, np.where(optional, max(_GUESS_SD, start.relative_sd), start.relative_sd)


def sample_bytes(observations: Sequence[Observation], expected: float | None) -> float:
    """Compute the bytes of a sample's rows: as measured, else as expected; 1 where nothing is known."""
    known = [o.sample_bytes for o in observations if o.sample_bytes]
    return float(np.mean(known)) if known else expected or 1.0


def _paces(linear: Floats, right: Floats, n: int) -> Floats:
    """Estimate how much more CPU than usual work cost in each of the ``n`` observations: what moves the costs of workers and of PS alike,
    whatever the plan, is the host (other threads on the same core, its caches and clock), and it moves throughput too.

    ``linear``: a row for workers and one for PS of each observation, then others.
    """
    from scipy.optimize import nnls

    paces = np.ones(n)
    for _ in range(_PACE_ROUNDS):
        rows = linear.copy()
        rows[: 2 * n] *= np.repeat(paces, 2)[:, None]
        usual, _ = nnls(rows, right)
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


def _measured_rows(observations: Sequence[Observation], form: Form) -> tuple[Floats, Floats, int]:
    """Make rows of what was measured beside throughput, and is linear in the coefficients: what each coefficient adds, in parts of what was
    measured. Return them [m, k], their weights [m], and how many of them, the first, are of CPU: one of the workers and one of the PS for
    each observation, as far as measured. Those of reading and of transfers follow.

    A worker that reads waits for those at the source before it. So while nobody does anything but read, a minibatch takes as long to be
    read as those of all workers together take there.
    """
    width = len(form.coefficients)
    if form is not BOTTLENECK:
        return np.zeros((0, width)), np.zeros(0), 0
    cpu: list[tuple[list[float], float]] = []
    others: list[tuple[list[float], float]] = []
    for o in observations:
        weight, batch = math.sqrt(o.weight), o.batch_size
        if its := o.worker_cpu_seconds:
            cpu.append(([batch / its, 1 / its, o.ps / its, 0, 0, 0, 0, 0, 0], weight / _CPU_NOISE))
        if its := o.ps_cpu_seconds:
            cpu.append(([0, 0, 0, batch / o.ps / its, 1 / its, 0, 0, 0, 0], weight / _CPU_NOISE))
        if its := o.read_seconds:
            others.append(([0, 0, 0, 0, 0, 0, batch / its, batch * _readers(o) / its, 0], weight / _READ_NOISE))
        if its := o.byte_seconds:
            others.append(([0, 0, 0, 0, 0, 0, 0, 0, 1 / its], weight / _NETWORK_NOISE))
    found = [*cpu, *others]
    rows = np.array([row for row, _ in found], np.float64).reshape(-1, width)
    return rows, np.array([weight for _, weight in found]), len(cpu)


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
                *_guess_of_reading(observations, seconds),
                float(np.mean([o.byte_seconds for o in observations if o.byte_seconds] or [_LEAST_BYTE_SECONDS])),
            ]
        )
    largest = unit_times.sum(axis=0).mean(axis=0)
    return np.asarray(float(seconds.mean()) / len(largest) / np.maximum(largest, 1e-300), np.float64)


def _guess_of_reading(observations: Sequence[Observation], seconds: Floats) -> tuple[float, float]:
    """Guess seconds per sample of a worker that reads alone, and of the source. What is CPU is the worker's own. The more of their time
    workers read, the more of the rest may be the source's: up to a half, as nothing tells yet."""
    own, shared = [], []
    most = _SHARED * _most_reading(observations) if _tells_sources(observations) else 0.0
    for o in observations:
        if (read := o.read_seconds) is None:
            continue
        of_source = most * max(read - (o.read_cpu_seconds or 0.0), _LEAST_PART * read)
        own.append((read - of_source) / o.batch_size)
        shared.append(of_source / _readers(o) / o.batch_size)
    if not own:
        least = _LEAST_PART * float(seconds.min()) / observations[0].batch_size
        return least, least
    return min(own), max(float(np.mean(shared)), _LEAST_PART * min(own))


def _tells_sources(observations: Sequence[Observation]) -> bool:
    """Return whether it can be told what workers wait for at the source: if their number wasn't always the same."""
    return len({o.workers for o in observations if o.read_seconds}) > 1


def _most_reading(observations: Sequence[Observation]) -> float:
    return max((_reading_share(o) for o in observations if o.read_seconds), default=0.0)


def doubt_of_readers(observations: Sequence[Observation], names: Sequence[str]) -> float:
    """Compute the relative standard deviation that a reader's seconds have beside that of their measurement: as long as nothing tells them
    from the source's, they may be these."""
    measured = "reader_sample" in names and any(o.read_seconds for o in observations)
    return 0.0 if not measured or "source_sample" in names else _UNTOLD_SD * _most_reading(observations)


def _reading_share(o: Observation) -> float:
    """Return the share of its time that a worker reads."""
    return min(1.0, (o.read_seconds or 0.0) * o.samples_per_second / (o.batch_size * o.workers))


def _readers(o: Observation) -> float:
    """Return the number of workers that read when one begins to, itself included: each of the others as often as it reads (Schweitzer's
    approximation of the mean value analysis of a closed queueing network, 1979)."""
    return 1 + (o.workers - 1) * _reading_share(o)


# --- solving --------------------------------------------------------------------------------------------------------


def best_exponent(data: FitData, expected: float) -> tuple[float, Solution]:
    """Search the form's exponents from the expected one on, as long as it gets better."""
    choices = data.form.exponents

    def solved(i: int, start: Floats) -> tuple[float, Solution]:
        found = solve(data, choices[i], start)
        return found.cost + (math.log(choices[i] / expected) / _EXPONENT_SD) ** 2, found

    here = min(range(len(choices)), key=lambda i: abs(math.log(choices[i] / expected)))
    cost, best = solved(here, np.ones(len(data.scale)))
    for step in (-1, 1):
        moved = False
        while 0 <= here + step < len(choices):
            other_cost, other = solved(here + step, best.x)
            if other_cost >= cost:
                break
            here, cost, best, moved = here + step, other_cost, other, True
        if moved:
            break
    return choices[here], best


def solve(data: FitData, exponent: float, start: Floats) -> Solution:
    """Solve by Gauss-Newton, each step by non-negative least squares: a p-norm of times that are linear in the coefficients is the sum of
    its derivatives times the coefficients, so a step needs no constant. A step that doesn't help is halved.
    ``scipy.optimize.least_squares`` finds the same, and takes four to eight times as long (docs/decisions/0005-scipy-in-the-fit.md).
    """
    from scipy.optimize import nnls

    now = _evaluate(data, exponent, start)
    for _ in range(_ROUNDS):
        weights = np.sqrt(now.trust) / data.sd
        rows = now.design * weights[:, None]
        aim, _ = nnls(np.concatenate([data.linear, rows]), np.concatenate([data.linear_right, weights]))
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
    names = data.names
    effects = np.concatenate([rows, data.linear[: data.measured_rows]])
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
