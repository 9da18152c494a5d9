"""Where things are kept: state and cache directories of the platform, all moved by ``DLROVER_LITE_HOME``."""

from __future__ import annotations

import os
from pathlib import Path


def _home() -> Path | None:
    home = os.environ.get("DLROVER_LITE_HOME")
    return Path(home).expanduser().absolute() if home else None


def state_directory() -> Path:
    """Jobs and everything worth keeping; XDG_STATE_HOME/dlrover-lite unless DLROVER_LITE_HOME says otherwise."""
    if home := _home():
        return home / "state"
    from platformdirs import user_state_path

    return user_state_path("dlrover-lite", appauthor=False)


def cache_directory() -> Path:
    """What can be made again: offset indexes, transcoded files, compiled kernels."""
    if home := _home():
        return home / "cache"
    from platformdirs import user_cache_path

    return user_cache_path("dlrover-lite", appauthor=False)
