"""The application without a terminal, driven by keys."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from textual import events
from textual.keys import _character_to_key
from textual.pilot import Pilot
from textual.widgets import Input

from dlrover_lite.core.errors import DlroverLiteError
from dlrover_lite.tui.app import TuiApp
from dlrover_lite.tui.model import Autoscaling, JobRow, Room
from dlrover_lite.tui.screens.dialog import Dialog
from dlrover_lite.tui.screens.page import Page
from dlrover_lite.tui.widgets.key_bar import KeyBar
from dlrover_lite.tui.widgets.toned import Lines
from tests.tui.fixed import NOW, ROOM, FixedSource

PATIENCE = 3000
"""Turns of some milliseconds."""


class Acts:
    """Actions that are only noted; while it ``fails`` they can't be done."""

    def __init__(self, user: str = "") -> None:
        self.user = user
        self.done: list[tuple[Any, ...]] = []
        """What, of which job, and how."""
        self.fails: DlroverLiteError | None = None

    def _note(self, what: str, row: JobRow, *how: Any) -> str:
        if self.fails is not None:
            raise self.fails
        self.done.append((what, row.id, *how))
        return f"{what} of {row.id} begins"

    def stop(self, row: JobRow) -> str:
        return self._note("stop", row)

    def checkpoint(self, row: JobRow) -> str:
        return self._note("checkpoint", row)

    def autoscale(self, row: JobRow, wanted: str, now: Autoscaling) -> str:
        return self._note(wanted, row, now.decision)

    def room(self, row: JobRow) -> Room:
        if self.fails is not None:
            raise self.fails
        return ROOM

    def scale(self, row: JobRow, workers: int | None, servers: int | None) -> str:
        return self._note("scale", row, workers, servers)

    def resize(self, row: JobRow, node: str, cores: float | None, memory: int | None) -> str:
        return self._note("resize", row, node, cores, memory)

    def drain(self, row: JobRow, node: str, *, replace: bool) -> str:
        return self._note("drain", row, node, replace)

    def kill(self, row: JobRow, node: str) -> str:
        return self._note("kill", row, node)


def the_app(source: FixedSource | None = None, *, app: type[TuiApp] = TuiApp, **settings: Any) -> TuiApp:
    plain = {"actions": Acts(), "period_seconds": 0.05, "clock": lambda: NOW}
    return app(source or FixedSource(), **(plain | settings))


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


async def shown(pilot: Pilot[None], dialog: type[Dialog[Any]]) -> None:
    """This dialog can be seen, and takes keys."""

    def seen() -> bool:
        screen = pilot.app.screen
        return isinstance(screen, dialog) and screen.takes(_key("enter"))

    await until(pilot, seen)


def _key(key: str) -> events.Key:
    """As a terminal tells it: the name of a key, or a character."""
    name = _character_to_key(key) if len(key) == 1 else key
    return events.Key(name, key if len(key) == 1 else None)


def type_at_once(app: TuiApp, *keys: str) -> None:
    """Keys by their names, or characters, all of which have arrived before the first is taken: as if pasted, or typed while the machine
    was busy. (A pilot waits after each until all is calm.)"""
    for key in keys:
        app.post_message(_key(key))


async def taken(pilot: Pilot[None]) -> None:
    """All keys that were typed have been."""
    app, came = pilot.app, asyncio.Event()
    assert isinstance(app, TuiApp)
    app.call_later(came.set)
    await came.wait()
    if app.keys_to_take:
        await until(pilot, lambda: not app.keys_to_take)


def drive(
    steps: Callable[[Pilot[None]], Awaitable[None]], app: TuiApp | None = None, *, size: tuple[int, int] = (80, 24)
) -> TuiApp:
    app = app or the_app()

    async def run() -> None:
        async with app.run_test(size=size) as pilot:
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
    """Keys that there are now, and whether they work, by what the footer calls them."""
    return {shown.label.strip(): not shown.why_not for shown in app.screen.query_one(KeyBar).keys}


def told(app: TuiApp) -> list[str]:
    """What notices say, the oldest first."""
    return [one.text for one in app.notices.shown]


async def write(pilot: Pilot[None], key: str, text: str, *then: str) -> None:
    """Into the prompt that ``key`` opens; as if pasted, which takes less time than to type it."""
    await pilot.press(key)
    pilot.app.screen.query_one(Input).value = text
    await pilot.pause()
    await pilot.press(*then)


def screen_text(pilot: Pilot[None]) -> str:
    """What is on the screen, line by line."""
    strips = pilot.app.screen._compositor.render_strips()
    return "\n".join(strip.text.rstrip() for strip in strips)


async def settled(pilot: Pilot[None]) -> None:
    """What is on the screen stays as it is: sizes of parts are known only once they were drawn."""
    before, same = "", 0
    for _ in range(PATIENCE):
        now = screen_text(pilot)
        same = same + 1 if now == before else 0
        if same == 5:
            return
        before = now
        await pilot.pause(0.02)
        await pilot.pause()
    raise AssertionError("the screen does not come to rest")
