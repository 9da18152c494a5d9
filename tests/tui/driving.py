"""The application without a terminal, driven by keys."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from textual.pilot import Pilot
from textual.widgets import Input

from dlrover_lite.tui.app import TuiApp
from dlrover_lite.tui.model import JobRow
from dlrover_lite.tui.screens.page import Page
from dlrover_lite.tui.widgets.toned import Lines
from tests.tui.fixed import NOW, FixedSource

PATIENCE = 3000
"""Turns of some milliseconds."""


class Stops:
    """Actions that are only noted."""

    def __init__(self) -> None:
        self.stopped: list[str] = []

    def stop(self, row: JobRow) -> str:
        self.stopped.append(row.id)
        return f"{row.id} stops"


def the_app(source: FixedSource | None = None, **settings: Any) -> TuiApp:
    plain = {"actions": Stops(), "period_seconds": 0.05, "clock": lambda: NOW}
    return TuiApp(source or FixedSource(), **(plain | settings))


async def until(pilot: Pilot[None], condition: Callable[[], bool]) -> None:
    for _ in range(PATIENCE):
        if condition():
            await pilot.pause()
            return
        await pilot.pause(0.005)
    raise AssertionError("it did not come")


async def arrived(pilot: Pilot[None]) -> None:
    """The first that is read is shown."""
    app = pilot.app
    assert isinstance(app, TuiApp)
    await until(pilot, lambda: app.view is not None)


async def opened(pilot: Pilot[None]) -> None:
    """The job that is looked at is shown in detail."""
    screen = pilot.app.screen
    await until(pilot, lambda: bool(screen.grid.table.rows))  # type: ignore[attr-defined]


def drive(
    steps: Callable[[Pilot[None]], Awaitable[None]], app: TuiApp | None = None, *, size: tuple[int, int] = (80, 24)
) -> TuiApp:
    app = app or the_app()

    async def run() -> None:
        async with app.run_test(size=size, notifications=True) as pilot:
            await arrived(pilot)
            await steps(pilot)

    asyncio.run(run())
    return app


def head(app: TuiApp) -> str:
    return app.screen.query_one("#head", Lines).text


def stale(app: TuiApp) -> str:
    return app.screen.query_one("#stale", Lines).text


def page(app: TuiApp) -> Page:
    assert isinstance(app.screen, Page)
    return app.screen


def footer(app: TuiApp) -> dict[str, bool]:
    """Keys that are bound now, and whether they work, by what the footer says of them."""
    return {
        active.binding.description: active.enabled
        for active in app.screen.active_bindings.values()
        if active.binding.show
    }


async def write(pilot: Pilot[None], key: str, text: str, *then: str) -> None:
    """Into the prompt that ``key`` opens; as if pasted, which takes less time than to type it."""
    await pilot.press(key)
    pilot.app.screen.query_one(Input).value = text
    await pilot.pause()
    await pilot.press(*then)
