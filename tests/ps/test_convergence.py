"""When a batch is frozen, and what is asked for when its rows change faster than they are copied."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlrover_lite.ps.migration.convergence import FREEZE_SECONDS, MOST_FREEZE_SECONDS, Asked, Convergence

MIB = 1 << 20
RATE = 200 * MIB
"""Bytes/s at which chunks are copied."""


def at(rate: float = RATE) -> Convergence:
    found = Convergence()
    for _ in range(50):
        found.took(2 * MIB, 2 * MIB / rate)
    return found


def test_a_batch_is_frozen_when_what_is_left_takes_ten_milliseconds() -> None:
    found = at()
    assert found.few_bytes == pytest.approx(FREEZE_SECONDS * RATE)
    found.look(1, 2, 9 * MIB)
    found.look(1, 3, 3 * MIB)
    assert found.asked == Asked(1)
    found.look(1, 4, MIB)
    assert found.asked == Asked(1, freeze=True)
    found.done()
    found.look(2, 1, 3 * MIB)
    assert found.asked == Asked(2)


def test_a_fast_source_is_frozen_with_at_most_four_mebibytes_left() -> None:
    assert at(8000 * MIB).few_bytes == 4 * MIB


def test_a_batch_that_does_not_shrink_is_frozen_only_if_small() -> None:
    found = at()
    for number in (2, 3):
        found.look(1, number, 7 * MIB)
    assert found.asked == Asked(1, freeze=True)
    found = at()
    for number in (2, 3):
        found.look(1, number, 9 * MIB)
    assert found.asked == Asked(1, slowed=0.25)


def test_pushes_are_slowed_ever_more_then_the_batch_is_split() -> None:
    found = at()
    asked = []
    for number in range(2, 10):
        found.look(1, number, 30 * MIB)
        asked.append(found.asked)
    assert asked[1:4] == [Asked(1, slowed=0.25), Asked(1, slowed=0.5), Asked(1, slowed=0.5, split=True)]
    assert asked[4:6] == [Asked(1, slowed=0.75, split=True), Asked(1, slowed=0.9, split=True)]  # it couldn't be
    assert asked[-1] == asked[-2] and not asked[-1].freeze
    found = at()
    for number in range(2, 6):
        found.look(1, number, 30 * MIB)
    found.look(2, 6, 15 * MIB)  # a half
    found.look(2, 7, 15 * MIB)
    assert found.asked == Asked(2, slowed=0.5)
    found.look(2, 8, 15 * MIB)
    assert found.asked == Asked(2, slowed=0.5, split=True)
    found.done()
    assert found.asked == Asked()


def test_rounds_that_get_shorter_too_slowly_are_pressed_in_the_end() -> None:
    found, left = at(), 600.0 * MIB
    for number in range(2, 16):
        left *= 0.79
        found.look(1, number, int(left))
    assert found.asked.slowed == 0.25


@settings(max_examples=200, deadline=None)
@given(
    st.floats(10, 2000),
    st.floats(0.01, 5.0),
    st.integers(1, 64),
    st.floats(0.5, 80),
    st.floats(0.0, 0.3),
)
def test_no_load_brings_about_a_long_freeze(
    rate_mib: float, changes: float, slots: int, batch_mib: float, noise: float
) -> None:
    """Rows change at ``changes`` times the speed of copying, at most all rows there are. The clock is that of what is copied."""
    rate, size = rate_mib * MIB, batch_mib * MIB
    found, number, batch = at(rate), 2, 1
    left = min(size, changes * size)
    for step in range(500):
        found.look(batch, number, int(left))
        asked = found.asked
        if asked.freeze:
            break
        if asked.split and slots > 1 and asked.batch == batch:
            slots, size, left, batch = slots // 2, size / 2, left / 2, batch + 1
        share = asked.slowed if asked.batch in (batch, batch - 1) else 0.0
        left = min(size, (1 - share) * changes * (1 + noise * (-1) ** step) * left + 1000)
        number += 1
    if found.asked.freeze:
        assert left / rate <= max(MOST_FREEZE_SECONDS, (1 << 16) / rate) * 1.01
    else:
        assert slots == 1 and found.asked.slowed == 0.9
        assert changes * 0.1 * (1 + noise) > 0.79 or 0.1 * changes * left + 1000 > FREEZE_SECONDS * rate
