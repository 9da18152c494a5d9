"""A small fleet, what may happen to its nodes, and what follows."""

from __future__ import annotations

from typing import Any, NamedTuple

from dlrover_lite.core.units import Resources
from dlrover_lite.master.nodes.fleet import Fleet
from dlrover_lite.protocol.nodes import Observed
from dlrover_lite.protocol.plans import Plan, RolePlan

PLAN = Plan(RolePlan(2, Resources(1.0, 100)), RolePlan(3, Resources(2.0, 200)))
ROOMY = Resources(100.0, 100_000)


class Seen(NamedTuple):
    node: str
    how: Observed


def begun(capacity: Resources = ROOMY) -> Fleet:
    return Fleet(PLAN, capacity).begin(0.0)[0]


def exited(node: str, reason: str | None = "Killed", detail: str = "") -> Seen:
    return Seen(node, Observed(ended_at=0.0, reason=reason, detail=detail))  # type: ignore[arg-type]


def started(node: str) -> Seen:
    return Seen(node, Observed(started_at=0.0))


def of(kind: type, instructions: list[Any]) -> list[Any]:
    return [instruction for instruction in instructions if isinstance(instruction, kind)]


def ends(fleet: Fleet, node: str, reason: str | None = "Killed", now: float = 1.0, detail: str = "") -> Any:
    return fleet.observed(*exited(node, reason, detail), now)
