"""Order between what this process reads and writes in memory that another one has too."""

from __future__ import annotations

import platform
import threading

__all__ = ["barrier"]

_IN_ORDER = platform.machine().lower() in ("x86_64", "amd64", "i686")
"""Loads aren't reordered with loads there, nor stores with earlier loads or stores; and Python's compiler reorders nothing."""

_lock = threading.Lock()
_lock.acquire()


def barrier() -> None:
    """Loads before it are done before loads and stores after it, stores before it before stores after it. For one thread at a time.

    Elsewhere than on x86 a lock does it: releasing it waits for all that comes before, nothing that comes after taking it begins
    earlier, and the two stay in their order.
    """
    if not _IN_ORDER:
        _lock.release()
        _lock.acquire()
