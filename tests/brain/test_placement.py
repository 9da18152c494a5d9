"""Plans whose nodes find a place: cores and memory in pieces, one for each host."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlrover_lite.brain.planning.decision import decide
from dlrover_lite.brain.planning.job_view import RoundInputs
from dlrover_lite.brain.planning.plan_grid import (
    Bounds,
    Candidate,
    MemoryNeed,
    even_sizes,
    lattice_of,
    to_milli,
    worker_places,
)
from dlrover_lite.core.units import MIB, Resources
from dlrover_lite.protocol.hosts import Host, total_of
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
    found = int(worker_places(np.array(servers), np.array(worker_cores), np.array(ps_cores), NEED, hosts))
    for workers, expected in ((found, True), (found + 1, False)):
        if workers:
            assert has_place(Candidate(workers, servers, worker_cores, ps_cores), NEED, hosts) == expected, workers


@given(st.lists(st.tuples(st.sampled_from([0.5, 1.0, 2.0, 4.0]), st.integers(200, 4000)), min_size=2, max_size=5))
def test_a_lattice_asks_for_all_its_plans_at_once(sizes: list[tuple[float, int]]) -> None:
    hosts = tuple(Host(f"host-{at}", Resources(cores, mib * MIB)) for at, (cores, mib) in enumerate(sizes))
    bounds = Bounds(max_workers=9, max_servers=4, worker_sizes=even_sizes(2.0, 4), ps_sizes=even_sizes(1.0, 2))
    lattice = lattice_of(bounds)
    room = np.broadcast_to(lattice.fitting(NEED, total_of(hosts).memory, hosts), (4, 4, 2))
    for (p, a, s), most in np.ndenumerate(room):
        one = worker_places(
            lattice.servers[p : p + 1], lattice.worker_sizes[a : a + 1], lattice.ps_cores[s : s + 1], NEED, hosts
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
    fitting = lattice.fitting(NEED, total_of(hosts).memory, hosts)
    by_numpy = pareto.fastest(lattice, model, most_cores=8.0, fitting=fitting)
    monkeypatch.setattr(pareto, "_MANY", 0)
    compiled = pareto.fastest(lattice, model, most_cores=8.0, fitting=fitting)
    assert by_numpy.tolist() == compiled.tolist()
    assert len(by_numpy) > 5
    for flat in by_numpy.tolist():
        assert has_place(lattice.candidate(flat), NEED, hosts)
