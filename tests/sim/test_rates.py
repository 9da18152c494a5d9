"""Rates are looked up by what they depend on, and by nothing else."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlrover_lite.backends.sim.physics.machines import Machine
from dlrover_lite.backends.sim.physics.queues import Costs, Node
from dlrover_lite.backends.sim.physics.rates import NodeRate, Rate, Rates

COSTS = Costs()
UNLIKE = [Machine(8.0), Machine(8.0, 0.5), Machine(4.0)]
KNOWN = Rates()
"""Rates of the whole file: a case is run once."""


@settings(max_examples=30, deadline=None)
@given(st.randoms(use_true_random=False))
def test_order_of_nodes_and_names_of_machines_change_nothing(chance: random.Random) -> None:
    workers = [Node(1.0, 0), Node(1.0, 1), Node(2.0, 1), Node(1.0, 2)]
    servers, shares = [Node(0.5, 0), Node(1.0, 2)], [0.7, 0.3]
    before = KNOWN.of(COSTS, workers, servers, UNLIKE, shares)
    cases = len(KNOWN)
    to = chance.sample(range(3), 3)
    machines = [UNLIKE[to.index(at)] for at in range(3)]
    moved = [Node(node.cores, to[node.host]) for node in chance.sample(workers, 4)]
    pairs = chance.sample([*zip(servers, shares, strict=True)], 2)
    after = KNOWN.of(
        COSTS, moved, [Node(node.cores, to[node.host]) for node, _ in pairs], machines, [share for _, share in pairs]
    )
    assert (after, len(KNOWN)) == (before, cases)


def test_a_machine_without_nodes_changes_nothing() -> None:
    alone = KNOWN.of(COSTS, [Node(1.0)], [Node(1.0)], [Machine(8.0)])
    assert KNOWN.of(COSTS, [Node(1.0)], [Node(1.0)], [Machine(8.0), Machine(1.0, 0.1)]) == alone


@pytest.mark.parametrize(
    ("machine", "shares"),
    [(Machine(8.0, 0.5), ()), (Machine(1.0), ()), (Machine(8.0), (0.9, 0.1))],
    ids=["slower", "fewer cores", "uneven"],
)
def test_what_slows_a_job_is_another_case(machine: Machine, shares: tuple[float, ...]) -> None:
    workers, servers = [Node(1.0)] * 4, [Node(0.25)] * 2
    usual = KNOWN.of(COSTS, workers, servers, [Machine(8.0)])
    assert KNOWN.of(COSTS, workers, servers, [machine], shares).samples < 0.9 * usual.samples


def test_the_cores_that_are_used_are_what_the_minibatches_cost() -> None:
    rate = KNOWN.of(COSTS, [Node(1.0)] * 2, [Node(1.0)], [Machine(8.0)])
    minibatches = rate.samples / COSTS.batch_size
    assert rate.worker_cores == pytest.approx(minibatches * (COSTS.worker + COSTS.worker_request), rel=0.05)
    assert rate.server_cores == pytest.approx(minibatches * (COSTS.ps + COSTS.ps_request), rel=0.05)


def test_long_minibatches_are_looked_at_for_as_long_as_they_take() -> None:
    slow = Costs(worker=4.0, variation=0.0, parallel=0.0)
    rate = KNOWN.of(slow, [Node(1.0)], [Node(1.0)], [Machine(8.0)])
    assert rate.samples == pytest.approx(COSTS.batch_size / 4.0, rel=0.01)


@pytest.mark.parametrize(("workers", "servers"), [(0, 1), (1, 0)])
def test_without_workers_or_servers_nothing_is_trained(workers: int, servers: int) -> None:
    assert KNOWN.of(COSTS, [Node(1.0)] * workers, [Node(1.0)] * servers, UNLIKE) == Rate(0.0, 0.0, 0.0)


@settings(max_examples=30, deadline=None)
@given(st.randoms(use_true_random=False))
def test_each_node_is_told_its_own_rate_in_whatever_order_nodes_are_named(chance: random.Random) -> None:
    workers = [Node(1.0, 0), Node(0.25, 1), Node(2.0, 1), Node(1.0, 2), Node(0.5, 2)]
    servers, shares = [Node(0.5, 0), Node(1.0, 2), Node(1.0, 2)], [0.6, 0.3, 0.1]
    before = KNOWN.of_nodes(COSTS, workers, servers, UNLIKE, shares)
    order, of_servers = chance.sample(range(5), 5), chance.sample(range(3), 3)
    after = KNOWN.of_nodes(
        COSTS,
        [workers[at] for at in order],
        [servers[at] for at in of_servers],
        UNLIKE,
        [shares[at] for at in of_servers],
    )
    assert after.workers == tuple(before.workers[at] for at in order)
    assert after.servers == tuple(before.servers[at] for at in of_servers)
    assert after.received == before.received


def test_rates_of_nodes_add_up_to_the_job_s() -> None:
    workers, servers = [Node(1.0, 0), Node(0.5, 1)], [Node(0.5, 0), Node(1.0, 2)]
    of_nodes, of_job = (ask(COSTS, workers, servers, UNLIKE) for ask in (KNOWN.of_nodes, KNOWN.of))
    assert of_nodes.minibatches * COSTS.batch_size == pytest.approx(of_job.samples)
    assert sum(one.cpu_seconds for one in of_nodes.workers) == pytest.approx(of_job.worker_cores)
    assert sum(one.cpu_seconds for one in of_nodes.servers) == pytest.approx(of_job.server_cores)
    slow = of_nodes.workers[1]
    assert slow.cpu_seconds < 0.53
    assert slow.busy_seconds > 0.99
    assert all(one.bytes > 0 for one in of_nodes.received), "rows and gradients go from each machine to another"


def test_without_servers_nodes_stand() -> None:
    stands = NodeRate(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    assert KNOWN.of_nodes(COSTS, [Node(1.0)], [], UNLIKE).workers == (stands,)
