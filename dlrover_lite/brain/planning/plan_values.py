"""What one job can have, and what each of it is worth: the front's points, the same with half the workers, the present plan, those near it
and the smallest one.

value = priority x the integral of dt / t ** rho from T(A') + T_scale[A' is not the present plan] to T_stay, with T the remaining time
(docs/decisions/0017-worth-of-a-plan.md). For a job that doesn't run yet, T_stay is the time with the smallest plan, and nothing has to be
scaled.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np

from dlrover_lite.brain.models.fitted_model import at_reading_limit, most_read, shares_cores
from dlrover_lite.brain.planning.job_view import JobView, Policy
from dlrover_lite.brain.planning.node_placement import HostSpace, fitting_on, worker_places
from dlrover_lite.brain.planning.paper.nsga2 import nsga2_front
from dlrover_lite.brain.planning.pareto import Parts, Points, ThroughputModel, fastest, points_of
from dlrover_lite.brain.planning.plan_grid import (
    MILLI,
    Candidate,
    FloatArray,
    IntArray,
    MemoryNeed,
    lattice_of,
    to_milli,
)
from dlrover_lite.core.units import Resources
from dlrover_lite.protocol.hosts import Host, largest_of

__all__ = [
    "Found",
    "Options",
    "Search",
    "hull",
    "options_of",
    "points_within",
    "reading_all",
    "reading_limit",
    "spread_of",
    "worth",
    "worth_of_beginning",
]

T = TypeVar("T")

_SMALL = 0.5
"""Cores of a worker that takes long to start."""
_LEAST_SECONDS = 1e-3
"""The least remaining time that is told apart from none: the last seconds of a job are worth beyond all bounds."""
_READS_ALL = 0.95
"""Part of what can be read, whatever the plan, from which on reading is what limits a job: measurements differ by as much."""


Found = dict[str, tuple[Hashable, Any]]
"""What was searched with one model, each with what it holds for."""


class Search(NamedTuple):
    name: Hashable
    """Name of the search: where it is the same, it finds the same."""
    find: Callable[..., IntArray]
    """Finds plans of a lattice, as ``pareto.fastest`` does."""


class Options(NamedTuple):
    """Plans that a job can have. Arrays are as long as ``points``; ``now`` and ``minimum`` are positions in them."""

    view: JobView
    points: Points
    """The plans, with throughput as predicted, times ``calibration``."""
    memory: IntArray
    """Bytes of all nodes together."""
    value: FloatArray
    gain: FloatArray
    """Seconds that the job would end sooner than if it stays as it is."""
    least_gain: FloatArray
    """The lower end of the gain's 80% band."""
    most_gain: FloatArray
    minimum: int
    now: int | None
    stay_seconds: float
    """Remaining seconds if the job stays as it is."""
    calibration: float
    """Measured over predicted throughput of the present plan; 1 if not measured."""

    def seconds(self, at: int) -> float:
        """Return the remaining seconds with this plan, the change included."""
        return self.stay_seconds - float(self.gain[at])


def options_of(
    view: JobView,
    model: ThroughputModel,
    capacity: Resources,
    policy: Policy,
    hosts: Sequence[Host] = (),
    *,
    found: Found | None = None,
) -> Options | None:
    """Find the plans that a job can have; None when not even its smallest plan fits into the whole capacity; one that runs then keeps the
    plan it has. Where there are several ``hosts``, no node may be larger than the largest. ``found``: what was searched with the same
    model before, each with what it holds for; it is put in place of that what is searched now."""
    search = Search(policy.search, _search(policy))
    within = points_within(view, model, capacity, hosts, search=search, found=found, near=True)
    return None if within is None else _valued(*within, policy)


def points_within(
    view: JobView,
    model: ThroughputModel,
    capacity: Resources,
    hosts: Sequence[Host],
    *,
    search: Search,
    found: Found | None = None,
    near: bool = False,
) -> tuple[JobView, Points, int] | None:
    """Return the job's view with the sizes that hosts leave, the plans that it can have, and the position of the smallest one; None as of
    ``options_of``. They are what ``search`` finds, the present plan and the smallest; ``near``: others near these, and those of before."""
    if view.most is not None:
        capacity = capacity.within(view.most)
    if len(hosts) > 1:
        narrowed = _on_hosts(view, largest_of(hosts))
        if narrowed is None and view.now is None:
            return None
        view = narrowed or view
    lattice = lattice_of(view.bounds)
    space = HostSpace.of(hosts, view.nodes, view.host_speeds).grouped() if len(hosts) > 1 else None
    fitting = fitting_on(lattice, view.need, capacity.memory, space)
    found = {} if found is None else found
    holds_for = view.bounds, capacity.cores, search.name, fitting.shape, fitting.tobytes()
    flat = _kept(
        found, "front", holds_for, lambda: search.find(lattice, model, most_cores=capacity.cores, fitting=fitting)
    )
    smallest = lattice.smallest(fitting, capacity.cores) if len(flat) else view.now
    if smallest is None:
        return None
    if view.now is not None and view.now.milli <= smallest.milli:
        smallest = view.now
    parts = lattice.parts(flat)
    more = _halved(view, parts) if near else _columns([])
    if near and view.now is not None:
        more = _joined(more, _near(view, view.now, capacity))
        more = _joined(more, _had_before(view, capacity))
    extra = _joined(
        _columns([one for one in (view.now, smallest) if one is not None]), _with_a_place(more, view.need, space)
    )
    keys = _keys(extra)
    new = ~(keys[:, None] == _keys(parts)).any(axis=1)
    new[np.tril(keys[:, None] == keys, -1).any(axis=1)] = False  # the same once more
    more_w, more_p, more_worker_cores, more_ps_cores = (column[new] for column in extra)
    columns = _joined(parts, (more_w, more_p, more_worker_cores, more_ps_cores))
    points = _kept(found, "points", tuple(column.tobytes() for column in columns), lambda: points_of(model, columns))
    return view, points, points.find(smallest)


def _kept(found: Found, name: str, holds_for: Hashable, search: Callable[[], T]) -> T:
    kept = found.get(name)
    if kept is None or kept[0] != holds_for:
        kept = found[name] = holds_for, search()
    its: T = kept[1]
    return its


def _on_hosts(view: JobView, most: Resources) -> JobView | None:
    """Return the view with only those plans whose nodes have ``most`` each; None if there are none."""
    bounds, need = view.bounds, view.need
    worker_sizes, ps_sizes = (
        tuple(size for size in sizes if to_milli(size) <= to_milli(most.cores))
        for sizes in (bounds.worker_sizes, bounds.ps_sizes)
    )
    if not worker_sizes or not ps_sizes or need.worker > most.memory:
        return None
    most_per_ps = most.memory if need.most_per_ps is None else min(most.memory, need.most_per_ps)
    return msgspec.structs.replace(
        view,
        bounds=msgspec.structs.replace(bounds, worker_sizes=worker_sizes, ps_sizes=ps_sizes),
        need=msgspec.structs.replace(need, most_per_ps=most_per_ps),
    )


def _search(policy: Policy) -> Callable[..., IntArray]:
    return fastest if policy.search == "exact" else nsga2_front


def _halved(view: JobView, parts: Parts) -> Parts:
    """List as large plans with half the workers, where they are small: that may be as good but for what the model doesn't know of."""
    w, p, worker_cores, ps_cores = parts
    may = (worker_cores <= _SMALL) & (w % 2 == 0) & (w // 2 >= view.bounds.min_workers)
    may &= np.isin(worker_cores * 2, view.bounds.worker_sizes)
    return w[may] // 2, p[may], worker_cores[may] * 2, ps_cores[may]


def _near(view: JobView, now: Candidate, capacity: Resources) -> Parts:
    """List the plans one step from the present one: these are the surest to be predicted, on the front or not."""
    bounds, need = view.bounds, view.need
    workers = _steps(now.workers, bounds.min_workers, bounds.max_workers)
    servers = _steps(now.servers, bounds.min_servers, bounds.max_servers)
    sizes = now.worker_cores, now.ps_cores
    rows = [(w, p, *sizes) for w in workers for p in servers]
    for factor in (0.5, 2.0):
        if sizes[0] * factor in bounds.worker_sizes:
            rows.append((now.workers, now.servers, sizes[0] * factor, sizes[1]))
        if sizes[1] * factor in bounds.ps_sizes:
            rows.append((now.workers, now.servers, sizes[0], sizes[1] * factor))
    if shares_cores(view.model):  # the same nodes with more cores, whichever of them brings these
        rows += [(now.workers, now.servers, size, sizes[1]) for size in bounds.worker_sizes if size > sizes[0]]
        rows += [(now.workers, now.servers, sizes[0], size) for size in bounds.ps_sizes if size > sizes[1]]
    return _within(rows, need, capacity)


def _had_before(view: JobView, capacity: Resources) -> Parts:
    """List the plans that the job had before and could have again."""
    rows = [
        (plan.workers, plan.servers, plan.worker_cores, plan.ps_cores)
        for plan in (one.plan for one in view.measured_before)
        if view.bounds.holds(plan)
    ]
    return _within(rows, view.need, capacity)


def _within(rows: Sequence[tuple[float, ...]], need: MemoryNeed, capacity: Resources) -> Parts:
    """Return those of these plans for which there are enough cores and memory."""
    if not rows:
        return _columns([])
    w, p, worker_cores, ps_cores = np.array(rows, np.float64).T
    each = need.per_ps(p)
    fits = w * worker_cores + p * ps_cores <= capacity.cores + 1 / MILLI
    fits &= w * need.worker + p * each <= capacity.memory
    if need.most_per_ps is not None:
        fits &= each <= need.most_per_ps
    return w[fits], p[fits], worker_cores[fits], ps_cores[fits]


def _with_a_place(parts: Parts, need: MemoryNeed, space: HostSpace | None) -> Parts:
    """Return those of the plans whose nodes find a place on the hosts."""
    w, p, worker_cores, ps_cores = parts
    if space is None or not len(w):
        return parts
    fits = w <= worker_places(p.astype(np.int64), worker_cores, ps_cores, need, space)
    return w[fits], p[fits], worker_cores[fits], ps_cores[fits]


def _steps(now: int, low: int, high: int) -> list[int]:
    return sorted({count for count in (now // 2, now - 1, now, now + 1, now * 2) if low <= count <= high})


def _columns(candidates: Sequence[Candidate]) -> Parts:
    rows = [(one.workers, one.servers, one.worker_cores, one.ps_cores) for one in candidates]
    w, p, worker_cores, ps_cores = np.array(rows, np.float64).reshape(-1, 4).T
    return w, p, worker_cores, ps_cores


def _joined(some: Parts, more: Parts) -> Parts:
    w, p, worker_cores, ps_cores = (np.concatenate(columns) for columns in zip(some, more, strict=True))
    return w, p, worker_cores, ps_cores


def _keys(parts: Parts) -> IntArray:
    """Number the plans: the same plan, and no other, has the same number."""
    w, p, worker_cores, ps_cores = parts
    counts = (w * 4096 + p).astype(np.int64) << 40
    sizes = np.rint(worker_cores * MILLI) * 2.0**20 + np.rint(ps_cores * MILLI)
    return np.asarray(counts + sizes.astype(np.int64), np.int64)


def _valued(view: JobView, points: Points, minimum: int, policy: Policy) -> Options:
    now = None if view.now is None else points.find(view.now)
    base = minimum if now is None else now
    expected = points.band(base)
    calibration, base_spread = 1.0, float(view.doubt * spread_of(points)[base])
    if now is not None and view.measured is not None and view.measured.expected > 0:
        calibration = view.measured.expected / expected.expected
        base_spread = float(np.log(view.measured.expected / max(view.measured.lower, 1e-300)))
    points = points._replace(
        throughput=points.throughput * calibration,
        lower=points.lower * calibration,
        upper=points.upper * calibration,
    )
    reads_all = (
        now is not None and view.measured is not None and reading_limit(view, view.measured.expected) is not None
    )
    # predictions that missed before it was known what limits the job, whatever its plan, say nothing of those that rest on it
    spreads = (1.0 if reads_all else view.doubt) * np.stack([spread_of(points), _upper_spread(points)])
    if view.measured_before and now is not None:
        points, spreads, (now, minimum) = _as_measured(view, points, spreads, (now, minimum))
        base = now
    rate = float(points.throughput[base])
    stay = policy.horizon_seconds if view.remaining_samples is None else view.remaining_samples / rate
    scale = np.full(len(points.milli), view.scale_seconds if now is not None else 0.0)
    slower, faster = np.exp(np.hypot(spreads, base_spread))
    if now is not None:
        scale[now] = 0.0
        slower[now] = faster[now] = 1.0
    ratio = rate / points.throughput
    gain = stay - stay * ratio - scale
    least_gain, most_gain = stay - stay * ratio * slower - scale, stay - stay * ratio / faster - scale
    if reads_all:  # no plan is faster
        least_gain, gain, most_gain = (np.minimum(each, -scale) for each in (least_gain, gain, most_gain))
    return Options(
        view=view,
        points=points,
        memory=points.memory(view.need),
        value=worth(view.priority, stay, gain, policy.rho),
        gain=gain,
        least_gain=least_gain,
        most_gain=most_gain,
        minimum=minimum,
        now=now,
        stay_seconds=stay,
        calibration=float(calibration),
    )


def worth(priority: float, stay_seconds: float, gain: FloatArray, rho: float) -> FloatArray:
    """Compute what it is worth to end ``gain`` seconds sooner than in ``stay_seconds``, negative where that is later, [n]: ``priority``
    times the integral of dt / t ** ``rho`` from the one remaining time to the other. The difference between two plans follows from their
    own times, whichever of them the job has."""
    stay, left = max(stay_seconds, _LEAST_SECONDS), np.maximum(stay_seconds - gain, _LEAST_SECONDS)
    if rho == 1.0:
        return np.asarray(priority * np.log(stay / left), np.float64)
    return np.asarray(priority * (stay ** (1 - rho) - left ** (1 - rho)) / (1 - rho), np.float64)


def worth_of_beginning(priority: float, seconds: float, rho: float) -> float:
    """Compute what it is worth to end in ``seconds`` rather than never; infinite unless ``rho`` is above 1."""
    if rho <= 1.0:
        return math.inf
    return float(priority * max(seconds, _LEAST_SECONDS) ** (1 - rho) / (rho - 1))


def _as_measured(
    view: JobView, points: Points, spreads: FloatArray, kept: tuple[int, int]
) -> tuple[Points, FloatArray, tuple[int, int]]:
    """Put what was measured in place of what is predicted, for plans that the job had before. Return the points in their order, their
    ``spreads`` [2, n], and where the ``kept`` positions are now."""
    throughput, lower, upper, spreads = (
        column.copy() for column in (points.throughput, points.lower, points.upper, spreads)
    )
    for one in view.measured_before:
        at = points.are(one.plan)
        throughput[at], lower[at], upper[at] = one.throughput
        spreads[:, at] = math.log(one.throughput.upper / one.throughput.expected)
    order = np.lexsort((-throughput, points.milli))
    places = np.argsort(order)
    points = points._replace(throughput=throughput, lower=lower, upper=upper).in_order(order)
    return points, spreads[:, order], (int(places[kept[0]]), int(places[kept[1]]))


def spread_of(points: Points) -> FloatArray:
    """Compute half of the band of each prediction, as a difference of logarithms (the wider half)."""
    down = np.log(points.throughput / np.maximum(points.lower, points.throughput * 1e-9))
    return np.maximum(_upper_spread(points), down)


def _upper_spread(points: Points) -> FloatArray:
    """Compute the upper half of the band of each prediction, as a difference of logarithms."""
    return np.asarray(np.log(points.upper / points.throughput))


def reading_limit(view: JobView, throughput: float) -> float | None:
    """Return the most samples/s that can be read, whatever the plan, if that is what limits a job with this throughput."""
    most = most_read(view.model)
    return most if most is not None and throughput >= _READS_ALL * most else None


def reading_all(one: Options) -> Options:
    """Return the options of a job that runs and that reading limits, with plans as slow as reading or their nodes make them, whichever is
    slower, where they weren't measured. Bands stay as they are."""
    assert one.now is not None
    throughput = at_reading_limit(one.view.model, one.points.throughput)
    for known in one.view.measured_before:
        at = one.points.are(known.plan)
        throughput[at] = one.points.throughput[at]
    throughput[one.now] = one.points.throughput[one.now]
    sooner = one.stay_seconds * throughput[one.now] * (1 / one.points.throughput - 1 / throughput)
    return one._replace(points=one.points._replace(throughput=throughput), gain=one.gain + sooner)


def hull(options: Options, start: int) -> IntArray:
    """Find the upper hull of (cost, value) from ``start`` on: positions with rising cost and value, each step worth less per core than the
    one before."""
    milli, value = options.points.milli.tolist(), options.value.tolist()  # of equal costs the order doesn't matter
    corners, slopes = [start], [math.inf]
    least = last_cost = milli[start]
    highest = value[start]
    for at, (cost, worth) in enumerate(zip(milli, value, strict=True)):
        if worth <= highest or cost <= least:
            continue
        if cost == last_cost:  # as cheap, and worth more
            corners.pop()
            slopes.pop()
            last_cost, highest = milli[corners[-1]], value[corners[-1]]
        slope = (worth - highest) / (cost - last_cost)
        while slope >= slopes[-1]:
            corners.pop()
            slopes.pop()
            last_cost, highest = milli[corners[-1]], value[corners[-1]]
            slope = (worth - highest) / (cost - last_cost)
        corners.append(at)
        slopes.append(slope)
        last_cost, highest = cost, worth
    return np.array(corners, np.int64)
