"""Makes the calls of the API that looking after nodes takes, one after the other, in a thread of its own."""

from __future__ import annotations

import queue
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple, TypeAlias

import msgspec

from dlrover_lite.backends.k8s.api.calls import Calls
from dlrover_lite.backends.k8s.api.problems import ApiProblem, Unreachable
from dlrover_lite.backends.k8s.nodes.capacity import HostView, QuotaView
from dlrover_lite.backends.k8s.nodes.master_events import MasterEvent
from dlrover_lite.backends.k8s.nodes.pod_state import Action, CreatePod, DeletePod, ResizePod
from dlrover_lite.backends.k8s.objects.job_events import job_event
from dlrover_lite.backends.k8s.objects.names import job_labels
from dlrover_lite.backends.k8s.objects.node_pod import NODE_ANNOTATION, PodSettings, node_pod, resize_patch
from dlrover_lite.backends.k8s.objects.pod_view import PodView
from dlrover_lite.core.errors import BackendError
from dlrover_lite.core.units import Resources

__all__ = [
    "ApiCaller",
    "Closing",
    "Created",
    "Deleted",
    "Outcome",
    "ReadHosts",
    "Resized",
    "There",
    "WriteEvent",
    "read_hosts",
]

_REFUSED = (400, 403, 405, 422)
"""Statuses of a resize that the server won't do: a right is missing, or it can't resize pods like this."""


class Closing(BackendError):
    """No more calls are made."""


class ReadHosts(NamedTuple):
    """Have read anew what there is in the cluster."""


class WriteEvent(NamedTuple):
    """Write an event on the job's StatefulSet."""

    event: MasterEvent
    at: float
    """Seconds since the epoch."""


class Created(NamedTuple):
    pod: str
    uid: str = ""
    problem: str = ""
    final: bool = False
    """It is never made as it is."""
    no_room: bool = False
    """A quota leaves no more for it, for now."""


class Deleted(NamedTuple):
    pod: str
    problem: str = ""


class Resized(NamedTuple):
    pod: str
    resources: Resources
    problem: str = ""
    final: bool = False
    """It is refused however often it is asked for."""


class There(NamedTuple):
    """What there is in a cluster."""

    hosts: list[HostView] | None
    """None: they may not be read."""
    quotas: list[QuotaView]
    problem: str = ""
    """Why it couldn't be read for now; what was known before holds."""
    hint: str = ""
    """What to do about that."""

    @property
    def sizes(self) -> dict[str, Resources]:
        """What each host has, as far as they may be read."""
        return {host.metadata.name: host.resources for host in self.hosts or ()}


class _Hosts(msgspec.Struct):
    items: list[HostView] = []


class _Quotas(msgspec.Struct):
    items: list[QuotaView] = []


Outcome: TypeAlias = Created | Deleted | Resized | There
Call: TypeAlias = Action | ReadHosts | WriteEvent


class ApiCaller:
    """``tell`` is told what came of each call. ``say``: what a person should know of it, beside what nodes tell of themselves."""

    def __init__(
        self, calls: Calls, settings: PodSettings, tell: Callable[[Outcome], None], say: Callable[[str], None]
    ) -> None:
        self._calls, self._settings, self._tell, self._say = calls, settings, tell, say
        self._queue: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        self._said: set[str] = set()
        self._hosts_are_forbidden = self._events_are_forbidden = False
        self._stopped = False

    def put(self, one: Call) -> None:
        self._queue.put(one)

    def stop(self) -> None:
        """Have ``run`` return. What hasn't been done by then is found out anew by who comes later."""
        self._stopped = True
        self._queue.put(None)

    def run(self) -> None:
        with suppress(Closing):
            while (one := self._queue.get()) is not None and not self._stopped:
                if isinstance(one, WriteEvent):
                    self._write_event(one)
                else:
                    self._tell(self._do(one))

    def _do(self, one: Action | ReadHosts) -> Outcome:
        match one:
            case CreatePod():
                return self._create(one)
            case DeletePod():
                return self._delete(one)
            case ResizePod():
                return self._resize(one)
            case ReadHosts():
                return self._read_hosts()

    def _create(self, one: CreatePod) -> Created:
        pod = node_pod(self._settings, one.spec, one.pod, one.resources, spare=one.spare)
        try:
            return Created(one.pod, self._calls.create(pod)["metadata"]["uid"])
        except ApiProblem as problem:
            if problem.reason == "AlreadyExists":
                return self._found(one)
            if problem.is_over_quota:
                return Created(one.pod, problem=_words(problem), no_room=True)
            return Created(one.pod, problem=_words(problem), final=not problem.may_pass)
        except Unreachable as problem:
            return Created(one.pod, problem=problem.message)

    def _found(self, one: CreatePod) -> Created:
        """See whether the pod that is there is the one that was wanted: an earlier call may have been done and not answered."""
        try:
            there = self._calls.find("Pod", one.pod, PodView)
        except BackendError as problem:
            return Created(one.pod, problem=problem.message)
        if there is None:
            return Created(one.pod, problem="it was there, and is gone: trying again")
        meta = there.metadata
        is_ours = job_labels(self._settings.job).items() <= meta.labels.items()
        if is_ours and meta.annotations.get(NODE_ANNOTATION, "") == ("" if one.spare else one.spec.id):
            return Created(one.pod, meta.uid)
        why = f"a pod {one.pod} is there already, which isn't this node's: delete it, or give the job another name"
        return Created(one.pod, problem=why, final=True)

    def _delete(self, one: DeletePod) -> Deleted:
        try:
            self._calls.delete("Pod", one.pod, propagation="Background", grace_seconds=one.grace_seconds, uid=one.uid)
        except (ApiProblem, Unreachable) as problem:
            self._say_once(f"The pod {one.pod} can't be deleted for now: {problem.message}")
            return Deleted(one.pod, problem.message)
        return Deleted(one.pod)

    def _resize(self, one: ResizePod) -> Resized:
        patch = resize_patch(self._settings, one.resources)
        try:
            self._calls.patch("Pod", one.pod, patch, subresource="resize")
        except (ApiProblem, Unreachable) as problem:
            is_refused = isinstance(problem, ApiProblem) and problem.status == 403
            is_final = isinstance(problem, ApiProblem) and problem.status in _REFUSED and not problem.is_over_quota
            words = _words(problem) if is_refused else problem.message
            return Resized(one.pod, one.resources, words, is_final)
        return Resized(one.pod, one.resources)

    def _read_hosts(self) -> There:
        found = read_hosts(self._calls, skip_hosts=self._hosts_are_forbidden)
        self._hosts_are_forbidden = found.hosts is None and not found.problem
        return found

    def _write_event(self, one: WriteEvent) -> None:
        if self._events_are_forbidden:
            return
        settings, (reason, message) = self._settings, one.event
        event = job_event(
            settings.job, settings.namespace, settings.owner_uid, reason=reason, message=message, at=one.at
        )
        try:
            self._calls.create(event)
        except ApiProblem as problem:
            self._events_are_forbidden = problem.status == 403
            self._say_once(f"`kubectl describe` doesn't show what the master says: {problem.message}")
        except Unreachable:  # what is missing then is in the job's story
            pass

    def _say_once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self._say(text)


def read_hosts(calls: Calls, *, skip_hosts: bool = False) -> There:
    """Read the nodes and quotas, each as far as that is allowed: namespaced rights can't give the first."""
    hosts: list[HostView] | None = None
    quotas: list[QuotaView] = []
    try:
        if not skip_hosts:
            hosts = calls.list("Node", _Hosts).items
    except ApiProblem as problem:
        if problem.status != 403:
            return There(None, [], problem.message, problem.hint)
    except Unreachable as problem:
        return There(None, [], problem.message, problem.hint)
    try:
        quotas = calls.list("ResourceQuota", _Quotas).items
    except (ApiProblem, Unreachable) as problem:
        if not isinstance(problem, ApiProblem) or problem.status != 403:
            return There(None, [], problem.message, problem.hint)
    return There(hosts, quotas)


def _words(problem: BackendError) -> str:
    """What the API says, and what to do about it: it is all that a person will see of it."""
    return f"{problem.message}. {problem.hint}" if problem.hint else problem.message
