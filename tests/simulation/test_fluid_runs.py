"""Traces under policies, as fluids: a seed is a run, byte for byte; and policies come in the order that a planted case has."""

from __future__ import annotations

import msgspec
import pytest

from dlrover_lite.backends.sim.physics.rates import Rates
from dlrover_lite.core.errors import TraceError
from dlrover_lite.core.units import GIB
from dlrover_lite.simulation.fluid_runs import PolicyWorld, simulate
from dlrover_lite.simulation.outcomes.metrics import metrics_of
from dlrover_lite.simulation.outcomes.records import Run
from dlrover_lite.simulation.policies.choose import POLICIES
from dlrover_lite.simulation.traces.cluster import ClusterFile, Faults, MachineKind, NodePool
from dlrover_lite.simulation.traces.files import parse_trace
from dlrover_lite.simulation.traces.generator import generate
from dlrover_lite.simulation.traces.parameters import Arrivals, Parameters, SizeClass
from dlrover_lite.simulation.traces.trace import Trace, TraceJob

RATES = Rates()
SMALL = Parameters(
    arrivals=Arrivals(jobs=5, seconds=900.0),
    sizes=(SizeClass(name="small", share=1.0, cores=(2.0, 8.0), seconds=(300.0, 1200.0)),),
)
MACHINES = [MachineKind(count=4, cores=16.0, memory=64 * GIB)]
STEADY = ClusterFile(machines=MACHINES)
UNSTEADY = ClusterFile(machines=MACHINES, faults=Faults(failing_seconds=4000.0, slowing_seconds=4000.0))


def run(trace: Trace, policy: str, cluster: ClusterFile = STEADY, **options: object) -> Run:
    return simulate(trace, cluster, policy, rates=RATES, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_seed_is_a_run_byte_for_byte(policy: str) -> None:
    first, again = (simulate(generate(1, SMALL), UNSTEADY, policy, seed=2) for _ in range(2))
    assert msgspec.json.encode(first) == msgspec.json.encode(again)
    assert {job.end for job in first.jobs} <= {"succeeded", "out of memory"}


def planted(count: int, *, workers: int, worker_cores: float, servers: int, arrives_every: float = 0.0) -> Trace:
    """Jobs that are alike: their workers take 16 ms of a minibatch, and their servers a quarter of that."""
    (one,) = parse_trace(
        "name,arrives_at,workers,worker_cores,worker_memory,servers,server_cores,server_memory,samples,batch_size,worker_seconds,"
        "worker_request_seconds,parallel_share,all_servers_seconds,server_request_seconds,tables,checkpoint_seconds\n"
        f"a,0,{workers},{worker_cores},2GiB,{servers},1,4GiB,4e7,1024,0.016,0.0004,0.5,0.004,0.0004,26x100000:8,600\n"
    ).jobs
    return Trace.of(
        [msgspec.structs.replace(one, name=f"job-{at}", arrives_at=at * arrives_every) for at in range(count)]
    )


def mean_seconds(trace: Trace, policy: str) -> float:
    found = metrics_of(run(trace, policy))
    assert found.completion_rate == 1.0 and found.mean_seconds is not None
    return found.mean_seconds


def test_who_asks_for_far_too_much_waits_for_others_and_well_tuned_plans_do_not() -> None:
    """Workers of 8 cores whose work is half serial: of the 33 cores that each job gets, it uses 10; only one has room at a time."""
    trace = planted(4, workers=4, worker_cores=8.0, servers=1)
    times = {policy: mean_seconds(trace, policy) for policy in ("manual", "tuned")}
    assert times["tuned"] < 0.8 * times["manual"]
    use = {policy: metrics_of(run(trace, policy)).cpu_use or 0.0 for policy in ("manual", "tuned")}
    assert use["manual"] < 0.45 < use["tuned"]


def test_of_users_who_ask_for_too_little_those_fare_well_whose_plans_grow() -> None:
    """One worker of one core, beside 62 cores that nobody has: elastic scaling adds workers, Optimus and the oracle do."""
    trace = planted(1, workers=1, worker_cores=1.0, servers=1)
    times = {policy: mean_seconds(trace, policy) for policy in POLICIES}
    assert times["es"] < 0.8 * times["manual"]
    assert times["optimus"] < 0.8 * times["manual"]
    assert times["tuned"] < 0.8 * times["manual"]


def test_restarts_as_in_its_paper_cost_optimus_time() -> None:
    trace = planted(2, workers=2, worker_cores=1.0, servers=1)
    cheap, dear = (run(trace, "optimus", costs=costs) for costs in ("mechanisms", "papers"))
    assert (metrics_of(dear).mean_seconds or 0.0) > (metrics_of(cheap).mean_seconds or 0.0) + 30.0


def test_jobs_that_have_not_ended_by_then_are_told() -> None:
    found = run(planted(3, workers=4, worker_cores=8.0, servers=1), "manual", hours=0.02)
    assert metrics_of(found).unfinished == 3 and found.until == 72.0
    assert sorted((job.started_at for job in found.jobs), key=str)[-1] is None


def test_machines_of_pools_come_for_jobs_that_wait() -> None:
    pools = [NodePool(least=0, most=4, cores=16.0, memory=64 * GIB, grow_seconds=60.0)]
    found = run(planted(2, workers=4, worker_cores=2.0, servers=1), "manual", ClusterFile(pools=pools))
    assert metrics_of(found).completion_rate == 1.0
    assert min(job.started_at or 0.0 for job in found.jobs) == 60.0


def test_a_policy_is_told_nothing_of_what_jobs_are_in_truth() -> None:
    """What it is told of two jobs with the same request is the same until something was measured."""
    trace = planted(2, workers=2, worker_cores=1.0, servers=1)
    other = msgspec.structs.replace(trace.jobs[1], worker_seconds=0.5, tables=generate(1, SMALL).jobs[0].tables)
    world = PolicyWorld(Trace.of([trace.jobs[0], other]), STEADY, "manual", rates=RATES)
    first, second = (world.report(job) for job in world.world.jobs)
    assert first._replace(name=second.name) == second


def test_a_trace_without_jobs_is_refused() -> None:
    with pytest.raises(TraceError, match="no jobs"):
        simulate(Trace(()), STEADY, "manual")


def test_each_job_is_told_once_with_what_it_was() -> None:
    trace = generate(3, SMALL)
    found = run(trace, "es")
    assert [job.name for job in found.jobs] == [job.name for job in trace.jobs]
    asked: TraceJob = trace.jobs[0]
    assert found.jobs[0].asked_cores == asked.workers * asked.worker_cores + asked.servers * asked.server_cores
    assert found.jobs[0].model == asked.model


def test_rates_that_are_known_are_not_computed_again() -> None:
    trace, rates = planted(1, workers=1, worker_cores=1.0, servers=1), Rates()
    for policy in ("tuned", "manual"):
        simulate(trace, STEADY, policy, rates=rates)
    known = len(rates)
    assert known > 3
    simulate(trace, STEADY, "tuned", rates=rates)
    assert len(rates) == known


def test_a_job_is_ready_for_a_change_once_all_its_nodes_are_there_and_none_is_under_way() -> None:
    its = PolicyWorld(planted(1, workers=2, worker_cores=1.0, servers=1), STEADY, "manual", rates=RATES)
    (job,) = its.world.jobs
    its.run(60.0)
    report = its.report(job)
    assert report.ready and report.rate != job.rate.samples
    assert report.rate == pytest.approx(job.rate.samples, rel=0.15)
    assert its.report(job) == report
    assert 0.5 < report.worker_use <= 1.0
    more = msgspec.structs.replace(job.plan, ps=msgspec.structs.replace(job.plan.ps, count=2))
    assert its.world.changes.change(job, more)
    assert not its.report(job).ready and its.report(job).rate == report.rate
