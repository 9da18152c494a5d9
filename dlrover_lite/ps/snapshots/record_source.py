"""A group's records in a parameter server's memory, as another process reads them while they change."""

from __future__ import annotations

import os

import numpy as np
from numpy.typing import NDArray

from dlrover_lite.core.errors import JobError

__all__ = ["RecordSource"]


class RecordSource:
    """``fd``: the file of the arena. It is read, not mapped: that takes no page faults, and no memory that would count as this
    process's too."""

    def __init__(self, fd: int, words: int, most: int) -> None:
        """Set the ``words`` of a record, and the maximum number of records that are read at once."""
        self._fd = fd
        self._room = np.empty((most, words), np.uint32)

    def read(self, start: int, count: int) -> NDArray[np.uint32]:
        """Return records [count, words] from row number ``start`` on. They hold until the next call."""
        found = self._room[:count]
        left, at = found.reshape(-1).data.cast("B"), start * self._room.shape[1] * 4
        while left:
            done = os.preadv(self._fd, [left], at)
            if not done:
                raise JobError("the memory of the parameter server is smaller than its rows")
            left, at = left[done:], at + done
        return found
