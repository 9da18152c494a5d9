"""What a higher priority brings in a whole round: never less, neither a slower plan nor the queue."""

from __future__ import annotations

import importlib
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlrover_lite.brain.planning.admission import Need, admit
from dlrover_lite.brain.planning.allowed_changes import restrained
from dlrover_lite.brain.planning.decision import Decision, Round, decide
from dlrover_lite.brain.planning.job_view import (
    Exploration,
    JobView,
    LastChange,
    MeasuredPlan,
    Policy,
    RoundInputs,
    WorkShift,
)
from dlrover_lite.brain.planning.pareto import Band
from dlrover_lite.brain.planning.plan_grid import Bounds, Candidate, MemoryNeed
from dlrover_lite.brain.planning.plan_values import options_of
from dlrover_lite.core.units import Resources
from tests.brain.models import data, load, view
from tests.repository.sources import ROOT

POLICY = Policy()
AS_GOOD = (1 + POLICY.tie_share) * (1 + POLICY.fewer_nodes_share)
"""Times of the remaining time that count as equal."""

candidates = st.builds(
    Candidate,
    st.integers(1, 6),
    st.integers(1, 3),
    st.sampled_from([0.25, 0.5, 1.0]),
    st.sampled_from([0.25, 0.5, 0.6]),
)
priorities = st.sampled_from([0.5, 1.0, 1.5, 4.0])
factors = st.sampled_from([1.3, 3.0, 50.0])


SUSPECTED = WorkShift(at=0.0, windows=1, role="ps", times=3.0)


@st.composite
def tries(draw: st.DrawFn) -> dict[str, object]:
    """A try of the present plan, with what was measured with that and the one before."""
    back, rate = draw(candidates), draw(st.sampled_from([2e4, 1e5]))
    better = draw(st.sampled_from([0.8, 0.99, 1.0, 1.05]))
    exploration = Exploration(
        back=back, seconds=30.0, saves_seconds=9.0, chance=0.4, costs_seconds=3.0, costs_at_most_seconds=8.0
    )
    return {
        "exploration": exploration,
        "tried_seconds": draw(st.sampled_from([0.0, 10.0, 30.0])),
        "measured": Band(rate * better, rate * better * 0.98, rate * better * 1.02),
        "measured_before": (MeasuredPlan(back, Band(rate, rate * 0.98, rate * 1.02)),),
    }


@st.composite
def job(draw: st.DrawFn) -> JobView:
    now = draw(st.one_of(st.none(), candidates, candidates))
    running = {
        "scale_seconds": draw(st.sampled_from([0.0, 5.0])),
        "change_seconds": draw(st.sampled_from([0.0, 4.0])),
        "suspected": draw(st.sampled_from([None, None, None, SUSPECTED])),
        **(draw(tries()) if draw(st.integers(0, 3)) == 3 else {}),
        "last_change": draw(
            st.one_of(st.none(), st.builds(lambda left, fresh: LastChange(left=left, fresh_windows=fresh), candidates, st.integers(0, 5)))
        ),
        "declined": tuple(draw(st.lists(candidates, max_size=1))),
        "fixed": draw(st.integers(0, 7)) == 7,
        "stays": draw(st.sampled_from(["", "", "", "it takes no checkpoints"])),
        "ran_seconds": draw(st.sampled_from([0.0, 10.0, 1000.0])),
    }  # fmt: skip
    costs = {
        "worker": draw(st.floats(0.005, 0.05)),
        "request": draw(st.sampled_from([0.0, 0.002])),
        "server": draw(st.floats(0.002, 0.05)),
        "latency": draw(st.sampled_from([0.0, 0.02])),
        "spread": draw(st.sampled_from([0.02, 0.1, 0.3])),
    }
    return view(
        model=data(**costs),
        need=MemoryNeed(worker=draw(st.integers(0, 20)), ps=draw(st.integers(0, 20)), tables=draw(st.integers(0, 100))),
        priority=draw(priorities),
        remaining_samples=draw(st.sampled_from([None, 1e5, 1e6, 1e7])),
        now=now,
        waited_seconds=0.0 if now else draw(st.sampled_from([0.0, 100.0, 5000.0])),
        **(running if now else {}),
    )


rounds = st.lists(job(), min_size=1, max_size=5).map(
    lambda views: tuple(msgspec.structs.replace(one, job=f"job-{at}") for at, one in enumerate(views))
)
capacities = st.sampled_from([1.0, 2.0, 5.5, 9.0, 20.0])


@settings(max_examples=500, deadline=None, derandomize=True)
@given(rounds, capacities, st.integers(0, 4), factors)
def test_a_higher_priority_never_gets_less(views: tuple[JobView, ...], cores: float, which: int, factor: float) -> None:
    at = which % len(views)
    raised = msgspec.structs.replace(views[at], priority=views[at].priority * factor)
    capacity = Resources(cores, 10**6)
    before, after = (
        decide(RoundInputs(at=0.0, capacity=capacity, jobs=jobs), load)
        for jobs in (views, (*views[:at], raised, *views[at + 1 :]))
    )
    seconds, seconds_raised = _to_go(before, raised, capacity), _to_go(after, raised, capacity)
    waits = POLICY.room_seconds if after.of(raised.job).action == "queue" else 0.0
    assert seconds_raised <= seconds * AS_GOOD + waits + 1e-9, (before.of(raised.job), after.of(raised.job))


def _to_go(found: Round, job: JobView, capacity: Resources) -> float:
    """Seconds until it ends, the wait for room included; a plan that it may not be changed to of its own accord counts with what that
    surely brings; one that is only tried doesn't count, nor does the way back from a try."""
    decision = found.of(job.job)
    if (options := options_of(job, load(job.model), capacity, POLICY)) is None:
        return 0.0
    if decision.predicted is None:
        return np.inf
    if decision.choice is None:
        return decision.predicted.seconds
    goes_back = job.exploration is not None and decision.choice == job.exploration.back
    if decision.action == "explore" or (goes_back and decision.choice != job.now):
        return options.stay_seconds
    return options.stay_seconds - float(restrained(options, POLICY).gain[options.points.find(decision.choice)])


@pytest.mark.parametrize("number", [20375, 21579, 23719, 25640, 25818, 30378, 32904, 36765, 48977, 50824, 99705])
def test_who_waits_is_decided_together_with_what_others_get(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by these rounds of ``bench/hosts.py``: by a higher priority another job waited, or no longer did, or might be told to, and
    by that a third got what the first had had; or one that keeps a floor gave cores back too late for the first."""
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    assert importlib.import_module("_priority_rounds").inversions([number]) == []


needs = st.lists(
    st.tuples(
        st.booleans(), priorities, st.integers(1, 8), st.sampled_from([0.0, 300.0, 2500.0]), st.sampled_from([0.0, 10.0, 99.0])
    ),
    min_size=1,
    max_size=8,
)  # fmt: skip


@settings(max_examples=500, deadline=None, derandomize=True)
@given(needs, st.integers(1, 20), st.integers(0, 7), factors)
def test_a_higher_priority_never_puts_a_job_out(drawn: list[tuple], cores: int, which: int, factor: float) -> None:
    views, sizes = [], {}
    for number, (runs, priority, size, waited, ran) in enumerate(drawn):
        times = {"ran_seconds": ran, "now": Candidate(1, 1, 0.5, 0.5)} if runs else {"waited_seconds": waited}
        views.append(view(f"job-{number}", priority=priority, **times))
        sizes[f"job-{number}"] = Need(size * 1000, size)
    at = which % len(views)
    raised = msgspec.structs.replace(views[at], priority=views[at].priority * factor)
    capacity = Resources(float(cores), 10**6)
    if raised.job in admit(views, sizes, capacity, POLICY).admitted:
        assert raised.job in admit([*views[:at], raised, *views[at + 1 :]], sizes, capacity, POLICY).admitted


BIG = {"model": data(worker=0.03, spread=0.02), "remaining_samples": 1e8}
SMALL = {"model": data(worker=0.03, spread=0.02), "remaining_samples": 450.0}


def _two(cores: float, big_now: Candidate, **small: object) -> tuple[Decision, Decision]:
    jobs = (view("big", now=big_now, scale_seconds=2.0, **BIG), view("small", **{**SMALL, **small}))
    found = decide(RoundInputs(at=0.0, capacity=Resources(cores, 10**6), jobs=jobs), load)
    return found.of("big"), found.of("small")


def test_a_very_short_job_begins_with_the_free_cores() -> None:
    """Half a core is free: for what takes part of a second nobody gives anything up."""
    big, small = _two(4.0, Candidate(4, 1, 0.75, 0.5))
    assert (small.action, small.choice) == ("start", Candidate(1, 1, 0.25, 0.25))
    assert big.choice is not None and big.choice.cores >= 3.5
    _, long = _two(4.0, Candidate(4, 1, 0.75, 0.5), remaining_samples=1e8)
    assert long.choice is not None and long.choice.cores > 0.5


def test_a_very_short_job_takes_no_more_than_its_smallest_plan() -> None:
    """Nothing is free: it has half a core, and the other keeps the rest."""
    big, small = _two(4.0, Candidate(5, 1, 0.75, 0.25))
    assert (small.action, small.choice) in [("start", Candidate(1, 1, 0.25, 0.25)), ("queue", None)]
    assert big.choice is not None and 3.0 <= big.choice.cores <= 3.5


def test_a_job_begins_at_once_with_what_another_gives_up_quickly() -> None:
    """Limits fall and workers go while its nodes start; for servers that are to go the one that comes waits."""
    few = Bounds(max_workers=1, max_servers=1, worker_sizes=(0.5, 1.0, 2.0), ps_sizes=(0.5, 1.0))

    def comes(big_now: Candidate, **big: Any) -> Decision:
        jobs = (
            view("big", now=big_now, scale_seconds=2.0, remaining_samples=1e8, **{"bounds": few, **big}),
            view("small", bounds=few, remaining_samples=1e7),
        )
        found = decide(RoundInputs(at=0.0, capacity=Resources(3.0, 10**6), jobs=jobs), load)
        assert sum(one.choice.cores for one in found.decisions if one.choice is not None) <= 3.0
        return found.of("small")

    assert comes(Candidate(1, 1, 2.0, 1.0)).action == "start"
    assert comes(Candidate(4, 1, 0.5, 1.0)).action == "start"
    assert comes(Candidate(1, 5, 0.5, 0.5)).action == "queue"
    assert comes(Candidate(1, 1, 0.5, 0.5), changes_from=Candidate(1, 5, 0.5, 0.5), fixed=True).action == "queue"


def test_a_jobs_sure_gain_is_not_held_up_by_doubtful_exchanges() -> None:
    """Half a core is free, and surely worth a minute to the last job; what the first two could exchange is worth nothing sure."""
    jobs = (
        view("a", model=data(worker=0.03, server=0.05, spread=0.5), now=Candidate(4, 2, 1.0, 1.0), scale_seconds=30.0),
        view("b", model=data(worker=0.03, server=0.005, spread=0.5), now=Candidate(4, 1, 0.5, 0.5), scale_seconds=5.0),
        view("c", model=data(server=0.005, spread=0.02), now=Candidate(4, 1, 0.5, 0.25), scale_seconds=30.0),
    )
    policy = Policy(rho=1.5)
    found = decide(RoundInputs(at=0.0, capacity=Resources(11.25, 10**6), jobs=jobs, policy=policy), load)
    assert [one.action for one in found.decisions] == ["stay", "stay", "change"]
    assert found.of("c").predicted.gain.lower > 0
    assert "by its cores is less than what it would lose, which is up to" in found.of("a").reason


def test_cores_of_a_fresh_change_are_not_taken_for_others() -> None:
    """One has grown just now; another one would gain far more by its cores, once that has been measured."""

    def cores_of_grown(fresh_windows: int, capacity: float = 3.0) -> float:
        change = LastChange(left=Candidate(1, 1, 0.5, 0.5), fresh_windows=fresh_windows)
        grown = view("grown", now=Candidate(2, 2, 0.5, 0.75), model=data(spread=0.02), last_change=change)
        starved = view("starved", now=Candidate(1, 1, 0.25, 0.25), model=data(spread=0.02), priority=8.0)
        found = decide(RoundInputs(at=0.0, capacity=Resources(capacity, 10**6), jobs=(grown, starved)), load)
        choice = found.of("grown").choice
        assert choice is not None
        return choice.cores

    assert cores_of_grown(1) == 2.5
    assert cores_of_grown(4) < 2.5
    assert cores_of_grown(1, capacity=2.0) < 2.5  # what isn't there can't be kept
