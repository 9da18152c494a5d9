"""All nodes of a job and the plan they are to follow, as a pure state machine: events in, instructions out.

The backend's reports are believed, nothing else. A worker that ends before the job is done comes back as its reason and the budget allow;
its leases are to do again. A PS that owns slots is followed by one that finds its memory, and owns them from then on; one that owns none
comes back like a worker, with nothing, unless it was to leave. The person's own error is never tried again.

A fleet is a value, and is kept with the ledger after each change, before what follows from it is done: a master that was restarted
goes on from there (``restored``), and asks for what may not have been done once more.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Literal

import msgspec

from dlrover_lite.core.units import Resources, format_bytes
from dlrover_lite.master.nodes.lifecycle import EventKind, Node, State, step
from dlrover_lite.master.nodes.places import ANYWHERE, Places
from dlrover_lite.master.nodes.preemption import fitting, least_missed
from dlrover_lite.master.nodes.relaunch import (
    POLICIES,
    delay_seconds,
    describe_growth,
    describe_too_little_memory,
    describe_too_many_ends,
    larger_by_givers,
    recent,
    with_another,
)
from dlrover_lite.protocol.hosts import HostNodes, less
from dlrover_lite.protocol.nodes import ExitReason, Observed, Role
from dlrover_lite.protocol.plans import Plan, RolePlan

__all__ = [
    "FailJob",
    "Fleet",
    "Instruction",
    "Launch",
    "Note",
    "Pending",
    "ServerDown",
    "ServerGone",
    "ServerReplaced",
    "Terminate",
    "WorkerGone",
    "describe",
    "describe_end",
]

WorkRole = Literal["ps", "worker"]


class Launch(msgspec.Struct, frozen=True):
    node: Node


class Terminate(msgspec.Struct, frozen=True):
    """``keep_memory``: what it has left is for the node that follows it; else that is let go, also of a node that has ended."""

    node: str
    gently: bool
    keep_memory: bool = False


class WorkerGone(msgspec.Struct, frozen=True):
    """Lease again what a worker had that is gone."""

    node: str


class ServerGone(msgspec.Struct, frozen=True):
    """A PS that owned no slot: its moves are off."""

    node: str


class ServerDown(msgspec.Struct, frozen=True):
    """A PS that owns slots has ended, and is going to be followed: nothing moves to it or from it till then."""

    node: str


class ServerReplaced(msgspec.Struct, frozen=True):
    """The slots of ``old`` are those of ``new``. To be known, and durable, before ``new`` is launched."""

    old: str
    new: str


class Note(msgspec.Struct, frozen=True):
    """Write a line to the story of ``node``."""

    node: str
    text: str


class FailJob(msgspec.Struct, frozen=True):
    """``JOB`` in the hint stands for the job's id; the story of ``nodes`` explains it."""

    message: str
    hint: str = ""
    nodes: list[str] = []


Instruction = Launch | Terminate | WorkerGone | ServerGone | ServerDown | ServerReplaced | Note | FailJob
Next = tuple["Fleet", list[Instruction]]


class Pending(msgspec.Struct, frozen=True):
    """A node that comes back later."""

    due: float
    resources: Resources
    role: WorkRole = "worker"
    follows: str = ""


class Fleet(msgspec.Struct, frozen=True):
    """Methods return the next fleet and what to do. ``now`` is seconds of a steady clock."""

    plan: Plan
    capacity: Resources
    """Resources that all nodes may have together, on whatever hosts."""
    by_id: dict[str, Node] = {}
    """All nodes that the job has ever had, by id, in the order they were launched."""
    pending: list[Pending] = []
    returns: dict[str, dict[str, tuple[float, ...]]] = {}
    """When nodes have come back, by role and reason: the last time, and those before that may still count."""
    left: int = 0
    """Workers that have left because there was nothing more to do."""
    done: bool = False
    """The job needs no more nodes: what ends now just ends."""
    placement: tuple[HostNodes, ...] = ()
    """Number of nodes that begin on each host; empty: wherever there is room."""
    workers_wanted: int = 0
    """Number of workers to get back to once there is room, of which some have given theirs to a parameter server; 0: none has."""
    away_memory: int = 0
    """Memory in bytes of hosts that are gone, and expected back: whoever needs it waits for them."""

    def of(self, role: Role) -> list[Node]:
        return [node for node in self.by_id.values() if node.role == role]

    def servers_up(self, leaving: Collection[str] = ()) -> list[Node]:
        """List the PS that can be talked to and stay; ``leaving``: those that are to be emptied."""
        return [node for node in self.of("ps") if node.state == "up" and node.id not in leaving]

    def all_ps_up(self, leaving: Collection[str] = ()) -> bool:
        """Return whether all PS of the plan are up, and none is still to come."""
        return len(self.servers_up(leaving)) == self.plan.ps.count == len(self.staying_of("ps", leaving))

    @property
    def running(self) -> list[Node]:
        return [node for node in self.by_id.values() if node.state != "ended"]

    @property
    def staying(self) -> list[Node]:
        """Workers that run and are not on their way out."""
        return self.staying_of("worker")

    def staying_of(self, role: Role, leaving: Collection[str] = ()) -> list[Node]:
        return [
            node for node in self.of(role) if node.state in ("launched", "started", "up") and node.id not in leaving
        ]

    def coming_back(self, role: Role, leaving: Collection[str] = ()) -> list[Pending]:
        """List the nodes of a role that are to come back. Those that follow one of the ``leaving`` leave too."""
        return [
            late for late in self.pending if late.role == role and (not late.follows or late.follows not in leaving)
        ]

    def following(self, leaving: Collection[str] = ()) -> int:
        """Return how many PS are still to follow others, and stay."""
        return sum(bool(late.follows) for late in self.coming_back("ps", leaving))

    def planned(self, role: Role) -> RolePlan:
        return self.plan.ps if role == "ps" else self.plan.worker

    # --- events ---------------------------------------------------------------------------------------------------------

    def begin(self, now: float) -> Next:
        """Launch the plan."""
        fleet: Fleet = self
        done: list[Instruction] = []
        for role, plan in _by_role(self.plan):
            hosts = [one.host for one in self.placement for _ in range(one.servers if role == "ps" else one.workers)]
            for at in range(plan.count):
                where = hosts[at] if at < len(hosts) else ""
                fleet, instructions = fleet._launch(role, plan.each, now, host=where)
                done += instructions
        return fleet, done

    def restored(self, now: float) -> Next:
        """Restore the fleet after a restart of the master: times begin anew, and what may not have been asked for is asked for again."""
        by_id = {node.id: msgspec.structs.replace(node, since=now) for node in self.by_id.values()}
        pending = [msgspec.structs.replace(late, due=now) for late in self.pending]
        fleet = msgspec.structs.replace(self, by_id=by_id, pending=pending)
        again: dict[State, Callable[[Node], Instruction]] = {
            "launched": Launch,
            "draining": lambda node: Terminate(node.id, gently=True),
            "ending": _kill,
        }
        return fleet, [again[node.state](node) for node in fleet.running if node.state in again]

    def hello(self, node: str, endpoint: str, now: float) -> Next:
        """Record that a node has introduced itself; one that isn't ours, or has ended, is ignored."""
        fleet, _, instructions = self._step(node, "hello", now, "is up")
        if node in fleet.by_id and fleet.by_id[node].endpoint != endpoint and fleet.by_id[node].state != "ended":
            fleet = fleet._with(msgspec.structs.replace(fleet.by_id[node], endpoint=endpoint))
        return fleet, instructions

    def observed(
        self,
        node_id: str,
        seen: Observed,
        now: float,
        *,
        owns: bool = True,
        leaving: Collection[str] = (),
        work_is_left: bool = False,
        doing: str = "",
    ) -> Next:
        """Follow what the backend sees of a node. What it sees of unknown nodes, and what was followed before, changes nothing. ``owns``:
        the node is a PS, and holds slots; ``leaving``: PS that are to be emptied and ended; ``work_is_left``: no worker has been told
        that there is nothing left to do; ``doing``: what the node said last that it was at."""
        fleet: Fleet = self
        told: list[Instruction] = []
        if seen.started_at is not None:
            fleet, _, told = self._step(node_id, "started", now, "its process runs")
        if seen.ended_at is None:
            return fleet, told
        before = fleet.by_id.get(node_id)
        fleet, changed, _ = fleet._step(node_id, "exited", now, "")
        if before is None or not changed:
            return fleet, told
        reason = before.verdict or seen.reason or "Unknown"
        detail = before.detail if before.verdict else seen.detail
        asked = (self.done or before.state == "draining") and reason in ("Succeeded", "Killed")
        if reason == "Succeeded" and not asked and work_is_left and before.role == "worker":
            where = f", in {doing}" if doing else ""
            reason, detail = "UserError", f"exit code 0 without having been told to leave{where}"
        node = msgspec.structs.replace(
            fleet.by_id[node_id],
            reason="Succeeded" if asked else reason,
            detail="" if asked else detail,
            used_memory=seen.used_memory,
            wanted=None,
        )
        told.append(Note(node.id, f"ended: {describe_end(node)}"))
        fleet = fleet._with(node)
        fleet, more = (
            fleet._judge_server(node, before, now, owns, leaving)
            if node.role == "ps"
            else fleet._judge(node, before, now)
        )
        return fleet, told + more

    def give_up(self, node: str, kind: Literal["overdue", "stuck"], why: str, now: float) -> Next:
        """Give up a node that has said nothing, or got nowhere, for too long."""
        fleet, changed, instructions = self._step(node, kind, now, f"given up: {why}")
        if not changed:
            return self, []
        verdict: ExitReason = "StartupTimeout" if kind == "overdue" else "Hung"
        given_up = msgspec.structs.replace(fleet.by_id[node], verdict=verdict, detail=why)
        return fleet._with(given_up), instructions

    def kill(self, node: str, now: float) -> Next:
        """End a node at once, as a person wants. Another one takes its place, however often that is wanted."""
        fleet, changed, instructions = self._step(node, "kill", now, "is killed by request")
        if not changed:
            return self, []
        killed = msgspec.structs.replace(fleet.by_id[node], verdict="Killed", detail="by request")
        return fleet._with(killed), instructions

    def tick(self, now: float) -> Next:
        """Launch what is due."""
        due = [late for late in self.pending if late.due <= now and not self._waits_for_room(late)]
        if not due:
            return self, []
        fleet = msgspec.structs.replace(self, pending=[late for late in self.pending if late not in due])
        done: list[Instruction] = []
        for late in due:
            fleet, instructions = fleet._launch(late.role, late.resources, now, late.follows)
            done += instructions
        return fleet, done

    def scale(self, workers: int, now: float, *, places: Places = ANYWHERE) -> Next:
        """Have ``workers`` workers from now on, on these ``places``: the youngest are drained, or new ones launched."""
        fleet = msgspec.structs.replace(self._plan("worker", workers), left=0, workers_wanted=0)
        done: list[Instruction] = []
        surplus = len(fleet.staying) + len(fleet.coming_back("worker")) - workers
        for node in places.leave_first(least_missed(fleet.staying), fleet.staying)[: max(0, surplus)]:
            fleet, _, instructions = fleet._step(node.id, "drain", now, f"to leave: scaled to {workers} workers")
            done += instructions
        fleet, instructions = fleet._fill("worker", now, places=places)
        return fleet, done + instructions

    def scale_ps(
        self,
        count: int,
        now: float,
        *,
        leaving: Collection[str] = (),
        each: Resources | None = None,
        host: str = "",
        places: Places = ANYWHERE,
    ) -> Next:
        """Have ``count`` PS from now on beside those ``leaving``: new ones are launched, of the plan's size or with ``each``, on
        ``host`` where one is named, else on these ``places``. Who is too many must be among the leaving."""
        return self._plan("ps", count, leaving)._fill("ps", now, leaving, each, host, places)

    def drain(
        self,
        node: str,
        now: float,
        *,
        why: str = "",
        replace: bool = False,
        each: Resources | None = None,
        host: str = "",
    ) -> Next:
        """Let one node leave: a worker, and there is one less from now on unless it is replaced (by one with ``each``, or of the plan's
        size, on ``host`` if one is named); or a PS that has been emptied."""
        role = self.by_id[node].role
        fleet, changed, done = self._step(node, "drain", now, f"to leave: {why}" if why else "is asked to leave")
        if not changed or role == "ps":
            return fleet, done
        if not replace:
            fleet = fleet._plan("worker", self.plan.worker.count - 1)
            return msgspec.structs.replace(fleet, workers_wanted=max(0, self.workers_wanted - 1)), done
        fleet, instructions = fleet._fill("worker", now, each=each, host=host)
        return fleet, done + instructions

    def resize(self, node: str, wanted: Resources) -> Next:
        """Give one node other limits. Whoever takes its place later has the plan's again, and a PS no less memory than the one whose memory
        it takes over."""
        known = self.by_id[node]
        changed = msgspec.structs.replace(known, wanted=None if wanted == known.resources else wanted)
        if changed == known:
            return self, []
        told = [] if changed.wanted else [Note(node, f"stays with {describe(known.resources)}")]
        return self._with(changed), [*told]

    def set_size(self, role: WorkRole, each: Resources) -> Fleet:
        """Set the size of the nodes of a role that come from now on."""
        planned = msgspec.structs.replace(self.planned(role), each=each)
        return msgspec.structs.replace(self, plan=msgspec.structs.replace(self.plan, **{role: planned}))

    def resized(self, node: str, agreed: Resources) -> Next:
        """Record that the backend has agreed to new limits, which may be only a part of what is wanted."""
        known = self.by_id[node]
        changed = msgspec.structs.replace(
            known, resources=agreed, wanted=None if agreed == known.wanted else known.wanted
        )
        if changed == known:
            return self, []
        told = Note(node, f"is resized from {describe(known.resources)} to {describe(agreed)}")
        return self._with(changed), [told] if agreed != known.resources else []

    def give_way(self, workers: Collection[str], to: str, why: str, now: float) -> Next:
        """Let workers leave, so that ``to`` finds room; they are planned again once there is some for them, too. ``why``: there is none."""
        fleet: Fleet = self
        done: list[Instruction] = []
        for worker in workers:
            fleet, _, instructions = fleet._step(worker, "drain", now, f"gives its room to {to}: {why}")
            done += instructions
        if not workers:
            return fleet, done
        wanted, planned = self.workers_wanted, self.plan.worker.count
        fleet = fleet._plan("worker", max(1, planned - len(workers)))
        return msgspec.structs.replace(fleet, workers_wanted=max(wanted, planned)), done

    def take_room(self, now: float) -> Next:
        """Launch workers for those that have given way, as far as there is room by the capacity; one in any case, if there is none."""
        if not self.workers_wanted or self.left or self.done:
            return self, []
        held = [node.most for node in self.running] + [late.resources for late in self.pending]
        there = len(self.staying) + len(self.coming_back("worker"))
        room = fitting(self.plan.worker.each, less(self.capacity, held))
        count = min(self.workers_wanted, max(1, there + room))
        if count <= there < self.workers_wanted:
            return self, []
        wanted = self.workers_wanted if count < self.workers_wanted else 0
        return msgspec.structs.replace(self._plan("worker", count), workers_wanted=wanted)._fill("worker", now)

    def one_more_worker(self, now: float) -> Next:
        """Bring one worker back like any other, when all have left and there is work: those that gave way come back by themselves."""
        if self.staying or self.coming_back("worker") or self.workers_wanted:
            return self, []
        last = [node for node in self.of("worker") if node.state == "ended"][-1]
        left = max(0, self.left - 1)
        return msgspec.structs.replace(self, left=left)._come_back(last, now, left)

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
            instructions.append(_kill(after))
        if "ask_to_leave" in actions:
            instructions.append(Terminate(node_id, gently=True))
        return self._with(after), True, instructions

    def _plan(self, role: Role, count: int, leaving: Collection[str] = ()) -> Fleet:
        """Plan ``count`` nodes of a role; no more come back than there is room for."""
        planned = msgspec.structs.replace(self.planned(role), count=count)
        plan = msgspec.structs.replace(self.plan, **{role: planned})
        following = self.following(leaving) if role == "ps" else 0
        room = max(0, count - len(self.staying_of(role, leaving)) - following)
        kept = [late for late in self.pending if late.role != role or late.follows]
        kept += [late for late in self.coming_back(role) if not late.follows][:room]
        return msgspec.structs.replace(self, plan=plan, pending=kept)

    def _fill(
        self,
        role: WorkRole,
        now: float,
        leaving: Collection[str] = (),
        each: Resources | None = None,
        host: str = "",
        places: Places = ANYWHERE,
    ) -> Next:
        """Launch what is missing."""
        fleet: Fleet = self
        done: list[Instruction] = []
        plan = self.planned(role)
        for _ in range(plan.count - len(self.staying_of(role, leaving)) - len(self.coming_back(role, leaving))):
            where = host or places.next_host(fleet.staying_of(role, leaving))
            fleet, instructions = fleet._launch(role, each or plan.each, now, host=where)
            done += instructions
        return fleet, done

    def _judge(self, node: Node, before: Node, now: float) -> Next:
        """Judge the end of a worker."""
        gone = WorkerGone(node.id)
        if self.done or before.state == "draining":
            return self, [gone]
        if node.reason == "Succeeded":
            return msgspec.structs.replace(self, left=self.left + 1), [gone]
        if node.reason == "UserError":
            return self, [gone, FailJob(*_no_last_words(node))]
        fleet, instructions = self._come_back(node, now, self.left)
        return fleet, [gone, *instructions]

    def _judge_server(self, node: Node, before: Node, now: float, owns: bool, leaving: Collection[str]) -> Next:
        """Judge the end of a PS."""
        if self.done:
            return self, []
        if not owns:
            gone = ServerGone(node.id)
            if before.state == "draining":
                return self, [gone]
            gone_for_good: list[Instruction] = [gone, Terminate(node.id, gently=False)]  # nobody follows it
            if node.id in leaving:
                return self, gone_for_good
            fleet, instructions = self._come_back(node, now, 0, leaving)
            return fleet, [*gone_for_good, *instructions]
        if node.reason == "UserError":
            hint = "Its log: dlrover-lite logs JOB --role ps."
            return self, [
                FailJob(f"{node.id} has ended ({describe_end(node)}) and its parameters are lost", hint, [node.id])
            ]
        fleet, instructions = self._come_back(node, now, 0, leaving, follows=node.id)
        return fleet, [ServerDown(node.id), *instructions]

    def _come_back(
        self, node: Node, now: float, left: int, leaving: Collection[str] = (), *, follows: str = ""
    ) -> Next:
        role: WorkRole = "ps" if node.role == "ps" else "worker"
        plan, reason = self.planned(role), node.reason or "Unknown"
        # Of nodes that were begun together with too little memory, only the first one to run out of it is news.
        is_known = reason == "OOMKilled" and node.resources.memory < plan.each.memory
        uncounted = node.verdict == "Killed" or is_known
        policy, returns = POLICIES[reason], self.returns.get(role, {}).get(reason, ())
        before = 0 if uncounted else recent(returns, now)
        room = self._room_beside(node)
        there = len(self.staying_of(role, leaving)) + len(self.coming_back(role, leaving))
        if there >= plan.count - left and not follows:
            return self, []
        if before >= policy.budget:
            ended = [other.id for other in self.of(role) if other.reason == reason]
            return self, [FailJob(*describe_too_many_ends(node, before + 1), ended[-3:])]
        each = plan.each
        if node.resources.memory < each.memory and each.memory > room:
            each = msgspec.structs.replace(each, memory=node.resources.memory)  # what was taken from it others have now
        giving: list[Node] = []
        if policy.memory_factor > 1:
            had = Resources(node.resources.cores, max(node.resources.memory, node.used_memory))
            willing = least_missed(self.staying)[: None if role == "worker" else -1]  # one is left, whoever comes back
            givers, grown = larger_by_givers(had, policy.memory_factor, room, [one.most.memory for one in willing])
            giving = willing[:givers]
            if grown is None:
                return self, [FailJob(*describe_too_little_memory(node, room))]
            each = msgspec.structs.replace(each, memory=max(each.memory, grown.memory))
        noted = {**self.returns, role: {**self.returns.get(role, {}), reason: with_another(returns, now)}}
        noted = self.returns if uncounted else noted
        planned = msgspec.structs.replace(plan, each=max(plan.each, each, key=lambda size: size.memory))
        grown_plan = msgspec.structs.replace(self.plan, **{role: planned})
        fleet = msgspec.structs.replace(self, plan=grown_plan, returns=noted)
        if follows and each.memory < node.resources.memory:  # it was given more, and what it leaves may need that
            each = msgspec.structs.replace(each, memory=node.resources.memory)
        delay = delay_seconds(policy, before)
        how = describe_growth(node.resources, each, followed=bool(follows))
        late = Pending(now + delay, each, role, follows)
        if not delay and not giving and not self._waits_for_room(late):
            fleet, instructions = fleet._launch(role, each, now, follows)
            return fleet, [Note(node.id, f"{list(fleet.by_id)[-1]} takes its place{how}"), *instructions]
        why = f"it needs more memory than its {format_bytes(node.resources.memory)}, and none is left"
        fleet, instructions = fleet.give_way([worker.id for worker in giving], node.id, why, now)
        pending = msgspec.structs.replace(fleet, pending=[*fleet.pending, late])
        another = "parameter server" if role == "ps" else "worker"
        awaited = giving or ([] if delay else self._leaving)
        when = f"when {', '.join(worker.id for worker in awaited)} has left" if awaited else f"in {delay:g} s"
        return pending, [Note(node.id, f"another {another} takes its place {when}{how}"), *instructions]

    def _waits_for_room(self, late: Pending) -> bool:
        """Return whether there is no memory for a node before a worker that is on its way out has ended."""
        held = sum(node.most.memory for node in self.running)
        return bool(self._leaving) and held + late.resources.memory > self.capacity.memory + self.away_memory

    @property
    def _leaving(self) -> list[Node]:
        """Workers that are on their way out; another one takes the place of those that are ended."""
        return [node for node in self.running if node.role == "worker" and node.state in ("draining", "ending")]

    def memory_beside(self, node: Node) -> int:
        """Return the memory that all other nodes have, or are to have, in bytes."""
        others = sum(other.most.memory for other in self.running if other.id != node.id)
        return others + sum(late.resources.memory for late in self.pending)

    def _room_beside(self, node: Node) -> int:
        """Return the memory that is left for another node in place of ``node``, in bytes, now or when workers that drain have left,
        and hosts are back that are gone."""
        leaving = sum(other.most.memory for other in self._leaving if other.state == "draining" and other.id != node.id)
        return self.capacity.memory + self.away_memory + leaving - self.memory_beside(node)

    def _launch(self, role: WorkRole, resources: Resources, now: float, follows: str = "", host: str = "") -> Next:
        node = Node(f"{role}-{len(self.of(role))}", role, resources, since=now, follows=follows, host=host)
        whose, where = f" in the place of {follows}" if follows else "", f" on {host}" if host else ""
        note = Note(node.id, f"launched with {describe(resources)}{whose}{where}")
        replaced = [ServerReplaced(follows, node.id)] if follows else []
        return self._with(node), [note, *replaced, Launch(node)]

    def _with(self, node: Node) -> Fleet:
        return msgspec.structs.replace(self, by_id={**self.by_id, node.id: node})


def describe(resources: Resources) -> str:
    """Describe resources: ``0.5 cores and 1 GiB``."""
    return f"{resources.cores:g} core{'s' * (resources.cores != 1)} and {format_bytes(resources.memory)}"


def describe_end(node: Node) -> str:
    """Describe why a node ended: ``OOMKilled: over its memory limit of 1 GiB``."""
    reason = node.reason or "Unknown"
    return f"{reason}: {node.detail}" if node.detail else reason


def _kill(node: Node) -> Terminate:
    return Terminate(node.id, gently=False, keep_memory=node.role == "ps")


def _by_role(plan: Plan) -> list[tuple[WorkRole, RolePlan]]:
    """List the roles with their plans, servers first: they are waited for."""
    return [("ps", plan.ps), ("worker", plan.worker)]


def _no_last_words(node: Node) -> tuple[str, str, list[str]]:
    """Explain the end of a worker without last words: one that finds the person's code or data at fault says so before it ends."""
    return (
        f"{node.id} ended in the middle of its work, without an error message ({node.detail or 'no detail'})",
        "The model's code, or a native library that it uses, has most likely ended the process, as os._exit does. "
        f"What it printed: dlrover-lite logs JOB --node {node.id}",
        [node.id],
    )
