"""Where things are kept: state and cache directories of the platform, all moved by ``DLROVER_LITE_HOME``; and this package itself."""

from __future__ import annotations

import os
from pathlib import Path

from dlrover_lite.core.files.durable import make_private


def _home() -> Path | None:
    home = os.environ.get("DLROVER_LITE_HOME")
    return Path(home).expanduser().absolute() if home else None


def state_directory() -> Path:
    """Return the directory of jobs and everything worth keeping; XDG_STATE_HOME/dlrover-lite unless DLROVER_LITE_HOME says otherwise."""
    if home := _home():
        return home / "state"
    from platformdirs import user_state_path

    return user_state_path("dlrover-lite", appauthor=False)


def cache_directory() -> Path:
    """Return the directory of what can be made again: offset indexes, transcoded files, compiled kernels."""
    if home := _home():
        return home / "cache"
    from platformdirs import user_cache_path

    return user_cache_path("dlrover-lite", appauthor=False)


def brain_database() -> Path:
    """Return the path of the brain's database."""
    return state_directory() / "brain" / "brain.sqlite"


def make_state(*names: str) -> Path:
    """Make the state directory and, one in the other, directories in it, each for this user alone; return the last one. Raises OSError."""
    return _make(state_directory(), names)


def make_cache(*names: str) -> Path:
    """Make the cache directory and directories in it, as ``make_state`` does. Raises OSError."""
    return _make(cache_directory(), names)


def _make(directory: Path, names: tuple[str, ...]) -> Path:
    make_private(directory)
    for name in names:
        directory /= name
        make_private(directory)
    return directory


def python_environment() -> dict[str, str]:
    """Return the environment for a Python of ours: this process's, and where this package is found if it isn't installed but on our path by
    other means."""
    import sysconfig

    package_root = str(Path(__file__).parents[3])
    if package_root in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        return dict(os.environ)
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if package_root not in paths:
        paths.append(package_root)
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
