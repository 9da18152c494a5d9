"""Whether a node has just got much slower: then the interval that is measured ends, and short ones follow, which say how it is now."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from dlrover_lite.brain.healing.slowdown import slower_than_peers

__all__ = ["RECENT_SECONDS", "Paces", "has_turned"]

RECENT_SECONDS = 2.0
"""Seconds that are compared with what was before: all tell what they have done once a second at least."""
_TIMES = 1.8
"""Factor by which a node is slower when it is looked at more closely: no reason to do anything about it yet."""
_LEAST_MINIBATCHES = 4.0
"""Least number of minibatches that a node usually does in ``RECENT_SECONDS``: those that do fewer are judged by whole intervals."""


class Paces(msgspec.Struct, frozen=True):
    """How fast nodes are that did anything."""

    workers: Mapping[str, float]
    """Seconds from one minibatch to the next."""
    ps: Mapping[str, float]
    """Seconds of work on a minibatch's requests."""
    rates: Mapping[str, float]
    """Minibatches/s of each node, workers and PS."""


def has_turned(usual: Paces, now: Paces) -> bool:
    """Return whether a node is much slower ``now``, in the last ``RECENT_SECONDS``, next to its peers. One that does nothing at all isn't
    slow: it may wait."""
    return any(
        usual.rates.get(node, 0.0) * RECENT_SECONDS >= _LEAST_MINIBATCHES
        and slower_than_peers(before, after, node) >= _TIMES
        for before, after in ((usual.workers, now.workers), (usual.ps, now.ps))
        for node in after
        if before.get(node, 0.0) > 0
    )
