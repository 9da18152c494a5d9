"""Doing to a simulated job what a seed has drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import msgspec

from dlrover_lite.core import slot_sets
from dlrover_lite.core.slot_sets import SLOTS
from dlrover_lite.protocol.questions import (
    AutoscaleRequest,
    CancelMovesRequest,
    CheckpointRequest,
    DrainRequest,
    KillRequest,
    MoveRequest,
    ResizeRequest,
    ScaleRequest,
    StopRequest,
)
from dlrover_lite.simulation.fuzz.faults import LIE_IN_WAIT, MASTER_POINTS, Fault
from dlrover_lite.simulation.fuzz.network import DisturbedNetwork
from dlrover_lite.simulation.fuzz.person import Person
from dlrover_lite.simulation.job import SimulatedJob
from dlrover_lite.simulation.nodes.program import NodeProgram
from dlrover_lite.simulation.nodes.server import Server
from dlrover_lite.simulation.nodes.worker import Worker
from dlrover_lite.simulation.world import World

__all__ = ["Injection"]

T = TypeVar("T")

_RESUMES_AFTER_SECONDS = 2.0
_LOOK_SECONDS = 0.5
_AGAIN_SECONDS = 0.5
"""Seconds until it is tried again to do what has met nobody."""
_LEFT_BEYOND_LIMIT = 1.5
"""How many times the limit of a node its machine has left where the node runs out of memory: as much as it may need beyond its limit."""
_MOST_WORKERS, _MOST_SERVERS = 4, 3
"""Numbers of nodes that a person scales to, at most."""


class Injection:
    """The faults of a world, each at its time."""

    def __init__(self, world: World, faults: Sequence[Fault]) -> None:
        self.done: list[Fault] = []
        """Faults that have met somebody: those that wait for something to happen count when it does."""
        self.is_stopped = False
        """A person has stopped a job, and it isn't resumed yet."""
        self._world = world
        self._speeds = {name: machine.speed for name, machine in world.machines.machines.items()}
        """Speeds of machines while nothing slows them."""
        self._network = DisturbedNetwork(world)
        for fault in faults:
            world.clock.at(fault.at, partial(self._inject, fault))

    def _inject(self, fault: Fault) -> None:
        """Do it; later, where there is nobody that it can meet."""
        jobs = [job for _, job in sorted(self._world.jobs.items()) if not job.is_over]
        job = _picked(jobs, fault.amount)
        whom = self._do(fault, job) if job is not None else None
        if whom is None:
            self._world.clock.after(_AGAIN_SECONDS, partial(self._inject, fault))
            return
        if fault.kind not in LIE_IN_WAIT:
            self.done.append(fault)
        self._world.note("fault", f"{fault.kind}: {whom}" if whom else fault.kind)

    def _do(self, fault: Fault, job: SimulatedJob) -> str | None:
        """Do it, or have it done when the time for it comes. Return whom it has met; None: there was nobody."""
        strikes = partial(self.done.append, fault)
        match fault.kind:
            case "kill worker" | "kill server" | "pause worker" | "pause server":
                return self._to_node(fault, job.workers() if fault.kind.endswith("worker") else job.servers())
            case "worker out of memory" | "server out of memory":
                return self._out_of_memory(fault, job)
            case "kill master" | "kill master at a failpoint" | "kill master and server" | "pause master":
                return self._to_master(fault, job)
            case "kill brain" | "kill brain amid a change" | "pause brain":
                return self._to_brain(fault, job)
            case "slow machine" | "machine fails":
                return self._to_machine(fault)
            case "machine sleeps" | "wall clock jumps":
                return self._to_clocks(fault, job)
            case "disk full":
                return self._disk_full(fault, job)
            case "a server is cut off" | "the master is cut off":
                return self._cut_off(fault, job)
            case "minibatch fails":
                plan = job.spec.plan
                name = int(fault.amount * plan.epochs), int(fault.pick * plan.minibatches(plan.samples))
                job.failing[name] = strikes
                return f"{name[0]}/{name[1]}"
            case "export fails":
                job.failing_exports.append(strikes)
                return ""
            case "workers crash":
                job.crashes = True
                for worker in job.workers():
                    worker.process.end(1)
                return ""
            case "stopped and resumed":
                return self._stop(job)
            case "messages are lost" | "messages come twice" | "messages overtake each other" | "messages come late":
                self._network.disturb(fault.kind, fault.seconds, fault.amount)
                return ""
            case _:
                body = _wish(fault, job)
                if body is not None:
                    Person(job, body)
                return None if body is None else str(body)[:80]

    # --- processes --------------------------------------------------------------------------------------------------------

    def _to_node(self, fault: Fault, nodes: Sequence[NodeProgram]) -> str | None:
        node = _picked(nodes, fault.pick)
        if node is None:
            return None
        if fault.kind.startswith("kill"):
            node.process.end(-9)
        else:
            self._pause(node.pause, fault.seconds)
        return node.name

    def _pause(self, pause: Callable[[bool], None], seconds: float) -> None:
        pause(True)
        self._world.clock.after(seconds, lambda: pause(False))

    def _out_of_memory(self, fault: Fault, job: SimulatedJob) -> str | None:
        """Have a node need more memory than its limit, where its machine has some left, or other workers have: else the job fails, as it
        says that it does."""
        nodes: Sequence[Worker | Server] = job.workers() if fault.kind.startswith("worker") else job.servers()
        node = _picked([node for node in nodes if self._has_more(node, job)], fault.pick)
        if node is None:
            return None
        node.extra_bytes += int(node.process.limits.memory * (0.4 + 0.8 * fault.amount))
        node.hold()
        return node.name

    def _has_more(self, node: Worker | Server, job: SimulatedJob) -> bool:
        """Return whether a node's machine has enough memory left for it to run out of its own, with that of all workers there but one."""
        host, needed = node.process.host, _LEFT_BEYOND_LIMIT * node.process.limits.memory
        others = [one for one in job.workers() if one is not node]
        there = [one.process.limits.memory for one in others if one.process.host == host]
        givers = there if len(there) < len(others) or node not in job.servers() else there[1:]
        return self._world.machines.left(host).memory + sum(givers) >= needed

    def _to_master(self, fault: Fault, job: SimulatedJob) -> str | None:
        master = job.master
        if not master.lives or master.is_asleep:
            return None
        if fault.kind == "pause master":
            self._pause(master.pause, fault.seconds)
        elif fault.kind == "kill master at a failpoint":
            master.dies_at = MASTER_POINTS[int(fault.pick * len(MASTER_POINTS))]
            master.on_death = partial(self.done.append, fault)
            return f"{master.name}, when it comes to {master.dies_at}"
        else:
            master.kill()
            if fault.kind == "kill master and server" and (server := _picked(job.servers(), fault.pick)) is not None:
                server.process.end(-9)
                return f"{master.name}, {server.name}"
        return master.name

    def _to_brain(self, fault: Fault, job: SimulatedJob) -> str | None:
        brain, run = self._world.brain, job.master.run
        if brain is None or not brain.lives:
            return None
        if fault.kind == "pause brain":
            self._pause(brain.pause, fault.seconds)
            return brain.name
        if fault.kind == "kill brain amid a change":
            if run is None or run.executor.state.goal is None:
                return None
            self.done.append(fault)
        brain.kill()
        return brain.name

    # --- machines ---------------------------------------------------------------------------------------------------------

    def _to_machine(self, fault: Fault) -> str | None:
        world = self._world
        name = _picked([name for name in world.machines.machines if name not in world.machines.failed], fault.pick)
        if name is None:
            return None
        if fault.kind == "slow machine":
            usual = self._speeds[name]
            world.machines.set_speed(name, usual * (0.1 + 0.5 * fault.amount))
            world.clock.after(fault.seconds, lambda: world.machines.set_speed(name, usual))
        else:
            world.fail_machine(name)
            world.clock.after(fault.seconds, lambda: world.machines.repair(name))
        return name

    def _to_clocks(self, fault: Fault, job: SimulatedJob) -> str | None:
        if fault.kind == "machine sleeps":
            if not job.master.lives or job.master.is_asleep:
                return None
            job.master.sleeps(fault.seconds)
            return f"that of {job.master.name}"
        seconds = (fault.amount - 0.5) * 7200.0
        self._world.wall_shift += seconds
        return f"by {seconds:.1f} s"

    def _disk_full(self, fault: Fault, job: SimulatedJob) -> str:
        def room() -> None:
            job.is_disk_full = False

        job.is_disk_full = True
        self._world.clock.after(fault.seconds, room)
        return job.id

    def _cut_off(self, fault: Fault, job: SimulatedJob) -> str | None:
        if fault.kind == "the master is cut off":
            endpoint = job.endpoint
        else:
            server = _picked(job.servers(), fault.pick)
            if server is None:
                return None
            endpoint = server.endpoint
        self._network.disturb(fault.kind, fault.seconds, fault.amount, endpoint)
        return endpoint

    # --- people -----------------------------------------------------------------------------------------------------------

    def _stop(self, job: SimulatedJob) -> str:
        self.is_stopped = True
        Person(job, StopRequest())
        self._world.clock.after(_RESUMES_AFTER_SECONDS, partial(self._resume, job))
        return job.id

    def _resume(self, job: SimulatedJob) -> None:
        """Have a job go on that was stopped, as soon as it has ended."""
        if not job.is_over:
            self._world.clock.after(_LOOK_SECONDS, partial(self._resume, job))
            return
        self.is_stopped = False
        assert job.outcome is not None
        if job.outcome.state == "stopped":
            resumed = job.resume()
            self._world.note("somebody", f"{job.id} is resumed" if resumed else f"{job.id} has no checkpoint")


def _picked(those: Sequence[T], share: float) -> T | None:
    """Pick one of those, by a number from 0 to 1."""
    return those[int(share * len(those))] if those else None


def _wish(fault: Fault, job: SimulatedJob) -> msgspec.Struct | None:
    """Return what a person asks for; None: there is nothing to ask it of."""
    nodes = list(job.programs.values())
    node = _picked(nodes, fault.pick)
    match fault.kind:
        case "workers scaled":
            return ScaleRequest(workers=1 + int(fault.pick * _MOST_WORKERS))
        case "servers scaled":
            return ScaleRequest(ps=1 + int(fault.pick * _MOST_SERVERS))
        case "checkpoint wanted":
            return CheckpointRequest()
        case "moves cancelled":
            return CancelMovesRequest()
        case "autoscaling paused":
            return AutoscaleRequest("pause" if fault.amount < 0.5 else "resume")
        case "slots moved":
            servers = job.servers()
            target = _picked(servers, fault.pick)
            if target is None:
                return None
            first = int(fault.amount * SLOTS)
            return MoveRequest(slot_sets.pack(slot_sets.of(range(first, min(SLOTS, first + 700)))), target.id)
        case "node drained" if node is not None:
            return DrainRequest(node.id, replace=fault.amount < 0.5)
        case "node killed by request" if node is not None:
            return KillRequest(node.id)
        case "node resized" if node is not None:
            limits = node.process.limits
            factor = 0.6 + fault.amount
            return ResizeRequest(node.id, round(limits.cores * factor, 2), int(limits.memory * factor))
        case _:
            return None
