"""The only directory of a pod that can be written to: what else wants a home or a place for temporary files finds it there."""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping
from pathlib import Path

from dlrover_lite.core.files.durable import make_private

__all__ = ["make_places", "scratch_variables"]

_PLACES = {
    "TMPDIR": "tmp",
    "NUMBA_CACHE_DIR": "numba",
    "XDG_CACHE_HOME": "cache",
    "XDG_CONFIG_HOME": "config",
    "XDG_DATA_HOME": "data",
    "XDG_STATE_HOME": "state",
}


def scratch_variables(environment: Mapping[str, str], scratch: Path, *, home_is_usable: bool) -> dict[str, str]:
    """Return the variables that the environment lacks, so that a process of any user, with or without a home, writes below ``scratch``."""
    missing = {name: str(scratch / place) for name, place in _PLACES.items() if not environment.get(name)}
    if not home_is_usable:
        missing["HOME"] = str(scratch)
    return missing


def make_places(scratch: Path) -> None:
    """Complete this process's environment, and make the directories below ``scratch`` that it names. Raises OSError."""
    home = os.environ.get("HOME", "")
    os.environ.update(
        scratch_variables(os.environ, scratch, home_is_usable=bool(home) and os.access(home, os.W_OK | os.X_OK))
    )
    try:
        pwd.getpwuid(os.geteuid())
    except KeyError:  # libraries that ask for the user's name look here first
        os.environ.setdefault("LOGNAME", str(os.geteuid()))
    for name in _PLACES:
        place = Path(os.environ[name])
        if place.is_relative_to(scratch) and place != scratch and name != "NUMBA_CACHE_DIR":  # made with kernels in it
            make_private(place)
