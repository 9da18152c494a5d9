"""What moving slots needs of tables: finding, copying, logging, dropping and compacting rows while they are trained."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from dlrover_lite.core import slot_sets
from dlrover_lite.core.errors import JobError
from dlrover_lite.core.records import epochs_of, unpack_rows
from dlrover_lite.core.rows import RowData
from dlrover_lite.protocol.ps_messages import TableSpec
from dlrover_lite.ps.snapshots.copy_on_write_log import no_spill
from dlrover_lite.ps.tables import bucket_index
from dlrover_lite.ps.tables.table import NotOwned, TableGroup
from dlrover_lite.recipe.schema import Optimizer
from dlrover_lite.tables.layout import slots_of
from tests.ps.models import owns, read

OPTIMIZERS = {
    "sgd": Optimizer(use="sgd", learning_rate=0.1),
    "adagrad": Optimizer(use="adagrad", learning_rate=0.1),
    "adam": Optimizer(use="adam", learning_rate=0.01),
    "ftrl": Optimizer(use="ftrl", learning_rate=0.1, l1=0.02, l2=0.01),
}
EVERY = np.ones(slot_sets.SLOTS, np.bool_)
LOWER = np.arange(slot_sets.SLOTS) < slot_sets.SLOTS // 2


def group(
    use: str = "adagrad", *, dim: int = 4, tables: int = 2, complete: bool = False, reserve_bytes: int = 1 << 26
) -> TableGroup:
    specs = [TableSpec(f"t{i}", dim, 0.05) for i in range(tables)]
    return TableGroup(specs, OPTIMIZERS[use], seed=3, reserve_bytes=reserve_bytes, complete=complete, counted=True)


def keys(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.uint64)


def many(n: int) -> np.ndarray:
    return np.arange(n, dtype=np.uint64)


def counts(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def train(tables: TableGroup, ids: np.ndarray, seed: int = 0) -> None:
    """One update of ``ids`` in each of two tables; the gradients depend on the seed alone."""
    grads = np.random.default_rng(seed).normal(size=(2 * len(ids), tables.dim)).astype(np.float32)
    tables.update(np.concatenate([ids, ids]), counts(len(ids), len(ids)), grads)


def every_row(tables: TableGroup, members: slot_sets.SlotSet = EVERY) -> RowData:
    rows, following = tables.find(members, 0, scan_limit=tables.used, row_limit=tables.used)
    assert following == tables.used
    return in_order(read(tables, rows))


def in_order(data: RowData) -> RowData:
    order = np.lexsort((data.ids, data.tables))
    return RowData(*(array[order] for array in data))


def same(a: RowData, b: RowData) -> bool:
    return all(x.shape == y.shape and x.tobytes() == y.tobytes() for x, y in zip(a, b, strict=True))


def drop_all(tables: TableGroup, members: slot_sets.SlotSet, scan_limit: int = 100) -> None:
    start = 0
    while start < tables.used:
        start = tables.drop(members, start, scan_limit=scan_limit)


def compact_all(tables: TableGroup, limit: int = 50) -> int:
    calls = 1
    while not (tables.compact(limit) and tables.give_back()):
        calls += 1
        assert calls < 10_000
    return calls


@pytest.mark.parametrize("use", OPTIMIZERS)
def test_copied_rows_are_equal_bit_by_bit_and_train_on_alike(use: str) -> None:
    source, target = group(use), group(use)
    for seed in range(5):
        train(source, many(400 - 50 * seed), seed)
    target.update(keys(5, 5), counts(1, 1), np.ones((2, 4), np.float32))  # it has been trained for other slots, once
    rows, _ = source.find(EVERY, 0, scan_limit=source.used, row_limit=source.used)
    for piece in np.array_split(rows, 7):
        target.write(read(source, piece))
    assert same(every_row(target), every_row(source))
    for seed in range(5, 8):
        train(source, many(500), seed)
        train(target, many(500), seed)
    assert same(every_row(target), every_row(source))


def test_received_rows_count_as_changed_and_keep_their_update_counts() -> None:
    source, target = group(), group()
    source.update(keys(1), counts(1, 0), np.ones((1, 4), np.float32))
    target.begin_snapshot()
    for _ in range(3):
        source.update(keys(2), counts(1, 0), np.ones((1, 4), np.float32))
    target.write(every_row(source))
    target.begin_snapshot()
    target.update(keys(2), counts(1, 0), np.ones((1, 4), np.float32))
    assert every_row(target).counts.tolist() == [1, 4]
    records = target.read_records(many(2))
    assert epochs_of(records)[np.argsort(unpack_rows(records, target.shape, target._store.salts).ids)].tolist() == [
        2,
        3,
    ]


@pytest.mark.parametrize("use", OPTIMIZERS)
def test_closing_gaps_changes_no_row(use: str) -> None:
    tables = group(use)
    for seed in range(3):
        train(tables, many(1000), seed)
    kept = every_row(tables, ~LOWER)
    drop_all(tables, LOWER)
    assert tables.rows == len(kept.ids) < tables.used == 2000
    assert same(every_row(tables), kept)
    assert compact_all(tables) > 5  # a bounded piece at a time
    assert tables.rows == tables.used == len(kept.ids)
    assert same(every_row(tables), kept)
    both = np.concatenate([many(1000), many(1000)])
    present = tables.contains(both, counts(1000, 1000))
    expected = np.concatenate([~LOWER[slots_of(f"t{t}", many(1000))] for t in range(2)])
    assert np.array_equal(present, expected)
    assert np.array_equal(tables.gather(both, counts(1000, 1000))[present], kept.values)


def test_dropped_rows_are_forgotten_and_their_numbers_reused_first() -> None:
    tables, fresh = group(), group()
    train(tables, many(500))
    before = every_row(tables)
    drop_all(tables, EVERY, scan_limit=37)
    assert (tables.rows, tables.used, tables.slot_rows.sum()) == (0, 1000, 0)
    assert np.array_equal(tables.gather(many(500), counts(500, 0)), fresh.gather(many(500), counts(500, 0)))
    train(tables, many(500))
    assert (tables.rows, tables.used) == (1000, 1000)
    after = every_row(tables)
    assert same(after, before)


def test_gaps_of_row_numbers_freed_in_any_order_are_closed() -> None:
    tables = group()
    train(tables, many(600))
    slot = np.arange(slot_sets.SLOTS)
    for third in (2, 0):
        drop_all(tables, slot % 3 == third)
    kept = every_row(tables)
    compact_all(tables, limit=13)
    assert tables.used == len(kept.ids)
    assert same(every_row(tables), kept)


def test_freed_row_numbers_reused_from_below_leave_room_for_more() -> None:
    """A table that is full, of which rows are dropped, moved together in part, made anew behind, and dropped all."""
    tables = group("sgd", dim=1, tables=1, reserve_bytes=1 << 14)
    full = (1 << 14) // tables.row_bytes
    tables.update(many(full), counts(full), np.ones((full, 1), np.float32))
    assert tables.used == full
    drop_all(tables, LOWER)
    freed = tables.gaps
    tables.compact(freed // 4)
    assert 0 < tables.gaps < freed
    more = full - tables.used
    tables.spill(no_spill())  # while a snapshot is taken, rows come behind all others
    tables.insert(many(2 * full)[-more:], counts(more), np.ones((more, 1), np.float32))
    tables.spill(None)
    assert tables.used == full
    drop_all(tables, EVERY)
    assert (tables.rows, tables.gaps) == (0, tables.used)
    compact_all(tables, limit=7)
    assert (tables.used, tables.gaps) == (0, 0)
    tables.update(many(full), counts(full), np.ones((full, 1), np.float32))
    assert tables.rows == full


def test_rows_are_found_in_pieces_of_any_limit() -> None:
    tables = group()
    train(tables, many(300))
    whole, _ = tables.find(LOWER, 0, scan_limit=600, row_limit=600)
    for scan_limit, row_limit in ((7, 100), (100, 7), (600, 1), (1, 600)):
        found, start = [], 0
        while start < tables.used:
            rows, following = tables.find(LOWER, start, scan_limit=scan_limit, row_limit=row_limit)
            assert start < following <= start + scan_limit
            assert len(rows) <= row_limit
            found.extend(rows.tolist())
            start = following
        assert found == whole.tolist()
    assert tables.find(LOWER, 600, scan_limit=10, row_limit=10)[1] == 600


def test_log_has_each_changed_row_of_tracked_slots_once_a_round() -> None:
    tables = group()
    train(tables, many(100))
    tables.track(LOWER)
    assert tables.logged() == 0
    train(tables, many(150))
    train(tables, many(120))
    assert tables.logged() == len(tables.find(LOWER, 0, scan_limit=1000, row_limit=1000)[0])
    first = tables.take_log()
    assert same(in_order(read(tables, first)), every_row(tables, LOWER))
    assert (len(first), tables.logged()) == (len(set(first.tolist())), 0)
    train(tables, many(10))
    again = read(tables, tables.take_log())
    assert set(again.ids.tolist()) <= set(range(10))
    assert len(again.ids) == sum(LOWER[slots_of(f"t{t}", many(10))].sum() for t in range(2))
    tables.untrack()
    train(tables, many(150))
    assert tables.logged() == 0


def test_tracked_rows_cannot_be_moved_or_dropped() -> None:
    tables = group()
    train(tables, many(50))
    tables.track(LOWER)
    with pytest.raises(ValueError, match="tracked"):
        tables.compact(10)
    with pytest.raises(ValueError, match="tracked"):
        tables.drop(EVERY, 0, scan_limit=10)
    drop_all(tables, ~LOWER)
    tables.untrack()
    compact_all(tables)
    assert tables.used == tables.rows


def test_rows_of_slots_not_owned_are_refused_and_nothing_changes() -> None:
    tables = group()
    train(tables, many(200))
    before = every_row(tables)
    tables.set_owned(LOWER)
    mine = LOWER[slots_of("t0", many(200))]
    own, others = many(200)[mine], many(200)[~mine]
    assert owns(tables, own, counts(len(own), 0))
    assert len(tables.gather(own, counts(len(own), 0))) == len(own)
    mixed = np.concatenate([own, others[-1:]])
    assert not owns(tables, mixed, counts(len(mixed), 0))
    with pytest.raises(NotOwned):
        tables.gather(mixed, counts(len(mixed), 0))
    with pytest.raises(NotOwned):
        tables.update(mixed, counts(len(mixed), 0), np.ones((len(mixed), 4), np.float32))
    assert same(every_row(tables), before)
    data, following = tables.scan(0, 1000, state=True)
    assert following == tables.used
    assert same(in_order(data), every_row(tables, LOWER))
    assert tables.scan(0, 1000)[0].state.shape == (len(data.ids), 0)


def test_small_requests_are_counted_exactly() -> None:
    tables = group(tables=1)
    first, second = slots_of("t0", keys(1, 2)).tolist()
    tables.gather(keys(1, 1, 2), counts(3))
    tables.gather(keys(1), counts(1))
    tables.update(keys(2), counts(1), np.ones((1, 4), np.float32))
    taken = tables.take_counters()
    assert [(name, array[[first, second]].tolist()) for name, array in taken._asdict().items()] == [
        ("requests", [2, 2]),
        ("gathered", [3, 1]),
        ("updated", [0, 1]),
    ]
    assert [int(array.sum()) for array in taken] == [4, 4, 1]
    assert [int(array.sum()) for array in tables.take_counters()] == [0, 0, 0]


def test_large_requests_are_counted_about_right() -> None:
    tables = group(tables=1, dim=1)
    ids = np.random.default_rng(0).integers(0, 2**63, 5000, dtype=np.uint64)
    for _ in range(300):
        tables.gather(ids, counts(len(ids)))
    taken = tables.take_counters()
    per_slot = np.bincount(slots_of("t0", ids), minlength=slot_sets.SLOTS)
    requests = taken.requests.max()
    assert 150 < requests < 600
    assert np.array_equal(taken.requests, requests * (per_slot > 0))
    assert np.array_equal(taken.gathered, requests * per_slot)


def test_blocks_are_inserted_once_and_needed() -> None:
    tables = group("adam", complete=True)
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    tables.insert(keys(0, 1, 0), counts(2, 1), values)
    assert tables.contains(keys(0, 1, 2, 0, 1), counts(3, 2)).tolist() == [True, True, False, True, False]
    assert np.array_equal(tables.gather(keys(0, 1, 0), counts(2, 1)), values)
    data = every_row(tables)
    assert not data.state.any()
    assert data.counts.tolist() == [0, 0, 0]
    for again in (keys(1), keys(2, 2)):
        with pytest.raises(ValueError, match="is there already"):
            tables.insert(again, counts(len(again), 0), np.ones((len(again), 4), np.float32))
    with pytest.raises(JobError, match="t1: there is no row 7"):
        tables.gather(keys(0, 7), counts(1, 1))
    with pytest.raises(JobError, match="t0: there is no row 9"):
        tables.update(keys(1, 9), counts(2, 0), np.ones((2, 4), np.float32))
    assert same(every_row(tables), data)
    tables.set_owned(~EVERY)
    with pytest.raises(NotOwned):
        tables.gather(keys(7), counts(1, 0))


def test_inserted_rows_have_optimizer_state_matching_their_values() -> None:
    """FTRL's weights follow from its state: a row with the wrong one would jump at its first update."""
    tables = group("ftrl", tables=1)
    values = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)
    tables.insert(keys(1, 2), counts(2), values)
    tables.update(keys(1, 2), counts(2), np.full((2, 4), 1e-6, np.float32))
    np.testing.assert_allclose(tables.gather(keys(1, 2), counts(2)), values, atol=1e-3)


def bad_rows() -> Iterator[RowData]:
    source = group()
    train(source, many(3))
    good = every_row(source)
    yield good._replace(values=good.values[:, :3])
    yield good._replace(values=good.values.reshape(-1))
    yield good._replace(state=good.state[:, :0])
    yield good._replace(counts=good.counts[1:])
    yield good._replace(tables=good.tables + np.uint16(1))


@pytest.mark.parametrize("which", range(5))
def test_rows_that_do_not_fit_are_refused(which: int) -> None:
    tables = group()
    with pytest.raises(ValueError, match="rows of"):
        tables.write(list(bad_rows())[which])
    assert tables.rows == 0


def test_only_live_rows_can_be_read() -> None:
    tables = group()
    train(tables, many(20))
    drop_all(tables, LOWER)
    with pytest.raises(ValueError, match="free row"):
        read(tables, many(40))
    with pytest.raises(ValueError, match="row 40 of 40"):
        read(tables, keys(40))
    assert len(read(tables, keys()).ids) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux gives memory of an arena back")
def test_memory_of_dropped_rows_is_given_back() -> None:
    dim = 37  # no other test's: arenas are known by it
    tables = group(dim=dim)
    slack = 4 << 20
    train(tables, many(60_000))
    full = resident_bytes(dim)
    assert abs(full - tables.used * tables.row_bytes) < slack
    drop_all(tables, np.arange(slot_sets.SLOTS) >= 200, scan_limit=10_000)
    assert resident_bytes(dim) > full - slack
    compact_all(tables, limit=10_000)
    assert tables.used < 10_000
    assert resident_bytes(dim) < tables.used * tables.row_bytes + slack
    assert tables.bytes < full // 4
    fresh = group(dim=dim)
    train(tables, many(60_000), seed=1)
    train(fresh, many(60_000), seed=1)
    kept = slots_of("t0", many(60_000)) < 200
    new = many(60_000)[~kept]
    assert np.array_equal(tables.gather(new, counts(len(new), 0)), fresh.gather(new, counts(len(new), 0)))


def resident_bytes(dim: int) -> int:
    """Memory of the arenas of a dim."""
    maps = Path("/proc/self/smaps").read_text(encoding="utf-8")
    of_arenas = re.findall(rf"/memfd:tables-{dim} .*\nSize:.*(?:\n\w+:.*)*?\nRss: +(\d+) kB", maps)
    assert of_arenas
    return sum(map(int, of_arenas)) * 1024


def test_the_index_grows_little_by_little_and_is_never_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket_index, "_AT_ONCE", 0)
    steps: list[int] = []
    change = bucket_index.BucketIndex._change

    def recorded(self: bucket_index.BucketIndex, buckets: int) -> bool:
        steps.append(buckets)
        return change(self, buckets)

    monkeypatch.setattr(bucket_index.BucketIndex, "_change", recorded)
    tables = group(dim=1, tables=1)
    ids = np.random.default_rng(0).permutation(300_000).astype(np.uint64)
    for n, piece in enumerate(np.array_split(ids, 1000)):
        tables.update(piece, counts(len(piece)), np.ones((len(piece), 1), np.float32))
        if n % 50 == 0:
            known = ids[: (n + 1) * len(piece) : 97]
            assert tables.contains(known, counts(len(known))).all()
    assert len(steps) > 100
    assert max(steps[20:]) <= 300 * 2  # buckets, beside an update of 300
    assert tables.rows == tables.slot_rows.sum() == 300_000
    assert len(every_row(tables).ids) == 300_000


def test_a_reserved_index_does_not_grow_and_shrinks_with_its_rows() -> None:
    tables = group(dim=1)
    train(tables, many(100_000))
    rows = every_row(tables)
    small = tables.bytes
    other = group(dim=1)
    other.reserve(len(rows.ids))
    reserved = other.bytes
    assert reserved >= 6 * len(rows.ids), "it is to have its size before rows come"
    other.write(rows)
    assert other.bytes - reserved == pytest.approx(other.used * other.row_bytes, abs=4 << 20)
    assert same(every_row(other), rows)
    drop_all(tables, np.arange(slot_sets.SLOTS) >= 50, scan_limit=5000)
    kept = every_row(tables)
    compact_all(tables, limit=500)
    assert tables.bytes < small / 4
    assert same(every_row(tables), kept)


def test_rows_that_come_while_the_index_shrinks_find_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket_index, "_AT_ONCE", 0)
    tables = group(dim=1)
    tables.reserve(500_000)
    train(tables, many(100))
    large = tables.bytes
    assert not tables.compact(100)  # it has begun
    train(tables, many(20_000))
    rows = every_row(tables)
    assert len(rows.ids) == tables.rows == 40_000
    compact_all(tables, limit=10_000)
    assert tables.bytes < large
    assert same(every_row(tables), rows)


# --- many rows at once ------------------------------------------------------------------------------------------------


def shuffled(data: RowData, seed: int) -> RowData:
    order = np.random.default_rng(seed).permutation(len(data.ids))
    return RowData(*(array[order] for array in data))


@pytest.mark.parametrize("use", OPTIMIZERS)
@pytest.mark.parametrize("dim", [1, 3, 16, 37])
def test_many_rows_written_at_once_are_exact_over_existing_rows(use: str, dim: int) -> None:
    source = group(use, dim=dim)
    train(source, many(6000))
    train(source, many(2500), seed=1)
    rows = every_row(source)
    for known in ([], [0], [3, 700], list(range(40, 60)), [len(rows.ids) - 1]):
        target = group(use, dim=dim)
        stale = RowData(*(array[known] for array in rows))
        target.write(stale._replace(values=stale.values + 1, counts=stale.counts + 7))
        target.write(rows)
        assert same(every_row(target), rows)
        assert target.rows == target.slot_rows.sum() == len(rows.ids)
        train(target, many(6100), seed=2)
    train(source, many(6100), seed=2)
    assert same(every_row(target), every_row(source))


def test_of_a_row_written_twice_at_once_the_later_stays() -> None:
    source = group(tables=1)
    source.update(many(4000), counts(4000), np.ones((4000, 4), np.float32))
    rows = every_row(source)
    twice = RowData(*(np.concatenate([array, array[:10]]) for array in rows))
    twice.values[4000:] = 5.0
    target = group(tables=1)
    target.write(twice)
    assert target.rows == 4000
    found = every_row(target)
    assert (found.values[:10] == 5.0).all()
    assert same(RowData(*(array[10:] for array in found)), RowData(*(array[10:] for array in rows)))


def test_many_rows_find_room_after_dropping_and_freeing_others() -> None:
    tables = group(dim=16)
    train(tables, many(8000))
    rows = every_row(tables)
    for seed in range(3):
        drop_all(tables, LOWER)
        compact_all(tables, limit=1000)
        assert (every_row(tables).ids == every_row(tables, ~LOWER).ids).all()
        tables.write(shuffled(rows, seed))
        assert same(every_row(tables), rows)
        assert tables.bytes >= tables.used * tables.row_bytes


def test_rows_changed_by_training_while_many_come_at_once_are_logged() -> None:
    source, target = group(), group()
    train(source, many(4000))
    target.track(LOWER)
    target.write(every_row(source))
    logged = target.take_log()
    assert len(logged) == target.slot_rows[LOWER].sum()


def test_an_index_that_grows_while_rows_are_written_finds_them_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket_index, "_AT_ONCE", 0)
    source = group(dim=1)
    train(source, many(60_000))
    rows = shuffled(every_row(source), 0)
    target = group(dim=1)
    for part in range(0, len(rows.ids), 5000):
        target.write(RowData(*(array[part : part + 5000] for array in rows)))
    assert same(every_row(target), in_order(rows))
    assert target.contains(rows.ids[rows.tables == 0], counts(60_000, 0)).all()
