"""Plans whose nodes find a place: cores and memory in pieces, one for each host."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from dlrover_lite.brain.planning.decision import decide
from dlrover_lite.brain.planning.job_view import JobView, RoundInputs
from dlrover_lite.brain.planning.node_placement import HostSpace, fitting_on, node_speeds, place, worker_places
from dlrover_lite.brain.planning.plan_grid import Bounds, Candidate, MemoryNeed, even_sizes, lattice_of, to_milli
from dlrover_lite.core.units import GIB, MIB, Resources
from dlrover_lite.protocol.hosts import Host, HostNodes, total_of
from tests.brain.models import data, load, view

SIZES = st.sampled_from([0.25, 0.5, 0.75, 1.0, 1.5, 2.0])
NEED = MemoryNeed(worker=100 * MIB, ps=50 * MIB, tables=700 * MIB)


def alike(count: int, cores: float, memory: int) -> tuple[Host, ...]:
    return tuple(Host(f"host-{at}", Resources(cores, memory)) for at in range(count))


def has_place(plan: Candidate, need: MemoryNeed, hosts: Sequence[Host]) -> bool:
    """Put one node after the other where most cores are free, PS first."""
    free = [[to_milli(host.resources.cores), host.resources.memory] for host in hosts]
    nodes = [(to_milli(plan.ps_cores), need.per_ps(plan.servers))] * plan.servers
    nodes += [(to_milli(plan.worker_cores), need.worker)] * plan.workers
    for milli, memory in nodes:
        fitting = [one for one in free if one[0] >= milli and one[1] >= memory]
        if not fitting:
            return False
        most = max(fitting)
        most[0] -= milli
        most[1] -= memory
    return True


@given(st.integers(2, 6), st.sampled_from([1.0, 2.0, 3.5]), st.integers(300, 4000), st.integers(1, 12), SIZES, SIZES)
def test_as_many_workers_as_find_a_place_and_no_more(
    count: int, cores: float, memory_mib: int, servers: int, worker_cores: float, ps_cores: float
) -> None:
    hosts = alike(count, cores, memory_mib * MIB)
    space = HostSpace.of(hosts).grouped()
    found = int(worker_places(np.array(servers), np.array(worker_cores), np.array(ps_cores), NEED, space))
    for workers, expected in ((found, True), (found + 1, False)):
        if workers:
            assert has_place(Candidate(workers, servers, worker_cores, ps_cores), NEED, hosts) == expected, workers


@given(st.lists(st.tuples(st.sampled_from([0.5, 1.0, 2.0, 4.0]), st.integers(200, 4000)), min_size=2, max_size=5))
def test_a_lattice_asks_for_all_its_plans_at_once(sizes: list[tuple[float, int]]) -> None:
    hosts = tuple(Host(f"host-{at}", Resources(cores, mib * MIB)) for at, (cores, mib) in enumerate(sizes))
    bounds = Bounds(max_workers=9, max_servers=4, worker_sizes=even_sizes(2.0, 4), ps_sizes=even_sizes(1.0, 2))
    lattice = lattice_of(bounds)
    space = HostSpace.of(hosts).grouped()
    room = np.broadcast_to(fitting_on(lattice, NEED, total_of(hosts).memory, space), (4, 4, 2))
    for (p, a, s), most in np.ndenumerate(room):
        one = worker_places(
            lattice.servers[p : p + 1], lattice.worker_sizes[a : a + 1], lattice.ps_cores[s : s + 1], NEED, space
        )
        assert most <= one[0]


@pytest.mark.parametrize("now", [None, Candidate(1, 1, 0.75, 0.25), Candidate(3, 1, 0.75, 0.5)])
def test_a_plan_fits_on_the_hosts_that_there_are(now: Candidate | None) -> None:
    """Six hosts of a core hold as many cores as one of six, and no more than six workers of three quarters."""
    bounds = Bounds(max_workers=8, max_servers=4, worker_sizes=(0.75,), ps_sizes=(0.25, 0.5))
    hosts = alike(6, 1.0, 10_000)
    inputs = RoundInputs(
        at=0.0,
        capacity=total_of(hosts),
        jobs=(view(now=now, bounds=bounds, model=data()),),
    )
    (anywhere,), (placed,) = (
        decide(one, load).decisions for one in (inputs, msgspec.structs.replace(inputs, hosts=hosts))
    )
    assert anywhere.choice is not None and placed.choice is not None
    assert not has_place(anywhere.choice, MemoryNeed(), hosts), "else the test shows nothing"
    assert has_place(placed.choice, MemoryNeed(), hosts)


def test_both_searches_find_the_same_front_on_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    from dlrover_lite.brain.planning import pareto

    hosts = (*alike(2, 2.0, 1500 * MIB), Host("large", Resources(4.0, 4000 * MIB)))
    bounds = Bounds(max_workers=40, max_servers=6, worker_sizes=even_sizes(2.0, 8), ps_sizes=even_sizes(1.0, 4))
    lattice, model = lattice_of(bounds), load(data())
    fitting = fitting_on(lattice, NEED, total_of(hosts).memory, HostSpace.of(hosts).grouped())
    by_numpy = pareto.fastest(lattice, model, most_cores=8.0, fitting=fitting)
    monkeypatch.setattr(pareto, "_MANY", 0)
    compiled = pareto.fastest(lattice, model, most_cores=8.0, fitting=fitting)
    assert by_numpy.tolist() == compiled.tolist()
    assert len(by_numpy) > 5
    for flat in by_numpy.tolist():
        assert has_place(lattice.candidate(flat), NEED, hosts)


# --- nodes that are there -----------------------------------------------------------------------------------------------

SizedHost = tuple[float, int, int, int, float]
"""Cores and MiB of a host, its workers and PS, and the speed of a core."""

COUNTS = st.integers(0, 3)
SPEEDS = st.sampled_from([0.5, 2.0]) | st.integers(80, 120).map(lambda percent: percent / 100)
ANY_SIZES = SIZES | st.integers(50, 2500).map(lambda milli: milli / 1000)
KINDS = st.lists(
    st.tuples(st.sampled_from([0.5, 1.0, 2.0, 4.0, 8.5]), st.sampled_from([600, 1200, 4000, 20_000]), COUNTS, COUNTS),
    min_size=1,
    max_size=3,
)
ANY_HOSTS: st.SearchStrategy[list[SizedHost]] = KINDS.flatmap(
    lambda kinds: st.lists(
        st.builds(lambda kind, speed: (*kind, speed), st.sampled_from(kinds), SPEEDS), min_size=2, max_size=8
    )
)
"""Hosts of few kinds, of which some are about as fast and some aren't."""

UNLIKE_BY_A_HAIR: list[SizedHost] = [(16.0, 65_536, 24, 8, speed) for speed in (0.98715, 1.07009, 1.01854, 0.92943)]
"""The last one is slower than nine tenths of the fastest one, but not of the mean of the others."""
OTHERS_BETWEEN: list[SizedHost] = [(16.0, 65_536, 0, 0, 1.02), (8.5, 65_536, 0, 0, 1.01), (16.0, 65_536, 0, 0, 1.0)]
"""About as fast, but by what was measured one of another kind is between two of a kind."""


def spaces(sizes: Sequence[SizedHost]) -> HostSpace:
    hosts = [Host(f"host-{at}", Resources(cores, mib * MIB)) for at, (cores, mib, *_) in enumerate(sizes)]
    nodes = [HostNodes(f"host-{at}", w, p) for at, (_, _, w, p, _) in enumerate(sizes)]
    return HostSpace.of(hosts, nodes, {f"host-{at}": speed for at, (*_, speed) in enumerate(sizes)})


@given(ANY_HOSTS, st.integers(1, 24), ANY_SIZES, ANY_SIZES)
@example(UNLIKE_BY_A_HAIR, 40, 0.5, 0.25)
@example(OTHERS_BETWEEN, 2, 4.0, 0.5)
def test_a_plan_has_a_place_if_and_only_if_its_nodes_can_be_placed(
    sizes: list[SizedHost], servers: int, worker_cores: float, ps_cores: float
) -> None:
    space = spaces(sizes)
    for given_space in (space, space.grouped()):
        most = int(worker_places(np.array(servers), np.array(worker_cores), np.array(ps_cores), NEED, given_space))
        for workers, expected in ((max(1, most), most > 0), (most + 1, False)):
            found = place(Candidate(workers, servers, worker_cores, ps_cores), NEED, space)
            assert (found is not None) == expected


@given(ANY_HOSTS)
@example(UNLIKE_BY_A_HAIR)
@example(OTHERS_BETWEEN)
def test_hosts_that_count_as_one_hold_as_many_workers_as_each_by_itself(sizes: list[SizedHost]) -> None:
    """For all plans of a lattice at once."""
    space = spaces(sizes)
    servers = np.arange(1, 49)[:, None, None]
    worker_sizes, ps_sizes = np.array(even_sizes(4.0, 16))[:, None], np.array(even_sizes(2.0, 16))
    together, each = (
        worker_places(servers, worker_sizes, ps_sizes, NEED, given_space) for given_space in (space.grouped(), space)
    )
    assert np.argwhere(together != each).tolist() == []


@given(ANY_HOSTS, st.integers(1, 12), st.integers(1, 8), ANY_SIZES, ANY_SIZES)
def test_ps_stay_among_hosts_about_as_fast_and_no_host_has_more_than_it_holds(
    sizes: list[SizedHost], workers: int, servers: int, worker_cores: float, ps_cores: float
) -> None:
    space = spaces(sizes)
    found = place(Candidate(workers, servers, worker_cores, ps_cores), NEED, space)
    if found is None:
        return
    on = {one.host: one for one in found}
    assert sum(one.workers for one in found) == workers and sum(one.servers for one in found) == servers
    here = [on.get(name, HostNodes(name)) for name in space.names]
    for at, one in enumerate(here):
        milli = one.workers * to_milli(worker_cores) + one.servers * to_milli(ps_cores)
        memory = one.workers * NEED.worker + one.servers * NEED.per_ps(servers)
        assert milli <= space.milli[at] and memory <= space.memory[at]
    for number in range(int(space.speed_class[-1]) + 1):
        alike = np.flatnonzero(space.speed_class == number).tolist()
        grows = sum(here[at].servers for at in alike) >= int(space.servers[alike].sum())
        for at in alike:
            there = int(space.servers[at])
            assert here[at].servers >= there if grows else here[at].servers <= there


@given(ANY_HOSTS, st.integers(1, 12), ANY_SIZES)
def test_no_ps_is_on_a_host_while_a_faster_one_has_room(sizes: list[SizedHost], servers: int, ps_cores: float) -> None:
    """Wherever they have been, where each host holds as many of the new size as it has."""
    space = spaces(sizes)
    need = MemoryNeed(ps=10 * MIB)
    most = np.minimum(space.milli // to_milli(ps_cores), space.memory // need.per_ps(servers))
    assume((space.servers <= most).all())
    found = place(Candidate(1, servers, 0.25, ps_cores), need, space)
    if found is None:
        return
    on = {one.host: one.servers for one in found}
    counts = np.array([on.get(name, 0) for name in space.names])
    slowest = space.speed_class[counts > 0].max()
    assert (counts == most)[space.speed_class < slowest].all()


def test_what_is_placed_again_as_it_was_stays_where_it_is() -> None:
    hosts = alike(3, 4.0, 100_000 * MIB)
    there = (HostNodes("host-0", 1, 2), HostNodes("host-1", 2, 0), HostNodes("host-2", 0, 1))
    found = place(Candidate(3, 3, 1.0, 0.5), NEED, HostSpace.of(hosts, there))
    assert found == there


def test_ps_are_spread_over_fast_hosts_first_and_workers_packed_beside_them() -> None:
    hosts = alike(4, 4.0, 100_000 * MIB)
    speeds = {"host-2": 1.5, "host-0": 0.5}
    found = place(Candidate(4, 2, 1.0, 1.0), NEED, HostSpace.of(hosts, (), speeds))
    assert found == (HostNodes("host-2", 2, 2), HostNodes("host-1", 2, 0))
    found = place(Candidate(4, 6, 1.0, 1.0), NEED, HostSpace.of(hosts, (), {**speeds, "host-1": 0.95}))
    assert {one.host: one.servers for one in found or ()} == {"host-2": 4, "host-1": 1, "host-3": 1}


def test_ps_go_to_a_fast_host_that_has_room_from_a_slow_one() -> None:
    hosts = alike(3, 4.0, 100_000 * MIB)
    there = (HostNodes("host-0", 0, 2), HostNodes("host-1", 0, 1), HostNodes("host-2", 3, 0))
    found = place(Candidate(3, 3, 1.0, 1.0), NEED, HostSpace.of(hosts, there, {"host-0": 0.6, "host-2": 1.4}))
    assert {one.host: (one.workers, one.servers) for one in found or ()} == {"host-2": (1, 3), "host-1": (2, 0)}


def test_ps_that_leave_are_those_on_slow_hosts() -> None:
    hosts = alike(3, 4.0, 100_000 * MIB)
    there = (HostNodes("host-0", 0, 2), HostNodes("host-1", 0, 1), HostNodes("host-2", 0, 2))
    found = place(Candidate(1, 3, 1.0, 1.0), NEED, HostSpace.of(hosts, there, {"host-0": 0.6}))
    assert {one.host: one.servers for one in found or ()} == {"host-1": 1, "host-2": 2}


def test_speeds_of_nodes_are_those_of_the_hosts_where_they_are_placed() -> None:
    hosts = (Host("fast", Resources(2.0, GIB)), Host("usual", Resources(4.0, GIB)), Host("slow", Resources(4.0, GIB)))
    space = HostSpace.of(hosts, (), {"fast": 2.0, "slow": 0.5})
    found = node_speeds(space.grouped(), np.arange(1, 4), 1.0)
    assert found.ps.tolist() == pytest.approx([2.0, 2.0, 5 / 3])
    assert found.workers.tolist() == pytest.approx([(2 + 4 + 2) / 9, (4 + 2) / 8, (3 + 2) / 7])
    there = HostSpace.of(hosts, (HostNodes("usual", 0, 1), HostNodes("slow", 0, 1)), {"fast": 2.0, "slow": 0.5})
    assert node_speeds(there.grouped(), np.array([2, 3]), 1.0).ps.tolist() == pytest.approx([2.0, 5 / 3])


def test_hosts_about_as_fast_are_alike() -> None:
    """However fast a group of them is on average, those that aren't about as fast as the fastest one stay apart."""
    hosts = alike(4, 4.0, 100_000 * MIB)
    assert not HostSpace.of(hosts, (), {"host-0": 1.04, "host-1": 0.97}).speed_class.any()
    unlike = HostSpace.of(hosts, (), {"host-0": 1.5, "host-1": 0.7})
    assert unlike.speed_class.tolist() == [0, 1, 1, 2]
    assert unlike.grouped().alike.tolist() == [1, 2, 1]
    by_a_hair = spaces(UNLIKE_BY_A_HAIR)
    assert by_a_hair.speed_class.tolist() == [0, 0, 0, 1]
    assert by_a_hair.grouped().speed_class.tolist() == [0, 1]


def test_workers_leave_the_host_with_the_fewest() -> None:
    hosts = alike(3, 4.0, 100_000 * MIB)
    there = (HostNodes("host-0", 3, 1), HostNodes("host-1", 1, 0), HostNodes("host-2", 2, 0))
    found = place(Candidate(4, 1, 1.0, 0.5), NEED, HostSpace.of(hosts, there))
    assert found == (HostNodes("host-0", 3, 1), HostNodes("host-2", 1, 0))


# --- several jobs -------------------------------------------------------------------------------------------------------

PIECES = Bounds(max_workers=8, max_servers=2, worker_sizes=(1.0, 3.0), ps_sizes=(0.5, 1.0))


def on_hosts(job: JobView, *there: HostNodes) -> JobView:
    """The job as it runs, with these nodes of its present plan."""
    plan = job.need.plan(job.now) if job.now is not None else None
    assert plan is not None
    resources = [
        Host(
            one.host,
            Resources(
                one.workers * plan.worker.each.cores + one.servers * plan.ps.each.cores,
                one.workers * plan.worker.each.memory + one.servers * plan.ps.each.memory,
            ),
        )
        for one in there
    ]
    return msgspec.structs.replace(job, nodes=there, node_resources=tuple(resources))


@pytest.mark.parametrize("seed", range(20))
def test_all_nodes_of_all_jobs_have_a_place(seed: int) -> None:
    """Whatever is decided, no host has more than it holds, and what nobody changes is where it was."""
    rng = np.random.default_rng(seed)
    sizes = rng.choice([2.0, 4.0, 6.0], size=int(rng.integers(2, 5)))
    hosts = tuple(Host(f"host-{at}", Resources(float(cores), 20_000 * MIB)) for at, cores in enumerate(sizes))
    views = []
    free = {host.name: host.resources.cores for host in hosts}
    for number in range(int(rng.integers(2, 6))):
        job = view(f"job-{number}", bounds=PIECES, model=data(worker=float(rng.uniform(0.005, 0.05)), spread=0.02))
        job = msgspec.structs.replace(job, need=NEED, priority=float(rng.choice([1.0, 2.0])))
        roomy = [name for name, cores in free.items() if cores >= 1.5]
        if roomy and rng.random() < 0.7:
            host = str(rng.choice(roomy))
            free[host] -= 1.5
            job = on_hosts(msgspec.structs.replace(job, now=Candidate(1, 1, 1.0, 0.5)), HostNodes(host, 1, 1))
        views.append(job)
    inputs = RoundInputs(at=0.0, capacity=total_of(hosts), hosts=hosts, jobs=tuple(views))
    decided = decide(inputs, load)
    left = {host.name: [to_milli(host.resources.cores), host.resources.memory] for host in hosts}
    for job, decision in zip(views, decided.decisions, strict=True):
        placed, plan = decision.placement, decision.plan
        if decision.action in ("queue", "refuse", "preempt"):
            assert not placed
            continue
        assert plan is not None and decision.choice is not None
        if decision.choice == job.now:
            placed = job.nodes
        assert sum(one.workers for one in placed) == plan.worker.count, decision.reason
        assert sum(one.servers for one in placed) == plan.ps.count
        for one in placed:
            left[one.host][0] -= one.workers * to_milli(plan.worker.each.cores)
            left[one.host][0] -= one.servers * to_milli(plan.ps.each.cores)
            left[one.host][1] -= one.workers * plan.worker.each.memory + one.servers * plan.ps.each.memory
    assert all(milli >= 0 and memory >= 0 for milli, memory in left.values()), left


def test_what_finds_no_place_beside_another_job_gets_the_best_that_does() -> None:
    """Two hosts of four cores, a job with three on each: the two that are free hold no worker of two, but two of one."""
    hosts = alike(2, 4.0, 20_000)
    bounds = Bounds(max_workers=2, max_servers=1, worker_sizes=(3.0,), ps_sizes=(0.5,))
    other = view("ads", now=Candidate(2, 1, 3.0, 0.5), bounds=bounds, model=data(spread=0.01), fixed=True)
    other = on_hosts(other, HostNodes("host-0", 1, 1), HostNodes("host-1", 1, 0))
    wanted = Bounds(max_workers=2, max_servers=1, worker_sizes=(0.5, 1.0), ps_sizes=(0.25,))
    new = view("news", bounds=wanted, model=data(server=0.0001, request=0.0, spread=0.01))
    inputs = RoundInputs(at=0.0, capacity=total_of(hosts), hosts=hosts, jobs=(other, new))
    found = decide(inputs, load).of("news")
    assert found.choice == Candidate(2, 1, 0.5, 0.25), "1 x 1 on the second host, and no second one beside it"
    assert "finds no place on the hosts" in found.reason


def test_who_finds_no_place_waits_and_says_where_most_is_free() -> None:
    hosts = alike(2, 4.0, 20_000)
    bounds = Bounds(max_workers=2, max_servers=1, worker_sizes=(3.0,), ps_sizes=(0.5,))
    other = view("ads", now=Candidate(2, 1, 3.0, 0.5), bounds=bounds, model=data(spread=0.01), fixed=True)
    other = on_hosts(other, HostNodes("host-0", 1, 1), HostNodes("host-1", 1, 0))
    new = view("news", bounds=Bounds(max_workers=1, max_servers=1, worker_sizes=(1.25,), ps_sizes=(0.25,)))
    inputs = RoundInputs(at=0.0, capacity=total_of(hosts), hosts=hosts, jobs=(other, new))
    found = decide(inputs, load).of("news")
    assert found.action == "queue" and not found.placement
    assert "the most that is free on one is 1 core" in found.reason and "on host-1" in found.reason
