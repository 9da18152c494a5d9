"""What there is to be given to jobs: on each host, and together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dlrover_lite.core.units import Resources
from dlrover_lite.protocol.hosts import Host, less

__all__ = ["Capacity"]


class Capacity(NamedTuple):
    total: Resources
    """The most that may be given together: what all hosts have, or what a person prefers."""
    hosts: tuple[Host, ...]

    def within(self, most: Resources) -> Capacity:
        """Return as much of it as ``most`` allows, on each host too."""
        total = self.total.within(most)
        return Capacity(total, tuple(Host(host.name, host.resources.within(total)) for host in self.hosts))

    def without(self, held: Sequence[tuple[str, Resources]]) -> Capacity:
        """Return what is left of it beside what nodes have, each with its host. Where that isn't known, they count in the total alone."""
        hosts = (
            Host(host.name, less(host.resources, [its for name, its in held if self.means(host, name)]))
            for host in self.hosts
        )
        return Capacity(less(self.total, [its for _, its in held]), tuple(hosts))

    def means(self, host: Host, name: str) -> bool:
        """Say whether ``name`` is that of ``host``. The only one is meant by any: masters of the version before don't name it."""
        return host.name == name or len(self.hosts) == 1
