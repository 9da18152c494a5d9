"""Reading as a limit of its own: found by what was measured of it, named, and cores that it leaves unused given back."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import pytest

from dlrover_lite.brain.models.bottleneck import bottleneck
from dlrover_lite.brain.models.fitted_model import at_reading_limit, load_model, model_data
from dlrover_lite.brain.models.throughput import Prior, fit, predict
from dlrover_lite.brain.models.throughput_forms import BOTTLENECK, Setting
from dlrover_lite.brain.planning.decision import Decision, decide
from dlrover_lite.brain.planning.job_view import MeasuredPlan, Policy, RoundInputs
from dlrover_lite.brain.planning.observed_job import observe_job, observed_view
from dlrover_lite.brain.planning.pareto import Band
from dlrover_lite.brain.planning.plan_grid import Candidate
from dlrover_lite.brain.planning.plan_values import options_of
from dlrover_lite.cli.commands.job.profile import told
from dlrover_lite.core.units import GIB, Resources
from dlrover_lite.protocol.profiles import Observation, Profile, observe
from tests.brain.queueing import PLANS, Costs, Plan, observations, replace, simulate
from tests.brain.scenarios import base_view
from tests.brain.simulated import Job
from tests.brain.test_throughput import TRUE, exact, rates, setting, true_fit

MOST = 60_000.0
"""Samples/s that can be read."""
COSTS = Costs(read=1024 / MOST)
SMALL, LARGE = Candidate(2, 1, 0.5, 0.5), Candidate(12, 3, 1.0, 1.0)
USUAL = Policy()
PATIENCE = 5_000.0
"""Seconds of work that are left."""


# --- the model ------------------------------------------------------------------------------------------------------


def read_seconds(o: Observation, reader: float, source: float) -> float:
    """Compute the seconds of a minibatch with others at the source before it, for the share of their time in which they read: no longer
    than all the time that a worker has."""
    there_is = o.workers * o.batch_size / o.samples_per_second
    others = source * o.batch_size * (o.workers - 1) / there_is
    return there_is if others >= 1 else min(there_is, (reader + source) * o.batch_size / (1 - others))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("reading", [(2e-5, 4e-6), (4e-6, 1.2e-5), (8e-5, 1e-8)], ids=["own", "shared", "alone"])
def test_known_seconds_of_reading_are_found_again(reading: tuple[float, float], seed: int) -> None:
    """Observe what workers take to read, and throughput."""
    reader, source = reading
    rng = np.random.default_rng(seed)
    known = {**TRUE, "reader_sample": reader, "source_sample": source}
    plans = setting(
        workers=rng.integers(1, 9, 24), ps=rng.integers(1, 4, 24), worker_cores=2.0, ps_cores=1.0, free_cores=64.0
    )
    seen = [
        msgspec.structs.replace(o, read_seconds=read_seconds(o, reader, source) * float(np.exp(rng.normal(0, 0.1))))
        for o in exact(true_fit(known), plans, rng, 0.02)
    ]
    found = fit(seen)
    beyond = setting(workers=np.array([1, 4, 8, 12]), ps=3, worker_cores=2.0, ps_cores=1.0, free_cores=64.0)
    expected = predict(true_fit(known), beyond).samples_per_second
    assert predict(found, beyond).samples_per_second == pytest.approx(expected, rel=0.15)
    if source > reader:
        assert found.coefficients["source_sample"] == pytest.approx(source, rel=0.15)
    else:
        assert found.coefficients["reader_sample"] == pytest.approx(reader, rel=0.3)


def test_how_fast_samples_can_be_read_is_found_in_simulated_windows() -> None:
    rng = np.random.default_rng(4)
    plans = [Plan(w, 2, cores, 1.0) for w, cores in ((1, 0.5), (2, 0.5), (3, 1.0), (4, 1.0), (8, 1.0))]
    found = fit([simulate(plan, COSTS, rng) for plan in plans for _ in range(2)])
    assert 1 / found.coefficients["source_sample"] == pytest.approx(MOST, rel=0.05)
    many = Setting.even(workers=16, ps=4, worker_cores=1.0, ps_cores=1.0, batch_size=1024, free_cores=64.0)
    predicted = predict(found, many)
    assert float(predicted.samples_per_second) == pytest.approx(MOST, rel=0.05)


def test_reading_that_limits_nothing_changes_no_prediction() -> None:
    """A fast disk: what is measured of it says only how far away its limit is."""
    with_reading = observations(replace(COSTS, read=0.0004), 1)
    assert all(o.read_seconds for o in with_reading)
    without = [msgspec.structs.replace(o, read_seconds=None) for o in with_reading]
    one, other = (predict(fit(seen[::2]), Setting.of(without)) for seen in (with_reading, without))
    assert one.samples_per_second == pytest.approx(other.samples_per_second, rel=0.02)
    errors = np.abs(one.samples_per_second / rates(without) - 1)
    assert np.median(errors) < 0.04


def test_one_number_of_workers_doesnt_tell_whose_reading_it_is() -> None:
    """Workers' own, so that more would help, or what all read from: that is tried, not taken for sure. One number more tells."""
    rng = np.random.default_rng(1)
    seen = [simulate(Plan(4, 2, 1.0, 1.0), COSTS, rng) for _ in range(3)]
    more = setting(workers=8, ps=2, worker_cores=1.0, ps_cores=1.0, free_cores=64.0)
    untold = predict(fit(seen), more)
    assert float(untold.low) < 0.9 * MOST and float(untold.high) > 1.3 * MOST
    told_now = predict(fit([*seen, simulate(Plan(6, 2, 1.0, 1.0), COSTS, rng)]), more)
    assert pytest.approx(float(told_now.samples_per_second), rel=0.05) == MOST
    assert float(told_now.high) < 1.2 * MOST


def test_costs_of_past_jobs_are_no_bound_where_samples_come_from_another_disk() -> None:
    prior = Prior({**TRUE, "reader_sample": 1e-8, "source_sample": 1e-9}, relative_sd=0.15)
    rng = np.random.default_rng(1)
    seen = [simulate(Plan(w, 2, 1.0, 1.0), COSTS, rng) for w in (1, 4, 8)]
    assert 1 / fit(seen, prior=prior).coefficients["source_sample"] == pytest.approx(MOST, rel=0.1)
    missing = Prior(TRUE, relative_sd=0.15)
    assert 1 / fit(seen, prior=missing).coefficients["source_sample"] == pytest.approx(MOST, rel=0.1)


# --- the limit's name -----------------------------------------------------------------------------------------------


def grown(small: int = 3, large: int = 3, seed: int = 1) -> list[Profile]:
    """Windows of a job that began with few cores, and then had more than it can use."""
    job = Job(SMALL, COSTS, seed=seed)
    windows = list(job.windows(small))
    job.plan = LARGE
    return [*windows, *job.windows(large)]


def test_the_limit_is_called_reading_whatever_the_plan() -> None:
    found = bottleneck(grown())
    assert found is not None
    nearest = found.limits[0]
    assert (nearest.name, nearest.whatever_plan, nearest.unmeasured) == ("reading", True, ())
    assert nearest.samples_per_second == pytest.approx(MOST, rel=0.05)
    assert found.clear
    assert told(found).startswith("Reading is the limit: ")
    assert " samples/s, whatever the plan. Further away: " in told(found)


def test_a_reader_that_is_slow_in_each_worker_is_named_too() -> None:
    """A worker is held up for as long as it takes for a minibatch; so each reads what it reads."""
    profiles = [
        msgspec.structs.replace(
            one,
            workers=tuple(
                msgspec.structs.replace(use, phase_seconds={"read": 0.97 * one.seconds}) for use in one.workers
            ),
        )
        for plan in (SMALL, Candidate(4, 1, 1.0, 1.0))
        for one in Job(plan, replace(Costs(), read=1024 / (7_500.0 * plan.workers))).windows(3)
    ]
    found = bottleneck(profiles)
    assert found is not None
    assert (found.limits[0].name, found.limits[0].whatever_plan) == ("reading", False)
    assert found.limits[0].samples_per_second == pytest.approx(30_000, rel=0.15)
    assert "whatever the plan" not in told(found)
    assert "reading, which alone allows" in told(found)


def test_seconds_without_a_core_are_none_of_reading() -> None:
    """A worker that its limit holds back takes longer for the same."""
    profile = Job(SMALL, COSTS).window()
    held = tuple(
        msgspec.structs.replace(use, phase_seconds={"read": 2.0}, read_delay_seconds=1.5) for use in profile.workers
    )
    seen = observe(msgspec.structs.replace(profile, workers=held))
    assert seen is not None
    assert seen.read_seconds == pytest.approx(2 * 0.5 / profile.minibatches)
    more = tuple(msgspec.structs.replace(use, read_delay_seconds=3.0) for use in held)
    none = observe(msgspec.structs.replace(profile, workers=more))
    assert none is not None and none.read_seconds is None


# --- decisions ------------------------------------------------------------------------------------------------------


def decided(profiles: Sequence[Profile], cores: float = 16.0, policy: Policy = USUAL) -> Decision:
    view = observed_view(
        base_view("job"),
        observe_job(profiles),
        free_cores={"a": 16.0},
        total_samples=profiles[-1].samples_so_far + PATIENCE * MOST,
    )
    inputs = RoundInputs(at=0.0, capacity=Resources(cores, 64 * GIB), jobs=(view,), policy=policy)
    return decide(inputs).decisions[0]


@pytest.mark.parametrize("seed", range(4))
def test_cores_that_reading_leaves_unused_are_given_back_within_three_intervals(seed: int) -> None:
    """Though that undoes the last change; and without a loss."""
    last = decided(grown(seed=seed))
    assert last.action == "change" and last.choice is not None
    assert last.choice.cores < 0.5 * LARGE.cores
    assert f"it does as well with {LARGE.cores - last.choice.cores:g} cores less; reading is the limit: " in last.reason
    assert last.reason.endswith(" samples/s, whatever the plan")
    there = Job(last.choice, COSTS, seed=seed + 10)
    rate = np.mean([one.samples_per_second for one in there.windows(3)])
    assert rate > 0.95 * MOST


def test_how_much_a_job_that_reading_limits_may_risk_is_its_own_number() -> None:
    """Plans with fewer cores may be slower by their bands, if not by what is expected; of other jobs another number says how much."""
    careful = msgspec.structs.replace(USUAL, reading_risk=0.0)
    assert decided(grown(seed=0), policy=careful).action == "stay"
    assert decided(grown(seed=0), policy=msgspec.structs.replace(USUAL, saving_risk=0.0)).action == "change"


def test_a_job_limited_by_reading_tries_no_larger_plan() -> None:
    """Nor does it change to one: no plan is faster."""
    job = Job(SMALL, COSTS, seed=2)
    windows = list(job.windows(3))
    job.plan = Candidate(4, 1, 0.5, 0.75)
    windows += job.windows(6)
    found = decided(windows, cores=64.0)
    assert found.choice is not None and found.choice.cores <= job.plan.cores
    assert found.action in ("stay", "change")
    assert "reading is the limit: " in found.reason


def test_nothing_is_tried_where_reading_limits() -> None:
    """Though the model, which rounds the corner off, has plans that may be faster than the present one."""
    prior = Prior({**TRUE, "source_sample": 1 / MOST}, relative_sd=0.3, exponent=6.0)
    data = model_data(fit([], prior=prior), batch_size=1024, free_cores={"a": 64.0})
    now = Candidate(6, 1, 1.0, 1.0)
    for measured, action in ((0.8 * MOST, "explore"), (0.98 * MOST, "stay")):
        job = msgspec.structs.replace(
            base_view("job"),
            model=data,
            now=now,
            measured=Band(measured, 0.99 * measured, 1.01 * measured),
            remaining_samples=PATIENCE * MOST,
            scale_seconds=2.0,
            ran_seconds=1000.0,
        )
        found = decide(RoundInputs(at=0.0, capacity=Resources(16.0, 64 * GIB), jobs=(job,))).decisions[0]
        assert found.action == action


def test_a_larger_plan_that_was_measured_a_little_faster_is_not_gone_back_to() -> None:
    """A source is read faster in some intervals than in others, with any plan: the job would go to and fro for as long as it lasts."""
    prior = Prior({**TRUE, "source_sample": 1 / MOST}, relative_sd=0.3, exponent=6.0)
    larger = MeasuredPlan(Candidate(10, 1, 1.0, 1.0), Band(1.05 * MOST, 1.04 * MOST, 1.06 * MOST))
    job = msgspec.structs.replace(
        base_view("job"),
        model=model_data(fit([], prior=prior), batch_size=1024, free_cores={"a": 64.0}),
        now=Candidate(6, 1, 1.0, 1.0),
        measured=Band(0.98 * MOST, 0.97 * MOST, 0.99 * MOST),
        measured_before=(larger,),
        remaining_samples=PATIENCE * MOST,
        scale_seconds=2.0,
        ran_seconds=1000.0,
    )
    found = decide(RoundInputs(at=0.0, capacity=Resources(16.0, 64 * GIB), jobs=(job,))).decisions[0]
    assert found.choice is not None and found.choice.cores <= 7.0
    options = options_of(job, load_model(job.model), Resources(16.0, 64 * GIB), USUAL)
    assert (options.least_gain <= options.gain).all() and (options.gain <= options.most_gain).all()


def test_stored_models_without_reading_predict_as_they_did() -> None:
    """Those of the version before know of no reading, and of no network."""
    seen = [msgspec.structs.replace(o, read_seconds=None) for o in observations(Costs(), 1, PLANS[::3])]
    fitted = fit(seen)
    assert list(fitted.coefficients) == list(TRUE)
    assert len(fitted.covariance) == 6
    data = model_data(fitted, batch_size=1024, free_cores={"a": 4.0, "b": 4.0})
    stored = msgspec.to_builtins(data)
    del stored["parameters"]["fit"]["engine"]["sample_bytes"]
    again = load_model(msgspec.convert(stored, type(data)))
    plans = setting(workers=np.array([1, 2, 8]), hosts=2.0)
    expected, found = predict(fitted, plans), predict(again.fit, plans)
    assert found.samples_per_second.tolist() == expected.samples_per_second.tolist()
    assert found.low.tolist() == expected.low.tolist()


def test_corners_between_reading_and_nodes_are_not_rounded_off_where_reading_limits() -> None:
    """Nodes that can do twice, as much as, and half of what can be read."""
    costs = dict.fromkeys(BOTTLENECK.coefficients, 0.0)
    fitted = fit([], prior=Prior({**costs, "worker_sample": 1e-4, "source_sample": 5e-5}, exponent=6.0))
    data = model_data(fitted, batch_size=1024, free_cores={"a": 64.0})
    workers = np.array([4.0, 2.0, 1.0])
    rounded = load_model(data).predict(workers, np.ones(3), np.ones(3), np.ones(3))[0]
    assert rounded[1] < 0.9 * 20_000
    assert at_reading_limit(data, rounded) == pytest.approx([20_000, 20_000, 10_000], rel=0.05)
    unlimited = model_data(
        fit([], prior=Prior({**costs, "worker_sample": 1e-4})), batch_size=1024, free_cores={"a": 64.0}
    )
    assert at_reading_limit(unlimited, rounded) is rounded
