"""The plan a job starts with, and a running one as it is measured."""

from __future__ import annotations

import functools
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlrover_lite.brain.models.fitted_model import load_model
from dlrover_lite.brain.planning.decision import decide
from dlrover_lite.brain.planning.job_view import RoundInputs
from dlrover_lite.brain.planning.observed_job import candidate_of, observe_job, observed_view
from dlrover_lite.brain.planning.plan_grid import Bounds, Candidate, even_sizes
from dlrover_lite.brain.planning.prescale import PastJob, StartInputs, initial_plan, initial_view
from dlrover_lite.core.units import GIB, MIB, Resources
from tests.brain.queueing import Costs
from tests.brain.scenarios import FEATURES, base_view, past, replace_features, starting
from tests.brain.simulated import START, Job


@functools.cache
def yesterday() -> PastJob:
    return past("yesterday", Costs(), FEATURES, 1)


@settings(max_examples=60, deadline=None)
@given(
    st.floats(0.5, 200.0), st.integers(1, 256), st.integers(1, 4), st.integers(0, 8), st.integers(1, 3),
    st.lists(st.sampled_from([0.25, 0.5, 1.0, 2.0]), min_size=1, unique=True).map(tuple),
)  # fmt: skip
def test_a_cold_start_plan_fits_and_is_within_bounds(cores, memory, workers, more, servers, sizes) -> None:
    bounds = Bounds(
        min_workers=workers,
        max_workers=workers + more,
        min_servers=servers,
        max_servers=4,
        worker_sizes=sizes,
        ps_sizes=(0.25, 1.0),
    )
    capacity = Resources(cores, memory * GIB)
    found = initial_plan(starting(bounds=bounds, capacity=capacity))
    assert found.stage == "initial" and "cold start" in found.reason
    least = workers * min(sizes) + servers * 0.25
    if found.choice is None:
        assert found.action == "refuse" and least > cores
        return
    assert bounds.holds(found.choice) and found.choice.cores <= max(4.0, least)
    assert found.plan is not None
    assert sum(role.count * role.each.memory for role in (found.plan.ps, found.plan.worker)) <= capacity.memory


def test_what_nothing_is_known_of_is_guessed_by_its_model() -> None:
    """A person's own model, of which not even the tables are known before it is built, is no cheaper than a built-in one for that."""

    def seconds(**fields: Any) -> float:
        features = replace_features(tables=26, dims=416, **fields)
        if ":" in features.model:
            features = msgspec.structs.replace(features, tables=0, dims=0)
        found = initial_plan(starting(features=features, capacity=Resources(2.0, 16 * GIB)))
        assert found.predicted is not None
        return found.predicted.seconds

    usual = seconds(model="dlrm")
    assert seconds(model="wide_deep") == seconds(model="own.py:Model") == usual
    assert 2 * usual < seconds(model="dcn") < seconds(model="xdeepfm") < 8 * usual


def test_warm_start_takes_the_plan_from_a_similar_past_job() -> None:
    found = initial_plan(starting(history=(yesterday(),), capacity=Resources(4.0, 16 * GIB)))
    assert "warm start" in found.reason and "yesterday" in found.reason
    assert found.predicted is not None and found.choice is not None and found.memory is not None
    job = Job(found.choice, host_cores=4.0)
    measured = job.window()
    assert measured.samples_per_second == pytest.approx(found.predicted.throughput.expected, rel=0.25)

    def needs(samples: float) -> float:
        return 3.0 * samples**0.72 / found.choice.servers * 190 + 95 * MIB * 1.06

    assert needs(20 * measured.samples_per_second) <= found.memory.limit < needs(2e7)
    assert found.plan is not None and found.plan.worker.each.memory == 520 * MIB * 1.25


def test_dissimilar_past_jobs_do_not_change_the_cold_start() -> None:
    unlike = past("unlike", Costs(), replace_features(model="other", tables=2, dims=4, batch_size=64, rows=1000), 1)
    found = initial_plan(starting(history=(unlike,)))
    assert "cold start" in found.reason and "unlike, is at a distance of" in found.reason
    assert found.choice == initial_plan(starting()).choice


def test_more_data_needs_more_memory() -> None:
    needs = [
        initial_view(
            starting(history=(yesterday(),), features=replace_features(rows=rows), total_samples=None)
        ).need.tables
        for rows in (100_000, 2_000_000, 100_000_000)
    ]
    assert needs == sorted(needs) and needs[0] < needs[2] / 5


def test_longer_rows_need_more_memory_than_a_past_job_had() -> None:
    def tables(**features: Any) -> int:
        return initial_view(starting(history=(yesterday(),), features=replace_features(**features))).need.tables

    usual, known = tables(), replace_features()
    assert tables(dims=8 * known.dims) > 5 * usual, "that is still like it"
    assert tables(dims=known.dims // 4) < usual / 2
    assert tables(optimizer="adam") > 1.3 * usual > 1.8 * tables(optimizer="sgd")
    assert tables(dims=0, tables=0) == usual, "a person's own model"


def test_new_jobs_take_part_in_rounds() -> None:
    views = tuple(
        msgspec.structs.replace(initial_view(starting(history=history)), job=name)
        for name, history in (("cold", ()), ("warm", (yesterday(),)))
    )
    found = decide(RoundInputs(at=START, capacity=Resources(6.0, 32 * GIB), jobs=views))
    assert [one.action for one in found.decisions] == ["start", "start"]
    assert sum(one.choice.cores for one in found.decisions if one.choice) <= 6.0


def test_stored_inputs_give_the_same_initial_plan() -> None:
    inputs = starting(history=(yesterday(),))
    again = msgspec.json.decode(msgspec.json.encode(inputs), type=StartInputs)
    assert initial_plan(again) == initial_plan(inputs)


def test_view_of_a_running_job_has_its_measured_throughput() -> None:
    job = Job(Candidate(1, 1, 1.0, 0.5), seed=1)
    profiles = list(job.windows(3))
    job.plan = Candidate(3, 2, 0.5, 0.5)
    profiles += job.windows(4)
    view = observed_view(base_view("job"), observe_job(profiles), free_cores={"a": 16.0}, total_samples=5e6)
    rate = np.mean([profile.samples_per_second for profile in profiles[3:]])
    assert view.now == job.plan == candidate_of(profiles[-1])
    assert view.measured is not None and view.measured.expected == pytest.approx(rate)
    assert view.measured.lower < rate < view.measured.upper
    assert view.last_change is not None and view.last_change.left == Candidate(1, 1, 1.0, 0.5)
    assert view.last_change.fresh_windows == 4
    assert view.remaining_samples == 5e6 - profiles[-1].samples_so_far
    predicted = load_model(view.model).predict(*job.plan.parts())[0][0]
    assert predicted == pytest.approx(rate, rel=0.15)
    assert view.need.worker == base_view("job").need.worker and view.need.tables_band is not None
    lower, expected, upper = view.need.tables_band
    assert lower <= expected <= upper <= view.need.tables * 1.01
    assert observed_view(base_view("job"), observe_job([]), free_cores={"a": 16.0}) == base_view("job")


def test_a_model_is_fitted_to_what_was_measured_last() -> None:
    """For 70 intervals it took twice as long for everything as in the 64 since."""
    job = Job(Candidate(2, 1, 1.0, 0.5), Costs(worker=0.06), seed=3)
    profiles = job.windows(70)
    job.costs = Costs(worker=0.03)
    newest = job.windows(64)
    now, before = (
        load_model(observed_view(base_view("job"), observe_job(seen), free_cores={"a": 16.0}).model)
        for seen in ([*profiles, *newest], profiles)
    )
    work = [model.fit.coefficients["worker_sample"] for model in (now, before)]
    assert work[0] < 0.7 * work[1]
    alone = load_model(observed_view(base_view("job"), observe_job(newest), free_cores={"a": 16.0}).model)
    assert now.fit.coefficients == pytest.approx(alone.fit.coefficients)


def test_brain_alone_scales_a_job_to_near_what_is_best() -> None:
    """Cold, with eight cores and two decisions."""
    capacity, small = (
        Resources(8.0, 64 * GIB),
        Bounds(max_workers=8, max_servers=3, worker_sizes=even_sizes(1.0, 4), ps_sizes=(0.5, 1.0)),
    )
    start = initial_plan(starting(bounds=small, capacity=capacity, features=replace_features(batch_size=1024)))
    assert start.choice is not None
    job, profiles = Job(start.choice, host_cores=8.0, progress=4), []
    base = msgspec.structs.replace(base_view("job"), bounds=small)
    for _ in range(3):
        profiles += job.windows(3)
        view = observed_view(base, observe_job(profiles), free_cores={"a": 8.0}, total_samples=1e8)
        (one,) = decide(RoundInputs(at=job.at, capacity=capacity, jobs=(view,))).decisions
        job.plan = one.choice or job.plan
    reached = job.window().samples_per_second
    best = max(
        Job(plan, host_cores=8.0).window().samples_per_second
        for plan in (Candidate(6, 2, 1.0, 1.0), Candidate(5, 3, 1.0, 1.0))
    )
    assert reached >= 0.85 * best


# --- memory of a cold start ---------------------------------------------------------------------------------------------


def memory_of(memory: int, cores: float = 96.0, **features: object) -> tuple[int, int]:
    """Bytes of each worker and PS, on a machine with so much memory."""
    found = initial_plan(starting(capacity=Resources(cores, memory), features=replace_features(**features)))
    assert found.plan is not None
    return found.plan.worker.each.memory, found.plan.ps.each.memory


def test_first_memory_follows_from_the_job_and_not_from_the_machine() -> None:
    worker, ps = memory_of(512 * GIB)
    assert 512 * MIB <= worker <= GIB, "its workers use 70 MiB"
    assert ps < 2 * GIB
    assert memory_of(64 * GIB) == (worker, ps)


def test_larger_batches_and_rows_need_more_memory_at_the_start() -> None:
    worker, ps = memory_of(512 * GIB)
    assert memory_of(512 * GIB, batch_size=65_536)[0] > worker + 1024 * 4 * 416 * 64
    assert memory_of(512 * GIB, rows=100_000)[1] < ps, "all its data would make no more rows"
    unknown = memory_of(512 * GIB, model="mine.py:Model", tables=0, dims=0)
    assert unknown[0] >= 2 * GIB and unknown[1] >= 2 * GIB, "nobody knows its dense parameters"


@pytest.mark.parametrize("memory", [GIB, 4 * GIB, 64 * GIB])
@pytest.mark.parametrize("features", [{}, {"tables": 0, "dims": 0}, {"batch_size": 1_000_000}])
def test_a_small_machine_keeps_half_of_its_memory_for_what_grows(memory: int, features: dict[str, int]) -> None:
    found = initial_plan(starting(capacity=Resources(2.0, memory), features=replace_features(**features)))
    assert found.plan is not None
    assert found.plan.ps.count * found.plan.ps.each.memory <= memory / 4 + 1
    assert found.plan.worker.count * found.plan.worker.each.memory <= memory / 4 + 1


def test_a_cold_job_may_begin_with_as_little_as_its_smallest_plan() -> None:
    """Alone it begins with a few cores; of two that come together neither takes all; where half a core is left it begins with that."""
    alone = starting(capacity=Resources(2.0, 8 * GIB))
    first = initial_plan(alone).choice
    assert first is not None and first.cores == 2.0
    one, other = (msgspec.structs.replace(initial_view(alone), job=name) for name in "ab")
    for cores, others, least in ((2.0, (other,), 1.5), (0.5, (), 0.5)):
        found = decide(RoundInputs(at=0.0, capacity=Resources(cores, 8 * GIB), jobs=(one, *others)))
        choices = [decision.choice for decision in found.decisions]
        assert all(choice is not None and choice.cores <= least for choice in choices), choices
