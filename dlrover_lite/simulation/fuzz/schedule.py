"""Schedules of faults that a seed draws: most by themselves, and in many seeds some that belong together, within seconds."""

from __future__ import annotations

import random
from collections import Counter
from typing import NamedTuple

import msgspec

from dlrover_lite.backends.sim.clock import source_of_chance
from dlrover_lite.simulation.fuzz.faults import KINDS, LIE_IN_WAIT, MASTER_POINTS, Fault, Kind

__all__ = ["GROUPS", "LEAST_SURE", "draw"]

FIRST_SECONDS, LAST_SECONDS = 1.5, 14.0
"""Between these times faults begin."""
_TOGETHER, _SOON_AFTER, _SOON_SECONDS = 0.2, 0.35, 1.5
"""Shares of the faults that begin at one moment, and soon after another; and how soon that is, at most."""
LEAST, MOST, LEAST_SURE = 7, 13, 5
"""Number of faults of a seed; and how many of them are sure to strike, at least."""
_WEIGHTS: dict[Kind, float] = {
    "kill server": 2.0,
    "kill worker": 2.0,
    "kill master": 2.0,
    "kill master at a failpoint": 3.0,
    "slots moved": 2.0,
    "servers scaled": 2.0,
    "checkpoint wanted": 2.0,
    "stopped and resumed": 0.5,
    "workers crash": 0.15,
}
"""How likely a kind is, where that isn't 1."""
_MOST: dict[Kind, int] = {
    "pause worker": 2,
    "pause server": 2,
    "machine fails": 1,
    "machine sleeps": 1,
    "worker out of memory": 1,
    "server out of memory": 2,
    "minibatch fails": 2,
    "stopped and resumed": 1,
    "workers crash": 1,
}
"""How often a kind may come, where budgets would end the job."""
_SECONDS: dict[Kind, tuple[float, float]] = {
    "pause worker": (0.2, 8.0),
    "pause server": (0.2, 8.0),
    "pause master": (0.2, 6.0),
    "pause brain": (0.5, 10.0),
    "slow machine": (2.0, 12.0),
    "machine fails": (2.0, 12.0),
    "machine sleeps": (2.0, 60.0),
    "messages are lost": (0.5, 5.0),
    "messages come twice": (1.0, 8.0),
    "messages overtake each other": (1.0, 8.0),
    "messages come late": (1.0, 6.0),
    "a server is cut off": (0.5, 3.5),
    "the master is cut off": (0.5, 3.5),
    "disk full": (0.5, 6.0),
}
"""How long it lasts, at least and at most."""
_BY_HAND: frozenset[Kind] = frozenset(
    {
        "workers scaled",
        "servers scaled",
        "slots moved",
        "moves cancelled",
        "node drained",
        "node killed by request",
        "node resized",
        "autoscaling paused",
    }
)
"""What people do to nodes: from then on the brain changes no plan."""
_LEFT_TO_BRAIN = 0.6
"""Share of the seeds with autoscaling in which people do none of that."""


class _Member(NamedTuple):
    """A fault of a group."""

    kind: Kind
    earliest: float = 0.0
    """Seconds after the group's beginning at which it begins, at the earliest."""
    latest: float = 0.0
    points: tuple[str, ...] = ()
    """Beginnings of the names of failpoints, one of which is drawn; empty: any."""


GROUPS: dict[str, tuple[_Member, ...]] = {
    "stopped on a full disk": (
        _Member("disk full"),
        _Member("stopped and resumed", 0.0, 1.5),
        _Member("kill master", 0.3, 3.0),
    ),
    "a server dies on a full disk": (
        _Member("disk full"),
        _Member("kill server", 0.0, 0.5),
        _Member("servers scaled", 0.0, 1.0),
        _Member("kill master and server", 0.5, 3.0),
    ),
    "a machine fails, and the master dies, while slots move": (
        _Member("slots moved"),
        _Member("machine fails", 0.0, 1.0),
        _Member("kill master", 0.0, 1.5),
    ),
    "both servers of a move die": (
        _Member("slots moved"),
        _Member("kill master at a failpoint", 0.0, 0.3, ("master.relaunch", "master.map", "master.move")),
        _Member("kill server", 0.1, 0.6),
        _Member("kill server", 0.1, 1.5),
    ),
    "the master dies in a change of servers": (
        _Member("kill master at a failpoint", points=("master.launch", "master.map", "master.move")),
        _Member("servers scaled", 0.0, 0.3),
        _Member("kill master", 1.0, 4.0),
        _Member("servers scaled", 1.0, 4.0),
    ),
    "the master dies in a change of workers": (
        _Member("kill master at a failpoint", points=("master.launch", "master.lease")),
        _Member("workers scaled", 0.0, 0.3),
        _Member("kill worker", 0.0, 1.5),
    ),
    "the brain dies in a change": (
        _Member("kill brain amid a change"),
        _Member("kill brain amid a change", 1.0, 8.0),
        _Member("kill master", 0.0, 6.0),
    ),
    "messages come twice around a restart": (
        _Member("messages come twice"),
        _Member("kill worker", 0.0, 1.0),
        _Member("kill master", 0.2, 1.5),
    ),
    "messages come late around a restart": (
        _Member("messages come late"),
        _Member("messages overtake each other", 0.0, 0.5),
        _Member("kill master at a failpoint", 0.0, 1.0, ("master.lease", "master.map")),
    ),
    "stopped while nodes start": (
        _Member("kill server"),
        _Member("workers scaled", 0.0, 0.5),
        _Member("stopped and resumed", 0.3, 1.5),
        _Member("kill master", 0.5, 2.5),
    ),
    "the master dies in a restore": (
        _Member("kill master at a failpoint", points=("master.restore",)),
        _Member("machine fails", 0.0, 0.3),
        _Member("kill server", 2.0, 5.0),
    ),
    "the master dies in a checkpoint": (
        _Member("kill master at a failpoint", points=("master.cut",)),
        _Member("checkpoint wanted", 0.0, 0.3),
        _Member("kill server", 0.0, 0.8),
    ),
    "the master dies in the last checkpoint": (
        _Member("kill master at a failpoint", points=("master.cut", "master.map")),
        _Member("stopped and resumed", 0.0, 0.3),
        _Member("slots moved", 0.0, 0.3),
        _Member("kill server", 0.0, 0.8),
    ),
    "nodes die while all sleep": (
        _Member("machine sleeps"),
        _Member("kill server", 0.0, 1.0),
        _Member("kill worker", 0.0, 1.0),
        _Member("wall clock jumps", 0.0, 1.0),
    ),
    "a server that is full gives slots away": (
        _Member("slots moved"),
        _Member("server out of memory", 0.0, 0.5),
        _Member("node resized", 0.0, 1.0),
        _Member("kill master", 0.0, 1.5),
    ),
    "cut off while it drains": (
        _Member("the master is cut off"),
        _Member("node drained", 0.0, 0.5),
        _Member("servers scaled", 0.0, 1.0),
        _Member("kill master", 0.5, 3.5),
    ),
}
"""Faults that meet what others have left half done."""
_IN_GROUPS = 0.6
"""Share of the seeds that have a group."""
_GROUP_LAST_SECONDS = 12.0
"""Until then groups begin."""


def draw(seed: int, *, checkpoints: bool, autoscales: bool) -> list[Fault]:
    """Draw the faults of a seed, in the order of their times. ``checkpoints``: a job takes some; without them no memory may be lost.
    ``autoscales``: the brain changes a job's plan."""
    chance = source_of_chance(seed, "faults")
    left_out: set[Kind] = set() if checkpoints else {"machine fails", "checkpoint wanted", "stopped and resumed"}
    of_group = source_of_chance(seed, "group")
    if not autoscales:
        left_out.add("kill brain amid a change")
    elif of_group.random() < _LEFT_TO_BRAIN:
        left_out |= _BY_HAND
    kinds = [kind for kind in KINDS if kind not in left_out]
    weights = [_WEIGHTS.get(kind, 1.0) for kind in kinds]
    found = _group(of_group, left_out)
    counts = Counter(fault.kind for fault in found)
    wanted = chance.randint(LEAST, MOST)
    together = chance.uniform(FIRST_SECONDS, LAST_SECONDS)
    last = together
    while len(found) < wanted or sum(fault.kind not in LIE_IN_WAIT for fault in found) < LEAST_SURE:
        kind = chance.choices(kinds, weights)[0]
        at = _time(chance, together, last)
        fault = _fault(chance, kind, LAST_SECONDS if kind == "workers crash" else at)
        if counts[kind] < _MOST.get(kind, MOST):
            counts[kind] += 1
            found.append(fault)
            last = fault.at
    return sorted(found, key=lambda fault: fault.at)


def _group(chance: random.Random, left_out: set[Kind]) -> list[Fault]:
    """Draw a group of faults, in some seeds, of those that have no kind that is ``left_out``."""
    groups = [group for group in GROUPS.values() if not left_out & {one.kind for one in group}]
    group, begins = chance.choice(groups), chance.uniform(FIRST_SECONDS, _GROUP_LAST_SECONDS)
    if chance.random() >= _IN_GROUPS:
        return []
    found = []
    for one in group:
        fault = _fault(chance, one.kind, begins + chance.uniform(one.earliest, one.latest))
        if one.points:
            points = [at for at, point in enumerate(MASTER_POINTS) if point.startswith(one.points)]
            fault = msgspec.structs.replace(fault, pick=(chance.choice(points) + 0.5) / len(MASTER_POINTS))
        found.append(fault)
    return found


def _time(chance: random.Random, together: float, last: float) -> float:
    """Draw the time of a fault: by itself, at one moment with others, or soon after the last one, while what that has begun goes on."""
    drawn, at, after = chance.random(), chance.uniform(FIRST_SECONDS, LAST_SECONDS), chance.uniform(0.0, _SOON_SECONDS)
    if drawn < _TOGETHER:
        return together
    return min(LAST_SECONDS, last + after) if drawn < _TOGETHER + _SOON_AFTER else at


def _fault(chance: random.Random, kind: Kind, at: float) -> Fault:
    least, most = _SECONDS.get(kind, (0.0, 0.0))
    share = chance.random() ** 2  # mostly short
    return Fault(at, kind, chance.random(), least + share * (most - least), chance.random())
