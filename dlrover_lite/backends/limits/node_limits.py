"""The keeper's book of fences: which node is within which, and what becomes of those whose node has ended."""

from __future__ import annotations

from dataclasses import dataclass

from dlrover_lite.backends.limits.base import Enter, Fence, Limiter, OverMemory
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

    def enforcement(self) -> Enforcement:
        return self._limiter.enforcement()

    def create(self, spec: NodeSpec) -> Enter:
        """Create the fence of a new node: that of the ended node which it follows, if that is still there. Raises BackendError."""
        left = self._held.get(spec.follows)
        if left is None:
            fence = self._limiter.create(spec.id, spec.resources)
        else:
            fence = left.fence
            fence.kill()
            fence.take_over(spec.id, spec.resources)
            del self._held[spec.follows]
        self._held[spec.id] = _Held(fence, spec.role)
        return fence.enter

    def started(self, node: str, pid: int) -> None:
        held = self._held[node]
        held.runs = True
        held.fence.started(pid)

    def resize(self, node: str, resources: Resources) -> None:
        """Change a node's limits; nothing happens for one that has ended and left no fence. Raises BackendError."""
        if (held := self._held.get(node)) is not None:
            held.fence.resize(resources)

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
        held.runs, held.ended = False, True
        self._clear(node, held, now)
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

    def next_due(self) -> float | None:
        due = [held.due_at for held in self._held.values() if held.due_at is not None]
        if self._limiter.watch_seconds is not None and any(held.runs for held in self._held.values()):
            due.append(self._watch_at)
        return min(due, default=None)

    def close(self) -> None:
        """Remove all fences at the end of the job, whatever still runs."""
        self._limiter.remove_all()
        self._held.clear()
