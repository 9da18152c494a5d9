"""Arrays that cost memory where they are touched."""

from __future__ import annotations

import numpy as np
import psutil
import pytest

from dlrover_lite.core.units import MIB
from dlrover_lite.ps.memory.scratch import Scratch


@pytest.mark.parametrize("length", [0, 1, 100_000])
def test_scratch_holds_zeros_at_first_and_after_giving_memory_back(length: int) -> None:
    scratch = Scratch(length, np.uint64)
    assert scratch.array.shape == (length,) and not scratch.array.any()
    scratch.array[:] = 7
    assert (scratch.array == 7).all()
    scratch.give_back()
    assert not scratch.array.any()


def test_scratch_takes_memory_only_for_touched_pages() -> None:
    """With huge pages, this many places would take all of it."""
    process, length = psutil.Process(), 256 * MIB
    scratch = Scratch(length, np.uint8)
    before = process.memory_info().rss
    scratch.array[:: 2 * MIB] = 1
    assert process.memory_info().rss - before < 32 * MIB


def test_a_scratch_array_outlives_its_scratch() -> None:
    array = Scratch(1000, np.uint32).array
    array[:] = np.arange(1000)
    assert array.sum() == 499_500
