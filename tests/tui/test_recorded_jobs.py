"""What docs/tui.md quotes of four real jobs is what the first screen says of them now, ten seconds after a decision at the latest.

``tools/record_jobs.py`` records them anew; then the quotes are to be written anew, too."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from dlrover_lite.tui.pages.last_change import change_of_jobs
from dlrover_lite.tui.recordings.recorded import RecordedSource, read
from dlrover_lite.tui.text import plain
from tests.repository.sources import ROOT

PICTURES = ROOT / "docs" / "pictures"
WIDTH = 118
"""Width of the line of the last change in a terminal of 120 columns."""
WITHIN_SECONDS = 10
QUOTED = re.compile(r"\(pictures/([a-z-]+)\.jsonl\.gz\)[^\n]*\n+```\n(.*?)```", re.DOTALL)


def quotes() -> Iterator[tuple[str, str]]:
    """Yield each recording's name with each line that is quoted of it."""
    for name, text in QUOTED.findall((ROOT / "docs" / "tui.md").read_text("utf-8")):
        for quoted in text.splitlines():
            yield name, quoted


def test_four_jobs_are_quoted() -> None:
    assert {name for name, _ in quotes()} == {"cold", "hot-ps", "memory", "preemption"}


@pytest.mark.parametrize(("name", "quoted"), [*quotes()])
def test_a_quoted_line_is_on_the_first_screen_within_ten_seconds_of_a_change(name: str, quoted: str) -> None:
    source = RecordedSource(read(PICTURES / f"{name}.jsonl.gz"))
    player = source.player
    said = set()
    for at in (mark.at for mark in player.marks):
        for seconds in range(WITHIN_SECONDS + 1):
            player.stand(at + seconds)
            said.add(plain(change_of_jobs(source.jobs().jobs.values(), WIDTH)).rstrip())
    assert quoted in said
