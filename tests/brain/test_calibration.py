"""How good predictions have been: by action, with their bands."""

from __future__ import annotations

import pytest

from dlrover_lite.brain.calibration import Calibration, JudgedDecision, calibration
from dlrover_lite.brain.effect import judge
from dlrover_lite.brain.planning.decision import Decision, Predicted
from dlrover_lite.brain.planning.pareto import Band


def judged(number: int, action: str, measured: float) -> JudgedDecision:
    """A decision that predicted 100 samples/s, 80 to 125."""
    band = Band(100.0, 80.0, 125.0)
    predicted = Predicted(throughput=band, seconds=10.0, stay_seconds=20.0, gain=Band(10.0, 5.0, 12.0))
    decision = Decision(job="ads", at=1.0, action=action, reason="", predicted=predicted)  # type: ignore[arg-type]
    effect = judge(decision, Band(measured, measured * 0.99, measured * 1.01), windows=2, at=2.0)
    return JudgedDecision("ads", number, 1.0, action, band, effect)


def test_misses_count_whatever_their_sign_and_bands_by_what_lies_within() -> None:
    found = calibration(
        [judged(1, "change", 90.0), judged(2, "change", 120.0), judged(3, "change", 50.0), judged(4, "explore", 100.0)]
    )
    assert found["change"] == pytest.approx(Calibration(decisions=3, median_miss=0.2, within_band=2 / 3, missed=1))
    assert found["explore"] == Calibration(1, 0.0, 1.0, 0)
    assert found["all"].decisions == 4 and abs(found["all"].median_miss - 0.15) < 1e-9
    assert list(found) == ["all", "change", "explore"]


def test_nothing_judged_is_no_calibration() -> None:
    assert calibration([]) == {}
