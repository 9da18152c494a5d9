"""Which node of a job runs in which pod, and what becomes of both when one of them ends. No clock in here."""

from __future__ import annotations

import heapq
import math

import msgspec

from dlrover_lite.backends.k8s.nodes.capacity import FoundRoom
from dlrover_lite.backends.k8s.nodes.event_log import NodeEvent
from dlrover_lite.backends.k8s.nodes.pod_state import NodeState, PodState, is_same
from dlrover_lite.backends.k8s.objects.node_pod import pod_name
from dlrover_lite.backends.k8s.objects.pod_view import PodEnd
from dlrover_lite.core.units import Resources
from dlrover_lite.protocol.hosts import sum_of
from dlrover_lite.protocol.nodes import NodeSpec, Observed

__all__ = ["Placement"]

LINGER_SECONDS = 30.0
"""How long a pod waits for another node, after one that has ended by itself: its place is mostly taken soon."""
LOGS_SECONDS = 5.0
"""How long a pod is kept at most for the last lines of its nodes."""
RESIZED_SECONDS = 60.0
"""How long a node waits to be started for its pod to be given what it is to have."""
SHORT_SECONDS = 60.0
"""How long a pod finds no room until what has found some counts as all there is."""
SPARE_SECONDS = 30.0
"""Shortest time between two spare pods: one that isn't kept by the cluster isn't made again at once."""
POD_GRACE_SECONDS = 20


class Placement:
    """All nodes and pods of a job. ``cant_resize``: why running pods can't be resized here; empty: they can. ``patience_seconds``: how long
    a pod finds no room until what has found some counts as all there is."""

    def __init__(self, job: str, cant_resize: str, patience_seconds: float) -> None:
        self._patience_seconds = patience_seconds
        self._job, self.cant_resize = job, cant_resize
        self.nodes: dict[str, NodeState] = {}
        self.pods: dict[str, PodState] = {}
        self.unwritten: list[NodeEvent] = []
        """What is to be written down, before anything is done of it."""
        self.version = 0
        self.closing = False
        """The job is being ended: no node starts any more."""
        self.due: dict[str, None] = {}
        """Pods that are to be looked at."""
        self.timers: list[tuple[float, str]] = []
        self.found_room = FoundRoom()
        self.left_at = -math.inf
        """Time when a pod that had a host was last deleted."""
        self._idle: dict[str, None] = {}
        """Pods that may take another node."""
        self._spares, self._spare_size, self._spare_at = 0, Resources(0.0, 0), 0.0

    # --- where nodes run ------------------------------------------------------------------------------------------------

    def place(self, node: NodeState, now: float) -> None:
        """Find a pod for a node: that of the one it follows, another one that has none, or a new one."""
        spec = node.spec
        pod = self._of_predecessor(spec) or self._idle_for(spec)
        if pod is None:
            pod = self._another_pod(spec.id)
            pod.role, pod.wanted = spec.role, spec.resources
        else:
            pod.role, pod.spare, pod.was_taken = spec.role, False, True
            pod.delete_at, pod.logs_copied = None, False
            if not is_same(pod.wanted, spec.resources) and not self.cant_resize:
                self.resize_pod(pod, spec.resources)
                node.launch_by = now + RESIZED_SECONDS
                self.wake(pod, node.launch_by)
        pod.nodes.append(spec.id)
        self._idle.pop(pod.name, None)
        node.pod = pod.name
        self.change(node, host=pod.view.host if pod.view is not None else "", no_room="")
        self.touch(pod)
        self.unwritten.append(NodeEvent(spec.id, pod.name, launched=spec))

    def _another_pod(self, name: str) -> PodState:
        found = pod_name(self._job, name)
        number = 1
        while found in self.pods:  # it had one before, in which it never came to run
            number += 1
            found = pod_name(self._job, f"{name}-{number}")
        self.pods[found] = pod = PodState(found, "worker", Resources(0.0, 0))
        return pod

    def _of_predecessor(self, spec: NodeSpec) -> PodState | None:
        before = self.nodes.get(spec.follows)
        pod = self.pods.get(before.pod) if before is not None else None
        if pod is None or before is None or not pod.may_take_nodes or pod.node != before.spec.id:
            return None  # an agent that this master hasn't heard of yet is waited for: memory is there
        if before.observed.reason == "OOMKilled" and self.cant_resize and spec.resources.memory > pod.wanted.memory:
            return None  # it would only be killed again
        return pod

    def _idle_for(self, spec: NodeSpec) -> PodState | None:
        for name in self._idle:
            pod = self.pods[name]
            fits = is_same(pod.wanted, spec.resources) or not (self.cant_resize or pod.resize_problem)
            fits = fits and (pod.spare or pod.role == spec.role)
            if not (fits and pod.takes_nodes and pod.view is not None):
                continue
            if spec.host in ("", pod.view.host) and pod.view.host not in spec.avoids:
                return pod
        return None

    def move(self, node: NodeState, pod: PodState, now: float) -> None:
        """Find another pod for a node that was never started in this one."""
        pod.nodes.remove(node.spec.id)
        node.launch, node.launch_by = "due", None
        self.delete(pod, now)
        self.place(node, now)

    def resize_pod(self, pod: PodState, resources: Resources) -> None:
        pod.wanted, pod.resize, pod.resize_problem, pod.resize_at = resources, "due", "", 0.0
        pod.cant_resize, pod.deferred_since = False, None
        self.touch(pod)

    # --- spares ---------------------------------------------------------------------------------------------------------

    def keep_spares(self, count: int, size: Resources) -> None:
        """Have so many pods wait for nodes."""
        self._spares, self._spare_size = count, size

    def add_idle(self, pod: PodState) -> None:
        self._idle[pod.name] = None

    def make_spares(self, now: float) -> None:
        """Make spare pods that are missing."""
        if not self._spares or self.closing or now < self._spare_at:
            return
        for _ in range(self._spares - sum(pod.spare and not pod.is_leaving for pod in self.pods.values())):
            pod = self._another_pod("spare-1")
            pod.wanted, pod.spare = self._spare_size, True
            self.add_idle(pod)
            self.touch(pod)
            self._spare_at = now + SPARE_SECONDS

    # --- the end of a node, and of a pod --------------------------------------------------------------------------------

    def end(self, node: NodeState, end: PodEnd, now: float, at: float, *, started_at: float | None = None) -> None:
        """Note how a node has ended; the first word about it counts."""
        if node.ended:
            return
        started = started_at if started_at is not None else node.observed.started_at
        node.observed = Observed(
            started, max(at, started or 0.0), end.reason, end.exit_code, end.detail, used_memory=end.used_memory
        )
        self.version += 1
        self.unwritten.append(NodeEvent(node.spec.id, node.pod, ended=node.observed))
        node.terminate = None
        pod = self.pods.get(node.pod)
        if pod is None or pod.node != node.spec.id:
            return
        if pod.create == "due":
            self.forget(pod)
        elif not pod.runs:
            self.delete(pod, now)
        elif not self.keeps(node):
            self.let_go(pod, now, linger=0.0 if node.asked_to_end else LINGER_SECONDS)

    def keeps(self, node: NodeState) -> bool:
        """Whether what a node has left may be wanted by one that follows it."""
        if node.followed_by:
            return False
        return node.keeps_memory or (node.spec.role == "ps" and not node.asked_to_end)

    def let_go(self, pod: PodState, now: float, *, linger: float = 0.0) -> None:
        """Have a pod deleted, of which the last node has ended: after a while, in which it may take another one."""
        if pod.is_leaving or not pod.runs or self.closing:
            self.delete(pod, now)
            return
        pod.delete_at = now + max(linger, 0.0 if pod.logs_copied else LOGS_SECONDS)
        self.add_idle(pod)
        self.wake(pod, pod.delete_at)

    def delete(self, pod: PodState, now: float, *, grace_seconds: int = POD_GRACE_SECONDS) -> None:
        """Have a pod deleted: it takes no more nodes."""
        self._idle.pop(pod.name, None)
        pod.takes_no_more = True
        pod.delete_at, pod.grace_seconds = now, grace_seconds
        self.touch(pod)

    def forget(self, pod: PodState) -> None:
        self.pods.pop(pod.name, None)
        self._idle.pop(pod.name, None)
        self.touch(pod)

    # --- room -----------------------------------------------------------------------------------------------------------

    @property
    def placed(self) -> Resources:
        """What the nodes of all pods that have a host are to have together."""
        return sum_of(pod.wanted for pod in self.pods.values() if pod.view is not None and pod.view.host)

    def room_there_is(self, now: float) -> Resources | None:
        """Return what has found room, if there is none left for more; None: nothing says so."""
        since = [pod.unschedulable_since for pod in self.pods.values() if pod.unschedulable_since is not None]
        if since and now >= min(since) + self._patience_seconds:
            self.found_room.nothing_left(self.placed, now)
        return self.found_room.most(self.placed, now)

    # --- what has changed -----------------------------------------------------------------------------------------------

    def change(self, node: NodeState, **changes: object) -> None:
        """Change how a node is told to be."""
        changed = msgspec.structs.replace(node.observed, **changes)
        if changed != node.observed:
            node.observed = changed
            self.version += 1

    def touch(self, pod: PodState) -> None:
        """Have a pod looked at."""
        self.due[pod.name] = None

    def wake(self, pod: PodState, at: float) -> None:
        """Have a pod looked at, at a time."""
        heapq.heappush(self.timers, (at, pod.name))
