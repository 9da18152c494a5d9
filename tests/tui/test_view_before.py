"""``-`` goes to the view before, as ``cd -`` does; ctrl-c leaves from anywhere."""

from __future__ import annotations

from typing import Any

import pytest
from textual.pilot import Pilot

from dlrover_lite.tui.app import TuiApp
from dlrover_lite.tui.screens.confirm import Confirm
from dlrover_lite.tui.screens.decisions import DecisionsScreen
from dlrover_lite.tui.screens.job import JobScreen
from dlrover_lite.tui.screens.jobs import JobsScreen
from dlrover_lite.tui.screens.reading import ReadingScreen
from dlrover_lite.tui.text import plain
from tests.tui.driving import Acts, drive, opened, settled, shown, taken, the_app, told, type_at_once, until, write
from tests.tui.fixed import ADS, FEED, FixedSource


def _names(app: TuiApp) -> list[str]:
    """What is shown, from all jobs on."""
    found = []
    for screen in app.screen_stack:
        match screen:
            case JobScreen():
                found.append(screen.job)
            case DecisionsScreen():
                found.append("decisions")
            case ReadingScreen():
                found.append(screen._title)
            case JobsScreen():
                found.append("jobs")
    return found


def test_minus_goes_to_the_view_before_and_back() -> None:
    async def steps(pilot: Pilot[None]) -> None:
        app: Any = pilot.app
        await pilot.press("minus")
        assert told(app) == ["There was no other view before this one"]
        type_at_once(app, "down", "enter", *"v-")
        await taken(pilot)
        assert _names(app) == ["jobs", ADS.id]
        assert app.screen.job == ADS.id
        type_at_once(app, "-")
        await taken(pilot)
        assert _names(app) == ["jobs", ADS.id, "decisions"]
        assert app.screen.detail.row.id == ADS.id
        type_at_once(app, *":job feed", "enter", "-")
        await taken(pilot)
        assert _names(app) == ["jobs", ADS.id, "decisions"]  # two screens at once, in one step
        assert app._job == ADS.id
        type_at_once(app, *":-", "enter")
        await taken(pilot)
        assert _names(app) == ["jobs", FEED.id]
        assert app._job == FEED.id
        type_at_once(app, *":ls", "enter")
        await taken(pilot)
        assert _names(app) == ["jobs"]
        type_at_once(app, "minus")
        await taken(pilot)
        assert _names(app) == ["jobs", FEED.id]

    drive(steps)


def test_an_explanation_is_read_again_when_it_is_gone_back_to() -> None:
    async def steps(pilot: Pilot[None]) -> None:
        app: Any = pilot.app
        await opened(pilot)
        await pilot.press("v", "down", "down", "enter", "escape", "minus")
        screen = app.screen
        assert isinstance(screen, ReadingScreen)
        await until(pilot, lambda: screen.pager.counts[1] > 1)
        assert _names(app) == ["jobs", ADS.id, "decisions", f"Decision 2 for {ADS.id}"]
        await pilot.press("question_mark", "minus", "minus")
        assert _names(app)[-1] == "Keys and commands"

    drive(steps, the_app(job=ADS.id))


@pytest.mark.parametrize("before", [[], ["ctrl+d"], ["ctrl+p"], ["s"], ["colon", "k", "i"], ["enter", "v", "l"]])
def test_ctrl_c_leaves_from_anywhere_and_does_nothing_else(before: list[str]) -> None:
    acts = Acts()

    async def steps(pilot: Pilot[None]) -> None:
        await pilot.press("down", *before)
        if before == ["ctrl+d"]:
            await shown(pilot, Confirm)
        await pilot.press("ctrl+c", "y", "enter")

    app = drive(steps, the_app(FixedSource(), actions=acts))
    assert not app.is_running
    assert acts.done == []


def test_ctrl_c_copies_what_the_mouse_has_selected() -> None:
    async def steps(pilot: Pilot[None]) -> None:
        app: Any = pilot.app
        await pilot.press("question_mark")
        await settled(pilot)
        pager = app.screen.pager
        at = next(at for at, line in enumerate(pager.in_sight) if plain(line).endswith("leave"))
        left = pager.gutter.left
        await pilot.mouse_down(pager, offset=(left + 2, pager.gutter.top + at))
        await pilot.hover(pager, offset=(left + 30, pager.gutter.top + at))
        await pilot.mouse_up(pager, offset=(left + 30, pager.gutter.top + at))
        await pilot.press("ctrl+c")
        assert app.clipboard.split() == ["q", "leave"]
        assert told(app) == ["copied what was selected"]
        assert app.is_running
        await pilot.press("ctrl+c")
        assert not app.is_running

    drive(steps)


def test_alias_lists_commands_with_their_short_names() -> None:
    async def steps(pilot: Pilot[None]) -> None:
        await write(pilot, "colon", "alias", "enter")
        screen = pilot.app.screen
        assert isinstance(screen, ReadingScreen)
        lines = ["".join(span.text for span in line) for line in screen.lines]
        assert any(line.split()[:4] == [":job", "JOB", ":j", "one"] for line in lines)
        assert any(":q :q! :exit" in line for line in lines)

    drive(steps)
