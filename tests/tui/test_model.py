from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlrover_lite.tui.model import Cost, Rate, expected_end


def _rates(*values: float) -> list[Rate]:
    return [Rate(float(at), value) for at, value in enumerate(values)]


def test_the_end_follows_from_the_mean_of_the_last_intervals() -> None:
    found = expected_end(_rates(1e9, *[100.0] * 12), 1000.0, now=50.0)
    assert found is not None
    assert (found.at, found.error_seconds) == (60.0, 0.0)


def test_the_error_grows_with_how_much_intervals_differ() -> None:
    errors = [expected_end(_rates(*[100 - d, 100 + d] * 6), 1000.0, now=0.0) for d in (1.0, 10.0)]
    assert [one.error_seconds for one in errors if one] == pytest.approx([0.0386, 0.386], rel=0.01)


@pytest.mark.parametrize(("values", "left"), [((), 10.0), ((0.0, 0.0), 10.0), ((5.0,), -1.0)])
def test_a_job_that_does_not_get_on_has_no_expected_end(values: tuple[float, ...], left: float) -> None:
    assert expected_end(_rates(*values), left, now=0.0) is None


def test_little_that_is_known_has_no_error() -> None:
    found = expected_end(_rates(10.0, 10.0), 100.0, now=1.0)
    assert found is not None
    assert (found.at, found.error_seconds) == (11.0, None)


def test_cost_is_what_was_given_for_as_long_as_it_was() -> None:
    cost = Cost().given(100.0, 2.0, 1000).given(110.0, 4.0, 500).until(120.0)
    assert (cost.core_seconds, cost.byte_seconds) == (60.0, 15_000.0)


@given(st.lists(st.tuples(st.floats(1, 1e6), st.floats(0, 64), st.integers(0, 1 << 40)), min_size=1, max_size=8))
def test_looking_in_between_costs_nothing(steps: list[tuple[float, float, int]]) -> None:
    steps.sort()
    cost = looked = Cost()
    for at, cores, memory in steps:
        cost = cost.given(at, cores, memory)
        looked = looked.until(at).given(at, cores, memory) if looked.at else looked.given(at, cores, memory)
    assert looked.core_seconds == pytest.approx(cost.core_seconds)
    assert cost.core_seconds >= 0
