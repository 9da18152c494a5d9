"""When a plan is changed, and when not."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from dlrover_lite.brain.models.fitted_model import load_model, model_data
from dlrover_lite.brain.models.throughput import fit
from dlrover_lite.brain.planning.decision import Decision, decide
from dlrover_lite.brain.planning.job_view import JobView, LastChange, MeasuredPlan, Policy, RoundInputs
from dlrover_lite.brain.planning.pareto import Band
from dlrover_lite.brain.planning.plan_grid import Bounds, Candidate, even_sizes
from dlrover_lite.brain.planning.plan_values import options_of, worth
from dlrover_lite.core.units import Resources
from tests.brain import queueing
from tests.brain.models import data, load, view
from tests.brain.queueing import Costs, observations

SMALLEST = Candidate(1, 1, 0.25, 0.25)
CAPACITY = Resources(3.0, 10**6)


def decided(job, *, capacity=CAPACITY, policy=None):
    return decide(RoundInputs(at=0.0, capacity=capacity, jobs=(job,), policy=policy or Policy()), load).of(job.job)


def test_a_change_that_surely_pays_is_made():
    found = decided(view(now=SMALLEST, scale_seconds=5.0))
    assert found.action == "change"
    assert found.predicted.gain.lower > 0
    assert found.predicted.seconds < found.predicted.stay_seconds
    assert found.before == SMALLEST
    assert "80% band" in found.reason


def test_a_change_that_costs_more_than_it_saves_is_not_made():
    assert decided(view(now=SMALLEST, remaining_samples=1e5, scale_seconds=50.0)).action == "stay"


def test_cost_of_a_change_is_taken_from_its_gain_and_value():
    """From the gain, its band and its value; staying costs nothing."""
    job = view(now=SMALLEST, priority=2.0)
    free, dear = (
        options_of(msgspec.structs.replace(job, scale_seconds=seconds), load(job.model), CAPACITY, Policy())
        for seconds in (0.0, 7.0)
    )
    others = np.arange(len(free.gain)) != free.now
    for name in ("gain", "least_gain", "most_gain"):
        lost = getattr(free, name) - getattr(dear, name)
        assert lost[others] == pytest.approx(7.0) and lost[free.now] == 0
    seconds = (free.stay_seconds - free.gain)[:, None] + np.linspace(0.0, 7.0, 10_001)
    integral = np.trapezoid(2.0 / seconds ** Policy().rho, dx=7.0 / 10_000, axis=1)
    assert (free.value - dear.value)[others] == pytest.approx(integral[others], rel=1e-5)
    assert dear.value[dear.now] == 0
    starts = options_of(view(scale_seconds=7.0), load(job.model), CAPACITY, Policy())
    assert starts.gain[starts.minimum] == 0  # what doesn't run yet isn't changed


@pytest.mark.parametrize("rho", [0.0, 1.0, 1.5, 2.0])
def test_worth_between_two_plans_does_not_depend_on_the_present_one(rho: float):
    """A job that has much already, and one with little left of it, are asked for the same cores: what counts is from where to where."""
    left = np.array([300.0, 120.0, 60.0])
    each = [worth(2.0, stay, stay - left, rho) for stay in (600.0, 120.0, 40.0)]
    steps = [np.diff(one) for one in each]
    assert steps[1] == pytest.approx(steps[0]) and steps[2] == pytest.approx(steps[0])
    assert (steps[0] > 0).all() and each[1][1] == 0
    assert worth(4.0, 600.0, 600.0 - left, rho) == pytest.approx(2 * each[0])


def test_cores_go_to_who_ends_sooner_by_them_until_he_has_ended():
    """Two alike jobs share evenly; the one has a tenth of the other's work left: it gets cores of the other, and that one them back."""

    def decided_for(short: float, more: float = 1.0) -> list[float]:
        now = Candidate(2, 1, 0.5, 0.5)
        jobs = [
            view(name, model=data(spread=0.02), now=now, remaining_samples=samples, priority=priority)
            for name, samples, priority in (("long", 1e8, 1.0), ("short", short, more))
        ]
        found = decide(RoundInputs(at=0.0, capacity=Resources(3.0, 10**6), jobs=tuple(jobs)), load)
        return [one.choice.cores for one in found.decisions]

    alike, shorter = decided_for(1e8), decided_for(1e7)
    assert alike == [1.5, 1.5]
    assert shorter[1] > 1.5 > shorter[0]
    assert decided_for(1e8, more=4.0)[1] > 1.5


def test_a_gain_that_is_not_certain_is_not_enough():
    """Three quarters faster by the model, which may be wrong by a factor of two."""
    job = view(now=Candidate(4, 1, 0.5, 0.75), model=data(spread=0.7), scale_seconds=5.0)
    no_trials = Policy(exploration_share=0.0)
    found = decided(job, policy=no_trials)
    assert found.action == "stay"
    assert "isn't certain" in found.reason
    surer = msgspec.structs.replace(job, model=data(spread=0.02))
    assert decided(surer, policy=no_trials).action == "change"


def test_predictions_that_missed_widen_the_band():
    job = view(now=Candidate(4, 1, 0.5, 0.5), model=data(spread=0.05), scale_seconds=5.0)
    no_trials = Policy(exploration_share=0.0)
    assert decided(job, policy=no_trials).action == "change"
    assert decided(msgspec.structs.replace(job, doubt=10.0), policy=no_trials).action == "stay"


def test_undoing_a_change_needs_new_evidence():
    """A worker fewer, and a larger PS: the last change added that worker."""
    now = Candidate(2, 1, 0.75, 0.25)
    job = view(
        now=now, model=data(spread=0.01), last_change=LastChange(left=Candidate(2, 1, 1.0, 0.25), fresh_windows=1)
    )
    wanted = decided(msgspec.structs.replace(job, last_change=None)).choice
    assert wanted.worker_cores > now.worker_cores or wanted.workers != now.workers
    back = LastChange(left=wanted, fresh_windows=1)
    elsewhere = decided(msgspec.structs.replace(job, last_change=back)).choice
    assert elsewhere.worker_cores <= now.worker_cores and elsewhere.ps_cores <= now.ps_cores  # but maybe more nodes
    bounds = msgspec.structs.replace(job.bounds, max_workers=2, max_servers=1)
    found = decided(msgspec.structs.replace(job, last_change=back, bounds=bounds))
    assert found.action == "stay"
    assert "undo the last change" in found.reason and "and so far it is 1 interval" in found.reason
    assert decided(msgspec.structs.replace(job, last_change=LastChange(left=wanted, fresh_windows=4))).choice == wanted


def test_exploring_a_plan_has_a_budget():
    job = view(now=Candidate(4, 1, 0.5, 0.75), model=data(spread=0.7), scale_seconds=5.0, remaining_samples=1e8)
    found = decided(job)
    assert found.action == "explore"
    here, there = job.now, found.choice
    assert there.workers <= 2 * here.workers and there.ps_cores <= 2 * here.ps_cores
    spent = Policy().exploration_share * found.predicted.stay_seconds
    assert decided(msgspec.structs.replace(job, explored_seconds=spent)).action == "stay"
    assert decided(msgspec.structs.replace(job, remaining_samples=1e5)).action == "stay"


def test_measured_throughput_outweighs_the_predicted():
    """It runs at half of the predicted speed: all plans are then expected to."""
    job = view(now=Candidate(2, 1, 1.0, 0.5))
    predicted = decided(job).predicted
    measured = Band(*(float(x[0]) / 2 for x in load(job.model).predict(*job.now.parts())))
    half = decided(msgspec.structs.replace(job, measured=measured)).predicted
    assert half.stay_seconds == pytest.approx(2 * predicted.stay_seconds)
    assert half.throughput.expected == pytest.approx(predicted.throughput.expected / 2)


def test_a_fixed_plan_stays_and_its_cores_are_kept_from_others():
    fixed = view("fixed", now=Candidate(1, 1, 1.0, 1.0), fixed=True, held="autoscaling is off for it")
    other = view("other")
    found = decide(RoundInputs(at=0.0, capacity=CAPACITY, jobs=(fixed, other)), load)
    assert found.of("fixed").action == "stay"
    assert "autoscaling is off" in found.of("fixed").reason
    assert found.of("other").choice.cores <= 1.0


def test_fixed_plans_may_exceed_the_capacity():
    """What is stored of it can be read again."""
    fixed = view("fixed", now=Candidate(1, 1, 1.0, 1.0), fixed=True)
    other = view("other", now=Candidate(1, 1, 0.5, 0.5), fixed=True, stays="it takes no checkpoints")
    for one in decide(RoundInputs(at=0.0, capacity=Resources(0.5, 10**6), jobs=(fixed, other)), load).decisions:
        assert one.room is not None and one.room.cores >= 0
        assert msgspec.json.decode(msgspec.json.encode(one), type=Decision) == one


def test_unknown_work_is_taken_as_the_horizon():
    job = view(now=SMALLEST, remaining_samples=None)
    assert decided(job, policy=Policy(horizon_seconds=500.0)).predicted.stay_seconds == 500.0


def test_no_job_is_slowed_down_for_a_smaller_gain_of_another():
    """Both have the same model; one that is nearly done would be worth more by its share of time, if it were certain."""
    jobs = tuple(view(f"job-{i}", now=Candidate(1, 1, 1.0, 0.5), scale_seconds=30.0) for i in range(2))
    found = decide(RoundInputs(at=0.0, capacity=CAPACITY, jobs=jobs), load)
    assert {d.action for d in found.decisions} == {"stay"}


def test_a_plan_from_outside_the_lattice_can_be_kept():
    odd = Candidate(3, 1, 0.6, 1.1)
    found = decided(view(now=odd, scale_seconds=1e9))
    assert (found.action, found.choice) == ("stay", odd)


def test_less_capacity_shrinks_what_runs():
    found = decided(view(now=Candidate(4, 1, 1.0, 1.0)), capacity=Resources(2.0, 10**6))
    assert found.action == "change"
    assert found.choice.cores <= 2.0
    assert "less than there was" in found.reason


def test_cores_that_make_no_difference_are_given_back():
    """The PS is all that counts: most of the workers only wait for it."""
    costs, capacity = {"worker": 0.002, "request": 0.0, "latency": 0.001, "server": 0.05}, Resources(9.0, 10**6)
    now = Candidate(6, 3, 1.0, 1.0)
    job = view(now=now, model=data(**costs, spread=0.02), scale_seconds=5.0, remaining_samples=1e8)
    found = decided(job, capacity=capacity)
    assert found.action == "change" and found.choice.cores < 5
    assert found.predicted.throughput.expected >= 0.99 * float(load(job.model).predict(*now.parts())[0][0])
    assert "it does as well with" in found.reason
    unsure = msgspec.structs.replace(job, model=data(**costs, spread=0.3))
    assert decided(unsure, policy=Policy(exploration_share=0.0), capacity=capacity).action == "stay"
    nearly_done = msgspec.structs.replace(job, remaining_samples=1e6)
    assert decided(nearly_done, capacity=capacity).action == "stay"


def test_a_surer_plan_is_taken_where_the_best_is_not_certain():
    """Fewer, larger steps from what is known: the best plan by the model is far from the present one."""
    fitted = fit(observations(Costs(), 3, [queueing.Plan(2, 1, 1.0, 0.5, 16.0)]))
    bounds = Bounds(max_workers=16, max_servers=4, worker_sizes=even_sizes(2.0, 8), ps_sizes=even_sizes(1.0, 4))
    job = JobView(
        job="a", bounds=bounds, model=model_data(fitted, batch_size=1024, free_cores={"a": 16.0}), remaining_samples=4e7,
        now=Candidate(2, 1, 1.0, 0.5), scale_seconds=5.0,
    )  # fmt: skip
    found = decide(RoundInputs(at=0.0, capacity=Resources(4.0, 10**12), jobs=(job,)), load_model).of("a")
    assert found.action == "change" and found.predicted.gain.lower > 0


# --- plans that were measured before ----------------------------------------------------------------------------------

NOW, BEFORE = Candidate(4, 1, 0.5, 0.75), Candidate(3, 1, 0.5, 0.5)


def measured(job: JobView, plan: Candidate, factor: float, width: float = 1.02) -> JobView:
    """The job with ``plan`` measured before, at so much of what the present one was measured at, and that one at what is predicted."""
    rate = float(load(job.model).predict(*NOW.parts())[0][0])
    there = rate * factor
    return msgspec.structs.replace(
        job,
        measured=Band(rate, rate / 1.02, rate * 1.02),
        measured_before=(MeasuredPlan(plan, Band(there, there / width, there * width)),),
    )


def test_a_job_goes_back_to_a_plan_that_was_measured_as_better():
    """The model says that it is slower, and it is on nobody's front."""
    job = view(now=NOW, model=data(spread=0.3), scale_seconds=5.0)
    no_trials = Policy(exploration_share=0.0)
    assert decided(job, policy=no_trials).choice != BEFORE
    found = decided(measured(job, BEFORE, 1.6), policy=no_trials)
    assert (found.action, found.choice) == ("change", BEFORE)
    rate = float(load(job.model).predict(*NOW.parts())[0][0])
    assert found.predicted.throughput.expected == pytest.approx(1.6 * rate)
    doubtful = decided(measured(job, BEFORE, 1.6, width=2.5), policy=no_trials)
    assert doubtful.choice != BEFORE, "what was measured has a band, too"


def test_what_was_measured_as_worse_is_not_tried_again():
    job = view(now=NOW, model=data(spread=0.7), scale_seconds=5.0, remaining_samples=1e8)
    tried = decided(job)
    assert tried.action == "explore"
    again = decided(measured(job, tried.choice, 0.8))
    assert again.choice != tried.choice
    as_good = decided(measured(job, tried.choice, 1.001))
    assert as_good.choice != tried.choice, "it is known: there is nothing to be learnt"


def shared(cores: float, *jobs: JobView) -> dict[str, Decision]:
    found = decide(RoundInputs(at=0.0, capacity=Resources(cores, 10**6), jobs=jobs), load)
    return {one.job: one for one in found.decisions}


SURE = data(spread=0.02)


def test_a_long_job_waits_while_shorter_ones_make_more_of_its_cores():
    """It would fit, with half a core; by that half the other ends sooner by more. Who has waited for long enough comes in all the same, and
    so does for whom others have made room."""
    runs = view("runs", now=Candidate(2, 1, 0.5, 0.5), model=SURE, remaining_samples=1e5)
    waits = view("waits", model=SURE, remaining_samples=1e10)
    found = shared(1.5, runs, waits)
    assert found["waits"].action == "queue" and found["runs"].choice == runs.now
    assert "would fit, but what runs would save by these cores is worth more" in found["waits"].reason
    for changed in (
        {"remaining_samples": 5e4},
        {"priority": 1e4},
        {"room_promised": True},
        {"waited_seconds": Policy().reserve_after_seconds},
    ):
        assert "would fit, but" not in shared(1.5, runs, msgspec.structs.replace(waits, **changed))["waits"].reason


def test_nobody_waits_for_cores_that_are_left_over():
    """The other one can't be changed: what is worth more to it in theory is free, and begins with that."""
    runs = view("runs", now=Candidate(2, 1, 0.25, 0.25), model=SURE, remaining_samples=1e5, fixed=True)
    tried = msgspec.structs.replace(runs, fixed=False, declined=tuple(
        Candidate(w, p, a, b) for w in range(1, 9) for p in (1, 2, 3) for a in (0.25, 0.5, 1.0) for b in (0.25, 0.5, 1.0)
        if (w, p, a, b) != (2, 1, 0.25, 0.25)
    ))  # fmt: skip
    for one in (runs, tried):
        assert shared(1.5, one, view("waits", model=SURE, remaining_samples=1e10))["waits"].action == "start"


def test_a_plan_that_is_not_measured_yet_is_kept_but_for_what_others_need():
    """It neither grows nor shrinks while there is room; for one that comes it shrinks at once, and isn't put out."""
    runs = view(
        "runs", now=Candidate(4, 1, 0.5, 0.5), unmeasured=True, held="not measured", scale_seconds=2.0, priority=0.1
    )
    assert shared(8.0, runs)["runs"].choice == runs.now
    assert shared(3.0, runs, view("small", now=SMALLEST, priority=9.0))["runs"].choice == runs.now
    found = shared(2.5, runs, view("urgent", priority=4.0, remaining_samples=1e5))
    assert found["runs"].action == "change" and found["runs"].choice.cores < 2.5
    assert found["urgent"].action == "start", "limits are lower by the time that its nodes are up"
    assert found["urgent"].choice.cores + found["runs"].choice.cores <= 2.5


@pytest.mark.parametrize("taken", [True, False])
def test_what_others_needed_comes_back_as_soon_as_they_do_not(taken: bool):
    """A change of its own isn't undone so soon; one for others is."""
    change = LastChange(left=Candidate(4, 1, 0.5, 0.75), fresh_windows=1, taken=taken)
    runs = view("runs", now=Candidate(1, 1, 0.25, 0.25), model=SURE, last_change=change, scale_seconds=1.0)
    found = shared(3.0, runs)["runs"]
    assert (found.choice.cores > 2.0) is taken
