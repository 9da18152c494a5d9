"""How the screens look in three sizes, with data that stay the same. After a change that is meant to be seen:
``python -m pytest tests/tui/test_snapshots.py --snapshot-update``, and read what has changed before committing it.

Text, so that a difference can be read; one application for all sizes of a screen. What colours do is in pictures of one screen.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from syrupy.assertion import SnapshotAssertion
from syrupy.extensions.single_file import SingleFileSnapshotExtension, WriteMode
from textual.pilot import Pilot
from textual.widgets import Input

from dlrover_lite.tui.app import TuiApp
from dlrover_lite.tui.model import JobsView
from dlrover_lite.tui.screens.reading import ReadingScreen
from dlrover_lite.tui.widgets.toned import Lines
from tests.tui.driving import arrived, drive, opened, screen_text, settled, the_app, until
from tests.tui.fixed import ADS, DETAIL, EVALUATED, FEED, SUGGESTED, VIEW, FixedSource
from tests.tui.overview import OVERVIEW
from tests.tui.recorded_jobs import job_of
from tests.tui.screen_rules import broken_rules

SIZES = [(60, 15), (80, 24), (120, 40), (200, 60)]
Steps = Callable[[Pilot[None]], Awaitable[None]]


class _Text(SingleFileSnapshotExtension):
    _write_mode = WriteMode.TEXT
    file_extension = "txt"


@pytest.fixture
def seen(snapshot: SnapshotAssertion) -> SnapshotAssertion:
    return snapshot.use_extension(_Text)


async def _job(pilot: Pilot[None]) -> None:
    await opened(pilot)


def screens(steps: Steps, app: TuiApp | None = None) -> str:
    """The text of a screen in all sizes; in none may anything break the rules that hold for all screens."""
    found: list[str] = []

    async def each(pilot: Pilot[None]) -> None:
        await steps(pilot)
        for width, height in SIZES:
            await pilot.resize_terminal(width, height)
            await settled(pilot)
            assert not (broken := broken_rules(pilot.app.screen)), f"{width}x{height}: {broken}"
            found.extend((f"=== {width}x{height}", screen_text(pilot)))

    drive(each, app or the_app(job=ADS.id), size=SIZES[-1])
    return "\n".join(found) + "\n"


def _recorded() -> TuiApp:
    """An application with a job whose reasons are long, and another one that waits."""
    detail = job_of("cold-start", "hot-ps", "memory-to-spare", "predicted-oom", "scaling-up")
    view = JobsView({FEED.id: FEED, ADS.id: detail.row, **VIEW.jobs, ADS.id: detail.row}, "listens")
    return the_app(FixedSource(view, detail), job=ADS.id)


def test_jobs(seen: SnapshotAssertion) -> None:
    assert screens(_nothing, the_app()) == seen


async def _nothing(_pilot: Pilot[None]) -> None:
    pass


def test_jobs_with_long_reasons(seen: SnapshotAssertion) -> None:
    async def steps(pilot: Pilot[None]) -> None:
        await opened(pilot)
        await pilot.press("escape", "down")

    assert screens(steps, _recorded()) == seen


def test_overview(seen: SnapshotAssertion) -> None:
    async def steps(pilot: Pilot[None]) -> None:
        await pilot.press("v")

    assert screens(steps, the_app(FixedSource(OVERVIEW))) == seen


def test_no_jobs(seen: SnapshotAssertion) -> None:
    assert screens(_nothing, the_app(FixedSource(JobsView()))) == seen


def test_job(seen: SnapshotAssertion) -> None:
    assert screens(_job) == seen


def test_job_with_long_reasons(seen: SnapshotAssertion) -> None:
    assert screens(_job, _recorded()) == seen


def test_decisions(seen: SnapshotAssertion) -> None:
    async def steps(pilot: Pilot[None]) -> None:
        await opened(pilot)
        await pilot.press("v")

    assert screens(steps, _recorded()) == seen


def test_explanation(seen: SnapshotAssertion) -> None:
    async def steps(pilot: Pilot[None]) -> None:
        await opened(pilot)
        await pilot.press("v", "down", "down", "enter")
        await until(pilot, lambda: isinstance(pilot.app.screen, ReadingScreen))

    assert screens(steps) == seen


def _asking(*keys: str) -> Steps:
    async def steps(pilot: Pilot[None]) -> None:
        await opened(pilot)
        screen = pilot.app.screen
        await pilot.press(*keys)
        await until(pilot, lambda: pilot.app.screen is not screen)
        for written in pilot.app.screen.query(Input):
            written.cursor_blink = False

    return steps


@pytest.mark.parametrize("keys", [("down", "ctrl+k"), ("ctrl+d",)], ids=["kill", "stop"])
def test_asking(seen: SnapshotAssertion, keys: tuple[str, ...]) -> None:
    assert screens(_asking(*keys)) == seen


def test_form_with_an_error(seen: SnapshotAssertion) -> None:
    async def steps(pilot: Pilot[None]) -> None:
        await _asking("s")(pilot)
        await pilot.press("9", "enter")
        await until(pilot, lambda: "at most 7." in pilot.app.screen.query_one("#said", Lines).text)

    assert screens(steps) == seen


def test_something_is_suggested(seen: SnapshotAssertion) -> None:
    source = FixedSource(VIEW, msgspec.structs.replace(DETAIL, autoscaling=SUGGESTED, autoscale="suggests 5: more"))
    assert screens(_job, the_app(source, job=ADS.id)) == seen


def test_ids_are_unknown(seen: SnapshotAssertion) -> None:
    source = FixedSource(VIEW, msgspec.structs.replace(DETAIL, evaluated=EVALUATED))
    assert screens(_job, the_app(source, job=ADS.id)) == seen


def test_help(seen: SnapshotAssertion) -> None:
    async def steps(pilot: Pilot[None]) -> None:
        await pilot.press("question_mark")

    assert screens(steps, the_app()) == seen


@pytest.mark.parametrize("colours", ["textual-dark", "textual-light", "NO_COLOR"])
def test_colours(snap_compare: Callable[..., bool], colours: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if colours == "NO_COLOR":
        monkeypatch.setenv("NO_COLOR", "1")
    app = _recorded()
    if colours != "NO_COLOR":
        app.theme = colours

    async def run_before(pilot: Pilot[Any]) -> None:
        await arrived(pilot)
        await opened(pilot)

    assert snap_compare(app, terminal_size=(120, 40), run_before=run_before)


@pytest.mark.parametrize("colours", ["textual-light", "NO_COLOR"])
def test_the_text_is_the_same_in_all_colours_and_sizes(colours: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if colours == "NO_COLOR":
        monkeypatch.setenv("NO_COLOR", "1")
    app = _recorded()
    if colours != "NO_COLOR":
        app.theme = colours
    known = Path(__file__).parent / "__snapshots__" / "test_snapshots" / "test_job_with_long_reasons.txt"
    assert screens(_job, app) == known.read_text(encoding="utf-8")
