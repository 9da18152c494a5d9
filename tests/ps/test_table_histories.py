"""Tables against a dict, through any sequence of what training and moves do to them, with indexes that are always about to change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlrover_lite.core import slot_sets
from dlrover_lite.core.records import epochs_of
from dlrover_lite.core.rows import RowData
from dlrover_lite.protocol.ps_messages import TableSpec
from dlrover_lite.ps.tables import bucket_index
from dlrover_lite.ps.tables.table import NotOwned, TableGroup
from dlrover_lite.recipe.schema import Optimizer
from dlrover_lite.tables.hashing import initial_rows
from dlrover_lite.tables.layout import slots_of
from tests.ps.models import owns, read

DIM, TABLES, POOL, SEED = 3, 2, 40, 7
SPECS = [TableSpec(f"t{i}", DIM, 0.05) for i in range(TABLES)]
ADAGRAD = Optimizer(use="adagrad", learning_rate=0.5)
IDS = np.array([*range(POOL - 2), 2**63, 2**64 - 1], np.uint64)
SLOT = [slots_of(spec.name, IDS) for spec in SPECS]
INITIAL = [initial_rows(IDS, table=spec.name, seed=SEED, dim=DIM, scale=0.05) for spec in SPECS]
EVERY = np.ones(slot_sets.SLOTS, np.bool_)

Key = tuple[int, int]
"""Table, and position of the id in IDS."""


class Row(NamedTuple):
    values: Any
    state: Any
    count: int
    epoch: int


def adagrad(row: Row, gradient: float, epoch: int) -> Row:
    """In float32, step by step as in the kernel."""
    g = np.full(DIM, gradient, np.float32)
    state = row.state + g * g
    step = np.float32(0.5) * g / (np.sqrt(state) + np.float32(1e-10))
    return Row(row.values - step, state, row.count + 1, epoch)


class Model:
    """A group, and what should be in it; each method does the same to both."""

    def __init__(self) -> None:
        self.group = TableGroup(SPECS, ADAGRAD, seed=SEED, reserve_bytes=1 << 20, counted=True)
        self.rows: dict[Key, Row] = {}
        self.epoch = 1
        self.owned, self.tracked = EVERY, ~EVERY
        self.tracking = False
        self.log: set[Key] = set()

    def slot(self, key: Key) -> int:
        return int(SLOT[key[0]][key[1]])

    def changed(self, key: Key) -> None:
        if self.tracked[self.slot(key)]:
            self.log.add(key)

    def arrays(self, keys: list[Key]) -> tuple[np.ndarray, np.ndarray]:
        """As requests have them: ids in order of their tables, counts a table."""
        ids = np.array([IDS[i] for _, i in keys], np.uint64)
        return ids, np.array([sum(t == table for t, _ in keys) for table in range(TABLES)], np.int64)

    def add(self, act: Callable[[], None]) -> None:
        """Rows take free numbers first."""
        used = self.group.used
        act()
        assert self.group.used == max(used, self.group.rows)

    def update(self, keys: list[Key], gradient: float) -> None:
        keys = sorted(keys)
        grads = np.full((len(keys), DIM), gradient, np.float32)
        if not all(self.owned[self.slot(key)] for key in keys):
            assert not owns(self.group, *self.arrays(keys))
            with pytest.raises(NotOwned):
                self.group.update(*self.arrays(keys), grads)
            return
        self.add(lambda: self.group.update(*self.arrays(keys), grads))
        for key in keys:
            fresh = Row(INITIAL[key[0]][key[1]], np.zeros(DIM, np.float32), 0, 0)
            self.rows[key] = adagrad(self.rows.get(key, fresh), gradient, self.epoch)
            self.changed(key)

    def write(self, keys: list[Key], seed: int) -> None:
        random = np.random.default_rng(seed)
        n = len(keys)
        random.shuffle(keys)
        data = RowData(
            np.array([IDS[i] for _, i in keys], np.uint64),
            np.array([t for t, _ in keys], np.uint16),
            random.integers(0, 2**32, n, dtype=np.uint32),
            random.normal(size=(n, DIM)).astype(np.float32),
            random.uniform(size=(n, DIM)).astype(np.float32),
        )
        self.add(lambda: self.group.write(data))
        for i, key in enumerate(keys):
            self.rows[key] = Row(data.values[i], data.state[i], int(data.counts[i]), self.epoch)
            self.changed(key)

    def drop(self, members: slot_sets.SlotSet, scan_limit: int, start: int) -> None:
        if (members & self.tracked).any():
            with pytest.raises(ValueError, match="tracked"):
                self.group.drop(members, start, scan_limit=scan_limit)
            return
        rows, _ = self.group.find(members, start, scan_limit=self.group.used, row_limit=self.group.used)
        data = read(self.group, rows)
        dropped = {(int(t), position(key)) for t, key in zip(data.tables, data.ids, strict=True)}
        whole = {key for key in self.rows if members[self.slot(key)]}
        assert dropped == whole if start == 0 else dropped <= whole
        while start < self.group.used:
            following = self.group.drop(members, start, scan_limit=scan_limit)
            assert following == min(start + scan_limit, self.group.used)
            start = following
        for key in dropped:
            del self.rows[key]

    def compact(self, limit: int) -> None:
        if self.tracking:
            with pytest.raises(ValueError, match="tracked"):
                self.group.compact(limit)
            return
        used = self.group.used
        done = self.group.compact(limit)
        assert self.group.used <= used
        assert not done or self.group.used == self.group.rows

    def track(self, members: slot_sets.SlotSet) -> None:
        self.group.track(members)
        self.tracking, self.tracked, self.log = True, members, set()

    def take_log(self) -> None:
        rows = self.group.take_log()
        data = read(self.group, rows)
        logged = {(int(t), position(key)) for t, key in zip(data.tables, data.ids, strict=True)}
        assert (logged, len(rows)) == (self.log, len(self.log))
        self.log = set()

    def untrack(self) -> None:
        self.group.untrack()
        self.tracking, self.tracked, self.log = False, ~EVERY, set()

    def own(self, members: slot_sets.SlotSet) -> None:
        self.group.set_owned(members)
        self.owned = members

    def cut(self) -> None:
        assert self.group.begin_snapshot().epoch == self.epoch
        self.epoch += 1

    def reserve(self, rows: int) -> None:
        self.group.reserve(rows)

    def check(self) -> None:
        group = self.group
        assert group.rows == len(self.rows) <= group.used
        per_slot = np.bincount([self.slot(key) for key in self.rows], minlength=slot_sets.SLOTS)
        assert np.array_equal(group.slot_rows, per_slot)
        assert group.table_rows == [sum(table == t for table, _ in self.rows) for t in range(TABLES)]
        assert group.logged() == len(self.log)
        found = every_row(group)
        assert found.keys() == self.rows.keys()
        for key, row in self.rows.items():
            values, state, count, epoch = found[key]
            assert (values.tolist(), state.tolist()) == (row.values.tolist(), row.state.tolist())
            assert (count, epoch) == (row.count, row.epoch)
        everything = [(t, i) for t in range(TABLES) for i in range(POOL)]
        assert group.contains(*self.arrays(everything)).tolist() == [key in self.rows for key in everything]
        mine = [key for key in everything if self.owned[self.slot(key)]]
        expected = [(self.rows[key].values if key in self.rows else INITIAL[key[0]][key[1]]).tolist() for key in mine]
        assert group.gather(*self.arrays(mine)).tolist() == expected
        if len(mine) < len(everything):
            with pytest.raises(NotOwned):
                group.gather(*self.arrays(everything))
        scanned, _ = group.scan(0, group.used)
        names = [(int(t), position(key)) for t, key in zip(scanned.tables, scanned.ids, strict=True)]
        assert sorted(names) == sorted(key for key in self.rows if self.owned[self.slot(key)])


def position(key: int) -> int:
    return int(np.flatnonzero(key == IDS)[0])


def every_row(group: TableGroup) -> dict[Key, tuple[Any, Any, int, int]]:
    rows, following = group.find(EVERY, 0, scan_limit=group.used, row_limit=group.used)
    assert following == group.used
    data, epochs = read(group, rows), epochs_of(group.read_records(rows))
    names = [(int(t), position(key)) for t, key in zip(data.tables, data.ids, strict=True)]
    assert len(set(names)) == len(names)
    return dict(zip(names, zip(data.values, data.state, data.counts, epochs, strict=True), strict=True))


KEYS = st.lists(st.tuples(st.integers(0, TABLES - 1), st.integers(0, POOL - 1)), unique=True, max_size=TABLES * POOL)
MEMBERS = st.sets(st.integers(0, 3)).map(lambda chosen: np.isin(np.arange(slot_sets.SLOTS) % 4, list(chosen)))
OPERATIONS = st.one_of(
    st.tuples(st.just("update"), KEYS, st.sampled_from([-1.0, 0.5, 3.0])),
    st.tuples(st.just("update"), KEYS, st.sampled_from([-1.0, 0.5, 3.0])),
    st.tuples(st.just("write"), KEYS, st.integers(0, 2**32)),
    st.tuples(st.just("drop"), MEMBERS, st.sampled_from([1, 7, 1000]), st.sampled_from([0, 0, 5])),
    st.tuples(st.just("compact"), st.sampled_from([0, 1, 5, 1000])),
    st.tuples(st.just("track"), MEMBERS),
    st.tuples(st.just("take_log")),
    st.tuples(st.just("untrack")),
    st.tuples(st.just("own"), st.one_of(st.just(EVERY), MEMBERS)),
    st.tuples(st.just("cut")),
    st.tuples(st.just("reserve"), st.integers(0, 200)),
)


def make_small(patch: pytest.MonkeyPatch, pace: int) -> None:
    """An index of few rows a bucket, that is always about to have another size."""
    patch.setattr(bucket_index, "_FIRST_BUCKETS", 1)
    patch.setattr(bucket_index, "_AT_ONCE", 0)
    patch.setattr(bucket_index, "share_of", lambda _left, new_rows, _rows_left: 1 + pace * new_rows)
    patch.setattr(bucket_index, "_FULL", 0.3)
    patch.setattr(bucket_index, "_CROWDED", 0.5)


@settings(max_examples=90, deadline=None)
@given(st.lists(OPERATIONS, max_size=30), st.sampled_from([0, 1, 2, 5]), st.booleans())
def test_any_history_of_a_table_equals_a_dict(operations: list[tuple[Any, ...]], pace: int, at_once: bool) -> None:
    """``pace``, ``at_once``: how fast the index changes its size."""
    with pytest.MonkeyPatch.context() as patch:
        make_small(patch, pace)
        if at_once:
            patch.setattr(bucket_index, "_AT_ONCE", 1 << 10)
        model = Model()
        for name, *arguments in operations:
            getattr(model, name)(*arguments)
            model.check()
        model.untrack()
        for _ in range(2000):
            if model.group.compact(3):
                break
        model.check()
        assert model.group.used == model.group.rows


@pytest.mark.parametrize("seed", range(20))
def test_rows_come_and_go_while_the_index_changes(seed: int) -> None:
    """A few at a time, so that it takes long: what hypothesis seldom finds."""
    random = np.random.default_rng(seed)
    everything = [(t, i) for t in range(TABLES) for i in range(POOL)]
    with pytest.MonkeyPatch.context() as patch:
        make_small(patch, 1)
        model, steps = Model(), 0
        model.update(everything[::4], 0.5)
        for _ in range(50):
            chosen = [everything[i] for i in random.choice(len(everything), random.integers(1, 4), replace=False)]
            act = random.choice(["update", "write", "drop", "compact", "reserve"], p=[0.5, 0.15, 0.15, 0.18, 0.02])
            if act == "update":
                model.update(chosen, 0.5)
            elif act == "write":
                model.write(chosen, seed)
            elif act == "drop":
                model.drop(slot_sets.of(map(model.slot, chosen)), 1000, 0)
            elif act == "compact":
                model.compact(int(random.integers(0, 3)))
            else:
                model.reserve(int(random.integers(0, 100)))
            steps += model.group._index.changing
            model.check()
        assert steps, "it never did"
