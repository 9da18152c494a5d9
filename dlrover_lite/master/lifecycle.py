"""The nodes of a job, as a pure state machine: events in, instructions out. The backend's reports are believed, nothing else.

::

    wanted ──launch──▶ launched ──started──▶ started ──hello──▶ up ──exited──▶ ended
                           └──────────────exited──────────────────────────────▶┘

A worker that ends before the job is done is replaced, as long as its reason and the budget allow; its leases are to do again. A PS that
ends takes its parameters with it, so the job fails. The person's own error is never tried again.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from dlrover_lite.backends.base import NodeEvent, Role
from dlrover_lite.brain.plan import Plan
from dlrover_lite.units import Resources

__all__ = ["FailJob", "Instruction", "Launch", "Node", "Nodes", "WorkerGone"]

RELAUNCHES = 5
"""Workers replaced in one job before it is given up."""

State = Literal["launched", "started", "up", "ended"]


class Node(msgspec.Struct, frozen=True):
    id: str
    role: Role
    resources: Resources
    state: State
    reason: str = ""
    """Why it ended."""
    endpoint: str = ""


class Launch(msgspec.Struct, frozen=True):
    node: Node


class WorkerGone(msgspec.Struct, frozen=True):
    """Lease again what it had."""

    node: str


class FailJob(msgspec.Struct, frozen=True):
    """``JOB`` in the hint stands for the job's id."""

    message: str
    hint: str = ""


Instruction = Launch | WorkerGone | FailJob


class Nodes(msgspec.Struct, frozen=True):
    """All nodes a job has ever had, by id. Methods return the next state and what to do."""

    plan: Plan
    by_id: dict[str, Node] = {}
    relaunches: int = 0
    done: bool = False
    """The job needs no more nodes: what ends now just ends."""

    def of(self, role: Role) -> list[Node]:
        return [node for node in self.by_id.values() if node.role == role]

    @property
    def all_ps_up(self) -> bool:
        up = [node for node in self.of("ps") if node.state == "up"]
        return len(up) == self.plan.ps.count

    @property
    def running(self) -> list[Node]:
        return [node for node in self.by_id.values() if node.state != "ended"]

    def begin(self) -> tuple[Nodes, list[Instruction]]:
        """Launch the plan."""
        nodes: Nodes = self
        instructions: list[Instruction] = []
        for _ in range(self.plan.ps.count):
            nodes, launch = nodes._launch("ps")
            instructions.append(launch)
        for _ in range(self.plan.worker.count):
            nodes, launch = nodes._launch("worker")
            instructions.append(launch)
        return nodes, instructions

    def hello(self, node: str, endpoint: str) -> Nodes:
        """A node has introduced itself; one that isn't ours, or has ended, is ignored."""
        known = self.by_id.get(node)
        if known is None or known.state == "ended":
            return self
        return self._with(msgspec.structs.replace(known, state="up", endpoint=endpoint))

    def event(self, event: NodeEvent) -> tuple[Nodes, list[Instruction]]:
        """The backend reports. Reports about unknown nodes, and repeated ones, change nothing."""
        node = self.by_id.get(event.node)
        if node is None or node.state == "ended":
            return self, []
        if event.kind == "started":
            return (
                self._with(msgspec.structs.replace(node, state="started")) if node.state == "launched" else self
            ), []
        reason = event.reason or "Unknown"
        told = f"{reason}: {event.detail}" if event.detail else reason
        nodes = self._with(msgspec.structs.replace(node, state="ended", reason=told))
        if self.done:
            return nodes, []
        return nodes._ended(node, event, told)

    def refused(self, node: str) -> Nodes:
        """The backend starts this node no more: there will be no events of it."""
        return self._with(msgspec.structs.replace(self.by_id[node], state="ended", reason="never started"))

    def one_more_worker(self) -> tuple[Nodes, list[Instruction]]:
        """All workers have left, and there is work: a replacement like any other."""
        return self._replacement()

    def _replacement(self) -> tuple[Nodes, list[Instruction]]:
        if self.relaunches >= RELAUNCHES:
            ends = "; ".join(f"{n.id}: {n.reason}" for n in self.of("worker") if n.state == "ended")
            return self, [FailJob(f"workers keep ending, after {RELAUNCHES} replacements ({ends})")]
        nodes, launch = msgspec.structs.replace(self, relaunches=self.relaunches + 1)._launch("worker")
        return nodes, [launch]

    def finished(self) -> Nodes:
        return msgspec.structs.replace(self, done=True)

    def _ended(self, node: Node, event: NodeEvent, told: str) -> tuple[Nodes, list[Instruction]]:
        if node.role == "ps":
            return self, [
                FailJob(
                    f"{node.id} has ended ({told}) and its parameters are lost",
                    f"Its log: dlrover-lite logs JOB --role {node.role}. If memory ran out, give ps more of it.",
                )
            ]
        gone = WorkerGone(node.id)
        if event.reason == "Succeeded":
            return self, [gone]
        if event.reason == "UserError":
            return self, [gone, FailJob(f"{node.id} ended with an error in the model or the data")]
        nodes, instructions = self._replacement()
        return nodes, [gone, *instructions]

    def _launch(self, role: Literal["ps", "worker"]) -> tuple[Nodes, Launch]:
        resources = (self.plan.ps if role == "ps" else self.plan.worker).each
        node = Node(f"{role}-{len(self.of(role))}", role, resources, "launched")
        return self._with(node), Launch(node)

    def _with(self, node: Node) -> Nodes:
        return msgspec.structs.replace(self, by_id={**self.by_id, node.id: node})
