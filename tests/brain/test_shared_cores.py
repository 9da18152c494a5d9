"""Nodes that share the cores which they have together: what a profile tells of them, what is predicted of plans, which plan is the best."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlrover_lite.backends.sim.physics.machines import Machine
from dlrover_lite.backends.sim.physics.queues import Costs, Node, run
from dlrover_lite.backends.sim.physics.shared_cores import share_cores
from dlrover_lite.brain.explain.model_fit import model_shown
from dlrover_lite.brain.models.bottleneck import bottleneck
from dlrover_lite.brain.models.fitted_model import FittedModel, load_model, model_data
from dlrover_lite.brain.models.throughput import fit, predict
from dlrover_lite.brain.models.throughput_forms import BOTTLENECK, Engine, Setting
from dlrover_lite.brain.planning.allowed_changes import veto, withheld
from dlrover_lite.brain.planning.decision import decide
from dlrover_lite.brain.planning.job_view import JobView, LastChange, MeasuredPlan, Policy, RoundInputs
from dlrover_lite.brain.planning.pareto import Band, fastest, points_of
from dlrover_lite.brain.planning.plan_grid import Bounds, Candidate, MemoryNeed, even_sizes, lattice_of
from dlrover_lite.brain.planning.plan_values import options_of
from dlrover_lite.brain.planning.prescale import initial_view
from dlrover_lite.core.units import Resources
from dlrover_lite.protocol.profiles import HostUse, Profile, PsUse, WorkerUse, observe
from tests.brain.models import view
from tests.brain.scenarios import starting
from tests.brain.test_throughput import TRUE, true_fit

BATCH, HOST = 1024, "host-0"
COSTS = Costs(worker=0.02, ps=0.008, parallel=0.7, batch_size=BATCH)
BOUNDS = Bounds(max_workers=6, max_servers=3, worker_sizes=even_sizes(2.0), ps_sizes=even_sizes(1.0, 8))


def measured(plan: Candidate, *, seed: int = 0, cores: float = 8.0, costs: Costs = COSTS, **fields: Any) -> Profile:
    """Simulate an interval of ten seconds in which the plan's nodes share its cores."""
    nodes = [Node(plan.worker_cores)] * plan.workers, [Node(plan.ps_cores)] * plan.servers
    window = run(*share_cores(*nodes, [Machine(cores)]), costs, seed=seed, seconds=10.0)
    done, used = int(window.minibatches.sum()), window.cpu_seconds.tolist()
    of_workers, of_ps = used[: plan.workers], used[plan.workers :]
    return Profile(
        job="job",
        at=10.0 * (seed + 1),
        seconds=10.0,
        batch_size=costs.batch_size,
        samples=done * costs.batch_size,
        samples_so_far=done * costs.batch_size,
        workers=tuple(
            WorkerUse(f"worker-{at}", HOST, plan.worker_cores, int(window.minibatches[at]), cpu)
            for at, cpu in enumerate(of_workers)
        ),
        ps=tuple(PsUse(f"ps-{at}", HOST, plan.ps_cores, done, cpu) for at, cpu in enumerate(of_ps)),
        hosts=(HostUse(HOST, cores, 0.0),),
        **({"shared_cores": True} | fields),
    )


def rate(profile: Profile) -> float:
    return profile.samples_per_second


def model_of(profiles: list[Profile], *, cores: float = 8.0) -> FittedModel:
    observations = [one for profile in profiles if (one := observe(profile)) is not None]
    return load_model(model_data(fit(observations), batch_size=BATCH, free_cores={HOST: cores}, shared_cores=True))


def predicted(model: FittedModel, plan: Candidate) -> float:
    return float(np.ravel(model.predict(*plan.parts())[0])[0])


def test_an_interval_counts_the_cores_that_nodes_have_together_as_all_there_are() -> None:
    profile = measured(Candidate(2, 1, 0.5, 0.25))
    shared, own = observe(profile), observe(msgspec.structs.replace(profile, shared_cores=False))
    assert shared is not None and own is not None
    assert (shared.free_power, own.free_power) == (pytest.approx(1.25, rel=0.01), 8.0)
    assert (shared.worker_cores, shared.ps_cores) == (0.5, 0.25)


def test_what_others_on_the_host_leave_counts_where_that_is_less() -> None:
    full = msgspec.structs.replace(measured(Candidate(2, 1, 1.0, 0.5), cores=1.0), hosts=(HostUse(HOST, 8.0, 7.0),))
    seen = observe(full)
    assert seen is not None and seen.free_power == pytest.approx(1.0, rel=0.01)


def test_the_busiest_ps_is_the_one_with_the_most_work_whatever_its_cores_are() -> None:
    profile = measured(Candidate(1, 2, 0.5, 0.25))
    uneven = (
        msgspec.structs.replace(profile.ps[0], cores=0.125, cpu_seconds=2.0),
        msgspec.structs.replace(profile.ps[1], cores=1.0, cpu_seconds=3.0),
    )
    seen = observe(msgspec.structs.replace(profile, ps=uneven))
    assert seen is not None and seen.ps_share == pytest.approx(0.6)


PLANS = [
    Candidate(1, 1, 0.125, 0.125), Candidate(1, 1, 0.375, 0.125), Candidate(2, 1, 0.75, 0.5),
    Candidate(2, 1, 0.25, 0.25), Candidate(3, 1, 0.875, 0.5), Candidate(4, 2, 0.5, 0.25),
]  # fmt: skip


def test_plans_that_were_not_measured_are_predicted_from_those_that_were() -> None:
    others = [
        Candidate(1, 1, 0.25, 0.125),
        Candidate(2, 1, 0.5, 0.125),
        Candidate(3, 2, 0.75, 0.5),
        Candidate(4, 1, 0.75, 0.625),
    ]
    model = model_of([measured(plan, seed=at) for at, plan in enumerate(PLANS)])
    off = [abs(predicted(model, plan) / rate(measured(plan, seed=99)) - 1) for plan in others]
    assert max(off) < 0.12 and np.median(off) < 0.06


def test_the_larger_node_helps_the_smaller_one() -> None:
    """However many cores are divided, as much gets done: what was measured says so, and so does the model."""
    one, other = Candidate(1, 1, 0.125, 0.625), Candidate(1, 1, 0.625, 0.125)
    assert rate(measured(one)) == pytest.approx(rate(measured(other)), rel=0.05)
    model = model_of([measured(plan, seed=at) for at, plan in enumerate(PLANS)])
    assert predicted(model, one) == pytest.approx(predicted(model, other))
    own = load_model(model_data(model.fit, batch_size=BATCH, free_cores={HOST: 8.0}))
    assert predicted(own, one) < 0.5 * predicted(own, other)


@settings(max_examples=60, deadline=None)
@given(
    cores=st.floats(0.3, 12.0),
    coefficients=st.tuples(*[st.floats(1e-7, 1e-4), st.floats(0.0, 5e-3), st.floats(0.0, 1e-3)] * 2),
    exponent=st.sampled_from(BOTTLENECK.exponents),
    workers=st.integers(1, 6),
)
def test_the_search_finds_what_is_predicted_to_be_the_fastest(
    cores: float, coefficients: tuple[float, ...], exponent: float, workers: int
) -> None:
    names = BOTTLENECK.coefficients[:6]
    found = true_fit(dict(zip(names, coefficients, strict=True)), exponent)
    model = FittedModel(fit=found, batch_size=BATCH, free_cores=cores, shared_cores=True)
    separable = load_model(model_data(found, batch_size=BATCH, free_cores={HOST: cores}, shared_cores=True))
    lattice = lattice_of(msgspec.structs.replace(BOUNDS, max_workers=workers))
    fitting = lattice.fitting(MemoryNeed(), None)
    fronts = [
        points_of(model, lattice.parts(fastest(lattice, each, most_cores=cores, fitting=fitting)))
        for each in (separable, model)
    ]
    by_cost = [dict(zip(front.milli.tolist(), front.throughput.tolist(), strict=True)) for front in fronts]
    best = [max(of.values()) for of in by_cost]
    assert best[0] == pytest.approx(best[1], rel=1e-6)
    for milli, expected in by_cost[1].items():
        reached = max(rate for cost, rate in by_cost[0].items() if cost <= milli)
        assert reached == pytest.approx(expected, rel=1e-5)


def test_of_plans_as_fast_nodes_have_cores_as_they_use_them() -> None:
    model = model_of([measured(plan, seed=at) for at, plan in enumerate(PLANS)])
    lattice = lattice_of(msgspec.structs.replace(BOUNDS, max_workers=1, max_servers=1))
    flat = fastest(lattice, model, most_cores=8.0, fitting=lattice.fitting(MemoryNeed(), None))
    points = points_of(model, lattice.parts(flat))
    whole = next(points.candidate(at) for at in range(len(flat)) if points.milli[at] == 1000)
    used = [each.cpu_seconds for each in [*measured(whole).workers, *measured(whole).ps]]
    assert whole.ps_cores == pytest.approx(used[1] / sum(used), abs=0.125)  # sizes are eighths


def test_the_limit_has_a_name_of_its_own() -> None:
    profiles = [measured(plan, seed=at) for at, plan in enumerate(PLANS[::-1])]
    verdict = bottleneck(profiles)
    assert verdict is not None and verdict.limits[0].name == "cores"
    assert "host" not in {limit.name for limit in verdict.limits}
    shown = model_shown(model_of(profiles), PLANS[0], profiles)
    assert "cores that all share" in shown.formula and shown.limits[0].meaning == "cores that all nodes share"
    alone = bottleneck([msgspec.structs.replace(profile, shared_cores=False) for profile in profiles])
    assert alone is not None and "cores" not in {limit.name for limit in alone.limits}


def test_cores_that_are_lost_by_stopping_nodes_are_lost_of_what_they_share() -> None:
    fitted, stopped = (
        msgspec.structs.replace(true_fit(TRUE), engine=msgspec.structs.replace(Engine(), throttle_cores=cores))
        for cores in (0.0, 0.05)
    )
    setting = Setting.even(
        workers=4, ps=1, worker_cores=0.125, ps_cores=0.5, batch_size=BATCH, free_cores=8.0, shared_cores=True
    )
    ratio = predict(stopped, setting).samples_per_second / predict(fitted, setting).samples_per_second
    assert float(np.ravel(ratio)[0]) == pytest.approx(0.8, abs=0.05)  # 4 x 0.05 of 1


def test_a_job_that_shares_cores_begins_with_a_model_of_that_on_one_host_only() -> None:
    first = initial_view(starting(shared_cores=True))
    assert load_model(first.model).shared_cores
    assert not load_model(initial_view(starting()).model).shared_cores


@pytest.mark.parametrize("shared_cores", [True, False])
def test_more_cores_in_smaller_nodes_undo_no_change_to_more_cores(shared_cores: bool) -> None:
    now, more, fewer = Candidate(1, 1, 1.0, 0.125), Candidate(4, 1, 0.375, 0.5), Candidate(1, 1, 0.25, 0.25)
    fitted = model_of([measured(plan, seed=at) for at, plan in enumerate(PLANS)]).fit
    job = view(
        now=now,
        bounds=BOUNDS,
        model=model_data(fitted, batch_size=BATCH, free_cores={HOST: 8.0}, shared_cores=shared_cores),
        last_change=LastChange(left=Candidate(1, 1, 0.5, 0.125), fresh_windows=1),
        measured_before=tuple(MeasuredPlan(plan, Band(1e4, 9e3, 1.1e4)) for plan in (more, fewer)),
    )
    found = options_of(job, load_model(job.model), Resources(4.0, 1 << 40), Policy())
    assert found is not None
    withheld_ones = withheld(found, Policy().reversal_windows)
    assert withheld_ones[found.points.find(fewer)]
    assert withheld_ones[found.points.find(more)] == (not shared_cores)
    assert ("undo the last change" in veto(found, found.points.find(more), Policy())) == (not shared_cores)


def not_measured_yet(job: str = "a", *, shared_cores: bool = True, **fields: Any) -> JobView:
    fitted = model_of([measured(plan, seed=at) for at, plan in enumerate(PLANS)]).fit
    model = model_data(fitted, batch_size=BATCH, free_cores={HOST: 8.0}, shared_cores=shared_cores)
    fields = {"now": Candidate(2, 1, 0.25, 0.25), "unmeasured": True, "held": "not measured"} | fields
    return view(job, bounds=BOUNDS, model=model, scale_seconds=0.5, **fields)


def choices(cores: float, *jobs: JobView) -> dict[str, Candidate | None]:
    found = decide(RoundInputs(at=0.0, capacity=Resources(cores, 1 << 40), jobs=jobs))
    return {one.job: one.choice for one in found.decisions}


@pytest.mark.parametrize("shared_cores", [True, False])
def test_free_cores_go_at_once_to_a_job_whose_plan_is_not_measured_yet(shared_cores: bool) -> None:
    """To the nodes that it has; where each has a limit of its own, it is another plan, which waits for what is measured."""
    job = not_measured_yet(shared_cores=shared_cores)
    chosen = choices(2.0, job)["a"]
    assert chosen is not None and job.now is not None
    if not shared_cores:
        assert chosen == job.now
        return
    assert (chosen.workers, chosen.servers) == (2, 1)
    assert 1.5 <= chosen.cores <= 2.0


def test_a_job_that_is_not_measured_yet_takes_no_cores_from_others() -> None:
    other = msgspec.structs.replace(
        not_measured_yet("b", now=Candidate(1, 1, 1.0, 0.25), remaining_samples=1e9, priority=0.01),
        unmeasured=False,
        measured=Band(4e4, 3.9e4, 4.1e4),
    )
    first = not_measured_yet()
    assert choices(2.0, first, other) == {"a": first.now, "b": other.now}


def test_of_jobs_that_are_not_measured_yet_the_one_gets_free_cores_that_gains_most() -> None:
    """Which is the one with less left; what it can't have goes to the other."""
    jobs = [not_measured_yet("long", remaining_samples=1e8), not_measured_yet("short", remaining_samples=1e6)]
    for each in (jobs, jobs[::-1]):
        chosen = choices(2.0, *each)
        assert chosen["short"].cores >= 1.0 and chosen["long"] == jobs[0].now
        assert sum(one.cores for one in chosen.values()) <= 2.0


def test_a_job_about_to_end_is_not_changed_for_free_cores() -> None:
    job = not_measured_yet(remaining_samples=1e3)
    assert choices(8.0, job)["a"] == job.now
