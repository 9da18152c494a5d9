"""Notices: one line that covers nothing, on every screen; errors stay until they are dismissed, and nothing is forgotten unsaid."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual.pilot import Pilot

from dlrover_lite.tui.pages.notices_page import KEPT, Notice, Notices, notice_line, notices_lines
from dlrover_lite.tui.screens.confirm import Confirm
from dlrover_lite.tui.screens.form import Form
from dlrover_lite.tui.screens.palette import Palette
from dlrover_lite.tui.text import Line, length, plain
from dlrover_lite.tui.widgets.notice_line import NoticeLine
from tests.tui.driving import drive, opened, screen_text, settled, shown, taken, the_app, told, type_at_once, write
from tests.tui.fixed import ADS, NOW

SEVERITIES = st.sampled_from(["information", "warning", "error"])
NOTICES = st.builds(Notice, st.sampled_from("abcdefgh"), SEVERITIES, st.just(NOW))


def _texts(notices: Notices) -> list[str]:
    return [one.text for one in notices.shown]


def _line(shown: list[Notice], width: int = 80) -> Line:
    return notice_line(shown, width)


@given(st.lists(st.tuples(NOTICES, st.floats(1.0, 30.0))), st.lists(st.floats(0.0, 40.0), max_size=5))
def test_errors_stay_until_dismissed_and_all_else_for_its_time(told: list[Any], waits: list[float]) -> None:
    notices, now, due = Notices(), 0.0, dict[str, float]()
    for one, seconds in told:
        notices.add(one, now=now, seconds=seconds)
        due.pop(f"{one.severity} {one.text}", None)
        due[f"{one.severity} {one.text}"] = now + seconds
    for wait in waits:
        now += wait
        notices.expire(now)
        stay = [name for name, until in due.items() if name.startswith("error") or now < until]
        assert [f"{one.severity} {one.text}" for one in notices.shown] == stay
    for _ in range(len(notices.shown)):
        before = _texts(notices)
        notices.dismiss()
        assert _texts(notices) == before[:-1]
    notices.dismiss()
    assert sum(one.times for one in notices.past) == len(told)
    assert not notices.forgotten


def test_past_notices_are_listed_in_full_and_those_that_are_gone_are_counted() -> None:
    notices = Notices()
    for number in range(KEPT + 7):
        notices.add(Notice(f"notice {number} " + "word " * 30, "warning", NOW), now=0.0, seconds=1.0)
    notices.add(Notice("first\nsecond", "error", NOW), now=0.0, seconds=1.0)
    text = [plain(one) for one in notices_lines(notices, 60)]
    assert text[:3] == ["14:00:00  ✗ error", "  first", "  second"]
    assert f"  notice {KEPT + 6} word word" in "\n".join(text)
    assert sum(one.count("word") for one in text) == 30 * (KEPT - 1)
    assert text[-1] == "8 earlier ones aren't kept any more"


def test_errors_that_stand_are_forgotten_last() -> None:
    notices = Notices()
    notices.add(Notice("it failed", "error", NOW), now=0.0, seconds=1.0)
    for number in range(KEPT + 7):
        notices.add(Notice(f"notice {number}", "warning", NOW), now=float(number), seconds=1.0)
        notices.expire(float(number))
    assert _texts(notices)[0] == "it failed"


def test_the_line_says_by_sign_and_word_how_severe_it_is() -> None:
    first, second, third = (Notice(one, one, NOW) for one in ("error", "warning", "information"))  # type: ignore[arg-type]
    assert plain(_line([first])).split("  ")[0] == "✗ error: error"
    assert plain(_line([first, second])).startswith("! warning: warning")
    assert plain(_line([first, first, second])).endswith("  +2 errors  ^l dismiss")
    assert plain(_line([second, third, first])).endswith("  +2  ^l dismiss")
    assert plain(_line([first, second, third])).startswith("i note: information")
    assert plain(_line([first, second, third])).endswith("  +2 (1 error)  ^l dismiss")
    assert plain(_line([Notice("again", "warning", NOW, times=3)])).startswith("! warning: again (3 times) ")
    assert _line([]) == ()


@given(st.lists(st.builds(Notice, st.text(max_size=200), SEVERITIES, st.just(NOW)), min_size=1), st.integers(20, 220))
def test_the_line_fits_and_is_cut_with_an_ellipsis(shown: list[Notice], width: int) -> None:
    line = notice_line(shown, width)
    assert length(line) == width
    text = plain(line)
    whole = " ".join("".join(one if one.isprintable() else " " for one in shown[-1].text.expandtabs()).split())
    assert whole in text or "…" in text


@pytest.mark.parametrize("size", [(60, 15), (80, 24)])
def test_it_covers_nothing_and_goes_when_it_is_dismissed(size: tuple[int, int]) -> None:
    async def steps(pilot: Pilot[None]) -> None:
        app: Any = pilot.app
        await settled(pilot)
        before = screen_text(pilot).splitlines()
        app.tell("it failed\nfor a reason", "error")
        await settled(pilot)
        after = screen_text(pilot).splitlines()
        assert after[-2].startswith(" ✗ error: it failed for a reason  ")
        assert after[:5] == before[:5]
        assert after[-1] == before[-1]
        grid = app.screen.grid
        assert grid.region.bottom < size[1] - 1
        await pilot.press("ctrl+l")
        await settled(pilot)
        assert screen_text(pilot).splitlines() == before
        assert [one.text for one in app.notices.past] == ["it failed\nfor a reason"]

    drive(steps, size=size)


@pytest.mark.parametrize(("keys", "dialog"), [("ctrl+d", Confirm), ("s", Form), ("ctrl+p", Palette)])
def test_it_is_seen_and_dismissed_on_dialogs_too(keys: str, dialog: type[Any]) -> None:
    async def steps(pilot: Pilot[None]) -> None:
        app: Any = pilot.app
        await opened(pilot)
        await pilot.press(keys)
        await (shown(pilot, dialog) if dialog is not Palette else settled(pilot))
        app.tell("it failed", "error")
        app.tell("so did this", "error")
        await settled(pilot)
        assert screen_text(pilot).splitlines()[-2].strip().startswith("✗ error: so did this")
        await pilot.press("ctrl+l", "ctrl+l")
        assert isinstance(app.screen, dialog)
        assert not told(app)
        await settled(pilot)
        assert "error" not in screen_text(pilot)

    drive(steps, the_app(job=ADS.id))


def test_it_goes_by_itself_by_a_click_and_by_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async def steps(pilot: Pilot[None]) -> None:
        app: Any = pilot.app
        app.tell("one", "error")
        app.notify("two")  # as textual's own widgets do
        await settled(pilot)
        assert not app._notifications
        await pilot.click(NoticeLine)
        assert told(app) == ["one"]
        app.tell("three", "warning")
        now = time.monotonic()
        monkeypatch.setattr("dlrover_lite.tui.app.time.monotonic", lambda: now + 60.0)
        app._tell_ages()
        assert told(app) == ["one"]

    drive(steps)


def test_the_command_shows_those_that_went_too() -> None:
    async def steps(pilot: Pilot[None]) -> None:
        app: Any = pilot.app
        app.tell("it failed for a reason that is told in full: " + "a_long_one " * 20, "error")
        await pilot.press("ctrl+l")
        await write(pilot, "colon", "notices", "enter")
        await settled(pilot)
        assert screen_text(pilot).count("a_long_one") == 20

    drive(steps)


def test_the_keys_are_shown_once_however_often_they_are_asked_for() -> None:
    async def steps(pilot: Pilot[None]) -> None:
        type_at_once(pilot.app, *["question_mark"] * 30)  # type: ignore[arg-type]
        await taken(pilot)
        assert len(pilot.app.screen_stack) == 2

    drive(steps)
