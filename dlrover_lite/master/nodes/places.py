"""Hosts that the nodes of a role are wanted on: who leaves first, and where others start."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from dlrover_lite.master.nodes.lifecycle import Node

__all__ = ["ANYWHERE", "Places", "given_more_last"]

_MUCH_MORE = 1.1
"""Factor of memory limits from which on one is much more than another: rows of servers differ by less."""


class Places(NamedTuple):
    wanted: Mapping[str, int] = {}
    """Number of nodes of the role wanted on each host; empty: wherever there is room."""
    host_of: Mapping[str, str] = {}
    """Host that each node runs on, as far as is known; else it is taken to be the one that it was wanted on."""

    def leave_first(self, nodes: Sequence[Node], staying: Sequence[Node]) -> list[Node]:
        """Sort ``nodes``, those missed least first: before them come those on hosts that have more than is wanted of all ``staying``."""
        if not self.wanted:
            return list(nodes)
        surplus = self._count(staying)
        surplus.subtract(self.wanted)
        first: list[Node] = []
        rest: list[Node] = []
        for node in nodes:
            host = self._host(node)
            (first if surplus[host] > 0 else rest).append(node)
            surplus[host] -= 1
        return first + rest

    def next_host(self, staying: Sequence[Node]) -> str:
        """Return the host that most nodes are missing on (of several the first by name); "": wherever there is room."""
        there = self._count(staying)
        missing = {host: count - there[host] for host, count in self.wanted.items() if count > there[host]}
        return min(missing, key=lambda host: (-missing[host], host), default="")

    def _count(self, nodes: Sequence[Node]) -> Counter[str]:
        return Counter(self._host(node) for node in nodes)

    def _host(self, node: Node) -> str:
        return self.host_of.get(node.id) or node.host


ANYWHERE = Places()


def given_more_last(nodes: Sequence[Node]) -> list[Node]:
    """Sort nodes, those that have much more memory than the others last, or are to get it: it was given to them for what comes to them when
    the others leave. Else their order stays."""
    limits = {node.id: node.most.memory for node in nodes}
    least = min(limits.values(), default=0)
    return sorted(nodes, key=lambda node: limits[node.id] > _MUCH_MORE * least)
