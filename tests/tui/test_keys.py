"""Each key does what the help says."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from dlrover_lite.tui.app import TuiApp
from dlrover_lite.tui.keys import SCREENS
from dlrover_lite.tui.model import JobsView
from dlrover_lite.tui.screens.confirm import Confirm
from dlrover_lite.tui.screens.decisions import DecisionsScreen
from dlrover_lite.tui.screens.job import JobScreen
from dlrover_lite.tui.screens.jobs import JobsScreen
from dlrover_lite.tui.screens.reading import LogScreen, ReadingScreen
from dlrover_lite.tui.widgets.grid import Grid
from dlrover_lite.tui.widgets.pager import Pager
from dlrover_lite.tui.widgets.prompt import Prompt
from tests.tui.driving import Acts, drive, footer, head, opened, page, the_app, told, until, write
from tests.tui.fixed import ADS, BROKEN, FEED, OLD, VIEW, FixedSource

IDS = [FEED.id, ADS.id, BROKEN.id, OLD.id]


def _app(pilot: Pilot[None]) -> TuiApp:
    assert isinstance(pilot.app, TuiApp)
    return pilot.app


def _jobs(pilot: Pilot[None]) -> JobsScreen:
    assert isinstance(pilot.app.screen, JobsScreen)
    return pilot.app.screen


def _job(pilot: Pilot[None]) -> JobScreen:
    assert isinstance(pilot.app.screen, JobScreen)
    return pilot.app.screen


def _text(pilot: Pilot[None]) -> str:
    pager = pilot.app.screen.query_one(Pager)
    return "\n".join(pager.render_line(y).text for y in range(pager.size.height))


async def _open_ads(pilot: Pilot[None]) -> JobScreen:
    await pilot.press("down", "enter")
    await opened(pilot)
    return _job(pilot)


def test_keys_move_the_cursor() -> None:
    async def steps(pilot: Pilot[None]) -> None:
        grid = _jobs(pilot).grid
        seen = [grid.cursor]
        for key in ("down", "j", "up", "k", "end", "home", "G", "g", "pagedown", "pageup", "up"):
            await pilot.press(key)
            seen.append(grid.cursor)
        assert [IDS.index(one or "") for one in seen] == [0, 1, 2, 1, 0, 3, 0, 3, 0, 3, 0, 0]

    drive(steps)


def test_enter_opens_a_job_and_esc_goes_back() -> None:
    async def steps(pilot: Pilot[None]) -> None:
        screen = await _open_ads(pilot)
        assert screen.job == ADS.id
        assert ADS.id in head(_app(pilot))
        assert list(screen.grid.table.rows) == ["ps-0", "worker-0", "worker-3", "worker-1"]
        await pilot.press("escape")
        assert _jobs(pilot).grid.cursor == ADS.id

    drive(steps)


FIRST = {
    "J": OLD.id,
    "S": BROKEN.id,
    "P": OLD.id,
    "E": OLD.id,
    "T": ADS.id,
    "N": ADS.id,
    "C": ADS.id,
    "M": ADS.id,
    "X": OLD.id,
}


def test_shift_with_a_letter_sorts_the_table() -> None:
    async def steps(pilot: Pilot[None]) -> None:
        table = _jobs(pilot).grid.table
        for key, first in FIRST.items():
            await pilot.press(key)
            assert table.shown[0] == first, key
        order = table.order
        await pilot.press(key)
        assert (table.order.column, table.order.turned) == (order.column, True)

    drive(steps)


async def _each_key_sorts(pilot: Pilot[None], grid: Grid[Any], keys: str) -> None:
    orders = [grid.table.order]
    for key in keys:
        await pilot.press(key)
        assert grid.table.order not in orders, key
        orders.append(grid.table.order)


def test_nodes_and_decisions_are_sorted_too() -> None:
    async def steps(pilot: Pilot[None]) -> None:
        screen = await _open_ads(pilot)
        await _each_key_sorts(pilot, screen.grid, "JSCMTR")
        await pilot.press("v")
        decisions = pilot.app.screen
        assert isinstance(decisions, DecisionsScreen)
        await _each_key_sorts(pilot, decisions.grid, "NSAWR")

    drive(steps)


def test_a_filter_chooses_rows_until_esc() -> None:
    async def steps(pilot: Pilot[None]) -> None:
        screen = _jobs(pilot)
        await write(pilot, "slash", "mira !ads")
        assert screen.grid.table.shown == [BROKEN.id]
        assert screen.grid.cursor == BROKEN.id
        assert "mira !ads (1 of 4)" in head(_app(pilot))
        await pilot.press("enter")
        assert screen.focused is screen.grid
        assert screen.grid.table.shown == [BROKEN.id]
        await pilot.press("escape")
        assert screen.grid.table.shown == IDS
        await pilot.press("slash", "x", "escape")
        assert screen.grid.table.shown == IDS
        assert screen.focused is screen.grid

    drive(steps)


def test_keys_are_text_while_a_prompt_is_open() -> None:
    async def steps(pilot: Pilot[None]) -> None:
        await pilot.press("slash", *"qdlJ?:/")
        assert _jobs(pilot).filter_text == "qdlJ?:/"

    drive(steps)


def test_decisions_are_listed_and_explained() -> None:
    async def steps(pilot: Pilot[None]) -> None:
        await write(pilot, "colon", "decisions", "enter")
        assert "Open a job first" in told(_app(pilot))[0]
        await _open_ads(pilot)
        for how in ("v", "colon"):
            await (pilot.press("v") if how == "v" else write(pilot, how, "decisions", "enter"))
            screen = pilot.app.screen
            assert isinstance(screen, DecisionsScreen)
            assert screen.grid.table.shown == ["4", "3", "2", "1"]
            await pilot.press("down", "down", "d")
            assert "-31%" in _text(pilot)
            await pilot.press("escape", "enter")
            await until(pilot, lambda: isinstance(pilot.app.screen, ReadingScreen))
            assert "ends 8.2 s sooner" in _text(pilot)
            await pilot.press("escape", "down", "enter")
            await until(pilot, lambda: isinstance(pilot.app.screen, ReadingScreen))
            assert "+2%" in _text(pilot)  # it isn't kept in full
            await pilot.press("escape", "escape")
            assert _job(pilot).job == ADS.id
        await _explain_from_the_curve(pilot)

    drive(steps, size=(160, 60))


async def _explain_from_the_curve(pilot: Pilot[None]) -> None:
    """Tab and the arrows go over decisions; enter explains, until esc or the table takes the keys back."""
    screen = _job(pilot)
    assert footer(_app(pilot))["Why"] is True
    await pilot.press("tab", "right", "tab", "shift+tab", "left")
    assert screen.chosen == 2
    await pilot.press("enter")
    await until(pilot, lambda: isinstance(pilot.app.screen, ReadingScreen))
    assert "ends 8.2 s sooner" in _text(pilot)
    await pilot.press("escape", "escape")
    assert (_job(pilot).chosen, pilot.app.screen) == (None, screen)
    await pilot.press("left", "down")
    assert _job(pilot).chosen is None
    await pilot.click(screen.chart, offset=(screen.chart.size.width - 1, 3))
    assert screen.chosen == 4


def test_commands_are_completed_and_done() -> None:
    async def steps(pilot: Pilot[None]) -> None:
        await write(pilot, "colon", "job a", "tab", "enter")
        assert _job(pilot).job == ADS.id
        await write(pilot, "colon", "jobs", "enter")
        await write(pilot, "colon", "sort cost", "enter")
        assert _jobs(pilot).grid.table.order.column == "cost"
        await write(pilot, "colon", "theme light", "enter")
        assert not pilot.app.current_theme.dark
        await write(pilot, "colon", "theme dark", "enter")
        assert pilot.app.current_theme.dark
        await write(pilot, "colon", "jbs", "enter")
        assert told(_app(pilot)) == ["There is no command 'jbs'; did you mean :jobs?"]
        await pilot.press("colon", "escape")
        assert not _jobs(pilot).query_one(Prompt).is_open

    drive(steps)


@pytest.mark.parametrize("keys", [["q"], ["colon", "q", "enter"]])
def test_q_and_its_command_leave_the_tui(keys: list[str]) -> None:
    source = FixedSource()

    async def steps(pilot: Pilot[None]) -> None:
        await pilot.press(*keys)

    app = drive(steps, the_app(source))
    assert not app.is_running
    assert source.closed


def test_describe_shows_all_fields_of_a_row() -> None:
    async def steps(pilot: Pilot[None]) -> None:
        await pilot.press("end", "up", "d")
        assert isinstance(pilot.app.screen, ReadingScreen)
        assert "shapes differ" in _text(pilot)
        await write(pilot, "slash", "model", "enter")
        assert "shapes differ" in _text(pilot)
        await pilot.press("ampersand")
        assert "shapes differ" not in _text(pilot)
        assert "model.py:Net" in _text(pilot)
        await pilot.press("escape", "escape")
        await pilot.press("home")
        await _open_ads(pilot)
        await pilot.press("down", "down", "d")
        assert "waits for memory on the host" in _text(pilot)

    drive(steps, size=(80, 40))


def test_help_lists_every_key() -> None:
    async def steps(pilot: Pilot[None]) -> None:
        await pilot.press("question_mark")
        text = _text(pilot)
        for keys in SCREENS.values():
            for key in keys:
                assert key.label in text
                assert key.what in text
        await pilot.press("escape")
        assert _jobs(pilot)

    drive(steps, size=(120, 150))


def test_logs_are_followed_and_searched(with_logs: FixedSource) -> None:
    directory = Path(with_logs.view.jobs[ADS.id].directory)

    async def steps(pilot: Pilot[None]) -> None:
        await pilot.press("down", "l")
        await until(pilot, lambda: "the master" in _text(pilot))
        await pilot.press("escape", "home")
        await _open_ads(pilot)
        await pilot.press("down", "l")
        assert isinstance(pilot.app.screen, LogScreen)
        await until(pilot, lambda: "line 99" in _text(pilot))
        with (directory / "logs" / "worker-0.log").open("a") as file:
            file.write("the end\n")
        await until(pilot, lambda: "the end" in _text(pilot))
        await _search(pilot)
        await _scroll_up_and_follow_again(pilot, directory / "logs" / "worker-0.log")
        await pilot.resize_terminal(60, 15)
        await pilot.resize_terminal(100, 30)
        assert pilot.app.screen.query_one(Pager).counts[0] == 102
        await pilot.press("escape")
        assert _job(pilot)

    drive(steps, the_app(with_logs))


async def _search(pilot: Pilot[None]) -> None:
    """n and N go over what / has found, & leaves out the rest, esc ends it."""
    pager = pilot.app.screen.query_one(Pager)
    await write(pilot, "slash", "line 5", "enter")
    assert "with line 5 (1 of 11)" in head(_app(pilot))  # none is below the first in sight
    assert not pager.follow
    for key, line in (("n", "line 50"), ("n", "line 51"), ("N", "line 50"), ("N", "line 5"), ("N", "line 59")):
        await pilot.press(key)
        assert line in _text(pilot).splitlines()[pager.text.row_gone_to - pager.scroll_offset.y]  # type: ignore[operator]
    await pilot.press("ampersand")
    assert pager.counts == (11, 101)
    assert "(11 of 11, only these of 101 lines)" in head(_app(pilot))
    await pilot.press("escape", "n")
    assert pager.counts == (101, 101)
    assert told(_app(pilot))[-1] == "Nothing is searched for: / does"


async def _scroll_up_and_follow_again(pilot: Pilot[None], log: Path) -> None:
    app, pager = _app(pilot), pilot.app.screen.query_one(Pager)
    await pilot.press("f")
    assert "↓ follows" in head(app)
    await pilot.press("pageup")
    await until(pilot, lambda: "‖ stays here" in head(app))
    assert "Follow" in footer(app)
    top = pager.scroll_offset.y
    with log.open("a") as file:
        file.write("wide " * 50 + "\n")
    await until(pilot, lambda: pager.counts[0] == 102)
    assert pager.scroll_offset.y == top
    await pilot.press("f")
    assert _text(pilot).splitlines()[-1].rstrip().endswith("…")
    await pilot.press("w")
    assert _text(pilot).count("wide") == 50


def test_logs_of_all_nodes_are_one(with_logs: FixedSource) -> None:
    async def steps(pilot: Pilot[None]) -> None:
        for how in (["down", "L"], [*":logs", "enter"], ["enter", "L"]):
            await pilot.press(*how)
            assert isinstance(pilot.app.screen, LogScreen)
            await until(pilot, lambda: "worker-0 │ line 99" in _text(pilot))
            await pilot.press("home")
            assert "master   │ the master" in _text(pilot)
            assert "all nodes" in head(_app(pilot))
            await write(pilot, "colon", "logs worker-0", "enter")  # of a job's log it is known whose it is
            await until(pilot, lambda: "line 99" in _text(pilot))
            assert f"{ADS.id} worker-0" in head(_app(pilot))
            await write(pilot, "colon", "recipe", "enter")
            assert f"Recipe of {ADS.id}" in head(_app(pilot))
            await pilot.press("escape", "escape", "escape")
        await write(pilot, "colon", "logs worker-7", "enter")
        assert told(_app(pilot))[-1] == f"worker-7 of {ADS.id} has no log on this machine"

    drive(steps, the_app(with_logs))


def test_a_log_on_another_machine_is_reported() -> None:
    async def steps(pilot: Pilot[None]) -> None:
        await pilot.press("l")
        assert "no log on this machine" in told(_app(pilot))[0]
        assert _jobs(pilot)

    drive(steps)


@pytest.mark.parametrize(("answer", "stopped"), [("y", [ADS.id]), ("n", []), ("escape", []), ("enter", [])])
def test_stopping_a_job_asks_first(answer: str, stopped: list[str]) -> None:
    acts = Acts()

    async def steps(pilot: Pilot[None]) -> None:
        await pilot.press("down", "ctrl+d")
        assert isinstance(pilot.app.screen, Confirm)
        await pilot.press(answer)
        assert _jobs(pilot)
        await until(pilot, lambda: acts.done == [("stop", job) for job in stopped])

    drive(steps, the_app(actions=acts))


def test_readonly_has_no_keys_that_change_something() -> None:
    async def steps(pilot: Pilot[None]) -> None:
        await pilot.press("down", "ctrl+d")
        assert _jobs(pilot)
        assert "Stop" not in footer(_app(pilot))
        await pilot.press("question_mark")
        assert "stop the job" not in _text(pilot)

    drive(steps, the_app(actions=None), size=(120, 100))


def test_footer_shows_the_keys_that_work_now() -> None:
    async def steps(pilot: Pilot[None]) -> None:
        app = _app(pilot)
        await pilot.press("down")
        assert footer(app) == {
            "Open": True,
            "Filter": True,
            "Describe": True,
            "Live": True,
            "Overview": True,
            "Logs": True,
            "Scale": True,
            "Recipe": True,
            "Save": True,
            "Stop": True,
            "Help": True,
            "Quit": True,
        }
        await pilot.press("v")
        assert "cores given, by job" in _text(pilot)
        await pilot.press("escape", "end")
        assert footer(app)["Stop"] is False
        await pilot.press("slash", "x")
        assert list(footer(app)) == ["Keep", "All again"]
        await pilot.press("enter")
        assert footer(app)["Back"] is True
        await pilot.press("escape", "colon")
        assert list(footer(app)) == ["Do it", "Complete", "Back"]

    drive(steps, size=(120, 30))


def test_without_jobs_keys_for_a_job_do_nothing() -> None:
    async def steps(pilot: Pilot[None]) -> None:
        assert "dlrover-lite run job.yaml" in page(_app(pilot)).query_one("#empty").text  # type: ignore[attr-defined]
        assert not any(footer(_app(pilot))[name] for name in ("Open", "Describe", "Logs", "Stop"))
        for key in ("enter", "d", "l"):
            await pilot.press(key)
            assert told(_app(pilot)) == ["There is no row to choose"]
            await pilot.press("ctrl+l")
        await pilot.press("ctrl+d", "down", "J")
        assert _jobs(pilot)
        assert told(_app(pilot)) == ["No job is chosen"]

    drive(steps, the_app(FixedSource(JobsView())))


def test_the_mouse_chooses_opens_and_sorts() -> None:
    async def steps(pilot: Pilot[None]) -> None:
        grid = _jobs(pilot).grid
        await pilot.click("#jobs", offset=(4, 2))
        assert grid.cursor == ADS.id
        await pilot.click("#jobs", offset=(4, 0))
        assert grid.table.order.column == "job"
        place = grid.table.shown.index(ADS.id) + 1
        await pilot.click("#jobs", offset=(4, place))
        assert _job(pilot).job == ADS.id

    drive(steps)


def test_the_command_palette_opens_jobs_and_takes_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    async def steps(pilot: Pilot[None]) -> None:
        await pilot.press("ctrl+p", *"Job ads-7f3k2", "enter")
        await until(pilot, lambda: isinstance(pilot.app.screen, JobScreen))
        assert _job(pilot).job == ADS.id
        await pilot.press("ctrl+p", *"picture SVG", "enter")
        await until(pilot, lambda: any(text.startswith("wrote ") for text in told(_app(pilot))))
        (picture,) = tmp_path.glob("dlrover-lite-*.svg")
        assert ADS.id in picture.read_text()
        assert "COMMAND" not in picture.read_text()  # the palette is gone

    drive(steps)


def test_a_job_can_be_the_first_screen() -> None:
    async def steps(pilot: Pilot[None]) -> None:
        await opened(pilot)
        assert _job(pilot).job == ADS.id
        await pilot.press("escape")
        assert list(_jobs(pilot).grid.table.rows) == list(VIEW.jobs)

    drive(steps, the_app(job=ADS.id))


def _copied(pilot: Pilot[None]) -> list[str]:
    """What the terminal is asked to copy from now on, as it decodes it."""
    found: list[str] = []
    driver = pilot.app._driver
    assert driver is not None
    write_on = driver.write

    def write(data: str) -> None:
        found.extend(base64.b64decode(one).decode() for one in re.findall(r"\x1b\]52;c;([A-Za-z0-9+/=]*)\x07", data))
        write_on(data)

    driver.write = write  # type: ignore[method-assign]
    return found


def _told(pilot: Pilot[None]) -> list[str]:
    return told(_app(pilot))


def test_c_copies_the_chosen_row(with_logs: FixedSource) -> None:
    async def steps(pilot: Pilot[None]) -> None:
        copied = _copied(pilot)
        await pilot.press("down", "c")
        await _open_ads_here(pilot)
        await pilot.press("c")
        assert copied == [ADS.id, "ps-0"]
        assert _told(pilot) == [f"copied {ADS.id}", "copied ps-0"]
        await pilot.press("v", "down", "down", "c")
        await until(pilot, lambda: len(copied) == 3)
        assert "-31%" in copied[2] and "What was known" in copied[2] and "◉ chosen" in copied[2]
        assert max(map(len, copied[2].splitlines())) <= 100
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(pilot.app.screen, ReadingScreen))
        await write(pilot, "slash", "cores of", "enter")
        await pilot.press("ampersand", "c")
        assert len(copied) == 4 and "cores of the busiest server" in copied[3] and "-31%" not in copied[3]

    drive(steps, the_app(with_logs), size=(120, 40))


async def _open_ads_here(pilot: Pilot[None]) -> None:
    await pilot.press("enter")
    await opened(pilot)


def test_c_copies_the_lines_of_a_log_that_are_in_sight(with_logs: FixedSource) -> None:
    async def steps(pilot: Pilot[None]) -> None:
        copied = _copied(pilot)
        await pilot.press("down")
        await _open_ads_here(pilot)
        await pilot.press("down", "l")
        await until(pilot, lambda: "line 99" in _text(pilot))
        await pilot.press("c")
        lines = copied[0].splitlines()
        assert lines[-1] == "line 99" and 5 < len(lines) < 24
        assert _told(pilot) == [f"copied {len(lines)} lines"]

    drive(steps, the_app(with_logs))


def test_c_without_a_chosen_row_copies_nothing() -> None:
    async def steps(pilot: Pilot[None]) -> None:
        copied = _copied(pilot)
        await pilot.press("c")
        assert copied == [] and _told(pilot) == []

    drive(steps, the_app(FixedSource(JobsView())))
