"""Messages in the name of nodes that the master has never launched: refused, counted, and noted in the story.

A node's id is unique within the job for all time, a relaunch gets a new one: the name says which incarnation it is. Those that have ended
are still believed about the past, each as far as its leases go.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from dlrover_lite.master.events import EventLog
from dlrover_lite.master.nodes.fleet import Fleet
from dlrover_lite.protocol.messages import (
    Exported,
    ExportFailed,
    Heartbeat,
    Hello,
    IndexRequest,
    LeaseRequest,
    NodeFailed,
    PsReport,
    TopologyRequest,
)
from dlrover_lite.protocol.nodes import Role
from dlrover_lite.transport.frames import Failure

__all__ = ["UNKNOWN_NODE", "UnknownNodes"]

UNKNOWN_NODE = "unknown node"
"""Value of ``Failure.code`` for a node that was never launched, has another role, or ended before it said hello."""
_MOST_NAMES = 100
"""Number of strangers that are noted one by one, at most."""


class UnknownNodes:
    """Tells nodes from others, and counts what those others have sent."""

    def __init__(self, story: EventLog) -> None:
        self.refused: Counter[str] = Counter()
        """Number of refused messages by the name that they were sent in; beyond a hundred names, by none."""
        self._story = story

    def refuse(self, body: Any, fleet: Fleet) -> Failure | None:
        """Return why a message of a node isn't taken; None if it is, or comes from no node."""
        found = self._judge(body, fleet)
        if found is None:
            return None
        name, why = found
        if name not in self.refused and len(self.refused) >= _MOST_NAMES:
            name = ""
        self.refused[name] += 1
        if self.refused[name] == 1:
            self._story.node("master", f"refuses {type(body).__name__} of {name[:40] or 'more strangers'!r}: {why}")
        return Failure(UNKNOWN_NODE, f"{type(body).__name__} of {body.node[:40]!r} is refused: {why}")

    def _judge(self, body: Any, fleet: Fleet) -> tuple[str, str] | None:
        """Return who has sent a message, and what is wrong with that; None if nothing is."""
        roles: tuple[Role, ...]
        match body:
            case LeaseRequest() | IndexRequest() | Heartbeat() | Exported() | ExportFailed():
                roles = ("worker",)
            case PsReport():
                roles = ("ps",)
            case Hello():
                roles = (body.role,)
            case NodeFailed():
                roles = ("ps", "worker")
            case TopologyRequest() if body.node:  # people ask for it without a name
                roles = ("ps", "worker")
            case _:
                return None
        node = fleet.by_id.get(body.node)
        if node is None:
            return body.node, "no such node was ever launched"
        if node.role not in roles:
            return body.node, f"it is a {node.role}"
        if isinstance(body, Hello) and node.state == "ended":
            return body.node, "it has ended"
        return None
