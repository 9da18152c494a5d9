"""What holds a job back, by the fitted ``bottleneck`` model: which of its limits is the nearest, and whether that can be told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import msgspec
import numpy as np

from dlrover_lite.brain.models.throughput import Fit, fit, predict, times
from dlrover_lite.brain.models.throughput_forms import BOTTLENECK, Setting
from dlrover_lite.protocol.profiles import Profile, host_speeds, observe

__all__ = ["LIMITS", "Bottleneck", "Limit", "LimitName", "LimitTime", "bottleneck", "limit_times"]

LimitName = Literal["workers", "ps", "pipeline", "host", "cores", "reading", "network"]
LIMITS: tuple[LimitName, ...] = ("workers", "ps", "pipeline", "host", "cores", "reading", "network")
"""Limits: the cores of workers, those of the busiest PS, how many minibatches are under way, the fullest host's free cores, the cores that
all nodes share (in place of the host's), how fast samples are read, and the fullest host's network card."""
_OF_TIMES: tuple[LimitName, ...] = ("workers", "ps", "pipeline", "host", "reading", "reading", "network")
"""Limits that the form's times belong to: reading is limited by workers' own readers, and by what all of them read from."""
_SOURCE = 5
"""Position of the second of these."""
_HOST = 3
"""Position of the time that a host's free cores take, or those that all nodes share."""
_ALWAYS = 4
"""Number of limits, the first, that every job has."""

_COEFFICIENTS: dict[LimitName, tuple[str, ...]] = {
    "workers": ("worker_sample", "worker_minibatch", "worker_request"),
    "ps": ("ps_sample", "ps_request"),
    "pipeline": ("latency",),
    "host": ("worker_sample", "worker_minibatch", "worker_request", "ps_sample", "ps_request"),
    "cores": ("worker_sample", "worker_minibatch", "worker_request", "ps_sample", "ps_request"),
    "reading": ("reader_sample", "source_sample"),
    "network": ("network_byte",),
}
_RECENT = 60
"""The most profiles that are looked at: the newest ones."""
_CLEAR = 1.1
"""Least factor by which the nearest limit has to be nearer than the next one, beside the model's own error."""


class LimitTime(NamedTuple):
    name: LimitName
    seconds: float
    """Seconds per minibatch, if this were the only limit."""
    whatever_plan: bool = False
    """The limit is the same for every plan."""


class Limit(msgspec.Struct, frozen=True):
    name: LimitName
    samples_per_second: float
    """Samples/s that this limit alone would allow under the plan of the last profile."""
    unmeasured: tuple[str, ...]
    """Coefficients in the limit of which the profiles say nothing."""
    whatever_plan: bool = False
    """The limit is the same for every plan: it is what all workers read from."""


class Bottleneck(msgspec.Struct, frozen=True):
    limits: tuple[Limit, ...]
    """Limits of the throughput, the nearest first."""
    clear: bool
    """The nearest limit is surely the nearest: what it rests on has been measured, and the next one is further away than the model errs."""
    relative_error: float
    """Relative error of the model, the median over the profiles."""
    predicted: float
    """Samples/s under the plan of the last profile, by all limits together."""
    merged: tuple[tuple[str, ...], ...]
    """Coefficients that the profiles can't tell apart."""
    profiles: int
    """Number of profiles that the model was fitted to."""


def limit_times(fitted: Fit, setting: Setting) -> list[LimitTime]:
    """Compute how long each limit alone lets a minibatch take under one plan, the longest first. Limits that nothing is known of are left
    out. ``fitted``: of the form ``bottleneck``."""
    assert fitted.form == BOTTLENECK.name
    seconds = [float(np.ravel(term)[0]) for term in times(fitted, setting)]
    shared = float(np.ravel(setting.shared_cores)[0]) > 0
    found: dict[LimitName, LimitTime] = {}
    for at, (limit, each) in enumerate(zip(_OF_TIMES, seconds, strict=True)):
        name: LimitName = "cores" if shared and at == _HOST else limit
        nearest = found[name].seconds if name in found else 0.0
        if at < _ALWAYS or each > nearest:
            found[name] = LimitTime(name, each, whatever_plan=at == _SOURCE)
    return sorted(found.values(), key=lambda limit: -limit.seconds)


def bottleneck(profiles: Sequence[Profile]) -> Bottleneck | None:
    """Find what limits the plan that the last profile was measured under; None if nothing was trained in any of them."""
    recent = list(profiles)[-_RECENT:]
    speeds = host_speeds(recent)
    observations = [found for profile in recent if (found := observe(profile, speeds)) is not None]
    if not observations:
        return None
    fitted = fit(observations)
    setting = Setting.of(observations[-1:])
    batch = observations[-1].batch_size
    limits = [
        Limit(one.name, batch / max(one.seconds, 1e-12), _unmeasured(fitted, one.name), one.whatever_plan)
        for one in limit_times(fitted, setting)
    ]
    margin = max(_CLEAR, 1 + 2 * fitted.relative_error)
    return Bottleneck(
        limits=tuple(limits),
        clear=limits[1].samples_per_second >= margin * limits[0].samples_per_second and not limits[0].unmeasured,
        relative_error=fitted.relative_error,
        predicted=float(predict(fitted, setting).samples_per_second[0]),
        merged=tuple(tuple(names) for names in fitted.merged),
        profiles=len(observations),
    )


def _unmeasured(fitted: Fit, name: LimitName) -> tuple[str, ...]:
    """List the limit's coefficients that the profiles say nothing of. Where coefficients are merged, their sum is measured: that is enough
    for the plan they were measured under."""
    return tuple(each for each in _COEFFICIENTS[name] if each in fitted.unseen)
