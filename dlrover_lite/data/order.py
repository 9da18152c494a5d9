"""The seeded order of an epoch: blocks shuffled, then samples within a block. A pure function of its arguments.

Any process can compute any stretch of it without the rest, and reading stays within one block for many minibatches.
It is made of MurmurHash3 finalizers and a sort, so it doesn't depend on a library's random numbers.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

__all__ = ["BLOCK_SIZE", "EpochOrder", "minibatch_count"]

BLOCK_SIZE = 32_768


def minibatch_count(samples: int, batch_size: int) -> int:
    """Return the number of minibatches in an epoch's grid; the last one may be short."""
    return -(-samples // batch_size)


class EpochOrder:
    """A permutation of ``range(samples)``; with ``shuffle=False`` the identity."""

    def __init__(self, samples: int, seed: int, epoch: int, shuffle: bool = True, block_size: int = BLOCK_SIZE) -> None:
        if samples < 0 or block_size < 1:
            raise ValueError(f"samples={samples} must be at least 0, block_size={block_size} at least 1")
        self.samples = samples
        self._seed = seed
        self._epoch = epoch
        self._block_size = block_size
        self._shuffle = shuffle
        self._recent: list[tuple[int, NDArray[np.int64]]] = []
        if shuffle:
            blocks = minibatch_count(samples, block_size)
            self._blocks = _permutation(blocks, f"{seed}/{epoch}")
            # The last block may be short: positions after its place in the order come earlier by what it lacks.
            self._short_place = int(np.flatnonzero(self._blocks == blocks - 1)[0]) if blocks else 0
            self._lacking = blocks * block_size - samples

    def numbers(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return sample numbers at positions [start, stop) of the order: int64 [stop - start]."""
        if not 0 <= start <= stop <= self.samples:
            raise ValueError(f"positions [{start}, {stop}) are not within the epoch's {self.samples} samples")
        if not self._shuffle or start == stop:
            return np.arange(start, stop, dtype=np.int64)
        parts = []
        place = self._place(start)
        while start < stop:
            first = self._first_position(place)
            numbers = self._block(int(self._blocks[place]))
            parts.append(numbers[start - first : stop - first])
            start = first + len(numbers)
            place += 1
        return np.concatenate(parts)

    def blocks(self, start: int, stop: int) -> list[range]:
        """Return the blocks of samples, as they lie in the files, that hold positions [start, stop) of the order. Costs nothing."""
        if not self._shuffle or start >= stop:
            return [range(start, stop)] if start < stop else []
        found = []
        place = self._place(start)
        while start < stop:
            first = int(self._blocks[place]) * self._block_size
            found.append(range(first, min(first + self._block_size, self.samples)))
            start = self._first_position(place) + len(found[-1])
            place += 1
        return found

    def _first_position(self, place: int) -> int:
        return place * self._block_size - (self._lacking if place > self._short_place else 0)

    def _place(self, position: int) -> int:
        """Return which place of the block order holds ``position``."""
        if position < self._first_position(self._short_place + 1):
            return position // self._block_size
        return (position + self._lacking) // self._block_size

    def _block(self, block: int) -> NDArray[np.int64]:
        """Return the sample numbers of one block in their order; the two blocks used last are kept."""
        for known, numbers in self._recent:
            if known == block:
                return numbers
        first = block * self._block_size
        count = min(self._block_size, self.samples - first)
        numbers = first + _permutation(count, f"{self._seed}/{self._epoch}/{block}")
        self._recent = [*self._recent[-1:], (block, numbers)]
        return numbers


def _permutation(count: int, name: str) -> NDArray[np.int64]:
    """Return a permutation of ``range(count)`` by ``name``: the order of the hashes, all different, of 1..count."""
    salt = np.uint64(int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little"))
    keys = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + salt
    keys ^= keys >> np.uint64(33)
    keys *= np.uint64(0xFF51AFD7ED558CCD)
    keys ^= keys >> np.uint64(33)
    keys *= np.uint64(0xC4CEB9FE1A85EC53)
    keys ^= keys >> np.uint64(33)
    return np.argsort(keys).astype(np.int64, copy=False)
