"""What a job's nodes may use in a cluster, by host as far as that can be known. Pure: data in, data out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from dlrover_lite.backends.k8s.api.watch import Followed
from dlrover_lite.backends.k8s.objects.quantities import read_quantity
from dlrover_lite.core.errors import BackendError
from dlrover_lite.core.units import Resources
from dlrover_lite.protocol.hosts import Host, SharedRoom, sum_of
from dlrover_lite.recipe.kubernetes import Kubernetes
from dlrover_lite.recipe.schema import ResourceLimits

__all__ = [
    "TO_COME",
    "Bounds",
    "FoundRoom",
    "HostView",
    "QuotaView",
    "bounds_of",
    "capacity_of",
    "left_by",
    "most_by",
    "shared_room_of",
]

NOTHING_LEFT_SECONDS = 600.0
"""How long no more is asked for than has found room: what others have they mostly keep for long."""
TO_COME = "to-come-"
"""What the names of nodes begin with that the cluster would start."""
_MOST = Resources(1e5, 1 << 53)
"""More than anything has."""
_TIMES_FIXED = 4
_NOTHING = Resources(0.0, 0)
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


class Agents(NamedTuple):
    """What the agents in nodes' pods take beside the nodes."""

    memory: int = 0
    """Bytes that each of them takes."""
    nodes: int | None = None
    """Number of the job's nodes; None: it is open. Then they are taken to have a core each, or more."""

    def beside(self, nodes: Resources) -> Resources:
        """Return what nodes may have of what they have together with their agents. No more than half of the memory is kept for agents: that
        is enough where nodes have as much as these."""
        count = int(nodes.cores) + 1
        count = count if self.nodes is None else min(count, self.nodes)
        return Resources(nodes.cores, nodes.memory - min(count * self.memory, nodes.memory // 2))


class Bounds(NamedTuple):
    """How much a job may have, by itself."""

    ceiling: Resources | None = None
    """The most that all nodes may have together; None: the recipe doesn't say."""
    otherwise: Resources | None = None
    """What counts as all there is where neither nodes nor quotas say it; None: nothing does."""
    nodes: int | None = None
    """Number of nodes, where the recipe fixes it."""


def bounds_of(limits: ResourceLimits, seen: Resources | None = None) -> Bounds:
    """Return what a recipe says of how much its job may have. ``seen``: what there was for it when somebody looked who may.

    Where nobody knows what there is, nodes that the recipe fixes may become several times as many, or as large, as when somebody scales by
    hand, or one that ran out of memory comes back with more. The scheduler says whether there is room.
    """
    if limits.ps is None or limits.worker is None:
        return Bounds(limits.total, seen)
    roles = (limits.ps, limits.worker)
    fixed = sum_of(Resources(one.count * one.cores, one.count * one.memory) for one in roles)
    more = Resources(_TIMES_FIXED * fixed.cores, _TIMES_FIXED * fixed.memory)
    return Bounds(limits.total, seen or more, sum(one.count for one in roles))


def capacity_of(
    hosts: Sequence[HostView] | None,
    kubernetes: Kubernetes,
    bounds: Bounds,
    *,
    quota: Resources | None = None,
    found_room: Resources | None = None,
    agent_memory: int = 0,
) -> list[Host]:
    """Return what a job's nodes may use on each host. ``hosts``: None where they may not be read: then what they have together counts as
    one host without a name. Those that are there come first, the largest first; then those of pools that would come. ``quota``: what
    quotas let its pods have; ``found_room``: what has found room while more hasn't.

    Raises BackendError where nothing says what there is.
    """
    most, agents = bounds.ceiling or _MOST, Agents(agent_memory, bounds.nodes)
    if quota is not None:
        most = most.within(agents.beside(Resources(min(most.cores, quota.cores), quota.memory)))
    otherwise = bounds.otherwise
    if kubernetes.node_pools:
        otherwise = sum_of(pool.together for pool in kubernetes.node_pools)
    if hosts is None and (most.cores >= _MOST.cores or most.memory >= _MOST.memory):
        if otherwise is None:
            raise BackendError(
                "How much this job may use isn't known: the nodes of the cluster may not be read, and no quota says it",
                hint="Set a ceiling in the recipe: `resources: {total: {cores: …, memory: …}}`.",
            )
        most = most.within(otherwise)
    if found_room is not None:
        most = most.within(found_room)
    if hosts is None:
        return [Host("", most)]
    found, left = [], most
    for host in _usable(hosts, kubernetes, agents):
        each = host.resources.within(left)
        if each.cores > 0 and each.memory > 0:
            found.append(Host(host.name, each))
            left = Resources(left.cores - each.cores, left.memory - each.memory)
    return found


def shared_room_of(
    hosts: Sequence[HostView] | None,
    kubernetes: Kubernetes,
    bounds: Bounds,
    *,
    quota: Resources | None = None,
    most: Resources | None = None,
    found_room: Resources | None = None,
    agent_memory: int = 0,
) -> SharedRoom:
    """Return what all jobs of a namespace may use: as ``capacity_of``, without what is this job's own limit. ``most``: what quotas let all
    pods have together."""
    agents = Agents(agent_memory, bounds.nodes)
    left = None if quota is None else agents.beside(quota)
    if found_room is not None:
        left = found_room if left is None else left.within(found_room)
    usable = [] if hosts is None else _usable(hosts, kubernetes, agents)
    return SharedRoom(
        tuple(sorted(usable, key=lambda one: one.name)),
        None if most is None else Agents(agent_memory).beside(most),
        left,
    )


def most_by(quotas: Iterable[QuotaView]) -> Resources | None:
    """Return what quotas let all pods of a namespace have together; None: they don't bound it."""
    return left_by(QuotaView(status=QuotaView.Status(hard=one.status.hard)) for one in quotas)


def left_by(quotas: Iterable[QuotaView], own: Resources = _NOTHING) -> Resources | None:
    """Return what quotas let the pods of a job have, which have ``own`` already; None: they don't bound it."""
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


def _usable(hosts: Sequence[HostView], kubernetes: Kubernetes, agents: Agents) -> list[Host]:
    """Return the hosts that pods of the job may be on, or could be on if they came, with what nodes may have of each."""
    there = [one for one in hosts if _is_usable(one, kubernetes)]
    there.sort(key=lambda one: (-one.resources.cores, one.metadata.name))
    found = [Host(one.metadata.name, agents.beside(one.resources)) for one in there]
    for at, pool in enumerate(kubernetes.node_pools):
        present = sum(_has(one, {**kubernetes.node_selector, **pool.labels}) for one in hosts)
        each = agents.beside(Resources(pool.cores, pool.memory))
        found += [Host(f"{TO_COME}{at}-{number}", each) for number in range(present, pool.most)]
    return found


def _has(host: HostView, labels: Mapping[str, str]) -> bool:
    return all(host.metadata.labels.get(name) == value for name, value in labels.items())


def _is_usable(host: HostView, kubernetes: Kubernetes) -> bool:
    """Whether pods of the job may be on a host."""
    is_ready = all(one.status == "True" for one in host.status.conditions if one.type == "Ready")
    repelled = any(
        taint.effect in ("NoSchedule", "NoExecute")
        and not any(_tolerates(one, taint) for one in kubernetes.tolerations)
        for taint in host.spec.taints
    )
    return is_ready and _has(host, kubernetes.node_selector) and not host.spec.unschedulable and not repelled


def _tolerates(toleration: Mapping[str, Any], taint: _Taint) -> bool:
    if toleration.get("effect") not in (None, "", taint.effect):
        return False
    if toleration.get("operator") == "Exists":
        return toleration.get("key", "") in ("", taint.key)
    return bool(toleration.get("key") == taint.key and toleration.get("value", "") == taint.value)
