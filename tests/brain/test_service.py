"""What the brain answers, and what is in its database by then."""

from __future__ import annotations

import math

import msgspec
import pytest

from dlrover_lite.brain.store import preferences, queries
from dlrover_lite.brain.store.database import ConfigStore
from dlrover_lite.brain.store.records import JobEntry, profile_of
from dlrover_lite.brain_server.service import GONE_SECONDS, SILENT_SECONDS, JobEnd
from dlrover_lite.core.units import Resources
from dlrover_lite.protocol import brain_messages
from dlrover_lite.protocol.brain_messages import (
    PROTOCOL,
    Advice,
    BrainAck,
    BrainHello,
    BrainStatusRequest,
    BrainWelcome,
    EndJob,
    HandOver,
    Report,
    StopBrain,
)
from dlrover_lite.protocol.demands import Demand
from dlrover_lite.protocol.hosts import Host
from dlrover_lite.protocol.outcomes import JobOutcome, outcome_of
from dlrover_lite.protocol.plans import RolePlan
from dlrover_lite.protocol.records import PlanRecord
from dlrover_lite.transport.frames import NOT_UNDERSTOOD, Failure
from tests.brain.service_rig import PATIENCE, PLAN, Rig, event, profile, registration


@pytest.fixture
def make(tmp_path):
    rigs: list[Rig] = []

    def make(**options) -> Rig:
        rigs.append(Rig(tmp_path / "brain.sqlite", **options))
        return rigs[-1]

    yield make
    for rig in rigs:
        rig.close()


@pytest.fixture
def rig(make) -> Rig:
    return make()


# --- a job's life -----------------------------------------------------------------------------------------------------------


def test_acknowledged_reports_are_in_the_database(rig, make):
    assert rig.ask(registration()) == BrainAck()
    plan = PlanRecord(job="ads-1", at=12.0, kind="granted", plan=PLAN)
    happened = [event("launched", 12.0), event("up", 13.0)]
    assert rig.ask(Report("ads-1", 2000, [profile(30.0)], happened, [plan])) == BrainAck()
    outcome = JobOutcome(seconds=40.0, samples_per_second=100.0, peak_memory={"ps": 77})
    with ConfigStore(rig.store.path) as other:
        (job,) = queries.jobs(other)
        assert (job.state, job.samples, job.features, job.directory) == ("running", 2000, {"tables": 26}, "/jobs/ads-1")
        assert [profile_of(one) for one in queries.profiles(other, "ads-1")] == [profile(30.0)]
        assert queries.node_events(other, "ads-1") == happened
        assert queries.plans(other, "ads-1", kind="granted")[-1] == plan
        assert rig.ask(EndJob("ads-1", "succeeded", 50.0, 4000, outcome=outcome)) == BrainAck()
        (job,) = queries.jobs(other)
    assert (job.state, job.ended_at, job.samples, job.outcome) == ("succeeded", 50.0, 4000, outcome)
    assert rig.ask(BrainStatusRequest()).jobs == []


def test_a_repeated_report_changes_nothing(rig):
    """As by a master whose brain was killed between the commit and the answer, or that was killed itself."""
    rig.ask(registration())
    plans = [
        PlanRecord(
            job="ads-1", at=at, kind="granted", plan=msgspec.structs.replace(PLAN, ps=RolePlan(n, Resources(1, 1)))
        )
        for at, n in ((1.0, 1), (2.0, 2))
    ]
    happened = [event("launched", 1.0), event("resized", 2.0), event("resized", 3.0), event("ended", 4.0)]
    report = Report("ads-1", 10, [profile(5.0)], happened, plans)
    for _ in range(2):
        rig.ask(report)
    rig.ask(registration())
    later = [event("launched", 9.0), event("ended", 9.0)]
    rig.ask(Report("ads-1", 10, events=later, plans=[msgspec.structs.replace(plans[-1], at=9.0)]))
    assert queries.node_events(rig.store, "ads-1") == happened
    assert queries.plans(rig.store, "ads-1") == plans
    assert len(queries.profiles(rig.store, "ads-1")) == 1


def test_an_unregistered_job_is_asked_to_register(rig):
    for body in (Report("ads-1", 10, [profile(1.0)]), EndJob("ads-1", "failed", 1.0, 0)):
        answer = rig.ask(body)
        assert isinstance(answer, Failure) and answer.code == brain_messages.UNKNOWN_JOB
    assert queries.profiles(rig.store, "ads-1") == []


def test_many_jobs_at_once_are_committed_together(rig):
    clients = {f"ads-{i}": rig.client() for i in range(50)}
    for job, client in clients.items():
        client.send(registration(job))
    rig.service.turn(PATIENCE)
    for job, client in clients.items():
        reply = client.receive(PATIENCE)
        assert reply is not None and reply.body == BrainAck()
        client.send(Report(job, 5, [profile(1.0, job)]))
    rig.service.turn(PATIENCE)
    replies = [client.receive(PATIENCE) for client in clients.values()]
    assert all(reply is not None and reply.body == BrainAck() for reply in replies)
    assert len(queries.jobs(rig.store)) == 50
    assert len(rig.ask(BrainStatusRequest()).jobs) == 50


def test_advice_comes_with_the_answer(rig):
    rig.advice["ads-1"] = Advice(3, {"action": "change"})
    assert rig.ask(registration()) == Advice(3, {"action": "change"})
    assert rig.ask(Report("ads-1", 1)) == BrainAck()


# --- what can't be written ----------------------------------------------------------------------------------------------------


def test_a_report_that_can_not_be_written_is_not_acknowledged(rig):
    rig.ask(registration())
    with ConfigStore(rig.store.path) as other:
        other.db.conn.execute("begin immediate")
        answer = rig.ask(Report("ads-1", 1, [profile(1.0)]))
        assert isinstance(answer, Failure) and answer.code == brain_messages.UNWRITTEN
        assert "locked by another process" in answer.message
        assert "locked by another process" in rig.ask(BrainStatusRequest()).problem
        assert isinstance(rig.ask(EndJob("ads-1", "failed", 1.0, 0)), Failure)
        other.db.conn.execute("rollback")
    assert rig.ask(Report("ads-1", 1, [profile(2.0)])) == BrainAck()
    assert [one.at for one in queries.profiles(rig.store, "ads-1")] == [2.0]  # the first is its master's to repeat
    assert rig.ask(BrainStatusRequest()).problem == ""


@pytest.mark.parametrize("bad", [profile(math.nan), profile(1.0, samples=2**64 - 1), profile(1.0, samples=2**63)])
def test_an_invalid_report_of_one_job_harms_no_other(rig, bad):
    clients = [rig.client() for _ in range(3)]
    for i, client in enumerate(clients):
        rig.ask(registration(f"ads-{i}"), client)
    for i, client in enumerate(clients):
        client.send(Report(f"ads-{i}", bad.samples if i == 1 else 7, [bad if i == 1 else profile(1.0, f"ads-{i}")]))
    rig.service.turn(PATIENCE)
    replies = [client.receive(PATIENCE) for client in clients]
    assert [reply is not None and isinstance(reply.body, BrainAck) for reply in replies] == [True, False, True]
    assert replies[1] is not None and replies[1].body.code == NOT_UNDERSTOOD
    assert sorted(job.samples for job in queries.jobs(rig.store)) == [0, 7, 7]


def test_a_row_that_the_database_refuses_harms_no_other(rig, monkeypatch):
    clients = [rig.client() for _ in range(3)]
    for i, client in enumerate(clients):
        rig.ask(registration(f"ads-{i}"), client)
    add = rig.store.add_profile
    too_large = {"ads-1": 2**70}
    monkeypatch.setattr(
        rig.store,
        "add_profile",
        lambda one: add(msgspec.structs.replace(one, workers=too_large.get(one.job, one.workers))),
    )
    for i, client in enumerate(clients):
        client.send(Report(f"ads-{i}", 7, [profile(1.0, f"ads-{i}")]))
    rig.service.turn(PATIENCE)
    replies = [client.receive(PATIENCE) for client in clients]
    assert [reply is not None and isinstance(reply.body, BrainAck) for reply in replies] == [True, False, True]
    assert replies[1] is not None and replies[1].body.code == brain_messages.REFUSED
    assert sorted(job.samples for job in queries.jobs(rig.store)) == [0, 7, 7]


# --- jobs that end without a word ---------------------------------------------------------------------------------------------


def test_a_job_that_waits_for_a_plan_is_queued(rig):
    demand = Demand(hosts=(Host("a", Resources(2.0, 1 << 30)),))
    rig.ask(registration(demand=demand))
    assert queries.jobs(rig.store)[0].state == "queued"
    rig.ask(registration(demand=demand, plan=PLAN))
    assert queries.jobs(rig.store)[0].state == "running"


def test_a_job_that_is_silent_is_looked_at(make):
    told = []
    rig = make(tell=told.append)
    rig.ask(registration())
    rig.passes(SILENT_SECONDS)
    assert queries.jobs(rig.store)[0].state == "running"
    status = {"samples": 300, "elapsed_seconds": 3.0, "nodes": []}
    rig.ended["/jobs/ads-1"] = JobEnd("lost", 70.0, "its supervisor was killed", status)
    rig.passes(SILENT_SECONDS - 1)
    assert queries.jobs(rig.store)[0].state == "running"
    rig.passes(2.0)
    (job,) = queries.jobs(rig.store)
    assert (job.state, job.ended_at, job.samples, job.message) == ("lost", 70.0, 300, "its supervisor was killed")
    assert job.outcome.samples_per_second == 100.0
    assert isinstance(told[-1], EndJob) and told[-1].state == "lost"  # what it had goes to others


def test_a_job_of_elsewhere_counts_as_lost_after_a_long_silence_and_may_come_back(make):
    told = []
    rig = make(tell=told.append)
    rig.ask(registration(directory=""))
    rig.passes(GONE_SECONDS - 1)
    assert queries.jobs(rig.store)[0].state == "running"
    rig.ask(Report("ads-1", 400))
    rig.passes(GONE_SECONDS - 1)
    assert queries.jobs(rig.store)[0].state == "running"
    rig.passes(2.0)
    (job,) = queries.jobs(rig.store)
    assert (job.state, job.samples, job.message) == ("lost", 400, "its master has said nothing for 10 minutes")
    assert isinstance(told[-1], EndJob) and told[-1].state == "lost"  # what it had goes to others
    assert rig.ask(Report("ads-1", 500)).code == brain_messages.UNKNOWN_JOB
    rig.ask(registration(directory=""))
    assert queries.jobs(rig.store)[0].state == "running"


def test_jobs_that_ended_without_a_brain_are_found_ended(tmp_path, make):
    with ConfigStore(tmp_path / "brain.sqlite") as store:
        for job in ("ads-1", "ads-2", "gone"):
            directory = "" if job == "gone" else f"/jobs/{job}"
            store.put_job(JobEntry(id=job, name="ads", state="running", created_at=1.0, directory=directory))
        store.commit()
    rig = make()
    rig.ended["/jobs/ads-1"] = JobEnd("succeeded", 4e9)
    rig.passes(0.0)
    assert {job.id: job.state for job in queries.jobs(rig.store)} == {
        "ads-1": "succeeded",
        "ads-2": "running",
        "gone": "running",
    }
    answer = rig.ask(Report("ads-2", 1))
    assert isinstance(answer, Failure) and answer.code == brain_messages.UNKNOWN_JOB


# --- its own end --------------------------------------------------------------------------------------------------------------


def test_brain_ends_when_there_has_been_no_job_for_a_while(rig):
    rig.passes(590.0)
    assert rig.ask(BrainStatusRequest()).idle_exit_seconds == 10.0
    assert isinstance(rig.ask(BrainHello("1.0")), BrainWelcome)  # somebody is about to come
    rig.passes(590.0)
    rig.ask(registration())
    rig.passes(6000.0)
    assert not rig.service.ending
    assert rig.ask(BrainStatusRequest()).idle_exit_seconds is None
    rig.ask(EndJob("ads-1", "stopped", 1.0, 1))
    rig.passes(599.0)
    assert not rig.service.ending
    rig.passes(2.0)
    assert rig.service.ending == "no job for 10 minutes"


def test_brain_without_idle_limit_stays_until_stopped(make):
    rig = make(idle_seconds=None)
    rig.passes(1e6)
    assert not rig.service.ending
    assert rig.ask(StopBrain()) == BrainAck()
    assert rig.service.run() == "stopped by request"


@pytest.mark.parametrize(
    ("version", "protocol", "goes"),
    [
        ("1.2.0", PROTOCOL, False),
        ("1.1.9", PROTOCOL, False),
        ("1.2.1", PROTOCOL, True),
        ("1.10.0", PROTOCOL, True),
        ("0.1", PROTOCOL + 1, True),
        ("1.3.0", PROTOCOL - 1, False),
    ],
)
def test_brain_hands_over_to_newer_versions_only(make, version, protocol, goes):
    rig = make(version="1.2.0")
    rig.ask(registration())
    answer = rig.ask(HandOver(version, protocol))
    assert (answer == BrainAck()) == goes == bool(rig.service.ending)
    if not goes:
        assert answer.code == brain_messages.NO_NEWER


# --- forgetting -----------------------------------------------------------------------------------------------------------------


def test_old_jobs_are_forgotten_as_the_person_prefers(tmp_path, make):
    with ConfigStore(tmp_path / "brain.sqlite") as store:
        for i in range(5):
            store.put_job(JobEntry(id=f"old-{i}", name="old", state="failed", created_at=i, ended_at=4e9 + i))
        store.commit()
        liked = preferences.change(store, preferences.parse_changes(["keep-jobs=2", "idle-minutes=0.5"]))
    assert (liked.keep_jobs, liked.idle_seconds) == (2, 30.0)
    rig = make()
    rig.passes(0.0)
    assert [job.id for job in queries.jobs(rig.store)] == ["old-4", "old-3"]


# --- outcomes -------------------------------------------------------------------------------------------------------------------


def test_an_outcome_is_made_of_a_status():
    nodes = [
        {"role": "ps", "state": "ended (OOMKilled: over)", "peak_memory": 90},
        {"role": "ps", "state": "up", "peak_memory": 70},
        {"role": "worker", "state": "ended (Unknown: not OOMKilled)", "peak_memory": 0},
    ]
    status = {"samples": 500, "elapsed_seconds": 10.0, "auc": 0.6, "evaluations": [{"auc": 0.7}], "nodes": nodes}
    assert outcome_of(status) == JobOutcome(
        seconds=10.0,
        samples_per_second=50.0,
        auc=0.7,
        peak_memory={"ps": 90},
        nodes={"ps": 2, "worker": 1},
        oom_kills=1,
    )
    assert outcome_of({}) == JobOutcome()
