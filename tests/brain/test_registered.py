"""A job as the brain keeps it: the plans it may have, what was measured of it, and whether it may be changed."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlrover_lite.brain import job_tracker
from dlrover_lite.brain.capacity import Capacity
from dlrover_lite.brain.healing.host_capacity import HostCapacity
from dlrover_lite.brain.job_tracker import (
    Numbered,
    RegisteredJob,
    bounds_of,
    candidate,
)
from dlrover_lite.brain.models.memory_model import worker_limit
from dlrover_lite.brain.node_health import heal_inputs
from dlrover_lite.brain.planning.decision import Decision
from dlrover_lite.brain.planning.job_view import Exploration
from dlrover_lite.brain.planning.plan_grid import Candidate, Lattice
from dlrover_lite.brain.policies import TrackingPolicy
from dlrover_lite.core.units import GIB, MIB, Resources
from dlrover_lite.protocol.demands import Demand, Standing, StandingNode
from dlrover_lite.protocol.hosts import Host
from dlrover_lite.protocol.plans import Plan
from tests.brain.advised import FEATURES, MACHINE, demand, done, nodes_of, plan_of, role
from tests.brain.simulated import START, Job, hosts

USUAL = TrackingPolicy()
PLAN, PLAN2 = Candidate(2, 1, 1.0, 0.5), Candidate(2, 2, 1.0, 0.5)


def on_a(resources: Resources) -> Capacity:
    """So much, on the host that all nodes are on."""
    return Capacity(resources, hosts(a=resources))


def registered(**fields: Any) -> RegisteredJob:
    known = RegisteredJob(**{"job": "ads-1", "features": FEATURES, "demand": demand(), "began": START, **fields})
    known.begin(on_a(MACHINE), START)
    return known


def standing(job: Job, **fields: Any) -> Standing:
    return Standing(**{"plan": plan_of(job), "nodes": nodes_of(job), **fields})


def running(windows: int = 2, **fields: Any) -> tuple[RegisteredJob, Job]:
    job = Job(PLAN, name="ads-1")
    known = registered(plan=plan_of(job), standing=standing(job), **fields)
    for profile in job.windows(windows):
        known.add(profile)
    return known, job


# --- the plans it may have ------------------------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(
    st.floats(0.2, 128.0),
    st.one_of(st.none(), st.floats(0.2, 128.0)),
    st.one_of(st.none(), st.integers(1, 40)),
    st.one_of(st.none(), st.integers(1, 8)),
)
def test_bounds_hold_plans_and_what_the_recipe_fixes(
    cores: float, total: float | None, workers: int | None, servers: int | None
) -> None:
    asked = Demand(
        hosts=hosts(a=Resources(cores, 16 * GIB)),
        total=None if total is None else Resources(total, GIB),
        worker=None if workers is None else role(workers, 0.75),
        ps=None if servers is None else role(servers, 1.25),
    )
    bounds = bounds_of(asked)
    assert bounds.problem() == ""
    assert len(Lattice(bounds)) >= 1
    if workers is not None:
        assert (bounds.min_workers, bounds.max_workers, bounds.worker_sizes) == (workers, workers, (0.75,))
    else:
        assert max(bounds.worker_sizes) < min(cores, total or cores)
    if servers is not None:
        assert (bounds.min_servers, bounds.max_servers, bounds.ps_sizes) == (servers, servers, (1.25,))


def test_plan_is_turned_into_a_candidate() -> None:
    assert candidate(Plan(ps=role(2, 0.5), worker=role(3, 1.0004))) == Candidate(3, 2, 1.0, 0.5)


# --- what was measured ----------------------------------------------------------------------------------------------------------


def test_only_newer_intervals_are_added() -> None:
    known, job = running(1)
    (first,) = known.profiles
    known.new_profile = False
    known.add(first)
    known.add(msgspec.structs.replace(first, at=first.at - 1))
    assert known.profiles == [first] and not known.new_profile
    known.add(job.window())
    assert len(known.profiles) == 2 and known.new_profile


def test_newest_and_some_older_of_very_many_intervals_are_kept() -> None:
    known, _ = running(1)
    (first,) = known.profiles
    known.profiles.clear()
    most = USUAL.most_profiles
    total = 3 * most
    for number in range(total):
        known.add(msgspec.structs.replace(first, at=START + number))
    times = [profile.at - START for profile in known.profiles]
    assert len(times) <= most and times == sorted(times)
    assert times[-most // 2 :] == list(range(total - most // 2, total))
    assert times[0] == 0


def test_last_interval_counts_as_present_only_if_of_the_present_plan() -> None:
    known, job = running()
    assert known.present
    known.plan = Plan(ps=role(1, 0.5), worker=role(3))
    assert not known.present
    job.plan = Candidate(3, 1, 1.0, 0.5)
    known.add(job.window())
    assert known.present


def test_cores_used_are_those_of_the_last_interval() -> None:
    known, _ = running(0)
    assert known.cores_used("a") == 0.0
    known, _ = running()
    assert 0 < known.cores_used("a") <= PLAN.cores
    assert known.cores_used("b") == 0.0


# --- as the next decision takes it ----------------------------------------------------------------------------------------------


def test_a_job_without_a_plan_waits() -> None:
    view = registered().view(free_cores={"a": 8.0}, at=START + 30)
    assert (view.now, view.measured, view.waited_seconds) == (None, None, 30.0)
    assert view.need.worker > 0 and view.need.ps > 0


def test_view_of_a_job_before_and_after_its_plan_is_measured() -> None:
    known, _ = running()
    view = known.view(free_cores={"a": 8.0}, at=START + 100)
    assert view.now == PLAN and view.measured is not None and not view.fixed
    assert (view.ran_seconds, view.scale_seconds, view.doubt) == (100.0, USUAL.scale_seconds, 1.0)
    known.plan = Plan(ps=role(1, 0.5), worker=role(3))
    view = known.view(free_cores={"a": 8.0}, at=START + 100)
    assert view.now == Candidate(3, 1, 1.0, 0.5) and view.measured is None
    assert view.unmeasured and not view.fixed and "hasn't been measured" in view.held
    assert view.last_change is not None and (view.last_change.left, view.last_change.fresh_windows) == (PLAN, 0)


@pytest.mark.parametrize("depth", [1, 2])
def test_predictions_use_the_jobs_pipeline_depth(depth: int) -> None:
    known, _ = running(features=msgspec.structs.replace(FEATURES, pipeline_depth=depth))
    assert known.first_view is not None
    for view in (known.first_view, known.view(free_cores={"a": 4.0}, at=START + 100)):
        assert view.model is not None
        assert view.model.parameters["fit"]["engine"]["depth"] == depth


def test_a_worker_gets_room_above_the_most_that_any_has_used() -> None:
    known, job = running()
    small = known.view(free_cores={"a": 8.0}, at=START)
    known.stands(standing(job, worker_peak=2 * GIB))
    large = known.view(free_cores={"a": 8.0}, at=START)
    assert large.need.worker > 2 * GIB > small.need.worker


def test_no_less_worker_memory_before_the_first_evaluation() -> None:
    """It may take more than training."""
    known, job = running()

    def worker(**stands: Any) -> int:
        known.stands(standing(job, worker_peak=200 * MIB, **stands))
        return known.view(free_cores={"a": 8.0}, at=START).need.worker

    assert worker(evaluated=False) == GIB  # as all have it
    assert worker(evaluated=False, nodes=()) == GIB  # none is up: as the plan has it
    more = tuple(msgspec.structs.replace(node, resources=Resources(1.0, 3 * GIB)) for node in nodes_of(job))
    assert worker(evaluated=False, nodes=more) == 3 * GIB  # one that was given more
    known.gave_way(START)
    assert known.view(free_cores={"a": 8.0}, at=START).need.worker == 3 * GIB  # it goes on as it was
    assert worker(evaluated=True) == worker_limit(200 * MIB)
    assert worker(evaluated=False) == worker_limit(200 * MIB)  # another master hasn't seen one


def test_what_workers_use_is_steady_once_it_has_not_risen_for_minutes() -> None:
    known, job = running()
    known.evaluated = True

    def after(seconds: float, peak: int) -> int:
        known.add(msgspec.structs.replace(job.window(), seconds=seconds))
        known.stands(standing(job, worker_peak=peak))
        return known.view(free_cores={"a": 8.0}, at=START).need.worker

    enough = known.policies.tracking.steady_worker_seconds / job.plan.workers
    assert after(enough, 200 * MIB) == worker_limit(200 * MIB), "the peak was told only now"
    assert after(0.9 * enough, 203 * MIB) == worker_limit(203 * MIB)
    assert after(0.2 * enough, 203 * MIB) == worker_limit(203 * MIB, steady=True), "an allocator creeps"
    assert after(1.0, 240 * MIB) == worker_limit(240 * MIB), "it has risen again"


def test_a_role_fixed_by_the_recipe_has_the_recipes_memory() -> None:
    waits = registered(demand=demand(ps=role(2, 0.5, 3 * GIB), worker=role(2, 1.0, 100 * MIB)))
    assert waits.first_view is not None
    need = waits.first_view.need
    assert need.plan(PLAN2).ps.each.memory == 3 * GIB and need.plan(PLAN2).worker.each.memory == 100 * MIB
    assert need.of(PLAN2) == 6 * GIB + 200 * MIB
    known, job = running(demand=demand(ps=role(1, 0.5, 3 * GIB), worker=role(2, 1.0, 100 * MIB)))
    known.stands(standing(job, worker_peak=200 * MIB))
    need = known.view(free_cores={"a": 8.0}, at=START).need
    assert need.per_ps(1) == 3 * GIB, "as much as the recipe says at the least"
    assert need.worker == worker_limit(200 * MIB), "while it runs, as much as it has come to need"


@pytest.mark.parametrize(
    ("asked", "stands", "may"),
    [
        ("on", {}, True),
        ("suggest", {}, True),
        ("off", {}, False),
        ("on", {"paused": "by hand"}, False),
        ("on", {"busy": True}, False),
    ],
)
def test_a_job_may_be_changed_unless_off_paused_or_busy(asked: Any, stands: dict[str, Any], may: bool) -> None:
    known, job = running(demand=demand(autoscale=asked))
    known.standing = standing(job, **stands)
    assert known.may_change == may
    assert known.view(free_cores={"a": 8.0}, at=START).fixed != may
    known.waits = Numbered(1, Decision(job="ads-1", at=START, action="change", reason="told, and not heard"))
    assert not known.may_change


def test_expected_cost_of_a_change_is_that_of_the_last_ones() -> None:
    known = registered()
    assert known.scale_seconds == USUAL.scale_seconds
    known.scale_costs = [100.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    assert known.scale_seconds == 3.0


# --- as its health is looked at -------------------------------------------------------------------------------------------------


def test_health_is_looked_at_when_the_nodes_that_run_were_measured() -> None:
    known, job = running()
    inputs = heal_inputs(known, on_a(Resources(1.0, GIB)), at=START + 10)
    assert inputs is not None
    assert {node.node for node in inputs.nodes} == {"worker-0", "worker-1", "ps-0"}
    assert inputs.free == {"a": Resources(1.0, GIB)}
    assert inputs.evaluated and inputs.worker_peak == known.worker_peak
    known.standing = standing(job, evaluated=False, worker_peak=7 * GIB)
    known.stands(known.standing)
    waits = heal_inputs(known, on_a(Resources(1.0, GIB)), at=START + 10)
    assert waits is not None and not waits.evaluated and waits.worker_peak == 7 * GIB
    new = StandingNode("worker-2", "worker", "a", Resources(1.0, GIB))
    known.standing = standing(job, nodes=(*nodes_of(job), new))
    memory_alone = heal_inputs(known, on_a(Resources(1.0, GIB)), at=START)
    assert memory_alone is not None and memory_alone.profiles == () and memory_alone.levels
    known.standing = None
    assert heal_inputs(known, on_a(Resources(1.0, GIB)), at=START) is None


def test_hosts_that_only_nodes_tell_of_share_what_is_left() -> None:
    known, job = running()
    ps, *workers = sorted(nodes_of(job), key=lambda node: node.role)
    apart = tuple(msgspec.structs.replace(node, host=f"host-{number}") for number, node in enumerate([ps, *workers]))
    known.stands(standing(job, nodes=apart))
    left = Resources(1.0, GIB)
    inputs = heal_inputs(known, Capacity(left, (Host("", left),)), at=START + 10)
    assert inputs is not None and inputs.shared
    assert inputs.free == {"host-0": left, "host-1": left, "host-2": left}
    room = HostCapacity(inputs.free, shared=inputs.shared)
    room.take("host-0", Resources(0.5, GIB))
    assert room.left("host-2") == Resources(0.5, 0) and room.best(Resources(0.5, 1)) == ""


def test_time_of_relief_by_moving_rows_follows_the_measured_rate() -> None:
    known, job = running()
    held = sum(use.row_bytes for use in known.levels[-1].ps)

    def seconds(**fields: Any) -> float:
        known.standing = standing(job, **fields)
        inputs = heal_inputs(known, on_a(Resources(1.0, 0)), at=START + 10)  # nothing is left for a relief in place
        assert inputs is not None
        return inputs.seconds_to_act

    assert held > 0
    share = held / 2  # with one PS more
    assert seconds() == pytest.approx(15 + share / (128 << 20))
    assert seconds(move_rate=share / 100) == pytest.approx(115)
    assert seconds(move_rate=share) == pytest.approx(16)
    assert seconds(move_rate=share, launch_seconds=5.0) == pytest.approx(16)
    assert seconds(move_rate=share, launch_seconds=90.0) == pytest.approx(91), "as where images are pulled first"
    in_place = heal_inputs(known, on_a(Resources(1.0, GIB)), at=START + 10)
    assert in_place is not None and in_place.seconds_to_act == known.seconds_to_resize


def test_what_nodes_take_to_come_up_is_reckoned_with_until_changes_were_measured() -> None:
    known, job = running()
    known.standing = standing(job)
    assert (known.seconds_to_replace, known.change_seconds) == (USUAL.replace_seconds, USUAL.change_seconds)
    known.standing = standing(job, launch_seconds=90.0)
    assert (known.seconds_to_replace, known.change_seconds) == (90.0, 90.0)


def test_a_node_gets_no_more_than_the_recipe_leaves() -> None:
    known, _ = running(demand=demand(total=Resources(2.75, 4 * GIB)))
    inputs = heal_inputs(known, on_a(Resources(6.0, 12 * GIB)), at=START)
    assert inputs is not None and inputs.free == {"a": Resources(0.25, GIB)}


def test_profiles_are_fitted_once_for_each_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds decide from what is kept: what a job's profiles tell is found when there is another one, not for each decision."""
    calls = []
    real = job_tracker.observe_job
    monkeypatch.setattr(job_tracker, "observe_job", lambda *args, **fields: calls.append(1) or real(*args, **fields))
    known, job = running()
    views = [known.view(free_cores={"a": 8.0}, at=job.at) for _ in range(3)]
    assert len(calls) == 1 and views[0] == views[1] == views[2]
    less = known.view(free_cores={"a": 1.0}, at=job.at)
    assert len(calls) == 1 and less.model != views[0].model, "what is free may be another each time"
    known.add(job.window())
    assert known.view(free_cores={"a": 8.0}, at=job.at).measured != views[0].measured
    assert len(calls) == 2


# --- changes and tries ------------------------------------------------------------------------------------------------------------


def decided(number: int, action: Any, choice: Candidate, **fields: Any) -> Numbered:
    one = Decision(job="ads-1", at=START, action=action, choice=choice, reason="", **fields)
    return Numbered(number, one, done=done("ads-1", number, START + 4, seconds=6.0))


def test_the_present_plan_is_a_try_if_the_last_decision_says_so() -> None:
    known, job = running(windows=3)
    tried = Exploration(
        back=PLAN2, seconds=30.0, saves_seconds=9.0, chance=0.4, costs_seconds=3.0, costs_at_most_seconds=8.0
    )
    known.decided = [decided(1, "explore", PLAN, exploration=tried), decided(2, "heal", PLAN)]
    view = known.view(free_cores={"a": 8.0}, at=START + 100)
    assert (view.exploration, view.tried_seconds) == (tried, 15.0)
    known.decided.append(decided(3, "change", PLAN))
    assert known.view(free_cores={"a": 8.0}, at=START + 100).exploration is None
    known.decided[2:] = []
    job.plan = PLAN2  # by hand
    known.plan = plan_of(job)
    assert known.view(free_cores={"a": 8.0}, at=START + 100).exploration is None


def test_time_of_a_change_is_that_of_the_last_ones() -> None:
    known, _ = running()
    assert known.view(free_cores={"a": 8.0}, at=START + 100).change_seconds == USUAL.change_seconds
    known.decided = [decided(1, "start", PLAN), decided(2, "change", PLAN), decided(3, "heal", PLAN)]
    assert known.change_seconds == 6.0
