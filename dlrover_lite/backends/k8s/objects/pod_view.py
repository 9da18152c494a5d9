"""A pod as the API tells it, as far as somebody has to know who looks after nodes; and what that means, in words."""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

from dlrover_lite.backends.k8s.api.watch import Followed
from dlrover_lite.backends.k8s.objects.quantities import read_quantity
from dlrover_lite.core.units import Resources, format_bytes
from dlrover_lite.protocol.nodes import ExitReason

__all__ = ["PodEnd", "PodView"]

_CANT_START = {
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "ErrImageNeverPull",
    "RegistryUnavailable",
    "ImageInspectError",
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
    "CrashLoopBackOff",
}
_SHELL_SIGNALS = 128
_SIGKILL, _SIGTERM = 9, 15
_LONGEST_WORDS = 1000

Reason = Literal["Deferred", "Infeasible", "Error"]


class _Condition(msgspec.Struct):
    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""


class _Amounts(msgspec.Struct):
    limits: dict[str, str] = {}


class _Waiting(msgspec.Struct):
    reason: str = ""
    message: str = ""


class _Terminated(msgspec.Struct, rename="camel"):
    exit_code: int = 0
    signal: int = 0
    reason: str = ""
    message: str = ""


class _State(msgspec.Struct):
    waiting: _Waiting | None = None
    running: dict[str, str | None] | None = None
    terminated: _Terminated | None = None


class _Container(msgspec.Struct):
    state: _State = msgspec.field(default_factory=_State)
    resources: _Amounts | None = None


class _Status(msgspec.Struct, rename="camel"):
    phase: str = ""
    reason: str = ""
    message: str = ""
    pod_ip: str = msgspec.field(default="", name="podIP")
    conditions: list[_Condition] = []
    container_statuses: list[_Container] = []


class _Spec(msgspec.Struct, rename="camel"):
    class Container(msgspec.Struct):
        name: str = ""
        image: str = ""
        resources: _Amounts = msgspec.field(default_factory=_Amounts)

    node_name: str = ""
    containers: list[Container] = []
    scheduling_gates: list[dict[str, str]] = []


class PodEnd(NamedTuple):
    """How a pod's end shows at the node that ran in it."""

    reason: ExitReason
    exit_code: int | None
    detail: str
    used_memory: int = 0
    """As ``Observed`` has it."""


class PodView(Followed):
    """A pod. What it doesn't have is empty."""

    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)

    @property
    def host(self) -> str:
        return self.spec.node_name

    @property
    def component(self) -> str:
        return self.metadata.labels.get("app.kubernetes.io/component", "")

    @property
    def is_leaving(self) -> bool:
        return self.metadata.deletion_timestamp is not None

    @property
    def is_running(self) -> bool:
        """Whether its container has started, and not ended."""
        return self.status.phase == "Running" and self._terminated is None

    @property
    def has_ended(self) -> bool:
        return self.status.phase in ("Failed", "Succeeded") or (self._terminated is not None)

    @property
    def asked(self) -> Resources:
        """What its container is to have."""
        return _resources_of(self.spec.containers[0].resources if self.spec.containers else None)

    @property
    def actual(self) -> Resources:
        """What its container has, as the kubelet says; what it is to have where that one says nothing."""
        told = self.status.container_statuses[0].resources if self.status.container_statuses else None
        return self.asked if told is None or not told.limits else _resources_of(told)

    @property
    def _terminated(self) -> _Terminated | None:
        return next((one.state.terminated for one in self.status.container_statuses if one.state.terminated), None)

    @property
    def _waiting(self) -> _Waiting:
        return next((one.state.waiting for one in self.status.container_statuses if one.state.waiting), _Waiting())

    def _condition(self, kind: str) -> _Condition | None:
        return next((one for one in self.status.conditions if one.type == kind), None)

    # --- before it runs -------------------------------------------------------------------------------------------------

    @property
    def unschedulable(self) -> str:
        """The scheduler's words why no host has room for the pod; empty: it has one, or nobody has looked for one yet."""
        found = self._condition("PodScheduled")
        if found is None or found.status != "False" or self.host or found.reason == "SchedulingGated":
            return ""
        return _short(found.message) or found.reason

    @property
    def cant_start(self) -> str:
        """Why its container can't be started for now, in the kubelet's words; empty: nothing keeps it from starting."""
        waiting = self._waiting
        if waiting.reason not in _CANT_START:
            return ""
        image = self.spec.containers[0].image if self.spec.containers else ""
        what = f" ({image})" if "Image" in waiting.reason or "Registry" in waiting.reason else ""
        return f"{waiting.reason}{what}: {_short(waiting.message)}" if waiting.message else f"{waiting.reason}{what}"

    @property
    def phase_words(self) -> str:
        """How far it is on its way to run nodes: pending, pulling, starting; each with why it takes so long, if that is known."""
        if self.is_running:
            return "starting: its agent hasn't answered yet"
        if why := self.cant_start:
            return f"pulling: {why}"
        if self.host:
            return f"pulling: the image is pulled, or the container made, on {self.host}"
        if self.spec.scheduling_gates:
            gates = ", ".join(one.get("name", "") for one in self.spec.scheduling_gates)
            return f"pending: waits for its queue, held by {gates}"
        return f"pending: {self.unschedulable or 'no host is chosen yet'}"

    # --- while it runs --------------------------------------------------------------------------------------------------

    @property
    def resize_problem(self) -> tuple[Reason | None, str]:
        """Why it hasn't been resized yet: Deferred (it may still be), Infeasible (never on this host), Error; with the kubelet's words."""
        pending = self._condition("PodResizePending")
        if pending is not None and pending.status == "True":
            kind: Reason = "Infeasible" if pending.reason == "Infeasible" else "Deferred"
            return kind, f"{kind} on {self.host}: {_short(pending.message)}".rstrip(": ")
        under_way = self._condition("PodResizeInProgress")
        if under_way is not None and under_way.status == "True" and under_way.reason == "Error":
            return "Error", f"its node {self.host} fails to: {_short(under_way.message)}"
        return None, ""

    # --- its end --------------------------------------------------------------------------------------------------------

    @property
    def disruption(self) -> str:
        """Who ends the pod from outside, in words; empty: nobody is known to."""
        if self.status.reason == "Evicted":
            return f"evicted: {_short(self.status.message)}".rstrip(": ")
        found = self._condition("DisruptionTarget")
        if found is not None and found.status == "True":
            meaning = {
                "PreemptionByScheduler": "preempted by a pod of higher priority",
                "DeletionByTaintManager": f"its host {self.host} is lost, or to be emptied",
                "EvictionByEvictionAPI": "evicted by request, as when its host is drained",
                "DeletionByPodGC": f"its host {self.host} is gone",
                "TerminationByKubelet": f"ended by its host {self.host}",
            }.get(found.reason, found.reason)
            return f"{meaning}: {_short(found.message)}".rstrip(": ")
        if self.status.reason in ("NodeLost", "NodeShutdown", "Shutdown", "Terminated", "NodeAffinity", "Preempting"):
            return f"{self.status.reason} of its host {self.host}: {_short(self.status.message)}".rstrip(": ")
        return ""

    def end(self, *, limit: int) -> PodEnd:
        """Say how the pod has ended, where its agent hasn't said anything of its node. ``limit``: bytes of memory that the node was
        given."""
        ended = self._terminated
        if ended is not None and ended.reason == "OOMKilled":
            detail = f"over its memory limit of {format_bytes(limit)}: the whole container was killed for memory"
            return PodEnd("OOMKilled", -_SIGKILL, detail)
        if words := self.disruption:
            return PodEnd("Preempted", None, words)
        if self.is_leaving:
            return PodEnd("Preempted", None, f"its pod {self.metadata.name} was deleted by somebody else")
        if ended is None:
            said = _short(self.status.message) or self.status.reason or self.status.phase
            return PodEnd("Unknown", None, f"its pod {self.metadata.name} has ended: {said}")
        return self._agent_end(ended)

    def _agent_end(self, ended: _Terminated) -> PodEnd:
        code = -ended.signal if ended.signal else ended.exit_code
        number = -code if code < 0 else code - _SHELL_SIGNALS
        if number == _SIGKILL:
            return PodEnd("Killed", -_SIGKILL, f"the container of its pod {self.metadata.name} was killed by SIGKILL")
        if number == _SIGTERM:
            return PodEnd("Preempted", -_SIGTERM, f"its pod {self.metadata.name} was asked to end by somebody else")
        said = f": {_short(ended.message)}" if ended.message else f"; `kubectl logs {self.metadata.name}` may tell more"
        return PodEnd("Unknown", code, f"the agent of its pod {self.metadata.name} ended with exit code {code}{said}")


def _resources_of(amounts: _Amounts | None) -> Resources:
    if amounts is None:
        return Resources(0.0, 0)
    limits = amounts.limits
    return Resources(read_quantity(limits.get("cpu", "0")), int(read_quantity(limits.get("memory", "0"))))


def _short(text: str) -> str:
    words = " ".join(text.split())
    return words if len(words) <= _LONGEST_WORDS else f"{words[:_LONGEST_WORDS]} …"
