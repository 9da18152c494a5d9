"""Decisions carried out at a job: each step is asked of what does it, people come first, and the brain is told what became of it all."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from dlrover_lite.core import slot_sets
from dlrover_lite.core.units import GIB, Resources
from dlrover_lite.master.autoscale.autoscaler import AGAIN_SECONDS, TRIES, Autoscaler
from dlrover_lite.master.autoscale.executor import BY_HAND, Executor
from dlrover_lite.master.nodes.fleet import Fleet
from dlrover_lite.protocol.brain_messages import Advice
from dlrover_lite.protocol.demands import DecisionOutcome
from dlrover_lite.protocol.plans import Plan, RolePlan
from dlrover_lite.protocol.questions import (
    AutoscaleRequest,
    AutoscaleStatus,
    KillRequest,
    MoveRequest,
    ResizeRequest,
    Scaled,
    ScaleRequest,
)
from dlrover_lite.transport.frames import Failure

NO = Failure("refused", "there is no room")


def plan(workers: int = 1, servers: int = 1, cores: float = 1.0, memory: int = GIB) -> Plan:
    return Plan(ps=RolePlan(servers, Resources(0.5, GIB)), worker=RolePlan(workers, Resources(cores, memory)))


class Job:
    """What an executor acts on: a fleet of nodes that are up, and what answers its wishes and keeps them."""

    def __init__(self, mode: Any = "on", now: Plan | None = None, state: Autoscaler | None = None) -> None:
        self.now = 1000.0
        self.wishes: list[Any] = []
        self.refuses = 0
        """So many wishes to come."""
        self.kept: list[Autoscaler] = []
        self.done: list[DecisionOutcome] = []
        self.told: list[str] = []
        self.less: list[tuple[str, float]] = []
        self.consumed = 0
        fleet, _ = Fleet(now or plan(), Resources(8.0, 16 * GIB)).begin(0.0)
        self.used: dict[str, int] = {}
        """By node, the most."""
        self.reconciler = SimpleNamespace(
            fleet=fleet,
            host_of={},
            readings=None,
            changed_hosts=(),
            shared_room=None,
            launch_seconds=0.0,
            most_used=lambda node: self.used.get(node, 0),
            set_size=self.set_size,
        )
        self.wanted: list[dict[str, int]] = []
        """Number of nodes that were wanted on each host, of each role that was scaled."""
        self.owned: dict[str, list[int]] = {}
        self.servers = SimpleNamespace(
            settled=True,
            state=SimpleNamespace(
                leaving=[],
                owned=lambda node: np.isin(np.arange(slot_sets.SLOTS), self.owned.get(node, [])),
                move_rate=None,
            ),
            loads=SimpleNamespace(busy=np.zeros(slot_sets.SLOTS)),
        )
        self.shards = SimpleNamespace(
            consumed_samples=0, trained=False, has_evaluated=False, lease_less=lambda *less: self.less.append(less)
        )
        self.all_up()
        self.executor: Any = Executor(
            state or Autoscaler(job="ads-1", mode=mode),
            control=SimpleNamespace(answer=self.answer, scale=self.scale),  # type: ignore[arg-type]
            reconciler=self.reconciler,  # type: ignore[arg-type]
            servers=self.servers,  # type: ignore[arg-type]
            shards=self.shards,  # type: ignore[arg-type]
            story=SimpleNamespace(node=lambda _, text, about: self.told.append(text)),  # type: ignore[arg-type]
            facts=SimpleNamespace(  # type: ignore[arg-type]
                keep=lambda _, state: self.kept.append(state), after_commit=lambda effect: effect()
            ),
            tell=self.done.append,
            checkpoints=None,
            let_go=lambda why, number: "",
            wall_clock=lambda: self.now,
        )

    @property
    def fleet(self) -> Fleet:
        fleet: Fleet = self.reconciler.fleet
        return fleet

    def all_up(self) -> None:
        fleet = self.fleet
        for node in fleet.running:
            fleet, _ = fleet.hello(node.id, f"inproc://{node.id}", self.now)
        self.reconciler.fleet = fleet

    def set_size(self, role: Any, each: Resources) -> None:
        self.reconciler.fleet = self.fleet.set_size(role, each)

    def answer(self, wish: Any) -> Scaled | Failure:
        self.wishes.append(wish)
        if self.refuses:
            self.refuses -= 1
            return NO
        if isinstance(wish, ScaleRequest) and wish.workers is not None:
            self.reconciler.fleet, _ = self.fleet.scale(wish.workers, self.now)
        if isinstance(wish, ResizeRequest):
            self.reconciler.fleet, _ = self.fleet.resized(wish.node, Resources(wish.cores or 1.0, wish.memory or GIB))
        return Scaled(["done"])

    def scale(self, role: Any, count: int, wanted: Any) -> Scaled | Failure:
        self.wanted.append(dict(wanted))
        return self.answer(ScaleRequest(workers=count) if role == "worker" else ScaleRequest(ps=count))

    def advise(self, number: int, **decision: Any) -> None:
        self.executor.advised(Advice(number, {"reason": "it pays", **decision}))

    def change(self, number: int, to: Plan) -> None:
        self.advise(number, action="change", plan=msgspec.to_builtins(to))

    def treat(self, number: int, node: str, **act: Any) -> None:
        self.advise(number, action="heal", treatment={"node": node, "cause": "hot ps", "act": act})

    def turn(self, seconds: float = 1.0) -> None:
        self.now += seconds
        self.executor.turn()
        self.all_up()

    def until_done(self) -> DecisionOutcome:
        for _ in range(40):
            self.turn()
            if self.done:
                return self.done[-1]
        raise AssertionError(self.executor.state)

    def ask(self, what: Any) -> Any:
        return self.executor.answer(AutoscaleRequest(what))


# --- plans ----------------------------------------------------------------------------------------------------------------------


def test_a_plan_is_carried_out_and_the_brain_told() -> None:
    job = Job()
    job.change(3, plan(workers=3, cores=2.0))
    assert job.executor.standing().busy
    done = job.until_done()
    assert job.fleet.plan == plan(workers=3, cores=2.0)
    assert {node.resources.cores for node in job.fleet.of("worker")} == {2.0}
    assert [wish for wish in job.wishes if isinstance(wish, ScaleRequest)] == [ScaleRequest(workers=3)]
    assert (done.job, done.number, done.state, done.why) == ("ads-1", 3, "done", "")
    assert done.seconds > 0
    assert not job.executor.standing().busy and job.executor.standing().heard == 3
    assert job.told[0] == "decision 3 is carried out: it pays" and job.told[-1].startswith("decision 3 is done after")


def test_every_step_is_stored_before_it_is_asked_for() -> None:
    job = Job()
    known: list[Autoscaler] = []
    scale = job.scale

    def looks(*wish: Any) -> Any:
        known.append(job.kept[-1])
        return scale(*wish)

    job.executor.control.scale = looks
    job.change(3, plan(workers=2))
    job.until_done()
    assert len(known) == len(job.wishes) == 1
    assert known[0].goal is not None and known[0].goal.step is not None
    assert job.kept[-1] == job.executor.state


def test_repeated_advice_is_not_carried_out_again() -> None:
    job = Job()
    job.change(3, plan(workers=2))
    job.until_done()
    kept = len(job.kept)
    job.change(3, plan(workers=5))
    job.change(2, plan(workers=5))
    job.turn()
    assert job.fleet.plan.worker.count == 2 and len(job.kept) == kept


def test_a_refused_step_is_retried_and_given_up_in_the_end() -> None:
    job = Job()
    job.refuses = 1
    job.change(3, plan(workers=2))
    job.until_done()
    assert job.done[-1].state == "done" and job.wishes == [ScaleRequest(workers=2)] * 2
    assert "a step is refused: there is no room" in job.told
    job = Job()
    job.refuses = TRIES
    job.change(3, plan(workers=2))
    for _ in range(TRIES):
        job.turn(AGAIN_SECONDS * 2**TRIES)
    (done,) = job.done
    assert (done.state, done.why) == ("given up", "scaling to 2 worker: there is no room")
    assert job.fleet.plan.worker.count == 1


def test_no_step_once_all_samples_are_trained() -> None:
    job = Job()
    job.change(3, plan(workers=2))
    job.shards.trained = True
    assert job.until_done().state == "given up" and job.wishes == []


def test_a_plan_gives_no_less_memory_after_an_oom_kill() -> None:
    job = Job(now=plan(memory=2 * GIB))
    job.change(3, plan(workers=2, memory=GIB))
    job.until_done()
    assert job.fleet.plan.worker.each.memory == GIB
    job.reconciler.fleet = msgspec.structs.replace(job.fleet, returns={"worker": {"OOMKilled": (1.0,)}})
    job.set_size("worker", Resources(1.0, 3 * GIB))
    job.done.clear()
    job.change(4, plan(workers=3, memory=GIB))
    job.until_done()
    assert job.fleet.plan.worker.each.memory == 3 * GIB


# --- treatments -----------------------------------------------------------------------------------------------------------------


def test_a_resize_treatment_is_carried_out() -> None:
    job = Job()
    job.treat(1, "ps-0", type="resize", resources={"cores": 1.0, "memory": 2 * GIB})
    job.until_done()
    assert job.wishes == [ResizeRequest("ps-0", 1.0, 2 * GIB)]


def test_a_worker_gets_smaller_shards() -> None:
    job = Job()
    job.treat(1, "worker-0", type="smaller shards", factor=0.25)
    job.until_done()
    assert job.less == [("worker-0", 0.25)]


def test_a_move_slots_treatment_moves_the_hottest_slots() -> None:
    job = Job(now=plan(servers=3))
    job.owned = {"ps-0": [1, 2, 3, 4, 5]}
    for slot, busy in ((1, 4.0), (2, 1.0), (3, 3.0), (4, 2.0), (5, 0.0)):
        job.servers.loads.busy[slot] = busy
    job.treat(1, "ps-0", type="move slots", share=0.7, to={"ps-1": 0.6, "ps-2": 0.4})
    job.turn()
    moved = {
        wish.target: set(np.flatnonzero(slot_sets.unpack(wish.slots)))
        for wish in job.wishes
        if isinstance(wish, MoveRequest)
    }
    load = {target: float(job.servers.loads.busy[list(members)].sum()) for target, members in moved.items()}
    assert moved["ps-1"] == {1}  # the hottest, to who is to have most
    assert 0 < load["ps-1"] <= 0.6 * 7.0 and 0 < load["ps-2"] <= 0.4 * 7.0
    assert moved.keys() == {"ps-1", "ps-2"} and not moved["ps-1"] & moved["ps-2"]


# --- what can't be carried out --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "decision",
    [
        {"action": "stay"},
        {"action": "queue"},
        {"action": "change"},
        {"action": "dance", "steps": 3},
        {"action": "heal", "treatment": {"node": "ps-0", "cause": "ceiling", "act": {"type": "tell"}}},
        {"action": "heal", "treatment": None},
        {},
    ],
)
def test_advice_that_asks_for_nothing_known_is_heard_and_ignored(decision: dict[str, Any]) -> None:
    job = Job()
    job.advise(7, **decision)
    job.turn()
    assert job.wishes == [] and not job.executor.state.busy
    assert job.executor.standing().heard == 7


@pytest.mark.parametrize(
    "decision",
    [
        {"action": "change", "plan": {"workers": 3}},
        {"action": "change", "plan": "more"},
        {"action": "heal", "treatment": {"node": "ps-0", "cause": "hot ps", "act": {"type": "resize"}}},
        {
            "action": "heal",
            "treatment": {"node": "ps-0", "cause": "hot ps", "act": {"type": "resize", "resources": {"cores": "two"}}},
        },
        {
            "action": "heal",
            "treatment": {"node": "ps-0", "cause": "hot ps", "act": {"type": "smaller shards", "factor": "small"}},
        },
        {"action": "heal", "treatment": {"node": "ps-0", "cause": "hot ps", "act": ["resize"]}},
        {"action": "heal", "treatment": "resize"},
        {"action": "heal", "treatment": {"node": "ps-0", "cause": "hot ps", "act": {"type": "teleport"}}},
    ],
)
def test_malformed_advice_is_reported_and_ignored(decision: dict[str, Any]) -> None:
    job = Job()
    job.advise(7, **decision)
    job.turn()
    assert job.wishes == [] and not job.executor.state.busy
    assert job.executor.standing().heard == 7
    assert any("decision 7 can't be understood" in line for line in job.told)
    job.change(8, plan(workers=2))
    assert job.until_done().state == "done"


def test_decisions_are_rejected_if_autoscaling_is_off() -> None:
    job = Job(mode="off")
    job.change(3, plan(workers=2))
    (done,) = job.done
    assert (done.number, done.state) == (3, "rejected") and "off for this job" in done.why
    job.turn()
    assert job.wishes == []


# --- people ---------------------------------------------------------------------------------------------------------------------


def test_a_suggestion_waits_for_a_person() -> None:
    job = Job(mode="suggest")
    job.change(3, plan(workers=2))
    job.turn()
    assert job.wishes == [] and job.told == ["decision 3 is suggested: it pays"]
    status = job.ask("status")
    assert status == AutoscaleStatus("suggest", "", 3, "it pays", False)
    assert job.ask("accept").under_way
    assert job.until_done().state == "done"
    assert job.ask("status").decision is None
    job.change(4, plan(workers=5))
    assert isinstance(job.ask("reject"), AutoscaleStatus)
    assert (job.done[-1].number, job.done[-1].state) == (4, "rejected")
    job.turn()
    assert job.fleet.plan.worker.count == 2


def test_accepting_another_decision_than_the_suggested_is_refused() -> None:
    job = Job(mode="suggest")
    job.change(3, plan(workers=2))
    job.change(4, plan(workers=5))
    for what in ("accept", "reject"):
        answer = job.executor.answer(AutoscaleRequest(what, 3))  # type: ignore[arg-type]
        assert isinstance(answer, Failure) and "decision 3 is suggested no more: decision 4 is" in answer.message
    assert job.ask("status").decision == 4
    job.done.clear()
    assert job.executor.answer(AutoscaleRequest("accept", 4)).under_way
    assert job.until_done().number == 4


def test_accepting_an_outdated_suggestion_is_refused_and_drops_it() -> None:
    job = Job(mode="suggest", now=plan(workers=2))
    job.treat(3, "worker-1", type="resize", resources={"cores": 2.0, "memory": GIB})
    job.reconciler.fleet, _ = job.fleet.drain("worker-1", 0.0)
    answer = job.ask("accept")
    assert isinstance(answer, Failure) and answer.message.endswith("carried out any more: worker-1 is about to leave")
    assert (job.done[-1].number, job.done[-1].state, job.done[-1].why) == (3, "given up", "worker-1 is about to leave")
    job.treat(4, "worker-7", type="replace", resources={"cores": 2.0, "memory": GIB})
    assert "worker-7 has ended" in job.ask("accept").message
    job.change(5, plan(workers=1))
    job.change(6, job.fleet.plan)
    job.reconciler.fleet, _ = Fleet(job.fleet.plan, Resources(8.0, 16 * GIB)).begin(0.0)
    job.all_up()
    assert "the job has that plan already" in job.ask("accept").message
    job.change(7, plan(workers=4))
    job.shards.trained = True
    assert "all samples have been trained on" in job.ask("accept").message
    assert job.ask("status").decision is None and job.wishes == []


def test_a_suggestion_accepted_during_a_pause_begins_after_it() -> None:
    job = Job(mode="suggest")
    job.change(3, plan(workers=2))
    job.ask("pause")
    assert job.ask("accept").under_way
    job.turn()
    assert job.wishes == []
    job.ask("resume")
    assert job.until_done().state == "done"


def test_the_brain_is_told_whether_an_evaluation_has_finished() -> None:
    job = Job()
    assert job.executor.standing().evaluated is False
    job.shards.has_evaluated = True
    assert job.executor.standing().evaluated is True


def test_a_node_that_is_killed_by_hand_changes_no_plan() -> None:
    job = Job()
    assert job.executor.by_hand(KillRequest("worker-0")) == Scaled(["done"])
    assert job.executor.standing().paused == ""


@pytest.mark.parametrize("what", ["accept", "reject"])
def test_accept_or_reject_without_a_suggestion_is_refused(what: Any) -> None:
    answer = Job().ask(what)
    assert isinstance(answer, Failure) and "nothing is suggested" in answer.message


def test_a_pause_holds_a_change_between_two_steps() -> None:
    job = Job()
    job.change(3, plan(workers=2))
    assert job.ask("pause").paused == "by request"
    for _ in range(5):
        job.turn(60.0)
    assert job.wishes == [] and job.executor.standing().paused == "by request"
    assert job.ask("resume").paused == ""
    assert job.until_done().state == "done"


def test_a_change_by_hand_pauses_autoscaling() -> None:
    job = Job()
    answer = job.executor.by_hand(ScaleRequest(workers=2))
    assert isinstance(answer, Scaled) and any("paused" in action for action in answer.actions)
    assert job.executor.standing().paused == BY_HAND
    again = job.executor.by_hand(ScaleRequest(workers=3))
    assert again == Scaled(["done"])


def test_a_refused_change_by_hand_pauses_nothing() -> None:
    job = Job()
    job.refuses = 1
    assert job.executor.by_hand(ScaleRequest(workers=20)) == NO
    assert job.executor.standing().paused == ""
    off = Job(mode="off")
    assert off.executor.by_hand(ScaleRequest(workers=2)) == Scaled(["done"])
    assert off.executor.standing().paused == ""


# --- how it stands --------------------------------------------------------------------------------------------------------------


def test_standing_tells_nodes_hosts_and_memory_use() -> None:
    job = Job(now=plan(workers=2, servers=2))
    job.servers.state.leaving = ["ps-1"]
    job.servers.state.move_rate = 123_456_789.0
    job.reconciler.launch_seconds = 42.42
    job.reconciler.host_of = {"ps-0": "here", "worker-0": "there"}
    job.used = {"worker-0": 300, "worker-1": 500, "ps-0": 900, "worker-9": 1000}
    job.reconciler.fleet, _ = job.fleet.drain("worker-1", 0.0)
    found = job.executor.standing()
    assert [(node.node, node.role, node.host, node.used) for node in found.nodes] == [
        ("ps-0", "ps", "here", 900),
        ("worker-0", "worker", "there", 300),
    ]
    assert (found.plan, found.worker_peak, found.heard, found.busy) == (job.fleet.plan, 500, 0, False)
    assert (found.move_rate, found.launch_seconds) == (
        1.2e8,
        42.0,
    )  # rounded: what is told changes only when it means something
    assert job.executor.standing().nodes is found.nodes, "nothing has changed of nodes"
    job.used["ps-0"], job.reconciler.readings = 1000, object()
    assert [node.used for node in job.executor.standing().nodes] == [1000, 300]
    job.servers.state.leaving = []
    assert [node.node for node in job.executor.standing().nodes] == ["ps-0", "ps-1", "worker-0"]


def test_a_restarted_executor_finishes_the_change_under_way() -> None:
    job = Job()
    job.change(3, plan(workers=2))
    job.turn()
    left = job.kept[-1]
    assert left.goal is not None
    after = Job(state=left, now=job.fleet.plan)
    after.change(3, plan(workers=9))  # told once more, since the answer was lost
    assert after.until_done().number == 3
    assert after.fleet.plan.worker.count == 2


def test_nodes_are_wanted_where_the_decision_says() -> None:
    job = Job()
    placement = [{"host": "a", "workers": 2, "servers": 1}, {"host": "b", "workers": 1}]
    job.advise(1, action="change", plan=msgspec.to_builtins(plan(workers=3)), placement=placement)
    for _ in range(3):
        job.turn()
    assert job.wishes == [ScaleRequest(workers=3)] and job.wanted == [{"a": 2, "b": 1}]
    assert [one.state for one in job.done] == ["done"]
