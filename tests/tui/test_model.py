from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlrover_lite.tui.model import Cost


def test_cost_is_resources_given_times_how_long() -> None:
    cost = Cost().given(100.0, 2.0, 1000).given(110.0, 4.0, 500).until(120.0)
    assert (cost.core_seconds, cost.byte_seconds) == (60.0, 15_000.0)


@given(st.lists(st.tuples(st.floats(1, 1e6), st.floats(0, 64), st.integers(0, 1 << 40)), min_size=1, max_size=8))
def test_looking_in_between_does_not_change_the_cost(steps: list[tuple[float, float, int]]) -> None:
    steps.sort()
    cost = looked = Cost()
    for at, cores, memory in steps:
        cost = cost.given(at, cores, memory)
        looked = looked.until(at).given(at, cores, memory) if looked.at else looked.given(at, cores, memory)
    assert looked.core_seconds == pytest.approx(cost.core_seconds)
    assert cost.core_seconds >= 0
