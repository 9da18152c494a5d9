"""Fluid jobs whose plans change: what it costs, what memory is used meanwhile, and that machines hold what they have whatever happens."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlrover_lite.backends.sim.fluid.changes import MECHANISMS, ChangeCosts
from dlrover_lite.backends.sim.fluid.job import FluidJob, JobRequest
from dlrover_lite.backends.sim.fluid.world import FluidWorld
from dlrover_lite.backends.sim.physics.machines import STEADY, Disturbances, Machine
from dlrover_lite.backends.sim.physics.memory import MemoryCosts, Table
from dlrover_lite.backends.sim.physics.queues import Costs
from dlrover_lite.backends.sim.physics.rates import Rates
from dlrover_lite.backends.sim.physics.startup import Startup
from dlrover_lite.backends.sim.pools import Pool
from dlrover_lite.core.units import GIB, MIB, Resources
from dlrover_lite.protocol.plans import Plan, RolePlan

RATES = Rates()
STARTUP = Startup(pending_seconds=1.0, starting_seconds=6.0, joining_seconds=1.0, variation=0.0)
START_SECONDS = 8.0
MEMORY = MemoryCosts((Table(1e6, count=26),))
WORKER, SERVER = Resources(1.0, GIB), Resources(1.0, 8 * GIB)
JOB = JobRequest("ads", 0.0, 1e9, Costs(), MEMORY, workers=2, worker=WORKER, servers=1, server=SERVER)
RESTARTS = ChangeCosts(restarts=True, stop_seconds=20.0)


def plan(workers: int, servers: int, worker: Resources = WORKER, server: Resources = SERVER) -> Plan:
    return Plan(ps=RolePlan(servers, server), worker=RolePlan(workers, worker))


def begun(
    costs: ChangeCosts = MECHANISMS, machines: list[Machine] | None = None, job: JobRequest = JOB
) -> tuple[FluidWorld, FluidJob]:
    """A world with a job that has trained for 100 seconds."""
    world = FluidWorld(machines or [Machine(16.0)], [job], startup=STARTUP, rates=RATES, costs=costs)
    world.run_until(START_SECONDS + 100.0)
    assert world.jobs[0].state == "training"
    return world, world.jobs[0]


def after(world: FluidWorld, seconds: float) -> None:
    world.run_until(world.clock.now + seconds)


def test_another_worker_comes_beside_training() -> None:
    world, job = begun()
    before, samples = job.rate.samples, job.samples
    assert world.changes.change(job, plan(3, 1))
    after(world, START_SECONDS - 0.001)
    assert job.rate.samples == before and job.samples == pytest.approx(samples + before * (START_SECONDS - 0.001))
    after(world, 0.002)
    assert job.rate.samples > 1.05 * before and job.plan == plan(3, 1)
    given_before = job.given_core_seconds
    after(world, 10.0)
    assert job.given_core_seconds - given_before == pytest.approx(40.0)


def test_a_worker_goes_at_once() -> None:
    world, job = begun()
    before = job.rate.samples
    assert world.changes.change(job, plan(1, 1))
    assert 0.4 < job.rate.samples / before < 0.6
    assert world.left_cores[0] == 14.0 and len(job.nodes) == 2


def test_rows_move_to_another_server_beside_training_and_then_it_counts() -> None:
    world, job = begun()
    before = job.rate.samples
    assert world.changes.change(job, plan(2, 2, server=Resources(1.0, 4 * GIB)))
    assert not world.changes.change(job, plan(4, 1)), "another change is under way"
    after(world, START_SECONDS)
    assert job.rate.samples == pytest.approx(MECHANISMS.kept_rate * before) and job.changing
    seconds = MEMORY.row_bytes(job.samples) / 2 / MECHANISMS.moved_bytes_per_second
    after(world, seconds - 0.1)
    assert job.changing and len(job.owners) == 1
    after(world, 0.2)
    assert not job.changing and len(job.owners) == 2 and job.plan.ps == RolePlan(2, Resources(1.0, 4 * GIB))
    assert job.rate.samples != pytest.approx(before) and job.rate.samples > MECHANISMS.kept_rate * before
    assert world.left_bytes[0] == 64 * GIB - 2 * GIB - 8 * GIB


def test_a_server_goes_when_its_rows_have_moved() -> None:
    world, job = begun(job=replace(JOB, servers=2, server=Resources(1.0, 4 * GIB)))
    assert world.changes.change(job, plan(2, 1))
    assert len(job.owners) == 2 and job.rate.samples
    after(world, 1.1 * MEMORY.row_bytes(job.samples) / 2 / MECHANISMS.moved_bytes_per_second)
    assert job.plan == plan(2, 1) and len(job.owners) == 1 and world.left_cores[0] == 13.0


def test_sizes_change_in_place_where_there_is_room() -> None:
    world, job = begun(machines=[Machine(5.0)])
    before = job.rate.samples
    assert world.changes.change(job, plan(2, 1, worker=Resources(2.0, 2 * GIB)))
    assert job.rate.samples > before and world.left_cores[0] == 0.0
    assert world.changes.change(job, plan(2, 1, worker=Resources(0.5, 2 * GIB), server=Resources(4.5, 8 * GIB)))
    assert job.plan == plan(2, 1, worker=Resources(0.5, 2 * GIB)), "servers had no room to be larger"


def test_of_workers_without_room_the_plan_is_without() -> None:
    world, job = begun(machines=[Machine(4.0)])
    assert world.changes.change(job, plan(6, 1))
    assert job.plan == plan(3, 1) and world.left_cores[0] == 0.0


def test_a_restart_costs_its_stop_and_the_start_of_all_nodes_and_no_samples() -> None:
    world, job = begun(RESTARTS)
    samples = job.samples
    assert world.changes.change(job, plan(4, 2))
    after(world, RESTARTS.stop_seconds + START_SECONDS - 0.1)
    assert job.rate.samples == 0.0 and job.samples == samples == job.saved_samples
    restored = MEMORY.row_bytes(samples) / 2 / STARTUP.restored_bytes_per_second
    after(world, restored + 0.2)
    assert job.state == "training" and job.plan == plan(4, 2)
    assert job.given_core_seconds == pytest.approx(
        3.0 * (100.0 + START_SECONDS) + 6.0 * (28.0 + restored + 0.1), rel=1e-3
    )


def test_a_restart_without_room_is_not_done() -> None:
    world, job = begun(RESTARTS, machines=[Machine(4.0)])
    before = job.rate.samples
    assert not world.changes.change(job, plan(8, 2))
    after(world, 60.0)
    assert job.state == "training" and job.rate.samples == before and world.left_cores[0] == 1.0


def test_a_pause_holds_training_up_for_as_long_as_it_is() -> None:
    world, job = begun(ChangeCosts(stop_seconds=10.0))
    samples = job.samples
    assert world.changes.change(job, plan(1, 1))
    after(world, 9.9)
    assert job.samples == samples
    after(world, 10.1)
    assert job.samples == pytest.approx(samples + 10.0 * job.rate.samples, rel=1e-6)


def test_what_is_measured_with_a_plan_is_its_rate_alone() -> None:
    world, job = begun()
    rates = [job.rate.samples]
    world.changes.change(job, plan(3, 1))
    after(world, 100.0)
    rates.append(job.rate.samples)
    world.changes.change(job, plan(3, 2))
    after(world, 400.0)
    rates.append(job.rate.samples)
    found = list(job.measured.values())
    assert [one.plan for one in found] == [plan(2, 1), plan(3, 1), plan(3, 2)]
    assert [one.samples / one.seconds for one in found] == pytest.approx(rates)


def test_a_machine_that_fails_while_rows_move_leaves_them_where_they_were() -> None:
    world, job = begun(machines=[Machine(3.5), Machine(1.0)])
    world.changes.change(job, plan(2, 2))
    after(world, START_SECONDS)
    assert job.changing
    (new,) = [node for node in job.nodes if not node.owns]
    samples = job.samples
    world.set_works(new.host, works=False)
    assert not job.changing and len(job.owners) == 1 and job.plan == plan(2, 1)
    assert job.samples == samples and all(node.owns for node in job.nodes)


def test_memory_that_is_used_and_given_is_that_of_the_nodes_over_time() -> None:
    world, job = begun()
    after(world, 900.0)
    moments = np.linspace(0.0, 1000.0, 20_001)
    rows = np.array([MEMORY.row_bytes(moment * job.rate.samples) for moment in moments[::40]])
    training = float(rows.mean()) * 1000.0 + 1000.0 * (MEMORY.server_bytes + 2 * MEMORY.worker(2))
    assert job.used_byte_seconds == pytest.approx(training, rel=0.02)
    assert job.given_byte_seconds == pytest.approx(1008.0 * 10 * GIB)
    assert sum((use.stop - use.start) * use.used_bytes for use in job.usage) == pytest.approx(job.used_byte_seconds)
    assert job.usage[0].start == 0.0 and job.usage[-1].stop == 1008.0


def test_machines_of_a_pool_come_when_a_job_waits_and_go_when_they_stand_idle() -> None:
    pool = Pool(Machine(4.0), least=1, most=3, grow_seconds=100.0, shrink_seconds=300.0)
    jobs = [replace(JOB, name=name, samples=1e7) for name in ("a", "b", "c")]
    world = FluidWorld([], jobs, startup=STARTUP, rates=RATES, pools=[pool])
    world.run_until(99.0)
    assert [job.state for job in world.jobs] == ["training", "waiting", "waiting"]
    assert list(world.places.there) == [True, False, False]
    world.run_until(101.0)
    assert [job.state for job in world.jobs][1:] == ["starting", "starting"]
    world.run_until(10_000.0)
    assert all(job.state == "succeeded" for job in world.jobs)
    assert list(world.places.there).count(True) == 1
    given_back = [entry.at for entry in world.log if entry.what == "is given back"]
    ends = sorted(job.ended_at or 0.0 for job in world.jobs)
    assert len(given_back) == 2 and min(given_back) >= ends[0] + 300.0


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(1, 5), st.integers(1, 3), st.sampled_from([0.5, 1.0, 2.0])),
        max_size=25,
    ),
    st.integers(0, 1000),
    st.sampled_from([MECHANISMS, RESTARTS, ChangeCosts(stop_seconds=10.0)]),
)
def test_machines_hold_what_they_have_whatever_changes_and_fails(
    changes: list[tuple[int, int, int, float]], seed: int, costs: ChangeCosts
) -> None:
    machines = [Machine(4.0, memory=8 * GIB), Machine(6.0), Machine(4.0)]
    server = Resources(1.0, 2 * GIB)
    jobs = [replace(JOB, name=f"job-{at}", arrives_at=50.0 * at, samples=6e7, server=server) for at in range(3)]
    world = FluidWorld(
        machines, jobs, startup=STARTUP, seed=seed, disturbances=Disturbances(3000.0, 200.0), rates=RATES, costs=costs
    )
    for at, workers, servers, cores in changes:
        after(world, 60.0)
        job = world.jobs[at]
        world.changes.change(job, plan(workers, servers, Resources(cores, 512 * MIB), server))
        for host, machine in enumerate(machines):
            here = [node.resources for one in world.jobs for node in one.nodes if node.host == host]
            assert world.left_cores[host] == pytest.approx(machine.cores - sum(its.cores for its in here))
            assert world.left_bytes[host] == machine.memory - sum(its.memory for its in here)
            assert world.left_cores[host] >= -1e-9 and world.left_bytes[host] >= 0
        for one in world.jobs:
            if not one.ended and one.state != "arriving":
                assert one.owners and one.of_role("worker")
                assert not one.rate.samples or all(node.up for node in one.owners)
            assert one.used_core_seconds <= one.given_core_seconds * 1.001 + 1.0
            assert one.used_byte_seconds <= one.given_byte_seconds * 1.001
    world.run_until(200_000.0)
    assert all(job.ended for job in world.jobs), "each is placed again, and gets to its end"


def test_a_steady_world_is_as_it_was_without_changes() -> None:
    """Rounds in which nobody changes anything change nothing of the log."""
    logs = []
    for step in (50.0, 5000.0):
        world = FluidWorld(
            [Machine(4.0)], [replace(JOB, samples=4e7)], startup=STARTUP, rates=RATES, disturbances=STEADY
        )
        while world.clock.now < 5000.0:
            after(world, step)
        logs.append([(round(entry.at, 6), entry.what) for entry in world.log])
    assert logs[0] == logs[1]


def test_workers_that_come_at_about_the_same_time_count_from_the_last_one_on() -> None:
    spread = replace(STARTUP, variation=0.2)
    world = FluidWorld([Machine(16.0)], [JOB], startup=spread, rates=Rates())
    world.run_until(100.0)
    (job,) = world.jobs
    before, known = job.rate.samples, world.rates
    assert world.changes.change(job, plan(8, 1))
    comes = sorted(node.start.at for node in job.nodes if node.start is not None and node.start.due)
    assert len(comes) == 6 and comes[0] < comes[-1] < comes[0] + 5.0
    world.run_until(comes[-1] - 0.001)
    assert job.rate.samples == before
    world.run_until(comes[-1])
    assert job.rate.samples > before and all(node.up for node in job.nodes)
    assert world.rates == known + 1
