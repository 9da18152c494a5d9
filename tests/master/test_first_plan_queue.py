"""A job that waits for a plan: it is told its place, answers who asks, can be stopped, and waits for no brain that is gone."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dlrover_lite.core.errors import BrainError
from dlrover_lite.core.units import GIB, Resources
from dlrover_lite.master.autoscale import brain_link
from dlrover_lite.master.autoscale.brain_link import BrainLink
from dlrover_lite.master.autoscale.first_plan import FirstPlan, first_plan, next_plan
from dlrover_lite.master.events import EventLog
from dlrover_lite.master.queued_job import QueuedJob, blank
from dlrover_lite.protocol.brain_messages import Advice, RegisterJob
from dlrover_lite.protocol.hosts import Host
from dlrover_lite.protocol.messages import (
    MasterReplies,
    MasterRequests,
    ScaleRequest,
    Status,
    StatusRequest,
    StopRequest,
    StoryRequest,
)
from dlrover_lite.protocol.plans import Plan, RolePlan
from dlrover_lite.recipe import schema
from dlrover_lite.transport.client import Client
from dlrover_lite.transport.connector import Connector
from dlrover_lite.transport.frames import Failure
from dlrover_lite.transport.server import Server
from tests.brain.service_rig import PATIENCE, Rig, registration

RECIPE = schema.Recipe(version=1, name="ads", model=schema.Model(use="dcn"), data=schema.SyntheticData(samples=1000))
HERE = [Host("here", Resources(4.0, 8 * GIB))]
PLAN = Plan(ps=RolePlan(1, Resources(0.25, GIB)), worker=RolePlan(1, Resources(0.25, GIB)))
_numbers = itertools.count()


class Waiting:
    """A job that waits, and a brain whose clock goes on by a second with each turn. ``script`` is called with the number of the turn."""

    def __init__(self, path: Path) -> None:
        self.registered: list[RegisterJob] = []
        self.brain = Rig(
            path, tell=lambda body: self.registered.append(body) if isinstance(body, RegisterJob) else None
        )
        self.now = 0.0
        self.alive = True
        self.turns = 0
        self.told: list[str] = []
        self.link = BrainLink(
            registration(),
            self._find,
            connector=Connector(context=self.brain.context),
            say=self.told.append,
            clock=lambda: self.now,
        )
        endpoint = f"inproc://waiting-{next(_numbers)}"
        self.server = Server(endpoint, MasterRequests, context=self.brain.context, remember_replies=True)
        self.client = Client(endpoint, MasterReplies, context=self.brain.context)
        self.story = EventLog(lambda _: None, lambda: 5.0)
        self.stop = False
        self.room = QueuedJob(
            self.server,
            self.story,
            blank("ads-1", epochs=1, total_samples=1000),
            mode="on",
            stop=lambda: self.stop,
        )
        self.turn = self.room.turn
        self.room.turn = self._turn  # type: ignore[method-assign]
        self.script: Any = lambda _: None

    def _find(self) -> str:
        if not self.alive:
            raise BrainError("none runs")
        return self.brain.endpoint

    def _turn(self) -> None:
        self.turns += 1
        self.now += 1.0
        self.script(self.turns)
        if self.alive:
            self.brain.service.turn(0.01)

    def ask(self, body: Any) -> Any:
        self.client.send(body)
        self.turn()
        reply = self.client.receive(PATIENCE)
        assert reply is not None
        return reply.body

    def first(self) -> FirstPlan:
        return first_plan(RECIPE, HERE, self.link, self.room, say=self.told.append)

    def advise(self, number: int, action: str, reason: str, plan: Plan | None = None) -> None:
        self.brain.answer = Advice(number, {"action": action, "reason": reason, "plan": msgspec.to_builtins(plan)})

    def close(self) -> None:
        self.link.close()
        self.client.close()
        self.server.close()
        self.brain.close()


@pytest.fixture
def waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Waiting]:
    monkeypatch.setattr(brain_link, "_FIRST_BEAT_SECONDS", 0.01)
    waiting = Waiting(tmp_path / "brain.sqlite")
    yield waiting
    waiting.close()


def test_a_queued_job_waits_as_long_as_the_brain_wants_and_says_why(waiting: Waiting) -> None:
    found: list[Any] = []

    def script(turn: int) -> None:
        if turn == 2:
            waiting.advise(1, "queue", "it waits, number 2 in the queue")
        if turn == 40:  # more than a first plan is waited for
            waiting.advise(2, "queue", "it waits, number 1 in the queue")
        if turn == 50:
            found.append(waiting.ask(StatusRequest()))
            found.append(waiting.ask(ScaleRequest(workers=2)))
            found.append(waiting.ask(StoryRequest("master")))
        if turn == 60:
            waiting.advise(3, "start", "there is room", PLAN)

    waiting.script = script
    assert waiting.first() == FirstPlan(PLAN, 3, "there is room")
    status, refused, story = found
    assert isinstance(status, Status)
    assert (status.state, status.message, status.nodes) == ("queued", "it waits, number 1 in the queue", [])
    assert isinstance(refused, Failure) and "waits for a plan" in refused.message
    assert [entry.text for entry in story.entries] == [f"it waits, number {place} in the queue" for place in (2, 1)]
    assert [(one.plan, one.waits_since) for one in waiting.registered] == [(None, None)]


def test_a_job_begins_by_rule_when_the_brain_says_nothing(waiting: Waiting) -> None:
    found = waiting.first()
    assert found.number == 0 and found.words == f"begins with {found.plan.describe()}"
    assert brain_link.FIRST_PLAN_SECONDS <= waiting.now < 2 * brain_link.FIRST_PLAN_SECONDS


def test_a_queued_job_begins_when_the_brain_is_gone(waiting: Waiting) -> None:
    def script(turn: int) -> None:
        if turn == 1:
            waiting.advise(1, "queue", "it waits, number 1 in the queue")
        if turn == 20:
            waiting.alive = False

    waiting.script = script
    assert waiting.first().number == 0
    assert 20 + 25 < waiting.now < 20 + 2 * brain_link.FIRST_PLAN_SECONDS
    assert waiting.told[-1] == "there is no brain any more that it could wait for"


def test_a_queued_job_waits_for_another_brain_in_time(waiting: Waiting) -> None:
    def script(turn: int) -> None:
        if turn == 1:
            waiting.advise(1, "queue", "it waits, number 1 in the queue")
        if turn in (20, 40):
            waiting.alive = turn == 40
        if turn == 90:
            waiting.advise(2, "start", "there is room", PLAN)

    waiting.script = script
    assert waiting.first().number == 2


@pytest.mark.parametrize("how", ["asked", "signal"])
def test_a_queued_job_can_be_stopped(waiting: Waiting, how: str) -> None:
    def script(turn: int) -> None:
        if turn == 1:
            waiting.advise(1, "queue", "it waits, number 1 in the queue")
        if turn == 10 and how == "asked":
            waiting.ask(StopRequest("enough", now=True))
        waiting.stop = turn == 10 and how == "signal"

    waiting.script = script
    waiting.first()
    assert waiting.room.is_over() and waiting.turns == 10
    assert waiting.room.stopped == ("enough" if how == "asked" else "")


def test_a_preempted_job_ignores_advice_from_before(waiting: Waiting) -> None:
    before = Plan(ps=PLAN.ps, worker=RolePlan(3, Resources(0.5, GIB)))

    def script(turn: int) -> None:
        if turn == 1:
            waiting.advise(4, "preempt", "it gives way")
        if turn == 10:
            waiting.advise(5, "queue", "it waits, number 1 in the queue")
        if turn == 60:
            waiting.advise(6, "start", "there is room", PLAN)

    waiting.script = script
    found = next_plan(RECIPE, before, waiting.link, waiting.room, since=77.0, after=4, say=waiting.told.append)
    assert found == FirstPlan(PLAN, 6, "there is room", begun=True)
    assert found.words == "goes on with 1 ps x 0.25 cores, 1 worker x 0.25 cores (decision 6: there is room)"
    assert [(one.plan, one.waits_since) for one in waiting.registered] == [(None, 77.0)]


def test_a_preempted_job_ignores_a_repeated_preemption_by_a_new_brain(waiting: Waiting) -> None:
    """It repeats by a number of its own what the one before had decided, and hears meanwhile that this is done."""

    def script(turn: int) -> None:
        if turn == 1:
            waiting.advise(5, "preempt", "it gives way, and waits")
        if turn == 10:
            waiting.advise(6, "queue", "it waits, number 1 in the queue")
        if turn == 20:
            waiting.advise(7, "start", "there is room", PLAN)

    waiting.script = script
    before = Plan(ps=PLAN.ps, worker=RolePlan(3, Resources(0.5, GIB)))
    found = next_plan(RECIPE, before, waiting.link, waiting.room, since=77.0, after=4, say=waiting.told.append)
    assert found == FirstPlan(PLAN, 7, "there is room", begun=True)


def test_a_preempted_job_goes_on_with_its_plan_without_a_brain(waiting: Waiting) -> None:
    assert next_plan(RECIPE, PLAN, None, waiting.room, since=77.0, after=4, say=waiting.told.append) == FirstPlan(
        PLAN, begun=True
    )
