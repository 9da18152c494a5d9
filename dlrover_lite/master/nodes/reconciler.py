"""Makes the backend's nodes follow the fleet, and the fleet what the backend reports."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import msgspec

from dlrover_lite.core.errors import BackendError, CantResize, ResizeUnderWay
from dlrover_lite.core.failpoints import failpoint
from dlrover_lite.core.units import Resources
from dlrover_lite.master.cadence import USUAL, Cadence
from dlrover_lite.master.events import EventLog
from dlrover_lite.master.job_state_store import FLEET, JobStateStore
from dlrover_lite.master.nodes.fleet import (
    FailJob,
    Fleet,
    Instruction,
    Launch,
    Next,
    Note,
    ServerDown,
    ServerGone,
    ServerReplaced,
    Terminate,
    WorkerGone,
    describe,
)
from dlrover_lite.master.nodes.lifecycle import Node
from dlrover_lite.master.nodes.liveness import Liveness
from dlrover_lite.master.nodes.places import ANYWHERE, Places
from dlrover_lite.master.nodes.preemption import who_gives_way
from dlrover_lite.master.nodes.resizing import next_step
from dlrover_lite.master.slots.parameter_servers import ParameterServers
from dlrover_lite.master.slots.slot_state import SlotState
from dlrover_lite.protocol.hosts import Host, SharedRoom, sum_of, total_of
from dlrover_lite.protocol.nodes import Backend, NodeSpec, Observed, Readings, Usage
from dlrover_lite.recipe.schema import Health

__all__ = ["Reconciler"]

GRACE_SECONDS = 10.0
FAILED_GRACE_SECONDS = 1.0
"""Grace period of nodes of a failed job in seconds: they have nothing to hand over, and may wait for a server that is no more."""
END_SECONDS = 60.0
"""Seconds that nodes which are killed may take to end."""
LEAST_USAGE_SECONDS = 0.25
"""Least seconds from one reading of what nodes have used to the next, where somebody waits for it."""
NO_ROOM_SECONDS = 10.0
"""Seconds for which a parameter server finds no room until workers give theirs: what ends elsewhere may still leave some."""
AVOID_SECONDS = 600.0
"""Seconds for which a host is avoided on which a node was slow."""
AWAY_SECONDS = 600.0
"""Seconds for which a host that is gone is expected back."""
RESIZE_AGAIN_SECONDS = 1.0
"""Seconds before the next try after the backend couldn't give a node more."""
UNDER_WAY_SECONDS = 0.25
"""Seconds until it is asked again whether a node has been given what it is to have."""
_NEWEST_LAUNCHES = 5
_MOST_WAITS = 8
"""The most that the story tells of what a single node waits for: reasons may have numbers in them that change."""
_UNSEEN = 1.25
"""How many times the most that was seen a node may have used between two readings, a second apart."""


@dataclass(eq=False)
class Reconciler:
    """What changes is put among the ``facts``; what follows from it is done once it is durable. ``on_refusal`` is told when the
    backend refuses to launch a node; it raises the error, or ends the job. ``work_is_left``: no worker may have been told to leave for
    want of work."""

    fleet: Fleet
    backend: Backend
    endpoint: str
    health: Health
    story: EventLog
    servers: ParameterServers
    facts: JobStateStore
    on_gone: Callable[[str], None]
    on_failure: Callable[[FailJob], None]
    on_refusal: Callable[[BackendError], None]
    work_is_left: Callable[[], bool]
    clock: Callable[[], float]
    cadence: Cadence = USUAL

    def __post_init__(self) -> None:
        self.usage: dict[str, Usage] = {}
        """Last known usage of each node, also after its end."""
        self._seen: dict[str, int] = {}
        """Most memory that each node was seen to use, in bytes."""
        self.readings: tuple[float, Readings] | None = None
        """Newest readings, and as of when."""
        self._hosts: tuple[Host, ...] | None = None
        """Hosts when the master began; None: they haven't been looked at."""
        self.changed_hosts: tuple[Host, ...] = ()
        """Hosts that there are now, if that has changed."""
        self.shared_room: SharedRoom | None = None
        """What all jobs may use together, where what hosts have for this one depends on what others have."""
        self._hosts_at = self.clock()
        self.replace: Callable[[str, Resources], str] = lambda node, each: "there is no way to"
        """Begins to replace a node by one with so much, and says why that can't be, or ""."""
        self.waits_for: dict[str, str] = {}
        """Why nodes that are to be resized haven't been yet, in words."""
        longest = self.cadence.longest_turn_seconds
        self._liveness = Liveness(self.health, self.clock(), longest_turn_seconds=longest)
        self._servers_of: tuple[Fleet | None, SlotState | None, bool] = None, None, False
        """The fleet and the slots of which it was looked last whether all servers are up, and whether they were."""
        self._silence_of: Fleet | None = None
        """The fleet of which it was looked last who has been silent."""
        self._version: int | None = None
        """Version of what the backend told last; None: it hasn't told anything yet."""
        self._observed: dict[str, Observed] = {}
        self._usage_at = self._resize_at = self.clock()
        self._known: dict[str, Resources] = {}
        """The most that was told of each host: for a while less may be, because others are taken to have the rest."""
        self._seen_hosts: dict[str, tuple[float, Host]] = {}
        """Hosts that are there, or were of late, each with the time when it was seen last."""
        self._fitted: dict[str, Resources] = {}
        """The most that nodes had together on each host: it has as much, where nothing else says what it has."""
        self._learned: tuple[Fleet | None, int | None, Mapping[str, str]] = None, None, {}
        """The fleet, the version of what the backend told, and the hosts of nodes, that the latter follows from."""
        self._avoided: dict[str, float] = {}
        """Hosts on which a node was slow, each with the time when that was found."""
        self._no_room_since: dict[str, float] = {}
        """Since when parameter servers that others wait for have found no room."""
        self._launched_at: dict[str, float] = {}
        """When each node that isn't up yet was launched by this master."""
        self._told_waits: dict[str, set[str]] = {}
        """What the story has of what each node waited for."""
        self._launches: deque[float] = deque(maxlen=_NEWEST_LAUNCHES)

    @property
    def launch_seconds(self) -> float:
        """Seconds that the newest nodes took from their launch until they were up, in the mean; 0: none was seen to."""
        return sum(self._launches) / len(self._launches) if self._launches else 0.0

    def begin(self) -> None:
        """Launch the plan; or go on with the nodes that an earlier master has left."""
        now = self.clock()
        if not self.fleet.by_id:
            self._take(self.fleet.begin(now))
            return
        self._take(self.fleet.restored(now))
        for node in self.fleet.of("ps"):
            if node.state == "ended" and not self.servers.state.owns(node.id):
                self._terminate_later(node.id, 0.0, keep_memory=False)

    def hello(self, node: str, endpoint: str) -> None:
        self._take(self.fleet.hello(node, endpoint, self.clock()))
        if (launched_at := self._launched_at.pop(node, None)) is not None:
            self._launches.append(self.clock() - launched_at)
        self._liveness.heard(node)
        self._usage_at = self.clock()  # what a newcomer has left is asked for soon

    def heard(self, node: str, doing: str = "", seconds: float = 0.0) -> None:
        self._liveness.heard(node, doing, seconds)

    def alive(self, node: str) -> None:
        self._liveness.alive(node)

    @property
    def host_of(self) -> Mapping[str, str]:
        """Host of each node, as far as the backend says."""
        return self.readings[1].on if self.readings is not None else {}

    def awaited(self, node: str) -> str:
        """Return what a node waits for until its process can begin, in its backend's words; empty: for nothing that is known. Nobody is
        blamed for that: hosts are found, and images pulled, within minutes."""
        seen = self._observed.get(node)
        return seen.detail if seen is not None and seen.started_at is None and seen.ended_at is None else ""

    def scale(self, workers: int, *, places: Places = ANYWHERE) -> list[str]:
        """Scale to a number of workers on these ``places``; return what follows from it, in words."""
        return self._told(self.fleet.scale(workers, self.clock(), places=places))

    def scale_ps(
        self, count: int, *, each: Resources | None = None, host: str = "", places: Places = ANYWHERE
    ) -> list[str]:
        """Have so many PS beside those that leave, newcomers of the plan's size or with ``each``, on ``host`` where one is named, else on
        these ``places``. Return what follows from it, in words."""
        leaving = self.servers.state.leaving
        return self._told(
            self.fleet.scale_ps(count, self.clock(), leaving=leaving, each=each, host=host, places=places)
        )

    def drain(
        self, node: str, *, why: str = "", replace: bool = False, each: Resources | None = None, host: str = ""
    ) -> list[str]:
        """Let a worker leave, or a PS that holds nothing; return what follows from it, in words. ``each`` and ``host``: of the one that
        takes its place."""
        return self._told(self.fleet.drain(node, self.clock(), why=why, replace=replace, each=each, host=host))

    def avoid_host_of(self, node: str) -> None:
        """Have no node start for a while on the host of a slow one, if that is known, and others will do."""
        if host := self._placed().get(node):
            self._avoided[host] = self.clock()

    def kill(self, node: str) -> list[str]:
        """End a node at once; another one takes its place. Return what follows from it, in words."""
        return self._told(self.fleet.kill(node, self.clock()))

    def resize(self, node: str, wanted: Resources) -> list[str]:
        """Give a node other limits, as soon as may be. Return what follows from it, in words: what the backend makes of it is added to them
        once the wish is durable."""
        told = [f"{node} {text}" for text in self._noted(self.fleet.resize(node, wanted))]
        self.waits_for.pop(node, None)
        self.facts.after_commit(lambda: told.extend(f"{node} {text}" for text in self._resize(node)))
        return told

    def set_size(self, role: Literal["ps", "worker"], each: Resources) -> None:
        """Set the size of the nodes of a role that come from now on."""
        self._take((self.fleet.set_size(role, each), []))

    def memory_used(self, node: str) -> int:
        """Return the memory that a node uses now, in bytes."""
        now = self.clock()
        if self.readings is None or self.readings[0] < now:
            self._read(now)  # of all nodes: whoever asks next needn't
        assert self.readings is not None
        usage = self.readings[1].nodes.get(node)
        if usage is None:
            return self.servers.bytes_of(node)
        return usage.memory

    def _read(self, now: float) -> Readings:
        readings = self.backend.readings()
        self._see(readings.nodes)
        self.readings = (now + self.clock()) / 2, readings
        return readings

    def most_used(self, node: str) -> int:
        """Return the most memory that a node has used since it started, in bytes. The kernel's high-water mark counts file pages that were
        cached too: what is far beyond all that was seen is taken for those."""
        usage, seen = self.usage.get(node), self._seen.get(node, 0)
        return 0 if usage is None else max(seen, min(usage.peak_memory, int(seen * _UNSEEN)))

    def _see(self, usage: Mapping[str, Usage]) -> None:
        self.usage |= usage
        for node, now in usage.items():
            self._seen[node] = max(self._seen.get(node, 0), now.memory)

    def _noted(self, following: Next) -> list[str]:
        self._take(following)
        return [step.text for step in following[1] if isinstance(step, Note)]

    def _told(self, following: Next) -> list[str]:
        self._take(following)
        notes = [step for step in following[1] if isinstance(step, Note)]
        return [f"{note.node} is {note.text.removeprefix('is ')}" for note in notes]

    def one_more_worker(self) -> None:
        self._take(self.fleet.one_more_worker(self.clock()))

    def finish(self) -> None:
        self.fleet = self.fleet.finished()

    def turn(self) -> None:
        """Handle what the backend reports, what is due, and who has been silent. Raises BackendError when it can't be reached."""
        self.observe()
        now = self.clock()
        self._take(self.fleet.tick(now))
        for node in self.fleet.running:
            if node.state != "up" and self.awaited(node.id):
                self._liveness.heard(node.id)
        is_same, self._silence_of = self.fleet is self._silence_of, self.fleet
        for finding in self._liveness.judge(self.fleet.running, now, same=is_same, servers_up=self._servers_are_up()):
            self._take(self.fleet.give_up(*finding, now))
        self._make_room(now)
        if now >= self._resize_at and any(node.wanted is not None for node in self.fleet.running):
            self.facts.after_commit(self._resize_all)
        if now >= self._usage_at:
            self._usage_at = now + self.cadence.usage_seconds
            readings = self._read(now)
            fleet, version, on = self._learned
            if self.fleet is not fleet or self._version != version or readings.on != on:
                self._learned = self.fleet, self._version, readings.on
                self._learn_hosts()
        if now >= self._hosts_at:
            self._hosts_at = now + self.cadence.hosts_seconds
            self._look_at_hosts()

    def _servers_are_up(self) -> bool:
        """Say whether no parameter server is missing that all others wait for."""
        fleet, state = self.fleet, self.servers.state
        if self._servers_of[0] is not fleet or self._servers_of[1] is not state:
            needed = (node for node in fleet.of("ps") if state.owns(node.id))
            up = all(node.state == "up" for node in needed) if state.version else fleet.all_ps_up(state.leaving)
            self._servers_of = fleet, state, up
        return self._servers_of[2]

    def _look_at_hosts(self) -> None:
        """Take in hosts that have come, gone, or changed."""
        there = tuple(self.backend.capacity())
        self.shared_room = self.backend.shared_room()
        self._known |= {host.name: host.resources.or_more(self._known.get(host.name)) for host in there}
        if self._hosts is None:
            self._hosts = there
        if there != self._hosts or self.changed_hosts:
            self.changed_hosts = there
        capacity, away = total_of(there), self._away_memory(there)
        if (capacity, away) != (self.fleet.capacity, self.fleet.away_memory):
            self._take((msgspec.structs.replace(self.fleet, capacity=capacity, away_memory=away), []))

    def _away_memory(self, there: Sequence[Host]) -> int:
        """Return the memory of hosts that are gone and expected back, in bytes."""
        if not there and not self._seen_hosts:  # an earlier master has seen them
            return self.fleet.capacity.memory + self.fleet.away_memory
        now = self.clock()
        seen = self._seen_hosts | {host.name: (now, host) for host in there}
        self._seen_hosts = {name: (at, host) for name, (at, host) in seen.items() if now < at + AWAY_SECONDS}
        names = {host.name for host in there}
        return sum(host.resources.memory for name, (_, host) in self._seen_hosts.items() if name not in names)

    def _make_room(self, now: float) -> None:
        """Have workers give their room to a PS that finds none, while all others wait for it; and come back when there is some."""
        state, before = self.servers.state, self._no_room_since
        waiting = [
            node
            for node in self.fleet.staying_of("ps", state.leaving)
            if self._no_room(node.id) and (state.owns(node.id) or not state.version)
        ]
        self._no_room_since = {node.id: before.get(node.id, now) for node in waiting}
        if before.keys() - self._no_room_since.keys():
            self._hosts_at = now  # what there is may be known better by now
        elif self.fleet.all_ps_up(state.leaving) and now < self._hosts_at:
            self._take(self.fleet.take_room(now))
        if any(node.role == "worker" and node.state in ("draining", "ending") for node in self.fleet.running):
            self._no_room_since = dict.fromkeys(self._no_room_since, now)  # what it leaves may do
        for node in waiting:
            if now >= self._no_room_since[node.id] + NO_ROOM_SECONDS:
                self._no_room_since[node.id] = now
                running, placed, on = self.fleet.running, self._placed(), self._observed[node.id].host
                workers = who_gives_way(node.most, running, placed, {**self._fitted, **self._known}, on=on)
                if workers := workers or who_gives_way(node.most, running, placed, self._known, on=on):
                    why = self._no_room(node.id)
                    self._take(self.fleet.give_way([worker.id for worker in workers], node.id, why, now))
                    return

    def _learn_hosts(self) -> None:
        """Note what has fitted on each host."""
        on: dict[str, list[Resources]] = {}
        for node, host in self._placed().items():
            on.setdefault(host, []).append(self.fleet.by_id[node].resources)
        for host, held in on.items():
            self._fitted[host] = sum_of(held).or_more(self._fitted.get(host))

    def _no_room(self, node: str) -> str:
        """Return why no host has room for a node, in words; "": there is one, or it isn't known."""
        seen = self._observed.get(node)
        return seen.no_room if seen is not None and seen.ended_at is None else ""

    def _placed(self) -> dict[str, str]:
        """Return the host of each node that has one; "": it isn't known which. Who waits for room on one isn't there yet."""
        seen = {node.id: self._observed.get(node.id, Observed()) for node in self.fleet.running}
        seen = {node: one for node, one in seen.items() if not one.no_room or one.started_at is not None}
        found = {node: self.host_of.get(node, "") or one.host for node, one in seen.items()}
        return {node: host for node, host in found.items() if host or seen[node].started_at is not None}

    def read_soon(self) -> None:
        """Have what nodes have used read as of now, with the next turn."""
        last = self.readings[0] if self.readings is not None else -math.inf
        self._usage_at = min(self._usage_at, last + LEAST_USAGE_SECONDS)

    def _resize_all(self) -> None:
        for node in self.fleet.running:
            self._resize(node.id)

    def _resize(self, name: str) -> list[str]:
        """Ask the backend for what a node is to have, as far as may be now. Asking again does no harm: an earlier master may have done
        so, and not heard the answer. What came of it, in words."""
        node = self.fleet.by_id[name]
        if node.wanted is None:
            self.waits_for.pop(name, None)
            return []
        tidy = self.servers.tidy(node.id)
        lowered = node.wanted.memory < node.resources.memory and (tidy or node.role != "ps")
        step = next_step(node, used=self.memory_used(node.id) if lowered else 0, tidy=tidy)
        told = self._give_up(node, step.resources, step.refused) if step.refused else []
        if step.resources != node.resources:
            try:
                self.backend.resize(node.id, step.resources)
            except ResizeUnderWay:
                self._resize_at = self.clock() + UNDER_WAY_SECONDS
                return told
            except BackendError as error:
                return told + self._not_resized(node, step.resources, error)
            told += self._noted(self.fleet.resized(node.id, step.resources))
        return told + self._waiting(node.id, step.waits_for)

    def _give_up(self, node: Node, instead: Resources, why: str) -> list[str]:
        self.story.node(node.id, why)
        return [why, *self._noted(self.fleet.resize(node.id, instead))]

    def _not_resized(self, node: Node, wanted: Resources, error: BackendError) -> list[str]:
        why = f"is not resized to {describe(wanted)}: {error.message}"
        if wanted.memory < node.resources.memory:  # it has grown meanwhile
            return self._give_up(node, msgspec.structs.replace(wanted, memory=node.resources.memory), why)
        if isinstance(error, CantResize):
            refused = self.replace(node.id, wanted)
            why = f"{why}; " + (f"nor replaced by one that has them: {refused}" if refused else "it is replaced")
        self._resize_at = self.clock() + RESIZE_AGAIN_SECONDS
        return self._waiting(node.id, why)

    def _waiting(self, node: str, why: str) -> list[str]:
        if not why:
            self.waits_for.pop(node, None)
            return []
        if self.waits_for.get(node) != why:
            self.waits_for[node] = why
            self.story.node(node, why)
        return [why]

    def end_all(self) -> None:
        """Begin to end all nodes now, with all that they hold."""
        self.finish()
        for node in self.fleet.by_id.values():
            if node.state != "ended" or node.role == "ps":
                self._terminate_later(node.id, 0.0, keep_memory=False)

    def end_role(self, role: Literal["ps", "worker"], grace_seconds: float) -> None:
        """Begin to end the nodes of a role."""
        for node in self.fleet.running:
            if node.role == role:
                self._terminate_later(node.id, grace_seconds, keep_memory=False)

    def observe(self) -> None:
        """Handle what the backend says of its nodes. Raises BackendError when it can't be reached."""
        seen = self.backend.observe(after=self._version)
        if seen is None:
            return
        changed = {node: now for node, now in seen.nodes.items() if self._observed.get(node) != now}
        if any(now.reason == "OOMKilled" for now in changed.values()):
            self._look_at_hosts()  # it comes back with more, or the job fails for want of it: what was read may be of a host that was down
        for node, now in changed.items():
            self._take(self._judged(node, now))
            self._observed[node] = now
            self._tell_wait(node)
        self._version = seen.version

    def _tell_wait(self, node: str) -> None:
        """Tell what a node waits for until its process can begin, each phase and reason once: backends may go to and fro between two."""
        told, words = self._told_waits.setdefault(node, set()), self.awaited(node)
        if words and words not in told and len(told) < _MOST_WAITS:
            told.add(words)
            self.story.node(node, words)

    def _take(self, following: Next) -> None:
        fleet, instructions = following
        follows = any(isinstance(instruction, ServerReplaced) for instruction in instructions)
        if follows:
            failpoint("master.relaunch.noticed")
        for instruction in instructions:
            self._note(instruction)
        if fleet is not self.fleet:
            self.fleet = fleet
            self.facts.keep(FLEET, fleet)
        if follows:
            self.facts.after_commit(lambda: failpoint("master.relaunch.noted"))
        for instruction in instructions:
            self._follow(instruction)

    def _note(self, instruction: Instruction) -> None:
        """Note what is to be as durable as the fleet itself, and the story of it."""
        match instruction:
            case ServerDown(node):
                self.servers.down(node)
            case ServerReplaced(old, new):
                self.servers.replaced(old, new)
            case Note(node, text):
                self.story.node(node, text)

    def _follow(self, instruction: Instruction) -> None:
        match instruction:
            case Launch(node):
                self.facts.after_commit(partial(self._launch, node))
            case Terminate(node, gently, keep_memory):
                self._terminate_later(node, GRACE_SECONDS if gently else 0.0, keep_memory=keep_memory)
            case WorkerGone(node):
                self.on_gone(node)
            case ServerGone(node):
                self.servers.gone(node)
            case FailJob():
                self.on_failure(instruction)

    def _terminate_later(self, node: str, grace_seconds: float, *, keep_memory: bool) -> None:
        """Have a node end; of one that has ended, let go of its memory, for which an earlier master may have had no time."""

        def terminate() -> None:
            try:
                self.backend.terminate(node, grace_seconds=grace_seconds, keep_memory=keep_memory)
            except BackendError as error:
                print(f"{node} can't be ended: {error.message}", flush=True)

        self.facts.after_commit(terminate)

    def _launch(self, node: Node) -> None:
        failpoint("master.launch.noted")
        if self.fleet.done or self.facts.is_behind:  # a master that follows this one would know nothing of a new node
            seen = self.backend.observe()
            if seen is not None and node.id in seen.nodes:
                return  # an earlier master has launched it: it ends as the others do
        elif self._is_launched(node):
            return
        never = Observed(ended_at=0.0, reason="Unknown", detail="never started")  # the backend will never see it
        self._take(self._judged(node.id, never))

    def _is_launched(self, node: Node) -> bool:
        """Launch a node; return whether the backend has taken it."""
        recently = self.clock() - AVOID_SECONDS
        avoids = [host for host, at in self._avoided.items() if at > recently and not node.host]
        spec = NodeSpec(node.id, node.role, node.resources, self.endpoint, node.follows, host=node.host, avoids=avoids)
        try:
            self._launch_somewhere(spec)
        except BackendError as error:
            self.on_refusal(error)
            return False
        self._launched_at[node.id] = self.clock()
        failpoint("master.launch.asked")
        if node.follows:
            failpoint("master.relaunch.launched")
        return True

    def _launch_somewhere(self, spec: NodeSpec) -> None:
        """Launch a node on the host that is wished for; where that can't be, wherever there is room. Raises BackendError."""
        try:
            self.backend.launch(spec)
        except BackendError as error:
            if not spec.host:
                raise
            self.story.node(spec.id, f"is not launched on {spec.host}, but wherever there is room: {error.message}")
            self.backend.launch(msgspec.structs.replace(spec, host=""))

    def _judged(self, node: str, seen: Observed) -> Next:
        servers = self.servers
        return self.fleet.observed(
            node,
            seen,
            self.clock(),
            owns=servers.state.owns(node),
            leaving=servers.state.leaving,
            work_is_left=self.work_is_left(),
            doing=self._liveness.doing(node),
        )
