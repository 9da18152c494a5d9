"""How the screens look in three sizes, with data that stay the same. After a change that is meant to be seen:
``python -m pytest tests/tui/test_snapshots.py --snapshot-update``, and look at the pictures before committing them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec
import pytest
from textual.pilot import Pilot
from textual.widgets import Input

from dlrover_lite.tui.model import JobsView
from dlrover_lite.tui.screens.reading import ReadingScreen
from dlrover_lite.tui.widgets.toned import Lines
from tests.tui.driving import arrived, opened, the_app, until
from tests.tui.fixed import ADS, DETAIL, EVALUATED, SUGGESTED, VIEW, FixedSource

SIZES = [(80, 24), (120, 40), (200, 60)]
Compare = Callable[..., bool]

pytestmark = pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")


async def _first(pilot: Pilot[None]) -> None:
    await arrived(pilot)


async def _job(pilot: Pilot[None]) -> None:
    await arrived(pilot)
    await opened(pilot)


def test_jobs(snap_compare: Compare, size: tuple[int, int]) -> None:
    assert snap_compare(the_app(), terminal_size=size, run_before=_first)


def test_no_jobs(snap_compare: Compare, size: tuple[int, int]) -> None:
    assert snap_compare(the_app(FixedSource(JobsView())), terminal_size=size, run_before=_first)


def test_job(snap_compare: Compare, size: tuple[int, int]) -> None:
    assert snap_compare(the_app(job=ADS.id), terminal_size=size, run_before=_job)


def test_decisions(snap_compare: Compare, size: tuple[int, int]) -> None:
    async def run_before(pilot: Pilot[None]) -> None:
        await _job(pilot)
        await pilot.press("v")

    assert snap_compare(the_app(job=ADS.id), terminal_size=size, run_before=run_before)


def test_explanation(snap_compare: Compare, size: tuple[int, int]) -> None:
    async def run_before(pilot: Pilot[None]) -> None:
        await _job(pilot)
        await pilot.press("v", "down", "down", "enter")
        await until(pilot, lambda: isinstance(pilot.app.screen, ReadingScreen))

    assert snap_compare(the_app(job=ADS.id), terminal_size=size, run_before=run_before)


def _asking(key: str) -> Callable[[Pilot[None]], Awaitable[None]]:
    async def run_before(pilot: Pilot[None]) -> None:
        await _job(pilot)
        screen = pilot.app.screen
        await pilot.press("down", key)
        await until(pilot, lambda: pilot.app.screen is not screen)
        for written in pilot.app.screen.query(Input):
            written.cursor_blink = False

    return run_before


@pytest.mark.parametrize("key", ["s", "ctrl+k"], ids=["scale", "kill"])
def test_asking(snap_compare: Compare, size: tuple[int, int], key: str) -> None:
    assert snap_compare(the_app(job=ADS.id), terminal_size=size, run_before=_asking(key))


def test_form_with_an_error(snap_compare: Compare, size: tuple[int, int]) -> None:
    async def run_before(pilot: Pilot[None]) -> None:
        await _asking("s")(pilot)
        await pilot.press("9", "enter")
        await until(pilot, lambda: "at most 7." in pilot.app.screen.query_one("#said", Lines).text)

    assert snap_compare(the_app(job=ADS.id), terminal_size=size, run_before=run_before)


def test_something_is_suggested(snap_compare: Compare, size: tuple[int, int]) -> None:
    source = FixedSource(VIEW, msgspec.structs.replace(DETAIL, autoscaling=SUGGESTED, autoscale="suggests 5: more"))
    assert snap_compare(the_app(source, job=ADS.id), terminal_size=size, run_before=_job)


def test_ids_are_unknown(snap_compare: Compare, size: tuple[int, int]) -> None:
    source = FixedSource(VIEW, msgspec.structs.replace(DETAIL, evaluated=EVALUATED))
    assert snap_compare(the_app(source, job=ADS.id), terminal_size=size, run_before=_job)


def test_light(snap_compare: Compare, size: tuple[int, int]) -> None:
    app = the_app(job=ADS.id)
    app.theme = "textual-light"
    assert snap_compare(app, terminal_size=size, run_before=_job)


def test_help(snap_compare: Compare, size: tuple[int, int]) -> None:
    assert snap_compare(the_app(), terminal_size=size, run_before=_first, press=["question_mark"])
