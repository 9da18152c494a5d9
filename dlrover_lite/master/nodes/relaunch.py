"""Whether, when and how large a node comes back, by the reason for which it ended. Data and pure functions."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from dlrover_lite.core.units import Resources, format_bytes
from dlrover_lite.master.nodes.lifecycle import Node
from dlrover_lite.protocol.nodes import COUNTED_SECONDS, ExitReason, Role

__all__ = [
    "POLICIES",
    "Policy",
    "delay_seconds",
    "describe_growth",
    "describe_too_little_memory",
    "describe_too_many_ends",
    "larger",
    "larger_by_givers",
    "recent",
    "with_another",
]


class Policy(msgspec.Struct, frozen=True):
    budget: int
    """How many nodes of a role may come back for this reason within an hour."""
    first_delay_seconds: float = 0.5
    """Seconds before the second node comes back; doubles with each further one. The first comes back at once."""
    longest_delay_seconds: float = 30.0
    memory_factor: float = 1.0
    """How many times the memory of the ended node the one that comes back gets."""


POLICIES: dict[ExitReason, Policy] = {
    "Killed": Policy(budget=10),
    "OOMKilled": Policy(budget=4, memory_factor=1.5),
    "Preempted": Policy(budget=100, longest_delay_seconds=10.0),
    "Hung": Policy(budget=3),
    "StartupTimeout": Policy(budget=2),
    "Unknown": Policy(budget=3),
    "Succeeded": Policy(budget=10),  # left while there was work, as the last one
    "UserError": Policy(budget=0),
}

_NAMES: dict[Role, str] = {"ps": "parameter servers", "worker": "workers"}
_LEAST_GROWTH = 1.2
"""Least growth of memory, as a factor: coming back with less more than that would only end the same way."""


def recent(returns: Sequence[float], now: float) -> int:
    """Return how many of these returns still count."""
    return sum(not now - at > COUNTED_SECONDS for at in returns)


def with_another(returns: Sequence[float], now: float) -> tuple[float, ...]:
    """Return the returns that still count, and one of now. (Those of a clock that was ahead of this one, another machine's, are taken for
    new ones.)"""
    counted = tuple(min(at, now) for at in returns if not now - at > COUNTED_SECONDS)
    return (*counted, now)


def delay_seconds(policy: Policy, before: int) -> float:
    """Return how long to wait when ``before`` nodes have come back for the same reason."""
    if before == 0:
        return 0.0
    return min(policy.longest_delay_seconds, policy.first_delay_seconds * 2.0 ** (before - 1))


def larger(each: Resources, factor: float, room: int) -> Resources | None:
    """Return ``each`` with ``factor`` times its memory, as far as ``room`` bytes allow; None when that isn't enough to try again."""
    memory = min(int(each.memory * factor), room)
    if memory < each.memory * min(factor, _LEAST_GROWTH):
        return None
    return Resources(each.cores, max(memory, each.memory))


def larger_by_givers(each: Resources, factor: float, room: int, givers: Sequence[int]) -> tuple[int, Resources | None]:
    """Return ``larger``, and before it the number of those, of the first, who have to give their ``givers`` bytes for that: as few as make
    it enough to try again. None: all of theirs together don't."""
    for count in range(len(givers) + 1):
        if (grown := larger(each, factor, room + sum(givers[:count]))) is not None:
            return count, grown
    return 0, None


def memory_again(planned: int, had: Sequence[int], room: int) -> int:
    """Return the memory in bytes of each of the servers that begin with the rows of others: as much as the largest of these ``had``, or is
    ``planned``, as far as there is ``room`` for each; but no less than they had in the mean, for which there was room."""
    most = max([planned, *had])
    mean = math.ceil(sum(had) / len(had)) if had else most
    return min(most, max(mean, room))


def describe_growth(before: Resources, after: Resources, *, followed: bool = False) -> str:
    """Describe with how much memory a node comes back. ``followed``: by one that takes its memory over."""
    limits = f"{format_bytes(after.memory)} {'' if followed else 'of memory '}instead of {format_bytes(before.memory)}"
    grown = after.memory != before.memory
    if followed:
        return " with its memory" + (f", of which it may have {limits}" if grown else "")
    return f" with {limits}" if grown else ""


def describe_too_many_ends(node: Node, number: int) -> tuple[str, str]:
    """Explain, with a hint, why a node doesn't come back whose role ends too often."""
    detail = node.detail or "no detail"
    return (
        f"{_NAMES[node.role]} keep ending: {node.id} was number {number} within an hour to end as {node.reason or 'Unknown'} ({detail})",
        f"Their logs: dlrover-lite logs JOB --role {node.role}",
    )


def describe_too_little_memory(node: Node, room: int) -> tuple[str, str, list[str]]:
    """Explain, with a hint and whose logs tell more, why a node doesn't come back that needs more than ``room`` bytes."""
    limit = format_bytes(node.resources.memory)
    left = f"{format_bytes(max(0, room))} are left for it beside the other nodes"
    return (
        f"{node.id} needs more memory than its {limit}, and {left}",
        f"Use fewer {_NAMES[node.role]}{' or a smaller batch_size' if node.role == 'worker' else ''}, "
        "or raise resources.total if the machine has more.",
        [node.id],
    )
