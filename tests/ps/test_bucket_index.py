"""The index in buckets, against a dictionary: whatever comes and goes, and whatever size it is about to have."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from dlrover_lite.core.kernels.compile import kernel
from dlrover_lite.core.records import EPOCH_BITS, HASH_HIGH, HASH_LOW, TABLE_EPOCH
from dlrover_lite.ps.tables.bucket_index import NOWHERE, BucketIndex, candidate, enter, find, remove, row_at
from dlrover_lite.tables.hashing import mix64

WORDS = 3
Key = tuple[int, int]
"""Hash and table."""


@kernel
def enter_all(hashes, rows, index):  # type: ignore[no-untyped-def]
    for i in range(np.uint64(hashes.shape[0])):
        enter(hashes[i], rows[i], index)


@kernel
def find_all(hashes, tables, index, records, out, guessed):  # type: ignore[no-untyped-def]
    for i in range(np.uint64(hashes.shape[0])):
        position = find(hashes[i], tables[i], index, records, np.uint64(WORDS))
        out[i] = row_at(position, index) + np.uint64(1) if position != NOWHERE else np.uint64(0)
        guessed[i] = candidate(hashes[i], index)


@kernel
def remove_one(key_hash, table, index, records):  # type: ignore[no-untyped-def]
    remove(key_hash, find(key_hash, table, index, records, np.uint64(WORDS)), index)


@kernel
def mix_all(hashes):  # type: ignore[no-untyped-def]
    for i in range(np.uint64(hashes.shape[0])):
        hashes[i] = mix64(hashes[i])


class Model:
    """The index beside a dictionary that has the same."""

    def __init__(self, capacity: int = 1 << 16) -> None:
        self.records = np.zeros(capacity * WORDS, np.uint32)
        self.index = BucketIndex(self.records, WORDS, capacity)
        self.rows: dict[Key, int] = {}
        self._used = 0

    def add(self, keys: list[Key]) -> None:
        fresh = [key for key in dict.fromkeys(keys) if key not in self.rows]
        rows = np.arange(self._used, self._used + len(fresh), dtype=np.uint64)
        hashes = np.array([key[0] for key in fresh], np.uint64)
        of_rows = self.records.reshape(-1, WORDS)[self._used :][: len(fresh)]
        of_rows[:, HASH_LOW] = hashes & np.uint64(0xFFFFFFFF)
        of_rows[:, HASH_HIGH] = hashes >> np.uint64(32)
        of_rows[:, TABLE_EPOCH] = np.array([key[1] + 1 for key in fresh], np.uint32) << EPOCH_BITS
        self._used += len(fresh)
        self.rows |= dict(zip(fresh, rows.tolist(), strict=True))
        self.index.make_room(len(self.rows))
        enter_all(hashes, rows, self.index.buckets)
        self.index.advance(len(fresh), len(self.rows))

    def drop(self, key: Key) -> None:
        if self.rows.pop(key, None) is not None:
            remove_one(np.uint64(key[0]), np.uint64(key[1]), self.index.buckets, self.records)

    def check(self, others: list[Key]) -> None:
        keys = [*self.rows, *others]
        hashes, tables = (np.array([key[i] for key in keys], np.uint64) for i in range(2))
        found, guessed = np.zeros(len(keys), np.uint64), np.zeros(len(keys), np.uint64)
        find_all(hashes, tables, self.index.buckets, self.records, found, guessed)
        assert found.tolist() == [self.rows.get(key, -1) + 1 for key in keys]
        assert not (found & (guessed == 0)).any()  # who has a row has a candidate
        most = self.index.bytes // 64 + len(self.rows) // 12 + 2
        entries = self.index.buckets.rows[: 16 * most].reshape(-1, 16)[:, :12]
        assert sorted(entries[entries != 0].tolist()) == sorted(row + 1 for row in self.rows.values())
        assert self.index.entries(self._used) == len(self.rows)


crowded = st.builds(lambda low, high: high << 32 | low, st.integers(0, 3), st.integers(0, 40))
"""Hashes that share their home, and often their fingerprint."""
anywhere = st.integers(0, (1 << 64) - 1)
at_the_edges = st.builds(
    lambda low, high: high << 32 | low,
    st.sampled_from([0, 1, (1 << 32) - 1, (1 << 32) - 2, 1 << 31]),
    st.integers(0, 9),
)
keys = st.tuples(crowded | anywhere | at_the_edges, st.integers(0, 2))
steps = st.one_of(
    st.tuples(st.just("add"), st.lists(keys, max_size=60)),
    st.tuples(st.just("many"), st.integers(0, 1 << 32)),
    st.tuples(st.just("drop"), st.integers(0, 1 << 16)),
    st.tuples(st.just("drop many"), st.integers(2, 5)),
    st.tuples(st.just("grow to"), st.integers(1, 20_000)),
    st.tuples(st.just("shrink"), st.integers(1, 400)),
    st.tuples(st.just("go on"), st.integers(1, 30)),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(steps, max_size=14), st.lists(keys, max_size=20))
def test_index_finds_what_a_dictionary_has(history: list[tuple[str, object]], others: list[Key]) -> None:
    model = Model()
    for what, argument in history:
        match what, argument:
            case "add", list(added):
                model.add(added)
            case "many", int(seed):
                drawn = np.random.default_rng(seed).integers(0, 1 << 63, 700, np.uint64)
                model.add([(int(one), 1) for one in drawn])
            case "drop", int(which) if model.rows:
                model.drop(list(model.rows)[which % len(model.rows)])
            case "drop many", int(stride):
                for key in list(model.rows)[::stride]:
                    model.drop(key)
            case "grow to", int(rows):
                model.index.reserve(rows)
            case "shrink", int(buckets):
                model.index.shrink(buckets, len(model.rows))
            case "go on", int(new):
                model.index.advance(new, len(model.rows))
        model.check(others)


def random_keys(n: int) -> NDArray[np.uint64]:
    found = np.arange(n, dtype=np.uint64)
    mix_all(found)
    return found


def test_index_takes_seven_bytes_a_row_and_grows_in_small_steps() -> None:
    n, step = 400_000, 1000
    model = Model(n)
    hashes = random_keys(n)
    model.records.reshape(-1, WORDS)[:, HASH_LOW] = hashes & np.uint64(0xFFFFFFFF)
    most_changed = 0
    for start in range(0, n, step):
        model.index.make_room(start + step)
        enter_all(hashes[start : start + step], np.arange(start, start + step, dtype=np.uint64), model.index.buckets)
        before = int(model.index.buckets.size[2])
        model.index.advance(step, start + step)
        changed = (before or 1 << 32) - int(model.index.buckets.size[2])
        if model.index.size > 4096 and model.index.changing:
            most_changed = max(most_changed, changed * model.index.size >> 32)
    assert model.index.bytes <= 7 * n
    assert (
        0 < most_changed <= 1.1 * step
    )  # 0.8 for each new row, and more in a small index, where a push is a large part


def test_index_gives_its_memory_back_when_rows_are_dropped() -> None:
    model = Model()
    model.add([(int(key), 0) for key in random_keys(30_000)])
    model.add([(high << 32 | 0xFFFFFFFF, 1) for high in range(2000)])  # more than find room in the last bucket
    large = model.index.bytes
    for key in list(model.rows)[:29_000]:
        model.drop(key)
    while not model.index.shrink(50, len(model.rows)):
        model.check([])
    model.check([])
    assert model.index.bytes < large / 8
    for key in list(model.rows):
        model.drop(key)
    assert not model.index.buckets.rows.any()  # nor does it believe that any went on to another bucket


@pytest.mark.parametrize("copies", [13, 500, 5000])
def test_keys_that_share_a_bucket_all_find_room(copies: int) -> None:
    model = Model()
    model.add([(high << 32 | 0xFFFFFFFF, 0) for high in range(copies)])
    model.add([(int(key), 0) for key in random_keys(9000)])
    model.check([(high << 32 | 0xFFFFFFFF, 0) for high in range(copies, copies + 50)])
