"""How good predictions have been: what decisions were predicted to bring, against what was measured once they had taken effect."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from dlrover_lite.brain.effect import Effect
from dlrover_lite.brain.planning.pareto import Band

__all__ = ["Calibration", "JudgedDecision", "calibration"]


class JudgedDecision(NamedTuple):
    """A decision whose effect was measured."""

    job: str
    number: int
    at: float
    """Time of the decision, in seconds since the epoch."""
    action: str
    predicted: Band
    """Predicted throughput in samples/s."""
    effect: Effect


class Calibration(NamedTuple):
    decisions: int
    """Number of decisions that this is of."""
    median_miss: float
    """Median of the difference between measured and predicted throughput, as a share of what was predicted, whatever its sign."""
    within_band: float
    """Share of decisions whose measured throughput lies within the predicted 80% band."""
    missed: int
    """Number of decisions that missed by much (``Effect.missed``)."""


def calibration(judged: Sequence[JudgedDecision]) -> dict[str, Calibration]:
    """Compare predictions with what came, by action, and of all actions together ("all"). Empty where nothing was judged."""
    by_action: dict[str, list[JudgedDecision]] = {"all": list(judged)} if judged else {}
    for one in judged:
        by_action.setdefault(one.action, []).append(one)
    return {action: _calibration(by_action[action]) for action in sorted(by_action)}


def _calibration(judged: Sequence[JudgedDecision]) -> Calibration:
    within = [one.predicted.lower <= one.effect.measured.expected <= one.predicted.upper for one in judged]
    return Calibration(
        decisions=len(judged),
        median_miss=median(abs(one.effect.error) for one in judged),
        within_band=sum(within) / len(within),
        missed=sum(one.effect.missed for one in judged),
    )
