"""What is new is shown, what hasn't changed isn't drawn again, what is old is said to be."""

from __future__ import annotations

import msgspec
from textual.pilot import Pilot

from dlrover_lite.tui.app import TuiApp
from dlrover_lite.tui.model import JobsView, Problem
from dlrover_lite.tui.screens.job import JobScreen
from dlrover_lite.tui.screens.jobs import JobsScreen
from dlrover_lite.tui.text import plain
from dlrover_lite.tui.widgets.grid import Grid
from dlrover_lite.tui.widgets.pager import Pager
from dlrover_lite.tui.widgets.toned import Lines
from tests.tui.driving import drive, head, opened, screen_text, settled, stale, the_app, told, until
from tests.tui.fixed import ADS, DETAIL, FEED, NOW, OLD, VIEW, FixedSource
from tests.tui.screen_rules import broken_rules

MANY = {f"job-{i:04}": msgspec.structs.replace(ADS, id=f"job-{i:04}", created_at=NOW - i) for i in range(1000)}


def _app(pilot: Pilot[None]) -> TuiApp:
    assert isinstance(pilot.app, TuiApp)
    return pilot.app


def _grid(pilot: Pilot[None]) -> Grid[object]:
    return pilot.app.screen.query_one(Grid)


def _shown(pilot: Pilot[None]) -> list[str]:
    grid = _grid(pilot)
    return [grid.render_line(y).text for y in range(grid.size.height)]


def test_changes_of_the_source_are_shown() -> None:
    source = FixedSource()

    async def steps(pilot: Pilot[None]) -> None:
        source.change(ADS.id, samples=9_900_000)
        await until(pilot, lambda: " 99%" in _shown(pilot)[2])
        source.view = JobsView({ADS.id: source.view.jobs[ADS.id]}, "listens")
        await until(pilot, lambda: not "".join(_shown(pilot)[2:]).strip())
        assert "1 running, 1 in all" in head(_app(pilot))

    drive(steps, the_app(source))


def test_only_lines_that_have_changed_are_drawn_again() -> None:
    source = FixedSource(JobsView(MANY))
    drawn: list[int] = []

    async def steps(pilot: Pilot[None]) -> None:
        grid = _grid(pilot)
        draw = grid.render_line
        grid.render_line = lambda y: (drawn.append(y), draw(y))[1]  # type: ignore[method-assign]
        source.change("job-0003", samples=9_900_000)
        source.change("job-0900", samples=9_900_000)
        await until(pilot, lambda: bool(drawn))
        assert set(drawn) == {4}

    drive(steps, the_app(source))


def test_the_cursor_stays_with_its_row_as_rows_come_and_go() -> None:
    source = FixedSource()

    async def steps(pilot: Pilot[None]) -> None:
        await pilot.press("down")
        source.view = JobsView({"new": msgspec.structs.replace(ADS, id="new"), **VIEW.jobs})
        await until(pilot, lambda: "new" in _grid(pilot).table.rows)
        assert _grid(pilot).cursor == ADS.id
        source.view = JobsView({OLD.id: OLD})
        await until(pilot, lambda: len(_grid(pilot).table.rows) == 1)
        assert _grid(pilot).cursor == OLD.id

    drive(steps, the_app(source))


def test_a_thousand_rows_scroll_with_the_cursor_and_the_heading_stays() -> None:
    async def steps(pilot: Pilot[None]) -> None:
        await pilot.press("end")
        await until(pilot, lambda: "job-0999" in _shown(pilot)[-1])
        assert "JOB" in _shown(pilot)[0]
        await pilot.press("home")
        await until(pilot, lambda: "job-0000" in _shown(pilot)[1])

    drive(steps, the_app(FixedSource(JobsView(MANY))))


def test_a_failing_source_keeps_showing_old_data_with_its_age() -> None:
    source = FixedSource()

    async def steps(pilot: Pilot[None]) -> None:
        assert stale(_app(pilot)) == ""
        source.fails = "the disk is gone"
        await until(pilot, lambda: "ago: the disk is gone" in stale(_app(pilot)))
        assert ADS.id in _shown(pilot)[2]
        source.fails = ""
        await until(pilot, lambda: stale(_app(pilot)) == "")

    drive(steps, the_app(source))


def test_an_unanswering_master_is_shown_with_its_last_words_age() -> None:
    problem = Problem("its master", "no answer", NOW - 12)
    source = FixedSource(VIEW, msgspec.structs.replace(DETAIL, problem=problem))

    async def steps(pilot: Pilot[None]) -> None:
        await opened(pilot)
        assert stale(_app(pilot)) == "! what its master says is as of 12.0 s ago: no answer"
        source.details[ADS.id] = DETAIL
        await until(pilot, lambda: stale(_app(pilot)) == "")

    drive(steps, the_app(source, job=ADS.id))


def test_screens_fit_any_size() -> None:
    async def steps(pilot: Pilot[None]) -> None:
        for size in ((200, 60), (40, 12), (120, 40), (80, 24)):
            await pilot.resize_terminal(*size)
            assert isinstance(pilot.app.screen, JobsScreen)
            await until(pilot, lambda: all(len(one) <= size[0] for one in _shown(pilot)))  # noqa: B023
        await pilot.press("down", "enter")
        await opened(pilot)
        for size in ((200, 60), (40, 12), (120, 40), (80, 24)):
            await pilot.resize_terminal(*size)
            assert isinstance(pilot.app.screen, JobScreen)
            assert "ps-0" in "".join(_shown(pilot))

    drive(steps)


def test_a_job_that_fails_is_told_on_every_screen_and_once() -> None:
    source = FixedSource()

    async def steps(pilot: Pilot[None]) -> None:
        await opened(pilot)
        source.change(FEED.id, state="failed", message="no such column\nmore")
        await until(pilot, lambda: bool(told(_app(pilot))))
        source.change(FEED.id, samples=1)
        await until(pilot, lambda: _app(pilot).view is source.view)
        assert told(_app(pilot)) == [f"{FEED.id} has failed: no such column"]

    drive(steps, the_app(source, job=ADS.id))


def test_next_look_counts_down_without_reading_anything() -> None:
    now = [NOW]
    source = FixedSource()

    async def steps(pilot: Pilot[None]) -> None:
        await opened(pilot)
        facts = pilot.app.screen.query_one("#facts", Lines)
        await until(pilot, lambda: "next look in 7 s" in facts.text)
        source.fails = "nothing is read any more"
        now[0] = NOW + 3
        await until(pilot, lambda: "next look in 4 s" in facts.text)
        await pilot.press("escape", "down", "d")
        pager = pilot.app.screen.query_one(Pager)
        await until(pilot, lambda: any("next look in 4 s" in plain(one) for one in pager.shown))
        now[0] = NOW + 5
        await until(pilot, lambda: any("next look in 2 s" in plain(one) for one in pager.shown))

    drive(steps, the_app(source, job=ADS.id, clock=lambda: now[0]))


def test_foreseen_memory_is_a_curve_where_there_is_room() -> None:
    async def steps(pilot: Pilot[None]) -> None:
        await opened(pilot)
        memory = pilot.app.screen.query_one("#memory", Lines)
        assert not memory.display
        assert "ps-0: 148 MiB now" in pilot.app.screen.query_one("#facts", Lines).text
        await pilot.resize_terminal(120, 40)
        await until(pilot, lambda: memory.display and "░" in memory.text)
        await pilot.resize_terminal(120, 30)
        await until(pilot, lambda: not memory.display)

    drive(steps, the_app(job=ADS.id))


def test_the_lines_of_a_prompt_are_used_again_when_it_has_gone() -> None:
    async def steps(pilot: Pilot[None]) -> None:
        await opened(pilot)
        await settled(pilot)
        before = screen_text(pilot)
        await pilot.press(":")
        await settled(pilot)
        assert not broken_rules(pilot.app.screen)
        await pilot.press("escape")
        await settled(pilot)
        assert not broken_rules(pilot.app.screen)
        assert screen_text(pilot) == before

    drive(steps, the_app(job=ADS.id), size=(120, 40))


def test_a_timer_that_comes_while_the_app_closes_does_nothing() -> None:
    async def steps(pilot: Pilot[None]) -> None:
        await opened(pilot)

    app = drive(steps)
    assert app.shown_screen is None
    app._tell_ages()
    app._arrived(of_all=True)
    app._arrived(of_all=False)


def test_while_nothing_is_measured_a_small_terminal_shows_what_is_known_instead_of_an_empty_chart() -> None:
    detail = msgspec.structs.replace(DETAIL, rates=())

    async def steps(pilot: Pilot[None]) -> None:
        await opened(pilot)
        await settled(pilot)
        text = screen_text(pilot)
        assert "Nothing is measured yet" in text and "shards" in text and "ps-0" in text
        assert not broken_rules(pilot.app.screen)

    drive(steps, the_app(FixedSource(VIEW, detail), job=ADS.id), size=(60, 15))
