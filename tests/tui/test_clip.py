"""A part of a recording as a film."""

from __future__ import annotations

import json
import re
from xml.etree import ElementTree

import pytest

from dlrover_lite.tui.recordings.clip import Clip, film, runs
from dlrover_lite.tui.recordings.clip_files import cast, page, picture
from dlrover_lite.tui.recordings.recorded import RecordedSource, Recording
from dlrover_lite.tui.text import length, plain
from tests.tui.fixed import ADS, NOW

SIZE = 80, 20


@pytest.fixture(scope="module")
def clip(recording: Recording) -> Clip:
    return film(RecordedSource(recording), ADS.id, start=NOW + 10, stop=NOW + 50, speed=10.0, size=SIZE)


def _screen(clip: Clip, seconds: float) -> list[str]:
    """What is shown then, by the frames."""
    lines = [lines for at, lines in clip.frames if at <= seconds][-1]
    return [plain(one) for one in lines]


def test_a_clip_shows_a_job_from_a_time_to_another(clip: Clip) -> None:
    assert (clip.frames[0][0], clip.seconds) == (0.0, 4.0 + 2.0)
    assert all(len(lines) == 20 and {length(one) for one in lines} == {80} for _, lines in clip.frames)
    assert "▸ plays  10x   0:00 of 0:40" in _screen(clip, 0.0)[-1]
    assert "0:30 of 0:40" in _screen(clip, 3.0)[-1]
    assert "0:40 of 0:40" in _screen(clip, 6.0)[-1]
    assert "decided" in "".join(_screen(clip, 6.0))


def test_without_a_speed_a_clip_takes_half_a_minute_and_is_never_slower_than_it_was(recording: Recording) -> None:
    source = RecordedSource(recording)
    whole = film(source, None, start=NOW, stop=NOW + 60, speed=None, size=(60, 12))
    assert whole.seconds == 32.0
    assert "cores given, by job" in "\n".join(_screen(whole, 5.0))
    assert film(source, None, start=NOW, stop=NOW + 6, speed=None, size=(60, 12)).seconds == 8.0
    assert [at for at, _ in film(source, None, start=NOW, stop=NOW, speed=None, size=(60, 12)).frames] == [0.0]


def test_runs_have_each_line_once_and_all_of_each_frame(clip: Clip) -> None:
    found = runs(clip)
    assert len(found) < 0.7 * len(clip.frames) * 20
    for at, lines in clip.frames:
        there = {run.row: run.line for run in found if run.start <= at < run.stop}
        assert [there[row] for row in range(20)] == list(lines)


def test_a_cast_draws_each_frame_over_the_one_before(clip: Clip) -> None:
    head, *events = [json.loads(text) for text in cast(clip).splitlines()]
    assert (head["version"], head["width"], head["height"]) == (2, *SIZE)
    shown = [" " * 80] * 20
    for at, kind, data in events:
        assert kind == "o"
        for row, text in re.findall(r"\x1b\[(\d+);1H(.*?)(?=\x1b\[\d+;1H|\Z)", data):
            shown[int(row) - 1] = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", text)
        assert shown == _screen(clip, at)
    assert events[-1][0] == clip.seconds


def test_a_picture_is_sound_xml_and_shows_its_last_frame_where_nothing_moves(clip: Clip) -> None:
    root = ElementTree.fromstring(picture(clip))
    lines = [one for one in root if one.tag.endswith("text") and one.get("display") != "none"]
    last = [text for text in _screen(clip, 6.0) if text.strip()]
    seen = ["".join(one.itertext()).replace(" ", "") for one in sorted(lines, key=lambda one: float(one.get("y", "0")))]
    assert seen == [text.replace(" ", "") for text in last]
    hidden = [one for one in root if one.tag.endswith("text") and one.get("display") == "none"]
    assert hidden
    assert all(one[0].get("begin", "").startswith("clip.begin+") for one in hidden)


def test_a_page_needs_nothing_else_and_says_all_lines(clip: Clip) -> None:
    text = page(clip)
    assert "@" not in re.sub(r"const lines = .*", "", text)
    assert not re.search(r"(src|href)=", text)
    data = re.search(r"const lines = (\[.*\]), rows", text)
    assert data is not None
    assert len(json.loads(data[1])) == len(runs(clip))


def test_text_of_a_recording_is_no_markup(recording: Recording) -> None:
    clip = Clip("<b>", 60, 1, ((0.0, (((" </script><b> & ", "bad"),),)),), 2.0)  # type: ignore[arg-type]
    assert "</script><b>" not in picture(clip) + page(clip).replace("</script>\n", "")
    ElementTree.fromstring(picture(clip))
