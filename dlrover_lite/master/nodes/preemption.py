"""Which workers give their room to a parameter server that all others wait for, and that no host has room for. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dlrover_lite.core.units import Resources
from dlrover_lite.master.nodes.lifecycle import Node
from dlrover_lite.protocol.hosts import less, sum_of

__all__ = ["fitting", "least_missed", "who_gives_way"]

_ROUNDING = 1e-9


def who_gives_way(
    needed: Resources, nodes: Sequence[Node], placed: Mapping[str, str], hosts: Mapping[str, Resources], *, on: str = ""
) -> list[Node]:
    """List the workers to end so that a node which needs so much finds room; none where that can't help.

    ``nodes``: all that run, the oldest first. ``placed``: host of each that has one ("": it isn't known which). ``hosts``: what the job may
    use on each, as far as that is known. ``on``: the only host where it can start, as its memory is there; empty: any will do. They are all
    on one host, and as few as would do by that; where others than this job have taken
    what they leave, the next ones follow later. Workers that have no host yet hold nothing, but would take what is left: they go first.
    """
    staying = [node for node in nodes if node.role == "worker" and node.state in ("launched", "started", "up")]
    cheapest_first = least_missed(staying)
    found: list[tuple[tuple[bool, int, int, str], list[Node]]] = []
    for host in {placed[worker.id] for worker in staying if worker.id in placed}:
        if on and host and host != on:
            continue
        there = [worker for worker in cheapest_first if placed.get(worker.id) == host]
        others = [node for node in nodes if placed.get(node.id) == host and node not in there]
        size = hosts.get(host) if host else None
        if chosen := _on_one_host(needed, there, others, size):
            at_work = sum(worker.state == "up" for worker in chosen)
            found.append(((size is None, at_work, len(chosen), host), chosen))
    if not found:
        return []
    return [*(worker for worker in cheapest_first if worker.id not in placed), *min(found, key=lambda one: one[0])[1]]


def least_missed(workers: Sequence[Node]) -> list[Node]:
    """Sort workers, given the oldest first: those that are not at work yet go first, then the youngest."""
    youngest_first = workers[::-1]
    return sorted(youngest_first, key=lambda node: node.state == "up")


def _on_one_host(
    needed: Resources, workers: Sequence[Node], others: Sequence[Node], size: Resources | None
) -> list[Node]:
    """List the workers of a host, at least one, whose room is needed beside what is free of its ``size``; none where all of it isn't
    enough."""
    free = Resources(0.0, 0) if size is None else less(size, [node.most for node in (*workers, *others)])
    for count in range(1, len(workers) + 1):
        if fitting(needed, sum_of([free, *(worker.most for worker in workers[:count])])):
            return list(workers[:count])
    return list(workers[:1]) if size is None else []  # what else is free there isn't known


def fitting(each: Resources, room: Resources) -> int:
    """Return how many nodes of a size find room."""
    return max(0, min(int(room.cores / each.cores + _ROUNDING), room.memory // each.memory))
