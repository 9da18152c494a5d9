"""When a job will have gone through its samples."""

from __future__ import annotations

import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dlrover_lite.core.expected_end import (
    ExpectedEnd,
    PlanIntervals,
    PlanShape,
    PredictedRate,
    TrainedInterval,
    expected_end,
)

BAND = PredictedRate(100.0, 80.0, 125.0)
POSITIVE = st.floats(1e-3, 1e9)


def intervals(*rates: float, seconds: float = 10.0) -> list[TrainedInterval]:
    return [TrainedInterval(seconds, seconds * rate) for rate in rates]


def test_the_end_follows_from_the_mean_of_the_last_intervals() -> None:
    assert expected_end(50.0, 1000.0, intervals(1e9, *[100.0] * 12)) == ExpectedEnd(60.0, 0.0)


def test_a_long_interval_counts_for_more_than_a_short_one() -> None:
    mixed = [*intervals(100.0, 100.0), *intervals(10.0, seconds=0.1)]
    found = expected_end(0.0, 1000.0, mixed)
    assert found is not None
    assert found.at == pytest.approx(20.1 * 1000.0 / 2001.0)


@pytest.mark.parametrize("known", [0, 1, 2])
def test_with_fewer_than_three_intervals_the_prediction_counts(known: int) -> None:
    found = expected_end(7.0, 1000.0, intervals(*[1.0] * known), predicted=BAND)
    assert found == ExpectedEnd(17.0, (1000 / 80 - 1000 / 125) / 2)


def test_from_three_intervals_on_the_prediction_counts_no_more() -> None:
    found = expected_end(7.0, 1000.0, intervals(200.0, 200.0, 200.0), predicted=BAND, recent=1.0)
    assert found == ExpectedEnd(12.0, 0.0)


def test_few_intervals_without_a_prediction_give_an_end_without_band() -> None:
    assert expected_end(7.0, 1000.0, intervals(100.0, 100.0), recent=1.0) == ExpectedEnd(17.0, None)
    assert expected_end(7.0, 1000.0, [], recent=50.0) == ExpectedEnd(27.0, None)


def test_a_prediction_that_may_be_zero_gives_no_band() -> None:
    assert expected_end(0.0, 10.0, [], predicted=PredictedRate(1.0, 0.0, 2.0)) == ExpectedEnd(10.0, None)


def test_expected_pauses_are_added_to_the_end() -> None:
    assert expected_end(0.0, 1000.0, intervals(*[100.0] * 3), pause_seconds=30.0) == ExpectedEnd(40.0, 0.0)


@pytest.mark.parametrize("rates", [(), (0.0, 0.0), (0.0, 0.0, 0.0)])
def test_a_job_without_progress_has_no_expected_end(rates: tuple[float, ...]) -> None:
    assert expected_end(0.0, 10.0, intervals(*rates)) is None


def test_no_expected_end_with_more_trained_than_there_is() -> None:
    assert expected_end(0.0, -1.0, intervals(*[5.0] * 3)) is None


@pytest.mark.parametrize("count", [3, 5, 12])
@pytest.mark.parametrize("to_come", [2, 12, 100])
def test_four_of_five_jobs_end_within_the_band(count: int, to_come: int) -> None:
    """Intervals scatter by a tenth, before and after; the job ends when they add up to what was left."""
    draw, within, rounds = random.Random(count * 1000 + to_come), 0, 2000
    for _ in range(rounds):
        left = 100.0 * 10.0 * to_come
        found = expected_end(0.0, left, intervals(*(draw.gauss(100.0, 10.0) for _ in range(count))))
        assert found is not None
        assert found.error_seconds is not None
        end = 0.0
        while left > 0:
            rate = draw.gauss(100.0, 10.0)
            step = min(10.0, left / rate)
            end, left = end + step, left - step * rate
        within += abs(found.at - end) <= found.error_seconds
    assert 0.76 <= within / rounds <= 0.86


def test_only_intervals_since_the_plan_has_its_shape_count() -> None:
    one, two = PlanShape.of_nodes([1.0], [0.5]), PlanShape.of_nodes([1.0, 1.0], [0.5])
    known = PlanIntervals()
    for shape, rate in ((one, 1.0), (two, 2.0), (one, 3.0), (one, 4.0)):
        known.add(shape, TrainedInterval(10.0, 10 * rate))
    assert known.since(one) == intervals(3.0, 4.0)
    assert known.since(two) == []
    assert PlanShape.of_nodes([2.0, 1.0], []) == PlanShape.of_nodes([1.0, 2.0], [])


SHORTEST_SECONDS = 1e-3
CENTURIES = 0.99e9
"""Seconds; 0.99: the mean of rates isn't exact."""


@example(0.0, 73435.0, [(10000.0, 0.0), (3618.0, 1.0)], None, 22939.0)
@example(0.0, 73435.0, [(3920.0, 1.0), (9698.0, 5e-324)], None, 22939.0)
@example(0.0, 6666.0, [(10000.0, 5e-324)], None, 0.0)
@given(
    st.floats(0, 2e9),
    st.floats(0, 1e12),
    st.lists(st.tuples(st.floats(0, 1e4), st.floats(0, 1e9)), max_size=20),
    st.none()
    | st.tuples(POSITIVE, POSITIVE, POSITIVE).map(sorted).map(lambda band: PredictedRate(band[1], band[0], band[2])),
    st.floats(0, 1e9),
)
def test_an_end_is_never_in_the_past_and_a_band_never_negative(
    now: float, left: float, measured: list[tuple[float, float]], predicted: PredictedRate | None, recent: float
) -> None:
    found = expected_end(now, left, [TrainedInterval(*one) for one in measured], predicted=predicted, recent=recent)
    if found is not None:
        assert found.at >= now
        assert found.error_seconds is None or found.error_seconds >= 0
    else:
        rates = [predicted.expected] if predicted is not None else []
        told = [one for one in measured if one[0] >= SHORTEST_SECONDS]  # shorter intervals say nothing
        newest = [list(zip(*told[at:], strict=True)) for at in range(len(told))]
        rates += [sum(samples) / sum(seconds) for seconds, samples in newest]
        assert not any(rates) or left > CENTURIES * min(filter(None, rates))  # nobody waits for that
