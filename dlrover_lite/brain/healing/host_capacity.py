"""What the hosts have left for a job's nodes, while it is given away."""

from __future__ import annotations

from collections.abc import Mapping

from dlrover_lite.core.units import Resources

__all__ = ["HostCapacity"]

_ROUNDING = 1e-9
"""Cores by which sums of floats may be off."""


class HostCapacity:
    """Resources that are left, by host. Nothing is ever given that isn't there. ``shared``: each host may have all that is left, as nobody
    knows which part of it is where."""

    def __init__(self, free: Mapping[str, Resources], *, shared: bool = False) -> None:
        self._free = dict(free)
        self._shared = shared

    def cores(self, host: str) -> float:
        return self.left(host).cores

    def memory(self, host: str) -> int:
        return self.left(host).memory

    def left(self, host: str) -> Resources:
        """Return what the host has left; where a node's host isn't named, what each host has at the least: nothing on one that isn't
        known."""
        if host or host in self._free or not self._free:
            return self._free.get(host, Resources(0.0, 0))
        return Resources(min(one.cores for one in self._free.values()), min(one.memory for one in self._free.values()))

    def fits(self, host: str, wanted: Resources) -> bool:
        left = self.left(host)
        return wanted.cores <= left.cores + _ROUNDING and wanted.memory <= left.memory

    def elsewhere(self, than: str, wanted: Resources) -> str:
        """Find the host with the most cores left that has room, other than this one; "" if there is none."""
        return self.best(wanted, without=than)

    def best(self, wanted: Resources, *, without: str = "") -> str:
        """Find the host with the most cores left that has room; "" if there is none."""
        hosts = [host for host in self._free if host != without and self.fits(host, wanted)]
        return min(hosts, key=lambda host: (-self.cores(host), host), default="")

    def take(self, host: str, wanted: Resources) -> None:
        """Take resources of a host; of each, where it isn't named, or they share them. Raises ValueError when there isn't so much."""
        if not self.fits(host, wanted):
            raise ValueError(f"{host} has {self.left(host)} left, not {wanted}")
        for name in [host] if host in self._free and not self._shared else list(self._free):
            left = self._free[name]
            self._free[name] = Resources(max(0.0, left.cores - wanted.cores), left.memory - wanted.memory)
