"""Whether huge pages are asked for, by how many the kernel has."""

from __future__ import annotations

import pytest

from dlrover_lite.ps.memory.free_huge_pages import EVERY, LEAST, FreePages, huge_pages

TEXT = """Node 0, zone      DMA      0      0      0      0      0      0      0      0      1      1      3
Node 0, zone   Normal  27836  11204  35391  42869   1519   1009    450    198    339    830   1019
"""


def test_blocks_of_a_huge_page_and_more_are_counted() -> None:
    assert huge_pages(TEXT) == (1 + 2 * 3) + (830 + 2 * 1019)
    assert huge_pages("Node 0, zone Normal 5 5 5\n") == 0
    with pytest.raises(ValueError, match="no zone"):
        huge_pages("nothing")


def test_a_look_answers_some_questions_and_then_there_is_another() -> None:
    said = [f"Node 0, zone Normal {'0 ' * 9}{count}" for count in (LEAST, LEAST - 1, LEAST)]
    pages = FreePages(lambda: said.pop(0))
    assert [pages.enough() for _ in range(3 * EVERY)] == [True] * EVERY + [False] * EVERY + [True] * EVERY
    assert not said


@pytest.mark.parametrize("text", ["what no kernel says", None])
def test_huge_pages_are_asked_for_where_nothing_is_known_of_them(text: str | None) -> None:
    def read() -> str:
        if text is None:
            raise PermissionError
        return text

    assert FreePages(read).enough()
