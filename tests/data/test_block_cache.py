"""Blocks of remote files: whatever is read, by however many, in however few slots, is what a plain read gives."""

from __future__ import annotations

import os
import threading
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dlrover_lite.core.errors import DataError
from dlrover_lite.core.files.remote import RemoteFile, Version
from dlrover_lite.data import block_cache
from dlrover_lite.data.block_book import Block, BlockBook
from dlrover_lite.data.block_cache import BlockCache, FileRange, cache_bytes

BLOCK = 10


def far_file(name: str, size: int) -> RemoteFile:
    file = RemoteFile(f"memory://{name}")
    file._version = Version(size, 1)
    return file


class Store:
    """Bytes of two files, and how often each block was fetched."""

    def __init__(self) -> None:
        self.data = {far_file("a", 997): os.urandom(997), far_file("b", 61): os.urandom(61)}
        self.fetched: Counter[tuple[str, int]] = Counter()
        self.failing = 0
        self.lock = threading.Lock()

    def fetch(self, file: RemoteFile, start: int, stop: int) -> bytes:
        with self.lock:
            self.fetched[file.url, start] += 1
            if self.failing:
                self.failing -= 1
                raise DataError("not now")
        return self.data[file][start:stop]


reads = st.tuples(st.integers(0, 1), st.integers(0, 996), st.integers(1, 60), st.booleans())


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(reads, max_size=25), min_size=1, max_size=3))
def test_threads_read_what_plain_reads_give(tmp_path_factory: pytest.TempPathFactory, plans: list[list[tuple]]) -> None:
    store = Store()
    cache = BlockCache(tmp_path_factory.getbasetemp(), 0, store.fetch, BLOCK)  # the fewest slots there can be: 16
    wrong: list[object] = []

    def work(plan: list[tuple]) -> None:
        for number, start, length, expected in plan:
            file = list(store.data)[number]
            size = file.version().size
            start, stop = start % size, min(size, start % size + length)
            if expected:
                cache.expect([FileRange(file, start, min(size, stop + 100))])
            if bytes(cache.read(file, start, stop)) != store.data[file][start:stop]:
                wrong.append((file, start, stop))

    threads = [threading.Thread(target=work, args=(plan,)) for plan in plans]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    cache.close()
    assert not wrong


class Book(RuleBasedStateMachine):
    """Compares the book with what a reader may rely on: the slot of a block that is read or loaded belongs to it alone."""

    def __init__(self) -> None:
        super().__init__()
        self.book = BlockBook(3)
        self.loading: list[Block] = []
        self.reading: list[Block] = []
        self.uses: list[int] = []
        """Keys in the order of their last use."""

    @rule(key=st.integers(0, 6))
    def want(self, key: int) -> None:
        if block := self.book.use(key):
            assert block.key == key
            assert block.ready
            self.reading.append(block)
        elif key not in self.book:
            held = {block.slot for block in (*self.loading, *self.reading)}
            before = {key for key in self.uses if key in self.book}
            block = self.book.begin(key)
            assert (block is None) == (len(held) == self.book.slots)
            if block is None:
                return
            gone = [key for key in before if key not in self.book]
            idle = [
                key for key in self.uses if key in before and key not in {b.key for b in (*self.loading, *self.reading)}
            ]
            assert gone in ([], idle[:1])  # the one used longest ago
            self.loading.append(block)
        else:
            return
        self.uses = [other for other in self.uses if other != key] + [key]

    @precondition(lambda self: self.loading)
    @rule(well=st.booleans())
    def end_loading(self, well: bool) -> None:
        block = self.loading.pop(0)
        if well:
            self.book.loaded(block)
            self.book.leave(block)
        else:
            self.book.abandoned(block)
            assert block.key not in self.book

    @precondition(lambda self: self.reading)
    @rule()
    def end_reading(self) -> None:
        self.book.leave(self.reading.pop(0))

    @invariant()
    def slots_have_one_block(self) -> None:
        owners: dict[int, object] = {}
        for block in (*self.loading, *self.reading):
            assert owners.setdefault(block.slot, block.key) == block.key
            assert block.key in self.book


TestBook = Book.TestCase


def test_a_block_is_fetched_once_while_it_is_kept(tmp_path: Path) -> None:
    store = Store()
    cache = BlockCache(tmp_path, 100 * BLOCK, store.fetch, BLOCK)
    file = next(iter(store.data))
    for _ in range(3):
        assert bytes(cache.read(file, 3, 995)) == store.data[file][3:995]
    assert set(store.fetched.values()) == {1}
    assert len(store.fetched) == 100
    cache.close()
    assert not list(tmp_path.iterdir())


def test_what_is_expected_is_there_before_it_is_read(tmp_path: Path) -> None:
    store = Store()
    cache = BlockCache(tmp_path, 0, store.fetch, BLOCK)
    file = next(iter(store.data))
    cache.expect([FileRange(file, 0, 900)])  # half of the 16 slots hold 8 blocks of it
    with cache._changed:
        assert cache._changed.wait_for(lambda: sum(b.ready for b in cache._book._blocks.values()) == 8, 20)
    assert sorted(store.fetched) == [(file.url, start) for start in range(0, 80, BLOCK)]
    cache.read(file, 0, 80)
    assert set(store.fetched.values()) == {1}
    cache.close()


def test_of_a_range_that_stands_alone_nothing_beside_it_is_fetched(tmp_path: Path) -> None:
    got: list[tuple[int, int]] = []
    store = Store()

    def fetch(file: RemoteFile, start: int, stop: int) -> bytes:
        got.append((start, stop))
        return store.fetch(file, start, stop)

    cache = BlockCache(tmp_path, 0, fetch, BLOCK)
    file = next(iter(store.data))
    alone = FileRange(file, 13, 48, alone=True)
    assert bytes(cache.read(file, 20, 45, alone)) == store.data[file][20:45]
    assert bytes(cache.read(file, 13, 48, alone)) == store.data[file][13:48]
    assert got == [(13, 23), (23, 33), (33, 43), (43, 48)]
    cache.expect([alone])
    assert bytes(cache.read(file, 13, 48, alone)) == store.data[file][13:48]
    assert len(got) == 4  # blocks that are expected are those that are read
    cache.close()


def test_a_failed_fetch_is_told_to_the_reader_and_tried_again_by_the_next(tmp_path: Path) -> None:
    store = Store()
    cache = BlockCache(tmp_path, 0, store.fetch, BLOCK)
    file = next(iter(store.data))
    store.failing = 1
    with pytest.raises(DataError, match="not now"):
        cache.read(file, 0, 5)
    assert bytes(cache.read(file, 0, 5)) == store.data[file][:5]
    cache.close()


def test_a_full_disk_costs_time_and_no_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Store()
    cache = BlockCache(tmp_path, 0, store.fetch, BLOCK)
    file = next(iter(store.data))

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    for _ in range(2):
        assert bytes(cache.read(file, 0, 5)) == store.data[file][:5]
    assert store.fetched[file.url, 0] == 2
    assert "No space left on device" in capsys.readouterr().err
    cache.close()


def test_the_cap_is_a_share_of_what_is_free_or_what_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 0 < cache_bytes() <= 16 << 30
    monkeypatch.setenv(block_cache.CACHE_VARIABLE, "3MiB")
    assert cache_bytes() == 3 << 20
    monkeypatch.setenv(block_cache.CACHE_VARIABLE, "plenty")
    with pytest.raises(DataError, match="'plenty' is not an amount of memory"):
        cache_bytes()


def test_all_slots_being_read_holds_the_next_reader_until_one_is_left(tmp_path: Path) -> None:
    store = Store()
    cache = BlockCache(tmp_path, 0, store.fetch, BLOCK)
    file = next(iter(store.data))
    cache.read(file, 0, 160)
    keys = list(cache._blocks(file, 0, 160, None))
    held = [cache._acquire(key) for key in keys]
    found: list[bytes] = []
    reader = threading.Thread(target=lambda: found.append(bytes(cache.read(file, 500, 505))))
    reader.start()
    with cache._changed:
        assert not found
        cache._book.leave(held.pop())
        cache._changed.notify_all()
    reader.join(20)
    assert found == [store.data[file][500:505]]
    assert np.array_equal(cache.read(file, 0, 10), np.frombuffer(store.data[file][:10], np.uint8))
    cache.close()
