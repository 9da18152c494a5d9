"""Who has been silent, or got nowhere, for too long. Pure but for the calls that feed it.

Time is counted in turns of the master, each for no longer than they usually take: when the whole machine was asleep, or the master itself
was held up, nobody is blamed for it. Nor is anybody for getting nowhere while a parameter server is missing.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

from dlrover_lite.master.nodes.lifecycle import Node
from dlrover_lite.recipe.schema import Health

__all__ = ["Finding", "Liveness"]


class Finding(NamedTuple):
    node: str
    kind: Literal["overdue", "stuck"]
    why: str


class _Task(NamedTuple):
    """What a node is at."""

    doing: str
    seconds: float
    """For how long, as it says."""
    counted: float
    """For how many of these seconds it could get on, as far as the master has heard of the task."""
    at: float
    """Time awake with all servers up when it said so."""


_NOTHING = _Task("", 0.0, 0.0, 0.0)
"""What a node is at of which the master hasn't heard."""


class Liveness:
    """``now`` is seconds of a steady clock, which may stand still while the machine sleeps."""

    def __init__(self, health: Health, now: float, *, longest_turn_seconds: float = 1.0) -> None:
        self._health = health
        self._longest_turn_seconds = longest_turn_seconds
        self._last_turn = now
        self._awake = 0.0
        self._awake_with_servers = 0.0
        """Seconds awake in which no parameter server was missing."""
        self._heard: dict[str, float] = {}
        self._tasks: dict[str, _Task] = {}
        self._due = -math.inf
        """Time awake before which none of the nodes can have been silent for too long."""

    def heard(self, node: str, doing: str = "", seconds: float = 0.0) -> None:
        """Note that the node is alive, and has been ``doing`` the same thing for so long. It may have waited for the master meanwhile, or
        for a server: what passed before the master began, or while that was asleep or a server was missing, doesn't count."""
        self._heard[node] = self._awake
        before = self._tasks.get(node, _NOTHING)  # what is new has begun since then
        same = before.doing == doing and seconds >= before.seconds
        counted = min(seconds, self._awake_with_servers - before.at + (before.counted if same else 0.0))
        self._tasks[node] = _Task(doing, seconds, counted, self._awake_with_servers)
        if seconds > self._health.progress_seconds:
            self._due = -math.inf

    def alive(self, node: str) -> None:
        """Note that the node is alive, and says nothing of what it is doing."""
        self._heard[node] = self._awake

    def doing(self, node: str) -> str:
        """Return what the node said last that it was at, in words."""
        task = self._tasks.get(node)
        return "" if task is None else task.doing

    def judge(self, nodes: list[Node], now: float, *, same: bool = False, servers_up: bool = True) -> list[Finding]:
        """Call it every turn, with all nodes that run. ``same``: they are those of the last turn, in the same states. ``servers_up``: no
        parameter server is missing that the others need."""
        passed = min(self._longest_turn_seconds, max(0.0, now - self._last_turn))
        self._awake, self._last_turn = self._awake + passed, now
        if servers_up:
            self._awake_with_servers += passed
        if same and self._awake < self._due:
            return []
        found, silence = [], 0.0
        for node in nodes:
            silent = self._awake - self._heard.setdefault(node.id, self._awake)
            silence = max(silence, silent)
            if (finding := self._judge(node, silent)) is not None:
                found.append(finding)
        self._due = -math.inf if found else self._awake + self._patience - silence
        return found

    @property
    def _patience(self) -> float:
        return min(self._health.startup_seconds, self._health.heartbeat_seconds)

    def _judge(self, node: Node, silent: float) -> Finding | None:
        health = self._health
        if node.state in ("launched", "started"):
            if silent <= health.startup_seconds:
                return None
            stage = "was not started" if node.state == "launched" else "did not come up"
            return Finding(node.id, "overdue", f"it {stage} within {health.startup_seconds:g} s")
        if node.state not in ("up", "draining"):
            return None
        if silent > health.heartbeat_seconds:
            return Finding(node.id, "stuck", f"no heartbeat for {health.heartbeat_seconds:g} s")
        task = self._tasks.get(node.id)
        if task is None or task.counted <= health.progress_seconds:
            return None
        return Finding(
            node.id, "stuck", f"no progress for {health.progress_seconds:g} s, in {task.doing or 'something'}"
        )
