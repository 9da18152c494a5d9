"""The recipe as it was resolved, and tables without what has ended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from textual.pilot import Pilot

from dlrover_lite.backends.local.jobs.local_jobs import create_job
from dlrover_lite.recipe.load import parse_recipe
from dlrover_lite.tui.model import JobsView
from dlrover_lite.tui.pages.jobs_page import recipe_lines
from dlrover_lite.tui.screens.reading import ReadingScreen
from dlrover_lite.tui.text import plain
from tests.tui.driving import drive, footer, head, opened, taken, the_app, told, type_at_once, until
from tests.tui.fixed import ADS, BROKEN, FEED, OLD, FixedSource

RECIPE = {
    "version": 1,
    "name": "ads",
    "model": {"use": "wide_deep"},
    "data": {"format": "synthetic", "samples": 1000},
}


def test_y_shows_the_recipe_with_its_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DLROVER_LITE_HOME", str(tmp_path))
    job = create_job(parse_recipe(RECIPE))
    source = FixedSource(JobsView({job.id: msgspec.structs.replace(ADS, id=job.id)}))

    async def steps(pilot: Pilot[None]) -> None:
        app: Any = pilot.app
        for keys in ("y", [*":recipe", "enter"]):
            type_at_once(app, *keys)
            await taken(pilot)
            screen = app.screen
            assert isinstance(screen, ReadingScreen)
            await until(pilot, lambda: screen.pager.counts[1] > 1)  # noqa: B023
            text = [plain(line) for line in screen.lines]
            assert "  use: wide_deep" in text
            assert any(line.startswith("  batch_size: ") for line in text)  # which the recipe doesn't say
            await pilot.press("escape")

    drive(steps, the_app(source))


def test_a_recipe_that_cannot_be_read_is_told() -> None:
    async def steps(pilot: Pilot[None]) -> None:
        app: Any = pilot.app
        await pilot.press("down", "y")
        await until(pilot, lambda: bool(told(app)))
        assert ADS.id in told(app)[-1]
        assert "It can't be read" in plain(app.screen.lines[0])

    drive(steps)


def test_names_in_a_recipe_are_apart_from_values() -> None:
    lines = recipe_lines("data:\n  files:\n  - path: s3://a/b\n  - a: b\n  note: 'x: y'\n  - plain")
    assert [[span.text for span in line if span.tone == "accent"] for line in lines] == [
        ["data:"],
        ["files:"],
        ["path:"],
        ["a:"],
        ["note:"],
        [],
    ]


def test_e_leaves_out_what_has_ended_and_says_so() -> None:
    async def steps(pilot: Pilot[None]) -> None:
        app: Any = pilot.app
        await pilot.press("end", "e")
        assert app.screen.grid.table.shown == [FEED.id, ADS.id]
        assert app.screen.grid.cursor in (FEED.id, ADS.id)
        assert "2 over left out (e)" in head(app)
        type_at_once(app, "/", *"mira", "enter")
        await taken(pilot)
        assert app.screen.grid.table.shown == [ADS.id]
        await pilot.press("e")
        assert app.screen.grid.table.shown == [ADS.id, BROKEN.id, OLD.id]
        assert "left out" not in head(app)
        await pilot.press("escape", "home", "down", "enter")
        await opened(pilot)
        assert "worker-1" in app.screen.grid.table.shown
        await pilot.press("e")
        assert app.screen.grid.table.shown == ["ps-0", "worker-0", "worker-3"]
        assert "1 ended node left out (e)" in head(app)
        assert "All" in footer(app)

    drive(steps, size=(160, 40))


def test_a_node_that_ends_leaves_a_table_without_ended_ones() -> None:
    source = FixedSource()

    async def steps(pilot: Pilot[None]) -> None:
        app: Any = pilot.app
        await opened(pilot)
        await pilot.press("e")
        detail = source.details[ADS.id]
        nodes = tuple(
            msgspec.structs.replace(one, state="ended (Succeeded)") if one.id == "worker-0" else one
            for one in detail.nodes
        )
        source.details[ADS.id] = msgspec.structs.replace(detail, nodes=nodes)
        await until(pilot, lambda: app.screen.grid.table.shown == ["ps-0", "worker-3"])
        assert "2 ended nodes left out (e)" in head(app)

    drive(steps, the_app(source, job=ADS.id))
