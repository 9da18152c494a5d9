"""The paper's policy: its search, its warm start, its greedy, and that it is chosen, named and replayed as any other."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from dlrover_lite.brain.advisor import Advisor
from dlrover_lite.brain.models.fitted_model import load_model
from dlrover_lite.brain.models.throughput_forms import ADDITIVE
from dlrover_lite.brain.planning.decision import Decision, decide, replay
from dlrover_lite.brain.planning.job_view import JobView, Policy, RoundInputs
from dlrover_lite.brain.planning.paper.nsga2 import nsga2_front
from dlrover_lite.brain.planning.paper.plan_weights import weighed_options
from dlrover_lite.brain.planning.paper.warm_start import nearest_plan, smoothed
from dlrover_lite.brain.planning.pareto import fastest
from dlrover_lite.brain.planning.plan_grid import Bounds, Candidate, Lattice, MemoryNeed, even_sizes
from dlrover_lite.brain.planning.prescale import initial_plan
from dlrover_lite.brain.policies import Policies
from dlrover_lite.brain.store import preferences, queries
from dlrover_lite.brain.store.records import JobEntry
from dlrover_lite.core.units import GIB, MIB, Resources
from dlrover_lite.protocol.outcomes import JobOutcome
from tests.brain.advised import FEATURES as FEATURES_THERE
from tests.brain.advised import Office
from tests.brain.models import Sides, load, view
from tests.brain.queueing import Costs
from tests.brain.scenarios import FEATURES, past, starting
from tests.brain.simulated import hosts

PAPER = Policy(name="paper")
WIDE = Bounds(max_workers=40, max_servers=12, worker_sizes=even_sizes(2.0, 8), ps_sizes=even_sizes(1.0, 4))


def a_round(cores: float, *views: JobView, memory: int = 64 * GIB, **fields: object) -> RoundInputs:
    return RoundInputs(at=0.0, capacity=Resources(cores, memory), jobs=views, policy=PAPER, **fields)  # type: ignore[arg-type]


def by_name(inputs: RoundInputs) -> dict[str, Decision]:
    return {one.job: one for one in decide(inputs, load).decisions}


# --- the search -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_what_is_found_may_be_had_and_is_near_the_exact_front(seed: int) -> None:
    lattice, model = Lattice(WIDE), Sides(worker=0.02 * (1 + seed), server=0.01)
    fitting = lattice.fitting(MemoryNeed(worker=GIB, ps=GIB), 30 * GIB)
    found = nsga2_front(lattice, model, most_cores=16.0, fitting=fitting, seed=seed)
    exact = fastest(lattice, model, most_cores=16.0, fitting=fitting)

    def costs_and_rates(flat: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        w, p, worker_cores, ps_cores = lattice.parts(flat)
        assert (w + p <= 30).all()
        return w * worker_cores + p * ps_cores, model.predict(w, p, worker_cores, ps_cores)[0]

    cores, rates = costs_and_rates(found)
    exact_cores, exact_rates = costs_and_rates(exact)
    assert cores.max() <= 16.0
    best = exact_rates[np.searchsorted(exact_cores, cores + 1e-9) - 1]
    assert (rates <= best * (1 + 1e-9)).all(), "nothing beats the exact front"
    assert np.median(rates / best) > 0.98
    assert rates.max() > 0.98 * exact_rates.max()
    again = nsga2_front(lattice, model, most_cores=16.0, fitting=fitting, seed=seed)
    assert (found == again).all()


def test_a_small_lattice_is_looked_at_whole() -> None:
    lattice = Lattice(Bounds(max_workers=5, max_servers=2, worker_sizes=(0.5, 1.0), ps_sizes=(0.5, 1.0)))
    fitting = lattice.fitting(MemoryNeed(), None)
    wanted = fastest(lattice, Sides(), most_cores=4.0, fitting=fitting)
    assert set(wanted) <= set(nsga2_front(lattice, Sides(), most_cores=4.0, fitting=fitting))
    assert not len(nsga2_front(lattice, Sides(), most_cores=0.75, fitting=fitting))


# --- the warm start -------------------------------------------------------------------------------------------------


def test_the_most_similar_plan_counts_most() -> None:
    near, far = Candidate(8, 2, 1.0, 1.0), Candidate(2, 1, 1.0, 1.0)
    assert smoothed([near]).tolist() == [8, 2, 1, 1]
    assert smoothed([near, far, far]).tolist() == [5, 1.5, 1, 1]
    assert smoothed([far, near, near]).tolist() == [5, 1.5, 1, 1]
    assert smoothed([near, near, far])[0] > smoothed([near, far, far])[0]


def test_it_starts_with_the_plan_nearest_to_the_smoothed_one_that_fits() -> None:
    lattice = Lattice(WIDE)

    def nearest(cores: float, memory: int | None = None) -> Candidate:
        fitting = lattice.fitting(MemoryNeed(worker=GIB), memory)
        similar = [Candidate(9, 2, 1.1, 0.9), Candidate(7, 2, 0.9, 1.0)]
        (flat,) = nearest_plan(lattice, Sides(), similar=similar, most_cores=cores, fitting=fitting)
        return lattice.candidate(int(flat))

    assert nearest(64.0) == Candidate(8, 2, 1.0, 1.0)
    assert nearest(64.0, memory=5 * GIB).workers == 5
    small = nearest(4.0)
    assert small.cores <= 4.0 and small.workers > 2, "all of its numbers are lowered, none to the least"


def test_a_first_plan_is_that_of_similar_jobs_and_says_so() -> None:
    history = [
        msgspec.structs.replace(past(f"ads-{at}", Costs(), FEATURES, at), plan=Candidate(workers, 1, 0.5, 1.0))
        for at, workers in ((1, 3), (2, 5))
    ]
    found = initial_plan(starting(history=tuple(history), policy=PAPER))
    assert found.choice == Candidate(4, 1, 0.5, 1.0)
    assert (
        "by the smoothed plans of 2 past jobs like it: by the paper's policy: it starts with 4 worker" in found.reason
    )
    assert initial_plan(starting(history=tuple(history))).choice != found.choice
    unknown = tuple(msgspec.structs.replace(one, plan=None) for one in history)
    assert "by the costs of 2 past jobs" in initial_plan(starting(history=unknown, policy=PAPER)).reason


def test_who_starts_warm_may_begin_with_less_where_others_have_the_rest() -> None:
    waits = view("new", bounds=WIDE, similar=(Candidate(8, 2, 1.0, 1.0),))
    alone = by_name(a_round(16.0, waits))["new"]
    assert alone.choice == Candidate(8, 2, 1.0, 1.0)
    other = view("old", now=Candidate(8, 4, 1.0, 1.0), fixed=True)
    beside = by_name(a_round(16.0, waits, other))["new"]
    assert beside.action == "start" and beside.choice is not None and beside.choice.cores <= 4.0


# --- the greedy -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(12))
def test_nobody_gets_more_than_there_is_in_whatever_order_jobs_are(seed: int) -> None:
    rng = np.random.default_rng(seed)
    cores = float(rng.uniform(3.0, 40.0))
    kinds = [
        (
            float(10 ** rng.uniform(5, 8)),
            float(rng.uniform(0.005, 0.05)),
            bool(rng.random() < 0.5),
            bool(rng.random() < 0.3),
            float(rng.choice([0.5, 1.0, 4.0])),
        )
        for _ in range(rng.integers(1, 6))
    ]
    views = [
        view(
            f"job-{at}",
            bounds=WIDE,
            model=msgspec.structs.replace(view().model, parameters={"worker": worker}),
            remaining_samples=left,
            now=Candidate(1, 1, 0.25, 0.25) if runs else None,
            fixed=runs and fixed,
            priority=priority,
            scale_seconds=2.0,
            need=MemoryNeed(worker=200 * MIB, ps=100 * MIB),
        )
        for at, (left, worker, runs, fixed, priority) in enumerate(kinds)
    ]
    found = decide(a_round(cores, *views, memory=8 * GIB), load)
    given = [one for one in found.decisions if one.choice is not None]
    assert sum(one.choice.cores for one in given) <= cores + 1e-9
    assert sum(200 * MIB * one.choice.workers + 100 * MIB * one.choice.servers for one in given) <= 8 * GIB
    for one, each in zip(found.decisions, views, strict=True):
        if each.fixed:
            assert (one.action, one.choice) == ("stay", each.now)
    backwards = decide(a_round(cores, *views[::-1], memory=8 * GIB), load)
    assert [msgspec.json.encode(one) for one in backwards.decisions[::-1]] == [
        msgspec.json.encode(one) for one in found.decisions
    ]


def test_a_job_that_is_alone_gets_what_its_model_says_is_the_fastest() -> None:
    now = Candidate(1, 1, 0.25, 0.25)
    found = by_name(a_round(8.0, view("ads", now=now, scale_seconds=2.0, bounds=WIDE)))["ads"]
    assert found.action == "change" and found.choice is not None and found.predicted is not None
    lattice = Lattice(WIDE)
    parts = lattice.parts(fastest(lattice, Sides(), most_cores=8.0, fitting=lattice.fitting(MemoryNeed(), None)))
    assert found.predicted.throughput.expected > 0.97 * Sides().predict(*parts)[0].max()
    assert found.exploration is None


def test_what_a_change_costs_is_charged() -> None:
    """With 50 s to go, 100 s for a change are never worth it."""
    now = Candidate(2, 1, 0.5, 0.5)
    rate = float(Sides().predict(*now.parts())[0][0])
    for seconds, action in ((100.0, "stay"), (1.0, "change")):
        known = view("ads", now=now, remaining_samples=50 * rate, scale_seconds=seconds, bounds=WIDE)
        assert by_name(a_round(8.0, known))["ads"].action == action


@pytest.mark.parametrize(("rho", "gets_more"), [(0.0, "even"), (1.5, "short")])
def test_rho_favours_jobs_near_their_end(rho: float, gets_more: str) -> None:
    now = Candidate(1, 1, 0.25, 0.25)
    jobs = (
        view("long", now=now, remaining_samples=1e9, bounds=WIDE),
        view("short", now=now, remaining_samples=1e7, bounds=WIDE),
    )
    inputs = msgspec.structs.replace(a_round(6.0, *jobs), policy=Policy(name="paper", rho=rho))
    found = {job: one.choice.cores for job, one in by_name(inputs).items() if one.choice is not None}
    if gets_more == "even":
        assert found["short"] == pytest.approx(found["long"], abs=0.5)
    else:
        assert found["short"] > 2 * found["long"]


def test_a_plan_that_was_refused_is_not_wanted_again() -> None:
    now = Candidate(1, 1, 0.25, 0.25)
    first = by_name(a_round(4.0, view("ads", now=now, bounds=WIDE)))["ads"].choice
    assert first is not None
    again = by_name(a_round(4.0, view("ads", now=now, bounds=WIDE, declined=(first,))))["ads"]
    assert again.choice != first


def test_hosts_that_have_no_place_for_a_plan_bound_it() -> None:
    pieces = hosts(a=Resources(2.0, 32 * GIB), b=Resources(2.0, 32 * GIB))
    bounds = Bounds(max_workers=4, max_servers=2, worker_sizes=(1.5,), ps_sizes=(0.25,))
    found = by_name(a_round(4.0, view("ads", bounds=bounds), hosts=pieces))["ads"]
    assert found.choice is not None and found.choice.workers <= 2
    assert {one.host for one in found.placement} <= {"a", "b"} and found.placement


# --- chosen, named, replayed ----------------------------------------------------------------------------------------


def test_a_stored_round_is_decided_again_by_the_policy_that_it_names() -> None:
    now = Candidate(2, 1, 0.5, 0.5)
    inputs = a_round(6.0, view("ads", now=now, bounds=WIDE), view("new", bounds=WIDE))
    stored = msgspec.json.decode(msgspec.json.encode(inputs), type=RoundInputs)
    for one in decide(inputs, load).decisions:
        assert one.reason.startswith("by the paper's policy: ")
        assert replay(one, stored, load).same
    ours = msgspec.structs.replace(stored, policy=Policy())
    assert not any("paper" in one.reason for one in decide(ours, load).decisions)


def test_the_same_profiles_give_the_additive_model_where_the_paper_decides(tmp_path: Path) -> None:
    office = Office(tmp_path)
    preferences.change(office.store, preferences.parse_changes(["policy=paper"]))
    office.arrives()
    office.turn()
    office.begins(host_cores=8.0)
    office.trains(windows=2)
    office.turn()
    changed = office.decisions()[-1]
    assert changed.action == "change" and changed.reason.startswith("by the paper's policy: ")
    stored = queries.decisions(office.store, "ads-1")[-1]
    inputs = queries.inputs_of(office.store, stored)
    assert isinstance(inputs, RoundInputs) and inputs.policy.name == "paper"
    known = inputs.jobs[0]
    assert known.additive is not None
    fitted = load_model(known.additive).fit
    assert (fitted.form, fitted.observations) == (ADDITIVE.name, load_model(known.model).fit.observations)
    assert replay(stored.decision, inputs).same


def test_the_policy_may_change_while_a_job_runs(tmp_path: Path) -> None:
    office = Office(tmp_path)
    office.arrives()
    office.turn()
    office.begins(host_cores=8.0)
    office.trains(windows=2)
    assert office.adviser.inputs(office.now).jobs[0].additive is None
    preferences.change(office.store, {"policy": "paper"})
    inputs = office.adviser.inputs(office.now)
    assert inputs.policy.name == "paper" and inputs.jobs[0].additive is not None
    preferences.change(office.store, {"policy": "lite"})
    again = office.adviser.inputs(office.now)
    assert again.policy == Policy() and all("paper" not in one.reason for one in decide(again).decisions)
    given = Advisor(office.store, policies=Policies(planning=PAPER))
    assert given.inputs(office.now).policy == PAPER, "what is given counts, whatever the person prefers"


def test_a_job_leaves_its_last_plan_to_those_after_it(tmp_path: Path) -> None:
    office = Office(tmp_path)
    preferences.change(office.store, {"policy": "paper"})
    office.arrives("ads-1")
    office.turn()
    office.begins("ads-1", plan=Candidate(3, 2, 0.5, 0.75), host_cores=8.0)
    office.trains("ads-1", windows=3)
    known = JobEntry(
        id="ads-1", name="ads", state="running", created_at=office.now, features=msgspec.to_builtins(FEATURES_THERE)
    )
    office.store.put_job(known)
    office.store.end_job("ads-1", "succeeded", at=office.now, samples=1, message="", outcome=JobOutcome())
    office.adviser.ended("ads-1", JobOutcome(), office.now)
    office.arrives("ads-2")
    office.turn()
    found = office.decisions("ads-2")[-1]
    assert found.choice == Candidate(3, 2, 0.5, 0.75)
    assert found.reason.startswith("warm start, by the smoothed plans of 1 past job like it: by the paper's policy: ")


def test_a_job_that_fits_nowhere_is_refused_by_either_policy() -> None:
    known = view("ads", need=MemoryNeed(worker=100 * GIB))
    assert weighed_options(known, Sides(), Resources(4.0, 8 * GIB), PAPER) is None
    assert by_name(a_round(4.0, known, memory=8 * GIB))["ads"].action == "refuse"
