"""What a master tells the brain of its job's plans and nodes, for the config database. Times are seconds since the epoch."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from dlrover_lite.core.bounds import ByKey, Count, Name, Text, Timestamp
from dlrover_lite.protocol.plans import Plan


class PlanRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A plan that was wanted or given, and since when."""

    job: Name
    at: Timestamp
    kind: Literal["desired", "granted"]
    plan: Plan
    decision: Count | None = None
    """Number of the decision that it follows from."""


class NodeRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Something that has happened to a node of a job."""

    job: Name
    at: Timestamp
    node: Name
    event: Literal["launched", "up", "resized", "ended"]
    """What happened to the node; all but ``resized`` happen to a node once."""
    reason: Text = ""
    data: ByKey[Name, Any] = {}
