from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlrover_lite.tui.pages.charts import Mark, Measured, Point, bar, curve, scatter, sparkline, strip
from dlrover_lite.tui.text import Line, length, plain

VALUES = st.lists(st.floats(0, 1e9), max_size=40)


@given(VALUES, st.integers(0, 30))
def test_sparklines_have_their_width(values: list[float], width: int) -> None:
    assert len(sparkline(values, width)) == width


def test_a_sparkline_shows_the_newest_from_zero_to_the_largest() -> None:
    assert sparkline([1000.0, 0.0, 4.0, 8.0], 3) == "▁▄█"
    assert sparkline([5.0], 3) == "  █"
    assert sparkline([0.0, math.nan], 2) == "▁▁"


@given(st.floats(0, 100), st.floats(0, 50), st.integers(3, 40))
def test_bars_have_their_width(used: float, limit: float, width: int) -> None:
    assert length(bar(used, limit, width)) == width


@pytest.mark.parametrize(
    ("used", "text", "tone"), [(0, "    ", "good"), (2, "██  ", "good"), (3.5, "███▌", "warn"), (9, "████", "bad")]
)
def test_a_bar_says_how_full(used: float, text: str, tone: str) -> None:
    drawn = bar(used, 4.0, 6)
    assert (drawn[1].text, drawn[1].tone) == (text, tone)


def test_a_bar_shows_even_the_smallest_use() -> None:
    assert bar(1e-9, 1.0, 6)[1].text.strip()


POINTS = [Measured(float(x), x + 1.0, 100.0 if x < 50 else 200.0) for x in range(99)]


@pytest.mark.parametrize("size", [(20, 4), (80, 8), (200, 20)])
def test_curves_have_their_size(size: tuple[int, int]) -> None:
    found = curve(POINTS, *size, ends=("12:00", "12:10"))
    assert len(found) == size[1]
    assert all(length(one) == size[0] for one in found[:-1])
    assert plain(found[-1]).split() == ["12:00", "12:10"]


def test_a_curve_goes_from_zero_to_its_top() -> None:
    found = [plain(one) for one in curve(POINTS, 48, 7)]
    assert found[0].startswith("    200┤")
    assert found[4].startswith("      0┤")
    left, right = found[0][8:28], found[0][28:]
    assert not left.strip()
    assert len(right.strip()) >= 19  # the second half is at the top


def test_marks_are_drawn_at_their_times() -> None:
    axis = plain(curve(POINTS, 48, 7, marks=[Mark(0, "S"), Mark(50, "▲"), Mark(99, "E"), Mark(500, "X")])[-2])
    assert axis[8] == "S"
    assert abs(axis.index("▲") - 28) <= 1
    assert axis[-1] == "E"
    assert "X" not in axis


def _dots(lines: list[Line]) -> str:
    """Where there is a dot in each column of characters, beside the labels."""
    rows = [plain(one).ljust(48)[8:] for one in lines[:-2]]
    return "".join("#" if any(row[x] != " " for row in rows) else "." for x in range(40))


@pytest.mark.parametrize(
    ("intervals", "dots"),
    [
        ([Measured(0.0, 40.0, 1.0)], "#" * 40),
        ([Measured(10.0, 20.0, 1.0)], "." * 10 + "#" * 10 + "." * 20),
        ([Measured(0.0, 10.0, 1.0), Measured(30.0, 40.0, 1.0)], "#" * 10 + "." * 20 + "#" * 10),
        ([Measured(20.0, 20.0, 1.0)], "." * 20 + "#" + "." * 19),
        ([Measured(40.0, 40.0, 1.0)], "." * 39 + "#"),
        ([Measured(-9.0, 0.0, 1.0)], "." * 40),
        ([Measured(-90.0, 4.0, 1.0), Measured(38.0, 99.0, 1.0)], "#" * 4 + "." * 34 + "##"),
    ],
)
def test_a_curve_is_drawn_only_where_something_was_measured(intervals: list[Measured], dots: str) -> None:
    assert _dots(curve(intervals, 48, 7, span=(0.0, 40.0))) == dots


def test_a_value_holds_from_the_beginning_of_its_interval() -> None:
    """A change at 20 is seen at 20, where the mark of its cause is."""
    found = curve(
        [Measured(0.0, 20.0, 1.0), Measured(20.0, 40.0, 8.0)], 48, 7, marks=[Mark(20.0, "▲")], span=(0.0, 40.0)
    )
    top = plain(found[0])
    assert plain(found[-2]).index("▲") == len(top) - len(top[8:].lstrip()) == 28


def test_values_sharing_a_column_count_by_their_length() -> None:
    def at_the_left(low_from: float) -> int:
        """Height of a column in which a high value is followed by a low one, then by a gap."""
        shared = [Measured(0.0, low_from, 8.0), Measured(low_from, 10.0, 0.0), Measured(40.0, 800.0, 8.0)]
        return _first_height(curve(shared, 48, 10))

    assert at_the_left(1.0) < at_the_left(5.0) < at_the_left(9.0)


def _first_height(lines: list[Line]) -> int:
    """Lines above the lowest that have a dot in the first column."""
    return max(len(lines) - 3 - at for at, one in enumerate(lines[:-2]) if plain(one)[8] not in " ")


@given(
    st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0, 1e12)), max_size=30),
    st.integers(1, 120),
    st.integers(1, 30),
)
def test_a_curve_of_any_intervals_fits_its_size(
    points: list[tuple[float, float, float]], width: int, height: int
) -> None:
    found = curve(sorted(Measured(at, at + length, value) for at, length, value in points), width, height)
    assert len(found) in (0, height)
    assert all(length(one) == width for one in found[:-1])


def test_too_small_a_size_gives_no_curve() -> None:
    assert curve(POINTS, 10, 10) == []
    assert curve(POINTS, 40, 2) == []


def test_a_strip_shows_the_hottest_value_of_each_part() -> None:
    drawn = strip([0.0, 0.0, 1.0, 0.2, 0.01, 0.0], 3, top=1.0)
    assert plain(drawn) == "·█░"
    assert [span.tone for span in drawn] == ["dim", "bad", "good"]
    assert plain(strip([], 5)) == ""


@given(st.lists(st.floats(0, 1), min_size=1, max_size=300), st.integers(1, 128))
def test_strips_fit_their_width(values: list[float], width: int) -> None:
    assert length(strip(values, width)) == min(width, len(values))


def test_a_scatter_shows_the_last_of_points_in_the_same_place() -> None:
    found = [
        plain(one)
        for one in scatter([Point(0, 0, "a"), Point(10, 80, "b"), Point(10, 80, "c"), Point(5, 0, "d")], 30, 8)
    ]
    assert len(found) == 8
    assert found[0].startswith("     80┤")
    assert found[0].endswith("c")
    assert not any("b" in one for one in found)
    assert found[5][8] == "a"
    assert abs(found[5].index("d") - 18) <= 1
    assert found[-1].split() == ["0", "10"]


def test_names_of_points_hide_no_point_and_go_to_the_left_where_there_is_no_room() -> None:
    points = [Point(0, 50, "a", name="first"), Point(3, 50, "b"), Point(10, 100, "c", name="last")]
    top, *_, middle, _, _, _ = [plain(one)[8:] for one in scatter(points, 40, 8)]
    assert top.endswith("last c")
    assert "first" not in "".join(middle)  # b is in its way, and there is no room at its left


@given(
    st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 1e12), st.sampled_from(["", "its name"])), max_size=30),
    st.integers(1, 120),
    st.integers(1, 30),
    st.one_of(st.none(), st.floats(1e-6, 1e6)),
)
def test_a_scatter_of_any_points_fits_its_size(
    points: list[tuple[float, float, str]], width: int, height: int, at: float | None
) -> None:
    rule = None if at is None else (at, "there")
    found = scatter([Point(x, y, "x", name=name) for x, y, name in points], width, height, rule=rule)
    assert len(found) in (0, height)
    assert all(length(one) == width for one in found[:-1])
