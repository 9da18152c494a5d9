"""The front is exactly that of all points, whichever way it is found."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dlrover_lite.brain.planning.pareto import SeparableModel, exact_front
from dlrover_lite.brain.planning.plan_grid import Bounds, Candidate, Lattice, MemoryNeed, even_sizes, lattice_of
from dlrover_lite.core.errors import UsageError
from tests.brain.models import SMALL, Bumpy, Sides

sizes = st.lists(st.sampled_from([0.1, 0.25, 0.3, 0.5, 1.0, 1.5]), min_size=1, max_size=3, unique=True).map(tuple)
bounds = st.builds(
    lambda w, more_w, p, more_p, a, b: Bounds(
        min_workers=w, max_workers=w + more_w, min_servers=p, max_servers=p + more_p, worker_sizes=a, ps_sizes=b
    ),
    st.integers(1, 3), st.integers(0, 4), st.integers(1, 2), st.integers(0, 3), sizes, sizes,
)  # fmt: skip
sides = st.builds(
    lambda worker, request, server, latency, host: Sides(
        worker=worker, request=request, server=server, latency=latency, host=host
    ),
    st.floats(0.001, 0.1), st.floats(0, 0.02), st.floats(0.001, 0.1), st.floats(0, 0.1), st.sampled_from([0.5, 2.0, 1e9]),
)  # fmt: skip
models = st.one_of(sides, st.builds(lambda seed: Bumpy(seed=seed), st.integers(0, 1000)))
needs = st.builds(
    lambda worker, ps, tables, most, fixed: MemoryNeed(
        worker=worker, ps=ps, tables=tables, most_per_ps=most, fixed_ps=fixed
    ),
    st.integers(0, 100), st.integers(0, 50), st.integers(0, 500), st.sampled_from([None, 120, 300]), st.sampled_from([None, 70, 200]),
)  # fmt: skip
TINY = 0.0032922629204230618


def all_of(bounds):
    counts = itertools.product(
        range(bounds.min_workers, bounds.max_workers + 1), range(bounds.min_servers, bounds.max_servers + 1)
    )
    return [Candidate(w, p, a, b) for w, p in counts for a in bounds.worker_sizes for b in bounds.ps_sizes]


def brute_force(bounds, model, cores, need, most_bytes):
    """(cost, throughput) of the points that none other is better than or equal to, all of them exactly as they are predicted."""
    points = sorted(
        (one.milli, -float(model.predict(*one.parts())[0][0]))
        for one in all_of(bounds)
        if one.milli <= cores * 1000 and need.fits(one, most_bytes)
    )
    front, best = [], 0.0
    for milli, slower in points:
        if slower < best:
            front.append((milli, -slower))
            best = slower
    return front


@settings(max_examples=100, deadline=None)
@given(bounds, models, st.sampled_from([0.4, 1.0, 2.5, 1e6]), needs, st.sampled_from([None, 300, 900]))
@example(
    Bounds(min_workers=1, max_workers=4, min_servers=1, max_servers=1, worker_sizes=(0.1, 1.0), ps_sizes=(0.1,)),
    Sides(worker=0.001953125, server=0.0625, request=0.0, latency=0.0, host=0.5),
    1e6,
    MemoryNeed(),
    None,
)
def test_pareto_front_equals_brute_force_over_all_plans(bounds, model, cores, need, most_bytes):
    front = exact_front(lattice_of(bounds), model, most_cores=cores, need=need, most_bytes=most_bytes)
    wanted = brute_force(bounds, model, cores, need, most_bytes)
    if front is None:
        assert wanted == []
        return
    assert front.on_front.all()
    assert (np.diff(front.milli) > 0).all() and (np.diff(front.throughput) > 0).all()
    costs, speeds = (np.array(values) for values in zip(*wanted, strict=True))
    # of plans that differ by less than what is rounded away, one of both may have another one more than the other
    for cost in {*front.milli.tolist(), *costs.tolist()}:
        found = float(front.throughput[front.milli <= cost].max(initial=0.0))
        assert found == pytest.approx(float(speeds[costs <= cost].max(initial=0.0)), rel=1e-9)
    for at in range(len(front.milli)):
        one = front.candidate(at)
        assert bounds.holds(one)
        assert one.milli == front.milli[at]
        assert need.fits(one, most_bytes)
        assert front.memory(need)[at] == need.of(one)


@settings(max_examples=40, deadline=None)
@given(bounds, sides)
@example(
    Bounds(min_workers=1, max_workers=2, min_servers=1, max_servers=1, worker_sizes=(0.1, 0.25), ps_sizes=(0.1, 0.25)),
    Sides(worker=TINY, server=TINY, request=TINY, latency=0.0625, host=0.5),
)
def test_both_ways_find_the_same(bounds, model):
    class AsAWhole:
        predict = staticmethod(model.predict)

    assert isinstance(model, SeparableModel) and not isinstance(AsAWhole(), SeparableModel)
    by_sides = exact_front(lattice_of(bounds), model, most_cores=100)
    by_points = exact_front(lattice_of(bounds), AsAWhole(), most_cores=100)
    assert by_sides is not None and by_points is not None
    # of plans that differ by less than what is rounded away, one of both may have another one more than the other
    for cost in {*by_sides.milli.tolist(), *by_points.milli.tolist()}:
        best = [float(front.throughput[front.milli <= cost].max(initial=0.0)) for front in (by_sides, by_points)]
        assert best[0] == pytest.approx(best[1], rel=1e-9)


@settings(max_examples=60, deadline=None)
@given(bounds, needs, st.sampled_from([0.4, 1.0, 1e6]), st.sampled_from([None, 300, 900]))
def test_smallest_plan_is_the_cheapest_that_fits(bounds, need, cores, most_bytes):
    fitting = [one for one in all_of(bounds) if one.milli <= cores * 1000 and need.fits(one, most_bytes)]
    smallest = (lattice := Lattice(bounds)).smallest(lattice.fitting(need, most_bytes), cores)
    if not fitting:
        assert smallest is None
        return
    assert smallest in fitting
    assert smallest.milli == min(one.milli for one in fitting)


def test_lattices_of_equal_bounds_are_shared():
    assert lattice_of(SMALL) is lattice_of(Bounds(**{name: getattr(SMALL, name) for name in SMALL.__struct_fields__}))


def test_the_largest_lattice_of_a_machine_holds_all_plans():
    large = Lattice(Bounds(worker_sizes=even_sizes(8), ps_sizes=even_sizes(8)))
    assert len(large) == 524_288
    assert large.unit_milli == 500


def test_high_counts_go_in_small_steps():
    large = Lattice(Bounds(max_workers=4000, max_servers=1000, worker_sizes=(0.5, 1.0), ps_sizes=(1.0,)))
    for counts, most in ((large.worker_counts, 4000), (large.servers, 1000)):
        assert counts[:64].tolist() == list(range(1, 65)) and counts[-1] == most
        assert (np.diff(counts) <= np.maximum(1, counts[:-1] // 32)).all() and len(counts) < 250
    assert set(large.workers.tolist()) == set(large.worker_counts.tolist())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"max_workers": 0}, "from 1 to 0 workers"),
        ({"min_servers": 4}, "from 4 to 3 parameter servers"),
        ({"ps_sizes": ()}, "at least one"),
        ({"worker_sizes": (0.0001,)}, "at least 0.001"),
    ],
)
def test_bounds_that_hold_no_plan_are_refused(changes, words):
    fields = {name: getattr(SMALL, name) for name in SMALL.__struct_fields__} | changes
    with pytest.raises(UsageError, match=words):
        Lattice(Bounds(**fields))
