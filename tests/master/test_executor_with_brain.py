"""A master that is advised by a real brain's service: what is suggested, accepted, rejected, held; and a brain that dies amid a change."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dlrover_lite.brain.store.database import ConfigStore
from dlrover_lite.brain_server.service import Service
from dlrover_lite.core.errors import BrainError, RemoteError
from dlrover_lite.core.units import Resources
from dlrover_lite.master.autoscale.brain_link import BrainLink
from dlrover_lite.protocol.brain_messages import Advice, BrainRequests, RegisterJob, Report
from dlrover_lite.protocol.demands import DecisionOutcome
from dlrover_lite.protocol.plans import Plan, RolePlan
from dlrover_lite.protocol.questions import (
    AutoscaleRequest,
    AutoscaleStatus,
    NextLook,
    Scaled,
    ScaleRequest,
    StatusRequest,
    StoryRequest,
)
from dlrover_lite.transport.memory import MemoryConnector, Network, VirtualClock
from tests.brain.service_rig import registration
from tests.checkpoint.cuts import keys
from tests.master.rig import EPOCH, RESOURCES, Rig, done
from tests.master.scripted_ps import ScriptedPs


class Brain:
    """A service over a database that outlives it, which takes a step with each of the master's; it advises what the test wants."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.advice: Advice | None = None
        self.told: list[msgspec.Struct] = []
        self.said: list[str] = []
        self.service: Service | None = None

    def link(self, network: Network, clock: VirtualClock) -> BrainLink:
        self._connector, self._clock = MemoryConnector(network), clock
        self.start()
        return BrainLink(
            registration("rig-1"),
            self._find,
            connector=self._connector,
            say=self.said.append,
            clock=clock,
            wall_clock=lambda: EPOCH + clock.now,
        )

    def start(self) -> None:
        self.service = Service(
            self._connector.server("memory://brain", BrainRequests, remember_replies=True),
            ConfigStore(self.path),
            look=lambda _: None,
            advise=lambda *_: self.advice,
            tell=self.told.append,
            clock=self._clock,
            wall_clock=lambda: EPOCH + self._clock.now,
        )

    def step(self) -> None:
        if self.service is not None:
            self.service.turn(0.0)

    def die(self) -> None:
        """Without a word; what it has answered is in the database."""
        if self.service is not None:
            self.service.close()
            self.service = None
        self.told.clear()

    def _find(self) -> str:
        if self.service is None:
            raise BrainError("none runs")
        return "memory://brain"

    def done(self) -> list[DecisionOutcome]:
        return [one for report in self.told if isinstance(report, Report) for one in report.done]


@pytest.fixture
def brain(tmp_path: Path) -> Iterator[Brain]:
    brain = Brain(tmp_path / "brain.sqlite")
    yield brain
    brain.die()


@pytest.fixture
def start(brain: Brain, make: Any) -> Callable[..., Rig]:
    """A job of one PS and one worker."""

    def start(**options: Any) -> Rig:
        rig: Rig = make(ps=1, workers=1, samples=4000, brain=brain.link, **options)
        rig.beside.append(brain.step)
        rig.up("ps-0", "worker-0")
        rig.follow("ps-0", until=lambda status: status.slot_map_version and status.slots_settled)
        return rig

    return start


def workers(count: int) -> Plan:
    return Plan(ps=RolePlan(1, RESOURCES), worker=RolePlan(count, Resources(RESOURCES.cores, RESOURCES.memory)))


def advise(brain: Brain, number: int, count: int) -> None:
    plan = msgspec.to_builtins(workers(count))
    brain.advice = Advice(number, {"action": "change", "plan": plan, "reason": f"{count} workers are faster"})


def ask(rig: Rig, what: Any = "status") -> AutoscaleStatus:
    answer = rig.ask("cli", AutoscaleRequest(what))
    assert isinstance(answer, AutoscaleStatus), answer
    return answer


def looks(rig: Rig) -> NextLook | None:
    found: NextLook | None = rig.ask("cli", StatusRequest()).next_look
    return found


def launched(rig: Rig) -> list[str]:
    return [spec.id for spec in rig.backend.launched]


def test_a_suggestion_waits_until_it_is_accepted(brain: Brain, start: Callable[..., Rig]) -> None:
    rig = start(mode="suggest")
    advise(brain, 1, 2)
    rig.step_until(lambda: ask(rig).decision == 1)
    assert ask(rig) == AutoscaleStatus("suggest", "", 1, "2 workers are faster", False)
    assert looks(rig) == NextLook(None, "decision 1 waits to be accepted or rejected")
    assert launched(rig) == ["ps-0", "worker-0"] and brain.done() == []
    assert ask(rig, "accept").under_way
    rig.up("worker-1")
    rig.step_until(brain.done)
    assert [(one.number, one.state) for one in brain.done()] == [(1, "done")]
    assert ask(rig).decision is None
    with pytest.raises(RemoteError, match="nothing is suggested"):
        ask(rig, "accept")

    advise(brain, 2, 3)
    rig.step_until(lambda: ask(rig).decision == 2)
    assert ask(rig, "reject").decision is None
    rig.step_until(lambda: len(brain.done()) == 2)
    assert (brain.done()[1].number, brain.done()[1].state) == (2, "rejected")
    assert launched(rig) == ["ps-0", "worker-0", "worker-1"]


def test_a_change_is_paused_and_goes_on(brain: Brain, start: Callable[..., Rig]) -> None:
    rig = start(mode="on")
    assert ask(rig, "pause").paused == "by request"
    assert looks(rig) == NextLook(None, "autoscaling is paused: by request")
    advise(brain, 1, 2)
    rig.step_until(lambda: ask(rig).decision == 1)
    assert launched(rig) == ["ps-0", "worker-0"]
    assert ask(rig, "resume").paused == ""
    rig.up("worker-1")
    rig.step_until(brain.done)


@pytest.mark.parametrize("mode", ["on", "suggest"])
def test_a_change_by_hand_pauses_the_brain(brain: Brain, start: Callable[..., Rig], mode: str) -> None:
    rig = start(mode=mode)
    answer = rig.ask("cli", ScaleRequest(workers=2))
    assert isinstance(answer, Scaled) and "autoscaling is paused" in answer.actions[-1]
    rig.up("worker-1")
    rig.step_until(lambda: [one for one in brain.told if isinstance(one, Report) and one.standing])
    rig.step_until(
        lambda: [one for one in brain.told if isinstance(one, Report) and one.standing and one.standing.paused]
    )
    assert ask(rig).paused == "nodes were changed by hand"


def test_a_change_goes_on_though_the_brain_dies(brain: Brain, start: Callable[..., Rig]) -> None:
    """The change goes on without it; the next one is told of the plan and of the change's end."""
    rig = start(mode="on")
    advise(brain, 1, 2)
    rig.backend.wait_for_launch("worker-1")
    brain.die()
    rig.step_until(lambda: "the brain is lost (none runs): training goes on without its advice" in brain.said)
    assert ask(rig).under_way
    rig.up("worker-1")
    rig.step_until(lambda: not ask(rig).under_way)
    brain.advice = None
    brain.start()
    rig.step_until(brain.done)
    assert [(one.number, one.state) for one in brain.done()] == [(1, "done")]
    (registered,) = [one for one in brain.told if isinstance(one, RegisterJob)]
    assert registered.plan == workers(2)
    assert brain.said[-1] == "the brain is there"


def test_a_preempted_job_takes_a_checkpoint_and_ends_its_nodes(brain: Brain, start: Callable[..., Rig]) -> None:
    rig = start(mode="on", checkpoint={"every_seconds": 3600.0})
    server = ScriptedPs(rig, "ps-0")
    server.step()
    rig.lease("worker-0", **done(rig.lease("worker-0")))
    server.push(keys(20), 1)
    brain.advice = Advice(1, {"action": "preempt", "reason": "it gives way, and waits: b has a higher priority"})

    def gone() -> bool:
        server.step()
        return "ps-1" in launched(rig)

    rig.step_until(gone)  # nobody makes them wait here
    assert [(one.number, one.state) for one in brain.done()] in ([], [(1, "done")])
    assert {"ps-0", "worker-0"} <= set(rig.backend.terminated)
    told = [entry.text for entry in rig.ask("cli", StoryRequest("master")).entries]
    why = "it gives way, and waits: b has a higher priority"
    assert f"lets its nodes go, to go on from checkpoint 1 later: {why}" in told
    (goes_on,) = [text for text in told if f"checkpoint 1 of rig-1 ({why})" in text]
    assert "done again" not in goes_on
    noted = rig.job.beginning()
    assert noted is not None and (noted.decision, noted.went_back) == (1, 0) and noted.waits_since
    rig.step_until(brain.done)


def test_a_job_without_checkpoints_can_not_be_preempted(brain: Brain, start: Callable[..., Rig]) -> None:
    rig = start(mode="on")
    brain.advice = Advice(1, {"action": "preempt", "reason": "it gives way"})
    rig.step_until(brain.done)
    assert brain.done()[0].state == "given up" and "takes no checkpoints" in brain.done()[0].why
    assert launched(rig) == ["ps-0", "worker-0"] and rig.backend.terminated == []
