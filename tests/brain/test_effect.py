"""What decisions brought, against what they were to bring."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlrover_lite.brain.effect import Effect, cost_of_change, doubt_after, judge
from dlrover_lite.brain.planning.decision import Decision, Predicted
from dlrover_lite.brain.planning.pareto import Band
from dlrover_lite.core.errors import UsageError
from dlrover_lite.protocol.demands import DecisionOutcome


def decision(throughput: Band | None) -> Decision:
    predicted = None
    if throughput is not None:
        predicted = Predicted(throughput=throughput, seconds=5.0, stay_seconds=9.0, gain=Band(4.0, 3.0, 5.0))
    return Decision(job="ads-1", at=1.0, action="change", reason="it may", predicted=predicted)


PREDICTED = decision(Band(100.0, 90.0, 110.0))


def measured(rate: float, spread: float = 0.02) -> Effect:
    return judge(PREDICTED, Band(rate, rate * (1 - spread), rate * (1 + spread)), windows=3, at=50.0)


@pytest.mark.parametrize(
    ("rate", "outside", "missed", "says"),
    [
        (100.0, False, False, "100 samples/s measured, 100 predicted (+0%)"),
        (109.0, False, False, "(+9%)"),
        (112.0, False, False, "(+12%)"),  # its own band reaches into the predicted one
        (115.0, True, False, "just outside of its band of 90 to 110"),
        (80.0, True, False, "just outside of its band of 90 to 110"),
        (60.0, True, True, "missed by much (the band was 90 to 110)"),
        (130.0, True, True, "missed by much (the band was 90 to 110)"),
    ],
)
def test_effect_compares_measured_throughput_with_the_predicted_band(
    rate: float, outside: bool, missed: bool, says: str
) -> None:
    effect = measured(rate)
    assert (effect.outside, effect.missed, effect.windows, effect.at) == (outside, missed, 3, 50.0)
    assert effect.error == pytest.approx(rate / 100 - 1)
    assert says in effect.text


def test_an_imprecise_measurement_is_no_miss() -> None:
    effect = measured(60.0, spread=0.6)
    assert not effect.outside and not effect.missed


def test_a_decision_that_predicted_nothing_can_not_be_judged() -> None:
    with pytest.raises(UsageError, match="predicted nothing to compare with"):
        judge(decision(None), Band(1.0, 1.0, 1.0), windows=1, at=1.0)


def test_predictions_that_came_true_are_trusted() -> None:
    assert doubt_after([]) == 1.0
    assert doubt_after([(PREDICTED, measured(100.0))] * 3) == 1.0
    assert doubt_after([(PREDICTED, measured(104.0))]) == 1.0


def test_a_miss_raises_doubt_until_enough_predictions_came_true() -> None:
    once = doubt_after([(PREDICTED, measured(60.0))])
    twice = doubt_after([(PREDICTED, measured(60.0))] * 2)
    assert 1.5 < once <= twice <= 4.0
    then_right = doubt_after([(PREDICTED, measured(60.0)), *[(PREDICTED, measured(100.0))] * 4])
    assert 1.0 < then_right < twice
    assert doubt_after([(PREDICTED, measured(60.0)), *[(PREDICTED, measured(100.0))] * 5]) == 1.0


def test_one_small_miss_hardly_raises_doubt() -> None:
    assert doubt_after([(PREDICTED, measured(113.0))]) < 1.5


@pytest.mark.parametrize(
    ("samples", "before", "predicted", "cost"),
    [
        (0, 100.0, 100.0, 10.0),  # all stood still
        (600, 100.0, 100.0, 4.0),
        (1500, 100.0, 300.0, 5.0),  # by the rate before it would be free
        (600, 100.0, 50.0, 4.0),  # to a smaller plan: what is slower afterwards is no cost of the change
        (5000, 100.0, 300.0, 0.0),
    ],
)
def test_cost_of_a_change_is_the_training_time_lost(samples: int, before: float, predicted: float, cost: float) -> None:
    done = DecisionOutcome(job="ads-1", number=1, at=20.0, state="done", seconds=10.0, samples=samples)
    assert cost_of_change(done, before, predicted) == pytest.approx(cost)


@given(st.lists(st.floats(0.0, 1e4), max_size=8))
def test_doubt_stays_within_its_bounds(rates: list[float]) -> None:
    assert 1.0 <= doubt_after([(PREDICTED, measured(rate)) for rate in rates]) <= 4.0


@pytest.mark.parametrize("band", [None, Band(100.0, 100.0, 100.0), Band(100.0, 0.0, 200.0)])
def test_predictions_without_a_usable_band_raise_no_doubt(band: Band | None) -> None:
    effect = measured(60.0)
    assert doubt_after([(decision(band), effect)]) == 1.0
