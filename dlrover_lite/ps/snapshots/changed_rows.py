"""Which rows of a group had changed before the persister copied them, and which entries of the spill are these rows as they were."""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

from dlrover_lite.core.errors import JobError

__all__ = ["LateRows"]


class LateRows:
    """Rows below ``at`` have been looked at. Those of them that were *late* are in the spill, each exactly once, or have been taken from
    there; so are those further on that have changed by now, which are going to be late. Other entries are of rows that changed after they
    had been copied: nothing of them is missing."""

    def __init__(self, dim: int) -> None:
        self._dim = dim
        self.at = 0
        self._recent: deque[tuple[int, NDArray[np.int64]]] = deque()
        """Late rows, and the number of entries that there were when they were seen to be late: theirs are among them."""
        self._late, self._found = [0, 0], [0, 0]
        """Number of rows, and sum of their numbers: of the late ones, and of those found in the spill."""

    def looked_at(self, stop: int, late: NDArray[np.int64], entries: int) -> None:
        """Note that rows up to ``stop`` have been looked at, and which of them were late. ``entries``: number of entries in the spill by
        then."""
        self.at = stop
        if len(late):
            self._recent.append((entries, late))
            _add(self._late, late)

    def chosen(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return for entries of these rows whether they, and nothing else, hold the rows as they were when the snapshot began."""
        found = rows >= self.at
        if not found.all() and self._recent:
            behind = np.flatnonzero(~found)
            late = np.concatenate([late for _, late in self._recent])
            found[behind] = np.isin(rows[behind], late)
        _add(self._found, rows[found])
        return found

    def taken(self, entries: int) -> bool:
        """Note that ``entries`` entries have been taken by now. Returns True if all late rows must be among them."""
        while self._recent and self._recent[0][0] <= entries:
            self._recent.popleft()
        return not self._recent

    def check(self) -> None:
        """Check that exactly the late rows were in the spill: when all rows have been looked at, and all entries been taken that there were
        then. Raises JobError."""
        if self._late != self._found:
            raise JobError(
                f"a snapshot isn't whole: {self._late[0]} rows of dim {self._dim} had changed before they were copied, and "
                f"{self._found[0]} of them, or others, were in the spill",
                hint="This is a bug of dlrover-lite: please report it. The checkpoints before are not affected.",
            )


def _add(to: list[int], rows: NDArray[np.int64]) -> None:
    to[0] += len(rows)
    to[1] += int(rows.sum())
