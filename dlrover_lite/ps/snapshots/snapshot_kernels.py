"""What ``snapshot_reader`` does with records, compiled: each that is wanted is copied once, to where it is written from.

A persister has it only if its server had: to import numba for it would take more memory than the part.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dlrover_lite.checkpoint.buckets import Buckets
from dlrover_lite.checkpoint.layout import BUCKET_SHIFT
from dlrover_lite.core.kernels.compile import kernel
from dlrover_lite.core.records import EPOCH_BITS, EPOCH_MASK, HASH_HIGH, TABLE_EPOCH
from dlrover_lite.core.slot_sets import SLOTS, SlotSet
from dlrover_lite.ps.tables.copy_values import copy_values
from dlrover_lite.tables.hashing import SLOT_SHIFT

__all__ = ["compile_kernels", "scatter"]

_U0, _U1 = np.uint64(0), np.uint64(1)
_SLOT_SHIFT, _TO_BUCKET = np.uint64(SLOT_SHIFT - 32), np.uint64(BUCKET_SHIFT)


@kernel
def _scatter(source, first, stride, at, chosen, since, owned, whole, memory, offsets, used, capacity, words):  # type: ignore[no-untyped-def]
    """Do what ``scatter`` does; return the next record, and how many were put."""
    n, put = np.uint64(chosen.shape[0]), _U0
    while at < n:
        record = at * stride + first
        at += _U1
        table_epoch = source[record + TABLE_EPOCH]
        if not chosen[at - _U1] or table_epoch >> EPOCH_BITS == np.uint32(0):
            continue
        slot = np.uint64(source[record + HASH_HIGH]) >> _SLOT_SHIFT
        if not owned[slot] or not (table_epoch & EPOCH_MASK > since or whole[slot]):
            continue
        bucket = slot >> _TO_BUCKET
        k = used[bucket]
        copy_values(memory, offsets[bucket] + k * words, source, record, words)
        used[bucket] = k + _U1
        put += _U1
        if k + _U1 == capacity:
            break
    return at, put


def scatter(
    records: NDArray[np.uint32],
    first: int,
    at: int,
    chosen: NDArray[np.bool_],
    since: int,
    owned: SlotSet,
    whole: SlotSet,
    buckets: Buckets,
) -> tuple[int, int]:
    """Put the ``chosen`` of these records, from ``at`` on, that are live and wanted each into the bucket of its slot, until one is full.

    ``records`` [n, stride], each from the word ``first`` on. Wanted are those of the slots ``owned`` that are of an epoch after ``since``,
    or in a slot of ``whole``. Returns the next record, and how many were put."""
    following, put = _scatter(
        records.reshape(-1),
        np.uint64(first),
        np.uint64(records.shape[1]),
        np.uint64(at),
        chosen,
        np.uint32(since),
        owned,
        whole,
        buckets.memory,
        buckets.offsets,
        buckets.used,
        np.uint64(buckets.capacity),
        np.uint64(buckets.words),
    )
    return int(following), int(put)


def compile_kernels() -> None:
    """Compile the kernels, before processes are forked that need them."""
    every = np.ones(SLOTS, np.bool_)
    scatter(np.zeros((1, 4), np.uint32), 0, 0, np.ones(1, np.bool_), 0, every, every, Buckets(4, 1, 0))
