"""All nodes of a job and the plan they are to follow, as a pure state machine: events in, instructions out.

The backend's reports are believed, nothing else. A worker that ends before the job is done comes back as its reason and the budget allow;
its leases are to do again. A PS that ends takes its parameters with it, so the job fails. The person's own error is never tried again.

A fleet is a value, and is kept with the ledger after each change, before what follows from it is done: a master that was restarted
goes on from there (``restored``), and asks for what may not have been done once more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec

from dlrover_lite.backends.base import ExitReason, NodeEvent, Role
from dlrover_lite.brain.plan import Plan
from dlrover_lite.master.lifecycle import EventKind, Node, State, step
from dlrover_lite.master.relaunch import POLICIES, delay_seconds, describe_growth, larger
from dlrover_lite.units import Resources, format_bytes

__all__ = ["FailJob", "Fleet", "Instruction", "Launch", "Note", "Pending", "Terminate", "WorkerGone", "describe_end"]


class Launch(msgspec.Struct, frozen=True):
    node: Node


class Terminate(msgspec.Struct, frozen=True):
    node: str
    gently: bool


class WorkerGone(msgspec.Struct, frozen=True):
    """Lease again what it had."""

    node: str


class Note(msgspec.Struct, frozen=True):
    """For the story of ``node``."""

    node: str
    text: str


class FailJob(msgspec.Struct, frozen=True):
    """``JOB`` in the hint stands for the job's id; the story of ``nodes`` explains it."""

    message: str
    hint: str = ""
    nodes: list[str] = []


Instruction = Launch | Terminate | WorkerGone | Note | FailJob
Next = tuple["Fleet", list[Instruction]]


class Pending(msgspec.Struct, frozen=True):
    """A worker that comes back later."""

    due: float
    resources: Resources


class Fleet(msgspec.Struct, frozen=True):
    """Methods return the next fleet and what to do. ``now`` is seconds of a steady clock."""

    plan: Plan
    capacity: Resources
    by_id: dict[str, Node] = {}
    """All nodes the job has ever had, in the order they were launched."""
    pending: list[Pending] = []
    comebacks: dict[str, int] = {}
    """How many workers have come back, by reason."""
    left: int = 0
    """Workers that have left because there was nothing more to do."""
    done: bool = False
    """The job needs no more nodes: what ends now just ends."""

    def of(self, role: Role) -> list[Node]:
        return [node for node in self.by_id.values() if node.role == role]

    @property
    def all_ps_up(self) -> bool:
        return sum(node.state == "up" for node in self.of("ps")) == self.plan.ps.count

    @property
    def running(self) -> list[Node]:
        return [node for node in self.by_id.values() if node.state != "ended"]

    @property
    def staying(self) -> list[Node]:
        """Workers that run and are not on their way out."""
        return [node for node in self.of("worker") if node.state in ("launched", "started", "up")]

    # --- events ---------------------------------------------------------------------------------------------------------

    def begin(self, now: float) -> Next:
        """Launch the plan."""
        fleet: Fleet = self
        done: list[Instruction] = []
        for role, plan in (("ps", self.plan.ps), ("worker", self.plan.worker)):
            for _ in range(plan.count):
                fleet, instructions = fleet._launch(role, plan.each, now)  # type: ignore[arg-type]
                done += instructions
        return fleet, done

    def restored(self, now: float) -> Next:
        """After a restart of the master: times begin anew, and what may not have been asked for is asked for again."""
        by_id = {node.id: msgspec.structs.replace(node, since=now) for node in self.by_id.values()}
        pending = [msgspec.structs.replace(late, due=now) for late in self.pending]
        fleet = msgspec.structs.replace(self, by_id=by_id, pending=pending)
        again: dict[State, Callable[[Node], Instruction]] = {
            "launched": Launch,
            "draining": lambda node: Terminate(node.id, gently=True),
            "ending": lambda node: Terminate(node.id, gently=False),
        }
        return fleet, [again[node.state](node) for node in fleet.running if node.state in again]

    def hello(self, node: str, endpoint: str, now: float) -> Next:
        """A node has introduced itself; one that isn't ours, or has ended, is ignored."""
        fleet, _, instructions = self._step(node, "hello", now, "is up")
        if node in fleet.by_id and fleet.by_id[node].endpoint != endpoint and fleet.by_id[node].state != "ended":
            fleet = fleet._with(msgspec.structs.replace(fleet.by_id[node], endpoint=endpoint))
        return fleet, instructions

    def event(self, event: NodeEvent, now: float) -> Next:
        """The backend reports. Reports about unknown nodes, and repeated ones, change nothing."""
        if event.kind == "started":
            fleet, _, instructions = self._step(event.node, "started", now, "its process runs")
            return fleet, instructions
        before = self.by_id.get(event.node)
        fleet, changed, _ = self._step(event.node, "exited", now, "")
        if before is None or not changed:
            return self, []
        reason = before.verdict or event.reason or "Unknown"
        detail = before.detail if before.verdict else event.detail
        asked = (self.done or before.state == "draining") and reason in ("Succeeded", "Killed")
        node = msgspec.structs.replace(
            fleet.by_id[event.node],
            reason="Succeeded" if asked else reason,
            detail="" if asked else detail,
        )
        told: list[Instruction] = [Note(node.id, f"ended: {describe_end(node)}")]
        fleet, more = fleet._with(node)._judge(node, before, now)
        return fleet, told + more

    def give_up(self, node: str, kind: Literal["overdue", "stuck"], why: str, now: float) -> Next:
        """A node has said nothing, or got nowhere, for too long."""
        fleet, changed, instructions = self._step(node, kind, now, f"given up: {why}")
        if not changed:
            return self, []
        verdict: ExitReason = "StartupTimeout" if kind == "overdue" else "Hung"
        given_up = msgspec.structs.replace(fleet.by_id[node], verdict=verdict, detail=why)
        return fleet._with(given_up), instructions

    def tick(self, now: float) -> Next:
        """Launch what is due."""
        due = [late for late in self.pending if late.due <= now]
        if not due:
            return self, []
        fleet = msgspec.structs.replace(self, pending=[late for late in self.pending if late.due > now])
        done: list[Instruction] = []
        for late in due:
            fleet, instructions = fleet._launch("worker", late.resources, now)
            done += instructions
        return fleet, done

    def scale(self, workers: int, now: float) -> Next:
        """Have ``workers`` workers from now on: the youngest are drained, or new ones launched."""
        plan = msgspec.structs.replace(self.plan, worker=msgspec.structs.replace(self.plan.worker, count=workers))
        room = max(0, workers - len(self.staying))
        fleet = msgspec.structs.replace(self, plan=plan, left=0, pending=self.pending[:room])
        done: list[Instruction] = []
        surplus = len(fleet.staying) + len(fleet.pending) - workers
        for node in _least_missed(fleet.staying)[: max(0, surplus)]:
            fleet, _, instructions = fleet._step(node.id, "drain", now, f"to leave: scaled to {workers} workers")
            done += instructions
        for _ in range(-surplus):
            fleet, instructions = fleet._launch("worker", plan.worker.each, now)
            done += instructions
        return fleet, done

    def one_more_worker(self, now: float) -> Next:
        """All workers have left, and there is work: one comes back like any other."""
        if self.staying or self.pending:
            return self, []
        last = [node for node in self.of("worker") if node.state == "ended"][-1]
        return msgspec.structs.replace(self, left=max(0, self.left - 1))._come_back(last, now)

    def finished(self) -> Fleet:
        return msgspec.structs.replace(self, done=True, pending=[])

    # --- how ------------------------------------------------------------------------------------------------------------

    def _step(self, node_id: str, kind: EventKind, now: float, note: str) -> tuple[Fleet, bool, list[Instruction]]:
        node = self.by_id.get(node_id)
        found = step(node, kind, now) if node is not None else None
        if found is None:
            return self, False, []
        after, actions = found
        instructions: list[Instruction] = [Note(node_id, note)] if note else []
        if "kill" in actions:
            instructions.append(Terminate(node_id, gently=False))
        if "ask_to_leave" in actions:
            instructions.append(Terminate(node_id, gently=True))
        return self._with(after), True, instructions

    def _judge(self, node: Node, before: Node, now: float) -> Next:
        """A node has ended."""
        if node.role == "ps":
            if self.done:
                return self, []
            hint = "Its log: dlrover-lite logs JOB --role ps."
            if node.reason == "OOMKilled":
                hint = (
                    f"Give ps more memory than {format_bytes(node.resources.memory)} each, or use more of them. {hint}"
                )
            return self, [
                FailJob(f"{node.id} has ended ({describe_end(node)}) and its parameters are lost", hint, [node.id])
            ]
        gone = WorkerGone(node.id)
        if self.done or before.state == "draining":
            return self, [gone]
        if node.reason == "Succeeded":
            return msgspec.structs.replace(self, left=self.left + 1), [gone]
        if node.reason == "UserError":
            return self, [gone, FailJob(*_no_last_words(node))]
        fleet, instructions = self._come_back(node, now)
        return fleet, [gone, *instructions]

    def _come_back(self, node: Node, now: float) -> Next:
        reason = node.reason or "Unknown"
        policy, before = POLICIES[reason], self.comebacks.get(reason, 0)
        if len(self.staying) + len(self.pending) >= self.plan.worker.count - self.left:
            return self, []
        if before >= policy.budget:
            ended = [other.id for other in self.of("worker") if other.reason == reason]
            return self, [
                FailJob(
                    f"workers keep ending: {node.id} was number {before + 1} to end as {reason} ({node.detail or 'no detail'})",
                    "Their logs: dlrover-lite logs JOB --role worker",
                    ended[-3:],
                )
            ]
        each = self.plan.worker.each
        if policy.memory_factor > 1:
            room = self._room_beside(node)
            grown = larger(node.resources, policy.memory_factor, room)
            if grown is None:
                return self, [FailJob(*_no_room(node, room))]
            each = grown if grown.memory > each.memory else each
        plan = msgspec.structs.replace(self.plan, worker=msgspec.structs.replace(self.plan.worker, each=each))
        fleet = msgspec.structs.replace(self, plan=plan, comebacks={**self.comebacks, reason: before + 1})
        delay = delay_seconds(policy, before)
        how = describe_growth(node.resources, each)
        if not delay:
            fleet, instructions = fleet._launch("worker", each, now)
            return fleet, [Note(node.id, f"{list(fleet.by_id)[-1]} takes its place{how}"), *instructions]
        pending = msgspec.structs.replace(fleet, pending=[*fleet.pending, Pending(now + delay, each)])
        return pending, [Note(node.id, f"another worker takes its place in {delay:g} s{how}")]

    def _room_beside(self, node: Node) -> int:
        """Memory that is left for a worker in place of ``node``."""
        others = sum(other.resources.memory for other in self.running if other.id != node.id)
        return self.capacity.memory - others - sum(late.resources.memory for late in self.pending)

    def _launch(self, role: Literal["ps", "worker"], resources: Resources, now: float) -> Next:
        node = Node(f"{role}-{len(self.of(role))}", role, resources, since=now)
        cores = f"{resources.cores:g} core{'s' * (resources.cores != 1)}"
        note = Note(node.id, f"launched with {cores} and {format_bytes(resources.memory)}")
        return self._with(node), [note, Launch(node)]

    def _with(self, node: Node) -> Fleet:
        return msgspec.structs.replace(self, by_id={**self.by_id, node.id: node})


def describe_end(node: Node) -> str:
    """``OOMKilled: over its memory limit of 1 GiB``."""
    reason = node.reason or "Unknown"
    return f"{reason}: {node.detail}" if node.detail else reason


def _least_missed(workers: list[Node]) -> list[Node]:
    """Those that are not at work yet first, then the youngest."""
    youngest_first = workers[::-1]
    youngest_first.sort(key=lambda node: node.state == "up")
    return youngest_first


def _no_last_words(node: Node) -> tuple[str, str, list[str]]:
    """A worker that finds the person's code or data at fault says so before it ends; this one has not."""
    return (
        f"{node.id} ended without an error message, with the exit code of an error in the model or the data "
        f"({node.detail or 'no detail'})",
        "The model's code, or a native library that it uses, may have ended the process, as os._exit does.",
        [node.id],
    )


def _no_room(node: Node, room: int) -> tuple[str, str, list[str]]:
    limit = format_bytes(node.resources.memory)
    left = f"{format_bytes(max(0, room))} are left for it beside the other nodes"
    return (
        f"{node.id} needs more memory than its {limit}, and {left}",
        "Use fewer workers or a smaller batch_size, or raise resources.total if the machine has more.",
        [node.id],
    )
