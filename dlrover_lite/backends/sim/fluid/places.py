"""What simulated machines have left, and the nodes that take it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from dlrover_lite.backends.sim.fluid.job import FluidNode
from dlrover_lite.backends.sim.physics.machines import Machine
from dlrover_lite.core.units import Resources

__all__ = ["Places"]

_ROUNDING = 1e-9


class Places:
    """Machines by their positions. A node is put where most cores are left."""

    def __init__(self, machines: Sequence[Machine]) -> None:
        self.machines = list(machines)
        self.left_cores = np.array([machine.cores for machine in machines])
        self.left_bytes = np.array([machine.memory for machine in machines])
        self.works = np.ones(len(machines), np.bool_)
        """Machines that haven't failed."""
        self.there = np.ones(len(machines), np.bool_)
        """Machines that a pool has not given back."""
        self.emptied: Callable[[int], None] = lambda host: None
        """Called when the last node of a machine has left."""
        self.version = 0
        """Number of changes so far of what is left."""
        self._nodes = np.zeros(len(machines), np.int64)

    def set_works(self, host: int, works: bool) -> None:
        self.works[host] = works
        self.version += 1

    def is_there(self, host: int) -> bool:
        return bool(self.there[host])

    def set_there(self, host: int, there: bool) -> None:
        self.there[host] = there
        self.version += 1

    @property
    def usable_cores(self) -> float:
        """Cores that are left on machines that work."""
        return float(self.left_cores[self.works & self.there].sum())

    def may_hold(self, cores: float) -> bool:
        """Say whether so many cores are left at all, wherever."""
        return cores <= self.usable_cores + _ROUNDING

    def is_empty(self, host: int) -> bool:
        return not self._nodes[host]

    def find(self, each: Resources) -> int | None:
        """Return the machine for a node of this size; None: none has room."""
        enough = (self.left_cores >= each.cores - _ROUNDING) & (self.left_bytes >= each.memory)
        host = int(np.argmax(np.where(enough & self.works & self.there, self.left_cores, -1.0)))
        return host if enough[host] and self.works[host] and self.there[host] else None

    def take(self, node: FluidNode, host: int) -> None:
        node.host = host
        self._nodes[host] += 1
        self._add(host, node.resources, -1)

    def withdraw(self, node: FluidNode) -> None:
        """Take a node's room back, and say so to nobody."""
        host, node.host, node.up = node.host, -1, False
        self._nodes[host] -= 1
        self._add(host, node.resources, 1)

    def give_back(self, node: FluidNode) -> None:
        """Take the room of a node back that ends."""
        host = node.host
        self.withdraw(node)
        if node.start is not None:
            node.start.cancel()
        if self.is_empty(host):
            self.emptied(host)

    def resize(self, node: FluidNode, each: Resources) -> bool:
        """Give a node another size where it is; False, and nothing changes, if its machine has no room for that."""
        more = Resources(max(0.0, each.cores - node.resources.cores), max(0, each.memory - node.resources.memory))
        host = node.host
        if more.cores > self.left_cores[host] + _ROUNDING or more.memory > self.left_bytes[host]:
            return False
        self._add(host, node.resources, 1)
        self._add(host, each, -1)
        node.resources = each
        return True

    def _add(self, host: int, resources: Resources, sign: int) -> None:
        self.left_cores[host] += sign * resources.cores
        self.left_bytes[host] += sign * resources.memory
        self.version += 1
