"""What a decision brought, against what it was predicted to bring; and how far predictions for a job are to be trusted from then on."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from dlrover_lite.brain.planning.decision import Decision
from dlrover_lite.brain.planning.pareto import Band
from dlrover_lite.brain.policies import USUAL, TrackingPolicy
from dlrover_lite.core.errors import UsageError
from dlrover_lite.protocol.demands import DecisionOutcome

__all__ = ["Effect", "cost_of_change", "doubt_after", "judge"]

_HALF_WIDTH_OF_80_PERCENT = 1.2816
"""Half the width of an 80% band, in standard deviations."""


class Effect(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured once a decision had taken effect."""

    at: float
    """Seconds since the epoch."""
    measured: Band
    """Measured throughput in samples/s."""
    windows: int
    """Number of windows that it was measured over."""
    scale_seconds: float | None = None
    """Seconds that the change cost; None: not measured."""
    error: float
    """Measured over predicted throughput, less 1."""
    outside: bool
    """The measured band and the predicted band don't overlap."""
    missed: bool
    """The bands don't overlap, and the measured throughput is off by much (``TrackingPolicy.much_missed_share``)."""
    text: str


def judge(
    decision: Decision,
    measured: Band,
    *,
    windows: int,
    at: float,
    scale_seconds: float | None = None,
    policy: TrackingPolicy = USUAL.tracking,
) -> Effect:
    """Compare a decision's prediction with what was measured. Raises UsageError for a decision that predicted nothing."""
    if decision.predicted is None:
        raise UsageError(f"The decision for {decision.job} ({decision.action}) predicted nothing to compare with")
    band = decision.predicted.throughput
    error = measured.expected / band.expected - 1
    outside = measured.upper < band.lower or measured.lower > band.upper
    missed = outside and abs(error) > policy.much_missed_share
    text = f"{measured.expected:,.0f} samples/s measured, {band.expected:,.0f} predicted ({error:+.0%})"
    if missed:
        text += f": missed by much (the band was {band.lower:,.0f} to {band.upper:,.0f}); less is built on predictions for this job"
    elif outside:
        text += f", just outside of its band of {band.lower:,.0f} to {band.upper:,.0f}"
    return Effect(
        at=at,
        measured=measured,
        windows=windows,
        scale_seconds=scale_seconds,
        error=error,
        outside=outside,
        missed=missed,
        text=text,
    )


def cost_of_change(done: DecisionOutcome, before: float, predicted: float) -> float:
    """Compute what a change has cost, in seconds: what was not trained while it went on, at the better of the rates ``before`` and
    ``predicted`` after it (samples/s). By the rate before alone, a change to a faster plan would seem to be free as soon as the new nodes
    make up for what was lost."""
    trained = done.samples / max(before, predicted)
    return min(done.seconds, max(0.0, done.seconds - trained))


def doubt_after(effects: Sequence[tuple[Decision, Effect]], policy: TrackingPolicy = USUAL.tracking) -> float:
    """Compute a factor on the bands of further predictions, from 1 to ``most_doubt``: what the last errors were, against what their bands
    let expect."""
    squares = []
    for decision, effect in list(effects)[-policy.doubted_effects :]:
        band = decision.predicted.throughput if decision.predicted else None
        if band is None or not 0 < band.lower < band.upper:
            continue
        spread = math.log(band.upper / band.lower) / 2 / _HALF_WIDTH_OF_80_PERCENT
        squares.append((math.log(max(effect.measured.expected, 1e-9) / band.expected) / spread) ** 2)
    if not squares:
        return 1.0
    # one good prediction is put beside them, so that a single small miss changes little
    return min(policy.most_doubt, max(1.0, math.sqrt((sum(squares) + 1) / (len(squares) + 1))))
