"""Keys that arrive together, before any of them was taken: each finds what the one before it has done."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import Input

from dlrover_lite.tui.app import DARK, LIGHT, TuiApp
from dlrover_lite.tui.model import Explanation, JobRow, Room
from dlrover_lite.tui.screens.confirm import Confirm
from dlrover_lite.tui.screens.decisions import DecisionsScreen
from dlrover_lite.tui.screens.form import Form
from dlrover_lite.tui.screens.job import JobScreen
from dlrover_lite.tui.screens.jobs import JobsScreen
from dlrover_lite.tui.screens.palette import Palette
from dlrover_lite.tui.screens.reading import ReadingScreen
from dlrover_lite.tui.text import plain
from tests.tui.driving import Acts, drive, opened, shown, taken, the_app, type_at_once, until
from tests.tui.fixed import ADS, FixedSource


def typed(*keys: str, then: Callable[[TuiApp], None], job: str | None = ADS.id, acts: Acts | None = None) -> TuiApp:
    """All of these, on the screen of a job; ``then`` is given what they have come to."""

    async def steps(pilot: Pilot[None]) -> None:
        if job is not None:
            await opened(pilot)
        type_at_once(_app(pilot), *keys)
        await taken(pilot)
        then(_app(pilot))

    return drive(steps, the_app(job=job, actions=acts or Acts()))


def _app(pilot: Pilot[None]) -> TuiApp:
    assert isinstance(pilot.app, TuiApp)
    return pilot.app


@pytest.mark.parametrize(("command", "theme"), [(":theme light", LIGHT), (":theme dark", DARK)])
def test_a_command_is_text_from_its_colon_on(command: str, theme: str) -> None:
    """t takes a checkpoint, and d describes, where they are keys."""

    def then(app: TuiApp) -> None:
        assert app.theme == theme
        assert isinstance(app.screen, JobScreen)

    acts = Acts()
    typed(*command, "enter", then=then, acts=acts)
    assert acts.done == []


def test_a_filter_is_text_from_its_slash_on() -> None:
    def then(app: TuiApp) -> None:
        assert isinstance(app.screen, JobScreen)
        assert app.screen.filter_text == "stop paxt"

    acts = Acts()
    typed(*"/stop paxt", then=then, acts=acts)
    assert acts.done == []


@pytest.mark.parametrize(
    ("keys", "job"),
    [([*":jobs", "enter", "down", "enter", "v"], None), ([*"/worker", "enter", "j", *"/x", "escape", "v"], ADS.id)],
)
def test_keys_after_enter_are_keys_again(keys: list[str], job: str | None) -> None:
    def then(app: TuiApp) -> None:
        assert isinstance(app.screen, DecisionsScreen)
        assert app.screen.detail.row.id == ADS.id

    typed(*keys, then=then, job=job)


def test_keys_for_a_screen_that_opens_wait_for_it() -> None:
    def then(app: TuiApp) -> None:
        assert isinstance(app.screen, JobScreen)
        assert app.screen.filter_text == "ps"

    typed("down", "enter", *"/ps", "enter", then=then, job=None)


def test_text_typed_after_opening_the_palette_goes_to_it() -> None:
    def light(app: TuiApp) -> None:
        assert app.theme == LIGHT

    def nothing(app: TuiApp) -> None:
        assert isinstance(app.screen, Palette)
        assert app.screen.words.value == "xtp"

    acts = Acts()
    typed("ctrl+p", *"light", "enter", then=light, acts=acts)
    typed("ctrl+p", *"xtp", "pagedown", "enter", then=nothing, acts=acts)
    assert acts.done == []


@pytest.mark.parametrize(
    "keys", [["ctrl+d", "y"], ["ctrl+k", "y"], ["down", "r", "y", "enter"], [*":stop", "enter", "y"]]
)
def test_a_question_takes_no_keys_before_it_is_seen(keys: list[str]) -> None:
    def then(app: TuiApp) -> None:
        assert isinstance(app.screen, Confirm)

    acts = Acts()
    typed(*keys, then=then, acts=acts)
    assert acts.done == []


def test_a_form_takes_no_keys_before_it_is_seen() -> None:
    def then(app: TuiApp) -> None:
        assert isinstance(app.screen, Form)
        assert [one.value for one in app.screen.query(Input)] == ["0.5", "151MiB"]

    acts = Acts()
    typed("z", *"99", "enter", then=then, acts=acts)
    assert acts.done == []


def test_commands_typed_one_after_the_other_are_each_done() -> None:
    def then(app: TuiApp) -> None:
        assert isinstance(app.screen, DecisionsScreen)
        assert app.theme == "colour-blind"
        assert app.screen.grid.table.order.column == "came"

    acts = Acts()
    commands = (":ls", ":skin colour-blind", ":j ads-7f3k", ":pu", ":-", ":dec", ":so came")
    typed(*(key for command in commands for key in (*command, "enter")), then=then, acts=acts)
    assert acts.done == []


def test_a_search_and_its_next_line_are_typed_at_once() -> None:
    def then(app: TuiApp) -> None:
        assert isinstance(app.screen, ReadingScreen)
        text = app.screen.pager.text
        assert (text.at, text.only, app.screen.pager.wraps) == (2, True, True)
        assert all("job" in plain(line).lower() for line in app.screen.pager.shown)

    typed(*"?/job", "enter", *"nnnN&w", then=then)


def test_keys_after_q_do_nothing() -> None:
    acts = Acts()
    typed("q", "t", "p", "enter", then=lambda app: None, acts=acts)
    assert acts.done == []


class Slow(Acts):
    """Says what there is only when it is ``told``."""

    def __init__(self) -> None:
        super().__init__()
        self.told = threading.Event()

    def room(self, row: JobRow) -> Room:
        assert self.told.wait(60)
        return super().room(row)


def test_a_form_opens_at_once_and_is_filled_in_later() -> None:
    """It doesn't come up later, over something else, and take keys that are meant for that."""
    acts = Slow()

    async def steps(pilot: Pilot[None]) -> None:
        await opened(pilot)
        await pilot.press("s")
        await shown(pilot, Form)
        type_at_once(_app(pilot), *"6", "enter", "tab")
        await taken(pilot)
        assert isinstance(pilot.app.screen, Form)
        acts.told.set()
        await until(pilot, lambda: [one.value for one in pilot.app.screen.query(Input)] == ["6", "1"])
        assert acts.done == []
        type_at_once(_app(pilot), *"2", "enter")
        await until(pilot, lambda: acts.done == [("scale", ADS.id, 6, 2)])

    drive(steps, the_app(job=ADS.id, actions=acts))


def test_a_form_that_was_left_does_not_come_back() -> None:
    acts = Slow()

    async def steps(pilot: Pilot[None]) -> None:
        await opened(pilot)
        await pilot.press("s")
        await shown(pilot, Form)
        await pilot.press("escape")
        acts.told.set()
        await pilot.pause(0.05)
        assert isinstance(pilot.app.screen, JobScreen)

    drive(steps, the_app(job=ADS.id, actions=acts))
    assert acts.done == []


class SlowSource(FixedSource):
    """Explains only when it is ``told``."""

    told: Any = None

    def explain(self, job: str, number: int) -> Explanation | None:
        assert self.told.wait(60)
        return super().explain(job, number)


def test_an_explanation_opens_its_screen_at_once() -> None:
    source = SlowSource()
    source.told = threading.Event()

    async def steps(pilot: Pilot[None]) -> None:
        await opened(pilot)
        await pilot.press("v", "end", "up", "enter")
        assert isinstance(pilot.app.screen, ReadingScreen)
        await pilot.press("escape")
        assert isinstance(pilot.app.screen, DecisionsScreen)
        await pilot.press("enter")
        source.told.set()
        screen = pilot.app.screen
        assert isinstance(screen, ReadingScreen)
        await until(pilot, lambda: screen.pager.counts[1] > 1)
        await pilot.press("escape", "escape", "escape")
        assert isinstance(pilot.app.screen, JobsScreen)

    drive(steps, the_app(source, job=ADS.id))


def test_a_job_that_is_left_and_opened_again_at_once_is_shown() -> None:
    async def steps(pilot: Pilot[None]) -> None:
        app: Any = pilot.app
        await opened(pilot)
        type_at_once(app, "escape", *f":j {ADS.id}", "enter")
        await taken(pilot)
        assert app.screen.job == ADS.id and app.screen.grid.table.rows

    drive(steps, the_app(job=ADS.id))
