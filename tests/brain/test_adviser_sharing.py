"""The brain's loop over simulated jobs that do what it says: who gets what when jobs come, go, give way and refuse."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from dlrover_lite.brain.advisor import Advisor, Arrival
from dlrover_lite.brain.job_tracker import candidate
from dlrover_lite.brain.planning.decision import Decision
from dlrover_lite.brain.store import preferences
from dlrover_lite.brain.store.database import ConfigStore
from dlrover_lite.brain.store.records import JobEntry
from dlrover_lite.core.units import GIB, Resources
from dlrover_lite.protocol.acts import Resize
from dlrover_lite.protocol.demands import DecisionOutcome, Demand, Standing, StandingNode
from dlrover_lite.protocol.features import JobFeatures
from dlrover_lite.protocol.outcomes import JobOutcome
from dlrover_lite.protocol.plans import Plan, RolePlan
from tests.brain.queueing import Costs
from tests.brain.simulated import START, Job, hosts

FEATURES = JobFeatures(
    model="wide_deep", tables=26, dims=416, batch_size=1024, rows=20_000_000, optimizer="adagrad", owner="ann", name="x"
)


class Office:
    """A brain over ``cores``, and jobs that have a plan, or wait for one."""

    def __init__(self, path: Path, cores: float) -> None:
        self.store = ConfigStore(path)
        self.prefer(cores)
        self.adviser = Advisor(self.store)
        self.now = START
        self.jobs: dict[str, Job] = {}
        self.arrivals: dict[str, Arrival] = {}
        self.standings: dict[str, Standing] = {}
        self.decided: list[Decision] = []

    def prefer(self, cores: float) -> None:
        self.most = cores
        preferences.change(self.store, {"capacity_cores": cores, "capacity_gib": 64.0, "decide_seconds": 0.0})

    def comes(self, name: str, *, priority: float = 1.0, plan: Plan | None = None, **demand: Any) -> None:
        told = Demand(
            **{
                "hosts": hosts(a=Resources(16.0, 64 * GIB)),
                "total_samples": 4e8,
                "epoch_samples": 4e8,
                "checkpoints": True,
                **demand,
            }
        )
        entry = JobEntry(id=name, name=name, owner="ann", model="wide_deep", state="running", created_at=self.now)
        self.store.put_job(entry)
        self.store.commit()
        features = msgspec.to_builtins(FEATURES)
        self.arrivals[name] = Arrival(
            job=name, features=features, demand=told, began=self.now, priority=priority, plan=plan
        )
        self.adviser.arrived(self.arrivals[name], self.now)
        if plan is not None:
            self._has(name, plan, 0)

    def turn(self) -> None:
        """The brain decides, if there is something to decide by."""
        self.now += 1.0
        self.adviser.turn(self.now)

    def said(self, name: str) -> Decision | None:
        """What the job's master would be told."""
        found = self.adviser.waiting().get(name)
        return found.decision if found is not None else None

    def obeys(self, name: str) -> Decision:
        """It does what it was told."""
        number, decision = (one := self.adviser.waiting()[name]).number, one.decision
        self.decided.append(decision)
        if decision.action == "preempt":
            del self.standings[name]
            self.reports(name, done=self.done(name, number))
            self.adviser.arrived(
                msgspec.structs.replace(self.arrivals[name], plan=None, waits_since=self.now), self.now
            )
        elif decision.plan is not None:
            self._has(name, decision.plan, number, done=decision.action != "start")
        elif decision.treatment is not None and isinstance(decision.treatment.act, Resize):
            self._resizes(
                name, {decision.treatment.node: decision.treatment.act.resources, **decision.treatment.act.others}
            )
            self.refuses(name, "done")
        else:  # what else is for the health of nodes is of no interest here
            self.refuses(name, "given up")
        return decision

    def _resizes(self, name: str, wanted: dict[str, Resources]) -> None:
        standing = self.standings[name]
        nodes = [
            msgspec.structs.replace(node, resources=wanted.get(node.node, node.resources)) for node in standing.nodes
        ]
        self.standings[name] = msgspec.structs.replace(standing, nodes=tuple(nodes))

    def refuses(self, name: str, state: Any = "rejected") -> Decision:
        number, decision = (one := self.adviser.waiting()[name]).number, one.decision
        self.standings[name] = msgspec.structs.replace(self.standings[name], heard=number)
        self.reports(name, done=msgspec.structs.replace(self.done(name, number), state=state))
        return decision

    def done(self, name: str, number: int) -> DecisionOutcome:
        return DecisionOutcome(job=name, number=number, at=self.now, state="done", seconds=2.0)

    def _has(self, name: str, plan: Plan, number: int, *, done: bool = False) -> None:
        job = self.jobs.setdefault(name, Job(candidate(plan), Costs(), name=name, seed=len(self.jobs)))
        job.plan, job.at = candidate(plan), max(job.at, self.now)
        each = {"ps": plan.ps.each, "worker": plan.worker.each}
        nodes = tuple(
            StandingNode(node.node, role, "a", each[role])  # type: ignore[index, arg-type]
            for node in job.nodes()
            if (role := node.node.partition("-")[0])
        )
        self.standings[name] = Standing(plan=plan, nodes=nodes, heard=number)
        self.reports(name, done=self.done(name, number) if done else None)

    def reports(self, name: str, *, windows: int = 0, done: DecisionOutcome | None = None) -> None:
        job = self.jobs[name]
        profiles = job.windows(windows)
        self.now = max(self.now, job.at)
        self.adviser.reported(
            name,
            samples=int(job.samples),
            profiles=profiles,
            standing=self.standings.get(name),
            done=[done] if done is not None else [],
        )

    def measured(self, *names: str, windows: int = 3) -> None:
        """They are, and give back the memory that they don't need."""
        for name in names:
            self.reports(name, windows=windows)
        self.turn()
        for name in names:
            if (told := self.said(name)) is not None and told.action == "heal":
                self.obeys(name)

    def goes_on(self, *names: str, rounds: int = 8) -> None:
        """All do what they are told, and never have more than there is."""
        for _ in range(rounds):
            self.measured(*names)
            for name in [name for name in names if name in self.adviser.waiting()]:
                self.obeys(name)
            assert sum(map(self.cores, self.standings)) <= self.most

    def cores(self, name: str) -> float:
        return candidate(self.standings[name].plan).cores

    def ends(self, name: str) -> None:
        del self.jobs[name], self.standings[name]
        self.adviser.ended(name, JobOutcome(), self.now)


def plan(workers: int, worker_cores: float, ps_cores: float = 0.5) -> Plan:
    return Plan(ps=RolePlan(1, Resources(ps_cores, GIB)), worker=RolePlan(workers, Resources(worker_cores, GIB)))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "brain.sqlite"


@pytest.fixture
def office(path: Path) -> Iterator[Office]:
    office = Office(path, 4.0)
    yield office
    office.store.close()


def test_first_job_makes_room_for_the_second_and_gets_it_back(office: Office) -> None:
    office.comes("a")
    office.turn()
    assert office.obeys("a").action == "start"
    office.goes_on("a", rounds=12)
    assert office.cores("a") > 2.0
    office.comes("b")
    office.turn()
    told = office.said("b")
    assert (
        told is not None and told.action == "queue" and "number 1 in the queue: room is made for it by a" in told.reason
    )
    shrinks = office.obeys("a")
    assert shrinks.action == "change" and "others need what it had" in shrinks.reason
    office.turn()
    assert office.obeys("b").action == "start"
    office.goes_on("a", "b")
    shared = office.cores("a")
    office.ends("b")
    office.goes_on("a")
    assert shared < office.cores("a") > 2.0


def test_a_job_without_room_waits_until_another_has_ended(office: Office) -> None:
    office.prefer(0.5)
    office.comes("a")
    office.turn()
    office.obeys("a")
    office.comes("b")
    office.measured("a")
    told = office.said("b")
    assert told is not None and (told.action, "doesn't fit beside what the others need" in told.reason) == (
        "queue",
        True,
    )
    office.ends("a")
    office.turn()
    assert office.obeys("b").action == "start"


def test_a_job_gives_way_to_one_of_higher_priority_and_goes_on_after_it(office: Office) -> None:
    office.prefer(0.5)
    office.comes("a")
    office.turn()
    office.obeys("a")
    office.measured("a")
    office.comes("urgent", priority=3.0)
    office.turn()
    told = office.said("urgent")
    assert told is not None and told.action == "queue" and "room is made for it by a" in told.reason
    assert "urgent has a higher priority" in office.obeys("a").reason
    office.turn()
    assert office.obeys("urgent").action == "start"
    told = office.said("a")
    assert told is not None and told.action == "queue" and "number 1 in the queue" in told.reason
    office.measured("urgent")
    office.ends("urgent")
    office.turn()
    again = office.obeys("a")
    assert again.action == "start" and again.reason.startswith("it goes on with 1 ")


def test_a_job_begins_for_which_another_has_given_way_though_a_third_makes_more_of_its_cores(office: Office) -> None:
    office.prefer(1.0)
    office.comes("short", plan=plan(1, 0.25, 0.25), priority=4.0, total_samples=4e6)
    office.comes("weak", plan=plan(1, 0.25, 0.25))
    office.measured("short", "weak")
    office.comes("urgent", priority=2.0, total_samples=4e10)
    office.turn()
    told = office.said("urgent")
    assert told is not None and told.action == "queue" and "room is made for it by weak" in told.reason
    assert office.obeys("weak").action == "preempt"
    office.turn()
    assert office.obeys("urgent").action == "start"
    office.comes("late", priority=2.0, total_samples=4e10)
    office.turn()
    assert office.said("late").action == "queue"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("changes", "why"),
    [({"checkpoints": False}, "it takes no checkpoints"), ({"autoscale": "off"}, "autoscaling is off for it")],
)
def test_a_job_that_can_not_give_way_is_never_asked_to(office: Office, changes: dict[str, Any], why: str) -> None:
    office.prefer(0.5)
    own = plan(1, 0.25, 0.25)
    office.comes("a", plan=own, ps=own.ps, worker=own.worker, **changes)  # nor is there memory to take from it
    office.measured("a")
    office.comes("urgent", priority=10.0)
    for _ in range(3):
        office.measured("a")
        told = office.said("urgent")
        assert told is not None and told.action == "queue"
        assert f"a has less priority, but can't give way: {why}" in told.reason
        assert office.said("a") is None


def test_a_job_with_its_own_plan_makes_nobody_give_way(office: Office) -> None:
    """It takes what its recipe says, whether or not there is room; the others do with the least."""
    office.comes("a")
    office.turn()
    office.obeys("a")
    office.goes_on("a", rounds=12)
    office.comes("fixed", plan=plan(8, 1.0), autoscale="off")
    office.most = 8.5 + 0.5  # not to be had, but it isn't asked
    office.measured("fixed", windows=1)
    office.obeys("a")
    office.goes_on("a", "fixed", rounds=3)
    assert office.cores("a") == 0.5 and "preempt" not in [one.action for one in office.decided]


def test_a_rejected_suggestion_is_not_made_again_at_once(office: Office) -> None:
    office.comes("a", autoscale="suggest")
    office.turn()
    office.obeys("a")
    for _ in range(10):
        office.measured("a")
        if office.said("a") is not None:
            break
    refused = office.refuses("a")
    for _ in range(3):
        office.measured("a")
        told = office.said("a")
        if told is not None:
            assert told.choice != refused.choice
            office.refuses("a")
    office.now = office.jobs["a"].at = office.now + 700.0
    for _ in range(3):
        office.measured("a")
    told = office.said("a")
    assert told is not None and told.acts


def test_a_job_that_failed_to_give_way_is_left_alone_for_a_while(office: Office) -> None:
    office.prefer(0.5)
    office.comes("a")
    office.turn()
    office.obeys("a")
    office.measured("a")
    office.comes("urgent", priority=3.0)
    office.turn()
    assert office.refuses("a", "given up").action == "preempt"
    office.turn()
    assert office.said("a") is None
    told = office.said("urgent")
    assert (
        told is not None
        and "a has less priority, but can't give way: it couldn't when it was asked a short while ago" in told.reason
    )
    office.now = office.jobs["a"].at = office.now + 100.0
    office.measured("a")
    told = office.said("a")
    assert told is not None and told.action == "preempt"


def test_a_restarted_brain_carries_on_a_change_under_way(office: Office, path: Path) -> None:
    """It was killed when a change had been told: that goes on, and is done under the next one."""
    office.comes("a")
    office.turn()
    office.obeys("a")
    for _ in range(10):
        office.measured("a")
        if "a" in office.adviser.waiting():
            break
    change = office.adviser.waiting()["a"]
    assert change.decision.plan is not None
    office.adviser = Advisor(office.store)
    arrival = msgspec.structs.replace(office.arrivals["a"], plan=office.standings["a"].plan)
    office.adviser.arrived(arrival, office.now)
    office.standings["a"] = msgspec.structs.replace(office.standings["a"], heard=change.number, busy=True)
    office.measured("a")
    assert office.said("a") is None  # it is left to finish what it is at
    office._has("a", change.decision.plan, change.number, done=True)
    (known,) = office.adviser._jobs.values()
    assert known.decided[-1].number == change.number and known.decided[-1].done is not None


def test_cores_of_a_change_that_its_master_has_not_heard_are_not_given_away_again(office: Office) -> None:
    """Masters hear late, in any order: what all are to have, and what those begin with that begin at once, fits into what there is."""
    random = np.random.default_rng(7)
    for name in ("a", "b", "c"):
        joins(office, name)
    office.ends("c")
    grown = False
    for _ in range(40):
        office.measured(*random.permutation(list(office.standings))[:1], windows=1)
        waiting = {
            name: one.decision for name, one in office.adviser.waiting().items() if one.decision.plan is not None
        }
        to_have = {name: office.cores(name) for name in office.standings}
        to_have |= {name: one.choice.cores for name, one in waiting.items() if one.choice is not None}
        assert sum(to_have.values()) <= office.most, {name: one.reason for name, one in waiting.items()}
        grown |= any(waiting[name].choice.cores > office.cores(name) for name in waiting if name in office.standings)
        for name in waiting:
            if random.random() < 0.3:
                office.obeys(name)
        if len(office.standings) < 3 and "d" not in office.arrivals and random.random() < 0.2:
            office.comes("d")
            office.turn()
    assert grown


def test_nobody_shrinks_for_cores_that_a_job_is_told_to_give_up(office: Office) -> None:
    """One round has others make room; until their masters hear that, the next rounds take nothing more from anybody."""
    for name in ("a", "b"):
        joins(office, name)
    office.comes("c", priority=2.0)
    office.turn()
    told = {name: one.decision for name, one in office.adviser.waiting().items() if name != "c"}
    assert told
    for _ in range(3):
        office.measured("a", "b", windows=1)
        again = {name: one.decision for name, one in office.adviser.waiting().items() if name != "c"}
        assert again == told


def joins(office: Office, name: str) -> None:
    """A job comes, and all do what they are told until it has begun, and for a while after."""
    office.comes(name)
    for _ in range(6):
        office.turn()
        for told in [told for told in office.adviser.waiting() if office.said(told).acts]:
            office.obeys(told)
        if name in office.standings:
            break
    office.goes_on(*office.standings, rounds=6)
