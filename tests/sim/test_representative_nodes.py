"""Large jobs have the rates that all of their nodes' queues give, from the queues of a few."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlrover_lite.backends.sim.physics.machines import Machine
from dlrover_lite.backends.sim.physics.queues import Costs, Node, run
from dlrover_lite.backends.sim.physics.rates import Rates
from dlrover_lite.backends.sim.physics.representative_nodes import (
    MOST_SERVERS,
    MOST_WORKERS,
    Job,
    sample,
    server_limit,
    worker_limit,
)

MACHINES = [Machine(16.0)] * 12


def job(workers: int, servers: int, costs: Costs, *, cores: float = 0.5, seed: int = 0) -> Job:
    chance = random.Random(seed)
    nodes = [Node(cores, chance.randrange(len(MACHINES))) for _ in range(workers + servers)]
    return Job(nodes[:workers], nodes[workers:], [1 / servers] * servers, MACHINES, costs)


@pytest.mark.parametrize("worker", [0.01, 0.04, 0.1], ids=["servers limit", "both", "workers limit"])
def test_a_few_nodes_are_as_fast_and_as_busy_as_all(worker: float) -> None:
    large = job(120, 48, Costs(worker=worker))
    rate = Rates().of_nodes(large.costs, large.workers, large.servers, MACHINES)
    cycle = large.costs.depth * len(large.workers) / large.limit
    all_of_them = run(
        large.workers, large.servers, MACHINES, large.costs, seed=0, seconds=2 * cycle, warm_seconds=cycle
    )
    minibatches = all_of_them.minibatches.sum() / all_of_them.seconds
    assert rate.minibatches == pytest.approx(minibatches, rel=0.04)
    used = all_of_them.cpu_seconds / all_of_them.seconds
    assert sum(one.cpu_seconds for one in rate.workers) == pytest.approx(used[:120].sum(), rel=0.08)
    assert sum(one.cpu_seconds for one in rate.servers) == pytest.approx(used[120:].sum(), rel=0.08)
    moved = sum(one.bytes for one in rate.received)
    assert moved == pytest.approx(all_of_them.moved_bytes.sum() / all_of_them.seconds, rel=0.1)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 300), st.integers(1, 100), st.integers(0, 99))
def test_limits_stay_what_they_are(workers: int, servers: int, seed: int) -> None:
    large = job(workers, servers, Costs(), seed=seed)
    found = sample(large)
    assert len(found.job.workers) == min(workers, MOST_WORKERS)
    assert len(found.job.servers) == min(servers, MOST_SERVERS)
    stands_for = workers / len(found.job.workers)
    assert stands_for * found.job.limit == pytest.approx(large.limit)
    assert sum(found.job.shares) == pytest.approx(1.0)
    for node, at in zip(large.workers, found.as_worker, strict=True):
        assert worker_limit(found.job, found.job.workers[at]) == pytest.approx(worker_limit(large, node))


def test_the_server_that_holds_all_up_is_among_them() -> None:
    large = job(100, 80, Costs())
    shares = [0.5 if at == 63 else 0.5 / 79 for at in range(80)]
    hot = Job(large.workers, large.servers, shares, MACHINES, large.costs)
    found = sample(hot)
    its = found.as_server[63]
    assert found.as_server.count(its) <= 80 // MOST_SERVERS
    limit = server_limit(found.job, found.job.servers[its], found.job.shares[its])
    assert limit * 100 / MOST_WORKERS == pytest.approx(server_limit(hot, hot.servers[63], 0.5))


def test_a_small_job_is_taken_as_it_is() -> None:
    small = job(5, 3, Costs())
    assert sample(small).job is small
