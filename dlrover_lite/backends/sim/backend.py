"""The simulated backend: nodes of one job on machines of a virtual clock. It keeps the contract of backends; only time isn't real."""

from __future__ import annotations

import signal
from collections.abc import Callable
from functools import partial

from dlrover_lite.backends.keeper.nodes import Node, Nodes, SendSignal
from dlrover_lite.backends.limits.base import OverMemory, check_resources, too_small
from dlrover_lite.backends.sim.clock import Event, source_of_chance
from dlrover_lite.backends.sim.cluster import Cluster, fits, words_of
from dlrover_lite.backends.sim.physics.startup import Phases, Startup
from dlrover_lite.backends.sim.process import Process, Program
from dlrover_lite.core.errors import BackendError, CantResize
from dlrover_lite.core.units import Resources, format_bytes
from dlrover_lite.protocol.hosts import Host
from dlrover_lite.protocol.nodes import Backend, Enforcement, HostUsage, NodeSpec, Observation, Readings, Usage

__all__ = ["SimBackend"]


class SimBackend:
    """The nodes of a job. A master that is started again goes on with the same one, as it would with a cluster.

    A node that finds no room waits for it, as a pod does. What a start takes depends on the seed, the job and the node's name alone.
    """

    def __init__(
        self,
        cluster: Cluster,
        program: Callable[[NodeSpec], Program],
        *,
        startup: Startup,
        seed: int = 0,
        job: str = "",
        epoch: float = 0.0,
        ceiling: Resources | None = None,
        shared_cores: bool = False,
    ) -> None:
        """``program`` makes what runs in a node. ``epoch``: seconds since the epoch at the clock's 0. ``ceiling``: the most that the job's
        nodes may use together. ``shared_cores``: as of ``Enforcement``; what a node gets then is its program's matter."""
        self.nodes = Nodes()
        self.processes: dict[str, Process] = {}
        self._programs: dict[str, Program] = {}
        self._cluster, self._clock = cluster, cluster.clock
        self._program, self._startup = program, startup
        self._seed, self._job, self._epoch = seed, job, epoch
        self._ceiling = ceiling
        self._shared_cores = shared_cores
        self._starts: dict[str, Event] = {}
        """Next step of each node that is being started."""

    # --- the interface ---------------------------------------------------------------------------------------------------

    def capacity(self) -> list[Host]:
        """Return the machines that work, those of pools among them that would come if nodes waited for room."""
        machines, failed = self._cluster.machines, self._cluster.failed
        has = {name: Resources(one.cores, one.memory) for name, one in machines.items() if name not in failed}
        ceiling = self._ceiling
        return [Host(name, its if ceiling is None else its.within(ceiling)) for name, its in has.items()]

    def shared_room(self) -> None:
        """Return None: what ``capacity`` tells doesn't depend on what others have."""

    def launch(self, spec: NodeSpec) -> None:
        if spec.id in self.nodes.by_id:
            return
        check_resources(spec.id, spec.resources)
        if spec.host and spec.host not in self._cluster.machines:
            raise BackendError(
                f"Node {spec.id} can't be launched on {spec.host}: there is no machine of that name",
                hint=f"Launch it without a host, or on one of {', '.join(self._cluster.machines)}.",
            )
        self.nodes.check(spec)
        followed = self.processes.get(spec.follows)
        if followed is not None and followed.outliving_bytes > spec.resources.memory:
            raise too_small(spec.id, spec.resources.memory, followed.outliving_bytes)
        self.nodes.launch(spec)
        process = Process(spec.id, spec.resources, "", {}, changed=self._changed, ends=self._ends)
        self.processes[spec.id] = process
        if followed is not None and followed.kept:
            process.kept, followed.kept, process.reserved = followed.kept, {}, followed.limits
            self._cluster.place(process, followed.host)
        if not self._try_to_place(spec):
            self._cluster.when_room(process, lambda: self._try_to_place(spec))

    def resize(self, node: str, resources: Resources) -> None:
        self.nodes.known(node)
        check_resources(node, resources)
        process = self.processes[node]
        if process.bytes > resources.memory:
            raise too_small(node, resources.memory, process.bytes)
        if process.state == "ended":
            return  # what it has left keeps the room that it has
        if process.state in ("placed", "running"):
            self._check_room(process, resources)
        if process.host:
            self._cluster.count([process.host])
        process.limits = resources
        if process.host:
            self._cluster.settle(process.host)
        if process.running:
            self._programs[node].resized()
        self._cluster.try_waiting()

    def _check_room(self, process: Process, resources: Resources) -> None:
        machine = self._cluster.machines[process.host]
        refused = f"Node {process.name} can't have {words_of(resources)} on {process.host}"
        if not fits(resources, Resources(machine.cores, machine.memory)):
            raise CantResize(
                f"{refused}: that is more than the machine has", hint="Start another node on a larger one."
            )
        room = self._cluster.left(process.host, beside=process)
        if not fits(resources, room):
            raise BackendError(f"{refused}: {words_of(room)} are left there", hint="Ask again when others have ended.")

    def terminate(self, node: str, *, grace_seconds: float, keep_memory: bool = False) -> None:
        signals = self.nodes.terminate(node, grace_seconds, now=self._clock.now, keep_memory=keep_memory)
        known, process = self.nodes.by_id[node], self.processes[node]
        if known.phase == "starting":
            if (start := self._starts.pop(node, None)) is not None:
                start.cancel()
            self._ended(process, None)
        self._send(signals)
        if known.phase == "ended":
            self._let_go(known)
        elif known.kill_at is not None:
            self._clock.at(known.kill_at, lambda: self._send(self.nodes.due(self._clock.now)))

    def observe(self, *, after: int | None = None) -> Observation | None:
        return self.nodes.observe(after)

    def readings(self) -> Readings:
        running = {name: process for name, process in self.processes.items() if process.running}
        at_work = dict.fromkeys(process.host for process in running.values())  # of a large cluster few machines
        self._cluster.count(at_work)
        usages = {}
        for name, process in running.items():
            shared = process.shared_bytes + process.outliving_bytes
            memory = shared + process.private_bytes
            usages[name] = Usage(process.cpu_seconds, memory, process.peak_bytes, shared, process.throttled_seconds)
        hosts = [
            HostUsage(name, self._cluster.machines[name].cores, self._cluster.cpu_seconds[name]) for name in at_work
        ]
        return Readings(usages, {name: process.host for name, process in running.items()}, hosts)

    def enforcement(self) -> Enforcement:
        return Enforcement("simulation", shared_cores=self._shared_cores)

    # --- starts ----------------------------------------------------------------------------------------------------------

    def _try_to_place(self, spec: NodeSpec) -> bool:
        """Take room for a node on a machine, and start it there; False if there is none yet."""
        process = self.processes[spec.id]
        if process.state != "waiting":
            return True
        host, why = self._cluster.find(process, host=process.host or spec.host, avoids=spec.avoids)
        if not host and spec.host and not process.host:
            # a host is a wish: rather elsewhere than nowhere, as pods are placed
            host, why = self._cluster.find(process, avoids=spec.avoids)
        if not host:
            self.nodes.waits(spec.id, f"pending: {why}", host=process.host, no_room=why)  # its memory may be there
            return False
        process.state = "placed"
        self._cluster.place(process, host)
        self.nodes.waits(spec.id, "pending: its machine hasn't been told yet", host=host)
        chance = source_of_chance(self._seed, f"start of {self._job} {spec.id}")
        phases = self._startup.draw(chance, pulled=host in self._cluster.image_at)
        self._then(spec, phases.pending, partial(self._pull, spec, phases))
        return True

    def _pull(self, spec: NodeSpec, phases: Phases) -> None:
        host, now = self.processes[spec.id].host, self._clock.now
        there = self._cluster.image_at.setdefault(host, now + phases.pulling)
        if there > now:
            self.nodes.waits(spec.id, f"pulling: the image is pulled on {host}", host=host)
        self._then(spec, max(0.0, there - now), partial(self._begin_start, spec, phases))

    def _begin_start(self, spec: NodeSpec, phases: Phases) -> None:
        self.nodes.waits(spec.id, "starting: its process is made", host=self.processes[spec.id].host)
        self._then(spec, phases.starting, partial(self._started, spec))

    def _then(self, spec: NodeSpec, seconds: float, step: Callable[[], None]) -> None:
        self._starts[spec.id] = self._clock.after(seconds, step)

    def _started(self, spec: NodeSpec) -> None:
        del self._starts[spec.id]
        process = self.processes[spec.id]
        self._cluster.count([process.host])
        process.state, process.peak_bytes = "running", process.outliving_bytes
        self._programs[spec.id] = self._program(spec)
        number = len(self._programs)
        self._send(self.nodes.started(spec.id, number, now=self._clock.now, at=self._epoch + self._clock.now))
        self._programs[spec.id].begin(process)

    # --- while they run, and their ends ----------------------------------------------------------------------------------

    def _changed(self, process: Process) -> None:
        """Take note that a process wants other cores, or has other memory, than before."""
        if not process.running:
            return
        process.peak_bytes = max(process.peak_bytes, process.bytes)
        limit = process.limits.memory
        if process.bytes > limit:
            held = f"(it came to {format_bytes(process.bytes)})"
            over = OverMemory(f"over its memory limit of {format_bytes(limit)} {held}")
            self._ended(process, -signal.SIGKILL, over)
        else:
            self._cluster.changed(process)

    def _ends(self, process: Process, exit_code: int) -> None:
        self._ended(process, exit_code)

    def _ended(self, process: Process, exit_code: int | None, over_memory: OverMemory | None = None) -> None:
        if process.host:
            self._cluster.settle(process.host)  # what it has used until now
        if process.done is not None:
            process.done.cancel()
        process.state = "ended"
        process.works.clear()
        if (program := self._programs.get(process.name)) is not None:
            program.ended()
        at = self._epoch + self._clock.now
        self.nodes.ended(process.name, exit_code, at=at, over_memory=over_memory)
        self._let_go(self.nodes.by_id[process.name])

    def lost(self, process: Process) -> None:
        """Take note that the machine of a process has failed, with all that the process has left there. One that waits for a place finds
        another machine."""
        known = self.nodes.by_id[process.name]
        if process.state == "waiting":
            process.host = ""
        if known.phase == "ended" or process.state == "waiting":
            return
        if (start := self._starts.pop(process.name, None)) is not None:
            start.cancel()
        known.preempted = known.preempted or f"its machine, {process.host}, has failed"
        self._ended(process, -signal.SIGKILL if known.phase == "running" else None)

    def _let_go(self, node: Node) -> None:
        """Give back what a node has left: all of it, or all but the memory that outlives it."""
        process = self.processes[node.spec.id]
        if node.leaves_nothing:
            process.kept.clear()
        if process.host:
            self._cluster.give_back(process.host)

    def _send(self, signals: list[SendSignal]) -> None:
        for due in signals:
            name = due.node.spec.id
            if due.number == signal.SIGTERM:
                self._programs[name].asked_to_end()
            else:
                self._ended(self.processes[name], -due.number)


_KEEPS_THE_INTERFACE: type[Backend] = SimBackend
"""For the type checker: nothing else needs all of the interface here."""
