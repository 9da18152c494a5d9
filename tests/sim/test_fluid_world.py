"""Jobs as fluids: each of them ends when arithmetic says so, machines never hold more than they have, and a seed is a log."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlrover_lite.backends.sim.fluid.job import JobRequest
from dlrover_lite.backends.sim.fluid.world import FluidWorld, LogEntry
from dlrover_lite.backends.sim.physics.machines import STEADY, Disturbances, Machine
from dlrover_lite.backends.sim.physics.memory import MemoryCosts, Table
from dlrover_lite.backends.sim.physics.queues import Costs, Node
from dlrover_lite.backends.sim.physics.rates import Rates
from dlrover_lite.backends.sim.physics.startup import Startup
from dlrover_lite.core.units import GIB, MIB, Resources

RATES = Rates()
STARTUP = Startup(pending_seconds=1.0, starting_seconds=6.0, joining_seconds=1.0, variation=0.0)
START_SECONDS = 8.0
MEMORY = MemoryCosts((Table(1e6, count=26),))
JOB = JobRequest(
    "ads", 0.0, 40e6, Costs(), MEMORY, workers=2, worker=Resources(1.0, GIB), servers=1, server=Resources(1.0, 8 * GIB)
)


def world(*jobs: JobRequest, machines: list[Machine] | None = None, disturbances: Disturbances = STEADY) -> FluidWorld:
    return FluidWorld(machines or [Machine(4.0)], jobs, startup=STARTUP, disturbances=disturbances, rates=RATES)


def rate(job: JobRequest, machine: Machine, workers: int | None = None) -> float:
    """Samples/s of a job that is alone on a machine."""
    each = [Node(job.worker.cores)] * (job.workers if workers is None else workers)
    return RATES.of(job.costs, each, [Node(job.server.cores)] * job.servers, [machine]).samples


@cache
def alone_seconds() -> float:
    """Seconds that the job takes which has a machine for itself. Not before a test asks: kernels compute it."""
    return START_SECONDS + JOB.samples / rate(JOB, Machine(4.0))


def log_of(job: str, found: FluidWorld) -> list[tuple[float, str]]:
    return [(pytest.approx(entry.at, rel=1e-9), entry.what) for entry in found.log if entry.subject == job]


def test_a_job_alone_takes_its_start_and_its_samples_at_its_rate() -> None:
    found = world(replace(JOB, arrives_at=100.0))
    found.run_until(10_000.0)
    assert log_of("ads", found) == [
        (100.0, "waiting"),
        (100.0, "starting"),
        (108.0, "training"),
        (100.0 + alone_seconds(), "succeeded"),
    ]
    (job,) = found.jobs
    assert job.samples == pytest.approx(JOB.samples)
    assert job.given_core_seconds == pytest.approx(3.0 * alone_seconds())
    minibatches = JOB.samples / JOB.costs.batch_size
    each = JOB.costs.worker + JOB.costs.worker_request + JOB.costs.ps + JOB.costs.ps_request
    assert job.used_core_seconds == pytest.approx(minibatches * each, rel=0.05)


def test_a_job_without_room_waits_and_a_smaller_one_passes_it() -> None:
    first, large, small = (replace(JOB, name=name, arrives_at=at) for name, at in (("a", 0.0), ("b", 1.0), ("c", 2.0)))
    found = world(first, large, replace(small, workers=1, worker=Resources(0.5, GIB), server=Resources(0.5, 8 * GIB)))
    found.run_until(10 * alone_seconds())
    assert log_of("b", found)[:2] == [(1.0, "waiting"), (alone_seconds(), "starting")]
    assert log_of("c", found)[1] == (2.0, "starting")
    assert all(job.state == "succeeded" for job in found.jobs)


def test_servers_run_out_of_memory_when_their_rows_have_filled_it() -> None:
    limit = 512 * MIB
    found = world(replace(JOB, server=Resources(1.0, limit)))
    found.run_until(10_000.0)
    filled = MEMORY.samples_within(limit, 1.0)
    assert 0 < filled < JOB.samples
    ends = START_SECONDS + filled / rate(JOB, Machine(4.0))
    assert log_of("ads", found)[-1] == (ends, "out of memory")


def test_workers_without_room_for_their_minibatches_end_a_job_at_once() -> None:
    found = world(replace(JOB, worker=Resources(1.0, 64 * MIB)))
    found.run_until(10_000.0)
    assert log_of("ads", found)[-1] == (START_SECONDS, "out of memory")


def test_a_slow_machine_slows_a_job_for_as_long_as_it_is_slow() -> None:
    found = world(JOB)
    found.run_until(208.0)
    found.set_speed(0, 0.5)
    found.run_until(308.0)
    found.set_speed(0, 1.0)
    found.run_until(10_000.0)
    slow = rate(JOB, Machine(4.0, 0.5)) / rate(JOB, Machine(4.0))
    assert slow < 0.6
    assert log_of("ads", found)[-1] == (alone_seconds() + 100.0 * (1 - slow), "succeeded")


def test_a_lost_server_brings_its_job_back_to_the_newest_checkpoint() -> None:
    """It trains from second 8 on, has a checkpoint at 208, and loses 42 seconds; its rows are read again."""
    found = world(replace(JOB, checkpoint_seconds=200.0), machines=[Machine(4.0), Machine(4.0)])
    assert {node.host for node in found.jobs[0].nodes} == {-1}
    found.run_until(150.0)
    found.run_until(250.0)
    (job,) = found.jobs
    server, *workers = job.nodes
    assert server.host not in {node.host for node in workers[:1]}
    each = job.rate.samples
    found.set_works(server.host, works=False)
    assert job.state == "starting" and job.samples == pytest.approx(200.0 * each)
    restored = MEMORY.row_bytes(job.samples) / STARTUP.restored_bytes_per_second
    found.run_until(250.0 + START_SECONDS + restored - 0.001)
    assert job.state == "starting"
    found.run_until(250.0 + START_SECONDS + restored)
    assert job.state == "training" and job.samples == pytest.approx(200.0 * each)


def test_without_a_worker_a_job_goes_on_more_slowly() -> None:
    machines = [Machine(2.0), Machine(1.0)]
    found = world(JOB, machines=machines)
    found.run_until(100.0)
    (job,) = found.jobs
    before, samples = job.rate.samples, job.samples
    (lost,) = [node for node in job.nodes if node.host == 1]
    assert lost.role == "worker"
    found.set_works(1, works=False)
    assert job.state == "training" and 0.4 < job.rate.samples / before < 0.9
    assert job.samples == samples
    found.set_works(1, works=True)
    found.run_until(100.0 + START_SECONDS)
    assert job.rate.samples == before


REQUESTS = st.lists(
    st.builds(
        replace,
        st.just(JOB),
        arrives_at=st.floats(0.0, 2000.0),
        samples=st.floats(1e6, 1e8),
        workers=st.integers(1, 3),
        servers=st.integers(1, 2),
        server=st.sampled_from([Resources(0.5, GIB), Resources(1.0, 4 * GIB)]),
    ),
    max_size=8,
).map(lambda jobs: [replace(job, name=f"job-{at}") for at, job in enumerate(jobs)])


def run(jobs: list[JobRequest], seed: int) -> tuple[FluidWorld, list[LogEntry]]:
    machines = [Machine(4.0, memory=6 * GIB), Machine(2.0), Machine(4.0, 0.5)]
    found = FluidWorld(
        machines,
        jobs,
        startup=replace(STARTUP, variation=0.3),
        seed=seed,
        disturbances=Disturbances(3000.0, 300.0, 2000.0, 200.0),
        rates=RATES,
    )
    while found.clock.next_at < 6000.0:
        found.run_until(found.clock.next_at)
        holds(found, machines)
    return found, found.log


def holds(found: FluidWorld, machines: list[Machine]) -> None:
    """Check what must hold after every event."""
    for at, machine in enumerate(machines):
        here = [node.resources for job in found.jobs for node in job.nodes if node.host == at]
        assert found.left_cores[at] == pytest.approx(machine.cores - sum(its.cores for its in here))
        assert found.left_bytes[at] == machine.memory - sum(its.memory for its in here)
        assert found.left_cores[at] >= -1e-9 and found.left_bytes[at] >= 0
    for job in found.jobs:
        assert 0 <= job.saved_samples <= job.samples + 1e-3 <= job.request.samples * (1 + 1e-9) + 1e-2
        assert job.used_core_seconds <= job.given_core_seconds * 1.001 + 1.0
        assert not job.ended or all(node.host < 0 for node in job.nodes)
        assert not job.rate.samples or all(node.up for node in job.nodes if node.role == "server")


@settings(max_examples=25, deadline=None)
@given(REQUESTS, st.integers(0, 1000))
def test_machines_hold_what_they_have_whatever_fails_and_a_seed_is_a_log(jobs: list[JobRequest], seed: int) -> None:
    found, log = run(jobs, seed)
    assert [entry.at for entry in log] == sorted(entry.at for entry in log)
    again, same = run(jobs, seed)
    assert same == log
    assert [job.samples for job in again.jobs] == [job.samples for job in found.jobs]


def test_other_jobs_meet_the_same_failures() -> None:
    logs = [run(jobs, 3)[1] for jobs in ([], [JOB])]
    failures = [[entry for entry in log if entry.subject.startswith("machine")] for log in logs]
    assert failures[0] == failures[1] != []
