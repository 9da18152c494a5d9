"""Which pages are chosen, by what they have taken."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dlrover_lite.ps.memory.page_choice import (
    AGAIN,
    SKIPPED,
    SKIPPED_MOST,
    WORTH,
    WORTH_AT_ONCE,
    PageChoice,
)

costs = st.floats(0.01, 10.0)


def chosen(choice: PageChoice, times: int, huge_cost: float, small_cost: float, *, at_once: bool = False) -> list[bool]:
    found = []
    for _ in range(times):
        found.append(choice.huge(at_once=at_once))
        choice.took(1, huge_cost if found[-1] else small_cost, huge=found[-1])
    return found


@given(costs, costs, costs, costs, st.booleans())
def test_what_is_cheaper_now_is_chosen_but_for_a_try_now_and_then(
    then: float, other: float, huge: float, small: float, at_once: bool
) -> None:
    choice, worth = PageChoice(), WORTH_AT_ONCE if at_once else WORTH
    chosen(choice, 200, then, other)
    chosen(choice, 100 * AGAIN, huge, small, at_once=at_once)  # it finds out
    found = chosen(choice, 10 * (AGAIN + 1), huge, small, at_once=at_once)
    if abs(huge - worth * small) > 1e-6 * huge:
        better = huge < worth * small
        assert found.count(not better) == 10


def test_the_first_choices_are_one_of_each_kind() -> None:
    assert chosen(PageChoice(), 2, 1.0, 1.0) == [True, False]


@given(st.lists(st.booleans(), max_size=60))
def test_huge_pages_that_cannot_be_had_are_tried_less_often(had: list[bool]) -> None:
    choice, due = PageChoice(), SKIPPED
    for one in had:
        skipped = 0
        while not choice.huge():
            choice.took(1, 1.0, huge=False)
            skipped += 1
            assert skipped <= SKIPPED_MOST + 1 + AGAIN
        if one:
            choice.took(1, 0.1, huge=True)
            due = SKIPPED
        else:
            choice.failed(for_good=False)
            assert not any(choice.huge() for _ in range(due))
            due = min(SKIPPED_MOST, 2 * due)


def test_huge_pages_that_there_are_none_of_are_not_tried_again() -> None:
    choice = PageChoice()
    assert choice.huge()
    choice.failed(for_good=True)
    assert not any(choice.huge() for _ in range(3000))
