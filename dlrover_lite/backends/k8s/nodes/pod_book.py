"""The book of a job's pods: what is wanted, what the API and agents say, and what is to be done. No clock, no thread, no socket in here.

Whatever happens, its caller tells it, and takes what is to be done from it (``take`` for the API, ``orders`` for agents), in any order
and at any time: it never assumes that something that was asked for has happened. Times are seconds of a steady clock, but for ``at``,
seconds since the epoch.
"""

from __future__ import annotations

import heapq
import math
import re
from collections.abc import Collection, Iterable, Iterator

import msgspec

from dlrover_lite.backends.k8s.nodes.event_log import NodeEvent
from dlrover_lite.backends.k8s.nodes.placement import LINGER_SECONDS, SHORT_SECONDS, Placement
from dlrover_lite.backends.k8s.nodes.pod_state import (
    Action,
    CreatePod,
    DeletePod,
    NodeState,
    Order,
    PodState,
    ResizePod,
    is_same,
)
from dlrover_lite.backends.k8s.objects.node_pod import NODE_ANNOTATION, SPEC_ANNOTATION
from dlrover_lite.backends.k8s.objects.pod_view import PodEnd, PodView
from dlrover_lite.backends.keeper import protocol
from dlrover_lite.backends.limits.base import check_resources
from dlrover_lite.core.decoding import from_json
from dlrover_lite.core.errors import BackendError, CantResize, ResizeUnderWay
from dlrover_lite.core.units import Resources, format_bytes
from dlrover_lite.protocol.nodes import NodeSpec, Observation, Observed, Role

__all__ = ["PodBook"]

START_PATIENCE_SECONDS = 120.0
"""How long an image may fail to be pulled, or a container to be made, until its node is given up: registries have bad minutes, too."""
UNKNOWN_SECONDS, LOST_SECONDS, FIRST_WORD_SECONDS = 30.0, 180.0, 300.0
"""Silence of an agent after which its node is told to be unknown, and counts as ended; and the latter before its first word."""
KILL_SECONDS = 5.0
"""How long a silent agent may take beyond the grace that its node was given until the pod is deleted."""
STUCK_SECONDS = 60.0
"""How long a deleted pod may stay, with an agent that is silent, until its node counts as ended: a lost host confirms nothing."""
RETRY_SECONDS, QUOTA_RETRY_SECONDS = 5.0, 15.0
RESIZE_RETRY_SECONDS, DEFERRED_SECONDS = 30.0, 60.0
"""Time between two tries of a resize that the API refuses; and how long a host may put one off until it counts as refused."""
UNSEEN_SECONDS = 45.0
"""A pod that was made this long before a list, and isn't in it, is gone; sooner, the list may be from before."""

_NODE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,26}\Z")
_RESERVED = {"keeper", "master", "template"}
_COMPONENTS: dict[str, Role] = {"ps": "ps", "worker": "worker", "spare": "worker"}


class PodBook(Placement):
    """``job``: name of the job's objects. ``agent_memory``: bytes that each pod has beside what its node may use. ``cant_resize``: why
    running pods can't be resized here; empty: they can. ``patience_seconds``: how long a pod finds no room until what has found some counts
    as all there is."""

    def __init__(
        self, job: str, *, agent_memory: int = 0, cant_resize: str = "", patience_seconds: float = SHORT_SECONDS
    ) -> None:
        super().__init__(job, cant_resize, patience_seconds)
        self._agent_memory = agent_memory
        self._listed = False
        self._touched: dict[str, None] = {}

    # --- what the master wants ------------------------------------------------------------------------------------------

    def launch(self, spec: NodeSpec, now: float) -> None:
        """Note that a node is wanted. Raises BackendError for one that can't be."""
        if spec.id in self.nodes:
            return
        self._check(spec)
        if self.closing:
            raise BackendError(f"Node {spec.id} can't be launched any more: the job is being ended")
        self.nodes[spec.id] = node = NodeState(spec, "")
        if spec.follows:
            self.nodes[spec.follows].followed_by = spec.id
        self.place(node, now)
        self.change(node, detail="pending: its pod is being made")

    def _check(self, spec: NodeSpec) -> None:
        if not _NODE_ID.match(spec.id) or spec.id in _RESERVED:
            raise BackendError(f"{spec.id!r} can't be a node's id: up to 27 letters, digits, '.', '_' and '-' can")
        if spec.role not in ("ps", "worker"):
            raise BackendError(f"Node {spec.id}: no pods are made for the role {spec.role}")
        check_resources(spec.id, spec.resources)
        if not spec.follows:
            return
        followed = self._known(spec.follows)
        if followed.spec.role != spec.role:
            raise BackendError(f"Node {spec.id} ({spec.role}) can't follow {spec.follows}, a {followed.spec.role}")
        if not followed.ended:
            raise BackendError(f"Node {spec.id} can't follow {spec.follows} yet: that one has not ended")
        if followed.followed_by:
            raise BackendError(f"Node {spec.id} can't follow {spec.follows}: {followed.followed_by} does already")

    def _known(self, node: str) -> NodeState:
        if node not in self.nodes:
            raise BackendError(f"No node {node!r} was ever launched")
        return self.nodes[node]

    def resize(self, node_id: str, resources: Resources, *, used: int, now: float) -> None:
        """Note what a node is to have; return when it has it. ``used``: bytes of memory in use. Raises ResizeUnderWay while it is being
        done, and BackendError for what can't be, or isn't for now."""
        node = self._known(node_id)
        check_resources(node_id, resources)
        pod = self.pods.get(node.pod)
        if pod is None or pod.node != node_id or pod.is_leaving:
            return  # it has ended, or is about to: who comes later is made with what it is to have
        if resources.memory < used:
            raise BackendError(
                f"Node {node_id} can't be limited to {format_bytes(resources.memory)} of memory: {format_bytes(used)} are in use",
                hint=f"Give it more than that ({used:,} bytes), or end it first.",
            )
        if pod.create == "due":
            pod.wanted = resources
            return
        if self.cant_resize and not is_same(pod.wanted, resources):
            raise CantResize(f"Node {node_id} can't be resized: {self.cant_resize}", hint="Have a new node instead.")
        if not is_same(pod.wanted, resources) or (pod.resize_problem and now >= pod.resize_at):
            self.resize_pod(pod, resources)
        self._report_resize(node, pod, now)

    def _report_resize(self, node: NodeState, pod: PodState, now: float) -> None:
        """Raise an error unless a pod has what its node is to have."""
        wanted, words = pod.wanted, pod.resize_problem
        if node.ended or self._is_settled(pod):
            return
        if words and pod.view is not None and wanted.memory < (actual := self._actual(pod.view)).memory:
            self.resize_pod(pod, actual)  # the master goes on with what the node has: it isn't to be taken away later
        if words:
            is_put_off = pod.deferred_since is not None and now >= pod.deferred_since + DEFERRED_SECONDS
            error = CantResize if pod.cant_resize or is_put_off else BackendError
            raise error(f"{node.spec.id} in pod {pod.name}: {words}")
        raise ResizeUnderWay(f"the pod {pod.name} of {node.spec.id} is being resized")

    def terminate(self, node_id: str, grace_seconds: float, *, keep_memory: bool, now: float, at: float) -> None:
        """Note that a node is to end. Raises BackendError for one that was never launched."""
        node = self._known(node_id)
        node.keeps_memory = keep_memory and (node.keeps_memory or not node.asked_to_end)
        pod = self.pods.get(node.pod)
        if node.ended:
            node.asked_to_end = True
            if pod is not None and not keep_memory and pod.node == node_id and not pod.is_leaving:
                node.terminate = protocol.Terminate(node_id, 0.0, keep_memory=False)
                self.let_go(pod, now)
            return
        node.grace_seconds = min(grace_seconds, node.grace_seconds) if node.asked_to_end else grace_seconds
        node.asked_to_end = True
        if pod is None or node.is_untouched:
            self.end(node, PodEnd("Killed", None, "ended on request before it started"), now, at)
            return
        node.terminate = protocol.Terminate(node_id, node.grace_seconds, keep_memory)
        self.touch(pod)

    def remove_all(self, now: float) -> None:
        """Delete all pods, at the end of the job: nothing is launched from now on."""
        self.closing = True
        for pod in list(self.pods.values()):
            self.delete(pod, now)

    # --- what the API says ----------------------------------------------------------------------------------------------

    def restore(self, events: Iterable[NodeEvent]) -> None:
        """Take in what an earlier master has written down. To be called first."""
        for event in events:
            if event.launched is not None:
                node = self.nodes.get(event.node)
                if node is None:  # nobody knows whether it was told to start
                    self.nodes[event.node] = NodeState(event.launched, event.pod, launch="asked")
                    if (before := self.nodes.get(event.launched.follows)) is not None:
                        before.followed_by = event.node
                else:
                    node.pod = event.pod
            if event.ended is not None and (node := self.nodes.get(event.node)) is not None and not node.ended:
                node.observed = event.ended
            self.version += 1

    def listed(self, views: Iterable[PodView], *, now: float, at: float) -> None:
        """Take in the list of all pods that there are."""
        there = {view.metadata.name: view for view in views}
        for view in there.values():
            self.seen(view, now=now, at=at)
        self.only(there.keys(), now=now, at=at)

    def only(self, there: Collection[str], *, now: float, at: float) -> None:
        """Take in that there are no other pods than these, all of which were seen."""
        for pod in list(self.pods.values()):
            unseen = pod.view is None and pod.create == "done" and now > pod.created_at + UNSEEN_SECONDS
            if pod.name not in there and (pod.view is not None or unseen):
                self._pod_gone(pod, now, at)
        if not self._listed:
            self._listed = True
            for node in self.nodes.values():
                if not node.ended and node.pod not in self.pods:
                    why = f"its pod {node.pod} was gone when the master came back"
                    self.end(node, PodEnd("Preempted", None, why), now, at)

    def seen(self, view: PodView, *, now: float, at: float) -> None:
        """Take in how a pod is now."""
        if view.component not in _COMPONENTS:
            return
        pod = self.pods.get(view.metadata.name)
        if pod is not None and pod.uid and pod.uid != view.metadata.uid:
            self._pod_gone(pod, now, at)
            pod = None
        pod = pod or self._adopt(view)
        pod.view, pod.uid, pod.create = view, view.metadata.uid, "done"
        node = self.nodes.get(pod.node)
        pod.cant_start_since = (pod.cant_start_since or now) if view.cant_start else None
        if pod.unschedulable_since is not None and view.host and self.left_at >= pod.unschedulable_since:
            self.found_room.nothing_left(self.placed, now)  # it only had to wait for another one to leave
        pod.unschedulable_since = (pod.unschedulable_since or now) if view.unschedulable else None
        if pod.cant_start_since is not None:
            self.wake(pod, pod.cant_start_since + START_PATIENCE_SECONDS)
        if view.has_ended:
            self._pod_ended(pod, now, at)
        elif node is not None and not node.ended:
            is_started = node.observed.started_at is not None
            detail = node.observed.detail if is_started else "" if pod.heard else view.phase_words
            self.change(node, detail=detail, host=view.host, no_room=view.unschedulable)
        elif (node is None or node.ended) and pod.delete_at is None and not self._is_kept(pod, node):
            self.let_go(pod, now, linger=LINGER_SECONDS)
        self._see_resize(pod, view, now)
        self.touch(pod)

    def _is_kept(self, pod: PodState, node: NodeState | None) -> bool:
        return pod.spare or (node is not None and self.keeps(node))

    def _adopt(self, view: PodView) -> PodState:
        """Take in a pod that an earlier master has made."""
        meta = view.metadata
        asked = self._less_agent(view.asked)
        pod = PodState(meta.name, _COMPONENTS[view.component], asked, create="done", uid=meta.uid)
        self.pods[pod.name] = pod
        pod.nodes = [node.spec.id for node in self.nodes.values() if node.pod == pod.name]
        first = meta.annotations.get(NODE_ANNOTATION, "")
        if first and first not in self.nodes:
            self.nodes[first] = NodeState(_spec_of(view, first, pod.role, asked), pod.name, launch="asked")
            pod.nodes.append(first)
            self.version += 1
        pod.spare = not pod.nodes and view.component == "spare"
        if pod.spare:
            self.add_idle(pod)
        return pod

    def gone(self, view: PodView, *, now: float, at: float) -> None:
        """Take in that a pod isn't there any more; ``view``: how it was last."""
        pod = self.pods.get(view.metadata.name)
        if pod is not None and pod.uid in ("", view.metadata.uid):
            pod.view = view
            self._pod_gone(pod, now, at)

    def _pod_gone(self, pod: PodState, now: float, at: float) -> None:
        self.forget(pod)
        self._lose(pod, now, at)

    def _pod_ended(self, pod: PodState, now: float, at: float) -> None:
        self.delete(pod, now, grace_seconds=0)
        self._lose(pod, now, at)

    def _lose(self, pod: PodState, now: float, at: float) -> None:
        """Go on without a pod: a node that it was never told to start, and that it wasn't made for, gets another one."""
        node = self.nodes.get(pod.node)
        if node is None or node.ended:
            return
        if node.is_untouched and not node.asked_to_end and not self.closing and pod.was_taken:
            self.move(node, pod, now)
        else:
            self.end(node, self._end_with(pod, node), now, at)

    def _end_with(self, pod: PodState, node: NodeState) -> PodEnd:
        """Say how a node has ended of which only the pod's end is known."""
        found = pod.view.end(limit=pod.wanted.memory) if pod.view is not None else None
        if found is not None and found.reason == "OOMKilled":
            return found
        if node.asked_to_end:
            return PodEnd("Killed", None, "ended on request, with its pod")
        if found is None or not (pod.view is not None and (pod.view.has_ended or pod.view.disruption)):
            return PodEnd("Preempted", None, f"its pod {pod.name} was deleted by somebody else")
        return found

    # --- what came of calls ---------------------------------------------------------------------------------------------

    def created(self, name: str, uid: str, now: float) -> None:
        """Take in that a pod was made."""
        if (pod := self.pods.get(name)) is not None and pod.create == "asked":
            pod.create, pod.created_at = "done", now
            pod.uid = pod.uid or uid
            self.touch(pod)

    def create_failed(self, name: str, why: str, *, final: bool, no_room: bool = False, now: float, at: float) -> None:
        """Take in that a pod wasn't made: ``final``: and never will be, as it is; ``no_room``: a quota leaves no more."""
        pod = self.pods.get(name)
        if pod is None or pod.create != "asked":
            return
        pod.create, pod.retry_at = "due", now + (QUOTA_RETRY_SECONDS if no_room else RETRY_SECONDS)
        node = self.nodes.get(pod.node)
        if node is not None and not node.ended:
            if final:
                self.end(node, PodEnd("Unknown", None, why), now, at)
            else:
                self.change(node, detail=f"pending: {why}", no_room=why if no_room else "")
        if final:
            self.forget(pod)
        else:
            self.wake(pod, pod.retry_at)

    def delete_failed(self, name: str, now: float) -> None:
        """Take in that a pod couldn't be deleted for now."""
        if (pod := self.pods.get(name)) is not None and pod.delete == "asked":
            pod.delete, pod.retry_at = "no", now + RETRY_SECONDS
            self.wake(pod, pod.retry_at)

    def resized(self, name: str, resources: Resources) -> None:
        """Take in that the API has accepted a pod's resize; the pod's status will say what came of it."""
        if (pod := self.pods.get(name)) is not None and pod.resize == "asked":
            pod.resize = "no" if is_same(pod.wanted, resources) else "due"
            self.touch(pod)

    def resize_failed(self, name: str, resources: Resources, why: str, now: float, *, final: bool = False) -> None:
        """Take in that the API refuses a pod's resize, or doesn't answer; ``final``: it will go on refusing it."""
        pod = self.pods.get(name)
        if pod is None or pod.resize != "asked":
            return
        if not is_same(pod.wanted, resources):
            pod.resize = "due"
        else:
            pod.resize, pod.resize_problem, pod.cant_resize = "no", why, final
            pod.resize_at = now + RESIZE_RETRY_SECONDS
        self.touch(pod)

    def _see_resize(self, pod: PodState, view: PodView, now: float) -> None:
        """See what a pod's status says of its resize."""
        if pod.resize != "no" or pod.is_leaving:
            return
        if self._is_settled(pod):
            pod.resize_problem = ""
            return
        if is_same(self._less_agent(view.asked), pod.wanted):
            kind, words = view.resize_problem
            pod.resize_problem, pod.cant_resize = words if kind is not None else "", kind == "Infeasible"
            pod.deferred_since = (pod.deferred_since or now) if kind == "Deferred" else None
            pod.resize_at = math.inf  # it is in the pod's spec: its node goes on trying by itself

    def _is_settled(self, pod: PodState) -> bool:
        """Whether a pod has what its node is to have."""
        if pod.resize != "no":
            return False
        if pod.view is None:
            return True
        asked = self._less_agent(pod.view.asked)
        return is_same(asked, pod.wanted) and (not pod.runs or is_same(self._actual(pod.view), pod.wanted))

    def _actual(self, view: PodView) -> Resources:
        return self._less_agent(view.actual)

    def _less_agent(self, resources: Resources) -> Resources:
        return Resources(resources.cores, max(0, resources.memory - self._agent_memory))

    # --- what agents say ------------------------------------------------------------------------------------------------

    def running(self) -> Iterator[PodState]:
        """Iterate over the pods whose agents can be asked."""
        return (pod for pod in self.pods.values() if pod.runs)

    def orders(self, name: str) -> list[Order]:
        """Return what the agent of a pod is to be told now, in this order, each until it has acknowledged it."""
        pod = self.pods.get(name)
        if pod is None or not pod.runs or pod.view is None:
            return []
        found: list[Order] = []
        for one in pod.nodes:
            node = self.nodes[one]
            if node.launch != "done" and not node.ended and self._may_launch(pod, node):
                node.launch = "asked"
                found.append(protocol.Launch(self._told_spec(pod, node)))
            if node.terminate is not None:
                found.append(node.terminate)
        if (
            pod.tell_size
            and self._is_settled(pod)
            and (node := self.nodes[pod.node]).launch == "done"
            and not node.ended
        ):
            found.append(protocol.Resize(pod.node, pod.wanted))
        return found

    def _may_launch(self, pod: PodState, node: NodeState) -> bool:
        """Whether a node is started now: not in a pod that is about to end or silent so far, nor, for a while, in one still too small."""
        if node.launch == "asked":
            return True
        if pod.awaits_agent or pod.is_leaving or pod.delete_at is not None or pod.view is None:
            return False
        return node.launch_by is None or self._actual(pod.view).memory >= node.spec.resources.memory

    def _told_spec(self, pod: PodState, node: NodeState) -> NodeSpec:
        """Return a node as its agent is to start it: it knows no other hosts. Whom it follows it is told wherever that one has run: a
        parameter server that finds nothing of its predecessor's memory says that the parameters are lost."""
        return msgspec.structs.replace(node.spec, host="", avoids=[], resources=pod.wanted)

    def heard(self, name: str) -> None:
        """Take in that an agent has answered something."""
        if (pod := self.pods.get(name)) is None:
            return
        was = pod.heard and pod.silent_seconds < UNKNOWN_SECONDS
        pod.heard, pod.silent_seconds = True, 0.0
        node = self.nodes.get(pod.node)
        if not was and node is not None and not node.ended:
            self.change(node, detail="")

    def silent(self, name: str, seconds: float) -> None:
        """Take in that an agent was asked, and hasn't answered for so many seconds more."""
        if (pod := self.pods.get(name)) is not None:
            pod.silent_seconds += seconds
            if pod.silent_seconds > KILL_SECONDS:
                self.touch(pod)

    def acknowledged(self, name: str, order: Order) -> None:
        """Take in that an agent does what it was told."""
        node = self.nodes.get(order.spec.id if isinstance(order, protocol.Launch) else order.node)
        pod = self.pods.get(name)
        if node is None or pod is None or node.pod != name:
            return
        match order:
            case protocol.Launch():
                node.launch = "done"
            case protocol.Terminate() if node.terminate == order:
                node.terminate = None
            case protocol.Resize() if is_same(pod.wanted, order.resources):
                pod.tell_size = False

    def refused(self, name: str, order: Order, why: str, *, now: float, at: float) -> None:
        """Take in that an agent refuses what it was told."""
        if isinstance(order, protocol.Terminate) and not self.nodes[order.node].ended:
            return  # it hasn't heard of the node yet
        self.acknowledged(name, order)
        node = self.nodes.get(order.spec.id) if isinstance(order, protocol.Launch) else None
        if node is None or node.ended or node.pod != name:
            return
        pod = self.pods[name]
        if pod.is_leaving or self.closing:
            self.move(node, pod, now)
        else:
            self.end(node, PodEnd("Unknown", None, f"the agent of its pod {name} refuses it: {why}"), now, at)

    def observed(self, name: str, observation: Observation, *, now: float, at: float) -> None:
        """Take in what an agent says of the nodes in its pod."""
        pod = self.pods.get(name)
        if pod is None:
            return
        for one, told in observation.nodes.items():
            node = self.nodes.get(one)
            if node is None:  # an earlier master has launched it, and it isn't written down
                spec = NodeSpec(one, pod.role, pod.wanted, "")
                self.nodes[one] = node = NodeState(spec, name)
                self.version += 1
            if node.ended or node.pod != name:
                continue
            node.launch = "done"
            if one not in pod.nodes:
                pod.nodes.append(one)
            if told.ended_at is not None:
                self._end_as_told(pod, node, told, now, at)
            else:
                self.change(node, started_at=told.started_at, detail=told.detail)

    def _end_as_told(self, pod: PodState, node: NodeState, told: Observed, now: float, at: float) -> None:
        reason, detail = told.reason or "Unknown", told.detail
        from_outside = pod.view is not None and (pod.view.is_leaving or pod.view.disruption) and pod.delete == "no"
        if from_outside and pod.view is not None and reason in ("Killed", "Succeeded") and not node.asked_to_end:
            words = pod.view.disruption or f"its pod {pod.name} is deleted by somebody else"
            reason, detail = "Preempted", f"{words} ({detail})" if detail else words
        end = PodEnd(reason, told.exit_code, detail, told.used_memory)
        self.end(node, end, now, told.ended_at or at, started_at=told.started_at)

    def logs_copied(self, name: str, now: float) -> None:
        """Take in that all of the pod's logs is copied, the last node of which has ended."""
        pod = self.pods.get(name)
        if pod is None or pod.logs_copied:
            return
        node = self.nodes.get(pod.node)
        pod.logs_copied = True
        if node is not None and node.asked_to_end and pod.delete_at is not None:
            pod.delete_at = min(pod.delete_at, now)
            self.touch(pod)

    # --- what is to be done ---------------------------------------------------------------------------------------------

    def next_due(self) -> float | None:
        """Return the time when ``take`` may have something to do by itself."""
        return self.timers[0][0] if self.timers else None

    def take(self, now: float, at: float) -> list[Action]:
        """Return what is to be asked of the API now, each once; what comes of it is to be told."""
        while self.timers and self.timers[0][0] <= now:
            self.due[heapq.heappop(self.timers)[1]] = None
        found: list[Action] = []
        self.make_spares(now)
        while self.due:
            due, self.due = self.due, {}
            self._touched |= due
            for name in due:
                if (pod := self.pods.get(name)) is not None:
                    self._judge(pod, now, at)
                    found += self._act(pod, now)
        return found

    def take_touched(self) -> list[str]:
        """Return the pods of which something may be new to their agents, or to who asks them."""
        touched, self._touched = list(self._touched), {}
        return touched

    def _act(self, pod: PodState, now: float) -> Iterator[Action]:
        """Decide what is to be asked of the API for a pod."""
        if pod.name not in self.pods or now < pod.retry_at:
            return
        wants_deletion = pod.delete_at is not None and now >= pod.delete_at
        if pod.create == "due":
            if wants_deletion:
                self.forget(pod)
                return
            pod.create = "asked"
            node = self.nodes.get(pod.node)
            spec = node.spec if node is not None else NodeSpec("spare", pod.role, pod.wanted, "")
            yield CreatePod(pod.name, spec, pod.wanted, spare=node is None)
        elif pod.create == "done" and wants_deletion and pod.delete == "no" and pod.uid:
            pod.delete = "asked"
            pod.takes_no_more = True
            self.left_at = now if pod.view is not None and pod.view.host else self.left_at
            self.wake(pod, now + STUCK_SECONDS)
            yield DeletePod(pod.name, pod.uid, pod.grace_seconds)
        elif pod.create == "done" and pod.resize == "due" and not pod.is_leaving and pod.uid:
            pod.resize, pod.tell_size = "asked", True
            yield ResizePod(pod.name, pod.wanted)

    def _judge(self, pod: PodState, now: float, at: float) -> None:
        """Judge what has taken too long."""
        node = self.nodes.get(pod.node)
        if node is None or node.ended:
            return
        view = pod.view
        if (
            view is not None
            and pod.cant_start_since is not None
            and now >= pod.cant_start_since + START_PATIENCE_SECONDS
        ):
            self.end(node, PodEnd("Unknown", None, f"its pod {pod.name} can't be started: {view.cant_start}"), now, at)
        elif node.is_untouched and pod.awaits_agent and not (pod.may_take_nodes or self.closing):
            self.move(node, pod, now)
        elif node.is_untouched and node.launch_by is not None and (pod.resize_problem or now >= node.launch_by):
            self._launch_or_move(pod, node, now)
        elif pod.silent_seconds > 0 and view is not None:
            self._judge_silence(pod, node, view, now, at)

    def _launch_or_move(self, pod: PodState, node: NodeState, now: float) -> None:
        """Go on with a node whose pod hasn't been given what it is to have: memory that was kept for it is worth more than size, unless its
        predecessor was killed for want of it."""
        node.launch_by = None
        before = self.nodes.get(node.spec.follows)
        if before is None or before.spec.id not in pod.nodes or before.observed.reason == "OOMKilled":
            self.move(node, pod, now)

    def _judge_silence(self, pod: PodState, node: NodeState, view: PodView, now: float, at: float) -> None:
        silent = pod.silent_seconds
        most = LOST_SECONDS if pod.heard else FIRST_WORD_SECONDS
        where = f"its agent in pod {pod.name} on {view.host}"
        if pod.delete == "asked" and pod.delete_at is not None and now >= pod.delete_at + STUCK_SECONDS:
            reason: PodEnd = self._end_with(pod, node)
            self.end(node, reason._replace(detail=f"{where} is silent, and its pod isn't deleted yet"), now, at)
        elif node.asked_to_end and pod.delete == "no" and silent > node.grace_seconds + KILL_SECONDS:
            self.delete(pod, now, grace_seconds=1)
        elif silent >= most:
            words = f"{where} {'has not answered' if pod.heard else 'never answered'} for {silent:.0f} s"
            self.end(node, PodEnd("Unknown", None, words), now, at)
            self.delete(pod, now)
        elif pod.heard and silent >= UNKNOWN_SECONDS:
            self.change(node, detail=f"unknown: {where} doesn't answer")

    def observe(self, after: int | None) -> Observation | None:
        """Return how all nodes are; None if that is as it was at the version ``after``."""
        if after == self.version:
            return None
        return Observation(self.version, {name: node.observed for name, node in self.nodes.items()})


def _spec_of(view: PodView, node: str, role: Role, resources: Resources) -> NodeSpec:
    """Read which node a pod was made for."""
    try:
        found = from_json(view.metadata.annotations.get(SPEC_ANNOTATION, ""), NodeSpec)
    except msgspec.DecodeError:
        return NodeSpec(node, role, resources, "")
    return found if found.id == node else NodeSpec(node, role, resources, "")
