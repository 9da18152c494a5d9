from __future__ import annotations

import msgspec
import pytest

from dlrover_lite.brain.store.decision_news import choice_of, listed
from dlrover_lite.core.expected_end import ExpectedEnd
from dlrover_lite.core.units import GIB, Resources
from dlrover_lite.protocol.news import DecisionNews, JobNews, PlanNews, RateNews, WatchedJobs
from dlrover_lite.protocol.plans import Plan, RolePlan
from dlrover_lite.tui.view_state import KEPT_RATES, SILENT_SECONDS, JobsFold, LocalNode, LocalStatus
from tests.tui.recorded_jobs import decisions_of


def _news(name: str, state: str = "running", **fields: object) -> JobNews:
    plain: dict[str, object] = {
        "name": name,
        "owner": "",
        "model": "",
        "created_at": 100.0,
        "started_at": 110.0,
        "ended_at": None,
        "samples": 0,
        "message": "",
        "directory": f"/jobs/{name}",
    }
    return JobNews(id=name, state=state, **(plain | fields))  # type: ignore[arg-type]


def _status(state: str = "training", *, elapsed: float = 10.0, cpu: float = 5.0, samples: int = 1000) -> LocalStatus:
    nodes = (
        LocalNode("ps", "up", 0.5, GIB, cpu, GIB // 2),
        LocalNode("worker", "up", 1.0, GIB, cpu, GIB // 4),
        LocalNode("worker", "ended (Killed)", 1.0, GIB, 3.0),
    )
    return LocalStatus(state, samples, 10_000, 100.0, elapsed, nodes)


PLAN = Plan(RolePlan(1, Resources(0.5, GIB)), RolePlan(2, Resources(1.0, GIB)))


def test_rows_are_made_again_only_when_something_is_new() -> None:
    fold = JobsFold()
    fold.take(WatchedJobs(jobs=(_news("one"), _news("two"))))
    first = fold.rows(200.0)
    assert fold.rows(200.0) is first
    fold.take(WatchedJobs(rates=(RateNews("two", 150.0, 10.0, 7.0),)))
    second = fold.rows(200.0)
    assert second is not first
    assert second["one"] is first["one"]
    assert second["two"].rates == (7.0,)


def test_the_newest_job_is_first() -> None:
    fold = JobsFold()
    fold.take(WatchedJobs(jobs=(_news("old"), _news("new", created_at=300.0))))
    assert list(fold.rows(0.0)) == ["new", "old"]


def test_the_masters_status_counts_while_the_job_runs() -> None:
    fold = JobsFold()
    fold.take(WatchedJobs(jobs=(_news("one"),)))
    fold.hear("one", _status(elapsed=10.0, cpu=5.0), 200.0)
    fold.hear("one", _status(elapsed=12.0, cpu=6.0, samples=1500), 202.0)
    row = fold.rows(203.0)["one"]
    assert (row.state, row.samples, row.total_samples, row.rate) == ("training", 1500, 10_000, 100.0)
    assert (row.cores, row.used_cores) == (1.5, 1.0)
    assert (row.memory, row.used_memory) == (2 * GIB, 3 * GIB // 4)
    assert (row.workers, row.servers) == (1, 1)
    fold.take(WatchedJobs(jobs=(_news("one", "failed", ended_at=210.0, message="why"),)))
    row = fold.rows(300.0)["one"]
    assert (row.state, row.message, row.used_cores) == ("failed", "why", None)


def test_a_job_is_over_when_its_master_says_so() -> None:
    fold = JobsFold()
    fold.take(WatchedJobs(jobs=(_news("one"),)))
    fold.hear("one", _status("succeeded"), 200.0)
    assert fold.rows(1000.0)["one"].state == "succeeded"
    assert fold.live() == []


def test_a_silent_master_is_marked_until_it_answers() -> None:
    fold = JobsFold()
    fold.take(WatchedJobs(jobs=(_news("one"),)))
    fold.hear("one", _status(), 200.0)
    assert fold.rows(200.0 + SILENT_SECONDS)["one"].silent_since is None
    late = fold.rows(201.0 + SILENT_SECONDS)
    assert late["one"].silent_since == 200.0
    assert fold.rows(300.0) is late
    fold.hear("one", _status(), 301.0)
    assert fold.rows(302.0)["one"].silent_since is None


def test_cost_follows_what_was_given() -> None:
    fold = JobsFold()
    fold.take(WatchedJobs(jobs=(_news("one"),), plans=(PlanNews("one", 110.0, PLAN),)))
    fold.hear("one", _status(), 120.0)
    cost = fold.rows(120.0)["one"].cost
    assert cost is not None
    assert cost.core_seconds == pytest.approx(25.0)
    fold.take(WatchedJobs(jobs=(_news("one", "stopped", ended_at=130.0),)))
    cost = fold.rows(500.0)["one"].cost
    assert cost is not None
    assert cost.core_seconds == pytest.approx(50.0)


def test_a_queued_job_costs_nothing() -> None:
    fold = JobsFold()
    fold.take(WatchedJobs(jobs=(_news("one"),), plans=(PlanNews("one", 100.0, PLAN),)))
    fold.hear("one", _status("queued"), 110.0)
    fold.hear("one", _status("queued"), 200.0)
    cost = fold.rows(200.0)["one"].cost
    assert cost is not None
    assert cost.core_seconds == pytest.approx(25.0)


def test_intervals_told_twice_count_once_and_old_ones_are_dropped() -> None:
    fold = JobsFold()
    fold.take(WatchedJobs(jobs=(_news("one"),)))
    for at in range(5 * KEPT_RATES):
        for _ in range(2):
            fold.take(WatchedJobs(rates=(RateNews("one", float(at), 1.0, float(at)),)))
    rates = fold.rows(0.0)["one"].rates
    assert rates == tuple(float(at) for at in range(4 * KEPT_RATES, 5 * KEPT_RATES))


def test_the_newest_decision_is_shown_without_control_characters() -> None:
    fold = JobsFold()
    fold.take(WatchedJobs(jobs=(_news("one"),), decisions=(DecisionNews("one", 2, 5.0, "change", "new\x1b[2J"),)))
    fold.take(WatchedJobs(decisions=(DecisionNews("one", 1, 4.0, "start", "old"),)))
    decision = fold.rows(0.0)["one"].decision
    assert decision is not None
    assert decision.number == 2
    assert "\x1b" not in decision.reason


def test_jobs_that_are_gone_are_removed_and_a_new_history_replaces_all() -> None:
    fold = JobsFold()
    fold.take(WatchedJobs(jobs=(_news("one"), _news("two"))))
    fold.rows(0.0)
    fold.take(WatchedJobs(gone=("one",)))
    assert list(fold.rows(0.0)) == ["two"]
    fold.take(WatchedJobs(anew=True, jobs=(_news("three"),)))
    assert list(fold.rows(0.0)) == ["three"]


def test_news_of_unknown_jobs_are_passed_over() -> None:
    fold = JobsFold()
    fold.take(WatchedJobs(rates=(RateNews("none", 1.0, 1.0, 1.0),), plans=(PlanNews("none", 1.0, PLAN),)))
    fold.hear("none", _status(), 1.0)
    assert fold.rows(0.0) == {}


def test_expected_end_is_shown_until_the_job_is_over() -> None:
    end, fold = ExpectedEnd(500.0, 3.0), JobsFold()
    fold.take(WatchedJobs(jobs=(_news("one"),)))
    fold.hear("one", msgspec.structs.replace(_status(), expected_end=end), 150.0)
    assert fold.rows(150.0)["one"].expected == end
    fold.hear("one", msgspec.structs.replace(_status("stopped"), expected_end=end), 160.0)
    assert fold.rows(160.0)["one"].expected is None


def test_the_last_change_stays_whatever_was_decided_since_and_counts_once_the_job_has_the_plan() -> None:
    fold = JobsFold()
    plan = Plan(RolePlan(1, Resources(0.5, GIB)), RolePlan(4, Resources(0.5, GIB)))
    change = next(one for one in decisions_of("scaling-up") if one.action == "change")
    change = msgspec.structs.replace(change, number=2, at=5.0, choice=choice_of(plan))
    fold.take(
        WatchedJobs(jobs=(_news("one"),), decisions=(listed("one", change), DecisionNews("one", 3, 6.0, "stay", "why")))
    )
    row = fold.rows(6.0)["one"]
    assert row.change is change and row.decision is not None and row.decision.number == 3
    assert not row.is_changed  # a person may be asked first
    fold.take(WatchedJobs(plans=(PlanNews("one", 4.0, plan),)))
    assert not fold.rows(6.0)["one"].is_changed  # that was an earlier one
    fold.take(WatchedJobs(plans=(PlanNews("one", 7.0, plan),)))
    assert fold.rows(7.0)["one"].is_changed
    known = msgspec.structs.replace(change, measured=99.0)
    fold.take(WatchedJobs(decisions=(listed("one", known),)))  # what it brought
    row = fold.rows(8.0)["one"]
    assert row.change == known
    assert row.is_changed
