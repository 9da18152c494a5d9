"""How the screens look in three sizes, with data that stay the same. After a change that is meant to be seen:
``python -m pytest tests/tui/test_snapshots.py --snapshot-update``, and look at the pictures before committing them.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from textual.pilot import Pilot

from dlrover_lite.tui.model import JobsView
from dlrover_lite.tui.screens.reading import ReadingScreen
from tests.tui.driving import arrived, opened, the_app, until
from tests.tui.fixed import ADS, FixedSource

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


def test_light(snap_compare: Compare, size: tuple[int, int]) -> None:
    app = the_app(job=ADS.id)
    app.theme = "textual-light"
    assert snap_compare(app, terminal_size=size, run_before=_job)


def test_help(snap_compare: Compare, size: tuple[int, int]) -> None:
    assert snap_compare(the_app(), terminal_size=size, run_before=_first, press=["question_mark"])
