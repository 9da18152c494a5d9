"""A job's rows in the database, played: at each moment what was known then, and nothing of later."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dlrover_lite.brain.effect import judge
from dlrover_lite.brain.planning.decision import decide
from dlrover_lite.brain.planning.job_view import RoundInputs
from dlrover_lite.brain.planning.pareto import Band
from dlrover_lite.brain.store import queries
from dlrover_lite.brain.store.database import ConfigStore
from dlrover_lite.brain.store.decision_news import CHANGING
from dlrover_lite.brain.store.history import FileHistory, History
from dlrover_lite.brain.store.records import JobEntry, ProfileRecord
from dlrover_lite.brain.store.timeline import Known, Measured, Timeline, Used, timeline
from dlrover_lite.core.units import GIB, Resources
from dlrover_lite.protocol.demands import DecisionOutcome
from dlrover_lite.protocol.news import Chosen, JobNews, NodeNews, PlanNews
from dlrover_lite.protocol.outcomes import JobOutcome
from dlrover_lite.protocol.plans import Plan, RolePlan
from dlrover_lite.protocol.records import NodeRecord, PlanRecord
from dlrover_lite.tui.model import Explanation, HostRow, JobDetail
from dlrover_lite.tui.recordings.history import MISSING, recorded, write, write_all
from dlrover_lite.tui.recordings.recorded import RecordedSource, Recording
from tests.brain.asked import WAYS, opened
from tests.brain.models import load, view
from tests.tui.fixed import EXPLANATION

BEGIN = 1_000_000.0
PLAN = Plan(RolePlan(1, Resources(0.5, GIB)), RolePlan(2, Resources(1.0, GIB)))


def _profile(at: float, samples: int, *, ps_bytes: int, shared_cores: bool = False) -> ProfileRecord:
    """10 s of two workers at half of their limits, and a server that was throttled a quarter of the time."""
    workers = [
        {"node": f"worker-{i}", "host": "h", "cores": 1.0, "minibatches": 10, "cpu_seconds": 5.0} for i in (0, 1)
    ]
    server = {
        "node": "ps-0",
        "host": "h",
        "cores": 0.5,
        "minibatches": 20,
        "cpu_seconds": 3.0,
        "throttled_seconds": 1.0,
    }
    data = {
        "batch_size": 100,
        "samples_so_far": samples,
        "workers": workers,
        "ps": [{**server, "used_bytes": ps_bytes}],
        "shared_cores": shared_cores,
    }
    return ProfileRecord(
        job="one", at=BEGIN + at, seconds=10.0, samples_per_second=200.0, workers=2, servers=1, data=data
    )


def _event(at: float, node: str, event: str, reason: str = "", **data: Any) -> NodeRecord:
    return NodeRecord(job="one", at=BEGIN + at, node=node, event=event, reason=reason, data=data)  # type: ignore[arg-type]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A job of 60 s: nodes after 2 s, a decision at 1 s that was judged at 40 s, a worker that is replaced at 30 s."""
    path = tmp_path / "brain.sqlite"
    size = {"cores": 1.0, "memory": GIB}
    outcome = JobOutcome(seconds=60.0, samples_per_second=150.0, auc=0.77)
    entry = JobEntry(
        id="one",
        name="ads",
        owner="mira",
        state="succeeded",
        created_at=BEGIN,
        started_at=BEGIN + 1,
        ended_at=BEGIN + 60,
        samples=9000,
        outcome=outcome,
        features={"model": "dcn", "demand": {"total_samples": 9000.0}},
    )
    with ConfigStore(path) as store:
        store.put_job(entry)
        store.put_job(JobEntry(id="two", name="two", state="running", created_at=BEGIN + 5))
        store.add_plan(PlanRecord(job="one", at=BEGIN + 1, kind="granted", plan=PLAN))
        store.add_profile(_profile(20, 2000, ps_bytes=1000))
        store.add_profile(_profile(50, 8000, ps_bytes=2000))
        store.add_node_event(_event(2, "ps-0", "launched", role="ps", cores=0.5, memory=GIB))
        for node in ("worker-0", "worker-1"):
            store.add_node_event(_event(2, node, "launched", role="worker", **size))
            store.add_node_event(_event(3, node, "up"))
        store.add_node_event(_event(30, "worker-1", "ended", "OOMKilled", detail="why"))
        store.add_node_event(_event(30, "worker-2", "launched", role="worker", follows="worker-1", **size))
        store.add_node_event(_event(31, "worker-2", "up"))
        store.add_node_event(_event(32, "worker-2", "resized", cores=2.0, memory=2 * GIB))
        store.commit()
        inputs = RoundInputs(at=BEGIN + 1, capacity=Resources(16.0, 64 * GIB), jobs=(view("one"),))
        number = store.add_round(decide(inputs, load), ["one"])["one"]
        decision = queries.decisions(store, "one")[0].decision
        store.put_done(DecisionOutcome(job="one", number=number, at=BEGIN + 5, state="done"))
        store.put_effect("one", number, judge(decision, Band(500.0, 400.0, 600.0), windows=2, at=BEGIN + 40))
        store.commit()
    return path


@pytest.fixture(params=WAYS)
def history(request: pytest.FixtureRequest, path: Path) -> Iterator[History]:
    with opened(request.param, path) as one:
        yield one


@pytest.fixture
def past(history: History) -> Timeline:
    found = timeline(history, "one")
    assert found is not None
    return found


class Played:
    def __init__(self, recording: Recording) -> None:
        self.player = recording.player(speed=0)
        self.source = RecordedSource(recording, self.player)

    def at(self, seconds: float) -> JobDetail:
        self.player.stand(BEGIN + seconds)
        return self.source.job("one")


@pytest.fixture
def played(past: Timeline) -> Played:
    return Played(recorded(past))


def test_jobs_of_the_history_are_known_and_others_not(history: History, tmp_path: Path) -> None:
    assert queries.job_ids(history) == ["two", "one"]
    assert timeline(history, "none") is None
    nothing = FileHistory(tmp_path / "none.sqlite")
    assert queries.job_ids(nothing) == []
    assert timeline(nothing, "one") is None


def test_a_job_begins_trains_and_ends(played: Played) -> None:
    states = {at: played.at(at).row.state for at in (0, 2, 3, 20, 59, 60)}
    assert states == {0: "starting", 2: "starting", 3: "training", 20: "training", 59: "training", 60: "succeeded"}
    assert (played.player.begin, played.player.end) == (BEGIN, BEGIN + 60)
    first, last = played.at(0).row, played.at(60).row
    assert (first.samples, first.total_samples, first.ended_at, first.rate) == (0, 9000, None, 0.0)
    assert (last.samples, last.ended_at, last.rate) == (9000, BEGIN + 60, 150.0)
    assert (played.at(59).auc, played.at(60).auc) == (None, 0.77)
    assert played.at(20).missing == MISSING


def test_only_intervals_measured_until_then_are_told(played: Played) -> None:
    assert played.at(19).rates == ()
    assert [rate.at for rate in played.at(49).rates] == [BEGIN + 20]
    assert [rate.value for rate in played.at(50).rates] == [200.0, 200.0]
    row = played.at(20).row
    assert (row.samples, row.rate, row.cores, row.used_cores) == (2000, 200.0, 2.5, 1.3)
    assert (row.memory, row.used_memory, row.workers, row.servers) == (3 * GIB, 0, 2, 1)
    assert row.expected is not None
    assert row.expected.at == BEGIN + 20 + 35
    assert played.at(25).row.used_cores == 1.3
    assert row.cost is not None
    assert row.cost.core_seconds == pytest.approx(19 * 2.5)


def test_intervals_are_told_with_their_length(played: Played) -> None:
    end = played.at(60)
    assert [(rate.at - BEGIN, rate.seconds) for rate in end.rates] == [(20.0, 10.0), (50.0, 10.0)]


def test_nodes_are_shown_as_they_were_at_each_moment(played: Played) -> None:
    assert [(node.id, node.state) for node in played.at(2).nodes] == [
        ("ps-0", "launched"),
        ("worker-0", "launched"),
        ("worker-1", "launched"),
    ]
    server, worker, _ = played.at(20).nodes
    assert (server.used_cores, server.used_memory, server.throttled, server.slots) == (0.3, 1000, 0.25, None)
    assert (worker.state, worker.used_cores, worker.rate, worker.share) == ("up", 0.5, 100.0, 0.5)
    nodes = {node.id: node for node in played.at(32).nodes}
    assert (nodes["worker-1"].state, nodes["worker-1"].used_cores) == ("ended (OOMKilled)", None)
    assert (nodes["worker-2"].restarts, nodes["worker-2"].cores, nodes["worker-2"].memory) == (1, 2.0, 2 * GIB)
    assert list(nodes)[-1] == "worker-1"


def test_effect_of_a_decision_is_told_from_when_it_was_known(played: Played) -> None:
    assert played.at(0).decisions == ()
    told = {at: played.at(at).decisions[0] for at in (1, 5, 39, 40)}
    assert [(one.measured, one.done) for one in told.values()] == [
        (None, ""),
        (None, "done"),
        (None, "done"),
        (500.0, "done"),
    ]
    last = played.at(1).row.decision
    assert last is not None
    assert last.action == told[1].action == "start"
    assert [(mark.at, mark.symbol) for mark in played.player.marks] == [(BEGIN + 1, "●")]


def test_a_recorded_history_has_explanations_of_each_moment(history: History, past: Timeline) -> None:
    from dlrover_lite.tui.sources.live_explained import explanation

    file = io.BytesIO()
    write(past, file, lambda job, number, at: explanation(history, job, number, until=at))
    played = Played(Recording(file.getvalue(), "it"))
    for at, brought in ((10, False), (40, True)):
        played.at(at)
        found = played.source.explain("one", 1)
        assert found is not None
        assert any("What it brought" in text for text in found.text) == brought
        assert any(plan.mark == "*" for plan in found.plans)


def test_records_stored_by_another_version_are_left_out(history: History, path: Path) -> None:
    with ConfigStore(path) as store:
        store.db.execute("update profiles set data = '{\"workers\": 3}'")
        store.db.execute("update decisions set data = '{}'")
        store.db.execute("update jobs set features = '[]'")
    found = timeline(history, "one")
    assert found is not None
    detail = Played(recorded(found)).at(50)
    assert [rate.value for rate in detail.rates] == [200.0, 200.0]
    assert detail.decisions == ()
    assert detail.row.total_samples is None


def test_a_job_with_nothing_but_a_name_is_played(history: History) -> None:
    found = timeline(history, "two")
    assert found is not None
    played = Played(recorded(found))
    assert played.player.begin == played.player.end == BEGIN + 5
    assert played.source.job("two").row.state == "starting"


def test_close_moments_of_a_very_long_history_are_merged(past: Timeline, monkeypatch: pytest.MonkeyPatch) -> None:
    from dlrover_lite.tui.recordings import history

    monkeypatch.setattr(history, "_MOST_MOMENTS", 4)
    recording = recorded(past)
    assert len(set(recording.times)) <= 5
    assert Played(recording).at(60).row.state == "succeeded"


def test_a_job_that_waits_is_queued(history: History, path: Path) -> None:
    with ConfigStore(path) as store:
        store.db.execute("delete from node_events")
        store.db.execute("delete from profiles")
        store.db.execute(
            "update decisions set data = json_set(data, '$.action', 'queue', '$.reason', 'it waits'), effect = null"
        )
    found = timeline(history, "one")
    assert found is not None
    row = Played(recorded(found)).at(10).row
    assert (row.state, row.message) == ("queued", "it waits")


def _given(at: float, workers: int) -> PlanNews:
    return PlanNews("one", BEGIN + at, Plan(RolePlan(1, Resources(0.5, GIB)), RolePlan(workers, Resources(1.0, GIB))))


def _measured(at: float, workers: int, rate: float, so_far: int) -> Measured:
    used = tuple(Used(f"worker-{i}", cores=1.0) for i in range(workers))
    return Measured(BEGIN + at, 10.0, rate, 100, so_far, used, (Used("ps-0", cores=0.5),))


def _changed(at: float, workers: int, rate: float) -> Known:
    """A decision for so many workers, and the samples/s that it predicts, give or take a quarter."""
    band = {"predicted": rate, "lower": 0.8 * rate, "upper": 1.25 * rate}
    plain = {"stage": "scale", "action": "change", "reason": "why", "before": "", "grows": True, "gain_seconds": None}
    choice = f"{workers} worker x 1, 1 ps x 0.5"
    found = Chosen(number=workers, at=BEGIN + at, choice=choice, measured=None, error=None, **band, **plain)  # type: ignore[arg-type]
    return Known(BEGIN + at, found)


def test_after_a_scaling_the_end_is_that_of_the_new_plan() -> None:
    """As the screen of a job that ran would have said it: 100 samples/s, and 400 after it."""
    job = JobNews("one", "ads", "mira", "dcn", "running", BEGIN, BEGIN + 1, None, 3000, "", "")
    rates = [_measured(20.0 + 10 * i, 1, 100.0, 1000 * (i + 1)) for i in range(4)]
    later = [_measured(80.0 + 10 * i, 4, 500.0, 5000 + 5000 * i) for i in range(3)]
    past = Timeline(
        job,
        100_000,
        measured=(*rates, *later),
        plans=(_given(5, 1), _given(60, 4)),
        decisions=(_changed(1, 1, 90.0), _changed(55, 4, 400.0)),
        nodes=(NodeNews(BEGIN + 6, "worker-0", "up", role="worker"),),
    )
    played = Played(recorded(past))

    def left(at: float) -> tuple[float, float | None]:
        end = played.at(at).row.expected
        assert end is not None
        return round(end.at - BEGIN - at, 1), end.error_seconds and round(end.error_seconds, 1)

    assert left(20) == (1100.0, 247.5)  # 99,000 left, and 90 samples/s predicted
    assert left(50) == (960.0, 0.0)
    assert left(60) == (240.0, 54.0)  # 96,000 left, and 400 predicted
    assert left(90) == (225.0, 50.6)
    assert left(100) == (170.0, 0.0)


def test_many_jobs_are_recorded_together_each_in_full(history: History) -> None:
    """In steps of 30 s: what happened within one is told at once, of the job that it happened to."""
    pasts = [past for job in ("one", "two") if (past := timeline(history, job)) is not None]
    file, host = io.BytesIO(), HostRow("", "", 8.0, GIB)
    explained: list[tuple[str, int, float]] = []

    def explain(job: str, number: int, at: float) -> Explanation:
        explained.append((job, number, at - BEGIN))
        return msgspec.structs.replace(EXPLANATION, job=job, number=number)

    write_all(pasts, file, explain, brain="simulated", hosts=(host,), step_seconds=30.0)
    recording = Recording(file.getvalue(), "it")
    source = RecordedSource(recording, recording.player(speed=0))
    source.player.stand(BEGIN + 22)
    assert list(source.jobs().jobs) == ["two", "one"]
    assert (source.jobs().brain, source.jobs().hosts) == ("simulated", (host,))
    one = source.job("one")
    assert (one.row.state, one.row.samples, len(one.rates), len(one.decisions)) == ("training", 2000, 1, 1)
    assert source.job("two").problem is one.problem is None
    assert not source.job("two").rates
    assert {node.id for node in one.nodes} == {"ps-0", "worker-0", "worker-1"}
    source.player.stand(source.player.end)
    assert (source.job("one").row.state, len(source.job("one").rates)) == ("succeeded", 2)
    changing = {
        (job, one.number) for job in ("one", "two") for one in source.job(job).decisions if one.action in CHANGING
    }
    assert changing and {(job, number) for job, number, _ in explained} == changing
    for job, number in changing:
        found = source.explain(job, number)
        assert found is not None and (found.job, found.number) == (job, number)
