"""What a job's nodes may use in a cluster, by host as far as that can be known. Pure: data in, data out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from dlrover_lite.backends.k8s.api.watch import Followed
from dlrover_lite.backends.k8s.objects.quantities import read_quantity
from dlrover_lite.core.errors import BackendError
from dlrover_lite.core.units import Resources
from dlrover_lite.protocol.hosts import Host
from dlrover_lite.recipe.kubernetes import Kubernetes

__all__ = ["FoundRoom", "HostView", "QuotaView", "capacity_of", "left_by"]

NOTHING_LEFT_SECONDS = 600.0
"""How long no more is asked for than has found room: what others have they mostly keep for long."""
_MOST = Resources(1e5, 1 << 53)
"""More than anything has."""
_CPU, _MEMORY = ("limits.cpu", "requests.cpu", "cpu"), ("limits.memory", "requests.memory", "memory")


class _Taint(msgspec.Struct):
    key: str = ""
    value: str = ""
    effect: str = ""


class HostView(Followed):
    """A node of the cluster."""

    class Spec(msgspec.Struct):
        unschedulable: bool = False
        taints: list[_Taint] = []

    class Status(msgspec.Struct):
        class Condition(msgspec.Struct):
            type: str = ""
            status: str = ""

        allocatable: dict[str, str] = {}
        conditions: list[Condition] = []

    spec: Spec = msgspec.field(default_factory=Spec)
    status: Status = msgspec.field(default_factory=Status)

    @property
    def resources(self) -> Resources:
        there = self.status.allocatable
        return Resources(read_quantity(there.get("cpu", "0")), int(read_quantity(there.get("memory", "0"))))


class QuotaView(Followed):
    class Status(msgspec.Struct):
        hard: dict[str, str] = {}
        used: dict[str, str] = {}

    status: Status = msgspec.field(default_factory=Status)


class FoundRoom:
    """What a job's pods have found room for when others found none: for a while that counts as all there is. Times are seconds of a steady
    clock."""

    def __init__(self) -> None:
        self._most: Resources | None = None
        self._until = 0.0

    def nothing_left(self, placed: Resources, now: float) -> None:
        """Note that there is no more than what pods that are ``placed`` have."""
        self._most, self._until = placed, now + NOTHING_LEFT_SECONDS

    def forget(self) -> None:
        """Note that there may be more by now."""
        self._most = None

    def most(self, placed: Resources, now: float) -> Resources | None:
        """Return how much there is, by what was noted; None: nothing says so, or more has found room since."""
        if self._most is not None and (now >= self._until or placed != placed.within(self._most)):
            self._most = None
        return self._most


def capacity_of(
    hosts: Sequence[HostView] | None, kubernetes: Kubernetes, limits: Iterable[Resources | None]
) -> list[Host]:
    """Return what a job's nodes may use on each host. ``hosts``: None where they may not be read: then what they have together counts as
    one host without a name. ``limits``: what all nodes may use together: the recipe's ceiling, what quotas leave, what has found room.

    Raises BackendError where nothing says what there is.
    """
    most = _MOST
    for one in limits:
        if one is not None:
            most = most.within(one)
    if hosts is None:
        if most.cores >= _MOST.cores or most.memory >= _MOST.memory:
            raise BackendError(
                "How much this job may use isn't known: the nodes of the cluster may not be read, and no quota says it",
                hint="Set a ceiling in the recipe: `resources: {total: {cores: …, memory: …}}`.",
            )
        return [Host("", most)]
    found, left = [], most
    for host in sorted(hosts, key=lambda one: (-one.resources.cores, one.metadata.name)):
        each = host.resources.within(left)
        if each.cores > 0 and each.memory > 0 and _is_usable(host, kubernetes):
            found.append(Host(host.metadata.name, each))
            left = Resources(left.cores - each.cores, left.memory - each.memory)
    return found


def left_by(quotas: Iterable[QuotaView], own: Resources) -> Resources | None:
    """Return what quotas let a job have that has ``own`` already; None: they don't bound it."""
    cores: list[float] = []
    memory: list[float] = []
    for quota in quotas:
        hard, used = quota.status.hard, quota.status.used
        cores += [own.cores + _left(hard, used, name) for name in _CPU if name in hard]
        memory += [own.memory + _left(hard, used, name) for name in _MEMORY if name in hard]
    if not cores and not memory:
        return None
    return Resources(min(cores, default=_MOST.cores), int(min(memory, default=_MOST.memory)))


def _left(hard: Mapping[str, str], used: Mapping[str, str], name: str) -> float:
    return max(0.0, read_quantity(hard[name]) - read_quantity(used.get(name, "0")))


def _is_usable(host: HostView, kubernetes: Kubernetes) -> bool:
    """Whether pods of the job may be on a host."""
    is_ready = all(one.status == "True" for one in host.status.conditions if one.type == "Ready")
    chosen = all(host.metadata.labels.get(name) == value for name, value in kubernetes.node_selector.items())
    repelled = any(
        taint.effect in ("NoSchedule", "NoExecute")
        and not any(_tolerates(one, taint) for one in kubernetes.tolerations)
        for taint in host.spec.taints
    )
    return is_ready and chosen and not host.spec.unschedulable and not repelled


def _tolerates(toleration: Mapping[str, Any], taint: _Taint) -> bool:
    if toleration.get("effect") not in (None, "", taint.effect):
        return False
    if toleration.get("operator") == "Exists":
        return toleration.get("key", "") in ("", taint.key)
    return bool(toleration.get("key") == taint.key and toleration.get("value", "") == taint.value)
