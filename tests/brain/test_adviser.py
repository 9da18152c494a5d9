"""The brain at its decisions: what jobs tell it goes in, what they are told comes out, and all of it is in the database."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dlrover_lite.brain.advisor import Advisor, Arrival, arrival_of, running_jobs
from dlrover_lite.brain.job_tracker import Numbered
from dlrover_lite.brain.models.memory_model import worker_limit
from dlrover_lite.brain.planning.decision import Round
from dlrover_lite.brain.planning.plan_grid import Candidate
from dlrover_lite.brain.policies import Policies
from dlrover_lite.brain.store import preferences, queries
from dlrover_lite.brain.store.records import FitRecord, JobEntry
from dlrover_lite.core.errors import HistoryError
from dlrover_lite.core.units import GIB, MIB, Resources
from dlrover_lite.protocol.demands import StandingNode
from dlrover_lite.protocol.hosts import Host
from dlrover_lite.protocol.outcomes import JobOutcome
from dlrover_lite.protocol.plans import Plan
from dlrover_lite.protocol.records import PlanRecord
from tests.brain.advised import FEATURES, MACHINE, Office, demand, done, nodes_of, plan_of, role
from tests.brain.queueing import Costs
from tests.brain.service_rig import profile
from tests.brain.simulated import Job, hosts

ONE_EACH = {"ps": role(1), "worker": role(1)}
OUTCOME = JobOutcome(seconds=60.0, peak_memory={"worker": 400 * MIB, "ps": 200 * MIB})


@pytest.fixture
def office(tmp_path: Path) -> Iterator[Office]:
    office = Office(tmp_path)
    yield office
    office.close()


# --- the first plan -----------------------------------------------------------------------------------------------------------


def test_first_plan_is_told_until_the_job_confirms_it(office: Office) -> None:
    office.arrives()
    assert office.told() is None
    office.turn()
    first = office.told()
    assert first is not None and (first.action, first.stage) == ("start", "initial")
    assert first.reason.startswith("cold start, as no past job was measured")
    assert office.decisions() == [first]
    office.turn()
    assert office.told() == first and len(office.decisions()) == 1
    office.begins()
    office.says("ads-1", heard=0)
    assert office.told() == first
    office.says("ads-1", heard=1)
    assert office.told() is None


def test_the_first_plan_is_within_what_the_job_asks_for(office: Office) -> None:
    office.arrives(demand=demand(worker=role(2, 1.5), total=Resources(4.0, 6 * GIB)))
    office.turn()
    first = office.told()
    assert first is not None and first.choice is not None and first.plan is not None
    assert (first.choice.workers, first.choice.worker_cores) == (2, 1.5)
    assert first.choice.cores <= 4.0
    assert 2 * first.plan.worker.each.memory + first.plan.ps.count * first.plan.ps.each.memory <= 6 * GIB


def test_preferred_capacity_limits_the_first_plan(office: Office) -> None:
    preferences.change(office.store, {"capacity_cores": 1.5})
    office.arrives()
    office.turn()
    first = office.told()
    assert first is not None and first.choice is not None and first.choice.cores <= 1.5


def test_a_job_that_can_not_fit_is_refused_with_a_reason(office: Office) -> None:
    office.arrives(demand=demand(worker=role(16), ps=role(1)))
    office.turn()
    refused = office.told()
    assert refused is not None and (refused.action, refused.plan) == ("refuse", None)
    assert "17 cores" in refused.reason


def test_registering_a_job_twice_makes_one_job(office: Office) -> None:
    office.arrives()
    office.arrives()
    office.turn()
    office.arrives()
    office.turn()
    assert [one.action for one in office.decisions()] == ["start"]
    job = office.begins()
    office.arrives(plan=plan_of(job), samples=5)
    office.turn()
    assert [one.action for one in office.decisions()].count("start") == 1
    (view,) = office.adviser.inputs(office.now).jobs
    assert view.now == job.plan


def test_a_job_is_queued_while_there_is_no_room_and_begins_when_one_ends(office: Office) -> None:
    machine = {"hosts": hosts(a=Resources(3.0, 16 * GIB))}
    office.arrives("ads-1", demand=demand(**machine, **ONE_EACH))
    office.turn()
    office.begins("ads-1")
    office.says("ads-1")
    office.arrives("ads-2", demand=demand(**machine, **ONE_EACH))
    office.turn()
    waits = office.told("ads-2")
    assert waits is not None and waits.action == "queue" and "number 1 in the queue" in waits.reason
    office.turn()
    assert len(office.decisions("ads-2")) == 1  # the same again isn't news
    office.adviser.ended("ads-1", OUTCOME, office.now)
    office.turn()
    begins = office.told("ads-2")
    assert begins is not None and begins.action == "start"


# --- while it runs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("evaluated", [False, True])
def test_a_later_plan_gives_no_less_worker_memory_before_an_evaluation(office: Office, evaluated: bool) -> None:
    office.arrives()
    office.turn()
    first = office.told()
    assert first is not None and first.plan is not None
    known, each = office.begins(plan=Candidate(1, 1, 1.0, 0.5)), first.plan.worker.each.memory
    plan = Plan(ps=role(1, 0.5, first.plan.ps.each.memory), worker=role(1, 1.0, each))
    office.trains(windows=4, plan=plan, nodes=held(known, plan), worker_peak=200 * MIB, evaluated=evaluated)
    office.turn()
    change = office.told()
    assert change is not None and change.action in ("change", "explore") and change.plan is not None
    less = worker_limit(200 * MIB)
    assert less < each
    assert change.plan.worker.each.memory == (less if evaluated else each)


def held(job: Job, plan: Plan) -> tuple[StandingNode, ...]:
    """Its nodes, with the memory of ``plan``."""
    memory = {"ps": plan.ps.each.memory, "worker": plan.worker.each.memory}
    return tuple(
        msgspec.structs.replace(node, resources=Resources(node.resources.cores, memory[node.role]))
        for node in nodes_of(job)
    )


def changed(office: Office) -> tuple[Job, Numbered]:
    """A job that was measured with a small plan, and the change of it that its master is to be told."""
    office.arrives()
    office.turn()
    job = office.begins(plan=Candidate(1, 1, 1.0, 0.5))
    office.trains(windows=4)
    office.turn()
    return job, office.adviser.waiting()["ads-1"]


def test_a_job_is_changed_to_a_faster_plan_and_the_effect_is_stored(office: Office) -> None:
    job, change = changed(office)
    assert change.decision.action == "change" and change.decision.before == job.plan
    assert change.decision.choice is not None and change.decision.choice.cores > job.plan.cores
    office.trains(busy=True)  # it has heard, and is at it
    office.turn()
    assert office.told() is None
    job.plan = change.decision.choice
    office.trains(windows=3, done=(done("ads-1", change.number, office.now),))
    stored = {one.number: one for one in queries.decisions(office.store, "ads-1")}
    effect = stored[change.number].effect
    assert effect is not None and effect.windows >= 2
    assert effect.scale_seconds is not None and 0 <= effect.scale_seconds <= 4.0
    predicted = change.decision.predicted
    assert predicted is not None
    assert effect.error == pytest.approx(effect.measured.expected / predicted.throughput.expected - 1)


def test_a_change_is_judged_though_memory_was_taken_back_since(office: Office) -> None:
    job, change = changed(office)
    assert change.decision.choice is not None
    job.plan = change.decision.choice
    usage = {"worker_peak": 20 * MIB, "evaluated": True}
    office.trains(done=(done("ads-1", change.number, office.now),), **usage)
    office.turn()
    less = office.adviser.waiting()["ads-1"]
    assert less.decision.treatment is not None and less.decision.treatment.cause == "memory to spare"
    office.trains(windows=2, done=(done("ads-1", less.number, office.now),), **usage)
    stored = {one.number: one.effect for one in queries.decisions(office.store, "ads-1")}
    assert stored[change.number] is not None and stored[less.number] is None


def test_a_change_of_plan_has_a_cost_and_a_missed_prediction_raises_doubt(office: Office) -> None:
    """While it went on the job trained as much as it would have with the old plan, and afterwards far less than was predicted."""
    office.arrives()
    office.turn()
    job = office.begins(plan=Candidate(1, 1, 1.0, 0.5))
    office.trains(windows=4)
    before = office.adviser.inputs(office.now).jobs[0]
    office.turn()
    change = office.adviser.waiting()["ads-1"]
    assert change.decision.predicted is not None and change.decision.choice is not None
    assert before.measured is not None and before.doubt == 1.0
    job.plan = change.decision.choice
    job.costs = replace(job.costs, worker=8 * job.costs.worker, ps=8 * job.costs.ps)
    trained = int(10.0 * before.measured.expected)
    office.trains(windows=3, done=(done("ads-1", change.number, office.now, seconds=10.0, samples=trained),))
    after = office.adviser.inputs(office.now).jobs[0]
    faster = change.decision.predicted.throughput.expected / before.measured.expected
    assert after.scale_seconds == pytest.approx(10.0 - 10.0 / faster, rel=0.2) and faster > 1.5
    assert after.doubt > 1.5


@pytest.mark.parametrize(
    ("asked", "standing"),
    [
        ({"autoscale": "off"}, {}),
        ({}, {"paused": "by request"}),
        ({}, {"busy": True}),
    ],
)
def test_a_plan_that_may_not_be_changed_stays(office: Office, asked: Any, standing: Any) -> None:
    office.arrives(demand=demand(**asked))
    office.turn()
    office.begins(plan=Candidate(1, 1, 1.0, 0.5))
    office.trains(windows=4, **standing)
    office.turn()
    assert office.told() is None
    assert [one.action for one in office.decisions()] == ["start"]


def test_no_decision_without_new_reports(office: Office) -> None:
    office.turn()
    office.arrives()
    office.turn()
    office.begins(plan=Candidate(1, 1, 1.0, 0.5))
    office.says("ads-1")
    before = len(office.decisions())
    office.turn()
    assert len(office.decisions()) == before


def test_plans_are_looked_at_as_seldom_as_policies_say(tmp_path: Path) -> None:
    """Whatever is reported in between, and whatever the person prefers."""
    office = Office(tmp_path, policies=Policies(decide_seconds=60.0))
    rounds, decide = list[float](), office.adviser.round

    def counted(at: float) -> Round:
        rounds.append(at)
        return decide(at)

    office.adviser.round = counted  # type: ignore[method-assign]
    office.arrives()
    office.turn()
    office.begins()
    rounds.clear()
    began = office.now
    while office.now < began + 300.0:
        office.trains()
        list(office.adviser.step(office.now))
    assert [round((at - began) / 60.0) for at in rounds] == [1, 2, 3, 4, 5]
    assert all(after - before >= 60.0 for before, after in pairwise(rounds))
    office.close()


def test_reports_of_unregistered_jobs_are_ignored(office: Office) -> None:
    """A job that never registered, or has ended."""
    office.adviser.reported("ads-9", samples=5, profiles=(profile(5.0, "ads-9"),), standing=None, done=())
    office.adviser.ended("ads-9", OUTCOME, office.now)
    office.turn()
    assert office.adviser.waiting() == {} and office.decisions("ads-9") == []


def test_a_past_jobs_measurements_warm_start_the_next_job(office: Office) -> None:
    office.arrives()
    office.turn()
    office.begins(plan=Candidate(2, 1, 1.0, 0.5), costs=Costs(worker=0.03))
    office.trains(windows=3)
    office.adviser.ended("ads-1", OUTCOME, office.now)
    entry = JobEntry(id="ads-1", name="ads", state="running", created_at=1.0, features=msgspec.to_builtins(FEATURES))
    office.store.put_job(entry)
    office.store.end_job("ads-1", "succeeded", at=office.now, samples=5, message="", outcome=OUTCOME)
    office.store.commit()
    office.arrives("ads-2")
    office.turn()
    first = office.told("ads-2")
    assert first is not None and first.reason.startswith("warm start, by the costs of 1 past job like it (ads-1")


# --- a brain after another ------------------------------------------------------------------------------------------------------


def test_a_restarted_brain_knows_earlier_measurements_and_decisions(office: Office) -> None:
    office.arrives()
    office.turn()
    job = office.begins(plan=Candidate(1, 1, 1.0, 0.5))
    office.trains(windows=4, busy=True)
    office.restart()
    office.arrives(plan=plan_of(job), began=office.now - 60)
    (view,) = office.adviser.inputs(office.now).jobs
    assert view.measured is not None and view.ran_seconds == 60.0
    office.says("ads-1")
    office.trains()
    office.turn()
    change = office.adviser.waiting()["ads-1"]
    assert (change.number, change.decision.action) == (2, "change")


def running(name: str, asks_for: Any, **fields: Any) -> JobEntry:
    features = {**msgspec.to_builtins(FEATURES), "demand": msgspec.to_builtins(asks_for)}
    return JobEntry(
        **{"id": name, "name": "ads", "state": "running", "created_at": 1.0, "features": features, "directory": name}
        | fields
    )


def arrivals(office: Office) -> dict[str, Arrival]:
    """Collect what a brain that begins finds in the database, by job."""
    rows = running_jobs(office.store)
    return {row.id: found for row in rows if (found := arrival_of(office.store, row)) is not None}


def test_a_restarted_brain_recalls_running_jobs_from_the_database(office: Office) -> None:
    office.store.put_job(running("ads-1", demand(), started_at=2.0, samples=7))
    office.store.put_job(running("ads-2", demand(), features={"tables": 3}))  # wants no advice
    office.store.put_job(running("ads-3", demand(), state="succeeded"))
    office.store.put_job(running("gone", demand()))
    plan = plan_of(office.begins(plan=Candidate(2, 1, 1.0, 0.5)))
    for name in ("ads-1", "ads-2", "ads-3", "gone"):
        office.store.add_plan(PlanRecord(job=name, at=3.0, kind="granted", plan=plan))
    office.store.commit()
    found = arrivals(office)["ads-1"]
    assert (found.job, found.began, found.samples, found.plan, found.demand) == ("ads-1", 2.0, 7, plan, demand())
    office.adviser.recall(office.now, lambda directory: directory != "gone")
    assert office.adviser.jobs == {"ads-1"}


def test_a_job_that_cannot_be_read_keeps_no_other_from_being_recalled(office: Office) -> None:
    """Else what the others have would be given away until their masters register again."""
    office.store.put_job(running("ads-1", {"total": "all"}))
    office.store.put_job(running("ads-2", demand()))
    office.store.put_job(running("ads-3", demand()))
    plan = plan_of(office.begins(plan=Candidate(2, 1, 1.0, 0.5)))
    for name in ("ads-1", "ads-2", "ads-3"):
        office.store.add_plan(PlanRecord(job=name, at=3.0, kind="granted", plan=plan))
    office.store.commit()
    with office.store.transaction():
        office.store.db.conn.execute("update plans set data = '{\"other\": 1}' where job = 'ads-3'")
    said: list[str] = []
    adviser = Advisor(office.store, say=said.append)
    adviser.recall(office.now, lambda _: True)
    assert adviser.jobs == {"ads-2"}
    assert len(said) == 2 and sum("What ads-1 asks for can't be read" in one for one in said) == 1


def test_a_running_job_of_the_version_before_is_found_and_decided_for(office: Office) -> None:
    """What it asks for is stored with a capacity, without hosts."""
    asked = msgspec.to_builtins(demand())
    asked |= {"capacity": asked.pop("hosts")[0]["resources"]}
    features = {**msgspec.to_builtins(FEATURES), "demand": asked}
    office.store.put_job(JobEntry(id="ads-1", name="ads", state="running", created_at=1.0, features=features))
    office.store.commit()
    (found,) = arrivals(office).values()
    assert found.demand == demand(hosts=(Host("", MACHINE),))
    office.adviser.arrived(found, office.now)
    office.turn()
    first = office.told()
    assert first is not None and first.action == "start"
    office.arrives("ads-2", demand=demand())  # of a master that names the host: it is the same one
    inputs = office.adviser.inputs(office.now)
    assert (inputs.capacity, inputs.hosts) == (MACHINE, hosts(a=MACHINE))


def test_rows_of_another_version_keep_no_job_from_its_plan(office: Office) -> None:
    office.arrives()
    office.turn()
    job = office.begins(plan=Candidate(1, 1, 1.0, 0.5))
    office.trains(windows=4, busy=True)
    with office.store.transaction():
        office.store.db.conn.execute(
            "update profiles set data = '{\"other\": 1}' where at = (select min(at) from profiles)"
        )
        office.store.db.conn.execute("update decisions set data = '{}'")
    office.restart()
    office.arrives(plan=plan_of(job))
    office.says("ads-1")
    office.trains()
    office.turn()
    change = office.told()
    assert change is not None and change.action == "change"


# --- what goes wrong ------------------------------------------------------------------------------------------------------------


def test_a_locked_database_delays_a_decision_and_loses_none(office: Office) -> None:
    office.arrives()
    other = sqlite3.connect(office.path, isolation_level=None)
    other.execute("begin immediate")
    with pytest.raises(HistoryError, match="is locked"):
        office.turn()
    assert office.told() is None  # what isn't stored isn't told
    other.execute("rollback")
    other.close()
    office.turn()
    first = office.told()
    assert first is not None and first.action == "start"
    assert office.decisions() == [first]


def test_a_damaged_database_is_reported_and_the_job_may_register_again(office: Office) -> None:
    office.store.put_job(JobEntry(id="old-1", name="old", state="succeeded", created_at=1.0, ended_at=2.0))
    office.store.add_fit(FitRecord(job="old-1", at=2.0, kind="bottleneck", error=0.0, windows=1, data={}))
    office.store.commit()
    with office.store.transaction():
        office.store.db.conn.execute("update fits set data = '{'")
    with pytest.raises(HistoryError, match="can't be understood"):
        office.arrives()
    assert not office.adviser.jobs
    with office.store.transaction():
        office.store.db.conn.execute("delete from fits")
    office.arrives()
    office.turn()
    assert office.told() is not None


def test_a_job_with_senseless_features_is_refused(office: Office) -> None:
    with pytest.raises(HistoryError, match="What ads-1 says of itself can't be understood"):
        office.arrives(features={"tables": "many"})
    assert not office.adviser.jobs
    office.turn()


@pytest.mark.parametrize(
    "changes",
    [
        {"seconds": 0.0},
        {"seconds": -5.0},
        {"seconds": math.nan},
        {"batch_size": 0},
        {"samples": -1},
        {"relative_sd": math.inf},
        {"at": math.nan},
    ],
)
def test_senseless_profiles_change_nothing(office: Office, changes: dict[str, Any]) -> None:
    office.arrives()
    office.turn()
    job = office.begins(plan=Candidate(1, 1, 1.0, 0.5))
    office.trains(windows=2, busy=True)
    before = office.adviser.inputs(office.now)
    senseless = msgspec.structs.replace(job.window(), **changes)
    office.says("ads-1", profiles=(senseless,), busy=True)
    office.turn()
    again = office.adviser.inputs(before.at)
    assert msgspec.json.encode(again) == msgspec.json.encode(before)


def test_intervals_without_nodes_or_samples_are_taken_as_they_are(office: Office) -> None:
    office.arrives()
    office.turn()
    job = office.begins(plan=Candidate(1, 1, 1.0, 0.5))
    empty = job.window()
    for changes in ({"samples": 0}, {"workers": (), "ps": ()}, {"hosts": ()}):
        empty = msgspec.structs.replace(empty, at=empty.at + 5, **changes)
        office.says("ads-1", profiles=(empty,))
        office.turn()
    assert {one.action for one in office.decisions()} <= {"start", "stay", "explore"}


def test_a_treatment_of_a_node_is_decided_once(office: Office) -> None:
    """A worker that gets slow: its master is told, and not told again while it is at it."""
    office.arrives(demand=demand(worker=role(4), ps=role(1)))
    office.turn()
    job = office.begins(plan=Candidate(4, 1, 1.0, 1.0), costs=Costs(ps=0.002))
    office.trains(windows=3)
    job.speeds["worker-2"] = 0.3
    office.trains(windows=4)
    office.turn()
    told = office.told()
    assert told is not None and told.action == "heal" and told.treatment is not None
    assert told.treatment.node == "worker-2"
    office.trains(busy=True)
    office.turn()
    assert [one.action for one in office.decisions()].count("heal") == 1
