"""Policies: none plans more than there is, nor a job without a worker or a server; and each does what its paper says where that can be
worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlrover_lite.backends.sim.physics.machines import Machine
from dlrover_lite.core.units import GIB, Resources
from dlrover_lite.protocol.plans import Plan, RolePlan
from dlrover_lite.simulation.policies.es import ElasticScaling
from dlrover_lite.simulation.policies.manual import Manual
from dlrover_lite.simulation.policies.optimus import Optimus, SpeedModel
from dlrover_lite.simulation.policies.optimus import Settings as OptimusSettings
from dlrover_lite.simulation.policies.policy import HostReport, JobReport, Measurement, Policy, Room, with_counts
from dlrover_lite.simulation.policies.tuned import Tuned, cores_of
from dlrover_lite.simulation.traces.generator import generate
from dlrover_lite.simulation.traces.parameters import Arrivals, Habits, Parameters, SizeClass

ONE = Resources(1.0, GIB)


def plan(workers: int, servers: int, worker: Resources = ONE, server: Resources = ONE) -> Plan:
    return Plan(ps=RolePlan(servers, server), worker=RolePlan(workers, worker))


def host(cores: float, left: float | None = None, memory: int = 64 * GIB, left_memory: int | None = None) -> HostReport:
    return HostReport(cores, memory, cores if left is None else left, memory if left_memory is None else left_memory)


def job(
    name: str, present: Plan, *measured: tuple[Plan, float], request: Plan | None = None, left: float = 1e7
) -> JobReport:
    return JobReport(
        name,
        1.0,
        request or present,
        present,
        True,
        left,
        tuple(Measurement(its, rate, 60.0) for its, rate in measured),
    )


def total(plans: Sequence[Plan]) -> Resources:
    roles = [role for its in plans for role in (its.ps, its.worker)]
    return Resources(
        sum(role.count * role.each.cores for role in roles), sum(role.count * role.each.memory for role in roles)
    )


SIZES = st.builds(Resources, st.sampled_from([0.5, 1.0, 2.0, 4.0]), st.integers(1, 8).map(lambda gib: gib * GIB))
PLANS = st.builds(plan, st.integers(1, 6), st.integers(1, 4), SIZES, SIZES)


@st.composite
def worlds(draw: st.DrawFn) -> tuple[list[JobReport], list[HostReport]]:
    """Jobs with plans that have room on some hosts, and what these have left."""
    whole = [host(draw(st.sampled_from([8.0, 16.0])), memory=32 * GIB) for _ in range(draw(st.integers(1, 6)))]
    room = Room.whole(whole)
    jobs = []
    for at in range(draw(st.integers(0, 6))):
        request, present = draw(PLANS), None
        for workers in range(draw(st.integers(1, 6)), 0, -1):
            tried = msgspec.structs.replace(request, worker=RolePlan(workers, request.worker.each))
            if room.take_all(tried):
                present = tried
                break
        if present is None:
            continue
        others = [
            with_counts(request, *draw(st.tuples(st.integers(1, 8), st.integers(1, 4))), whole)
            for _ in range(draw(st.integers(0, 5)))
        ]
        measured = [(its, draw(st.floats(1.0, 1e6))) for its in dict.fromkeys([*others, present]) if its is not None]
        known = job(f"job-{at}", present, *measured, request=request, left=draw(st.floats(0.0, 1e9)))
        quota = max(total([its]).cores for its in (request, present)) + draw(st.sampled_from([0.0, 3.0, math.inf]))
        jobs.append(known._replace(ready=draw(st.booleans()), most_cores=quota))
    left = [
        HostReport(its.cores, its.memory, float(cores), int(memory))
        for its, cores, memory in zip(whole, room._cores, room._memory, strict=True)
    ]
    return jobs, left


@settings(max_examples=120, deadline=None)
@given(worlds(), st.sampled_from([0.0, 60.0, 1200.0]), PLANS)
def test_no_policy_plans_more_than_there_is_nor_less_than_a_worker_and_a_server(
    world: tuple[list[JobReport], list[HostReport]], now: float, request: Plan
) -> None:
    jobs, hosts = world
    there = Resources(sum(one.cores for one in hosts), sum(one.memory for one in hosts))
    policies: list[Policy] = [ElasticScaling(), Optimus(), Manual()]
    for policy in policies:
        wanted = policy.plans(now, jobs, hosts)
        assert wanted == policy.plans(now, jobs, hosts)
        assert wanted.keys() <= {one.name for one in jobs if one.ready}
        after = total([wanted.get(one.name, one.present) for one in jobs])
        assert after.cores <= there.cores + 1e-6
        assert after.memory <= there.memory + sum(its.ps.count for its in wanted.values())  # rounded up to bytes
        assert all(min(its.worker.count, its.ps.count) >= 1 for its in wanted.values())
        assert all(total([wanted[one.name]]).cores <= one.most_cores for one in jobs if one.name in wanted)
        first = policy.first(job("new", request), hosts)
        if first is not None and not isinstance(policy, Manual):
            assert min(first.worker.count, first.ps.count) >= 1
            assert Room.left(hosts).take_all(first)


def test_static_gives_what_was_asked_for_and_changes_nothing() -> None:
    its = job("a", plan(8, 2))
    assert Manual().first(its, [host(1.0)]) == plan(8, 2)
    assert Manual().plans(0.0, [its], [host(64.0)]) == {}


def test_elastic_scaling_begins_small_and_takes_what_there_is() -> None:
    assert ElasticScaling().first(job("a", plan(8, 2)), [host(16.0)]) == plan(4, 2)
    assert ElasticScaling().first(job("a", plan(8, 2)), [host(16.0, left=5.0)]) == plan(3, 2)
    assert ElasticScaling().first(job("a", plan(8, 2)), [host(16.0, left=2.0)]) is None


def test_elastic_scaling_adds_workers_while_throughput_follows() -> None:
    """4 workers do 100; 6 do 140, which is 0.8 of what they should: more; 9 do 150, a seventh: back to 6, and there it stays."""
    policy, hosts, request = ElasticScaling(), [host(64.0)], plan(16, 2)
    known = [(plan(4, 2), 100.0)]
    assert policy.plans(0.0, [job("a", plan(4, 2), *known, request=request)], hosts) == {"a": plan(6, 2)}
    known.append((plan(6, 2), 140.0))
    assert policy.plans(0.0, [job("a", plan(6, 2), *known, request=request)], hosts) == {"a": plan(9, 2)}
    known.append((plan(9, 2), 150.0))
    assert policy.plans(0.0, [job("a", plan(9, 2), *known, request=request)], hosts) == {"a": plan(6, 2)}
    assert policy.plans(0.0, [job("a", plan(6, 2), *known, request=request)], hosts) == {}


def test_elastic_scaling_waits_for_a_measurement_and_takes_no_more_than_is_left() -> None:
    policy = ElasticScaling()
    assert policy.plans(0.0, [job("a", plan(4, 2))], [host(64.0)]) == {}
    both = [job(name, plan(4, 1), (plan(4, 1), 100.0)) for name in ("a", "b")]
    assert policy.plans(0.0, both, [host(64.0, left=3.0)]) == {"a": plan(6, 1), "b": plan(5, 1)}


def test_the_speed_model_of_optimus_finds_the_costs_that_speeds_are_made_of() -> None:
    def speed(workers: int, servers: int) -> float:
        return workers / (0.02 + 0.004 * workers / servers + 0.001 * workers + 0.002 * servers)

    model = SpeedModel([(w, p, speed(w, p)) for w, p in ((1, 1), (2, 1), (2, 2), (4, 2), (4, 4))])
    assert model.rate(12, 3) == pytest.approx(speed(12, 3), rel=1e-6)


def measured(**costs: float) -> list[tuple[Plan, float]]:
    """What is measured of a job with the trials of Optimus, by its own model."""
    each = {"alone": 0.0, "shared": 0.0, "workers": 0.0, "servers": 0.0} | costs
    return [
        (plan(w, p), w / (each["alone"] + each["shared"] * w / p + each["workers"] * w + each["servers"] * p))
        for w, p in OptimusSettings().trials
    ]


def test_optimus_gives_servers_where_servers_are_the_limit_and_workers_where_these_are() -> None:
    request = plan(4, 2, server=Resources(1.0, 8 * GIB))
    for costs, many, few in (({"alone": 0.01}, "worker", "ps"), ({"shared": 0.01, "alone": 0.0001}, "ps", "worker")):
        present = plan(1, 1, server=Resources(1.0, 16 * GIB))
        known = [
            (with_counts(request, its.worker.count, its.ps.count, [host(16.0)]), rate)
            for its, rate in measured(**costs)
        ]
        one = job("a", present, *[(its, rate) for its, rate in known if its is not None], request=request)
        found = Optimus().plans(0.0, [one], [host(16.0)])["a"]
        counts = {"worker": found.worker.count, "ps": found.ps.count}
        assert counts[many] > 2 * counts[few], costs
        assert total([found]).cores <= 16.0


def test_optimus_gives_the_next_node_to_whoever_saves_the_most_by_it() -> None:
    """Savings of one more worker are left / n²: of two jobs that scale alike, the one with four times as much to do gets twice the
    workers."""
    jobs = [job(name, plan(1, 1), *measured(alone=0.01), left=left) for name, left in (("long", 4e6), ("short", 1e6))]
    found = Optimus().plans(0.0, jobs, [host(32.0)])
    assert found["long"].worker.count == pytest.approx(2 * found["short"].worker.count, abs=1)
    assert total(list(found.values())).cores == 32.0


def test_optimus_gives_workers_that_take_less_before_those_that_take_more() -> None:
    """A job pays for its cores: of two with as much to do and the same speeds, the one whose workers take four times the cores gets
    half as many."""
    large = Resources(4.0, GIB)
    known = [
        (msgspec.structs.replace(its, worker=RolePlan(its.worker.count, large)), rate)
        for its, rate in measured(alone=0.01)
    ]
    jobs = [job("small", plan(1, 1), *measured(alone=0.01)), job("large", plan(1, 1, worker=large), *known)]
    found = Optimus().plans(0.0, jobs, [host(64.0)])
    assert found["small"].worker.count == pytest.approx(2 * found["large"].worker.count, abs=2)


def test_optimus_tries_plans_before_it_trusts_its_model_and_divides_only_once_an_interval() -> None:
    trials = OptimusSettings().trials
    known = measured(alone=0.01)
    for number in range(1, len(trials)):
        one = job("a", known[number - 1][0], *known[:number])
        workers, servers = trials[number]
        found = Optimus().plans(60.0, [one], [host(32.0)])["a"]
        assert (found.worker.count, found.ps.count) == (workers, servers)
    done = job("a", known[-1][0], *known)
    assert Optimus().plans(60.0, [done], [host(32.0)]) == {}
    assert Optimus().plans(600.0, [done], [host(32.0)]) != {}


def test_fewer_servers_get_the_memory_that_all_have_together() -> None:
    request = plan(1, 4, server=Resources(1.0, 3 * GIB))
    assert with_counts(request, 2, 3, [host(8.0)]) == plan(2, 3, server=Resources(1.0, 4 * GIB))
    assert with_counts(request, 2, 1, [host(8.0, memory=8 * GIB)]) is None


def test_the_oracle_finds_plans_that_beat_those_of_users_who_ask_for_too_much() -> None:
    """As fast, with no more cores, and memory that is enough."""
    its = Parameters(
        arrivals=Arrivals(jobs=3),
        sizes=(SizeClass(name="small", share=1.0, cores=(2.0, 8.0), seconds=(300.0, 600.0)),),
        habits=Habits(well=0.0, too_much=1.0, too_little=0.0, few_servers=0.0, little_memory=0.0),
    )
    jobs = [one.request for one in generate(4, its).jobs]
    tuned = Tuned(jobs, [Machine(16.0)] * 16)
    for one in jobs:
        best = tuned.best(one.name)
        assert best is not None
        assert cores_of(best) <= max(cores_of(one.plan), 8.0)
        assert tuned._rate(one, best) >= 0.97 * tuned._rate(one, one.plan)  # type: ignore[operator]
        assert one.memory.server(one.samples, 1 / best.ps.count) < best.ps.each.memory
        assert best == Tuned(jobs, [Machine(16.0)] * 16).best(one.name)


def test_optimus_leaves_room_for_those_that_wait() -> None:
    known = measured(alone=0.01)
    running = job("running", plan(15, 1), *known, (plan(15, 1), 1500.0))
    waiting = job("waiting", plan(8, 2))._replace(waits=True, ready=False)
    assert Optimus().plans(0.0, [running], [host(16.0, left=0.0)]) == {}
    assert Optimus().plans(0.0, [running, waiting], [host(16.0, left=0.0)]) == {"running": plan(13, 1)}
