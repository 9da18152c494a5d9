"""Profiles of intervals: from totals that everybody tells at other moments, through changes of the plan."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlrover_lite.jobs.profiles import Gap
from dlrover_lite.master.profiling.counter_interpolation import Series
from dlrover_lite.master.profiling.profiler import Pace, Part, Profiler, Situation
from dlrover_lite.protocol.messages import PeerTransfers, PsCounters, PsReport, TableCount, WorkReport
from dlrover_lite.protocol.nodes import HostUsage, Readings, Usage
from dlrover_lite.protocol.profiles import Profile, observe

EPOCH = 1_000_000.0
"""Seconds since the epoch at 0 of the steady clock."""
PACE = Pace(seconds=10, first_seconds=10, least_seconds=4, warm_up_seconds=3, patience_seconds=3, look_seconds=10)
"""None ends because a node gets slow (``test_slowdown_detector``), and the first is as long as the others."""
WORKERS, SERVERS = ("worker-0", "worker-1", "worker-2"), ("ps-0", "ps-1")
HOST = "here"


class Told(NamedTuple):
    """By one source at one moment: how much has come since it last told."""

    at: float
    source: str
    more: float


class World:
    """Feeds a profiler, and remembers what each source has told: totals, as points of a curve."""

    def __init__(self, pace: Pace = PACE, *, shared_cores: bool = False) -> None:
        self.profiler = Profiler("job", batch_size=100, samples_so_far=1_000, pace=pace, shared_cores=shared_cores)
        self.now = 0.0
        self.curves: dict[str, list[tuple[float, float]]] = {}
        self.profiles: list[Profile] = []
        self.gaps: list[Gap] = []
        self.situations: list[tuple[float, Situation]] = []

    def tell(self, told: Told) -> None:
        self.now = told.at
        curve = self.curves.setdefault(told.source, [])
        total = (curve[-1][1] if curve else 0.0) + told.more
        curve.append((told.at, total))
        if told.source.startswith("worker"):
            samples, seconds = round(100 * told.more), {"compute": told.more / 10}
            report = WorkReport(
                seconds=seconds, cpu_seconds={"compute": told.more / 20}, read_delay_seconds=told.more / 40
            )
            whole = round(told.more)
            self.profiler.worked(self.now, told.source, samples=samples, minibatches=whole, report=report)
        elif told.source.startswith("ps"):
            counters = PsCounters(total / 100, total / 50, round(2 * total), 7, [TableCount("t", 4, round(total))])
            self.profiler.served(self.now, PsReport(told.source, 5, 9, round(total), counters=counters))
        else:  # the backend: of all nodes at once
            nodes = {node: Usage(total, 1000, 2000, 0, total / 8) for node in (*WORKERS, *SERVERS)}
            readings = Readings(nodes, dict.fromkeys(nodes, HOST), [HostUsage(HOST, 4.0, 6 * total)])
            self.profiler.readings(self.now, readings)
        self.take(self.profiler.tick(self.now, EPOCH + self.now))

    def change(self, at: float, situation: Situation) -> None:
        self.now = at
        self.situations.append((at, situation))
        self.take(self.profiler.situation(at, EPOCH + at, situation))

    def take(self, found: Profile | Gap | None) -> None:
        if isinstance(found, Profile):
            self.profiles.append(found)
        elif found is not None:
            self.gaps.append(found)

    def total(self, source: str, at: float) -> float:
        times, totals = zip(*self.curves[source], strict=True)
        return float(np.interp(at, times, totals))

    def risen(self, source: str, profile: Profile) -> float:
        end = profile.at - EPOCH
        return self.total(source, end) - self.total(source, end - profile.seconds)


def plan(workers: int = 2, ps: int = 2, cores: float = 1.0, disturbed: str = "") -> Situation:
    parts = [Part(node, "ps", 0.5) for node in SERVERS[:ps]] + [Part(n, "worker", cores) for n in WORKERS[:workers]]
    return Situation(tuple(parts), disturbed)


def evenly(world: World, until: float, *, step: float = 0.5, rate: float = 10.0, sources: Any = None) -> None:
    """All tell at once, and do as much each second; ``sources``: those of the plan, if nothing else is said."""
    sources = sources or ("backend", *(part.node for part in world.situations[-1][1].parts))
    for source in sources:
        if source not in world.curves:
            world.tell(Told(world.now, source, 0.0))
    while world.now < until - 1e-9:
        at = world.now + step
        for source in sources:
            world.tell(Told(at, source, rate * step))


@pytest.mark.parametrize("shared", [True, False])
def test_a_profile_says_whether_nodes_share_their_cores(shared: bool) -> None:
    world = World(shared_cores=shared)
    world.change(0.0, plan())
    evenly(world, 14.0)
    assert [profile.shared_cores for profile in world.profiles] == [shared]


def test_an_interval_holds_the_work_done_in_it() -> None:
    world = World()
    world.change(0.0, plan(cores=1.5))
    evenly(world, 14.0)
    (profile,) = world.profiles
    assert (profile.job, profile.batch_size, profile.seconds) == ("job", 100, 10.0)
    assert profile.at == pytest.approx(EPOCH + 13.0)
    assert profile.samples == 2 * 10 * 100 * 10  # of the two workers that the plan has, for 10 s
    worker, server = profile.workers[0], profile.ps[0]
    assert [each.node for each in (*profile.workers, *profile.ps)] == ["worker-0", "worker-1", "ps-0", "ps-1"]
    assert (worker.host, worker.cores, worker.minibatches) == (HOST, 1.5, 100)
    assert (worker.cpu_seconds, worker.throttled_seconds) == (pytest.approx(100), pytest.approx(12.5))
    assert worker.phase_seconds == {"compute": pytest.approx(10)}
    assert worker.phase_cpu_seconds == {"compute": pytest.approx(5)}
    assert worker.read_delay_seconds == pytest.approx(2.5)
    assert (server.minibatches, server.requests, server.rows, server.row_bytes) == (100, 200, 5, 7)
    assert (server.busy_seconds, server.queue_seconds) == (pytest.approx(1), pytest.approx(2))
    assert (server.used_bytes, server.peak_bytes) == (1000, 2000)
    (host,) = profile.hosts
    assert (host.host, host.cores) == (HOST, 4.0)
    assert host.other_cores == pytest.approx((6 - 4) * 10)  # of six times what a node takes, four nodes' own
    (table,) = profile.tables
    assert (table.table, table.dim, table.rows) == ("t", 4, {"ps-0": 130, "ps-1": 130})
    assert (table.total_rows, table.shares(["ps-1", "ps-2"])) == (260, {"ps-1": 0.5, "ps-2": 0.0})
    assert [(table.table, table.total_rows) for table in profile.tables] == [("t", 260)]
    assert profile.relative_sd == pytest.approx(0, abs=1e-9)


def test_the_first_interval_after_each_change_is_short() -> None:
    """So that something is known of a new job, or of a new plan, soon; those that follow, and tell more, are whole."""
    world = World(msgspec.structs.replace(PACE, first_seconds=4))
    world.change(0.0, plan())
    evenly(world, 30.0)
    assert [profile.seconds for profile in world.profiles] == [4.0, 10.0, 10.0]
    assert [profile.at - EPOCH for profile in world.profiles] == [7.0, 17.0, 27.0]
    for profile in world.profiles:  # each has what was done in it, no more
        assert sum(use.minibatches for use in profile.workers) == pytest.approx(20 * profile.seconds)
    world.change(30.0, plan(disturbed="slots move"))
    world.change(32.0, plan())
    evenly(world, 50.0)
    assert [profile.seconds for profile in world.profiles[3:]] == [4.0, 10.0]
    assert world.profiler.has_measured


def test_the_end_of_an_interval_is_known_beforehand() -> None:
    world = World()
    assert world.profiler.ends is None
    world.change(0.0, plan())
    assert (world.profiler.ends, world.profiler.has_measured) == (13.0, False)
    evenly(world, 14.0)
    assert (world.profiler.ends, world.profiler.has_measured) == (23.0, True)
    world.change(15.0, plan(disturbed="a worker starts"))
    assert (world.profiler.ends, world.profiler.has_measured) == (None, False)


def test_memory_levels_of_servers_are_known_before_any_interval() -> None:
    """Within a second of the first work, though an interval would begin later, if at all; and as of one moment."""
    world = World()
    world.change(0.0, plan(disturbed="worker-1 has not begun to train"))
    assert world.profiler.level(0.0, EPOCH) is None
    evenly(world, 1.0, sources=("backend", "worker-0", *SERVERS))
    level = world.profiler.level(1.2, EPOCH + 1.2)
    assert level is not None and level.at == pytest.approx(EPOCH + 1.0)
    assert level.samples_so_far == 1_000 + 100 * 10 and level.samples_per_second == pytest.approx(1000)
    assert [(one.node, one.rows, one.row_bytes, one.used_bytes) for one in level.ps] == [
        ("ps-0", 5, 7, 1000),
        ("ps-1", 5, 7, 1000),
    ]
    assert level.tables[0].rows == {"ps-0": 10, "ps-1": 10}
    assert world.profiler.level(1.3, EPOCH + 1.3) is None  # nobody has told anything new
    evenly(world, 6.0, sources=("backend", *SERVERS))  # the worker is at something else
    later = world.profiler.level(6.0, EPOCH + 6.0)
    assert later is not None and later.at == pytest.approx(EPOCH + 6.0 - PACE.patience_seconds)
    assert later.samples_so_far == level.samples_so_far and later.samples_per_second < 1000
    assert later.tables[0].rows["ps-0"] == 30
    evenly(world, 9.0, sources=("backend", *SERVERS))
    used: list[Mapping[str, int]] = []

    def is_news(its: Mapping[str, int]) -> bool:
        used.append(its)
        return False

    assert world.profiler.level(9.0, EPOCH + 9.0, is_news) is None
    assert used == [{"ps-0": 1000, "ps-1": 1000}], "it is no news, and told so"


def test_varying_throughput_is_marked() -> None:
    world = World()
    world.change(0.0, plan())
    evenly(world, 3.0)
    for second in range(3, 14):
        evenly(world, second + 1.0, rate=20.0 if second < 8 else 5.0)
    (profile,) = world.profiles
    assert profile.relative_sd > 0.05


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 2**32),
    st.lists(st.tuples(st.floats(0.5, 25.0), st.integers(1, 3), st.integers(1, 2), st.booleans()), max_size=6),
)
def test_intervals_are_of_one_plan_and_add_up_to_all_work(
    seed: int, changes: list[tuple[float, int, int, bool]]
) -> None:
    """Sources tell when they like, up to 2 s apart, and nodes come and go."""
    random = np.random.default_rng(seed)
    world = World()
    told = [
        Told(float(at), name, float(more))
        for name in (*WORKERS, *SERVERS, "backend")
        for at, more in zip(random.uniform(0.05, 2.0, 80).cumsum(), random.integers(0, 30, 80), strict=True)
    ]
    due = list(itertools.accumulate(after for after, *_ in changes))
    events: list[tuple[float, Any]] = [(each.at, each) for each in told]
    events += [
        (at, plan(workers, ps, disturbed="slots move" if disturbed else ""))
        for at, (_, workers, ps, disturbed) in zip(due, changes, strict=True)
    ]
    world.change(0.0, plan())
    last = min(max(each.at for each in told if each.source == name) for name in {each.source for each in told})
    for at, event in sorted(events, key=lambda each: each[0]):
        if at > last:  # somebody is silent from then on
            break
        if isinstance(event, Told):
            world.tell(event)
        elif event != world.situations[-1][1]:
            world.change(at, event)
    assert not world.gaps
    check_each(world)
    check_together(world)


def check_each(world: World) -> None:
    ends = [at for at, _ in world.situations[1:]] + [world.now]
    for profile in world.profiles:
        end, began = profile.at - EPOCH, profile.at - EPOCH - profile.seconds
        assert PACE.least_seconds - 1e-6 <= profile.seconds <= PACE.seconds + 1e-6
        ((changed, situation),) = [
            each for each, until in zip(world.situations, ends, strict=True) if each[0] <= began and end <= until + 1e-6
        ]
        assert not situation.disturbed
        assert began >= changed + PACE.warm_up_seconds - 1e-6
        nodes = [part.node for part in situation.parts]
        assert sorted(each.node for each in (*profile.workers, *profile.ps)) == sorted(nodes)
        for use in (*profile.workers, *profile.ps):
            assert use.minibatches == pytest.approx(world.risen(use.node, profile), abs=1.01)
            assert use.cpu_seconds == pytest.approx(world.risen("backend", profile), abs=1e-6)
        for worker in profile.workers:
            assert worker.phase_seconds["compute"] == pytest.approx(world.risen(worker.node, profile) / 10, abs=1e-6)
        samples = 100 * sum(world.risen(worker.node, profile) for worker in profile.workers)
        assert profile.samples == pytest.approx(samples, abs=3.1)


def check_together(world: World) -> None:
    """None overlap, and those in a row are as one: no minibatch is lost between them, or is in both."""
    for first, second in itertools.pairwise(world.profiles):
        assert second.at - second.seconds >= first.at - 1e-6
        assert second.samples_so_far >= first.samples_so_far
    for row in rows(world.profiles):
        began, end = row[0].at - row[0].seconds - EPOCH, row[-1].at - EPOCH
        for i, worker in enumerate(row[0].workers):
            total = world.total(worker.node, end) - world.total(worker.node, began)
            assert sum(profile.workers[i].minibatches for profile in row) == pytest.approx(total, abs=1.01)
    last = {node: curve[-1][1] for node, curve in world.curves.items() if node in WORKERS}
    assert all(profile.samples_so_far <= 1_000 + 100 * sum(last.values()) for profile in world.profiles)


def rows(profiles: list[Profile]) -> list[list[Profile]]:
    found: list[list[Profile]] = []
    for profile in profiles:
        if found and abs(profile.at - profile.seconds - found[-1][-1].at) < 1e-6:
            found[-1].append(profile)
        else:
            found.append([profile])
    return found


def test_a_change_of_plan_ends_an_interval_and_settling_is_left_out() -> None:
    world = World()
    world.change(0.0, plan(workers=2))
    evenly(world, 9.0)
    world.change(9.0, plan(workers=3))
    (first,) = world.profiles
    assert (first.seconds, len(first.workers)) == (pytest.approx(6.0), 2)
    evenly(world, 23.0)
    second = world.profiles[1]
    assert second.at - second.seconds == pytest.approx(EPOCH + 9.0 + 3.0)
    assert (len(second.workers), second.seconds) == (3, 10.0)


@pytest.mark.parametrize("until", [4.0, 6.5])
def test_a_short_interval_is_dropped(until: float) -> None:
    world = World()
    world.change(0.0, plan())
    evenly(world, until)
    world.change(until, plan(cores=2.0))
    assert not world.profiles


def test_no_interval_is_measured_while_slots_move() -> None:
    world = World()
    world.change(0.0, plan(disturbed="slots move"))
    evenly(world, 30.0)
    assert not world.profiles
    assert world.profiler.disturbed == "slots move"
    world.change(30.0, plan())
    evenly(world, 44.0)
    assert [profile.seconds for profile in world.profiles] == [10.0]


def test_a_silent_workers_later_work_counts_in_a_later_interval() -> None:
    """It isn't waited for longer than patience allows, and what it tells later is counted later."""
    world = World()
    world.change(0.0, plan(workers=2))
    evenly(world, 8.0)
    evenly(world, 15.5, sources=("worker-0", *SERVERS, "backend"))
    assert not world.profiles
    evenly(world, 16.5, sources=("worker-0", *SERVERS, "backend"))
    (profile,) = world.profiles
    assert [worker.minibatches for worker in profile.workers] == [100, 50]
    world.tell(Told(17.0, "worker-1", 30.0))
    evenly(world, 24.0)
    second = world.profiles[1]
    assert second.workers[1].minibatches == 30 + 6 * 10


def test_missing_cpu_seconds_are_reported_as_a_gap() -> None:
    world = World()
    world.change(0.0, plan())
    evenly(world, 16.5, sources=(*WORKERS, *SERVERS))
    assert not world.profiles
    (gap,) = world.gaps
    assert gap.at == pytest.approx(EPOCH + 13.0)
    assert (gap.seconds, gap.why) == (10.0, "nothing is known of the CPU seconds of ps-0, ps-1, worker-0, worker-1")


def test_samples_of_an_ended_worker_stay_counted() -> None:
    world = World()
    world.change(0.0, plan(workers=2))
    evenly(world, 14.0)
    world.change(14.0, plan(workers=1))
    evenly(world, 28.0)
    first, second = world.profiles
    assert (first.samples, first.samples_so_far) == (20_000, 1_000 + 2 * 13_000)
    assert (second.samples, second.samples_so_far) == (10_000, 1_000 + 14_000 + 27_000)


def test_a_series_forgets_only_what_is_not_needed() -> None:
    series = Series()
    for at in range(6):
        series.tell(float(at), {"n": at * at})
    series.forget(3.5)
    assert series.at(3.5) == {"n": 12.5}
    assert series.at(9.0) == {"n": 25}
    assert series.at(0.0) == {"n": 9}
    assert Series().at(1.0) == {}


@given(st.lists(st.dictionaries(st.sampled_from("ab"), st.floats(0, 9)), max_size=4), st.floats(-1, 5))
def test_one_total_is_as_it_is_among_all(told: list[dict[str, float]], time: float) -> None:
    series = Series()
    for at, values in enumerate(told):
        series.tell(float(at), values)
    assert series.one_at(time, "a") == series.at(time).get("a", 0.0)


def test_what_comes_from_other_hosts_is_measured_by_host() -> None:
    """Rows by PS, gradients by workers; on one host nothing comes from elsewhere."""
    profiler = Profiler("job", batch_size=100, samples_so_far=0, pace=PACE)
    on = {"ps-0": "a", "worker-0": "a", "worker-1": "b"}
    addresses = {"ps-0": "10.0.0.9", "worker-0": "10.0.0.1", "worker-1": "10.0.0.2"}
    profiler.situation(0.0, EPOCH, Situation((Part("ps-0", "ps", 1.0), *(Part(n, "worker", 1.0) for n in WORKERS[:2]))))
    found = None
    for second in range(15):
        nodes = {node: Usage(second * 0.5, 1000, 2000, 0, 0.0) for node in on}
        hosts = [HostUsage(host, 4.0, float(second)) for host in ("a", "b")]
        profiler.readings(second, Readings(nodes, on, hosts, addresses))
        for worker in WORKERS[:2]:
            profiler.worked(second, worker, samples=100, minibatches=1, report=WorkReport())
        transfers = [PeerTransfers(addresses[w], 700 * second, 300 * second, 7_000.0) for w in WORKERS[:2]]
        counters = PsCounters(second / 10, 0.0, 2 * second, 7, [], transfers)
        profiler.served(second, PsReport("ps-0", 5, 9, second, counters=counters))
        found = found or profiler.tick(second, EPOCH + second)
    assert isinstance(found, Profile)
    assert {h.host: (h.received_bytes, round(h.receiving_seconds, 6)) for h in found.hosts} == {
        "a": (3_000, round(3_000 / 7_000, 6)),
        "b": (7_000, 1.0),
    }
    seen = observe(found)
    assert seen is not None and seen.byte_seconds == pytest.approx(1 / 7_000)
