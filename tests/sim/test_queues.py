"""Minibatches as queues, against what must hold of any queues, and against cases that can be computed by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlrover_lite.backends.sim.physics.machines import Machine
from dlrover_lite.backends.sim.physics.queues import Costs, Node, Window, run
from dlrover_lite.backends.sim.physics.representative_nodes import Job, worker_limit

STEADY = Costs(variation=0.0)
"""Costs without chance."""
PERIOD = 0.1
"""Seconds of the kernel's period of CPU limits: what is used in a window may be off by one of them."""


def rate(window: Window) -> float:
    return float(window.minibatches.sum()) / window.seconds


def test_one_worker_that_waits_for_each_minibatch_takes_the_sum_of_its_phases() -> None:
    costs = Costs(worker=0.02, worker_request=0.001, ps=0.01, ps_request=0.002, latency=0.003, variation=0.0, depth=1)
    window = run([Node(1.0)], [Node(1.0)], [Machine(4.0)], costs, seed=0, seconds=20.0)
    assert rate(window) == pytest.approx(1 / (0.021 + 0.012 + 0.003), rel=0.005)
    assert window.cpu_seconds / window.minibatches == pytest.approx([0.021, 0.012], rel=0.01)


def test_a_saturated_server_serves_as_many_minibatches_as_its_cores_can() -> None:
    window = run([Node(1.0)] * 8, [Node(0.5)], [Machine(64.0)], STEADY, seed=0, seconds=20.0)
    assert rate(window) == pytest.approx(0.5 / (STEADY.ps + STEADY.ps_request), rel=0.01)
    assert window.cpu_seconds[8] == pytest.approx(0.5 * 20.0, rel=0.01)
    assert window.throttled_seconds[8] == pytest.approx(0.5 * 20.0, rel=0.02)


def test_a_host_without_free_cores_gives_as_many_minibatches_as_it_has_cpu_seconds() -> None:
    window = run([Node(1.0)] * 6, [Node(1.0)] * 2, [Machine(2.0)], STEADY, seed=0, seconds=20.0)
    each = STEADY.worker + 2 * STEADY.worker_request + STEADY.ps + 2 * STEADY.ps_request
    assert rate(window) == pytest.approx(2.0 / each, rel=0.01)


def test_a_network_card_carries_as_many_bytes_as_it_can() -> None:
    machines = [Machine(64.0), Machine(64.0, bytes_per_second=20e6)]
    window = run([Node(1.0, 0)] * 8, [Node(1.0, 1)], machines, STEADY, seed=0, seconds=20.0)
    assert rate(window) == pytest.approx(20e6 / (STEADY.batch_size * STEADY.sample_bytes), rel=0.02)
    assert window.moved_seconds[1] == pytest.approx(20.0, rel=0.01)


def test_reading_limits_all_workers_together() -> None:
    costs = Costs(variation=0.0, samples_read_per_second=10_240.0)
    window = run([Node(1.0)] * 8, [Node(1.0)], [Machine(64.0)], costs, seed=0, seconds=20.0)
    assert rate(window) == pytest.approx(10.0, rel=0.01)


@pytest.mark.parametrize(("cores", "speedup"), [(1.0, 1.0), (2.0, 2 / 1.2), (4.0, 4 / 1.6)])
def test_work_is_spread_over_whole_cores_as_far_as_it_is_parallel(cores: float, speedup: float) -> None:
    """Amdahl's law."""
    costs = Costs(worker=0.1, worker_request=0.0, parallel=0.8, ps=0.0, ps_request=1e-6, latency=0.0, variation=0.0)
    window = run([Node(cores)], [Node(1.0)], [Machine(64.0)], costs, seed=0, seconds=50.0)
    assert rate(window) == pytest.approx(speedup / 0.1, rel=0.01)


@pytest.mark.parametrize(
    ("cores", "overlapped", "speedup"),
    [(1.0, 0.3, 1.0), (1.25, 0.3, 1.25), (1.9, 0.3, 1 / 0.7), (4.0, 0.2, 1 / (0.8 * 0.4)), (4.0, 0.3, 1 / 0.3)],
)
def test_some_work_is_done_beside_what_is_computed(cores: float, overlapped: float, speedup: float) -> None:
    """A worker with more than a core uses it, though it computes with one thread; no thread does more than its own work at a time."""
    costs = Costs(0.1, 0.0, parallel=0.8, overlapped=overlapped, ps=0.0, ps_request=1e-6, latency=0.0, variation=0.0)
    window = run([Node(cores)], [Node(1.0)], [Machine(64.0)], costs, seed=0, seconds=50.0)
    assert rate(window) == pytest.approx(speedup / 0.1, rel=0.01)
    assert worker_limit(Job([Node(cores)], [Node(1.0)], [1.0], [Machine(64.0)], costs), Node(cores)) == pytest.approx(
        speedup / 0.1, rel=1e-6
    )


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[Node], list[Node], list[Machine], Costs]:
    cores, speed = st.sampled_from([1.0, 3.0, 8.0]), st.sampled_from([0.5, 1.0, 1.3])
    machines = draw(st.lists(st.builds(Machine, cores, speed, st.just(1e9)), min_size=1, max_size=3))
    node = st.builds(Node, st.sampled_from([0.25, 0.5, 1.0, 2.0]), st.integers(0, len(machines) - 1))
    workers, servers = (draw(st.lists(node, min_size=1, max_size=4)) for _ in range(2))
    variation, overlapped = draw(st.sampled_from([0.0, 0.3])), draw(st.sampled_from([0.0, 0.3]))
    return workers, servers, machines, Costs(overlapped=overlapped, depth=draw(st.integers(1, 2)), variation=variation)


@settings(max_examples=60, deadline=None)
@given(cases(), st.integers(0, 1000))
def test_nothing_gets_more_than_there_is(case: tuple[list[Node], list[Node], list[Machine], Costs], seed: int) -> None:
    workers, servers, machines, costs = case
    window = run(workers, servers, machines, costs, seed=seed, seconds=4.0)
    limits = np.array([node.cores for node in [*workers, *servers]])
    of_workers = [max(1.0, np.floor(node.cores)) / (1.0 - costs.overlapped) for node in workers]
    threads = np.array(of_workers + [1.0] * len(servers))
    # a node may begin and end the window with a quota each
    assert (window.cpu_seconds <= np.minimum(limits, threads) * (4.0 + 2 * PERIOD)).all()
    for at, machine in enumerate(machines):
        here = [n for n, node in enumerate([*workers, *servers]) if node.host == at]
        assert window.cpu_seconds[here].sum() <= machine.cores * 4.0 + 1e-6
    assert (window.moved_bytes <= 1e9 * (4.0 + PERIOD)).all()
    fastest = max(machine.speed for machine in machines)
    alone = costs.worker + costs.worker_request * len(servers)
    most = sum(np.minimum([node.cores for node in workers], of_workers)) * fastest / alone
    assert rate(window) <= most * 1.15 + 2 * len(workers) * costs.depth / 4.0


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 6), st.integers(1, 2), st.sampled_from([0.5, 1.0, 4.0]), st.integers(0, 1000))
def test_minibatches_under_way_are_their_rate_times_their_time(
    workers: int, depth: int, cores: float, seed: int
) -> None:
    """Little's law: each of them is at a station, or on its way for its latency."""
    costs = Costs(depth=depth)
    window = run([Node(1.0)] * workers, [Node(1.0)], [Machine(cores)], costs, seed=seed, seconds=10.0)
    at_stations = float((window.busy_seconds + window.waited_seconds).sum())
    on_the_way = float(window.minibatches.sum()) * costs.latency
    assert at_stations + on_the_way == pytest.approx(workers * depth * 10.0, rel=0.005)


def test_the_same_seed_gives_the_same_window_and_another_one_another() -> None:
    first, again, other = (run([Node(1.0)] * 2, [Node(0.5)], [Machine(2.0)], Costs(), seed=seed) for seed in (1, 1, 2))
    for one, two in zip(first[1:], again[1:], strict=True):
        np.testing.assert_array_equal(one, two)
    assert (first.cpu_seconds != other.cpu_seconds).any()
