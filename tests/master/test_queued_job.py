"""A job that waits for a plan: it is told its place, answers who asks, can be stopped, and waits for no brain that is gone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from dlrover_lite.core.errors import BrainError
from dlrover_lite.core.units import GIB, Resources
from dlrover_lite.master.autoscale import brain_link
from dlrover_lite.master.autoscale.brain_link import BrainLink
from dlrover_lite.master.autoscale.first_plan import FirstPlan, first_plan, next_plan
from dlrover_lite.master.events import EventLog
from dlrover_lite.master.phases import Outbox, Phase
from dlrover_lite.master.queued_job import QueuedJob
from dlrover_lite.protocol.brain_messages import Advice, RegisterJob
from dlrover_lite.protocol.hosts import Host
from dlrover_lite.protocol.messages import MasterReplies, MasterRequests
from dlrover_lite.protocol.plans import Plan, RolePlan
from dlrover_lite.protocol.questions import ScaleRequest, Status, StatusRequest, StopRequest, StoryRequest
from dlrover_lite.recipe import schema
from dlrover_lite.transport.frames import Failure
from dlrover_lite.transport.memory import MemoryConnector
from tests.brain.service_rig import Rig, registration

RECIPE = schema.Recipe(version=1, name="ads", model=schema.Model(use="dcn"), data=schema.SyntheticData(samples=1000))
HERE = [Host("here", Resources(4.0, 8 * GIB))]
BACKEND: Any = SimpleNamespace(capacity=lambda: HERE, shared_room=lambda: None)
PLAN = Plan(ps=RolePlan(1, Resources(0.25, GIB)), worker=RolePlan(1, Resources(0.25, GIB)))


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
            connector=MemoryConnector(self.brain.network),
            say=self.told.append,
            clock=lambda: self.now,
            wall_clock=lambda: self.now,
        )
        connector, endpoint = MemoryConnector(self.brain.network), "memory://waiting"
        self.server = connector.server(endpoint, MasterRequests, remember_replies=True)
        self.client = connector.client(endpoint, MasterReplies)
        self.outbox = Outbox()
        self.story = EventLog(lambda _: None, lambda: 5.0)
        self.stop = False
        self.room = QueuedJob(
            self.outbox,
            self.story,
            Status("ads-1", "starting", epochs=1, total_samples=1000),
            mode="on",
            stop=lambda: self.stop,
        )
        self.script: Any = lambda _: None

    def _find(self) -> str:
        if not self.alive:
            raise BrainError("none runs")
        return self.brain.endpoint

    def ends(self, phase: Phase[FirstPlan]) -> FirstPlan:
        """Let the phase go on, a second each time, until it is over."""
        try:
            next(phase)
            while True:
                self.turns += 1
                self.now += 1.0
                self.script(self.turns)
                if self.alive:
                    self.brain.service.turn(0.0)
                phase.send(self.server.receive())
                for request, body in self.outbox.take():
                    self.server.answer(request, body)
        except StopIteration as over:
            return over.value  # type: ignore[no-any-return]

    def ask(self, body: Any) -> Any:
        """Ask while the job waits."""
        self.client.send(body)
        self.room.serve(self.server.receive())
        for request, answer in self.outbox.take():
            self.server.answer(request, answer)
        reply = self.client.receive()
        assert reply is not None
        return reply.body

    def first(self) -> FirstPlan:
        return self.ends(
            first_plan(RECIPE, BACKEND, self.link, self.room, clock=lambda: self.now, say=self.told.append)
        )

    def next(self, before: Plan) -> FirstPlan:
        """Wait for the plan of a job that has given way."""
        return self.ends(
            next_plan(RECIPE, before, BACKEND, self.link, self.room, since=77.0, after=4, say=self.told.append)
        )

    def advise(self, number: int, action: str, reason: str, plan: Plan | None = None) -> None:
        self.brain.answer = Advice(number, {"action": action, "reason": reason, "plan": msgspec.to_builtins(plan)})

    def close(self) -> None:
        self.link.close()
        self.brain.close()


@pytest.fixture
def waiting(tmp_path: Path) -> Iterator[Waiting]:
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
    assert {entry.about for entry in story.entries} == {"decision"}
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
    assert waiting.room.stop_request == (StopRequest("enough", now=True) if how == "asked" else None)


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
    found = waiting.next(before)
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
    found = waiting.next(before)
    assert found == FirstPlan(PLAN, 7, "there is room", begun=True)


def test_a_preempted_job_goes_on_with_its_plan_without_a_brain(waiting: Waiting) -> None:
    phase = next_plan(RECIPE, PLAN, BACKEND, None, waiting.room, since=77.0, after=4, say=waiting.told.append)
    assert waiting.ends(phase) == FirstPlan(PLAN, begun=True)
