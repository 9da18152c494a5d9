"""Faults that a seed draws: what happens to a simulated job, when, and for how long. Pure data."""

from __future__ import annotations

import random
from collections import Counter
from typing import Literal, get_args

import msgspec

from dlrover_lite.backends.sim.clock import source_of_chance

__all__ = ["KINDS", "LEAST_SURE", "LIE_IN_WAIT", "MASTER_POINTS", "Fault", "Kind", "draw"]

Kind = Literal[
    "kill worker",
    "kill server",
    "kill master",
    "kill master at a failpoint",
    "kill master and server",
    "kill brain",
    "pause worker",
    "pause server",
    "pause master",
    "pause brain",
    "slow machine",
    "machine fails",
    "machine sleeps",
    "wall clock jumps",
    "messages are lost",
    "messages come twice",
    "messages overtake each other",
    "messages come late",
    "a server is cut off",
    "the master is cut off",
    "worker out of memory",
    "server out of memory",
    "disk full",
    "workers scaled",
    "servers scaled",
    "slots moved",
    "moves cancelled",
    "node drained",
    "node killed by request",
    "node resized",
    "checkpoint wanted",
    "autoscaling paused",
    "minibatch fails",
    "export fails",
    "stopped and resumed",
    "workers crash",
]
KINDS: tuple[Kind, ...] = get_args(Kind)

MASTER_POINTS = (
    "master.lease.decided",
    "master.lease.committed",
    "master.lease.answered",
    "master.map.decided",
    "master.map.committed",
    "master.move.decided",
    "master.move.begun",
    "master.relaunch.noticed",
    "master.relaunch.noted",
    "master.relaunch.launched",
    "master.launch.noted",
    "master.launch.asked",
    "master.restore.noted",
    "master.restore.ended",
    "master.restore.ledger",
    "master.restore.over",
    "master.cut.ordered",
    "master.cut.written",
    "master.cut.opened",
    "master.cut.manifest",
    "master.cut.complete",
)
"""Failpoints of the master at which it may be killed."""

FIRST_SECONDS, LAST_SECONDS = 1.5, 14.0
"""Between these times faults begin."""
_TOGETHER, _SOON_AFTER, _SOON_SECONDS = 0.2, 0.35, 1.5
"""Shares of the faults that begin at one moment, and soon after another; and how soon that is, at most."""
LEAST, MOST, LEAST_SURE = 7, 13, 5
"""Number of faults of a seed; and how many of them are sure to strike, at least."""
LIE_IN_WAIT: frozenset[Kind] = frozenset({"kill master at a failpoint", "minibatch fails", "export fails"})
"""Kinds that strike when somebody comes to a point in its work, if it does."""

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


class Fault(msgspec.Struct, frozen=True):
    at: float
    """Time on the world's clock when it begins."""
    kind: Kind
    pick: float
    """Whom it meets, as a share of those that there are then."""
    seconds: float
    """How long it lasts."""
    amount: float
    """How much of it, from 0 to 1."""

    def describe(self) -> str:
        """Return it in words, for a list of faults."""
        lasts = f" for {self.seconds:.2f} s" if self.seconds else ""
        return f"{self.at:8.3f} s  {self.kind}{lasts} (whom {self.pick:.3f}, how much {self.amount:.3f})"


def draw(seed: int, *, checkpoints: bool, machines: int) -> list[Fault]:
    """Draw the faults of a seed, in the order of their times. ``checkpoints``: the job takes some; without them no memory may be lost."""
    chance = source_of_chance(seed, "faults")
    left_out: set[Kind] = set() if checkpoints else {"machine fails", "checkpoint wanted", "stopped and resumed"}
    kinds = [kind for kind in KINDS if kind not in left_out]
    weights = [_WEIGHTS.get(kind, 1.0) for kind in kinds]
    found: list[Fault] = []
    counts: Counter[Kind] = Counter()
    wanted = chance.randint(LEAST, MOST)
    together = chance.uniform(FIRST_SECONDS, LAST_SECONDS)
    while len(found) < wanted or sum(fault.kind not in LIE_IN_WAIT for fault in found) < LEAST_SURE:
        kind = chance.choices(kinds, weights)[0]
        at = _time(chance, together, found[-1].at if found else together)
        fault = _fault(chance, kind, LAST_SECONDS if kind == "workers crash" else at)
        if counts[kind] < _MOST.get(kind, MOST):
            counts[kind] += 1
            found.append(fault)
    return sorted(found, key=lambda fault: fault.at)


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
