"""The hosts that nodes may run on, and what each of them has."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from dlrover_lite.core.bounds import Count, Name, Row
from dlrover_lite.core.units import Resources


class Host(msgspec.Struct, frozen=True):
    """A machine that nodes run on."""

    name: Name
    """Name of the host; empty: not known, and the only one."""
    resources: Resources
    """Resources that nodes may use there together."""


class SharedRoom(msgspec.Struct, frozen=True):
    """What all jobs that share a brain may use, where what one of them may use depends on what the others have."""

    hosts: Row[Host] = ()
    """What each host has for all of them together; empty: nobody may look."""
    most: Resources | None = None
    """Resources that all may have together, by quotas; None: no quota says it."""
    left: Resources | None = None
    """Resources that the others leave to the job that tells it, with those that it has; None: nothing says it."""


class HostNodes(msgspec.Struct, frozen=True):
    """Number of a job's nodes on a host, by role."""

    host: Name
    workers: Count = 0
    servers: Count = 0


def total_of(hosts: Iterable[Host]) -> Resources:
    """Return what all hosts have together."""
    return sum_of(host.resources for host in hosts)


def sum_of(resources: Iterable[Resources]) -> Resources:
    each = list(resources)
    return Resources(sum((one.cores for one in each), 0.0), sum(one.memory for one in each))


def less(resources: Resources, held: Sequence[Resources]) -> Resources:
    """Return what is left of ``resources`` beside what is held; nothing where that is more."""
    return Resources(
        max(0.0, resources.cores - sum(one.cores for one in held)),
        max(0, resources.memory - sum(one.memory for one in held)),
    )


def largest_of(hosts: Iterable[Host]) -> Resources:
    """Return the most cores, and the most memory, that any host has: no node can have more."""
    each = [host.resources for host in hosts]
    return Resources(max((one.cores for one in each), default=0.0), max((one.memory for one in each), default=0))


def by_name(hosts: Iterable[Host]) -> dict[str, Resources]:
    """Return what each host has, by its name."""
    return {host.name: host.resources for host in hosts}
