"""An index that outlives its process: taken up as it is where it is whole, made anew from the rows where it isn't."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from dlrover_lite.core.failpoints import Died, armed
from dlrover_lite.core.slot_sets import SLOTS
from dlrover_lite.protocol.ps_messages import TableSpec
from dlrover_lite.ps.journal.journal import Journal
from dlrover_lite.ps.memory.arena import Arena
from dlrover_lite.ps.memory.state_memory import Arenas, PrivateMemory
from dlrover_lite.ps.tables import attach_kernels
from dlrover_lite.ps.tables.bucket_index import NOWHERE
from dlrover_lite.ps.tables.row_arrays import FREE, INDEXED, NUMBERS, USED
from dlrover_lite.ps.tables.table import Kept, TableGroup
from dlrover_lite.recipe.schema import Optimizer

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has memory that outlives its process")

TABLES = [TableSpec("a", 4, 0.0), TableSpec("b", 4, 0.0)]
EVERY = np.ones(SLOTS, np.bool_)
KEYS = 3_000
"""Number of keys of each table: more than the index has room for at first."""


class Lives:
    """A group, and those that follow it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.memory = PrivateMemory()
        self.numbers = np.zeros(NUMBERS, np.uint64)
        self.progress = np.zeros(1, np.uint64)
        self.made = 0
        """How often an index was made from rows."""
        restore = attach_kernels.restore

        def counting(*arguments: Any) -> Any:
            self.made += 1
            return restore(*arguments)

        monkeypatch.setattr(attach_kernels, "restore", counting)
        self.group = self._open()

    def _open(self) -> TableGroup:
        arenas = Arenas(self.memory)
        journal = Journal(arenas.open("journal", 1 << 20), arenas.open("pushed", 1 << 20), self.progress)
        kept = Kept(arenas, "group", self.numbers, journal)
        group = TableGroup(TABLES, Optimizer(use="sgd", learning_rate=1.0), seed=0, reserve_bytes=1 << 24, kept=kept)
        arenas.close()
        return group

    def follow(self) -> bool:
        """Have another one take up what was left. Whether it had to make an index."""
        before = self.made
        self.memory = self.memory.hand_over()
        self.group = self._open()
        return self.made > before

    def left(self, name: str) -> np.ndarray:
        """Words of memory that is left for the next one."""
        self.memory = self.memory.hand_over()
        return Arena(name, fd=self.memory.left()[name]).bytes.view(np.uint32)

    def update(self, first: int, end: int) -> None:
        keys = np.arange(first, end, dtype=np.uint64)
        grads = np.ones((2 * len(keys), 4), np.float32)
        self.group.update(np.concatenate([keys, keys]), np.array([len(keys)] * 2, np.int64), grads)

    def check(self, keys: int, value: float | None = None, *, but: int = 0) -> None:
        """Rows ``but`` to ``keys`` of each table are there, and no others; those of one value have it."""
        ids = np.arange(but, keys, dtype=np.uint64)
        counts = np.array([len(ids)] * 2, np.int64)
        assert self.group.contains(np.concatenate([ids, ids]), counts).all()
        assert self.group.rows == 2 * len(ids) == self.group.slot_rows.sum() == sum(self.group.table_rows)
        others = np.arange(keys, keys + 500, dtype=np.uint64)
        assert not self.group.contains(np.concatenate([others, others]), np.array([500, 500], np.int64)).any()
        if value is not None:
            assert (self.group.gather(np.concatenate([ids, ids]), counts) == value).all()


@pytest.fixture
def lives(monkeypatch: pytest.MonkeyPatch) -> Iterator[Lives]:
    found = Lives(monkeypatch)
    yield found
    found.memory.close()


def test_who_follows_takes_up_the_index_as_it_is(lives: Lives) -> None:
    lives.update(0, KEYS)
    assert not lives.follow()
    lives.check(KEYS, -1.0)
    lives.update(0, KEYS + 200)  # grows on
    assert not lives.follow()
    lives.check(KEYS + 200)
    lives.update(0, 10)
    lives.group.reserve(5 * KEYS)
    assert lives.group._index.changing
    assert not lives.follow()
    lives.check(KEYS + 200)


def test_who_follows_goes_on_with_a_growth_under_way(lives: Lives) -> None:
    keys, found = 0, 0
    while found < 3:
        lives.update(keys, keys + 400)
        keys += 400
        found += lives.group._index.changing
        assert not lives.follow()
        lives.check(keys, -1.0)


@pytest.mark.parametrize(
    ("failpoint", "new"),
    [
        (f"ps.chunk.{step}", new)
        for step in ("journalled", "counted", "half", "changed", "done")
        for new in (True, False)
    ],
)
def test_index_is_made_anew_after_a_death_amid_new_rows_only(lives: Lives, failpoint: str, new: bool) -> None:
    lives.update(0, KEYS)
    with armed(f"{failpoint}=raise:2"):
        lives.follow()
        with pytest.raises(Died):
            lives.update(KEYS if new else 0, KEYS + 300 if new else 300)
    assert lives.follow() == new
    ids = np.arange(300, KEYS, dtype=np.uint64)
    counts = np.array([len(ids)] * 2, np.int64)
    assert (lives.group.gather(np.concatenate([ids, ids]), counts) == -1.0).all()
    lives.update(0, KEYS + 300)  # as who pushes does again
    lives.check(KEYS + 300)
    assert not lives.follow()


def test_index_is_made_anew_while_row_numbers_are_free(lives: Lives) -> None:
    lives.update(0, KEYS)
    half = np.arange(SLOTS) < SLOTS // 2
    lives.group.drop(half, 0, scan_limit=10 * KEYS)
    rows = lives.group.rows
    assert lives.group.gaps
    assert lives.follow()
    while not lives.group.compact(100):
        assert lives.group.rows == rows
    assert not lives.follow()
    assert lives.group.rows == rows == lives.group.slot_rows.sum() == lives.group.slot_rows[~half].sum()
    lives.update(0, KEYS)
    lives.check(KEYS)


def test_index_is_whole_after_rows_were_received(lives: Lives) -> None:
    lives.update(0, 100)
    records = lives.group.read_records(np.arange(200, dtype=np.uint64))
    other = PrivateMemory()
    lives.memory, first = other, lives.memory
    lives.numbers = np.zeros(NUMBERS, np.uint64)
    lives.group = lives._open()
    lives.group.write_records(records)
    assert not lives.follow()
    lives.check(100, -1.0)
    first.close()


def _entry(words: np.ndarray) -> int:
    """The first entry that a bucket has."""
    entries = words[: len(words) // 16 * 16].reshape(-1, 16)[:, :12]
    bucket, entry = np.argwhere(entries[: 1 << 12])[0]
    return int(bucket) * 16 + int(entry)


def _beyond(words: np.ndarray) -> None:
    words[_entry(words)] = 1 << 30


def _lost(words: np.ndarray) -> None:
    words[_entry(words)] = 0


def _lost_whole(words: np.ndarray) -> None:
    at = _entry(words)
    words[at] = 0
    words.view(np.uint8)[at // 16 * 64 + 48 + at % 16] = 0


def _goes_on(words: np.ndarray) -> None:
    words[: len(words) // 16 * 16].reshape(-1, 16)[:, 15] = 1


def _size(value: int, word: int) -> Callable[[np.ndarray], None]:
    def damage(words: np.ndarray) -> None:
        words.view(np.uint64)[word] = value

    return damage


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("index", _beyond),
        ("index", _lost),
        ("index", _lost_whole),
        ("index", _goes_on),
        ("counts", _size(0, 0)),
        ("counts", _size(1 << 40, 1)),
        ("counts", _size(1 << 40, 2)),
        ("counts", _size(2, 3)),
        ("counts", _size(int(NOWHERE), 8)),
        ("counts", _size(5_000, 8 + SLOTS)),
    ],
)
def test_index_that_cant_be_is_made_anew(lives: Lives, name: str, damage: Callable[[np.ndarray], None]) -> None:
    lives.update(0, KEYS)
    damage(lives.left(f"group-{name}"))
    assert lives.follow()
    lives.check(KEYS, -1.0)
    assert not lives.follow()


@pytest.mark.parametrize("name", ["group-index", "group-counts"])
def test_index_that_is_gone_is_made_anew(lives: Lives, name: str) -> None:
    lives.update(0, KEYS)
    left = lives.memory.hand_over().left()
    lives.memory = PrivateMemory({one: fd for one, fd in left.items() if one != name})
    assert lives.follow()
    lives.check(KEYS, -1.0)


def test_numbers_say_when_the_index_is_whole(lives: Lives) -> None:
    assert lives.numbers[INDEXED] == 0
    lives.update(0, 10)
    assert (lives.numbers[INDEXED], lives.numbers[USED], lives.numbers[FREE]) == (1, 20, 0)
    lives.group.insert(np.array([50], np.uint64), np.array([1, 0], np.int64), np.zeros((1, 4), np.float32))
    assert lives.numbers[INDEXED] == 1
