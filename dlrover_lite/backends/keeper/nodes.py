"""The keeper's book of nodes: what was asked, what happened, what is due. No processes and no clock in here."""

from __future__ import annotations

import re
import signal
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from dlrover_lite.backends.limits.base import OverMemory
from dlrover_lite.core.errors import BackendError
from dlrover_lite.protocol.nodes import UNANSWERED_EXIT_CODE, ExitReason, NodeSpec, Observation, Observed

__all__ = ["Node", "Nodes", "SendSignal", "describe_end", "signal_name"]

USER_ERROR_EXIT_CODE = 3
"""Exit code by which a node says that the person's own code or data is at fault."""

_NODE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,26}\Z")
"""Pattern of a node's id, which names a log file and a socket."""
_RESERVED = {"keeper", "master", "template"}


@dataclass
class Node:
    spec: NodeSpec
    phase: Literal["starting", "running", "ended"] = "starting"
    pid: int | None = None
    asked_to_end: bool = False
    leaves_nothing: bool = False
    """The node's memory is not to outlive it."""
    grace_seconds: float = 0.0
    kill_at: float | None = None
    """Time when the grace period is over, on the clock of the caller."""
    sent: int = 0
    """The strongest signal we have sent."""
    observed: Observed = field(default_factory=Observed)
    taken_along: bool = False
    """The node has ended with the process that starts nodes."""
    preempted: str = ""
    """Why somebody other than who launched it has it end; empty: nobody does."""


@dataclass(frozen=True)
class SendSignal:
    node: Node
    number: int


class Nodes:
    """All nodes of a job by id, and how they are, with a version that rises with each change.

    Methods that can make signals due return them: sending is the caller's. ``now`` is a monotonic clock in seconds,
    ``at`` seconds since the epoch.
    """

    def __init__(self, *, has_all: bool = True) -> None:
        """``has_all``: all nodes of the job are launched here; else one may follow another that has run elsewhere, and finds nothing of its
        memory, which it has to know."""
        self.by_id: dict[str, Node] = {}
        self._has_all = has_all
        self._version = 0

    def launch(self, spec: NodeSpec) -> bool:
        """Add a new node; False when a node with this id was launched before. Raises as ``check``."""
        if spec.id in self.by_id:
            return False
        self.check(spec)
        self.by_id[spec.id] = Node(spec)
        self._version += 1
        return True

    def check(self, spec: NodeSpec) -> None:
        """Check a new node. Raises BackendError for one with an unusable id, or that follows one which can't be followed."""
        if not _NODE_ID.match(spec.id) or spec.id in _RESERVED:
            raise BackendError(f"{spec.id!r} can't be a node's id: up to 27 letters, digits, '.', '_' and '-' can")
        if not spec.follows or (not self._has_all and spec.follows not in self.by_id):
            return
        followed = self.known(spec.follows)
        if followed.spec.role != spec.role:
            raise BackendError(f"Node {spec.id} ({spec.role}) can't follow {spec.follows}, a {followed.spec.role}")
        if followed.phase != "ended":
            raise BackendError(f"Node {spec.id} can't follow {spec.follows} yet: that one has not ended")
        for other in self.by_id.values():
            if other.spec.follows == spec.follows:
                raise BackendError(f"Node {spec.id} can't follow {spec.follows}: {other.spec.id} does already")

    def known(self, node_id: str) -> Node:
        """Return a node. Raises BackendError for one that was never launched."""
        if node_id not in self.by_id:
            raise BackendError(f"No node {node_id!r} was ever launched")
        return self.by_id[node_id]

    def started(self, node_id: str, pid: int, *, now: float, at: float) -> list[SendSignal]:
        node = self.by_id[node_id]
        node.phase, node.pid = "running", pid
        self._change(node, started_at=at, detail="")
        return self._ask_to_end(node, now) if node.asked_to_end else []

    def waits(self, node_id: str, detail: str, *, host: str = "", no_room: str = "") -> None:
        """Note what a node waits for that hasn't started, as ``Observed`` has it."""
        self._change(self.by_id[node_id], detail=detail, host=host, no_room=no_room)

    def ended(
        self, node_id: str, exit_code: int | None, *, at: float, detail: str = "", over_memory: OverMemory | None = None
    ) -> None:
        """Note that a node has ended, with ``exit_code`` as in ``protocol.Exited``. The first word about a node's end counts."""
        node = self.by_id[node_id]
        if node.phase == "ended":
            return
        node.phase, node.kill_at = "ended", None
        reason, why = _exit_reason(node, exit_code, over_memory)
        used = over_memory.used if over_memory is not None and reason == "OOMKilled" else 0
        how = {"reason": reason, "exit_code": exit_code, "detail": detail or why, "used_memory": used}
        self._change(node, ended_at=at, **how, no_room="")

    def taken_along(self, waiting: Collection[str]) -> None:
        """Note that the process that starts nodes has ended: whatever runs has been killed with it. ``waiting``: nodes that it hadn't been
        told of; the next one starts them."""
        for node in self.alive():
            node.taken_along = node.spec.id not in waiting

    def terminate(
        self, node_id: str, grace_seconds: float, *, now: float, keep_memory: bool = False
    ) -> list[SendSignal]:
        """Ask a node to end. Raises BackendError for one that was never launched."""
        node = self.known(node_id)
        node.leaves_nothing = node.leaves_nothing or not keep_memory
        node.grace_seconds = min(grace_seconds, node.grace_seconds) if node.asked_to_end else grace_seconds
        node.asked_to_end = True
        return self._ask_to_end(node, now) if node.phase == "running" else []

    def preempt(self, why: str, grace_seconds: float, *, now: float) -> list[SendSignal]:
        """Have all nodes end, though nobody has asked for it who launched them; those that were asked before end for that."""
        signals = []
        for node in self.alive():
            if not node.asked_to_end:
                node.preempted = why
            signals += self.terminate(node.spec.id, grace_seconds, now=now)
        return signals

    def _ask_to_end(self, node: Node, now: float) -> list[SendSignal]:
        kill_at = now + node.grace_seconds
        node.kill_at = kill_at if node.kill_at is None else min(node.kill_at, kill_at)
        if node.sent or node.grace_seconds <= 0:
            return self.due(now)
        node.sent = signal.SIGTERM
        return [SendSignal(node, signal.SIGTERM)]

    def due(self, now: float) -> list[SendSignal]:
        """Return the kills of nodes whose grace period is over, each once."""
        kills = []
        for node in self.by_id.values():
            if node.phase == "running" and node.kill_at is not None and node.kill_at <= now:
                node.kill_at, node.sent = None, signal.SIGKILL
                kills.append(SendSignal(node, signal.SIGKILL))
        return kills

    def next_due(self) -> float | None:
        return min((node.kill_at for node in self.by_id.values() if node.kill_at is not None), default=None)

    def alive(self) -> list[Node]:
        return [node for node in self.by_id.values() if node.phase != "ended"]

    def with_pid(self, pid: int) -> Node | None:
        return next((node for node in self.by_id.values() if node.phase == "running" and node.pid == pid), None)

    def observe(self, after: int | None) -> Observation | None:
        """Return how all nodes are; None if that is as it was at the version ``after``."""
        if after == self._version:
            return None
        return Observation(self._version, {node.spec.id: node.observed for node in self.by_id.values()})

    def _change(self, node: Node, **changes: Any) -> None:
        node.observed = msgspec.structs.replace(node.observed, **changes)
        self._version += 1


def _exit_reason(node: Node, exit_code: int | None, over_memory: OverMemory | None) -> tuple[ExitReason, str]:
    out_of_memory = over_memory is not None and exit_code == -signal.SIGKILL and node.sent != signal.SIGKILL
    if (
        node.preempted
        and not out_of_memory
        and exit_code in (None, -signal.SIGKILL, -signal.SIGTERM, 128 + signal.SIGTERM)
    ):
        return "Preempted", node.preempted
    if node.taken_along and not node.asked_to_end and exit_code in (None, -signal.SIGKILL):
        return "Preempted", "the process that starts nodes was killed"
    if exit_code is None:
        return ("Killed", "ended on request before it started") if node.asked_to_end else ("Unknown", "never started")
    if over_memory is not None and out_of_memory:
        return "OOMKilled", over_memory.detail
    # Some libraries turn the signal into the exit code that a shell would show.
    if exit_code in (-signal.SIGTERM, 128 + signal.SIGTERM):
        return "Killed" if node.sent else "Preempted", _killed_by(node, signal.SIGTERM)
    if exit_code < 0:
        return "Killed", _killed_by(node, -exit_code)
    if exit_code == 0:
        return "Succeeded", ""
    # What it had started may have been killed for memory without it.
    also = "" if over_memory is None else f"; a process it had started was killed: {over_memory.detail}"
    if exit_code == USER_ERROR_EXIT_CODE:
        return "UserError", f"exit code {exit_code}; see {node.spec.id}.log{also}"
    if exit_code == UNANSWERED_EXIT_CODE:
        return "Preempted", f"it got no answer for too long; see {node.spec.id}.log{also}"
    return "Unknown", f"exit code {exit_code}; see {node.spec.id}.log{also}"


def _killed_by(node: Node, number: int) -> str:
    if number == signal.SIGTERM and node.sent:
        return "ended on request (SIGTERM)"
    if number == signal.SIGKILL and node.sent == signal.SIGKILL:
        return "killed on request" + (f" after {node.grace_seconds:g} s of grace" if node.grace_seconds > 0 else "")
    return f"{signal_name(number)}, sent by the system or another process"


def describe_end(exit_code: int) -> str:
    return f"killed by {signal_name(-exit_code)}" if exit_code < 0 else f"exit code {exit_code}"


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
