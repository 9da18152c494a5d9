"""Faults: what happens to a simulated job, when, and for how long. Pure data."""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

__all__ = ["KINDS", "LIE_IN_WAIT", "MASTER_POINTS", "Fault", "Kind"]

Kind = Literal[
    "kill worker",
    "kill server",
    "kill master",
    "kill master at a failpoint",
    "kill master and server",
    "kill brain",
    "kill brain amid a change",
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

LIE_IN_WAIT: frozenset[Kind] = frozenset(
    {"kill master at a failpoint", "kill brain amid a change", "minibatch fails", "export fails"}
)
"""Kinds that strike when somebody comes to a point in its work, if it does."""


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
