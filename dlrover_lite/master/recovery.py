"""What a manifest says beside the ledger, so that a job that is resumed knows it again."""

from __future__ import annotations

from typing import Any

import msgspec

from dlrover_lite.master.progress import Evaluations, Progress
from dlrover_lite.wire.messages import to_builtins

__all__ = ["facts_for"]


def facts_for(progress: Progress, evaluations: Evaluations) -> dict[str, Any]:
    """Of the master as it is now, as JSON has it."""
    return {
        "progress": msgspec.to_builtins(progress.counters(), str_keys=True),
        "evaluations": [to_builtins(result) for result in evaluations.results],
    }
