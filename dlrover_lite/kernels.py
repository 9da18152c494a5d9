"""``@kernel``: numba compilation as this project uses it (GIL released, compiled code cached where a cache can be written)."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any


@cache
def _cache_is_writable() -> bool:
    """Points numba at our own cache directory; False where none can be written (kernels then compile in memory)."""
    if "NUMBA_CACHE_DIR" not in os.environ:
        from dlrover_lite.jobs.paths import cache_directory

        os.environ["NUMBA_CACHE_DIR"] = str(cache_directory() / "kernels")
    directory = Path(os.environ["NUMBA_CACHE_DIR"])
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            return True
    except OSError:
        return False


def kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile ``function`` on first use. Inside, arrays are not bounds-checked: callers check lengths."""
    usable = _cache_is_writable()  # first: numba reads NUMBA_CACHE_DIR when it is imported
    import numba

    return numba.njit(nogil=True, cache=usable, error_model="numpy")(function)
