"""What a table group knows of each slot: whether it is owned or tracked, its live rows, and how often it was asked for; and of each table,
its live rows.

Every key of every request has its slot's flags looked at, in 4 KiB that stay in the first cache. Counting costs more than that, so of large
requests one in 16 is counted, as if it were 16: less than 1% of the time of a look-up, where counting all of them took 5%.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dlrover_lite.core.kernels.compile import kernel
from dlrover_lite.core.slot_sets import SLOTS, SlotSet
from dlrover_lite.ps.tables.row_arrays import BOOL, as_input
from dlrover_lite.tables.hashing import SLOT_SHIFT, mix64

__all__ = ["OWNED", "TABLE_ROWS", "TRACKED", "Counters", "SlotBook", "as_members", "flags_of", "hash_owned"]

OWNED, TRACKED = np.uint8(1), np.uint8(2)
TABLE_ROWS = np.uint64(SLOTS)
"""Position in ``SlotBook.row_counts`` from which on those of tables are."""

_SMALL = 512
"""Maximum number of keys of a request that is always counted."""
_ONE_IN = 16
_SHIFT = np.uint64(SLOT_SHIFT)
_GOLDEN, _WORD = 0x9E3779B97F4A7C15, (1 << 64) - 1


class Counters(NamedTuple):
    """Counts by slot since they were taken last: int64 [4096] each. Exact for requests of up to 512 keys, estimates for larger ones."""

    requests: NDArray[np.int64]
    """Number of gathers and updates that touched the slot."""
    gathered: NDArray[np.int64]
    """Number of rows gathered."""
    updated: NDArray[np.int64]
    """Number of rows updated."""


@kernel
def flags_of(key_hash, flags):  # type: ignore[no-untyped-def]
    """Return the flags of the slot that a key is in."""
    return flags[key_hash >> _SHIFT]


@kernel
def hash_owned(keys, counts, salts, flags, hashes):  # type: ignore[no-untyped-def]
    """Write the hashes of ``keys`` into ``hashes``; return whether all their slots are owned."""
    start = np.uint64(0)
    common = OWNED
    for t in range(np.uint64(counts.shape[0])):
        end = start + np.uint64(counts[t])
        salt = salts[t]
        for i in range(start, end):
            key_hash = mix64(keys[i] ^ salt)
            hashes[i] = key_hash
            common &= flags[key_hash >> _SHIFT]
        start = end
    return common != np.uint8(0)


@kernel
def _count(keys, counts, salts, weight, request, stamps, requests, rows):  # type: ignore[no-untyped-def]
    """Add ``weight`` to ``rows`` of each key's slot, and to ``requests`` where the slot's stamp isn't this ``request`` yet."""
    start = np.uint64(0)
    for t in range(np.uint64(counts.shape[0])):
        end = start + np.uint64(counts[t])
        for i in range(start, end):
            slot = mix64(keys[i] ^ salts[t]) >> _SHIFT
            rows[slot] += weight
            if stamps[slot] != request:
                stamps[slot] = request
                requests[slot] += weight
        start = end


def as_members(slots: SlotSet) -> SlotSet:
    """Return a set of slots as kernels take it. Raises ValueError for another shape."""
    if slots.shape != (SLOTS,):
        raise ValueError(f"a set of slots of shape {slots.shape}")
    return as_input(slots, BOOL)


class SlotBook:
    """What is known of each slot. All slots are owned at first, and none is tracked. Arrays are [4096] where nothing else is said."""

    def __init__(self, row_counts: NDArray[np.int64]) -> None:
        self.row_counts = row_counts
        """Live rows of each slot, then of each table of the group: one array, since kernels are slower with each one more."""
        self.flags = np.full(SLOTS, OWNED, np.uint8)
        self._requests, self._gathered, self._updated = (np.zeros(SLOTS, np.int64) for _ in range(3))
        self._stamps = np.zeros(SLOTS, np.int64)
        self._request = 0

    def flag(self, flag: np.uint8, members: SlotSet) -> None:
        """Set the flag for these slots, and take it from all others."""
        self.flags[:] = np.where(members, self.flags | flag, self.flags & ~flag)

    def flagged(self, flag: np.uint8) -> SlotSet:
        members: SlotSet = (self.flags & flag) != 0
        return members

    def count(
        self, keys: NDArray[np.uint64], counts: NDArray[np.int64], salts: NDArray[np.uint64], *, updated: bool
    ) -> None:
        """Count a request that has gathered or updated these keys."""
        self._request += 1
        weight = 1
        if len(keys) > _SMALL:
            # which ones follows no period that the requests could have too
            if ((self._request * _GOLDEN) & _WORD) >> 32 & (_ONE_IN - 1):
                return
            weight = _ONE_IN
        rows = self._updated if updated else self._gathered
        _count(keys, counts, salts, weight, self._request, self._stamps, self._requests, rows)

    def take(self) -> Counters:
        """Return what was counted since the last call."""
        counters = Counters(self._requests.copy(), self._gathered.copy(), self._updated.copy())
        for counter in counters._fields:
            getattr(self, f"_{counter}")[:] = 0
        return counters
