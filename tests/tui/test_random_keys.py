"""Any keys in any order, alone and together, while the terminal gets other sizes: nothing breaks, and nothing is done that can't be undone
unless a person said yes to it. ``CHAOS=long`` types ten thousand keys with each seed; ``CHAOS_SEED`` is another first seed."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest
from textual import events
from textual.pilot import Pilot

from dlrover_lite.tui.app import TuiApp
from dlrover_lite.tui.keys import REPLAY, SCREENS
from dlrover_lite.tui.model import Autoscaling
from dlrover_lite.tui.recordings.recorded import RecordedSource, Recording
from dlrover_lite.tui.replay_app import ReplayApp
from dlrover_lite.tui.screens.confirm import Confirm
from dlrover_lite.tui.screens.form import Form
from dlrover_lite.tui.screens.job import JobScreen
from tests.chaos.extent import LONG
from tests.tui.driving import Acts, drive, opened, shown, taken, the_app, told, type_at_once, until
from tests.tui.fixed import ADS, SUGGESTED, FixedSource

MOST_AT_ONCE = 12
KEYS_TO_TYPE = 10_000 if LONG else 250
RESIZED = 0.05
"""Share of the times that keys are typed at which the terminal gets another size meanwhile."""
OPENED, ACTED = 0.1, 0.5
"""Shares of the times that keys are typed at which they lead to the job, and, where it is open, are to do something about it."""
ACTING = ("r", "z", "s", "x", "a", "p", "t", "ctrl+k", "ctrl+d")
FIRST_SEED = int(os.environ.get("CHAOS_SEED") or 1)
UNDER_WAY = Autoscaling("on", decision=6, what="more workers", under_way=True)
SIZES = [(20, 8), (60, 15), (80, 24), (200, 60)]
_LEAVING = ("q", "ctrl+q")
_BOUND = sorted({key for keys in (*SCREENS.values(), REPLAY) for one in keys for key in one.key.split(",")})
KEYS = [
    *(key for key in _BOUND if key not in _LEAVING),
    *(
        "y",
        "n",
        "r",
        "tab",
        "shift+tab",
        "backspace",
        "delete",
        "left",
        "right",
        "ctrl+a",
        "ctrl+u",
        "ctrl+w",
        "ctrl+c",
    ),
    *("ctrl+home", "ctrl+end", "shift+home", "f1", "insert", "é", "0", "9", "-", " "),
    *[":", "/", "enter", "escape", "ctrl+p", "pagedown", "s", "z"] * 3,
]
"""Some more often: those that open something."""
WORDS = [
    ":theme dark",
    ":job ads-7f3k2m1p",
    ":stop",
    ":kill worker-0",
    ":sort state",
    ":jobs",
    ":scale",
    ":decisions",
    "/!w",
    "/a b",
    ":at 30s",
    ":pulse",
    ":-",
    ":skin colour-blind",
    ":logs",
    ":logs worker-0",
    ":recipe",
    ":alias",
    "/line 5",
    "n-N-&w",
]


@pytest.fixture(autouse=True)
def _pictures_go_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random keys take some, too, which are written to the present directory."""
    monkeypatch.chdir(tmp_path)


class Watched(TuiApp):
    """Notes what a person said yes to."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.agreed: list[str] = []
        """Questions that were answered with y or r, and forms that were sent."""

    async def _take(self, event: events.Key) -> None:
        screen = self.screen
        await super()._take(event)
        if isinstance(screen, Confirm) and event.key in ("y", "r") and self.screen is not screen:
            self.agreed.append(screen._question.text)
        elif isinstance(screen, Form) and event.key == "enter":
            self.agreed.append(screen._title)


def _asked_for(done: tuple[Any, ...]) -> str:
    """How the question, or the form, begins that comes before something is done; empty: none has to."""
    what, job, *how = done
    match what:
        case "stop":
            return f"Stop {job}?"
        case "drain" | "kill":
            return f"{what.title()} {how[0]} of {job}?"
        case "resize":
            return f"Resize {how[0]} of {job}"
        case "scale":
            return f"Scale {job}"
        case "reject" if how[0] == UNDER_WAY.decision:
            return f"Drop decision {how[0]} for {job}?"
    return ""


def _keys(draw: random.Random, screen: Any) -> list[str]:
    """That are typed together; answers, mostly, where something is asked."""
    if isinstance(screen, Confirm | Form) and draw.random() < 0.6:
        return draw.choices(["y", "r", "n", "enter", "tab", "1", "2", "escape"], k=draw.randint(1, 3))
    if isinstance(screen, JobScreen) and draw.random() < ACTED:
        return [*["down"] * draw.randint(0, 2), draw.choice(ACTING)]
    if draw.random() < OPENED:
        return [*["escape"] * 3, *f":j {ADS.id}", "enter"]
    if draw.random() < 0.2:
        return [*draw.choice(WORDS), *draw.choices(["enter", "escape", "tab"], k=draw.randint(0, 2))]
    return draw.choices(KEYS, k=draw.choice([1, 1, 2, draw.randint(1, MOST_AT_ONCE)]))


async def _kills_a_node(pilot: Pilot[None], app: TuiApp) -> None:
    """All works as before, from wherever the keys have led to: a node can be killed, in a replay as well as it ever could."""
    while len(app.screen_stack) > 1:
        await pilot.press("escape")
        await pilot.pause()
    type_at_once(app, "escape", "escape", *f":job {ADS.id}", "enter")
    await opened(pilot)
    await pilot.press("home", "ctrl+k")
    if app.actions is not None:
        await shown(pilot, Confirm)
        await pilot.press("y")
        await until(pilot, lambda: f"kill of {ADS.id} begins" in told(app))


def _type(app: TuiApp, seed: int, size: tuple[int, int]) -> None:
    draw = random.Random(seed)
    app.exit = lambda *_arguments, **_settings: None  # type: ignore[method-assign,assignment] # the palette can leave, too
    typed: list[str] = []
    sizes = [size]

    async def steps(pilot: Pilot[None]) -> None:
        while len(typed) < KEYS_TO_TYPE:
            if isinstance(app.screen, JobScreen) and app.screen.job == ADS.id and app.actions is not None:
                await opened(pilot)
            keys = _keys(draw, app.screen)
            typed.extend(keys)
            type_at_once(app, *keys)
            if draw.random() < RESIZED:
                sizes.append((draw.randint(20, 200), draw.randint(5, 60)))
                await pilot.resize_terminal(*sizes[-1])
            await taken(pilot)
            if keys[-1] in ACTING or draw.random() < 0.25:
                await pilot.pause()  # what has changed is drawn, and a question can be seen
            if draw.random() < 0.03:
                await pilot.resize_terminal(*draw.choice([size, *SIZES]))
        await pilot.resize_terminal(*size)
        await _kills_a_node(pilot, app)

    try:
        drive(steps, app, size=size)
    except BaseException as error:
        error.add_note(f"seed {seed}, size {sizes[-1]}; the last keys were {' '.join(typed[-60:])}")
        raise
    assert len(sizes) > 1


@pytest.mark.parametrize(
    ("seed", "size", "autoscaling"), [(1, (80, 24), SUGGESTED), (2, (140, 45), UNDER_WAY), (3, (60, 10), SUGGESTED)]
)
def test_random_keys_break_nothing_and_act_only_when_confirmed(
    seed: int, size: tuple[int, int], autoscaling: Autoscaling, with_logs: FixedSource
) -> None:
    acts = Acts()
    with_logs.details[ADS.id] = msgspec.structs.replace(with_logs.details[ADS.id], autoscaling=autoscaling)
    app = the_app(with_logs, actions=acts, app=Watched, job=ADS.id)
    assert isinstance(app, Watched)
    _type(app, FIRST_SEED - 1 + seed, size)
    unasked = [done for done in acts.done if _asked_for(done)]
    for question in app.agreed:
        at = next((n for n, done in enumerate(unasked) if question.startswith(_asked_for(done))), None)
        if at is not None:
            del unasked[at]
    assert not unasked
    assert acts.done[-1] == ("kill", ADS.id, "ps-0")


def test_random_keys_break_nothing_in_a_replay(recording: Recording) -> None:
    source = RecordedSource(recording, recording.player(speed=0))
    _type(ReplayApp(source, period_seconds=0.02), FIRST_SEED + 3, (80, 24))
