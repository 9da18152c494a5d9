"""Each key that changes something: what it asks, what is done then, and what it says where it can't be done."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from textual.pilot import Pilot
from textual.widgets import Input

from dlrover_lite.core.errors import JobError, UsageError
from dlrover_lite.core.units import GIB
from dlrover_lite.tui.app import TuiApp
from dlrover_lite.tui.model import Autoscaling, JobDetail
from dlrover_lite.tui.screens.confirm import Confirm
from dlrover_lite.tui.screens.decisions import DecisionsScreen
from dlrover_lite.tui.screens.form import Form
from dlrover_lite.tui.screens.job import JobScreen
from dlrover_lite.tui.screens.jobs import JobsScreen
from dlrover_lite.tui.widgets.key_bar import KeyBar
from dlrover_lite.tui.widgets.toned import Lines
from tests.tui.driving import Acts, drive, footer, opened, shown, the_app, told, until, write
from tests.tui.fixed import ADS, BROKEN, DETAIL, FEED, SUGGESTED, VIEW, FixedSource


def _app(pilot: Pilot[None]) -> TuiApp:
    assert isinstance(pilot.app, TuiApp)
    return pilot.app


def _source(**fields: Any) -> FixedSource:
    return FixedSource(VIEW, msgspec.structs.replace(DETAIL, **fields))


def _said(pilot: Pilot[None]) -> str:
    return pilot.app.screen.query_one("#said", Lines).text


PAUSED = Autoscaling("on", "by request")
UNDER_WAY = Autoscaling("on", decision=6, what="more workers", under_way=True)
KEYS: list[tuple[list[str], Autoscaling, tuple[Any, ...]]] = [
    (["p"], Autoscaling("on"), ("pause", ADS.id, None)),
    (["p"], PAUSED, ("resume", ADS.id, None)),
    (["a"], SUGGESTED, ("accept", ADS.id, 5)),
    (["x"], SUGGESTED, ("reject", ADS.id, 5)),
    (["x", "y"], UNDER_WAY, ("reject", ADS.id, 6)),
    (["t"], PAUSED, ("checkpoint", ADS.id)),
    (["down", "r", "y"], PAUSED, ("drain", ADS.id, "worker-0", False)),
    (["down", "r", "r"], PAUSED, ("drain", ADS.id, "worker-0", True)),
    (["down", "ctrl+k", "y"], PAUSED, ("kill", ADS.id, "worker-0")),
    (["ctrl+k", "y"], PAUSED, ("kill", ADS.id, "ps-0")),
    (["ctrl+d", "y"], PAUSED, ("stop", ADS.id)),
]


@pytest.mark.parametrize(("keys", "autoscaling", "done"), KEYS, ids=lambda value: str(value)[:30])
def test_keys_act_and_the_result_is_told(keys: list[str], autoscaling: Autoscaling, done: tuple[Any, ...]) -> None:
    acts = Acts()

    async def steps(pilot: Pilot[None]) -> None:
        await opened(pilot)
        await pilot.press(*keys)
        await until(pilot, lambda: acts.done == [done])
        await until(pilot, lambda: told(_app(pilot)) == [f"{done[0]} of {ADS.id} begins"])
        assert isinstance(pilot.app.screen, JobScreen)

    drive(steps, the_app(_source(autoscaling=autoscaling), job=ADS.id, actions=acts))


@pytest.mark.parametrize("keys", [["down", "ctrl+k"], ["down", "r"], ["ctrl+d"], ["x"]], ids=str)
@pytest.mark.parametrize("answer", ["n", "escape"])
def test_irreversible_actions_ask_first(keys: list[str], answer: str) -> None:
    acts = Acts()

    async def steps(pilot: Pilot[None]) -> None:
        await opened(pilot)
        await pilot.press(*keys)
        assert isinstance(pilot.app.screen, Confirm)
        await pilot.press(answer)
        assert isinstance(pilot.app.screen, JobScreen)
        await pilot.press("t")  # one that doesn't ask
        await until(pilot, lambda: acts.done == [("checkpoint", ADS.id)])

    drive(steps, the_app(_source(autoscaling=UNDER_WAY), job=ADS.id, actions=acts))


def test_r_answers_a_decision_only_if_there_is_one_else_drains() -> None:
    async def steps(pilot: Pilot[None]) -> None:
        await opened(pilot)
        await pilot.press("ctrl+d", "r")
        assert isinstance(pilot.app.screen, Confirm)

    drive(steps, the_app(job=ADS.id))


def test_an_error_of_an_action_is_told_with_its_hint() -> None:
    acts = Acts()
    acts.fails = JobError("nobody is there", hint="Look again.")

    async def steps(pilot: Pilot[None]) -> None:
        await opened(pilot)
        await pilot.press("t")
        await until(pilot, lambda: told(_app(pilot)) == ["nobody is there\nLook again."])
        await pilot.press("s")
        await until(pilot, lambda: [one.times for one in _app(pilot).notices.shown] == [2])
        assert told(_app(pilot)) == ["nobody is there\nLook again."]
        assert isinstance(pilot.app.screen, JobScreen)

    drive(steps, the_app(job=ADS.id, actions=acts))


# --- forms ------------------------------------------------------------------------------------------------------------


async def _form(pilot: Pilot[None], *keys: str) -> Form:
    await pilot.press(*keys)
    await shown(pilot, Form)
    screen = pilot.app.screen
    assert isinstance(screen, Form)
    await until(pilot, lambda: all(one.value for one in screen.query(Input)))
    return screen


def test_scale_form_shows_present_numbers_and_errors() -> None:
    acts = Acts()

    async def steps(pilot: Pilot[None]) -> None:
        await opened(pilot)
        form = await _form(pilot, "s")
        workers, servers = form.query(Input)
        assert (workers.value, servers.value) == ("2", "1")
        assert workers.has_focus
        await pilot.press("enter")
        assert "That is what it has" in _said(pilot)
        await pilot.press("x")
        assert "✗" not in _said(pilot)
        await pilot.press("enter")
        assert "workers: x is no number of nodes" in _said(pilot)
        workers.value = "8"
        await pilot.press("enter")
        assert "8 workers need 4.5 cores with the parameter servers" in _said(pilot)
        assert "Ask for at most 7." in _said(pilot)
        acts.fails = UsageError("there is no room", hint="Ask for at most 4.")
        workers.value = "5"
        await pilot.press("enter")
        await until(pilot, lambda: "there is no room" in _said(pilot))
        assert "Ask for at most 4." in _said(pilot)
        assert pilot.app.screen is form
        acts.fails = None
        workers.value = "4"
        await pilot.press("tab")
        assert servers.has_focus
        await pilot.press("2", "enter")
        await until(pilot, lambda: isinstance(pilot.app.screen, JobScreen))
        assert acts.done == [("scale", ADS.id, 4, 2)]
        assert told(_app(pilot)) == [f"scale of {ADS.id} begins"]

    drive(steps, the_app(job=ADS.id, actions=acts))


def test_the_form_to_resize_is_about_the_chosen_node() -> None:
    acts = Acts()

    async def steps(pilot: Pilot[None]) -> None:
        await opened(pilot)
        form = await _form(pilot, "down", "z")
        cores, memory = form.query(Input)
        assert (cores.value, memory.value) == ("0.5", "440MiB")
        await pilot.press("down")
        memory.value = "much"
        await pilot.press("enter")
        assert "is not an amount of memory" in _said(pilot)
        memory.value = "1 GiB"
        await pilot.press("up", "enter")
        await until(pilot, lambda: acts.done == [("resize", ADS.id, "worker-0", None, GIB)])
        await until(pilot, lambda: isinstance(pilot.app.screen, JobScreen))

    drive(steps, the_app(job=ADS.id, actions=acts))


def test_leaving_a_form_does_nothing() -> None:
    acts = Acts()

    async def steps(pilot: Pilot[None]) -> None:
        await pilot.press("down")
        await _form(pilot, "s")
        await pilot.press("9", "escape")
        assert isinstance(pilot.app.screen, JobsScreen)
        assert acts.done == []

    drive(steps, the_app(actions=acts))


# --- why not ----------------------------------------------------------------------------------------------------------


def test_keys_that_cannot_act_say_why() -> None:
    two = msgspec.structs.replace(DETAIL, nodes=DETAIL.nodes[:2], autoscaling=Autoscaling("suggest"), checkpoints=None)

    async def steps(pilot: Pilot[None]) -> None:
        await opened(pilot)
        app = _app(pilot)
        await pilot.press("a", "r", "t", "down", "r")
        assert told(app) == [
            f"Nothing is suggested for {ADS.id} just now",
            "ps-0 can't be drained: it is the only parameter server",
            f"{ADS.id} takes no checkpoints: its recipe says so",
            "worker-0 can't be drained: it is the only worker",
        ]
        assert [footer(app)[name] for name in ("Accept", "Drain", "Save", "Kill")] == [False, False, False, True]
        assert "(a Accept)" in app.screen.query_one(KeyBar).text

    acts = Acts()
    drive(steps, the_app(FixedSource(VIEW, two), job=ADS.id, actions=acts), size=(160, 40))
    assert acts.done == []


@pytest.mark.parametrize(
    ("moves", "why"),
    [
        (["home"], f"The master of {FEED.id} belongs to another user, jo"),
        (["home", "down", "down"], f"{BROKEN.id} has ended"),
    ],
)
def test_actions_on_ended_or_others_jobs_are_refused_with_a_reason(moves: list[str], why: str) -> None:
    async def steps(pilot: Pilot[None]) -> None:
        for key in ("ctrl+d", "s", "t"):
            await pilot.press("ctrl+l")  # they go by themselves after a while, too
            await pilot.press(*moves, key)
            assert told(_app(pilot)) == [why]
        assert not footer(_app(pilot))["Scale"]

    drive(steps, the_app(actions=Acts("mira")), size=(120, 40))


def test_readonly_tui_can_change_nothing() -> None:
    async def steps(pilot: Pilot[None]) -> None:
        await opened(pilot)
        await pilot.press("p", "a", "x", "s", "z", "r", "ctrl+k", "t", "ctrl+d")
        assert isinstance(pilot.app.screen, JobScreen)
        assert list(footer(_app(pilot))) == [
            "Why",
            "Filter",
            "Describe",
            "Live",
            "Decisions",
            "Logs",
            "Recipe",
            "Help",
            "Back",
            "Quit",
        ]
        await write(pilot, "colon", "stop", "enter")
        assert told(_app(pilot)) == ["Nothing can be changed from here"]
        assert not list(pilot.app.screen.acting_commands())  # type: ignore[attr-defined]

    drive(steps, the_app(job=ADS.id, actions=None))


# --- other ways -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "then", "done"),
    [
        ("pause", [], ("pause", ADS.id, 5)),
        ("accept", [], ("accept", ADS.id, 5)),
        ("reject", [], ("reject", ADS.id, 5)),
        ("checkpoint", [], ("checkpoint", ADS.id)),
        ("drain worker-3", ["y"], ("drain", ADS.id, "worker-3", False)),
        ("kill worker-3", ["y"], ("kill", ADS.id, "worker-3")),
        ("kill", ["y"], ("kill", ADS.id, "ps-0")),
        ("stop", ["y"], ("stop", ADS.id)),
        ("scale", ["7", "enter"], ("scale", ADS.id, 7, None)),
        ("resize worker-3", ["1", "enter"], ("resize", ADS.id, "worker-3", 1.0, None)),
    ],
)
def test_commands_act_like_keys(command: str, then: list[str], done: tuple[Any, ...]) -> None:
    acts = Acts()

    async def steps(pilot: Pilot[None]) -> None:
        await opened(pilot)
        screen = pilot.app.screen
        await write(pilot, "colon", command, "enter")
        if then:
            await until(pilot, lambda: pilot.app.screen is not screen)
            await pilot.press(*then)
        await until(pilot, lambda: acts.done == [done])

    drive(steps, the_app(_source(autoscaling=SUGGESTED), job=ADS.id, actions=acts))


def test_senseless_acting_commands_say_why() -> None:
    async def steps(pilot: Pilot[None]) -> None:
        await write(pilot, "colon", "kill worker-0", "enter")
        await pilot.press("down", "enter")
        await opened(pilot)
        await write(pilot, "colon", "resume", "enter")
        await write(pilot, "colon", "kill worker-7", "enter")
        await pilot.press("question_mark")
        await write(pilot, "colon", "stop", "enter")
        first, *rest = told(_app(pilot))
        assert "waits for a plan" in first
        assert rest[0] == "Autoscaling is not paused"
        assert "no node 'worker-7' that runs" in rest[1]
        assert rest[2] == "Go to a job first: :stop is for one"

    drive(steps)


def test_palette_lists_the_possible_actions() -> None:
    async def steps(pilot: Pilot[None]) -> None:
        await opened(pilot)
        screen = pilot.app.screen
        titles = {one.title: one for one in _app(pilot).choices(screen)}
        assert {f"Pause {ADS.id}", f"Scale {ADS.id}", "Kill ps-0", "Resize ps-0", f"Stop {ADS.id}"} <= set(titles)
        assert "Drain ps-0" not in titles  # the only one
        titles["Kill ps-0"].do()
        await pilot.pause()
        assert isinstance(pilot.app.screen, Confirm)

    drive(steps, the_app(job=ADS.id))


def test_decisions_are_answered_on_their_screen() -> None:
    acts = Acts()

    async def steps(pilot: Pilot[None]) -> None:
        await opened(pilot)
        await pilot.press("v", "a")
        assert isinstance(pilot.app.screen, DecisionsScreen)
        await until(pilot, lambda: acts.done == [("accept", ADS.id, 5)])

    drive(steps, the_app(_source(autoscaling=SUGGESTED), job=ADS.id, actions=acts))


def test_keys_at_the_bottom_can_be_clicked() -> None:
    acts = Acts()

    async def steps(pilot: Pilot[None]) -> None:
        await opened(pilot)
        text = pilot.app.screen.query_one(KeyBar).text
        await pilot.click(KeyBar, offset=(text.index("Pause"), 0))
        await until(pilot, lambda: acts.done == [("pause", ADS.id, None)])
        await pilot.click(KeyBar, offset=(text.index("Stop"), 0))
        await until(pilot, lambda: isinstance(pilot.app.screen, Confirm))

    drive(steps, the_app(job=ADS.id, actions=acts))


def test_pause_key_is_labelled_pause_or_resume() -> None:
    source = FixedSource()

    async def steps(pilot: Pilot[None]) -> None:
        await opened(pilot)
        assert "Pause" in footer(_app(pilot)) and "Accept" not in footer(_app(pilot))
        before = pilot.app.screen.query_one(KeyBar).text
        source.details[ADS.id] = msgspec.structs.replace(DETAIL, autoscaling=PAUSED)
        await until(pilot, lambda: "Resume" in footer(_app(pilot)))
        assert len(pilot.app.screen.query_one(KeyBar).text) == len(before)  # nothing else moves

    drive(steps, the_app(source, job=ADS.id))


def test_a_job_that_is_not_known_yet_can_be_stopped() -> None:
    acts = Acts()
    source = FixedSource(VIEW, JobDetail(row=ADS))

    async def steps(pilot: Pilot[None]) -> None:
        await until(pilot, lambda: isinstance(pilot.app.screen, JobScreen))
        await pilot.press("p", "ctrl+k")
        assert told(_app(pilot)) == [f"How autoscaling of {ADS.id} stands isn't known yet", "No node is chosen"]
        await pilot.press("ctrl+d", "y")
        await until(pilot, lambda: acts.done == [("stop", ADS.id)])

    drive(steps, the_app(source, job=ADS.id, actions=acts))


def test_a_row_that_a_filter_hides_is_not_acted_on() -> None:
    async def steps(pilot: Pilot[None]) -> None:
        await pilot.press("down")
        await write(pilot, "slash", "no such job", "enter")
        await pilot.press("ctrl+d", "l", "enter", "d", "y")
        assert isinstance(pilot.app.screen, JobsScreen)
        assert told(_app(pilot)) == ["No job is chosen", "There is no row to choose"]
        await pilot.press("escape", "ctrl+d")
        assert isinstance(pilot.app.screen, Confirm)

    drive(steps)
