"""The keeper's book of fences: which node is within which, what all nodes have together, and what becomes of the fences whose node has
ended."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dlrover_lite.backends.limits.base import Enter, Fence, Limiter, OverMemory
from dlrover_lite.core.errors import BackendError
from dlrover_lite.core.processes.log import log
from dlrover_lite.core.units import Resources
from dlrover_lite.protocol.nodes import Enforcement, NodeSpec, Role, Usage

__all__ = ["NodeLimits"]

_FIRST_RETRY_SECONDS = 0.005
_LONGEST_RETRY_SECONDS = 1.0
_KEPT: frozenset[Role] = frozenset(("ps",))
"""Roles whose memory outlives them: held by the keeper, and charged to their group. It stays until a follower comes or the job ends."""


@dataclass
class _Held:
    fence: Fence
    role: Role
    cores: float
    """Cores of the node, until it has ended."""
    runs: bool = False
    ended: bool = False
    due_at: float | None = None
    """Time when something of an ended node's fence is still to be done; None: nothing is."""
    retry_seconds: float = _FIRST_RETRY_SECONDS


class NodeLimits:
    """Methods never block. ``now`` is a monotonic clock in seconds."""

    def __init__(self, limiter: Limiter) -> None:
        self._limiter = limiter
        self._held: dict[str, _Held] = {}
        self._watch_at = 0.0
        self._cores_together = 0.0
        """Cores that all nodes are limited to together; 0: no node was ever there."""
        self._lower_at = 0.0
        """Time before which that isn't lowered, since it couldn't be a moment ago."""
        self._said = ""
        """Why it couldn't be lowered, as it was logged; empty: it could."""

    def enforcement(self) -> Enforcement:
        return self._limiter.enforcement()

    def create(self, spec: NodeSpec) -> Enter:
        """Create the fence of a new node: that of the ended node which it follows, if that is still there. Raises BackendError."""
        self._limit_together(self._cores(spec.resources.cores))
        try:
            fence = self._fence(spec)
        except BackendError:
            self._lower()
            raise
        self._held[spec.id] = _Held(fence, spec.role, spec.resources.cores)
        return fence.enter

    def _fence(self, spec: NodeSpec) -> Fence:
        left = self._held.get(spec.follows)
        if left is None:
            return self._limiter.create(spec.id, spec.resources)
        left.fence.kill()
        left.fence.take_over(spec.id, spec.resources)
        del self._held[spec.follows]
        return left.fence

    def started(self, node: str, pid: int) -> None:
        held = self._held[node]
        held.runs = True
        held.fence.started(pid)

    def resize(self, node: str, resources: Resources) -> None:
        """Change a node's limits; nothing happens for one that has ended and left no fence. Raises BackendError."""
        held = self._held.get(node)
        if held is None:
            return
        if held.ended:  # it has no cores, whatever a follower is to have
            held.fence.resize(resources)
            return
        if resources.cores > held.cores:
            self._limit_together(self._cores(-held.cores, resources.cores))
        try:
            held.fence.resize(resources)
        except BackendError:
            self._lower()
            raise
        held.cores = resources.cores
        self._limit_together(self._cores())

    def usage(self, node: str) -> Usage | None:
        """Return what a node uses; None unless it runs."""
        held = self._held.get(node)
        return held.fence.usage() if held is not None and held.runs else None

    def ended(self, node: str, *, now: float) -> OverMemory | None:
        """Note that a node has ended, and with it all that it has started. Return whether anything of it was killed for memory."""
        held = self._held.get(node)
        if held is None or held.ended:
            return None
        over = held.fence.over_memory()
        held.runs, held.ended, held.cores = False, True, 0.0
        self._clear(node, held, now)
        self._lower(now)
        return over

    def act(self, now: float) -> None:
        """Do what is due: look at running nodes, clear the fences of ended ones."""
        if self._limiter.watch_seconds is not None and now >= self._watch_at:
            for held in self._held.values():
                if held.runs:
                    held.fence.watch()
            self._watch_at = now + self._limiter.watch_seconds
        for node, held in list(self._held.items()):
            if held.due_at is not None and now >= held.due_at:
                self._clear(node, held, now)
        if now >= self._lower_at:
            self._lower(now)

    def _clear(self, node: str, held: _Held, now: float) -> None:
        """Kill what is left within, and remove the fence unless it is one to keep; what can't be done yet is due again soon."""
        empty = held.fence.kill()
        if held.role in _KEPT:
            done = empty
        else:
            done = held.fence.remove()
            if done:
                del self._held[node]
        held.due_at = None if done else now + held.retry_seconds
        held.retry_seconds = min(_LONGEST_RETRY_SECONDS, held.retry_seconds * 2)

    def _cores(self, *more: float) -> float:
        """Return the cores that all nodes which haven't ended have together, and ``more``; exactly, however often nodes came and went."""
        return math.fsum([*(held.cores for held in self._held.values()), *more])

    def _limit_together(self, cores: float) -> None:
        """Limit what all nodes have together, unless there is none: a limit of nothing can't be set. Raises BackendError."""
        if cores > 0 and cores != self._cores_together:
            self._limiter.limit_together(cores)
            self._cores_together, self._said = cores, ""

    def _lower(self, now: float = 0.0) -> None:
        """Limit the nodes to what they have together after some of it has gone. If that can't be, it is logged, and tried again soon."""
        try:
            self._limit_together(self._cores())
        except BackendError as error:
            self._lower_at = now + _LONGEST_RETRY_SECONDS
            if error.message != self._said:
                log(f"{error.message}. {error.hint}".rstrip())
                self._said = error.message

    @property
    def _is_to_be_lowered(self) -> bool:
        return 0 < self._cores() != self._cores_together

    def next_due(self) -> float | None:
        due = [held.due_at for held in self._held.values() if held.due_at is not None]
        if self._limiter.watch_seconds is not None and any(held.runs for held in self._held.values()):
            due.append(self._watch_at)
        if self._is_to_be_lowered:
            due.append(self._lower_at)
        return min(due, default=None)

    def close(self) -> None:
        """Remove all fences at the end of the job, whatever still runs."""
        self._limiter.remove_all()
        self._held.clear()
