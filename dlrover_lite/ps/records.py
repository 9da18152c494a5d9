"""How the row of an embedding lies in memory: one record of 4-byte words, so that whoever touches a row touches neighbouring cache lines
of one page (docs/decisions/0013-records.md).

::

    word 0, 1   the key's 64-bit hash, its lower half first
    word 2      the row's table + 1 (upper 12 bits; 0: the record is free), and the epoch of its last change (lower 20 bits)
    then        count of updates, where the group counts them
    then        values (float32 [dim]), state of the optimizer (float32 [dim x parts])

The id isn't kept: ``unmix64(hash) ^ salt of the table`` is it, since ``mix64`` is a bijection.
"""

from __future__ import annotations

import numpy as np

__all__ = ["EPOCH_BITS", "EPOCH_MASK", "HASH_HIGH", "HASH_LOW", "HEAD_WORDS", "TABLES_MOST", "TABLE_EPOCH"]

HASH_LOW, HASH_HIGH, TABLE_EPOCH = (np.uint64(word) for word in range(3))
"""Words of a record's head."""
HEAD_WORDS = 3
EPOCH_BITS = np.uint32(20)
EPOCH_MASK = np.uint32((1 << 20) - 1)
TABLES_MOST = (1 << 12) - 1
"""Tables of one dim."""
