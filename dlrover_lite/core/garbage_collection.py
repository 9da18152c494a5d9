"""Python's search for garbage in cycles, in processes that keep millions of objects and leave few cycles."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["infrequent_garbage_collection"]

_THRESHOLDS = (50_000, 20, 50)
"""Number of new objects after which they are looked at, and numbers of such looks after which older ones are, too. With Python's own, which
are 700, 10 and 10, the brain's process spends a twentieth of its time so for a thousand jobs, and a tenth of a decision for ten thousand,
and finds next to nothing."""


@contextmanager
def infrequent_garbage_collection() -> Iterator[None]:
    """Look for garbage in cycles more seldom than usual, in the whole process."""
    before = gc.get_threshold()
    gc.set_threshold(*_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
