from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dlrover_lite.tui.text import Span, clean, cut, for_terminal, length, line, padded, plain, side_by_side

SPANS = st.lists(
    st.builds(Span, st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "Zs")), max_size=12)), max_size=5
)


@given(SPANS, st.integers(1, 60), st.booleans())
def test_padded_lines_have_their_width(spans: list[Span], width: int, right: bool) -> None:
    assert length(padded(spans, width, right=right)) == width


@given(st.text(max_size=20), st.integers(0, 30))
def test_cut_text_is_never_too_wide(text: str, width: int) -> None:
    assert length([Span(cut(text, width))]) <= max(0, width)


def test_cut_text_is_marked_by_an_ellipsis() -> None:
    assert plain(padded(line("one ", ("two", "bad"), " three"), 8)) == "one two…"
    assert plain(padded(line("one", " two"), 7)) == "one two"
    assert plain(padded(line("one"), 6, right=True)) == "   one"


def test_blocks_beside_each_other_are_as_long_as_the_longest() -> None:
    found = side_by_side([(3, [line("a")]), (2, [line("b"), line("cc")])])
    assert [plain(one) for one in found] == ["a    b ", "     cc"]


def test_text_that_would_move_the_cursor_is_cleaned() -> None:
    assert clean("fine") == "fine"
    assert "\x1b" not in clean("a\x1b[2Jb\rc\nd")
    assert clean("a\nb") == "a\nb"


def test_the_console_of_linux_gets_symbols_that_it_has() -> None:
    drawn = "⠉⣀⣿⠀ ▁▇ │┃ ps-0…"
    assert for_terminal(drawn, "linux") == "▀▄█  ▄█ ││ ps-0~"
    assert for_terminal(drawn, "xterm-256color") == drawn
