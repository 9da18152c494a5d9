"""Memory of a job's parameter servers (PS) as a curve to be shown: as it was, as it is foreseen to the job's end, and its limits."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from dlrover_lite.brain.explain.explanation_data import MemoryAhead, MemoryCurve, Used
from dlrover_lite.brain.models.memory_forecast import Forecast, forecast
from dlrover_lite.brain.models.memory_model import SPILL_PART, expected_bytes, peak_bytes
from dlrover_lite.protocol.demands import Demand
from dlrover_lite.protocol.profiles import Level, PsLevel

__all__ = ["curves_of", "forecast_for", "nearest", "outlook"]

_POINTS = 16
"""Number of points of a curve for the time ahead."""
_MOST_USED = 120
"""The most points of a curve for the time before."""
_HORIZON_SECONDS = 3600.0
"""Seconds that are looked ahead in a job of which nobody knows how long it is."""
_MOST_LOOKED_AT = 4
"""The most PS that are looked at: of many, those nearest to their limits."""

Limits = Mapping[str, Sequence[Used]]
"""Memory limits of each PS, by time."""


def outlook(levels: Sequence[Level], demand: Demand, limits: Limits) -> MemoryCurve | None:
    """Show the memory of a job that runs, by ``levels`` until now: of the PS that comes nearest to its limit. None while no PS has a
    row."""
    found = forecast_for(levels, demand)
    if found is None:
        return None
    curves = curves_of(found, levels, nearest(levels, limits), limits, total_samples=demand.total_samples)
    return curves[0] if curves else None


def forecast_for(levels: Sequence[Level], demand: Demand | None) -> Forecast | None:
    """Forecast memory from what PS held. ``demand``: what the job asks for; None: not known."""
    if demand is None:
        return forecast(levels)
    return forecast(
        levels,
        epoch_samples=demand.epoch_samples,
        spill_part=SPILL_PART if demand.checkpoints else 0.0,
        facts=demand.facts,
    )


def curves_of(
    found: Forecast | None,
    levels: Sequence[Level],
    nodes: Sequence[str],
    limits: Limits,
    *,
    total_samples: float | None,
) -> tuple[MemoryCurve, ...]:
    """Make the curves of these PS, as foreseen by ``found`` from the last of ``levels`` on; the one that comes nearest to its limit
    first."""
    curves = [_curve(found, levels, node, limits.get(node, ()), total_samples) for node in nodes]
    return tuple(sorted(curves, key=_nearness, reverse=True))


def nearest(levels: Sequence[Level], limits: Limits) -> list[str]:
    """List the PS that are worth looking at now: of many, those that are the fullest."""
    ordered = sorted(levels[-1].ps, key=lambda one: -_share(one, limits))
    return [one.node for one in ordered[:_MOST_LOOKED_AT]]


def _share(one: PsLevel, limits: Limits) -> float:
    of = limits.get(one.node, ())
    return one.used_bytes / of[-1].bytes if of and of[-1].bytes else 0.0


def _nearness(curve: MemoryCurve) -> float:
    """Return the part of its limit that a curve comes to at the end."""
    most = max(curve.now, curve.most.expected if curve.most else 0)
    return most / curve.limit if curve.limit else 0.0


def _curve(
    found: Forecast | None, levels: Sequence[Level], node: str, limits: Sequence[Used], total_samples: float | None
) -> MemoryCurve:
    used = [Used(level.at, one.used_bytes) for level in levels for one in level.ps if one.node == node]
    ahead, full_at = _ahead(found, levels, node, limits, total_samples)
    return MemoryCurve(
        node=node,
        used=tuple(_thinned(used)),
        ahead=ahead,
        limits=tuple(limits),
        to_the_end=total_samples is not None,
        full_at=full_at,
    )


def _thinned(used: list[Used]) -> list[Used]:
    """Thin a curve out: it needs few points; the last one stays."""
    if len(used) <= _MOST_USED:
        return used
    step = math.ceil(len(used) / _MOST_USED)
    return used[::-step][::-1]


def _ahead(
    found: Forecast | None, levels: Sequence[Level], node: str, limits: Sequence[Used], total_samples: float | None
) -> tuple[tuple[MemoryAhead, ...], float | None]:
    if found is None or node not in found.base or not levels:
        return (), None
    last, rate = levels[-1], _rate(levels)
    if rate <= 0:
        return (), None
    left = rate * _HORIZON_SECONDS if total_samples is None else max(0.0, total_samples - last.samples_so_far)
    if left <= 0:
        return (), None
    samples = last.samples_so_far + left * np.arange(1, _POINTS + 1) / _POINTS
    memory, tables = found.of(node)
    lower, upper = peak_bytes(memory, tables, samples, (0.1, 0.9))
    expected = np.clip(expected_bytes(memory, tables, samples), lower, upper)
    times = last.at + (samples - last.samples_so_far) / rate
    ahead = tuple(
        MemoryAhead(round(float(at), 1), int(most), int(low), int(high))
        for at, most, low, high in zip(times, expected, lower, upper, strict=True)
    )
    limit = limits[-1].bytes if limits else 0
    return ahead, next((one.at for one in ahead if limit and one.expected >= limit), None)


def _rate(levels: Sequence[Level]) -> float:
    """Return the samples/s of late: the median of a few, since any of them may have been disturbed."""
    rates = [level.samples_per_second for level in levels[-5:] if level.samples_per_second > 0]
    return float(np.median(rates)) if rates else 0.0
