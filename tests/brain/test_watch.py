"""Looks at the history tell what is new, once, whoever has written it, and by whichever way it is asked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dlrover_lite.brain.effect import judge
from dlrover_lite.brain.planning.decision import decide
from dlrover_lite.brain.planning.job_view import RoundInputs
from dlrover_lite.brain.planning.pareto import Band
from dlrover_lite.brain.planning.plan_grid import Candidate
from dlrover_lite.brain.store import pages
from dlrover_lite.brain.store.all_jobs import RATES
from dlrover_lite.brain.store.database import ConfigStore
from dlrover_lite.brain.store.history import FileHistory, History
from dlrover_lite.brain.store.job_news import DECISIONS
from dlrover_lite.brain.store.records import JobEntry, ProfileRecord
from dlrover_lite.brain.store.watch import JobWatch, Watch
from dlrover_lite.core.errors import HistoryError
from dlrover_lite.core.units import GIB, Resources
from dlrover_lite.protocol.demands import DecisionOutcome
from dlrover_lite.protocol.news import WatchedJob, WatchedJobs
from dlrover_lite.protocol.outcomes import JobOutcome
from dlrover_lite.protocol.plans import Plan, RolePlan
from dlrover_lite.protocol.records import NodeRecord, PlanRecord
from tests.brain.asked import WAYS, opened
from tests.brain.models import load, view

PLAN = Plan(RolePlan(1, Resources(0.5, GIB)), RolePlan(2, Resources(1.0, GIB)))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "brain.sqlite"


@pytest.fixture(params=WAYS)
def history(request: pytest.FixtureRequest, path: Path) -> Iterator[History]:
    with opened(request.param, path) as one:
        yield one


@pytest.fixture(params=[1000, 1], ids=["whole", "page by page"])
def rows(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "PAGE_ROWS", request.param)


def _job(name: str, state: str = "running", **fields: Any) -> JobEntry:
    return JobEntry(id=name, name=name, state=state, created_at=1.0, **fields)


def _profile(job: str, at: float) -> ProfileRecord:
    return ProfileRecord(job=job, at=at, seconds=10.0, samples_per_second=at * 2, workers=2, servers=1)


def _commit(path: Path, *what: JobEntry | ProfileRecord | PlanRecord | NodeRecord) -> None:
    with ConfigStore(path) as store:
        for one in what:
            match one:
                case JobEntry():
                    store.put_job(one)
                case ProfileRecord():
                    store.add_profile(one)
                case PlanRecord():
                    store.add_plan(one)
                case NodeRecord():
                    store.add_node_event(one)
        store.commit()


def _decide(path: Path, job: str) -> int:
    with ConfigStore(path) as store:
        decided = decide(RoundInputs(at=5.0, capacity=Resources(16.0, 64 * GIB), jobs=(view(job),)), load)
        return store.add_round(decided, [job])[job]


def test_watching_without_a_database_tells_nothing_and_makes_none(history: History, path: Path) -> None:
    watch, of_job = Watch(history), JobWatch(history, "one")
    assert watch.look().empty
    assert of_job.look().empty
    assert not path.exists()


@pytest.mark.usefixtures("rows")
def test_each_look_at_jobs_tells_only_what_is_new(history: History, path: Path) -> None:
    watch = Watch(history)
    _commit(path, _job("one"), _job("two"), _profile("one", 10.0))
    first = watch.look()
    assert first.anew
    assert {job.id for job in first.jobs} == {"one", "two"}
    assert [(rate.job, rate.at, rate.samples_per_second) for rate in first.rates] == [("one", 10.0, 20.0)]
    assert watch.look() == WatchedJobs()
    _commit(path, _profile("two", 20.0))
    assert [(rate.job, rate.at) for rate in watch.look().rates] == [("two", 20.0)]
    _commit(path, _job("two", samples=7), PlanRecord(job="two", at=21.0, kind="granted", plan=PLAN))
    news = watch.look()
    assert [(job.id, job.samples) for job in news.jobs] == [("two", 7)]
    assert [(plan.job, plan.plan) for plan in news.plans] == [("two", PLAN)]
    assert not news.rates


def test_desired_plans_are_not_told_as_granted(history: History, path: Path) -> None:
    _commit(path, _job("one"), PlanRecord(job="one", at=1.0, kind="desired", plan=PLAN))
    watch = Watch(history)
    assert watch.look().plans == ()


@pytest.mark.usefixtures("rows")
def test_first_look_tells_only_newest_intervals_of_running_jobs(history: History, path: Path) -> None:
    times = [float(at) for at in range(1, RATES + 20)]
    _commit(path, _job("one"), _job("over", "succeeded", outcome=JobOutcome(samples_per_second=3.0)))
    _commit(path, *(_profile(job, at) for job in ("one", "over") for at in times))
    watch = Watch(history)
    first = watch.look()
    assert [rate.at for rate in first.rates] == times[-RATES:]
    assert {rate.job for rate in first.rates} == {"one"}
    assert next(job for job in first.jobs if job.id == "over").outcome.samples_per_second == 3.0


@pytest.mark.usefixtures("rows")
def test_jobs_that_are_pruned_are_gone(history: History, path: Path) -> None:
    _commit(path, _job("one"), _job("two"))
    watch = Watch(history)
    watch.look()
    with ConfigStore(path) as store:
        store.db.execute("delete from jobs where id = 'one'")
    assert watch.look().gone == ("one",)


@pytest.mark.usefixtures("rows")
def test_only_the_newest_decision_of_each_job_is_told_at_first(history: History, path: Path) -> None:
    _commit(path, _job("one"))
    _decide(path, "one")
    _decide(path, "one")
    watch = Watch(history)
    assert [(one.job, one.number) for one in watch.look().decisions] == [("one", 2)]
    _decide(path, "one")
    assert [(one.job, one.number) for one in watch.look().decisions] == [("one", 3)]


def test_a_replaced_database_file_is_told_anew(history: History, path: Path) -> None:
    _commit(path, _job("one"))
    watch = Watch(history)
    watch.look()
    for file in path.parent.glob("brain.sqlite*"):
        file.rename(path.parent / f"away-{file.name}")
    assert watch.look() == WatchedJobs(anew=True)
    assert watch.look() == WatchedJobs()
    _commit(path, _job("two"))
    news = watch.look()
    assert news.anew
    assert [job.id for job in news.jobs] == ["two"]


@pytest.mark.parametrize("way", WAYS)
def test_an_unreadable_database_is_reported_until_it_is_replaced(path: Path, way: str) -> None:
    path.write_bytes(b"no database at all, but long enough to be taken for one" * 100)
    with opened(way, path, read=FileHistory) as history:
        watch = Watch(history)
        with pytest.raises(HistoryError, match="can't be read"):
            watch.look()
        path.unlink()
        _commit(path, _job("one"))
        assert [job.id for job in watch.look().jobs] == ["one"]


@pytest.mark.usefixtures("rows")
def test_a_job_is_told_in_detail(history: History, path: Path) -> None:
    _commit(
        path,
        _job("one"),
        _job("two"),
        _profile("one", 10.0),
        _profile("two", 10.0),
        PlanRecord(job="one", at=2.0, kind="granted", plan=PLAN),
        NodeRecord(job="one", at=3.0, node="worker-2", event="launched", data={"follows": "worker-0"}),
        NodeRecord(job="two", at=3.0, node="worker-0", event="up"),
    )
    watch = JobWatch(history, "one")
    first = watch.look()
    assert [job.id for job in first.jobs] == ["one"]
    assert [rate.at for rate in first.rates] == [10.0]
    assert [plan.plan for plan in first.plans] == [PLAN]
    assert [(node.node, node.event, node.follows) for node in first.nodes] == [("worker-2", "launched", "worker-0")]
    _commit(path, _job("two", samples=5))
    assert watch.look() == WatchedJob()
    _commit(path, _profile("one", 20.0))
    assert [rate.at for rate in watch.look().rates] == [20.0]


@pytest.mark.usefixtures("rows")
def test_a_decision_is_told_again_when_it_was_measured_or_done(history: History, path: Path) -> None:
    _commit(path, _job("one"))
    number = _decide(path, "one")
    watch = JobWatch(history, "one")
    (first,) = watch.look().decisions
    assert (first.number, first.measured, first.done) == (number, None, "")
    with ConfigStore(path) as store:
        from dlrover_lite.brain.store import queries

        decision = queries.decisions(store, "one")[0].decision
        assert decision.choice is not None
        assert decision.predicted is not None
        assert first.action == decision.action
        assert first.choice in decision.choice.describe()
        assert first.predicted == decision.predicted.throughput.expected
        store.put_effect("one", number, judge(decision, Band(500.0, 400.0, 600.0), windows=2, at=9.0))
        store.put_done(DecisionOutcome(job="one", number=number, at=8.0, state="done"))
        store.commit()
    (again,) = watch.look().decisions
    assert (again.measured, again.done) == (500.0, "done")
    assert again.error == pytest.approx(500.0 / decision.predicted.throughput.expected - 1)
    assert not watch.look().decisions


def test_decisions_of_other_versions_are_left_out(history: History, path: Path) -> None:
    _commit(path, _job("one"))
    _decide(path, "one")
    _decide(path, "one")
    with ConfigStore(path) as store:
        store.db.execute("update decisions set data = '{}' where number = 1")
    watch = JobWatch(history, "one")
    assert [one.number for one in watch.look().decisions] == [2]


def test_each_watch_is_told_all_whoever_else_watches(history: History, path: Path) -> None:
    _commit(path, _job("one"), _profile("one", 10.0))
    early = Watch(history)
    early.look()
    _commit(path, _job("two"), _job("one", samples=5), _profile("one", 20.0))
    late = Watch(history)
    assert {job.id for job in late.look().jobs} == {"one", "two"}
    with ConfigStore(path) as store:
        store.db.execute("delete from jobs where id = 'two'")
    news = early.look()
    assert [(job.id, job.samples) for job in news.jobs] == [("one", 5)]
    assert (news.gone, [rate.at for rate in news.rates]) == (("two",), [20.0])
    assert late.look() == WatchedJobs(gone=("two",))


def test_all_is_told_anew_when_the_newest_rows_are_gone(history: History, path: Path) -> None:
    _commit(path, _job("one"), _job("two"), _profile("one", 10.0), _profile("two", 10.0))
    watch = Watch(history)
    watch.look()
    with ConfigStore(path) as store:
        store.db.execute("delete from profiles where job = 'two'")
    news = watch.look()
    assert news.anew and [(rate.job, rate.at) for rate in news.rates] == [("one", 10.0)]
    _commit(path, _profile("one", 20.0))  # it gets the number of the one that is gone
    assert [rate.at for rate in watch.look().rates] == [20.0]


def test_a_look_that_fails_on_its_way_is_told_by_the_next(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "PAGE_ROWS", 1)
    _commit(path, _job("one"), _job("two"))

    class Fails(FileHistory):
        left = 1

        def ask(self, question: Any, kind: Any) -> Any:
            self.left -= 1
            if self.left < 0:
                raise HistoryError("not now")
            return super().ask(question, kind)

    history = Fails(path)
    watch = Watch(history)
    with pytest.raises(HistoryError, match="not now"):
        watch.look()
    history.left = 100
    assert {job.id for job in watch.look().jobs} == {"one", "two"}
    history.close()


def test_the_last_change_is_told_with_its_cause_however_many_looks_came_after(history: History, path: Path) -> None:
    _commit(path, _job("a"))
    small = view("a", now=Candidate(1, 1, 0.25, 0.25))
    with ConfigStore(path) as store:
        decided = decide(RoundInputs(at=1.0, capacity=Resources(8.0, 64 * GIB), jobs=(small,)), load)
        assert decided.of("a").action == "change"
        caused = msgspec.structs.replace(decided.of("a"), cause="workers were the limit")
        stays = msgspec.structs.replace(caused, action="stay", cause="")
        for at, one in enumerate([caused, *[stays] * (DECISIONS + 5)]):
            store.add_round(decided._replace(decisions=(msgspec.structs.replace(one, at=float(at)),)), ["a"])
    told = {one.number: one for one in Watch(history).look().decisions}
    assert sorted(told) == [1, DECISIONS + 6]
    change = told[1].changed
    assert change is not None and change.cause == "workers were the limit" and "worker" in change.difference
    assert change.rate_before is not None and change.predicted is not None and change.rate_before < change.predicted
    assert told[DECISIONS + 6].changed is None
    assert 1 in {one.number for one in JobWatch(history, "a").look().decisions}


@pytest.mark.usefixtures("rows")
@pytest.mark.parametrize("known_before", [True, False], ids=["decided before the first look", "decided later"])
def test_what_the_last_change_of_a_job_brought_is_told_once_it_is_known(
    history: History, path: Path, known_before: bool
) -> None:
    _commit(path, _job("one"), _job("other"))
    watch, late = Watch(history), Watch(history)
    if not known_before:
        watch.look()
    numbers = [_decide(path, job) for job in ("one", "other")]
    told = watch.look().decisions
    assert {(one.job, one.changed.measured) for one in told if one.changed} == {("one", None), ("other", None)}
    with ConfigStore(path) as store:
        from dlrover_lite.brain.store import queries

        decision = queries.decisions(store, "one")[0].decision
        store.put_effect("one", numbers[0], judge(decision, Band(500.0, 400.0, 600.0), windows=2, at=9.0))
        store.commit()
    (again,) = watch.look().decisions
    assert again.changed is not None
    assert (again.job, again.number, again.changed.measured) == ("one", numbers[0], 500.0)
    assert not watch.look().decisions
    _commit(path, _job("one", message="another change of the job"))
    assert not watch.look().decisions
    assert {one.job: one.changed.measured for one in late.look().decisions if one.changed} == {
        "one": 500.0,
        "other": None,
    }
