"""Decisions as data: replayed, explained, compared with what came of them."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlrover_lite.brain.effect import doubt_after, judge
from dlrover_lite.brain.explain.decision_text import explain, weighed_plans
from dlrover_lite.brain.planning.decision import Decision, decide, replay, with_index
from dlrover_lite.brain.planning.job_view import Policy, RoundInputs, index_of
from dlrover_lite.brain.planning.pareto import Band
from dlrover_lite.brain.planning.plan_grid import Candidate
from dlrover_lite.core.errors import JobError, UsageError
from dlrover_lite.core.units import GIB, Resources
from tests.brain.models import data, load, view
from tests.brain.test_greedy import capacities, jobs

INPUTS = RoundInputs(
    at=5.0,
    capacity=Resources(4.0, 8 * GIB),
    jobs=(
        view("a", now=Candidate(1, 1, 0.25, 0.25), scale_seconds=4.0),
        view("b", model=data(worker=0.005), priority=2.0),
    ),
    policy=Policy(rho=1.5),
)


@settings(max_examples=30, deadline=None)
@given(jobs(), capacities, st.integers(0, 4))
def test_stored_decisions_come_out_the_same_again(views, capacity, which):
    inputs = RoundInputs(at=1.5, capacity=capacity, jobs=views)
    decision = decide(inputs, load).decisions[which % len(views)]
    stored = msgspec.json.decode(msgspec.json.encode(decision), type=Decision)
    assert stored == decision
    again = replay(stored, msgspec.json.decode(msgspec.json.encode(inputs), type=RoundInputs), load)
    assert again.same and again.differences == []
    assert again.decision == stored
    explain(stored)  # of whatever kind it is


def test_a_job_that_declined_to_shrink_is_told_again_before_it_is_preempted():
    least = Candidate(1, 1, 0.25, 0.25)
    running = view("a", now=Candidate(2, 1, 0.25, 0.5), declined=(least,))
    found = decide(RoundInputs(at=5.0, capacity=Resources(0.5, 8 * GIB), jobs=(running, view("b"))), load)
    assert (found.of("a").action, found.of("a").choice) == ("change", least)
    assert found.of("b").action == "queue"


def test_replay_names_a_choice_that_differs():
    stored = decide(INPUTS, load).of("a")
    assert stored.choice is not None
    other = msgspec.structs.replace(stored, choice=Candidate(1, 1, 0.5, 0.25))
    again = replay(other, INPUTS, load)
    assert not again.same
    assert again.differences == [f"choice was 1 worker x 0.5, 1 ps x 0.25 cores, and is now {stored.choice.describe()}"]


def test_replay_compares_predictions():
    stored = decide(INPUTS, load).of("a")
    faster = msgspec.structs.replace(
        INPUTS, jobs=(msgspec.structs.replace(INPUTS.jobs[0], model=data(batch=1001.0)), INPUTS.jobs[1])
    )
    assert any("predicted throughput" in text for text in replay(stored, faster, load).differences)


def test_replay_refuses_other_formats_and_unknown_jobs():
    stored = decide(INPUTS, load).of("a")
    with pytest.raises(JobError, match="format 7"):
        replay(msgspec.structs.replace(stored, format=7), INPUTS, load)
    with pytest.raises(JobError, match="know no job a"):
        replay(stored, msgspec.structs.replace(INPUTS, jobs=INPUTS.jobs[1:]), load)


def test_index_changes_with_capacity_and_jobs_but_not_with_time():
    index = index_of(INPUTS, "b")
    assert with_index(decide(INPUTS, load).of("b"), INPUTS).index == index
    waited = tuple(msgspec.structs.replace(job, waited_seconds=9.0) for job in INPUTS.jobs)
    assert index_of(msgspec.structs.replace(INPUTS, at=6.0, jobs=waited[::-1]), "b") == index
    moved = (msgspec.structs.replace(INPUTS.jobs[0], now=Candidate(2, 1, 0.25, 0.25)), INPUTS.jobs[1])
    for changed in ({"capacity": Resources(4.0, GIB)}, {"jobs": INPUTS.jobs[1:]}, {"jobs": moved}):
        assert index_of(msgspec.structs.replace(INPUTS, **changed), "b") != index


def test_explanation_says_why_the_plan_was_chosen_and_others_were_not():
    found = decide(INPUTS, load)
    one = found.of("a")
    text = explain(one)
    assert text.startswith("a: change. It changes to")
    assert "Predicted: " in text and "80% band" in text
    lines = weighed_plans(one, most=None)
    assert [line.mark for line in lines].count("*") == 1 and [line.mark for line in lines].count("=") == 1
    chosen = next(line for line in lines if line.mark == "*")
    for line in lines:
        assert line.verdict
        if line.seconds > chosen.seconds and line.cores < chosen.cores:
            assert "later" in line.verdict and line.verdict.endswith(" less")
        elif line.cores > one.room.cores + 1e-6:
            assert "more than it may have" in line.verdict
    short = weighed_plans(one, most=6)
    assert len(short) < len(lines)
    assert {"*", "="} <= {line.mark for line in short}
    assert f"({len(lines) - len(short)} more plans" in explain(one, most=6)


def test_effect_of_a_decision_is_judged_within_missed_or_just_outside():
    one = decide(INPUTS, load).of("a")
    rate = one.predicted.throughput.expected
    near = judge(one, Band(rate * 0.97, rate * 0.95, rate), windows=4, at=9.0)
    assert (near.outside, near.missed) == (False, False)
    far = judge(one, Band(rate * 0.5, rate * 0.48, rate * 0.52), windows=4, at=9.0)
    assert far.missed and far.error == pytest.approx(-0.5)
    assert "missed by much" in far.text
    assert "missed by much" in explain(one, far)
    just = judge(one, Band(rate * 0.88, rate * 0.87, rate * 0.89), windows=4, at=9.0)
    assert just.outside and not just.missed
    assert doubt_after([]) == 1.0
    assert doubt_after([(one, near)]) == 1.0
    assert doubt_after([(one, far)]) == 4.0
    assert doubt_after([(one, far), *[(one, near)] * 5]) == 1.0
    nothing = msgspec.structs.replace(one, predicted=None)
    with pytest.raises(UsageError, match="nothing to compare"):
        judge(nothing, Band(1, 1, 1), windows=1, at=9.0)
