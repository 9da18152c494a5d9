"""What the curve of a job tells of its decisions."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlrover_lite.tui.model import JobDetail
from dlrover_lite.tui.pages.charts import Measured
from dlrover_lite.tui.pages.throughput_chart import acting, chart, effect, nearest, step
from dlrover_lite.tui.table import text_of
from dlrover_lite.tui.text import length, plain
from tests.tui.fixed import ADS, DETAIL, NOW

NUMBERS = [1, 2, 3, 4]
STAYS = msgspec.structs.replace(DETAIL.decisions[2], number=5, at=NOW - 10, action="stay")


def test_means_are_of_the_intervals_between_two_decisions() -> None:
    decisions = [msgspec.structs.replace(one, measured=None) for one in DETAIL.decisions]
    begun = decisions[1].at
    measured = [
        Measured(begun - 40, begun - 10, 100.0),
        Measured(begun - 10, begun, 500.0),
        Measured(begun - 5, begun + 5, 9000.0),  # of neither
        Measured(begun + 5, begun + 15, 700.0),
        Measured(decisions[2].at, decisions[2].at + 10, 8000.0),
    ]
    found = effect(decisions, 1, measured, NOW)
    assert found.before == Measured(decisions[0].at, begun, 200.0)
    assert found.after == Measured(begun, decisions[2].at, 700.0)
    assert found.foreseen is not None
    assert (found.foreseen.lower, found.foreseen.upper, found.foreseen.stop) == (41_102.0, 72_626.0, decisions[2].at)


def test_a_decision_just_after_another_has_the_last_interval_before_it() -> None:
    found = effect(DETAIL.decisions[1:], 1, [Measured(NOW - 700, NOW - 590, 100.0)], NOW)
    assert found.before == Measured(NOW - 700, NOW - 590, 100.0)
    assert found.after is None


@pytest.mark.parametrize(
    ("width", "foreseen"), [(60, ""), (66, ", foreseen 54.6 k"), (90, ", foreseen 54.6 k (41.1 k to 72.6 k)")]
)
def test_what_was_judged_by_is_told_rather_than_the_mean(width: int, foreseen: str) -> None:
    told = text_of(chart(DETAIL, width, 12, 2)[:1]).strip()
    assert told == f"samples/s  ▲ 2 13:50: 12.0 k → 30.1 k/s (-31%){foreseen}"


def test_the_newest_whose_effect_is_known_is_told_until_another_is_chosen() -> None:
    assert "▲ 2 13:50" in plain(chart(DETAIL, 80, 12)[0])
    assert "◆ 4 13:58: 52.1 k → 51.8 k/s" in plain(chart(DETAIL, 80, 12, 4)[0])
    assert "▲ 2 13:50" in plain(chart(DETAIL, 80, 12, 77)[0])  # none of that number


@pytest.mark.parametrize(("chosen", "steps", "then"), [(None, 1, 2), (2, 1, 3), (4, 1, 4), (2, -1, 1), (1, -1, 1)])
def test_steps_go_over_the_decisions_that_changed_something(chosen: int | None, steps: int, then: int) -> None:
    detail = msgspec.structs.replace(DETAIL, decisions=(*DETAIL.decisions, STAYS))
    assert [one.number for one in acting(detail)] == NUMBERS
    assert step(detail, chosen, steps) == then


def test_nothing_decided_leaves_nothing_to_choose() -> None:
    assert step(JobDetail(row=ADS), None, 1) is None


def test_each_decision_is_the_nearest_to_its_line() -> None:
    axis = plain(chart(DETAIL, 80, 14)[-2])
    found = [nearest(DETAIL, 80, at) for at, symbol in enumerate(axis) if symbol in "●▲◆"]
    assert found == NUMBERS
    assert (nearest(DETAIL, 80, 0), nearest(DETAIL, 80, 200)) == (1, 4)
    assert nearest(JobDetail(row=ADS), 80, 9) is None


def test_the_chosen_decision_stands_out_without_colours() -> None:
    lines = [plain(one) for one in chart(DETAIL, 80, 14, 3)]
    column = lines[-2].index("▲", lines[-2].index("▲") + 1)
    assert lines[1][column] == "┃"
    assert "░" in lines[2]
    others = [at for at, symbol in enumerate(lines[-2]) if symbol in "●▲◆" and at != column]
    assert [lines[1][at] for at in others] == ["╎"] * 3


@given(st.integers(1, 200), st.integers(1, 40), st.sampled_from([None, 1, 2, 3, 4, 9]))
def test_the_chart_fits_any_size(width: int, height: int, chosen: int | None) -> None:
    lines = chart(DETAIL, width, height, chosen)
    assert len(lines) in (1, height)
    assert all(length(one) <= max(width, 21) for one in lines)
