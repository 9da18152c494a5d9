"""Cores of a machine are shared as processors are: nobody gets more than it wants, and nothing is left while somebody wants more."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlrover_lite.backends.sim.physics.cpu_sharing import share_cores

WANTED = st.lists(st.floats(0.0, 16.0), max_size=8)


@given(WANTED, st.floats(0.1, 64.0))
def test_cores_are_shared_without_waste_and_evenly(wanted: list[float], cores: float) -> None:
    got = share_cores(wanted, cores)
    assert sum(got) == pytest.approx(min(cores, sum(wanted)), abs=1e-9)
    assert all(0.0 <= its <= most + 1e-12 for its, most in zip(got, wanted, strict=True))
    short = [its for its, most in zip(got, wanted, strict=True) if its < most - 1e-9]
    assert all(its == pytest.approx(max(got), abs=1e-9) for its in short), "one that wants more has less than another"


def test_what_one_leaves_goes_to_the_others() -> None:
    assert share_cores([2.0, 0.25, 2.0], 2.25) == [1.0, 0.25, 1.0]
