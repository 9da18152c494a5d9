"""Plans that are tried: what that is worth, for how long, and the way back."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlrover_lite.brain.planning.decision import Decision, decide
from dlrover_lite.brain.planning.exploration import expected_shortfall, seconds_to_tell, worth_of_trying
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
from dlrover_lite.brain.planning.plan_grid import Bounds, Candidate
from dlrover_lite.brain.planning.plan_values import options_of
from dlrover_lite.brain.planning.work_shift import shift_words
from dlrover_lite.core.units import Resources
from tests.brain.models import data, load, view

CAPACITY = Resources(3.0, 10**6)
NOW, BEFORE, SLOWER = Candidate(4, 1, 0.5, 0.75), Candidate(3, 1, 0.5, 0.5), Candidate(3, 1, 0.5, 0.75)
EXPLORATION = Exploration(
    back=BEFORE, seconds=30.0, saves_seconds=10.0, chance=0.4, costs_seconds=6.0, costs_at_most_seconds=20.0
)  # fmt: skip


def decided(job: JobView, *, capacity: Resources = CAPACITY, policy: Policy | None = None) -> Decision:
    return decide(RoundInputs(at=0.0, capacity=capacity, jobs=(job,), policy=policy or Policy()), load).of(job.job)


# --- what a try is worth ------------------------------------------------------------------------------------------------


@given(st.floats(-1.0, 1.0), st.floats(0.001, 1.0))
def test_expected_shortfall_is_the_mean_over_all_outcomes(log_mean: float, sd: float) -> None:
    edges = np.linspace(-6, 6, 20_001)
    middles, step = (edges[1:] + edges[:-1]) / 2, edges[1] - edges[0]
    density = np.exp(-(middles**2) / 2) / np.sqrt(2 * np.pi) * step
    outcomes = np.maximum(0.0, 1 - np.exp(log_mean + sd * middles))
    found = float(expected_shortfall(np.array([log_mean]), np.array([sd]))[0])
    assert found == pytest.approx(float((outcomes * density).sum()), abs=2e-4)


def job(**fields: Any) -> JobView:
    known = {"now": NOW, "model": data(spread=0.4), "scale_seconds": 5.0, "remaining_samples": 1e8}
    return view(**{**known, **fields})


def worths(one: JobView, policy: Policy | None = None) -> dict[Candidate, tuple[float, float, float]]:
    """What each plan saves, its chance, and what trying it costs."""
    options = options_of(one, load(one.model), CAPACITY, Policy())
    assert options is not None
    found = worth_of_trying(options, np.arange(len(options.gain)), policy or Policy())
    plans = [options.points.candidate(at) for at in range(len(options.gain))]
    return {plan: each for plan, *each in zip(plans, found.saves, found.chance, found.costs, strict=True)}  # type: ignore[misc]


def test_a_plan_that_nobody_can_be_sure_of_is_worth_more_than_its_prediction() -> None:
    """A plan that is slower by the model may be faster, and is kept then."""
    sure, unsure = worths(job(model=data(spread=0.01))), worths(job(model=data(spread=0.5)))
    assert sure[SLOWER][0] < 0.01 * unsure[SLOWER][0]
    assert sure[SLOWER][1] < 0.05 < unsure[SLOWER][1] < 0.5


def test_how_much_faster_a_plan_may_be_says_what_it_saves_and_how_much_slower_what_it_costs() -> None:
    """No plan is faster than its cores allow, so bands have ends that differ."""
    alike, bounded = (
        worths(job(model=data(spread=0.5, upper_share=its), measured=Band(1e5, 0.98e5, 1.02e5)))[SLOWER]
        for its in (1.0, 0.1)
    )
    assert bounded[0] < 0.1 * alike[0]
    assert bounded[1] < 0.5 * alike[1]
    assert bounded[2] >= alike[2]


def test_a_try_costs_the_way_there_and_what_it_is_slower_and_the_way_back_unless_it_is_better() -> None:
    saves, chance, costs = worths(job(model=data(spread=0.001)))[SLOWER]
    rates = [float(load(job().model).predict(*plan.parts())[0][0]) for plan in (NOW, SLOWER)]
    assert (saves, chance) == pytest.approx((0.0, 0.0), abs=1e-6)
    assert costs == pytest.approx(2 * 5.0 + 10.0 * (1 - rates[1] / rates[0]), rel=0.02)
    long = worths(job(model=data(spread=0.001)), Policy(least_exploration_seconds=60.0))
    assert long[SLOWER][2] > costs


@pytest.mark.parametrize(
    ("difference", "seconds"), [(0.0, 30.0), (0.02, 30.0), (0.04, 16.9), (-0.04, 16.9), (0.3, 10.0)]
)
def test_a_try_is_as_long_as_it_takes_to_tell_the_difference_that_is_expected(
    difference: float, seconds: float
) -> None:
    """What a time tells goes by the root of it: a third more difference, nine sixteenths of the time."""
    assert float(seconds_to_tell(np.array([difference]), Policy())[0]) == pytest.approx(seconds, rel=0.01)


def test_what_was_measured_is_the_mark_that_a_try_has_to_beat() -> None:
    """Before it had a plan that is faster than the present one, though not by so much that the change surely pays."""
    rate = float(load(job().model).predict(*NOW.parts())[0][0])
    faster = (MeasuredPlan(BEFORE, Band(1.2 * rate, 0.9 * rate, 1.6 * rate)),)
    assert worths(job(measured_before=faster))[SLOWER][0] < worths(job())[SLOWER][0]


def test_a_try_is_said_with_its_question_length_and_way_back() -> None:
    found = decided(job(model=data(spread=0.7)))
    assert found.action == "explore" and found.exploration is not None and found.choice is not None
    assert found.exploration.back == NOW and 10.0 <= found.exploration.seconds <= 30.0
    assert found.exploration.saves_seconds > found.exploration.costs_seconds > 0
    length = f"{found.exploration.seconds:.0f} s"
    assert found.reason.startswith(f"it tries {found.choice.describe()} for {length}: with a chance of ")
    assert f"if it isn't better, the job goes back to {NOW.describe()}" in found.reason


def test_what_would_save_next_to_nothing_is_not_tried() -> None:
    assert decided(job(model=data(spread=0.7)), policy=Policy(tie_share=0.5)).action != "explore"


# --- what becomes of it -------------------------------------------------------------------------------------------------


FEW = Bounds(min_workers=3, max_workers=4, max_servers=1, worker_sizes=(0.5,), ps_sizes=(0.5, 0.75))
"""Hardly any other plans."""


def tried(*, seconds: float, ratio: float, width: float = 1.02, **fields: Any) -> JobView:
    """A job that tries a plan, has measured it for so many ``seconds``, and is so many times as fast with it as before."""
    rate = float(load(job().model).predict(*NOW.parts())[0][0])
    known = {
        "model": data(spread=0.02),
        "exploration": EXPLORATION,
        "tried_seconds": seconds,
        "measured": Band(ratio * rate, ratio * rate / width, ratio * rate * width),
        "measured_before": (MeasuredPlan(BEFORE, Band(rate, rate / width, rate * width)),),
        "last_change": LastChange(left=BEFORE, fresh_windows=int(seconds / 10)),
        "bounds": FEW,
    }  # fmt: skip
    return job(**{**known, **fields})


NO_MORE = Policy(exploration_share=0.0)


@pytest.mark.parametrize("ratio", [0.99, 1.0, 1.1])
def test_a_try_lasts_as_long_as_was_fixed(ratio: float) -> None:
    found = decided(tried(seconds=20.0, ratio=ratio))
    assert (found.action, found.choice) == ("stay", NOW)
    assert "it is tried for 30 s, and if it isn't better, the job goes back to 3 worker x 0.5" in found.reason


def test_a_try_that_is_not_better_goes_back_when_its_time_is_over() -> None:
    """The plan before was better by a percent, which nobody can be sure of: to go back pays, and undoes the last change."""
    found = decided(tried(seconds=30.0, ratio=0.99), policy=NO_MORE)
    assert (found.action, found.choice) == ("change", BEFORE)
    assert "4 worker x 0.5, 1 ps x 0.75 cores, which it has tried for 30 s, isn't better" in found.reason


def test_a_try_goes_back_to_the_better_one_of_two_plans_that_were_measured() -> None:
    """Soon after it began, when the one before the try is what would undo the last change, and another one wouldn't."""
    before, other = Candidate(3, 1, 0.5, 0.5), Candidate(5, 1, 0.5, 0.75)
    rate = float(load(job().model).predict(*NOW.parts())[0][0])
    known = (
        MeasuredPlan(before, Band(rate, rate / 1.01, rate * 1.01)),
        MeasuredPlan(other, Band(0.96 * rate, 0.95 * rate, 0.97 * rate)),
    )
    left = LastChange(left=before, fresh_windows=1)
    back = msgspec.structs.replace(EXPLORATION, back=before)
    bounds = msgspec.structs.replace(FEW, max_workers=5)
    one = tried(seconds=10.0, ratio=0.9, measured_before=known, last_change=left, exploration=back, bounds=bounds)
    found = decided(one, capacity=Resources(4.0, 10**6), policy=NO_MORE)
    assert (found.action, found.choice) == ("change", before)


def test_a_try_that_is_better_is_kept() -> None:
    found = decided(tried(seconds=30.0, ratio=1.05), policy=NO_MORE)
    assert (found.action, found.choice) == ("stay", NOW)


def test_a_try_that_is_surely_worse_ends_before_its_time() -> None:
    found = decided(tried(seconds=10.0, ratio=0.8))
    assert (found.action, found.choice) == ("change", BEFORE)
    unsure = decided(tried(seconds=10.0, ratio=0.8, width=1.3))
    assert (unsure.action, unsure.choice) == ("stay", NOW)


@pytest.mark.parametrize(("cores", "ends"), [(2.75, False), (6.0, True)])
def test_a_try_ends_early_for_a_plan_that_needs_more_cores_than_there_were(cores: float, ends: bool) -> None:
    """Others have ended meanwhile, and a plan of their cores surely pays: whether the tried one is better matters no longer."""
    wide = Bounds(min_workers=1, max_workers=10, max_servers=1, worker_sizes=(0.5,), ps_sizes=(0.5, 0.75))
    found = decided(tried(seconds=10.0, ratio=1.0, bounds=wide), capacity=Resources(cores, 10**6))
    assert (found.action, found.choice != NOW) == (("change", True) if ends else ("stay", False))
    assert found.choice is not None and (found.choice.cores > NOW.cores) is ends


def test_no_change_back_that_costs_more_than_it_saves() -> None:
    late = tried(seconds=30.0, ratio=0.99, remaining_samples=2e6)
    assert decided(late, policy=NO_MORE).action == "stay"


def test_a_try_ends_when_there_is_nothing_left_to_compare_it_with() -> None:
    """The job's work has changed meanwhile: what was measured before it is forgotten."""
    best = decided(tried(seconds=10.0, ratio=1.0, measured_before=(), last_change=None, bounds=view().bounds))
    assert best.action == "change"


def test_a_job_with_a_try_gives_cores_up_that_others_need() -> None:
    found = decided(tried(seconds=10.0, ratio=1.1, bounds=view().bounds), capacity=Resources(1.5, 10**6))
    assert found.action == "change" and found.choice is not None and found.choice.cores <= 1.5


def test_no_plan_is_tried_twice() -> None:
    """Try after try, each measured as a little worse than the first plan: every plan is tried once at the most, then the job rests."""
    rate = float(load(job().model).predict(*NOW.parts())[0][0])
    known: list[MeasuredPlan] = []
    one = job(model=data(spread=0.7), measured=Band(rate, rate / 1.01, rate * 1.01), ran_seconds=1e6)
    for _ in range(200):
        found = decided(msgspec.structs.replace(one, measured_before=tuple(known)))
        if found.action != "explore":
            break
        assert found.choice is not None and all(found.choice != its.plan for its in known)
        known.append(MeasuredPlan(found.choice, Band(0.99 * rate, 0.98 * rate, rate)))
    else:
        pytest.fail("it never rests")
    assert len(known) > 1


def test_nothing_is_changed_while_the_work_may_have_changed() -> None:
    shift = WorkShift(at=-5.0, windows=1, role="ps", times=9.8)
    found = decided(job(model=data(spread=0.02), suspected=shift))
    assert (found.action, found.choice) == ("stay", NOW)
    assert "the parameter servers' CPU seconds for a minibatch are 9.8 times what they were" in found.reason
    less = decided(job(model=data(spread=0.02), suspected=shift), capacity=Resources(1.5, 10**6))
    assert less.choice is not None and less.choice.cores <= 1.5, "but for others, or for want of cores"


def test_a_change_that_follows_from_a_shift_says_so() -> None:
    shift = WorkShift(at=-40.0, windows=3, role="ps", times=9.8)
    found = decided(job(model=data(spread=0.02), shift=shift))
    assert found.action == "change"
    assert found.reason.endswith("; its work has changed 40 s ago: " + shift_words(shift))
    later = LastChange(left=BEFORE, fresh_windows=2)
    again = decided(job(model=data(spread=0.02), shift=shift, last_change=later))
    assert "its work has changed" not in again.reason, "it was said when the plan was changed for that"
