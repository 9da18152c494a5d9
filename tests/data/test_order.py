from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlrover_lite.data.order import EpochOrder, minibatch_count

sizes = st.integers(1, 700)
blocks = st.integers(1, 100)


@settings(deadline=None)
@given(samples=sizes, block_size=blocks, seed=st.integers(0, 2**70), epoch=st.integers(0, 50))
def test_order_is_a_permutation_of_all_samples(samples: int, block_size: int, seed: int, epoch: int) -> None:
    numbers = EpochOrder(samples, seed, epoch, block_size=block_size).numbers(0, samples)
    assert numbers.dtype == np.int64
    assert np.array_equal(np.sort(numbers), np.arange(samples))


@settings(deadline=None)
@given(samples=sizes, block_size=blocks, data=st.data())
def test_parts_of_the_order_agree_with_the_whole(samples: int, block_size: int, data: st.DataObject) -> None:
    whole = EpochOrder(samples, 1, 2, block_size=block_size).numbers(0, samples)
    order = EpochOrder(samples, 1, 2, block_size=block_size)
    for _ in range(5):
        start = data.draw(st.integers(0, samples))
        stop = data.draw(st.integers(start, samples))
        assert np.array_equal(order.numbers(start, stop), whole[start:stop])


def test_samples_of_a_block_stay_together() -> None:
    numbers = EpochOrder(1000, 3, 0, block_size=64).numbers(0, 1000)
    changes = np.count_nonzero(np.diff(numbers // 64))
    assert changes == minibatch_count(1000, 64) - 1
    assert np.count_nonzero(np.diff(numbers) == 1) < 50


def test_order_depends_on_seed_and_epoch_and_is_repeatable() -> None:
    orders = [EpochOrder(500, seed, epoch, block_size=32).numbers(0, 500) for seed, epoch in [(0, 0), (0, 1), (1, 0)]]
    assert not np.array_equal(orders[0], orders[1])
    assert not np.array_equal(orders[0], orders[2])
    assert np.array_equal(orders[0], EpochOrder(500, 0, 0, block_size=32).numbers(0, 500))


def test_order_is_fixed_for_all_time() -> None:
    """Workers of different versions, and a job that is resumed, must agree on it."""
    assert EpochOrder(10, 0, 0, block_size=4).numbers(0, 10).tolist() == [8, 9, 6, 4, 7, 5, 0, 1, 2, 3]


def test_without_shuffling_the_order_is_that_of_the_files() -> None:
    assert EpochOrder(10, 5, 1, shuffle=False).numbers(3, 7).tolist() == [3, 4, 5, 6]


@pytest.mark.parametrize(("start", "stop"), [(-1, 3), (0, 11), (5, 4)])
def test_positions_outside_the_epoch_are_refused(start: int, stop: int) -> None:
    with pytest.raises(ValueError, match="not within"):
        EpochOrder(10, 0, 0).numbers(start, stop)


def test_minibatches_are_counted_rounding_up() -> None:
    assert [minibatch_count(samples, 4) for samples in (0, 1, 4, 5)] == [0, 1, 1, 2]


def test_order_of_an_epoch_without_samples_is_empty() -> None:
    assert EpochOrder(0, 0, 0).numbers(0, 0).tolist() == []
