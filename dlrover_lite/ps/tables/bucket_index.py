"""The index of a table group: from a key's hash to the number of its row, in 64-byte buckets. It takes 6 to 7 bytes a row and grows by an
eighth at a time, without a pause.

A bucket is a cache line with room for 12 entries: their row numbers + 1 (uint32 [12], 0: free), a fingerprint of 8 bits each (uint8
[12], 0: free), and how many entries of this bucket or one before it had to go to one behind (uint32), as in Folly's F14. A look-up reads
the key's home bucket, and goes on to the next one only while that count isn't 0. The record itself tells whether it is the key's. A
removal moves no other entry.

The home of a key is ``low * buckets >> 32`` for the lower 32 bits of its hash (the upper bits are its slot, those between its
fingerprint). It rises with the number of buckets and keeps the order of keys, so the index changes its size in place: bucket by bucket
from the last one down when it grows, from the first one up when it shrinks. On one side of a boundary keys are already where the new
number of buckets has them, on the other side still where the old one does.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dlrover_lite.core.kernels.compile import count_trailing_zeros, kernel, prefetch
from dlrover_lite.core.records import EPOCH_BITS, HASH_HIGH, HASH_LOW, TABLE_EPOCH
from dlrover_lite.ps.memory.aligned_mapping import HUGE_BYTES
from dlrover_lite.ps.memory.arena import Arena, pages

__all__ = [
    "CHUNK",
    "NOWHERE",
    "BucketIndex",
    "Buckets",
    "candidate",
    "enter",
    "enter_all",
    "enter_first",
    "find",
    "index_bytes",
    "is_size",
    "prefetch_bucket",
    "prefetch_home",
    "remove",
    "row_at",
]

CHUNK = 128
"""Keys that go through a kernel together, so that their cache misses overlap."""
ENTRIES = 12
"""Number of entries of a bucket."""
BUCKET_BYTES = 64
NOWHERE = np.uint64((1 << 64) - 1)
"""The position of a key that isn't there."""

_FIRST_BUCKETS = 64
_FULL = 0.84
"""Rows per entry from which the index grows by an eighth; what hasn't changed yet is at 0.945 in the end."""
_CROWDED = 0.95
"""Rows per entry that there are at most, however fast they come: above it the index grows at once."""
_SPARSE = 0.2
"""Rows per entry below which it shrinks."""
_AT_ONCE = 1 << 10
"""Buckets up to which it doubles in one go: a millisecond or less."""

_OLD, _NEW, _BOUNDARY, _SHRINKS = (np.uint64(number) for number in range(4))
_U0, _U1, _U3, _U4, _U6, _U7, _U8 = (np.uint64(n) for n in (0, 1, 3, 4, 6, 7, 8))
_U12, _U15, _U16, _U64 = (np.uint64(n) for n in (12, 15, 16, 64))
_FIRST_FINGERPRINT = np.uint64(48)
_LOW = np.uint64(0xFFFFFFFF)
_HALF, _FINGERPRINT_SHIFT = np.uint64(32), np.uint64(40)
_EACH_BYTE, _TOP_BITS = np.uint64(0x0101010101010101), np.uint64(0x8080808080808080)
_FOUR_TOP_BITS = np.uint64(0x80808080)
_BYTE = np.uint64(255)
_AHEAD = np.uint64(4)
"""Buckets whose rows are fetched ahead of a change of size."""


class Buckets(NamedTuple):
    """The index as kernels take it: the same memory three times, and its numbers."""

    rows: NDArray[np.uint32]
    """[buckets * 16]: row number + 1 of 12 entries, their fingerprints, the count of those that had to go on."""
    words: NDArray[np.uint64]
    fingerprints: NDArray[np.uint8]
    size: NDArray[np.uint64]
    """[4]: buckets before the change of size under way, buckets after it (the same where none is), the boundary, and 1 if it shrinks. The
    new number holds for keys whose lower hash half isn't below the boundary; when it shrinks, for those below."""


@kernel
def _home(key_hash, size):  # type: ignore[no-untyped-def]
    """Return the bucket where a key belongs."""
    low = key_hash & _LOW
    if (low >= size[_BOUNDARY]) != (size[_SHRINKS] != _U0):
        return (low * size[_NEW]) >> _HALF
    return (low * size[_OLD]) >> _HALF


@kernel
def _fingerprint(key_hash):  # type: ignore[no-untyped-def]
    """Return the fingerprint of a hash: 1 to 255."""
    found = (key_hash >> _FINGERPRINT_SHIFT) & _BYTE
    return found if found != _U0 else _BYTE


@kernel
def _matches(words, bucket, pattern):  # type: ignore[no-untyped-def]
    """Return bits 7, 15, … of entries 0 to 7, and of entries 8 to 11, whose fingerprints are those of ``pattern``. The lowest bit of each
    is right; those above may not be."""
    first = words[bucket * _U8 + _U6] ^ pattern
    second = words[bucket * _U8 + _U7] ^ pattern
    return (first - _EACH_BYTE) & ~first & _TOP_BITS, (second - _EACH_BYTE) & ~second & _FOUR_TOP_BITS


@kernel
def prefetch_bucket(key_hash, index):  # type: ignore[no-untyped-def]
    """Prefetch what ``candidate`` and ``find`` read first."""
    prefetch(index.rows, np.int64(_home(key_hash, index.size) * _U16))


@kernel
def candidate(key_hash, index):  # type: ignore[no-untyped-def]
    """Return number + 1 of a row that may be the key's, for its record to be fetched; 0: the key has no row."""
    bucket, pattern = _home(key_hash, index.size), _fingerprint(key_hash) * _EACH_BYTE
    while True:
        first, second = _matches(index.words, bucket, pattern)
        if first != _U0:
            return np.uint64(index.rows[bucket * _U16 + (count_trailing_zeros(first) >> _U3)])
        if second != _U0:
            return np.uint64(index.rows[bucket * _U16 + _U8 + (count_trailing_zeros(second) >> _U3)])
        if index.rows[bucket * _U16 + _U15] == np.uint32(0):
            return _U0
        bucket += _U1


@kernel
def is_row_of(record, row_words, key_hash, table, records):  # type: ignore[no-untyped-def]
    """Return whether the row is the key's."""
    at = record * row_words
    return (
        records[at + HASH_LOW] == np.uint32(key_hash)
        and records[at + HASH_HIGH] == np.uint32(key_hash >> _HALF)
        and records[at + TABLE_EPOCH] >> EPOCH_BITS == np.uint32(table + _U1)
    )


@kernel
def find(key_hash, table, index, records, row_words):  # type: ignore[no-untyped-def]
    """Return the position of the key's entry, or NOWHERE."""
    bucket, pattern = _home(key_hash, index.size), _fingerprint(key_hash) * _EACH_BYTE
    while True:
        first, second = _matches(index.words, bucket, pattern)
        at = bucket * _U16
        while first != _U0 or second != _U0:
            if first != _U0:
                position = at + (count_trailing_zeros(first) >> _U3)
                first &= first - _U1
            else:
                position = at + _U8 + (count_trailing_zeros(second) >> _U3)
                second &= second - _U1
            row = np.uint64(index.rows[position])
            if row != _U0 and is_row_of(row - _U1, row_words, key_hash, table, records):
                return position
        if index.rows[at + _U15] == np.uint32(0):
            return NOWHERE
        bucket += _U1


@kernel
def row_at(position, index):  # type: ignore[no-untyped-def]
    """Return the row of an entry."""
    return np.uint64(index.rows[position]) - _U1


@kernel
def enter(key_hash, row, index):  # type: ignore[no-untyped-def]
    """Enter a key that isn't there yet."""
    bucket = _home(key_hash, index.size)
    while True:
        first, second = _matches(index.words, bucket, _U0)
        if first != _U0 or second != _U0:
            break
        index.rows[bucket * _U16 + _U15] += np.uint32(1)
        bucket += _U1
    entry = count_trailing_zeros(first) >> _U3 if first != _U0 else _U8 + (count_trailing_zeros(second) >> _U3)
    index.rows[bucket * _U16 + entry] = np.uint32(row + _U1)
    index.fingerprints[bucket * _U64 + _FIRST_FINGERPRINT + entry] = np.uint8(_fingerprint(key_hash))


@kernel
def prefetch_home(key_hash, rows, buckets):  # type: ignore[no-untyped-def]
    """Prefetch what ``enter_all`` reads first."""
    prefetch(rows, np.int64((((key_hash & _LOW) * buckets) >> _HALF) * _U16))


@kernel
def enter_all(hashes, new_rows, n, rows, words, fingerprints, buckets):  # type: ignore[no-untyped-def]
    """Enter the first n of these keys, which aren't there yet, into an index of so many buckets whose size isn't about to change. Twice as
    fast as one call for each."""
    for i in range(n):
        bucket = ((hashes[i] & _LOW) * buckets) >> _HALF
        while True:
            first = words[bucket * _U8 + _U6]
            first = (first - _EACH_BYTE) & ~first & _TOP_BITS
            if first != _U0:
                entry = count_trailing_zeros(first) >> _U3
                break
            second = words[bucket * _U8 + _U7]
            second = (second - _EACH_BYTE) & ~second & _FOUR_TOP_BITS
            if second != _U0:
                entry = _U8 + (count_trailing_zeros(second) >> _U3)
                break
            rows[bucket * _U16 + _U15] += np.uint32(1)
            bucket += _U1
        rows[bucket * _U16 + entry] = np.uint32(new_rows[i] + _U1)
        fingerprints[bucket * _U64 + _FIRST_FINGERPRINT + entry] = np.uint8(_fingerprint(hashes[i]))


@kernel
def enter_first(hashes, new_rows, n, rows, fingerprints, buckets, filled):  # type: ignore[no-untyped-def]
    """Enter the first n of these keys as ``enter_all`` does, into an index that this alone has filled. ``filled``: uint8, entries of each
    bucket. No bucket is read, so nothing waits for it to come from memory: twice as fast once more, where they are many."""
    for i in range(n):
        bucket = ((hashes[i] & _LOW) * buckets) >> _HALF
        while filled[bucket] == np.uint8(_U12):
            rows[bucket * _U16 + _U15] += np.uint32(1)
            bucket += _U1
        entry = np.uint64(filled[bucket])
        filled[bucket] += np.uint8(1)
        rows[bucket * _U16 + entry] = np.uint32(new_rows[i] + _U1)
        fingerprints[bucket * _U64 + _FIRST_FINGERPRINT + entry] = np.uint8(_fingerprint(hashes[i]))


@kernel
def remove(key_hash, position, index):  # type: ignore[no-untyped-def]
    """Free the key's entry, which is at ``position``."""
    bucket = position // _U16
    index.rows[position] = np.uint32(0)
    index.fingerprints[bucket * _U64 + _FIRST_FINGERPRINT + position % _U16] = np.uint8(0)
    for passed in range(_home(key_hash, index.size), bucket):
        index.rows[passed * _U16 + _U15] -= np.uint32(1)


@kernel
def _first_low(bucket, buckets):  # type: ignore[no-untyped-def]
    """Return the least lower hash half at home in a bucket, of so many buckets."""
    return ((bucket << _HALF) + buckets - _U1) // buckets


@kernel
def _hash_of(row, records, row_words):  # type: ignore[no-untyped-def]
    return np.uint64(records[row * row_words + HASH_LOW]) | np.uint64(records[row * row_words + HASH_HIGH]) << _HALF


@kernel
def change_size(count, rows, words, fingerprints, size, records, row_words, hashes, entries):  # type: ignore[no-untyped-def]
    """Go on with the change of size under way, by ``count`` buckets at most. ``hashes``, ``entries``: room for all entries that are at home
    in one bucket. Returns the bucket before which it stopped for want of room, or NOWHERE. (Arrays of their own are twice as fast here as
    those of a tuple.)"""
    old, new, shrinks = size[_OLD], size[_NEW], size[_SHRINKS] != _U0
    bucket = (size[_BOUNDARY] * old) >> _HALF  # the one whose keys begin at the boundary
    while count > _U0 and (bucket < old if shrinks else bucket > _U0):
        if not shrinks:
            bucket -= _U1
        ahead = bucket + _AHEAD if shrinks else bucket - min(bucket, _AHEAD)
        if ahead < old:
            for entry in range(_U12):
                row = np.uint64(rows[ahead * _U16 + entry])
                if row != _U0:
                    prefetch(records, np.int64((row - _U1) * row_words))
        first, end = _first_low(bucket, old), _first_low(bucket + _U1, old)
        n, at, goes_on = _U0, bucket, True  # entries that are at home here may be in the buckets behind
        while goes_on:
            goes_on = rows[at * _U16 + _U15] != np.uint32(0)
            for entry in range(_U12):
                row = np.uint64(rows[at * _U16 + entry])
                if row == _U0:
                    continue
                low = np.uint64(records[(row - _U1) * row_words + HASH_LOW])
                if first <= low < end:
                    if n == np.uint64(hashes.shape[0]):
                        return bucket
                    hashes[n] = low | np.uint64(records[(row - _U1) * row_words + HASH_HIGH]) << _HALF
                    entries[n] = at * _U16 + entry
                    n += _U1
            at += _U1
        for i in range(n):
            position = entries[i]
            at = position >> _U4
            entries[i] = np.uint64(rows[position]) - _U1
            rows[position] = np.uint32(0)
            fingerprints[at * _U64 + _FIRST_FINGERPRINT + (position & _U15)] = np.uint8(0)
            for passed in range(bucket, at):
                rows[passed * _U16 + _U15] -= np.uint32(1)
        size[_BOUNDARY] = end if shrinks else first
        enter_all(hashes, entries, n, rows, words, fingerprints, new)  # all of them are on the side of the new size now
        if shrinks:
            bucket += _U1
        count -= _U1
    if (bucket == old) if shrinks else (bucket == _U0):
        size[_OLD], size[_BOUNDARY], size[_SHRINKS] = new, _U0, _U0
    return NOWHERE


@kernel
def count_entries(rows, fingerprints, buckets, used):  # type: ignore[no-untyped-def]
    """Count the entries of an index of so many buckets, and of those behind where they went on to; NOWHERE if one of them is of no row
    below ``used``, or has no fingerprint, or if they go on to where there is nothing."""
    n, bucket, goes_on = _U0, _U0, False
    while bucket < buckets or goes_on:
        at = bucket * _U16
        if at >= np.uint64(rows.shape[0]):
            return NOWHERE
        for entry in range(_U12):
            row = np.uint64(rows[at + entry])
            if (row != _U0) != (fingerprints[bucket * _U64 + _FIRST_FINGERPRINT + entry] != np.uint8(0)) or row > used:
                return NOWHERE
            n += np.uint64(row != _U0)
        goes_on = rows[at + _U15] != np.uint32(0)
        bucket += _U1
    return n


class BucketIndex:
    """The index of the rows in ``records`` (uint32, flat, ``row_words`` each). Kernels change what is in ``buckets``; its sizes are changed
    here. ``capacity``: rows that there may be.

    ``memory``, ``size`` and ``indexed`` may outlive the process: ``index_bytes`` of memory, ``Buckets.size``, and a word [1] that is set
    to 0 here before the size changes. Zeros in ``size``: nothing is there yet.
    """

    def __init__(
        self,
        records: NDArray[np.uint32],
        row_words: int,
        capacity: int,
        *,
        memory: Arena | None = None,
        size: NDArray[np.uint64] | None = None,
        indexed: NDArray[np.uint64] | None = None,
    ) -> None:
        self._records, self._row_words = records, np.uint64(row_words)
        self._memory = memory or Arena("index", index_bytes(capacity))
        size = np.zeros(4, np.uint64) if size is None else size
        self._indexed = np.zeros(1, np.uint64) if indexed is None else indexed
        if not size[_OLD]:
            size[:] = _FIRST_BUCKETS, _FIRST_BUCKETS, 0, 0
        data = self._memory.bytes[: self._memory.size // BUCKET_BYTES * BUCKET_BYTES]
        self.buckets = Buckets(data.view(np.uint32), data.view(np.uint64), data, size)
        self._untouched = 0
        """Byte up to which there is no memory yet for buckets that the growth under way adds; 0: there is, or nobody knows."""
        self._hashes, self._rows = np.empty(CHUNK, np.uint64), np.empty(CHUNK, np.uint64)
        self._more = 0
        """Number of rows for which there had to be room last: as many may be asked for next."""

    @property
    def size(self) -> int:
        """Number of buckets when no change of size is under way any more."""
        return int(self.buckets.size[_NEW])

    @property
    def changing(self) -> bool:
        """Whether a change of size is under way."""
        return bool(self.buckets.size[_OLD] != self.buckets.size[_NEW])

    @property
    def bytes(self) -> int:
        """Bytes of memory that it takes."""
        return BUCKET_BYTES * int(self.buckets.size[:2].max())

    def entries(self, used: int) -> int | None:
        """Count the entries; None if they can't be those of rows below ``used``."""
        found = int(
            count_entries(self.buckets.rows, self.buckets.fingerprints, self.buckets.size[:2].max(), np.uint64(used))
        )
        return None if found == NOWHERE else found

    def filled(self, rows: int) -> NDArray[np.uint8]:
        """Return zeros for ``enter_first``: of each bucket that so many rows may be in."""
        return np.zeros(self.size + rows // ENTRIES + 2, np.uint8)

    def make_room(self, rows: int, more: int = 0) -> None:
        """Have room for ``rows`` and so many more, right now."""
        self._more = more
        rows += more
        if rows > int(self.buckets.size[:2].min()) * ENTRIES * _CROWDED:
            self._finish()
            if rows > self._full():
                self._begin(_buckets_for(rows))
                self._finish()

    def reserve(self, rows: int) -> None:
        """Begin to grow if so many rows in all take a larger index. Where there is hardly anything yet, all of its memory is touched with
        the first rows that come: a server without rows holds nobody up."""
        if rows > self._full() and not self.changing:
            self._begin(_buckets_for(rows))

    def advance(self, new_rows: int, rows: int) -> None:
        """Go on with a change of size, or begin one, beside ``new_rows`` that have come; ``rows``: all there are."""
        if not self.changing and rows > self._full():
            now = self.size
            self._begin(2 * now if now <= _AT_ONCE else now + now // 8)
        if self.changing:
            self._change(
                self.size if self.size <= 2 * _AT_ONCE else share_of(self._left(), new_rows, self._rows_left(rows))
            )

    def shrink(self, buckets: int, rows: int) -> bool:
        """Go on to shrink an index that is far too large for so many rows, by so many buckets. True if there is no more to do."""
        if not self.changing and self._is_sparse(rows):
            self._begin(_buckets_for(rows))
        if self.changing and self._change(buckets):
            self._give_back()
        return not self.changing and not self._is_sparse(rows)  # it may have been about to grow until now

    def _is_sparse(self, rows: int) -> bool:
        return rows < self.size * ENTRIES * _SPARSE and _buckets_for(rows) < self.size

    def _full(self) -> int:
        """Return the number of rows from which it is to grow."""
        return int(self.size * ENTRIES * _FULL)

    def _left(self) -> int:
        """Return the number of buckets that the change of size under way has still to go through."""
        old, _, boundary, shrinks = self.buckets.size.tolist()
        changed = boundary * old >> 32
        return int(old - changed if shrinks else changed)

    def _rows_left(self, rows: int) -> int:
        """Return how many rows may still come before the change of size under way has to be over: the next growth is due, or what hasn't
        changed yet is crowded."""
        least, most = sorted(self.buckets.size[:2].tolist())
        return int(min(_FULL * ENTRIES * most, _CROWDED * ENTRIES * least - self._more)) - rows

    def _begin(self, buckets: int) -> None:
        size, now = self.buckets.size, self.size
        self._indexed[0] = 0
        self._untouched = pages(buckets * BUCKET_BYTES) if buckets > now else 0
        size[_NEW], size[_SHRINKS] = buckets, buckets < now
        size[_BOUNDARY] = 0 if buckets < now else 1 << 32

    def _finish(self) -> None:
        if self.changing:
            self._change(int(self.buckets.size[_OLD]))

    def _change(self, buckets: int) -> bool:
        """Go on with a change of size by so many buckets; return whether it is over."""
        count, stopped = np.uint64(buckets), None
        self._indexed[0] = 0
        self._touch(buckets)
        while stopped != NOWHERE:
            stopped = change_size(count, *self.buckets, self._records, self._row_words, self._hashes, self._rows)
            if stopped != NOWHERE:  # more keys are at home in one bucket than there is room for
                self._hashes, self._rows = (np.empty(2 * len(self._rows), np.uint64) for _ in range(2))
        return not self.changing

    def _touch(self, buckets: int) -> None:
        """Have memory for where the entries of so many buckets go in the growth under way: behind the last bucket of before, from the end
        on, in blocks that can be huge pages."""
        old, new, boundary, _ = self.buckets.size.tolist()
        lowest = max(0, (boundary * old >> 32) - buckets) * new // old
        start = max(old, lowest) * BUCKET_BYTES
        while self._untouched > start:
            block = max((self._untouched - 1) // HUGE_BYTES * HUGE_BYTES, old * BUCKET_BYTES)
            self._memory.touch(block, self._untouched)
            self._untouched = block if block > old * BUCKET_BYTES else 0

    def _give_back(self) -> None:
        """Give back the memory of buckets behind the last one."""
        end, rows = self.size - 1, self.buckets.rows
        while rows[16 * end + 15]:
            end += 1
        self._memory.give_back((end + 1) * BUCKET_BYTES, self._memory.size)


def index_bytes(capacity: int) -> int:
    """Tell how many bytes of address space the index of so many rows may take."""
    return _most_buckets(capacity) * BUCKET_BYTES


def _most_buckets(capacity: int) -> int:
    # A key is never further behind its home than all entries would fill.
    return _buckets_for(capacity) + capacity // ENTRIES + 2


def is_size(size: NDArray[np.uint64], capacity: int) -> bool:
    """Say whether this can be the ``Buckets.size`` of an index for so many rows."""
    old, new, boundary, shrinks = (int(word) for word in size)
    least, most = min(old, new), max(old, new)
    return _FIRST_BUCKETS <= least <= most <= _most_buckets(capacity) and boundary <= 1 << 32 and shrinks <= 1


def share_of(left: int, new_rows: int, rows_left: int) -> int:
    """Return how many of the buckets that are left change beside these new rows, so that as many more have the same of it to do and none
    has more."""
    return 1 + left * new_rows // max(1, new_rows + max(0, rows_left))


def _buckets_for(rows: int) -> int:
    """Return the lowest number of buckets that needn't grow with so many rows."""
    return max(_FIRST_BUCKETS, int(rows / (ENTRIES * _FULL)) + 1)
