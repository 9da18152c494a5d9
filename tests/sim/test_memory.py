"""Rows that have been seen, against draws, known laws, and the limits that they fill."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlrover_lite.backends.sim.physics.memory import MemoryCosts, Table, different_ids
from dlrover_lite.core.units import MIB


@pytest.mark.parametrize("exponent", [0.0, 0.8, 1.0, 1.2, 2.0])
@pytest.mark.parametrize("draws", [100, 20_000])
def test_as_many_ids_are_seen_as_draws_bring(exponent: float, draws: int) -> None:
    ids = 5000
    weights = np.arange(1, ids + 1.0) ** -exponent
    chance = np.random.default_rng(1)
    seen = [len(np.unique(chance.choice(ids, draws, p=weights / weights.sum()))) for _ in range(50)]
    error = 4 * np.std(seen) / math.sqrt(len(seen)) + 0.003 * np.mean(seen)
    assert different_ids(ids, exponent, draws) == pytest.approx(np.mean(seen), abs=error)


@pytest.mark.parametrize("exponent", [0.5, 1.0, 2.0])
def test_ids_that_are_taken_together_count_as_each_for_itself(exponent: float) -> None:
    weights = np.arange(1, 20_001.0) ** -exponent
    each = -np.expm1(5000 * np.log1p(-weights / weights.sum()))
    assert different_ids(20_000, exponent, 5000) == pytest.approx(each.sum(), rel=2e-4)


def test_new_ids_come_ever_more_seldom_by_heaps_law() -> None:
    """With frequencies as k^-s, s above 1, rows grow as n^(1/s) while most ids haven't been seen."""
    few, many = (different_ids(1e12, 2.0, draws) for draws in (1e6, 1e8))
    assert math.log(many / few) / math.log(100.0) == pytest.approx(0.5, abs=0.01)


@settings(max_examples=200)
@given(
    st.floats(1, 1e9),
    st.floats(0.0, 3.0),
    st.lists(st.integers(0, 10**12), min_size=3, max_size=3, unique=True).map(sorted),
)
def test_rows_rise_are_concave_and_never_more_than_ids_or_draws(ids: float, exponent: float, draws: list[int]) -> None:
    rows = [different_ids(ids, exponent, count) for count in draws]
    least = 1e-6 * max(rows)
    assert rows[0] <= rows[1] + least <= rows[2] + 2 * least
    for count, found in zip(draws, rows, strict=True):
        assert -least <= found <= min(ids, count) * (1 + 1e-6)
    (a, b, c), (x, y, z) = draws, rows
    assert y >= x + (z - x) * (b - a) / (c - a) - least


COSTS = MemoryCosts((Table(1e6, count=26), Table(1e5, exponent=0.0, dim=4)))


@settings(max_examples=50)
@given(st.floats(0.05, 1.0), st.floats(0.0, 1.2), st.sampled_from([math.inf, 1e5, 1e8]))
def test_a_limit_is_filled_when_the_memory_passes_it(share: float, part: float, epoch: float) -> None:
    costs = MemoryCosts(COSTS.tables, epoch_samples=epoch)
    ever = costs.server(1e18, share)
    limit = costs.server_bytes + part * (ever - costs.server_bytes)
    filled = costs.samples_within(limit, share)
    if part >= 1.0:
        assert filled == math.inf
    elif 0.01 < part < 0.999:
        assert costs.server(filled, share) == pytest.approx(limit, rel=1e-6)
        assert costs.server(filled * 1.01, share) > limit


def test_a_limit_below_the_process_is_filled_at_once() -> None:
    assert COSTS.samples_within(16 * MIB, 0.5) == 0.0


def test_a_second_epoch_brings_no_rows() -> None:
    costs = MemoryCosts(COSTS.tables, epoch_samples=1e5)
    assert costs.rows(2e5) == costs.rows(1e5) < COSTS.rows(2e5)


def test_a_row_takes_what_was_measured_of_one() -> None:
    """136 bytes of values and state took 155.4 in all."""
    costs = MemoryCosts((Table(100, exponent=0.0, dim=17),))
    assert costs.row_bytes(1e6) / costs.rows(1e6) == pytest.approx(155.4)
    assert costs.server(1e6, 0.5) == pytest.approx(40 * MIB + 50 * 155.4)


def test_each_minibatch_under_way_takes_memory_of_its_worker() -> None:
    assert COSTS.worker(2) - COSTS.worker(1) == COSTS.minibatch_bytes
