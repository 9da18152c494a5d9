"""What the simulated backend has beyond the contract: shared machines, room that is waited for, starts in phases, chance by seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlrover_lite.backends.sim.backend import SimBackend
from dlrover_lite.backends.sim.clock import EventClock
from dlrover_lite.backends.sim.cluster import Cluster
from dlrover_lite.backends.sim.physics.machines import Machine
from dlrover_lite.backends.sim.physics.startup import CLUSTER, WORKSTATION, Startup
from dlrover_lite.backends.sim.pools import Pool
from dlrover_lite.backends.sim.process import Process
from dlrover_lite.core.errors import BackendError, CantResize
from dlrover_lite.core.units import GIB, Resources
from dlrover_lite.protocol.nodes import NodeSpec, Observed

EPOCH = 1_700_000_000.0


class Busy:
    """Computes without an end, with two threads."""

    def begin(self, process: Process) -> None:
        self._process = process
        process.hold(GIB // 4)
        process.do(float("inf"), threads=2.0)

    def resized(self) -> None:
        pass

    def asked_to_end(self) -> None:
        self._process.end(0)

    def ended(self) -> None:
        self.has_ended = True


class Jobs:
    """Backends of some jobs on the same machines."""

    def __init__(
        self, *machines: Machine, startup: Startup = WORKSTATION, seed: int = 0, pools: Sequence[Pool] = ()
    ) -> None:
        self.clock = EventClock()
        of_pools = [pool for pool in pools for _ in range(pool.most)]
        names = {f"host-{at}": one for at, one in enumerate([*machines, *(pool.machine for pool in of_pools)])}
        self.cluster = Cluster(names, self.clock, dict(zip(list(names)[len(machines) :], of_pools, strict=True)))
        self._startup, self._seed = startup, seed

    def backend(self, job: str = "one") -> SimBackend:
        return SimBackend(self.cluster, lambda _: Busy(), startup=self._startup, seed=self._seed, job=job, epoch=EPOCH)

    def passes(self, seconds: float) -> None:
        self.clock.run_until(self.clock.now + seconds)


def spec(node: str, cores: float = 1.0, memory: int = GIB, **more: object) -> NodeSpec:
    return msgspec.structs.replace(NodeSpec(node, "worker", Resources(cores, memory), ""), **more)


def seen(backend: SimBackend, node: str) -> Observed:
    found = backend.observe()
    assert found is not None
    return found.nodes[node]


def test_a_node_without_room_waits_for_it_and_says_so() -> None:
    jobs = Jobs(Machine(4.0))
    one, other = jobs.backend("one"), jobs.backend("other")
    one.launch(spec("worker-0", 3.0))
    other.launch(spec("worker-0", 2.0))
    other.launch(spec("worker-1", 1.0))
    jobs.passes(60.0)
    waiting = seen(other, "worker-0")
    assert waiting.started_at is None and not waiting.host
    assert waiting.no_room == "none of 1 machines has 2 cores and 1 GiB left"
    assert waiting.detail == f"pending: {waiting.no_room}"
    assert seen(other, "worker-1").host == "host-0"
    one.terminate("worker-0", grace_seconds=10)
    jobs.passes(60.0)
    placed = seen(other, "worker-0")
    assert (placed.host, placed.no_room, placed.detail) == ("host-0", "", "")
    assert placed.started_at is not None and placed.started_at > EPOCH + 60.0


def test_a_node_whose_host_is_full_starts_on_another_rather_than_nowhere() -> None:
    jobs = Jobs(Machine(2.0), Machine(2.0))
    backend = jobs.backend()
    for node in range(3):
        backend.launch(spec(f"worker-{node}", host="host-0"))
    backend.launch(spec("worker-3", 2.0, host="host-1"))
    assert [seen(backend, f"worker-{node}").host for node in range(4)] == ["host-0", "host-0", "host-1", ""]
    backend.terminate("worker-0", grace_seconds=0)
    backend.terminate("worker-1", grace_seconds=0)
    assert seen(backend, "worker-3").host == "host-0"


def test_machines_of_a_pool_come_for_who_waits_and_go_when_they_stand_idle() -> None:
    pool = Pool(Machine(4.0, memory=8 * GIB), least=0, most=3, grow_seconds=100.0, shrink_seconds=300.0)
    jobs = Jobs(
        Machine(1.0),
        pools=[pool],
        startup=Startup(1.0, 1.0, 0.0, image_bytes=6e9, pulled_bytes_per_second=1e8, variation=0.0),
    )
    backend = jobs.backend()
    there = jobs.cluster.is_there
    assert [host.resources.cores for host in backend.capacity()] == [1.0, 4.0, 4.0, 4.0], "what may come counts"
    backend.launch(spec("worker-0", host="host-3"))
    assert seen(backend, "worker-0").host == "host-0", "a host that isn't there is a wish like any other"
    backend.launch(spec("worker-1", 4.0))
    backend.launch(spec("ps-0", 0.5, 6 * GIB))
    backend.launch(spec("worker-2", 5.0))  # larger than any machine: nothing comes for it
    assert seen(backend, "ps-0").no_room == "none of 1 machines has 0.5 cores and 6 GiB left"
    jobs.passes(99.0)
    assert [there(f"host-{at}") for at in range(1, 4)] == [False] * 3
    jobs.passes(2.0)
    assert [seen(backend, node).host for node in ("worker-1", "ps-0", "worker-2")] == ["host-1", "host-2", ""]
    jobs.passes(1000.0)
    assert [there(f"host-{at}") for at in range(1, 4)] == [True, True, False], "one came for nobody, or went in use"
    backend.terminate("ps-0", grace_seconds=0)
    jobs.passes(299.0)
    backend.launch(spec("ps-1", 0.5, GIB))
    jobs.passes(2.0)
    assert there("host-2"), "it went while a node was on it"
    backend.terminate("ps-1", grace_seconds=0)
    jobs.passes(301.0)
    assert [there(f"host-{at}") for at in range(1, 4)] == [True, False, False]
    backend.launch(spec("ps-2", 0.5, GIB))
    assert seen(backend, "ps-2").host == ""
    jobs.passes(120.0)
    assert seen(backend, "ps-2").detail.startswith("pulling"), "a machine that comes anew has no image"


def test_room_is_given_to_who_waits_longest() -> None:
    jobs = Jobs(Machine(4.0))
    backend = jobs.backend()
    for node in range(4):
        backend.launch(spec(f"worker-{node}", 2.0))
    jobs.passes(10.0)
    backend.terminate("worker-1", grace_seconds=0)
    assert (seen(backend, "worker-2").host, seen(backend, "worker-3").host) == ("host-0", "")
    backend.terminate("worker-2", grace_seconds=0)  # while it is being started
    assert seen(backend, "worker-2").reason == "Killed"
    assert seen(backend, "worker-3").host == "host-0"


def test_a_node_that_is_made_smaller_gives_room_to_another() -> None:
    jobs = Jobs(Machine(4.0))
    backend = jobs.backend()
    for node in range(3):
        backend.launch(spec(f"worker-{node}", 2.0))
    backend.resize("worker-0", Resources(1.0, GIB))
    assert seen(backend, "worker-2").no_room
    backend.resize("worker-1", Resources(1.0, GIB))
    assert seen(backend, "worker-2").host == "host-0"


@pytest.mark.parametrize("keeps", [True, False])
def test_room_of_a_server_whose_memory_outlives_it_is_kept_for_the_one_that_follows(keeps: bool) -> None:
    """As a pod keeps it. Found by seed 902569: a worker took the cores, and what followed found none beside the memory."""
    jobs = Jobs(Machine(4.0, memory=4 * GIB))
    backend = jobs.backend()
    backend.launch(spec("ps-0", 3.0, 2 * GIB, role="ps"))
    backend.launch(spec("worker-0", 2.0))
    jobs.passes(5.0)
    server = backend.processes["ps-0"]
    if keeps:
        server.keep("arena", GIB // 4)
    server.end(-9)
    assert seen(backend, "worker-0").host == ("" if keeps else "host-0")
    if not keeps:
        return
    backend.launch(spec("ps-1", 3.0, 3 * GIB, role="ps", follows="ps-0"))
    assert seen(backend, "ps-1").host == "host-0"
    backend.terminate("ps-1", grace_seconds=0)
    jobs.passes(5.0)
    assert seen(backend, "worker-0").host == "host-0"


def test_a_server_that_has_ended_takes_no_more_room_by_being_resized() -> None:
    """Found by seed 976350: it took more than its machine has."""
    jobs = Jobs(Machine(4.0, memory=4 * GIB))
    backend = jobs.backend()
    backend.launch(spec("ps-0", 3.0, 2 * GIB, role="ps"))
    jobs.passes(5.0)
    backend.processes["ps-0"].keep("arena", GIB // 4)
    backend.processes["ps-0"].end(-9)
    backend.resize("ps-0", Resources(8.0, 8 * GIB))
    assert jobs.cluster.left("host-0") == Resources(1.0, 2 * GIB)


def test_what_a_node_takes_up_is_where_it_was_left() -> None:
    jobs = Jobs(Machine(4.0), Machine(16.0))
    backend = jobs.backend()
    backend.launch(spec("ps-0", role="ps", host="host-0"))
    jobs.passes(10.0)
    backend.processes["ps-0"].keep("arena", GIB // 2, "rows")
    backend.terminate("ps-0", grace_seconds=0, keep_memory=True)
    assert jobs.cluster.left("host-0") == Resources(3.0, 63 * GIB), "its room isn't kept for who takes it up"
    with pytest.raises(BackendError, match=r"limited to 256 MiB of memory: 512 MiB are in use"):
        backend.launch(spec("ps-1", role="ps", follows="ps-0", memory=GIB // 4))
    backend.launch(spec("ps-1", role="ps", follows="ps-0"))
    jobs.passes(10.0)
    assert seen(backend, "ps-1").host == "host-0"
    assert backend.processes["ps-1"].kept["arena"].content == "rows"
    assert jobs.cluster.left("host-0") == Resources(3.0, 63 * GIB)


def test_a_machine_that_fails_takes_all_on_it_and_all_memory_along() -> None:
    jobs = Jobs(Machine(4.0), Machine(2.0))
    backend = jobs.backend()
    backend.launch(spec("ps-0", role="ps", host="host-0"))
    backend.launch(spec("ps-1", role="ps", host="host-0"))
    backend.launch(spec("worker-0", 3.5, host="host-0"))  # there is no room for it
    jobs.passes(10.0)
    for node in ("ps-0", "ps-1"):
        backend.processes[node].keep("arena", GIB // 2, "rows")
    backend.terminate("ps-1", grace_seconds=0, keep_memory=True)
    for process in jobs.cluster.fail("host-0"):
        backend.lost(process)
    assert (seen(backend, "ps-0").reason, seen(backend, "ps-0").detail) == (
        "Preempted",
        "its machine, host-0, has failed",
    )
    assert [host.name for host in backend.capacity()] == ["host-1"]
    for at in range(2):
        backend.launch(spec(f"ps-{at + 2}", role="ps", follows=f"ps-{at}"))
    jobs.passes(10.0)
    assert [(seen(backend, node).host, backend.processes[node].kept) for node in ("ps-2", "ps-3")] == [
        ("host-1", {}),
        ("host-1", {}),
    ]
    assert seen(backend, "worker-0").no_room
    jobs.cluster.repair("host-0")
    assert seen(backend, "worker-0").host == "host-0"


def test_a_node_that_is_stopped_has_its_memory_and_no_core() -> None:
    jobs = Jobs(Machine(2.0))
    backend = jobs.backend()
    backend.launch(spec("worker-0", 1.0))
    jobs.passes(5.0)
    before = backend.readings().nodes["worker-0"]
    backend.processes["worker-0"].pause(True)
    jobs.passes(10.0)
    assert backend.readings().nodes["worker-0"] == before
    backend.processes["worker-0"].pause(False)
    jobs.passes(10.0)
    assert backend.readings().nodes["worker-0"].cpu_seconds == pytest.approx(before.cpu_seconds + 10.0)


def test_a_machine_that_gets_slower_has_done_what_it_did_before() -> None:
    clock, done = EventClock(), list[float]()
    cluster = Cluster({"here": Machine(4.0)}, clock)
    process = Process("one", Resources(1.0, GIB), "", {}, changed=lambda one: cluster.settle(one.host), ends=print)
    cluster.place(process, "here")
    process.state = "running"
    process.do(2.0, lambda: done.append(clock.now))
    clock.run_until(1.0)
    cluster.set_speed("here", 0.25)
    clock.run_until(10.0)
    assert done == [5.0]


def test_hosts_are_avoided_as_long_as_there_is_another() -> None:
    jobs = Jobs(Machine(16.0), Machine(2.0))
    backend = jobs.backend()
    backend.launch(spec("worker-0", 2.0, avoids=["host-0"]))
    backend.launch(spec("worker-1", 2.0, avoids=["host-0"]))
    assert [seen(backend, f"worker-{at}").host for at in range(2)] == ["host-1", "host-0"]


def test_resizing_tells_what_never_fits_from_what_does_not_fit_now() -> None:
    jobs = Jobs(Machine(4.0))
    backend = jobs.backend()
    backend.launch(spec("worker-0", 2.0))
    backend.launch(spec("worker-1", 1.0))
    with pytest.raises(CantResize, match="more than the machine has"):
        backend.resize("worker-0", Resources(5.0, GIB))
    with pytest.raises(BackendError, match=r"4 cores and 1 GiB on host-0: 3 cores and 63 GiB are left") as refused:
        backend.resize("worker-0", Resources(4.0, GIB))
    assert not isinstance(refused.value, CantResize)
    backend.terminate("worker-1", grace_seconds=0)
    backend.resize("worker-0", Resources(4.0, GIB))


def test_jobs_of_a_machine_share_its_cores() -> None:
    """Both may use a core and want two: their limits hold them back for half of the time."""
    jobs = Jobs(Machine(2.0))
    backends = [jobs.backend(name) for name in ("one", "two")]
    for backend in backends:
        backend.launch(spec("worker-0", 1.0))
    jobs.passes(5.0)
    before = [backend.readings() for backend in backends]
    jobs.passes(10.0)
    for backend, earlier in zip(backends, before, strict=True):
        later = backend.readings()
        used = later.nodes["worker-0"].cpu_seconds - earlier.nodes["worker-0"].cpu_seconds
        throttled = later.nodes["worker-0"].throttled_seconds - earlier.nodes["worker-0"].throttled_seconds
        assert (used, throttled) == (pytest.approx(10.0), pytest.approx(5.0))
        (host,), (host_before,) = later.hosts, earlier.hosts
        assert host.cpu_seconds - host_before.cpu_seconds == pytest.approx(20.0)


def test_readings_are_of_the_machines_that_nodes_run_on() -> None:
    """A job uses few machines of a large cluster."""
    jobs = Jobs(Machine(2.0), Machine(2.0), Machine(2.0))
    backend = jobs.backend()
    backend.launch(spec("worker-0", host="host-1"))
    jobs.passes(5.0)
    assert [host.host for host in backend.readings().hosts] == ["host-1"]
    assert len(backend.capacity()) == 3


def test_memory_that_would_outlive_a_node_counts_against_its_limit() -> None:
    jobs = Jobs(Machine(4.0))
    backend = jobs.backend()
    backend.launch(spec("ps-0", role="ps"))
    jobs.passes(5.0)
    backend.processes["ps-0"].keep("arena", GIB)
    ended = seen(backend, "ps-0")
    assert (ended.reason, ended.detail) == ("OOMKilled", "over its memory limit of 1 GiB (it came to 1.25 GiB)")


def test_work_on_a_slow_machine_takes_more_cpu_seconds() -> None:
    clock, done = EventClock(), list[float]()
    cluster = Cluster({"slow": Machine(4.0, 0.5)}, clock)
    process = Process("one", Resources(1.0, GIB), "", {}, changed=lambda one: cluster.settle(one.host), ends=print)
    cluster.place(process, "slow")
    process.state = "running"
    for _ in range(2):  # one after the other
        process.do(1.0, lambda: done.append(clock.now))
    clock.run_until(1.0)
    cluster.settle("slow")  # what is left is counted anew
    clock.run_until(10.0)
    assert (done, process.cpu_seconds, cluster.cpu_seconds["slow"]) == ([2.0, 4.0], 4.0, 4.0)


def test_an_image_is_pulled_once_for_each_machine_and_each_phase_is_told() -> None:
    jobs = Jobs(Machine(8.0), startup=replace(CLUSTER, variation=0.0))
    backend = jobs.backend()
    backend.launch(spec("worker-0"))
    told = []
    while seen(backend, "worker-0").started_at is None:
        told.append(seen(backend, "worker-0").detail)
        jobs.clock.run_until(jobs.clock.next_at)
    assert [one.partition(":")[0] for one in told] == ["pending", "pulling", "starting"]
    pulled = CLUSTER.image_bytes / CLUSTER.pulled_bytes_per_second
    assert jobs.clock.now == pytest.approx(CLUSTER.pending_seconds + pulled + CLUSTER.starting_seconds)
    backend.launch(spec("worker-1"))
    jobs.passes(CLUSTER.pending_seconds + CLUSTER.starting_seconds + 0.01)
    assert seen(backend, "worker-1").started_at is not None


def test_a_start_takes_as_long_whatever_else_is_started() -> None:
    """So that another policy meets the same machines."""

    def started(*nodes: str, seed: int = 0) -> float:
        jobs = Jobs(Machine(8.0), seed=seed)
        backend = jobs.backend()
        for node in nodes:
            backend.launch(spec(node))
        jobs.passes(60.0)
        at = seen(backend, "worker-1").started_at
        assert at is not None
        return at

    assert started("worker-1") == started("worker-0", "worker-2", "worker-1") != started("worker-1", seed=1)


ACTS = st.one_of(
    st.tuples(st.just("launch"), st.integers(0, 7), st.sampled_from([0.5, 1.0, 3.0, 9.0]), st.sampled_from([1, 7])),
    st.tuples(st.just("resize"), st.integers(0, 7), st.sampled_from([0.5, 2.0, 5.0]), st.sampled_from([1, 4])),
    st.tuples(st.just("terminate"), st.integers(0, 7), st.sampled_from([0.0, 1.0]), st.just(0)),
    st.tuples(st.just("pass"), st.just(0), st.sampled_from([0.02, 0.5, 20.0]), st.just(0)),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(ACTS, max_size=30))
def test_machines_never_give_more_than_they_have(acts: list[tuple[str, int, float, int]]) -> None:
    jobs = Jobs(Machine(4.0, memory=8 * GIB), Machine(2.0, 0.5, memory=8 * GIB))
    backend = jobs.backend()
    for act, number, amount, gib in acts:
        node = f"worker-{number}"
        try:
            match act:
                case "launch":
                    backend.launch(spec(node, amount, gib * GIB))
                case "resize":
                    backend.resize(node, Resources(amount, gib * GIB))
                case "terminate":
                    backend.terminate(node, grace_seconds=amount)
                case "pass":
                    jobs.passes(amount)
        except BackendError:
            pass
        readings = backend.readings()
        for name, machine in jobs.cluster.machines.items():
            alive = [one for one in backend.processes.values() if one.host == name and one.state != "ended"]
            assert sum(one.limits.cores for one in alive) <= machine.cores + 1e-6
            assert sum(one.limits.memory for one in alive) <= machine.memory
            assert sum(one.cores for one in alive) <= machine.cores + 1e-6
        for host in readings.hosts:
            assert host.cpu_seconds <= host.cores * jobs.clock.now + 1e-6
    jobs.passes(60.0)
    for name, process in backend.processes.items():
        waits = seen(backend, name).no_room
        assert (process.state == "waiting") == bool(waits) and process.state != "placed"
        if waits:
            assert not jobs.cluster.find(process)[0], "it has room, and wasn't given it"
