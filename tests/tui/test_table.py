from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlrover_lite.tui.model import JobRow
from dlrover_lite.tui.pages.job_page import nodes_table
from dlrover_lite.tui.pages.jobs_page import jobs_table
from dlrover_lite.tui.table import Column, Order, Table, place, text_of
from dlrover_lite.tui.text import length, line, plain
from tests.tui.fixed import ADS, BROKEN, DETAIL, FEED, OLD, VIEW


class Row(msgspec.Struct, frozen=True):
    name: str
    size: int | None = None


def _table() -> Table[Row]:
    return Table(
        (
            Column("name", "NAME", lambda row, _: line(row.name), lambda row: row.name, least=4, wanted=6),
            Column(
                "size",
                "SIZE",
                lambda row, _: line(str(row.size)),
                lambda row: row.size,
                wanted=8,
                rank=1,
                right=True,
                down=True,
            ),
            Column("more", "MORE", lambda row, width: line("m" * width), None, least=4, wanted=4, most=10, rank=2),
        ),
        lambda row: row.name,
    )


def _put(table: Table[Row], *rows: Row) -> set[str] | None:
    return table.put({row.name: row for row in rows})


def test_columns_are_dropped_by_their_rank() -> None:
    columns = _table().columns
    names = {width: [columns[one.at].name for one in place(columns, width)] for width in (80, 20, 14, 10, 3)}
    assert names == {
        80: ["name", "size", "more"],
        20: ["name", "size", "more"],
        14: ["name", "size"],
        10: ["name"],
        3: ["name"],
    }


@given(st.integers(40, 300))
def test_placed_columns_fit_and_grow(width: int) -> None:
    for table in (jobs_table(), nodes_table()):
        placed = place(table.columns, width)
        assert placed[-1].x + placed[-1].width <= width
        assert all(table.columns[one.at].least <= one.width for one in placed)


@pytest.mark.parametrize("width", [80, 120, 200])
def test_lines_of_tables_are_as_wide_as_the_screen(width: int) -> None:
    jobs, nodes = jobs_table(), nodes_table()
    jobs.put(VIEW.jobs)
    nodes.put({row.id: row for row in DETAIL.nodes})
    assert {length(one) for table in (jobs, nodes) for one in table.text(width)} == {width}


def test_jobs_table_at_80_columns_has_the_important_columns() -> None:
    table = jobs_table()
    assert [table.columns[one.at].name for one in table.place(80)] == [
        "job",
        "state",
        "progress",
        "ends",
        "rate",
        "trend",
        "nodes",
    ]


def test_only_rows_that_are_other_objects_have_changed() -> None:
    table, one, two = _table(), Row("one", 1), Row("two", 2)
    assert _put(table, one, two) is None
    assert _put(table, one, two) == set()
    assert _put(table, Row("one", 1), two) == {"one"}
    assert _put(table, two) is None


def test_rows_change_places_when_their_sort_value_changes() -> None:
    table = _table()
    table.sort_by("size")
    _put(table, Row("one", 1), Row("two", 2))
    assert table.shown == ["two", "one"]
    assert _put(table, Row("one", 3), Row("two", 2)) is None
    assert table.shown == ["one", "two"]


def test_unknown_values_come_last_in_both_directions() -> None:
    table = _table()
    _put(table, Row("none"), Row("one", 1), Row("two", 2))
    table.sort_by("size")
    assert table.shown == ["two", "one", "none"]
    assert table.sort_by("size") == Order("size", turned=True)
    assert table.shown == ["one", "two", "none"]
    assert table.sort_by("name") == Order("name")


def test_filters_have_words_to_include_and_to_exclude() -> None:
    table = jobs_table()
    table.put(VIEW.jobs)
    table.look_for("ADS")
    assert table.shown == [ADS.id, OLD.id]
    table.look_for("mira !ads")
    assert table.shown == [BROKEN.id]
    table.look_for("!")
    assert table.shown == []
    table.look_for("")
    assert len(table.shown) == 4


def test_a_filter_holds_for_rows_that_come() -> None:
    table = _table()
    table.look_for("on")
    _put(table, Row("one"), Row("two"))
    assert table.shown == ["one"]


def test_the_heading_shows_the_sort_column() -> None:
    table = _table()
    table.sort_by("size")
    placed = place(table.columns, 40)
    assert "SIZE↓" in plain(table.head(placed, 40))
    table.sort_by("size")
    assert "SIZE↑" in plain(table.head(placed, 40))


def test_no_state_is_told_by_colour_alone() -> None:
    table: Table[JobRow] = jobs_table()
    table.put(VIEW.jobs)
    text = text_of(table.text(80))
    assert all(word in text for word in ("… queued", "● training", "✗ failed", "✓ succeeded"))
    assert FEED.id in text


def test_a_column_with_nothing_in_it_is_left_out_until_there_is_something() -> None:
    table = jobs_table()
    table.put({ADS.id: ADS})
    assert "SOURCE" not in text_of(table.text(200))
    there = msgspec.structs.replace(ADS, id="there-1", source="prod/ads")
    assert table.put({ADS.id: ADS, there.id: there}) is None
    lines = text_of(table.text(200)).splitlines()
    assert "SOURCE" in lines[0] and "local" in lines[1] and "prod/ads" in lines[2]
    table.put({ADS.id: ADS})
    assert "SOURCE" not in text_of(table.text(200))
