"""IntervalSet against a plain set of numbers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dlrover_lite.core.intervals import IntervalSet

LIMIT = 40
bounds = st.integers(0, LIMIT)
ranges = st.tuples(bounds, bounds)
changes = st.lists(st.tuples(st.sampled_from(["add", "remove"]), ranges), max_size=30)


def numbers(pieces) -> list[int]:
    return [n for start, stop in pieces for n in range(start, stop)]


def build(steps) -> tuple[IntervalSet, set[int]]:
    intervals, model = IntervalSet(), set()
    for what, (start, stop) in steps:
        if what == "add":
            merged = intervals.add(start, stop)
            model |= set(range(start, stop))
            if start < stop:
                assert merged in list(intervals)
                assert merged[0] <= start < stop <= merged[1]
        else:
            intervals.remove(start, stop)
            model -= set(range(start, stop))
        assert intervals.listed() == list(intervals)
    return intervals, model


@given(changes)
def test_intervals_hold_a_set_in_the_fewest_ranges(steps):
    intervals, model = build(steps)
    pieces = list(intervals)
    assert numbers(pieces) == sorted(model)
    assert intervals.total == len(model)
    assert len(intervals) == len(pieces) == sum(n - 1 not in model for n in model)
    assert bool(intervals) == bool(model)
    assert intervals.first() == (pieces[0] if pieces else None)
    assert all((n in intervals) == (n in model) for n in range(-1, LIMIT + 2))


@given(changes, ranges)
def test_ranges_within_and_missing_agree_with_a_set(steps, asked):
    intervals, model = build(steps)
    start, stop = asked
    wanted = set(range(start, stop))
    assert numbers(intervals.within(start, stop)) == sorted(wanted & model)
    assert numbers(intervals.missing(start, stop)) == sorted(wanted - model)


@given(changes, changes)
def test_whole_sets_are_added_subtracted_compared_and_copied(steps, others):
    (left, left_model), (right, right_model) = build(steps), build(others)
    assert (left == right) == (left_model == right_model)
    union, difference = IntervalSet(left), IntervalSet(left)
    union.update(right)
    difference.subtract(right)
    assert numbers(union) == sorted(left_model | right_model)
    assert numbers(difference) == sorted(left_model - right_model)
    assert numbers(left) == sorted(left_model), "a copy is changed without its original"
    assert IntervalSet(left) == left
    left.subtract(left)
    assert not left
    assert left.total == 0
