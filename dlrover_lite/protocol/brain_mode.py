"""Whom a job's master asks for advice."""

from __future__ import annotations

import os
from typing import Literal, get_args

from dlrover_lite.core.errors import UsageError

BRAIN_VARIABLE = "DLROVER_LITE_BRAIN"
BRAIN_ADDRESS_VARIABLE, BRAIN_KEY_VARIABLE = "DLROVER_LITE_BRAIN_ADDRESS", "DLROVER_LITE_BRAIN_KEY_FILE"
"""Say, in the environment of a master, where the brain listens that its job shares with others of a cluster, and which file has the key of
that brain."""
BrainMode = Literal["daemon", "embedded", "off"]
"""Whom a job asks: one brain for all of the user's jobs; one in each job's master; none, which keeps no history either."""


def brain_mode(chosen: BrainMode | None = None) -> BrainMode:
    """Return what was chosen, or else the environment's DLROVER_LITE_BRAIN, or else the daemon. Raises UsageError for another word
    there."""
    if chosen is not None:
        return chosen
    word = os.environ.get(BRAIN_VARIABLE, "") or "daemon"
    for mode in get_args(BrainMode):
        if word == mode:
            return mode  # type: ignore[no-any-return]
    raise UsageError(f"{BRAIN_VARIABLE} is {word!r}", hint=f"It may be {', '.join(get_args(BrainMode))}, or not set.")
