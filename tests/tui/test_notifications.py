"""Notices: each goes after its time, whatever holds the application up, and there are never many of them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual.notifications import Notification
from textual.pilot import Pilot
from textual.widgets._toast import Toast

from dlrover_lite.tui.widgets.notifications import MOST_AT_ONCE, Notice, superseded
from tests.tui.driving import drive, taken, told, type_at_once, until

SEVERITIES = ("information", "warning", "error")
NOTICES = st.builds(Notification, st.sampled_from("abcdefgh"), severity=st.sampled_from(SEVERITIES))


def _toasts(pilot: Pilot[None]) -> int:
    return len(pilot.app.screen.query(Toast))


def test_one_that_expires_just_before_it_is_shown_does_not_hang_the_application(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 1000.0
    made = 0
    make = Toast.__init__

    def make_late(self: Toast, notification: Notification) -> None:
        """Time passes between the look whether it has expired, and its toast."""
        nonlocal now, made
        now, made = now + 60.0, made + 1
        make(self, notification)

    monkeypatch.setattr("textual.notifications.time", lambda: now)
    monkeypatch.setattr(Toast, "__init__", make_late)

    async def steps(pilot: Pilot[None]) -> None:
        pilot.app.notify("too late", timeout=5)
        await until(pilot, lambda: made == 1 and not _toasts(pilot))
        await pilot.press("question_mark")
        assert len(pilot.app.screen_stack) == 2

    drive(steps)


@pytest.mark.parametrize("late_seconds", [-30.0, 0.0, 4.999_999, 5.0, 5.000_001, 1e9])
def test_its_toast_has_time_left_whatever_the_clock_says(late_seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    one = Notice.of(Notification("a", timeout=5, raised_at=1000.0))
    monkeypatch.setattr("textual.notifications.time", lambda: 1000.0 + late_seconds)
    assert 0.1 < Toast(one)._timeout <= 5
    assert one.has_expired == (late_seconds >= 5.0)


def test_many_keys_at_once_leave_few_notices_and_nothing_of_the_others() -> None:
    async def steps(pilot: Pilot[None]) -> None:
        app: Any = pilot.app
        for number in range(50):
            app.tell(f"notice {number}", "warning")
            app.tell("it failed", "error")
        await until(pilot, lambda: told(app)[-2:] == ["notice 49", "it failed"])
        await until(pilot, lambda: _toasts(pilot) == MOST_AT_ONCE)
        assert told(app) == ["notice 47", "notice 48", "notice 49", "it failed"]
        assert len(app.screen.query("ToastHolder")) == MOST_AT_ONCE
        await pilot.press("question_mark")  # it has them, too
        await until(pilot, lambda: _toasts(pilot) == MOST_AT_ONCE)

    drive(steps)


@given(st.lists(NOTICES, max_size=30))
def test_the_least_severe_and_the_oldest_give_way(notices: list[Notification]) -> None:
    shown: list[Notification] = []
    for new in notices:
        gone = superseded(shown, new)
        kept = [one for one in shown if one not in gone]
        for one in gone:
            weaker = [other for other in kept if SEVERITIES.index(other.severity) < SEVERITIES.index(one.severity)]
            assert (one.message, one.severity) == (new.message, new.severity) or not weaker
        shown = [*kept, new]
        assert len(shown) <= MOST_AT_ONCE
        assert len({(one.message, one.severity) for one in shown}) == len(shown)


def test_the_keys_are_shown_once_however_often_they_are_asked_for() -> None:
    async def steps(pilot: Pilot[None]) -> None:
        type_at_once(pilot.app, *["question_mark"] * 30)  # type: ignore[arg-type]
        await taken(pilot)
        assert len(pilot.app.screen_stack) == 2

    drive(steps)
