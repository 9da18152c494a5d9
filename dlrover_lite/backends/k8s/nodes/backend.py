"""The backend that runs a job's nodes in pods: the book of pods; and threads for the API's calls, for its watch, and for asking agents."""

from __future__ import annotations

import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import msgspec

from dlrover_lite.backends.k8s.api.calls import Calls
from dlrover_lite.backends.k8s.api.connection import Connection
from dlrover_lite.backends.k8s.api.watch import Change, Watch
from dlrover_lite.backends.k8s.nodes.agents import Agents, LogWish
from dlrover_lite.backends.k8s.nodes.api_thread import (
    ApiCaller,
    Closing,
    Created,
    Deleted,
    Outcome,
    ReadHosts,
    Resized,
    There,
    WriteEvent,
    read_hosts,
)
from dlrover_lite.backends.k8s.nodes.capacity import TO_COME, Bounds, capacity_of, left_by, most_by, shared_room_of
from dlrover_lite.backends.k8s.nodes.event_log import NodeEvent, append_events, read_events
from dlrover_lite.backends.k8s.nodes.log_files import LogFiles
from dlrover_lite.backends.k8s.nodes.master_events import MasterEvents
from dlrover_lite.backends.k8s.nodes.placement import SHORT_SECONDS
from dlrover_lite.backends.k8s.nodes.pod_book import PodBook
from dlrover_lite.backends.k8s.nodes.pod_state import Action, Order
from dlrover_lite.backends.k8s.objects.names import job_labels
from dlrover_lite.backends.k8s.objects.node_pod import PodSettings
from dlrover_lite.backends.k8s.objects.pod_view import PodView
from dlrover_lite.core.errors import BackendError
from dlrover_lite.core.processes.limits import raise_descriptors
from dlrover_lite.core.units import Resources
from dlrover_lite.jobs.store import Job
from dlrover_lite.protocol.hosts import Host, SharedRoom, sum_of
from dlrover_lite.protocol.nodes import Enforcement, HostUsage, NodeSpec, Observation, Readings, Usage
from dlrover_lite.protocol.questions import About
from dlrover_lite.transport.connector import Connector
from dlrover_lite.transport.polling import Poller

__all__ = ["KubeBackend"]

EVENT_LOG = "pods.jsonl"
"""File of the job's directory in which its pods are written down."""
LIST_SECONDS = 60.0
"""How long the first list of pods may take."""
HOSTS_SECONDS = 60.0
"""Seconds between two looks at nodes and quotas."""
DISK_SECONDS = 1.0
"""Seconds until a write is tried again that the disk has refused."""
_AT_ONCE = 50
"""Pods of a list that are taken in at once: the master's loop waits no longer than for these."""
_LONGEST_SLEEP_SECONDS = 1.0
_DESCRIPTORS_FOR = 256
"""Number of a machine's nodes that need as many open files as the connections to some 1,400 pods."""


class KubeBackend:
    """``protocol.nodes.Backend`` over the pods of a job.

    Launching, resizing and terminating only note what is wanted; what comes of it shows in ``observe``. A node whose pod the API refuses
    ends with the API's words. While a node waits, its detail says for what: pending, pulling, starting.
    """

    def __init__(
        self,
        connection: Connection,
        settings: PodSettings,
        job: Job,
        *,
        connector: Connector,
        say: Callable[[str], None],
        bounds: Bounds = Bounds(),  # noqa: B008 - it can't be changed
        spares: Resources | None = None,
    ) -> None:
        """``bounds``: how much the job may have by its recipe. ``spares``: size of the pods that wait for nodes, as many as the
        settings say. ``say`` is told what a person should know beside how nodes are."""
        self._settings, self._bounds, self._say = settings, bounds, say
        self._stopped = threading.Event()
        self._clock = time.monotonic
        self.calls = Calls(connection, clock=self._clock, sleep=self._pause)
        self._event_log = job.directory / EVENT_LOG
        self._cant_write = False
        self._unwritten: list[NodeEvent] = []
        """What the thread that asks agents has still to write down."""
        self.logs = LogFiles(job.log, say)
        self._lock = threading.Lock()
        pools, grow_seconds = settings.kubernetes.node_pools, settings.kubernetes.grow_seconds
        patience_seconds = grow_seconds if pools else SHORT_SECONDS
        self.book = PodBook(settings.job, agent_memory=settings.agent_memory, patience_seconds=patience_seconds)
        if settings.kubernetes.spares and spares is not None:
            self.book.keep_spares(settings.kubernetes.spares, spares)
        self._connector = connector
        self._readings: dict[str, Readings] = {}
        """What was measured last, by pod."""
        self._used: dict[str, Usage] = {}
        """What each node has used last."""
        self._there = There(None, [])
        self._had: Resources | None = None
        """What the job's pods had when that was looked at: quotas count them as of then. None: as now, from before they were known."""
        self._hosts_at = 0.0
        self._listed = threading.Event()
        self.measured: Counter[str] = Counter()
        """Number of times that what nodes use was measured, by pod."""
        self._events = MasterEvents()
        self._caller = ApiCaller(self.calls, settings, self._came, say)
        self._watch: Watch[PodView] = Watch(
            self.calls, "Pod", PodView, job_labels(settings.job), wait=self._stopped.wait, say=say
        )
        self._wake_end, self._waker = socket.socketpair()
        for end in (self._wake_end, self._waker):
            end.setblocking(False)
        self._threads: list[threading.Thread] = []

    # --- beginning and end ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Look at what there is, and begin to follow it. Raises BackendError where the API server can't be reached."""
        raise_descriptors(_DESCRIPTORS_FOR)
        self.book.cant_resize = self._why_no_resize()
        self._there = read_hosts(self.calls)
        self._hosts_at = self._clock() + HOSTS_SECONDS
        try:
            self.book.restore(read_events(self._event_log))
        except OSError as error:
            raise BackendError(f"What was written down of the job's pods can't be read: {error}") from error
        for name, run in (("pods", self._follow), ("api", self._caller.run), ("agents", self._look_after)):
            thread = threading.Thread(target=run, name=f"k8s-{name}")
            self._threads.append(thread)
            thread.start()
        if not self._listed.wait(LIST_SECONDS):
            self.close()
            raise BackendError(
                f"The pods of job {self._settings.job} can't be listed",
                hint="`dlrover-lite k8s check` tells what is missing.",
            )

    def _why_no_resize(self) -> str:
        found = self.calls.read_path("/api/v1", _ApiResources)
        if any(one.name == "pods/resize" for one in found.resources):
            return ""
        return "this cluster can't resize running pods, as Kubernetes 1.35 and later can"

    def remove_pods(self, timeout_seconds: float) -> bool:
        """End the job: delete all its nodes' pods. Return whether they were gone in time."""
        with self._woken():
            self.book.remove_all(self._clock())
        end = self._clock() + timeout_seconds
        while self.book.pods and self._clock() < end and not self._stopped.wait(0.05):
            pass
        return not self.book.pods

    def close(self) -> None:
        """Stop looking after the job's pods: they stay as they are, for a master that comes later."""
        if self._stopped.is_set():
            return
        self._stopped.set()
        self._caller.stop()
        self._watch.stop()
        self._wake()
        for thread in self._threads:
            thread.join()
        self._write_down_ends()
        self._threads.clear()
        for end in (self._wake_end, self._waker):
            end.close()

    # --- the master's side --------------------------------------------------------------------------------------------------

    def capacity(self) -> list[Host]:
        there, own, found_room = self._room()
        return capacity_of(
            there.hosts,
            self._settings.kubernetes,
            self._bounds,
            quota=left_by(there.quotas, own),
            found_room=found_room,
            agent_memory=self._settings.agent_memory,
        )

    def shared_room(self) -> SharedRoom:
        there, own, found_room = self._room()
        return shared_room_of(
            there.hosts,
            self._settings.kubernetes,
            self._bounds,
            quota=left_by(there.quotas, own),
            most=most_by(there.quotas),
            found_room=found_room,
            agent_memory=self._settings.agent_memory,
        )

    def _room(self) -> tuple[There, Resources, Resources | None]:
        """Return what there was at the last look, what the job's pods had then, and what has found room while more hasn't."""
        with self._lock:
            own = self._own() if self._had is None else self._had
            return self._there, own, self.book.room_there_is(self._clock())

    def _own(self) -> Resources:
        """Return what the job's pods that are there have of quotas, with their agents."""
        pods = [pod for pod in self.book.pods.values() if pod.view is not None and not pod.view.has_ended]
        own = sum_of(pod.wanted for pod in pods)
        return Resources(own.cores, own.memory + len(pods) * self._settings.agent_memory)

    def launch(self, spec: NodeSpec) -> None:
        hosts = self._there.hosts
        if spec.host.startswith(TO_COME):
            spec = msgspec.structs.replace(spec, host="")  # the scheduler places it on one that comes, or on another
        if spec.host and hosts is not None and all(host.metadata.name != spec.host for host in hosts):
            raise BackendError(
                f"Node {spec.id} can't be launched on {spec.host}: the cluster has no such node",
                hint="Launch it without a host.",
            )
        with self._woken():
            self.book.launch(spec, self._clock())

    def resize(self, node: str, resources: Resources) -> None:
        with self._woken():
            self.book.resize(node, resources, used=self._memory_of(node), now=self._clock())

    def _memory_of(self, node: str) -> int:
        """Return the memory that a node uses, or that is kept of it, in bytes, as it was measured last."""
        used, known = self._used.get(node), self.book.nodes.get(node)
        if used is None or known is None:
            return 0
        if not known.ended:
            return used.memory
        return used.shared_memory if self.book.keeps(known) else 0

    def terminate(self, node: str, *, grace_seconds: float, keep_memory: bool = False) -> None:
        with self._woken():
            self.book.terminate(node, grace_seconds, keep_memory=keep_memory, now=self._clock(), at=time.time())

    def observe(self, *, after: int | None = None) -> Observation | None:
        with self._lock:
            return self.book.observe(after)

    def readings(self) -> Readings:
        with self._lock:
            nodes: dict[str, Usage] = {}
            on: dict[str, str] = {}
            hosts: dict[str, HostUsage] = {}
            addresses: dict[str, str] = {}
            for pod, told in self._readings.items():
                hosts |= {host.host: host for host in told.hosts}
                for node, usage in told.nodes.items():
                    known = self.book.nodes.get(node)
                    if known is not None and not known.ended and known.pod == pod:
                        nodes[node], on[node] = usage, told.on[node]
                        if (found := self._address(pod)) is not None:
                            addresses[node] = found[1]
        return Readings(nodes, on, list(hosts.values()), addresses)

    def enforcement(self) -> Enforcement:
        why = self.book.cant_resize
        return Enforcement("control groups of pods", ["changes of a running node"] if why else [], why)

    def tell(self, line: str, about: About = "") -> None:
        """Have a line of the master's shown where the cluster shows what has happened to the job."""
        with self._woken():
            self._events.add(line, about)

    # --- the thread that watches ----------------------------------------------------------------------------------------------

    def _follow(self) -> None:
        with suppress(Closing):
            self._follow_until_closed()

    def _follow_until_closed(self) -> None:
        for change in self._watch:
            if change.whole:
                self._take_list(change)
            else:
                with self._woken():
                    for view in change.there:
                        self.book.seen(view, now=self._clock(), at=time.time())
                    for view in change.gone:
                        self.book.gone(view, now=self._clock(), at=time.time())
            if self._stopped.is_set():
                return

    def _take_list(self, change: Change[PodView]) -> None:
        for at in range(0, len(change.there), _AT_ONCE):
            with self._lock:
                for view in change.there[at : at + _AT_ONCE]:
                    self.book.seen(view, now=self._clock(), at=time.time())
        with self._woken():
            self.book.only({view.metadata.name for view in change.there}, now=self._clock(), at=time.time())
        self._listed.set()

    # --- the thread that makes calls ------------------------------------------------------------------------------------------

    def _came(self, outcome: Outcome) -> None:
        """Take in what came of a call."""
        now, book = self._clock(), self.book
        with self._woken():
            match outcome:
                case Created(pod, uid, ""):
                    book.created(pod, uid, now)
                case Created(pod, _, why, final, no_room):
                    book.create_failed(pod, why, final=final, no_room=no_room, now=now, at=time.time())
                case Deleted(pod, problem) if problem:
                    book.delete_failed(pod, now)
                case Resized(pod, resources, ""):
                    book.resized(pod, resources)
                case Resized(pod, resources, problem, final):
                    book.resize_failed(pod, resources, problem, now, final=final)
                case There() if not outcome.problem:
                    if outcome.sizes != self._there.sizes:
                        book.found_room.forget()
                    self._there, self._had = outcome, self._own()

    # --- the thread that asks agents ------------------------------------------------------------------------------------------

    def _look_after(self) -> None:
        poller = Poller()
        poller.register(self._wake_end.fileno())
        agents = Agents(self._connector, _Listener(self), poller, self._clock)
        unwritten = self._unwritten
        held_back: list[Action] = []
        while not self._stopped.is_set():
            with self._lock:
                held_back += self.book.take(self._clock(), time.time())
                unwritten += self.book.unwritten
                self.book.unwritten.clear()
                touched = self.book.take_touched()
                pods = {name: self._address(name) for name in touched}
                for name, found in pods.items():
                    if found is None:
                        self._readings.pop(name, None)
                for event in self._events.take(self._clock()):
                    self._caller.put(WriteEvent(event, time.time()))
                due = min(self.book.next_due() or float("inf"), agents.next_due())
            if self._write_down(unwritten):
                for action in held_back:
                    self._caller.put(action)
                held_back.clear()
            self._look_at_hosts()
            agents.follow(pods)
            agents.ask()
            if agents.problem:
                self._say(f"An agent can't be asked: {agents.problem}")
                agents.problem = ""
            self._sleep(poller, agents, due, waits_for_disk=bool(unwritten))
        agents.close()

    def _address(self, name: str) -> tuple[str, str] | None:
        """Return uid and address of a pod whose agent can be asked."""
        pod = self.book.pods.get(name)
        return (pod.uid, pod.view.status.pod_ip) if pod is not None and pod.runs and pod.view is not None else None

    def _sleep(self, poller: Poller, agents: Agents, due: float, *, waits_for_disk: bool) -> None:
        due = min(due, agents.next_due(), self._clock() + (DISK_SECONDS if waits_for_disk else _LONGEST_SLEEP_SECONDS))
        ready: list[Any] = poller.poll(max(0, int(1000 * (due - self._clock())) + 1))
        if self._wake_end.fileno() in ready:
            with suppress(BlockingIOError):
                self._wake_end.recv(1 << 16)
        agents.hear(ready)

    def _write_down(self, events: list[NodeEvent]) -> bool:
        """Write down what a later master has to know, before anything is done of it. Return whether that was possible."""
        if not events:
            return True
        try:
            append_events(self._event_log, events)
        except OSError as error:
            if not self._cant_write:
                self._say(f"No pod is made or deleted for now, as it can't be written down: {self._event_log}: {error}")
            self._cant_write = True
            return False
        self._cant_write = False
        events.clear()
        return True

    def _write_down_ends(self) -> None:
        """Write down, when all threads have ended, how nodes have ended that the master may have heard of already. (What was to be launched
        wasn't: a later master launches it anew.)"""
        self._write_down([event for event in (*self._unwritten, *self.book.unwritten) if event.ended is not None])

    def _look_at_hosts(self) -> None:
        if self._clock() >= self._hosts_at:
            self._hosts_at = self._clock() + HOSTS_SECONDS
            self._caller.put(ReadHosts())

    # --- of all threads -----------------------------------------------------------------------------------------------------

    @contextmanager
    def _woken(self) -> Iterator[None]:
        """Change the book, and have what follows from it done."""
        try:
            with self._lock:
                yield
        finally:
            self._wake()  # a resize that is begun raises an error

    def _pause(self, seconds: float) -> None:
        """Wait between two tries of a call. Raises Closing."""
        if self._stopped.wait(seconds):
            raise Closing("nobody looks after the job's pods any more")

    def _wake(self) -> None:
        with suppress(OSError):  # it is awake, or closed
            self._waker.send(b"!")


class _ApiResources(msgspec.Struct):
    class Resource(msgspec.Struct):
        name: str = ""

    resources: list[Resource] = []


class _Listener:
    """What agents say, taken into the book."""

    def __init__(self, backend: KubeBackend) -> None:
        self._backend, self._book, self._lock = backend, backend.book, backend._lock

    def orders(self, pod: str) -> list[Order]:
        with self._lock:
            return self._book.orders(pod)

    def heard(self, pod: str) -> None:
        with self._lock:
            self._book.heard(pod)

    def silent(self, pod: str, seconds: float) -> None:
        with self._lock:
            self._book.silent(pod, seconds)

    def acknowledged(self, pod: str, order: Order) -> None:
        with self._lock:
            self._book.acknowledged(pod, order)

    def refused(self, pod: str, order: Order, why: str) -> None:
        with self._lock:
            self._book.refused(pod, order, why, now=time.monotonic(), at=time.time())

    def observed(self, pod: str, observation: Observation) -> None:
        with self._lock:
            self._book.observed(pod, observation, now=time.monotonic(), at=time.time())

    def measured(self, pod: str, readings: Readings) -> None:
        with self._lock:
            self._backend._readings[pod] = readings
            self._backend.measured[pod] += 1
            self._backend._used |= readings.nodes

    def logs(self, pod: str) -> list[LogWish]:
        with self._lock:
            known = self._book.pods.get(pod)
            nodes = [(name, self._book.nodes[name]) for name in known.nodes] if known is not None else []
            states = [(name, node.ended) for name, node in nodes if node.launch == "done"]
        return [wish for name, ended in states if (wish := self._backend.logs.wish(name, ended=ended)) is not None]

    def logged(self, pod: str, wish: LogWish, data: bytes, size: int) -> None:
        logs = self._backend.logs
        logs.add(wish, data, size)
        with self._lock:
            known = self._book.pods.get(pod)
            if known is not None and known.node == wish.node and all(logs.is_whole(name) for name in known.nodes):
                self._book.logs_copied(pod, time.monotonic())
