"""Events on a job's StatefulSet, as `kubectl describe` shows them. Pure: data in, data out."""

from __future__ import annotations

import time
from typing import Any

from dlrover_lite.core.bounds import clipped

__all__ = ["job_event"]

_MOST_CHARACTERS = 1000
"""The most of an event's message, which `kubectl describe` shows in a single line."""


def job_event(
    job: str, namespace: str, uid: str, *, reason: str, message: str, at: float, warns: bool = False
) -> dict[str, Any]:
    """Make an event. ``uid``: the StatefulSet's; ``reason``: one word; ``at``: seconds since the epoch."""
    written = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))
    owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": job, "namespace": namespace, "uid": uid}
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": f"{job}.", "namespace": namespace},
        "involvedObject": owner,
        "type": "Warning" if warns else "Normal",
        "reason": reason,
        "message": clipped(message, _MOST_CHARACTERS),
        "source": {"component": "dlrover-lite"},
        "firstTimestamp": written,
        "lastTimestamp": written,
        "count": 1,
    }
