"""The life of one node as a table: (state, event) to (state, what to do). ``fleet.py`` applies it to all nodes of a job.

::

    launched ──started──▶ started ──hello──▶ up ───────────exited──────────▶ ended
       │                     │               │                                 ▲
       ├────overdue, kill────┤         stuck, kill                             │
       │                     ▼               ▼                                 │
       │                  ending ◀───────────┘ ────────────exited──────────────┤
       └──────drain──▶ draining ◀──drain── started, up ────exited──────────────┘

A pair that is not in the table changes nothing: reports come late, and come twice.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from dlrover_lite.core.units import Resources
from dlrover_lite.protocol.nodes import ExitReason, Role

__all__ = ["TRANSITIONS", "Action", "EventKind", "Node", "State", "step"]

State = Literal["launched", "started", "up", "draining", "ending", "ended"]
"""State of a node. ``draining``: asked to finish its minibatch and leave. ``ending``: given up by us, or by a person: to be killed."""
EventKind = Literal["started", "hello", "overdue", "stuck", "kill", "drain", "exited"]
"""Kind of a node's event. ``overdue``: no hello for too long after the launch. ``stuck``: no heartbeat, or no progress, for too long.
``kill``: a person wants it."""
Action = Literal["kill", "ask_to_leave", "judge_end"]

TRANSITIONS: dict[tuple[State, EventKind], tuple[State, tuple[Action, ...]]] = {
    ("launched", "started"): ("started", ()),
    ("launched", "hello"): ("up", ()),  # heard before the backend has told
    ("started", "hello"): ("up", ()),
    ("launched", "overdue"): ("ending", ("kill",)),
    ("started", "overdue"): ("ending", ("kill",)),
    ("up", "stuck"): ("ending", ("kill",)),
    ("draining", "stuck"): ("ending", ("kill",)),
    ("launched", "kill"): ("ending", ("kill",)),
    ("started", "kill"): ("ending", ("kill",)),
    ("up", "kill"): ("ending", ("kill",)),
    ("draining", "kill"): ("ending", ("kill",)),
    ("launched", "drain"): ("draining", ("ask_to_leave",)),
    ("started", "drain"): ("draining", ("ask_to_leave",)),
    ("up", "drain"): ("draining", ("ask_to_leave",)),
    ("launched", "exited"): ("ended", ("judge_end",)),
    ("started", "exited"): ("ended", ("judge_end",)),
    ("up", "exited"): ("ended", ("judge_end",)),
    ("draining", "exited"): ("ended", ("judge_end",)),
    ("ending", "exited"): ("ended", ("judge_end",)),
}


class Node(msgspec.Struct, frozen=True):
    id: str
    role: Role
    resources: Resources
    """Resources that the backend has given the node."""
    state: State = "launched"
    since: float = 0.0
    """Time when the node came into this state, on the caller's clock."""
    endpoint: str = ""
    follows: str = ""
    """The node whose place it took, with the memory that one has left."""
    verdict: ExitReason | None = None
    """The master's own reason why the node ends, which goes before the backend's."""
    reason: ExitReason | None = None
    """Why the node ended."""
    detail: str = ""
    used_memory: int = 0
    """Bytes that one which ran out of memory had used, where that may be more than its limit."""
    wanted: Resources | None = None
    """Resources that the node is to be resized to; None: nothing else than it has."""
    host: str = ""
    """Host that the node is wanted on; empty: wherever there is room. Who takes its place later isn't bound to that."""

    @property
    def most(self) -> Resources:
        """What it has or is to have, whichever is more."""
        wanted = self.wanted or self.resources
        return Resources(max(self.resources.cores, wanted.cores), max(self.resources.memory, wanted.memory))

    @property
    def least_memory(self) -> int:
        """What it has or is to have, whichever is less."""
        return min(self.resources.memory, (self.wanted or self.resources).memory)


def step(node: Node, kind: EventKind, now: float) -> tuple[Node, tuple[Action, ...]] | None:
    """Return the node after the event and what is to be done; None when the event means nothing in its state."""
    found = TRANSITIONS.get((node.state, kind))
    if found is None:
        return None
    state, actions = found
    return msgspec.structs.replace(node, state=state, since=now), actions
