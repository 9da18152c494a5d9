"""A master that is advised by a real brain's service: what is suggested, accepted, rejected, held; and a brain that dies amid a change."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq

from dlrover_lite.brain.store.database import ConfigStore
from dlrover_lite.brain_server.service import Service
from dlrover_lite.core.errors import BrainError, RemoteError
from dlrover_lite.core.units import Resources
from dlrover_lite.master.autoscale import brain_link
from dlrover_lite.master.autoscale.brain_link import BrainLink
from dlrover_lite.protocol.brain_messages import Advice, BrainRequests, RegisterJob, Report
from dlrover_lite.protocol.demands import Done
from dlrover_lite.protocol.messages import (
    AutoscaleRequest,
    AutoscaleStatus,
    NextLook,
    Scaled,
    ScaleRequest,
    StatusRequest,
    StoryRequest,
)
from dlrover_lite.protocol.plans import Plan, RolePlan
from dlrover_lite.transport.connector import Connector
from dlrover_lite.transport.server import Server
from tests.backends.support import until
from tests.brain.service_rig import registration
from tests.checkpoint.cuts import keys
from tests.master.rig import PATIENCE, RESOURCES, Rig, done
from tests.master.scripted_ps import ScriptedPs

_numbers = itertools.count()


class Brain:
    """A service in a thread of its own, over a database that outlives it; it advises what the test wants."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.advice: Advice | None = None
        self.told: list[msgspec.Struct] = []
        self.said: list[str] = []
        self._context: zmq.Context[Any] = zmq.Context()
        self._endpoint = ""
        self._end = threading.Event()
        self._thread: threading.Thread | None = None

    def link(self) -> BrainLink:
        self.start()
        return BrainLink(
            registration("rig-1"), self._find, connector=Connector(context=self._context), say=self.said.append
        )

    def start(self) -> None:
        self._end.clear()
        ready = threading.Event()

        def run() -> None:
            endpoint = f"inproc://brain-{next(_numbers)}"
            server = Server(endpoint, BrainRequests, context=self._context, remember_replies=True)
            service = Service(
                server,
                ConfigStore(self.path),
                look=lambda _: None,
                advise=lambda *_: self.advice,
                tell=self.told.append,
            )
            self._endpoint = endpoint
            ready.set()
            while not self._end.is_set():
                service.turn(0.02)
            self._endpoint = ""
            service.close()

        self._thread = threading.Thread(target=run)
        self._thread.start()
        assert ready.wait(PATIENCE)

    def die(self) -> None:
        """Without a word; what it has answered is in the database."""
        self._end.set()
        assert self._thread is not None
        self._thread.join(PATIENCE)
        self.told.clear()

    def close(self) -> None:
        self.die()
        self._context.destroy(linger=0)

    def _find(self) -> str:
        if not self._endpoint:
            raise BrainError("none runs")
        return self._endpoint

    def done(self) -> list[Done]:
        return [one for report in self.told if isinstance(report, Report) for one in report.done]


@pytest.fixture(autouse=True)
def haste(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AGAIN_SECONDS", "SOON_SECONDS", "BEAT_SECONDS", "_LONGEST_PAUSE_SECONDS"):
        monkeypatch.setattr(brain_link, name, 0.05)


@pytest.fixture
def brain(tmp_path: Path) -> Iterator[Brain]:
    brain = Brain(tmp_path / "brain.sqlite")
    yield brain
    brain.close()


@pytest.fixture
def start(brain: Brain, make: Any) -> Callable[..., Rig]:
    """A job of one PS and one worker."""

    def start(**options: Any) -> Rig:
        rig: Rig = make(ps=1, workers=1, samples=4000, brain=brain.link(), **options)
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
    until(lambda: ask(rig).decision == 1, "the suggestion")
    assert ask(rig) == AutoscaleStatus("suggest", "", 1, "2 workers are faster", False)
    assert looks(rig) == NextLook(None, "decision 1 waits to be accepted or rejected")
    assert launched(rig) == ["ps-0", "worker-0"] and brain.done() == []
    assert ask(rig, "accept").under_way
    rig.up("worker-1")
    until(brain.done, "its end")
    assert [(one.number, one.state) for one in brain.done()] == [(1, "done")]
    assert ask(rig).decision is None
    with pytest.raises(RemoteError, match="nothing is suggested"):
        ask(rig, "accept")

    advise(brain, 2, 3)
    until(lambda: ask(rig).decision == 2, "another suggestion")
    assert ask(rig, "reject").decision is None
    until(lambda: len(brain.done()) == 2, "that it was rejected")
    assert (brain.done()[1].number, brain.done()[1].state) == (2, "rejected")
    assert launched(rig) == ["ps-0", "worker-0", "worker-1"]


def test_a_change_is_paused_and_goes_on(brain: Brain, start: Callable[..., Rig]) -> None:
    rig = start(mode="on")
    assert ask(rig, "pause").paused == "by request"
    assert looks(rig) == NextLook(None, "autoscaling is paused: by request")
    advise(brain, 1, 2)
    until(lambda: ask(rig).decision == 1, "the decision")
    assert launched(rig) == ["ps-0", "worker-0"]
    assert ask(rig, "resume").paused == ""
    rig.up("worker-1")
    until(brain.done, "its end")


@pytest.mark.parametrize("mode", ["on", "suggest"])
def test_a_change_by_hand_pauses_the_brain(brain: Brain, start: Callable[..., Rig], mode: str) -> None:
    rig = start(mode=mode)
    answer = rig.ask("cli", ScaleRequest(workers=2))
    assert isinstance(answer, Scaled) and "autoscaling is paused" in answer.actions[-1]
    rig.up("worker-1")
    until(lambda: [one for one in brain.told if isinstance(one, Report) and one.standing], "how it stands")
    until(
        lambda: [one for one in brain.told if isinstance(one, Report) and one.standing and one.standing.paused], "why"
    )
    assert ask(rig).paused == "nodes were changed by hand"


def test_a_change_goes_on_though_the_brain_dies(brain: Brain, start: Callable[..., Rig]) -> None:
    """The change goes on without it; the next one is told of the plan and of the change's end."""
    rig = start(mode="on")
    advise(brain, 1, 2)
    rig.backend.wait_for_launch("worker-1")
    brain.die()
    until(lambda: "the brain is lost (none runs): training goes on without its advice" in brain.said, "that it is lost")
    assert ask(rig).under_way
    rig.up("worker-1")
    until(lambda: not ask(rig).under_way, "the change's end")
    brain.advice = None
    brain.start()
    until(brain.done, "what came of the change")
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

    until(gone, "the nodes that follow")  # nobody makes them wait here
    assert [(one.number, one.state) for one in brain.done()] in ([], [(1, "done")])
    assert {"ps-0", "worker-0"} <= set(rig.backend.terminated)
    told = [entry.text for entry in rig.ask("cli", StoryRequest("master")).entries]
    why = "it gives way, and waits: b has a higher priority"
    assert f"lets its nodes go, to go on from checkpoint 1 later: {why}" in told
    (goes_on,) = [text for text in told if f"checkpoint 1 of rig-1 ({why})" in text]
    assert "done again" not in goes_on
    noted = rig.job.beginning()
    assert noted is not None and (noted.decision, noted.went_back) == (1, 0) and noted.waits_since
    until(brain.done, "that it is done")


def test_a_job_without_checkpoints_can_not_be_preempted(
    brain: Brain, start: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dlrover_lite.master.autoscale.autoscaler.AGAIN_SECONDS", 0.01)
    rig = start(mode="on")
    brain.advice = Advice(1, {"action": "preempt", "reason": "it gives way"})
    until(brain.done, "that it can't be")
    assert brain.done()[0].state == "given up" and "takes no checkpoints" in brain.done()[0].why
    assert launched(rig) == ["ps-0", "worker-0"] and rig.backend.terminated == []
