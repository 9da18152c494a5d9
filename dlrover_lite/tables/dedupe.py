"""De-duplication of ids, table by table."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dlrover_lite.core.kernels.compile import kernel
from dlrover_lite.tables.hashing import mix64

_U1 = np.uint64(1)


@kernel
def _unique(keys, counts, slots, unique, unique_counts, inverse):  # type: ignore[no-untyped-def]
    """Find the distinct keys of each run in order of first appearance; ``slots`` is scratch: int32, -1 everywhere before and after."""
    mask = np.uint64(slots.shape[0] - 1)
    start = np.uint64(0)
    total = np.int32(0)
    for t in range(counts.shape[0]):
        first = total
        end = start + np.uint64(counts[t])
        for i in range(start, end):
            key = keys[i]
            position = mix64(key) & mask
            while True:
                at = slots[position]
                if at < 0:
                    slots[position] = total
                    unique[np.uint64(total)] = key
                    inverse[i] = total
                    total += np.int32(1)
                    break
                if unique[np.uint64(at)] == key:
                    inverse[i] = at
                    break
                position = (position + _U1) & mask
        for i in range(np.uint64(first), np.uint64(total)):
            # leave the scratch clean for the next table: every entry of this run is on the probe path of one of its keys
            position = mix64(unique[i]) & mask
            while slots[position] >= 0:
                slots[position] = np.int32(-1)
                position = (position + _U1) & mask
        unique_counts[t] = total - first
        start = end
    return total


class Deduplicator:
    """Finds distinct keys. Keeps its scratch memory between calls."""

    def __init__(self) -> None:
        self._slots = np.full(1 << 12, -1, np.int32)

    def unique(
        self, keys: NDArray[np.uint64], counts: NDArray[np.int64]
    ) -> tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.int32]]:
        """``keys`` [n] are runs of length ``counts`` (one a table). Returns the distinct keys of each run, their counts a run, and
        for each key its position among them [n]."""
        longest = int(counts.max(initial=0))
        if longest * 2 > len(self._slots):
            self._slots = np.full(1 << (longest * 2 - 1).bit_length(), -1, np.int32)
        unique = np.empty(len(keys), np.uint64)
        unique_counts = np.empty_like(counts)
        inverse = np.empty(len(keys), np.int32)
        total = int(_unique(keys, counts, self._slots, unique, unique_counts, inverse))
        return unique[:total], unique_counts, inverse
