"""What every backend must do. A backend's own test file subclasses ``BackendContract`` and provides ``scripted``."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import msgspec
import pytest

from dlrover_lite.core.errors import BackendError, ResizeUnderWay
from dlrover_lite.core.units import MIB, Resources
from dlrover_lite.protocol.nodes import Backend, NodeSpec, Observed, Role, Usage
from tests.backends.support import until

ROLES: tuple[Role, ...] = ("ps", "worker")
GIVEN_BACK = MIB // 4
"""More than the few pages that a node may give back of the memory that it began with; they are counted off what it takes."""


@dataclass
class Scripted:
    """A backend, and nodes that behave as told.

    ``exit:CODE``, ``raise:TEXT``, ``kill:SIGNAL`` (by itself), ``stay`` (until SIGTERM), ``ignore`` (SIGTERM; prints ``deaf``
    once it does). ``work:SECONDS`` of CPU, then it prints ``measured``; ``allocate:BYTES`` (then it prints ``allocated``),
    ``allocate:BYTES,SECONDS`` both;
    ``share:BYTES`` of memory (``shared``); ``parent:BYTES``: a process that it starts allocates them and uses 0.3 s of CPU
    (``child holds``). ``keep:TEXT`` in memory that outlives it, three files of 4 MiB (``kept``); ``look`` at what the node it follows
    has left (``found N files: TEXTS``).
    ``fill:FIRST,THEN`` bytes of an arena that outlives it, THEN after SIGUSR1 (``filled FIRST found F``: F bytes had been left).
    ``fork``: it is there twice (``forked``). These then stay.
    """

    backend: Backend
    wait_for_output: Callable[[str, str], None]
    """(node, text): until the node has printed it."""
    output: Callable[[str], str]
    """What a node has printed so far."""
    another: Callable[[], Backend]
    """A further caller, as a master that was restarted."""
    close: Callable[[], object]
    until: Callable[[Callable[[], object], str], object] = until
    """(condition, what): until it holds."""
    clock: Callable[[], float] = time.monotonic
    """Seconds, as they pass for nodes."""
    numbers: itertools.count[int] = field(default_factory=itertools.count)

    def spec(
        self, behaviour: str, role: Role = "worker", *, cores: float = 1.0, memory: int = 256 * MIB, follows: str = ""
    ) -> NodeSpec:
        return NodeSpec(f"{role}-{next(self.numbers)}", role, Resources(cores, memory), behaviour, follows)

    def launch(
        self, behaviour: str, role: Role = "worker", *, cores: float = 1.0, memory: int = 256 * MIB, follows: str = ""
    ) -> str:
        spec = self.spec(behaviour, role, cores=cores, memory=memory, follows=follows)
        self.backend.launch(spec)
        return spec.id

    def resize(self, node: str, resources: Resources, backend: Backend | None = None) -> None:
        """Resize a node, and wait until it has its new limits."""

        def done() -> bool:
            try:
                (backend or self.backend).resize(node, resources)
            except ResizeUnderWay:
                return False
            return True

        self.until(done, f"{node} to be resized")

    def usage(self, node: str) -> Usage:
        return self.backend.readings().nodes[node]

    def cores_used(self, *nodes: str, seconds: float = 0.5) -> float:
        """CPU seconds per second of these nodes together, over a while: rather too few than too many, as it lasts from before the first
        reading until after the second. Others on the machine make it less."""
        began = self.clock()
        before = [self.usage(node).cpu_seconds for node in nodes]
        read = self.clock()
        self.until(lambda: self.clock() - read > seconds, "a while")
        after = [self.usage(node).cpu_seconds for node in nodes]
        return (sum(after) - sum(before)) / (self.clock() - began)

    def end(self, node: str) -> Observed:
        """End the node at once."""
        self.backend.terminate(node, grace_seconds=0)
        return self.event(node, "exited")

    def event(self, node: str, kind: Literal["started", "exited"]) -> Observed:
        """Wait until the node has started, or has ended."""
        one = Observed()

        def happened() -> bool:
            nonlocal one
            seen = self.backend.observe()
            assert seen is not None
            one = seen.nodes.get(node, one)
            return (one.started_at if kind == "started" else one.ended_at) is not None

        self.until(happened, f"{node} to have {kind}")
        return one

    def version(self) -> int:
        seen = self.backend.observe()
        assert seen is not None
        return seen.version


def _until_used(scripted: Scripted, cores: float, *nodes: str) -> None:
    """Wait until these nodes get about so many cores together; more they may at no time. (Each CPU may finish what it was given in the
    period before, by an earlier limit.)"""

    def gets_them() -> bool:
        used = scripted.cores_used(*nodes)
        assert used < 1.2 * cores + 0.05
        return used > 0.8 * cores

    scripted.until(gets_them, f"{cores:g} cores")


def _nodes_of(backend: Backend) -> dict[str, Observed]:
    seen = backend.observe()
    assert seen is not None
    return dict(seen.nodes)


class BackendContract:
    enforces_fractions = True
    """A limit below a whole core holds, and it is counted for how long it has held a node back."""
    overlooks_unmapped_memory = False
    """What no process has mapped counts for nobody."""
    starts_all_nodes = True
    """No node of the job is started elsewhere."""
    limits_each_node = True
    """The limits that a node was given hold for it alone, whatever else runs there."""
    counted_beside = 0
    """Most bytes that count for a node, though neither it nor what it has started has taken them."""
    overlooked = 0
    """Most bytes that a node has taken and don't count for it, as others in its container have given back so many since it began."""

    def needs_limits_of_each_node(self) -> None:
        if not self.limits_each_node:
            pytest.skip("nodes have the limits of their container, which is given them from outside")

    @staticmethod
    def needs_shared_cores(scripted: Scripted) -> None:
        if not scripted.backend.enforcement().shared_cores:
            pytest.skip("each node has its own limit of CPU")

    def test_capacity_names_each_host_once_with_its_cores_and_memory(self, scripted: Scripted) -> None:
        hosts = scripted.backend.capacity()
        assert len({host.name for host in hosts}) == len(hosts) > 0
        for host in hosts:
            assert host.name and host.resources.cores > 0 and host.resources.memory > 0

    def test_a_node_runs_on_the_host_that_it_is_wanted_on(self, scripted: Scripted) -> None:
        for host in scripted.backend.capacity():
            spec = msgspec.structs.replace(scripted.spec("work:0.1"), host=host.name)
            scripted.backend.launch(spec)
            scripted.wait_for_output(spec.id, "measured")
            assert scripted.backend.readings().on[spec.id] == host.name
            scripted.end(spec.id)

    def test_a_node_wanted_on_a_host_that_is_not_there_is_refused(self, scripted: Scripted) -> None:
        spec = msgspec.structs.replace(scripted.spec("stay"), host="no-such-host")
        with pytest.raises(BackendError, match="no-such-host"):
            scripted.backend.launch(spec)
        seen = scripted.backend.observe()
        assert seen is not None and spec.id not in seen.nodes

    def test_a_node_starts_and_ends(self, scripted: Scripted) -> None:
        node = scripted.launch("exit:0")
        ended = scripted.event(node, "exited")
        assert (ended.reason, ended.exit_code) == ("Succeeded", 0)
        assert ended.started_at is not None and ended.ended_at is not None and ended.started_at <= ended.ended_at

    @pytest.mark.parametrize(
        ("behaviour", "reason", "exit_code", "detail"),
        [
            ("exit:3", "UserError", 3, ""),
            ("exit:7", "Unknown", 7, "exit code 7"),
            ("exit:75", "Preempted", 75, "it got no answer for too long"),
            ("raise:out of luck", "Unknown", 1, "exit code 1"),
            ("kill:9", "Killed", -9, "SIGKILL"),
            ("kill:11", "Killed", -11, "SIGSEGV"),
            ("kill:15", "Preempted", -15, "SIGTERM, sent by the system or another process"),
            ("exit:143", "Preempted", 143, "SIGTERM, sent by the system or another process"),
        ],
    )
    def test_exited_event_gives_reason_exit_code_and_signal(
        self, scripted: Scripted, behaviour: str, reason: str, exit_code: int, detail: str
    ) -> None:
        ended = scripted.event(scripted.launch(behaviour), "exited")
        assert (ended.reason, ended.exit_code) == (reason, exit_code)
        assert detail in ended.detail

    def test_an_observation_has_all_nodes_and_a_version_that_rises_with_each_change(self, scripted: Scripted) -> None:
        versions, nodes = [scripted.version()], []
        for _ in range(2):
            nodes.append(scripted.launch("exit:0"))
            scripted.event(nodes[-1], "exited")
            versions.append(scripted.version())
        assert versions == sorted(set(versions))
        seen = scripted.backend.observe()
        assert seen is not None and all(seen.nodes[node].reason == "Succeeded" for node in nodes)
        assert scripted.backend.observe(after=versions[0]) == seen
        assert scripted.backend.observe(after=seen.version) is None

    def test_launching_the_same_node_again_changes_nothing(self, scripted: Scripted) -> None:
        spec = scripted.spec("exit:0")
        scripted.backend.launch(spec)
        scripted.backend.launch(spec)
        last, version = scripted.event(spec.id, "exited"), scripted.version()
        scripted.backend.launch(spec)
        assert scripted.backend.observe(after=version) is None
        other = scripted.launch("exit:0")
        scripted.event(other, "exited")
        assert scripted.event(spec.id, "exited") == last

    def test_terminated_node_exits_as_killed_on_request(self, scripted: Scripted) -> None:
        node = scripted.launch("stay")
        scripted.event(node, "started")
        scripted.backend.terminate(node, grace_seconds=1000)
        scripted.backend.terminate(node, grace_seconds=1000)
        ended = scripted.event(node, "exited")
        assert (ended.reason, ended.detail) == ("Killed", "ended on request (SIGTERM)")
        version = scripted.version()
        scripted.backend.terminate(node, grace_seconds=0)  # of an ended node: nothing happens
        assert scripted.backend.observe(after=version) is None

    def test_terminating_a_node_right_after_launch_kills_it(self, scripted: Scripted) -> None:
        node = scripted.launch("stay")
        scripted.backend.terminate(node, grace_seconds=1000)
        assert scripted.event(node, "exited").reason == "Killed"

    @pytest.mark.parametrize("grace_seconds", [0.0, 0.05])
    def test_a_deaf_node_is_killed(self, scripted: Scripted, grace_seconds: float) -> None:
        node = scripted.launch("ignore")
        scripted.wait_for_output(node, "deaf")
        scripted.backend.terminate(node, grace_seconds=grace_seconds)
        ended = scripted.event(node, "exited")
        assert (ended.reason, ended.exit_code) == ("Killed", -9)
        assert "killed on request" in ended.detail

    def test_a_later_termination_with_a_shorter_grace_overrides_the_first(self, scripted: Scripted) -> None:
        node = scripted.launch("ignore")
        scripted.wait_for_output(node, "deaf")
        scripted.backend.terminate(node, grace_seconds=1000)
        scripted.backend.terminate(node, grace_seconds=0)
        assert scripted.event(node, "exited").reason == "Killed"

    def test_terminating_a_node_that_never_was_is_refused(self, scripted: Scripted) -> None:
        with pytest.raises(BackendError, match="nobody"):
            scripted.backend.terminate("nobody", grace_seconds=1)

    def test_usage_of_a_running_node_is_measured_and_none_of_an_ended_one(self, scripted: Scripted) -> None:
        node = scripted.launch("work:0.5", role="ps")
        scripted.wait_for_output(node, "measured")
        usage = scripted.usage(node)
        assert usage.cpu_seconds >= 0.4
        assert usage.memory <= usage.peak_memory < 256 * MIB
        scripted.end(node)
        assert node not in scripted.backend.readings().nodes

    def test_readings_are_of_all_nodes_and_their_hosts(self, scripted: Scripted) -> None:
        before = {host.host: host for host in scripted.backend.readings().hosts}
        nodes = [scripted.launch("work:0.3", role="ps"), scripted.launch("work:0.3")]
        for node in nodes:
            scripted.wait_for_output(node, "measured")

        def own_seconds() -> dict[str, float]:
            found = scripted.backend.readings()
            own = dict.fromkeys(found.on.values(), 0.0)
            for node, host in found.on.items():
                own[host] += found.nodes[node].cpu_seconds
            return own if sorted(found.on) == sorted(nodes) else {}

        # Agents tell what they have read now and then: the last reading may be of before the work was done.
        scripted.until(lambda: (own := own_seconds()) and min(own.values()) >= 0.3, "readings of all the work")
        readings = scripted.backend.readings()
        assert sorted(readings.nodes) == sorted(readings.on) == sorted(nodes)
        hosts = {host.host: host for host in readings.hosts}
        assert set(hosts) <= {host.name for host in scripted.backend.capacity()}
        for name in {readings.on[node] for node in nodes}:
            own = sum(readings.nodes[node].cpu_seconds for node in nodes if readings.on[node] == name)
            assert own >= 0.3
            assert hosts[name].cores > 0
            taken = hosts[name].cpu_seconds - (before[name].cpu_seconds if name in before else 0.0)
            assert taken >= 0.8 * own  # the kernel may count hundredths of seconds
        scripted.end(nodes[0])
        assert list(scripted.backend.readings().nodes) == nodes[1:]
        scripted.end(nodes[1])

    def test_usage_counts_memory_and_its_peak(self, scripted: Scripted) -> None:
        node = scripted.launch(f"allocate:{64 * MIB + GIVEN_BACK}")
        scripted.wait_for_output(node, "allocated")
        assert 64 * MIB - self.overlooked <= scripted.usage(node).memory < 128 * MIB + self.counted_beside
        assert scripted.usage(node).peak_memory >= 64 * MIB - self.overlooked
        scripted.end(node)

    def test_usage_counts_shared_memory(self, scripted: Scripted) -> None:
        node = scripted.launch(f"share:{32 * MIB}")
        scripted.wait_for_output(node, "shared")
        assert scripted.usage(node).memory >= 32 * MIB - self.overlooked
        # The kernel brings its statistics up to date now and then.
        scripted.until(lambda: scripted.usage(node).shared_memory >= 31 * MIB, "the shared memory")
        scripted.end(node)

    def test_usage_counts_what_the_node_has_started(self, scripted: Scripted) -> None:
        node = scripted.launch(f"parent:{48 * MIB}")
        scripted.wait_for_output(node, "child holds")
        scripted.until(lambda: scripted.usage(node).memory >= 48 * MIB - self.overlooked, "the child's memory")
        scripted.until(lambda: scripted.usage(node).cpu_seconds >= 0.3, "the child's CPU seconds")
        scripted.end(node)

    def test_a_node_over_its_memory_limit_is_killed(self, scripted: Scripted) -> None:
        self.needs_limits_of_each_node()
        node = scripted.launch(f"allocate:{256 * MIB}", memory=96 * MIB)
        ended = scripted.event(node, "exited")
        assert (ended.reason, ended.exit_code) == ("OOMKilled", -9)
        assert ended.detail.startswith("over its memory limit of 96 MiB")

    def test_a_kill_is_not_taken_for_a_lack_of_memory(self, scripted: Scripted) -> None:
        node = scripted.launch(f"allocate:{64 * MIB}", memory=96 * MIB)
        scripted.wait_for_output(node, "allocated")
        assert scripted.end(node).reason == "Killed"

    def test_memory_can_be_raised_in_place(self, scripted: Scripted) -> None:
        node = scripted.launch("stay", memory=64 * MIB)
        scripted.resize(node, Resources(1.0, 256 * MIB))
        scripted.resize(node, Resources(1.0, 256 * MIB))
        scripted.end(node)
        node = scripted.launch(f"allocate:{96 * MIB + GIVEN_BACK}", memory=1024 * MIB)
        scripted.wait_for_output(node, "allocated")
        with pytest.raises(BackendError, match=r"limited to 64 MiB of memory: .* MiB are in use"):
            scripted.backend.resize(node, Resources(1.0, 64 * MIB))
        assert scripted.usage(node).memory >= 96 * MIB - self.overlooked  # it is still there
        scripted.resize(node, Resources(1.0, 192 * MIB + self.counted_beside))
        scripted.end(node)

    def test_cores_can_be_changed_in_place(self, scripted: Scripted) -> None:
        self.needs_limits_of_each_node()
        if not self.enforces_fractions:
            pytest.skip("; ".join(scripted.backend.enforcement().cannot))
        node = scripted.launch("work:inf", cores=0.1)  # no other node runs, whose cores it could use
        scripted.event(node, "started")

        def use() -> float:
            return scripted.cores_used(node, seconds=0.2)

        def share() -> float:
            """Of the time that it ran or was held back, over a tenth of a second of CPU. Others on the machine make it more."""
            before = scripted.usage(node)
            scripted.until(
                lambda: scripted.usage(node).cpu_seconds > before.cpu_seconds + 0.1, "a tenth of a second of CPU"
            )
            now = scripted.usage(node)
            ran, waited = now.cpu_seconds - before.cpu_seconds, now.throttled_seconds - before.throttled_seconds
            return ran / (ran + waited)

        scripted.until(lambda: scripted.usage(node).throttled_seconds > 0, "being held back")
        scripted.until(lambda: use() < 0.2, "a tenth of a core")
        scripted.resize(node, Resources(1.0, 256 * MIB))
        scripted.until(lambda: share() > 0.3, "a core")
        scripted.resize(node, Resources(0.1, 256 * MIB))
        held_back = scripted.usage(node).throttled_seconds
        scripted.until(lambda: scripted.usage(node).throttled_seconds > held_back, "being held back again")
        scripted.until(lambda: use() < 0.2, "a tenth of a core again")
        scripted.end(node)

    def test_busy_nodes_get_together_what_they_have_together(self, scripted: Scripted) -> None:
        self.needs_shared_cores(scripted)
        busy = [scripted.launch("work:inf", role, cores=0.25) for role in ROLES]
        for node in busy:
            scripted.event(node, "started")
        _until_used(scripted, 0.5, *busy)
        for node in busy:  # neither is kept from its own by the other
            scripted.until(lambda node=node: scripted.cores_used(node) > 0.15, "its part")
        scripted.end(busy[0])
        _until_used(scripted, 0.25, busy[1])
        scripted.end(busy[1])

    def test_a_busy_node_gets_what_an_idle_one_leaves(self, scripted: Scripted) -> None:
        self.needs_shared_cores(scripted)
        idle, busy = scripted.launch("stay", "ps", cores=0.25), scripted.launch("work:inf", cores=0.25)
        for node in (idle, busy):
            scripted.event(node, "started")
        _until_used(scripted, 0.5, busy)
        scripted.resize(idle, Resources(0.05, 256 * MIB))
        _until_used(scripted, 0.3, busy)
        scripted.resize(idle, Resources(0.45, 256 * MIB))
        _until_used(scripted, 0.7, busy)
        scripted.resize(busy, Resources(0.05, 256 * MIB))
        _until_used(scripted, 0.5, busy)
        scripted.end(idle)
        _until_used(scripted, 0.05, busy)
        scripted.end(busy)

    def test_what_is_kept_of_an_ended_node_has_no_cores(self, scripted: Scripted) -> None:
        self.needs_shared_cores(scripted)
        kept, busy = scripted.launch("keep:something", "ps", cores=0.4), scripted.launch("work:inf", cores=0.2)
        scripted.wait_for_output(kept, "kept")
        _until_used(scripted, 0.6, busy)
        scripted.backend.terminate(kept, grace_seconds=0, keep_memory=True)
        scripted.event(kept, "exited")
        _until_used(scripted, 0.2, busy)
        scripted.resize(kept, Resources(0.5, 256 * MIB))
        _until_used(scripted, 0.2, busy)
        follower = scripted.launch("look", "ps", cores=0.4, follows=kept)
        scripted.wait_for_output(follower, "found 3 files")
        _until_used(scripted, 0.6, busy)
        for node in (follower, busy):
            scripted.end(node)

    def test_nodes_that_share_their_cores_are_throttled_together(self, scripted: Scripted) -> None:
        self.needs_shared_cores(scripted)
        idle, busy = scripted.launch("stay", "ps", cores=0.1), scripted.launch("work:inf", cores=0.1)
        for node in (idle, busy):
            scripted.event(node, "started")
            scripted.until(lambda node=node: scripted.usage(node).throttled_seconds > 0.3, "being held back")
        late = scripted.launch("stay", cores=0.1)
        scripted.event(late, "started")
        read = scripted.backend.readings().nodes
        assert read[late].throttled_seconds < read[idle].throttled_seconds  # since it started
        scripted.end(busy)
        before = scripted.usage(idle).throttled_seconds
        scripted.cores_used(idle)
        assert scripted.usage(idle).throttled_seconds < before + 0.1  # nothing needs more than there is
        for node in (idle, late):
            scripted.end(node)

    def test_resizing_an_unknown_node_is_refused_and_an_ended_one_ignored(self, scripted: Scripted) -> None:
        with pytest.raises(BackendError, match="nobody"):
            scripted.backend.resize("nobody", Resources(1.0, 1 << 28))
        node = scripted.launch("exit:0")
        scripted.event(node, "exited")
        scripted.resize(node, Resources(2.0, 1 << 28))

    @pytest.mark.parametrize("resources", [Resources(0.0, 1 << 28), Resources(1.0, 0), Resources(-1.0, 1 << 28)])
    def test_resources_of_zero_or_less_are_refused(self, scripted: Scripted, resources: Resources) -> None:
        with pytest.raises(BackendError, match=r"must be above 0|Expected `float` >= 0"):
            scripted.backend.launch(NodeSpec("worker-nothing", "worker", resources, "exit:0"))
        node = scripted.launch("stay")
        with pytest.raises(BackendError, match=r"must be above 0|Expected `float` >= 0"):
            scripted.backend.resize(node, resources)
        scripted.end(node)

    @pytest.mark.parametrize("role", ["ps", "worker"])
    def test_a_follower_has_its_own_limits_and_counters(self, scripted: Scripted, role: Role) -> None:
        self.needs_limits_of_each_node()
        first = scripted.launch(f"allocate:{256 * MIB}", role, memory=96 * MIB)
        assert scripted.event(first, "exited").reason == "OOMKilled"
        scripted.resize(first, Resources(1.0, 128 * MIB))
        second = scripted.launch(f"allocate:{128 * MIB + GIVEN_BACK},0.3", role, memory=256 * MIB, follows=first)
        scripted.wait_for_output(second, "measured")
        usage = scripted.usage(second)
        assert 128 * MIB - self.overlooked <= usage.memory <= usage.peak_memory
        assert scripted.end(second).reason == "Killed"  # what happened to the first one isn't taken for its own
        third = scripted.launch("stay", role, follows=second)
        scripted.event(third, "started")
        assert scripted.usage(third).peak_memory < 96 * MIB
        assert scripted.usage(third).cpu_seconds < usage.cpu_seconds
        scripted.end(third)

    @pytest.mark.parametrize("role", ["ps", "worker"])
    def test_a_follower_finds_what_was_kept(self, scripted: Scripted, role: Role) -> None:
        """And whoever follows it in turn."""
        last = scripted.launch("keep:from the first", role)
        scripted.wait_for_output(last, "kept")
        for _ in range(2):
            scripted.backend.terminate(last, grace_seconds=0, keep_memory=True)
            scripted.event(last, "exited")
            last = scripted.launch("look", role, follows=last)
            scripted.wait_for_output(last, "found 3 files: from the first 0 from the first 1")
        stranger = scripted.launch("look", role)
        scripted.wait_for_output(stranger, "found 0 files")
        for node in (last, stranger):
            scripted.end(node)

    def test_kept_memory_stays_charged_to_the_node_and_its_follower(self, scripted: Scripted) -> None:
        if self.overlooks_unmapped_memory:
            pytest.skip("memory that nobody has mapped isn't seen")
        node = scripted.launch("keep:something", "ps")
        scripted.wait_for_output(node, "kept")
        scripted.backend.terminate(node, grace_seconds=0, keep_memory=True)
        scripted.event(node, "exited")
        with pytest.raises(BackendError, match=r"limited to 8 MiB of memory: .* in use"):
            scripted.backend.resize(node, Resources(1.0, 8 * MIB))
        follower = scripted.launch("look", "ps", follows=node)
        scripted.wait_for_output(follower, "found 3 files")
        assert scripted.usage(follower).memory >= 12 * MIB - self.overlooked
        scripted.end(follower)
        if not self.counted_beside:
            scripted.resize(follower, Resources(1.0, 8 * MIB))

    @pytest.mark.parametrize("when", ["asked to end", "ended"])
    def test_kept_memory_is_freed_when_the_node_is_terminated_for_good(self, scripted: Scripted, when: str) -> None:
        node = scripted.launch("keep:something", "ps")
        scripted.wait_for_output(node, "kept")
        if when == "ended":
            scripted.backend.terminate(node, grace_seconds=0, keep_memory=True)
            scripted.event(node, "exited")
        scripted.backend.terminate(node, grace_seconds=0)
        scripted.event(node, "exited")
        follower = scripted.launch("look", "ps", follows=node)
        scripted.wait_for_output(follower, "found 0 files")
        scripted.end(follower)

    def test_only_an_ended_node_of_the_same_role_can_be_followed_and_once(self, scripted: Scripted) -> None:
        node = scripted.launch("stay")
        refused = [("worker", node, "has not ended"), ("ps", node, "a worker")]
        if self.starts_all_nodes:
            refused.append(("worker", "nobody", "nobody"))
        for role, follows, why in refused:
            with pytest.raises(BackendError, match=why):
                scripted.launch("exit:0", role, follows=follows)  # type: ignore[arg-type]
        scripted.end(node)
        follower = scripted.launch("exit:0", follows=node)
        with pytest.raises(BackendError, match=f"{follower} does already"):
            scripted.launch("exit:0", follows=node)
        scripted.event(follower, "exited")

    def test_a_second_caller_sees_and_controls_the_same_nodes(self, scripted: Scripted) -> None:
        spec = scripted.spec("stay")
        scripted.backend.launch(spec)
        scripted.event(spec.id, "started")
        other = scripted.another()
        scripted.until(lambda: _nodes_of(other) == _nodes_of(scripted.backend), "both to see the same")
        other.launch(spec)
        scripted.until(lambda: spec.id in other.readings().nodes, "its usage")
        scripted.resize(spec.id, Resources(0.5, 128 * MIB + self.counted_beside), other)
        other.terminate(spec.id, grace_seconds=0)
        ended = scripted.event(spec.id, "exited")
        other.launch(spec)
        scripted.until(lambda: _nodes_of(other)[spec.id] == ended, "its end")

    def test_enforcement_of_limits_is_reported(self, scripted: Scripted) -> None:
        enforcement = scripted.backend.enforcement()
        assert enforcement.kind
        assert enforcement == scripted.another().enforcement()

    def test_node_log_holds_its_output_and_traceback(self, scripted: Scripted) -> None:
        node = scripted.launch("raise:out of luck")
        scripted.event(node, "exited")
        text = scripted.output(node)
        assert text.startswith(f"node {node} ")
        assert "RuntimeError: out of luck" in text

    def test_a_node_id_is_no_path(self, scripted: Scripted) -> None:
        with pytest.raises(BackendError, match="node's id"):
            scripted.backend.launch(NodeSpec("../up", "worker", Resources(1.0, 1 << 28), "exit:0"))
