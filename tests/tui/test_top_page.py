"""One job in a few lines."""

from __future__ import annotations

import msgspec
import pytest

from dlrover_lite.cli.screen import coloured
from dlrover_lite.tui.model import JobDetail, NodeRow
from dlrover_lite.tui.pages.top_page import screenful
from dlrover_lite.tui.text import Line, length, line, plain
from tests.tui.fixed import ADS, DETAIL, FEED, NOW

LAST = line("q leaves")


def _text(lines: list[Line]) -> str:
    return "\n".join(plain(one).rstrip() for one in lines)


def test_top_in_60_by_12_shows_the_important_parts() -> None:
    text = _text(screenful(DETAIL, 60, 12, NOW, last=LAST))
    for part in (
        ADS.id,
        "42%",
        "samples/s",
        "8,223 done",
        "saved",
        "decided",
        "◆",
        "ps-0",
        "worker-3",
        "q leaves",
    ):
        assert part in text, part


def test_top_with_more_room_shows_the_curve_and_more_decisions() -> None:
    text = _text(screenful(DETAIL, 100, 40, NOW, last=LAST))
    assert "foreseen 54.6 k" in text
    assert "slots" in text
    assert text.count("/s foreseen") == 3


@pytest.mark.parametrize("size", [(60, 12), (20, 4), (80, 24), (120, 60), (30, 1)])
@pytest.mark.parametrize("detail", [DETAIL, JobDetail(row=FEED)], ids=["known", "new"])
def test_top_fits_any_size(size: tuple[int, int], detail: JobDetail) -> None:
    width, height = size
    found = screenful(detail, width, height, NOW, last=LAST)
    assert len(found) <= max(height, 3)
    assert all(length(one) == width for one in found)


def test_top_says_how_many_more_nodes_there_are() -> None:
    nodes = tuple(NodeRow(id=f"worker-{i}", role="worker", state="up", cores=1.0, memory=1) for i in range(30))
    text = _text(screenful(msgspec.structs.replace(DETAIL, nodes=nodes), 60, 12, NOW, last=LAST))
    assert "worker-0" in text
    assert "and 27 nodes more" in text


def test_top_shows_staleness_below_the_headline() -> None:
    text = _text(screenful(DETAIL, 60, 12, NOW, stale=line("! old"), last=LAST))
    assert text.splitlines()[2] == "! old"


def test_tones_are_colours_unless_no_color_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    one = line("a ", ("b", "bad"), "\x1b[2J")
    assert coloured(one) == "a \x1b[1;31mb\x1b[0m [2J"
    monkeypatch.setenv("NO_COLOR", "1")
    assert coloured(one) == "a b [2J"
