from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlrover_lite.tui.text import folded, length, line, plain
from dlrover_lite.tui.text_view import TextView

TEXTS = st.lists(st.text("ab 日é│\u0301", max_size=30).map(lambda text: text.rstrip(" ")), max_size=12)


def view_of(*texts: str, width: int = 10, wraps: bool = False) -> TextView:
    view = TextView([line(text) for text in texts])
    view.arrange(width, wraps=wraps)
    return view


@given(TEXTS, st.integers(2, 9), st.booleans())
def test_rows_are_as_wide_as_asked_and_lose_nothing_when_they_wrap(texts: list[str], width: int, wraps: bool) -> None:
    view = view_of(*texts, width=width, wraps=wraps)
    view.search("b")
    rows = [view.row(y) for y in range(view.rows)]
    assert all(length(row) == width for row in rows)
    for y, row in enumerate(rows):
        whole = texts[view.line_at(y)]
        if not wraps and plain(row).rstrip() != whole.rstrip():
            assert "…" in plain(row)
    if wraps:
        assert "".join(plain(one) for text in texts for one in folded(line(text), width)) == "".join(texts)
        assert view.rows == sum(len(folded(line(text), width)) for text in texts)
        assert [view.line_at(view.first_row(at)) for at in range(len(texts))] == list(range(len(texts)))


@given(TEXTS, st.integers(0, 30), st.booleans(), st.booleans())
def test_next_goes_over_all_lines_that_were_found_and_begins_again(
    texts: list[str], y: int, wraps: bool, only: bool
) -> None:
    view = view_of(*texts, width=4, wraps=wraps)
    view.search("A b")
    view.show_only(only)
    y = min(y, max(0, view.rows - 1))
    with_text = [text for text in texts if "a b" in text]
    if not with_text:
        assert view.next(y, 1) is view.next(y, -1) is view.first_from(y) is None
        return
    rows = [view.next(y, 1) for _ in with_text]
    assert sorted(rows) == sorted(set(rows))  # type: ignore[type-var]
    assert [plain(view.shown[view.line_at(row)]) for row in sorted(rows)] == with_text  # type: ignore[type-var,arg-type]
    assert view.next(y, 1) == rows[0]
    assert view.next(y, -1) == rows[-1]


def test_the_first_line_found_is_that_below_where_the_search_began() -> None:
    view = view_of("one", "two", "one", "two")
    view.search("two")
    assert (view.first_from(2), view.at) == (3, 1)
    assert view.next(0, -1) == 1
    view.search("one")
    assert view.first_from(3) == 0  # from the beginning again


@pytest.mark.parametrize("only", [False, True])
def test_lines_that_go_take_nothing_from_where_one_was(only: bool) -> None:
    view = view_of("x0", "a long line", "x1", "x2", wraps=True)
    view.search("x")
    view.show_only(only)
    view.first_from(0)
    view.next(0, 1)
    assert view.put([line("x1"), line("x2"), line("x3")], gone=2) == (0 if only else 3)
    assert view.at is not None
    assert plain(view.shown[view.found[view.at]]) == "x1"


def test_what_was_found_is_marked_without_colours() -> None:
    view = view_of("ab AB", "ab")
    view.search("b")
    view.first_from(0)
    tones = [[(span.text, span.tone) for span in view.row(y) if span.tone != "plain"] for y in range(2)]
    assert tones == [[("b", "here"), ("B", "here")], [("b", "found")]]
