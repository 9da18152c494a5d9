"""A recording on the screens, played by keys."""

from __future__ import annotations

from typing import Any

import pytest
from textual.pilot import Pilot

from dlrover_lite.tui.keys import REPLAY
from dlrover_lite.tui.pages.once import frame
from dlrover_lite.tui.recordings.recorded import RecordedSource, Recording
from dlrover_lite.tui.replay_app import ReplayApp
from dlrover_lite.tui.screens.decisions import DecisionsScreen
from dlrover_lite.tui.screens.job import JobScreen
from dlrover_lite.tui.screens.reading import ReadingScreen
from dlrover_lite.tui.widgets.pager import Pager
from dlrover_lite.tui.widgets.replay_line import ReplayLine
from tests.tui.driving import drive, footer, head, opened, screen_text, told, until, write
from tests.tui.fixed import ADS, EXPLANATION, NOW


@pytest.fixture
def app(recording: Recording) -> ReplayApp:
    """It stands at its beginning."""
    return ReplayApp(RecordedSource(recording, recording.player(speed=0)), period_seconds=0.02)


def _line(pilot: Pilot[None]) -> str:
    return pilot.app.screen.query_one(ReplayLine).text


def _at(app: ReplayApp) -> float:
    return app.player.at - NOW


def test_keys_move_the_replay_and_the_screen_follows(app: ReplayApp) -> None:
    async def steps(pilot: Pilot[None]) -> None:
        assert _line(pilot).startswith("■ stands 1x    0:00 of 1:00  14:00:00  ┃")
        await pilot.press("full_stop", "right")
        assert _at(app) == 20
        await until(pilot, lambda: app.view is not None and app.view.jobs[ADS.id].samples == 20)
        await pilot.press("comma")
        assert _at(app) == 10
        await pilot.press("n", "greater_than_sign")
        assert _at(app) == 30
        await pilot.press("shift+left")
        assert _at(app) == 20
        await pilot.press("right_square_bracket")
        assert "■ ended" in _line(pilot)
        assert app.now() == NOW + 60
        await pilot.press("left_square_bracket", "plus", "plus", "minus", "equals_sign")
        assert "■ stands 4x    0:00" in _line(pilot)
        await pilot.press("p")
        assert _at(app) == 0
        assert len(app.notices.shown) == 1
        await until(pilot, lambda: app.view is not None and app.view.jobs[ADS.id].samples == 0)

    drive(steps, app)


def test_space_plays_and_pauses_the_replay(app: ReplayApp) -> None:
    async def steps(pilot: Pilot[None]) -> None:
        await pilot.press("space")
        await until(pilot, lambda: _at(app) > 0)
        assert app.player.now.playing
        await pilot.press("space")
        assert not app.player.now.playing

    drive(steps, app)


def test_on_a_jobs_screen_only_its_earlier_decisions_are_shown(app: ReplayApp) -> None:
    async def steps(pilot: Pilot[None]) -> None:
        await pilot.press("down", "enter")
        await opened(pilot)
        screen = pilot.app.screen
        assert isinstance(screen, JobScreen)
        await pilot.press("n")
        assert _at(app) == 30
        await pilot.press("v")
        decisions = pilot.app.screen
        assert isinstance(decisions, DecisionsScreen)
        await until(pilot, lambda: len(decisions.grid.table.rows) == 3)
        await pilot.press("n")
        await until(pilot, lambda: len(decisions.grid.table.rows) == 4)
        await pilot.press("p", "p")
        await until(pilot, lambda: len(decisions.grid.table.rows) == 3)
        await pilot.press("down", "enter")
        await until(pilot, lambda: isinstance(pilot.app.screen, ReadingScreen))
        assert EXPLANATION.text[0][:40] in "".join(pilot.app.screen.query_one(Pager).render_line(0).text)
        await pilot.press("space")
        assert app.player.now.playing

    drive(steps, app)


def test_n_goes_over_what_a_search_has_found_and_else_to_the_next_decision(app: ReplayApp) -> None:
    async def steps(pilot: Pilot[None]) -> None:
        await pilot.press("question_mark")
        await write(pilot, "slash", "decision", "enter")
        at, pager = _at(app), pilot.app.screen.query_one(Pager)
        first = pager.text.at
        await pilot.press("n")
        assert (_at(app), pager.text.at) == (at, (first or 0) + 1)
        assert "Next" in footer(app)
        assert "Decision" not in footer(app)
        await pilot.press("escape", "n")
        assert _at(app) != at

    drive(steps, app)


def test_commands_and_the_mouse_go_to_any_moment(app: ReplayApp) -> None:
    async def steps(pilot: Pilot[None]) -> None:
        await write(pilot, "colon", "at 25s", "enter")
        assert _at(app) == 25
        await write(pilot, "colon", "at 14:00:45", "enter")
        assert _at(app) == 45
        await write(pilot, "colon", "at 2h", "enter")
        assert _at(app) == 45
        assert any("isn't in it" in one for one in told(app))
        bar = pilot.app.screen.query_one(ReplayLine)
        await pilot.click(bar, offset=(bar.size.width, 0))
        assert _at(app) == 60
        await pilot.click(bar, offset=(2, 0))
        assert _at(app) == 60

    drive(steps, app)


def test_text_in_a_prompt_does_not_move_the_replay(app: ReplayApp) -> None:
    async def steps(pilot: Pilot[None]) -> None:
        await pilot.press("slash", "n", "space", "f", "left", "p")
        assert _at(app) == 0
        assert not app.player.now.playing
        assert app.screen.filter_text == "n pf"  # type: ignore[attr-defined]

    drive(steps, app)


def test_replay_help_lists_its_keys_and_none_that_change_a_job(app: ReplayApp) -> None:
    async def steps(pilot: Pilot[None]) -> None:
        assert not {"Stop", "Logs"} & footer(app).keys()
        assert list(footer(app))[:4] == ["Play", "Step", "Decision", "Before"]
        await pilot.press("down", "l", "ctrl+d")
        assert "in all" in head(app)
        await pilot.press("question_mark")
        pager = app.screen.query_one(Pager)
        text = "\n".join(pager.render_line(y).text for y in range(pager.size.height))
        for key in REPLAY:
            assert key.label in text
            assert key.what in text
        assert "stop the job" not in text

    drive(steps, app, size=(120, 100))


def test_a_moment_of_a_recording_is_printed_as_a_frame(recording: Recording) -> None:
    player = recording.player(speed=0)
    source = RecordedSource(recording, player)
    player.stand(NOW + 20)
    text = frame(source, job=None, width=160, replay=player)
    assert "2 running, 4 in all" in text
    assert text.splitlines()[-1].startswith("■ stands 1x    0:20 of 1:00  14:00:20  ")
    detail = frame(source, job=ADS.id, width=160, replay=player)
    assert "heal worker-1" not in detail
    player.stand(player.end)
    assert "heal worker-1" in frame(source, job=ADS.id, width=160, replay=player)


def test_the_at_command_needs_a_replay() -> None:
    from tests.tui.driving import the_app

    app: Any = the_app()

    async def steps(pilot: Pilot[None]) -> None:
        await write(pilot, "colon", "at 25s", "enter")
        assert any("Nothing is replayed" in one for one in told(app))

    drive(steps, app)


def test_the_overview_follows_the_replays_clock_not_that_on_the_wall(
    app: ReplayApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "_tell_ages", lambda: None)  # once a second

    async def steps(pilot: Pilot[None]) -> None:
        await pilot.press("v")
        for key, clock in (("left_square_bracket", "14:00"), ("right_square_bracket", "14:01")):
            await pilot.press(key)
            await until(pilot, lambda clock=clock: _ends(pilot) == clock)  # type: ignore[misc]

    drive(steps, app)


def _ends(pilot: Pilot[None]) -> str:
    """The time at the right end of the chart."""
    text = [line for line in screen_text(pilot).splitlines() if "13:4" in line]
    return text[0].split()[-1] if text else ""
