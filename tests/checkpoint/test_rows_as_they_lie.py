"""Blocks of rows as they lie in a server's memory: what is a row, and of what age; damage; and parts of version 1, which have none."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest

from dlrover_lite import slots as slot_sets
from dlrover_lite.checkpoint import raw_row_kernels, raw_rows
from dlrover_lite.checkpoint.layout import ArenaFacts, Codec, GroupShape
from dlrover_lite.checkpoint.manifest import PartEntry
from dlrover_lite.checkpoint.raw_rows import RawRows, slots_of_ids
from dlrover_lite.checkpoint.store import CheckpointStore
from dlrover_lite.errors import CheckpointDamaged
from tests.checkpoint.cuts import SHAPES, expected, halves, keys, manifest_of, state_of

FACTS = [ArenaFacts(1000, [5, 1 << 63]), ArenaFacts(3, [9])]
READERS = {"numpy": raw_rows.decode_raw_rows, "compiled": raw_row_kernels.decode_raw_rows}


def memory_of(shape: GroupShape, salts: list[int], clock: int, count: int, seed: int) -> RawRows:
    """A server's: a third of the numbers are free, a third newer than the snapshot."""
    random = np.random.default_rng(seed)
    meta = random.integers(0, 1 << 32, (count, 4), np.uint32)
    meta[:, 0] = random.integers(1, len(salts) + 1, count)
    ages = random.integers(0, 900, count).astype(np.uint32)
    kind = random.integers(0, 3, count)
    meta[:, 2] = np.uint32(clock & 0xFFFFFFFF) - ages
    meta[kind == 1, 2] = np.uint32(clock & 0xFFFFFFFF) + np.uint32(1) + ages[kind == 1]
    meta[kind == 0, 0] = 0
    values = random.random((count, shape.dim), np.float32)
    state = random.random((count, shape.state), np.float32)
    return RawRows(random.integers(0, 1 << 64, count, np.uint64), meta, values, state)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("clock", [1000, 0xFFFFFFFF - 20, 5])
@pytest.mark.parametrize("shape", [GroupShape(16, 16), GroupShape(3, 0), GroupShape(1, 2)])
def test_rows_are_those_that_there_were(reader: str, clock: int, shape: GroupShape) -> None:
    salts = [7, 1 << 60, 3]
    found = memory_of(shape, salts, clock, 500, clock)
    wanted = np.random.default_rng(1).random(slot_sets.SLOTS) < 0.5
    slots, rows = READERS[reader](found, ArenaFacts(clock, salts), wanted)
    at = 0
    for i in range(500):
        table, count, changed, _ = (int(word) for word in found.meta[i])
        if not table or (changed - clock - 1) % (1 << 32) < 1 << 30:
            continue
        slot = int(slots_of_ids(found.ids[i : i + 1], np.array([salts[table - 1]], np.uint64))[0])
        if not wanted[slot]:
            continue
        assert (slots[at], rows.ids[at], rows.tables[at], rows.counts[at]) == (slot, found.ids[i], table - 1, count)
        assert int(rows.ages[at]) == (clock - changed) % (1 << 32)
        assert rows.values[at].tobytes() == found.values[i].tobytes()
        assert rows.state[at].tobytes() == found.state[i].tobytes()
        at += 1
    assert at == len(slots) == len(rows.ids) > 50


def write_parts(store: CheckpointStore, codec: Codec) -> None:
    """Cut 1, of two servers with the same memory, each with half of the slots: blocks that are full and some that aren't."""
    writer = store.begin(1)
    parts: list[PartEntry] = []
    for ps, owned in enumerate(halves()):
        with writer.part("job-1", ps, owned, SHAPES, codec=codec, block_bytes=1200, arenas=FACTS) as part:
            for g, shape in enumerate(SHAPES):
                found = memory_of(shape, FACTS[g].salts, FACTS[g].clock, 100, g)
                start = 0
                while start < 100:
                    room = part.room(g)
                    count = min(room.capacity, 100 - start)
                    for source, target in zip(found, room.rows, strict=True):
                        target[:count] = source[start : start + count]
                    part.lay(room, count)
                    start += count
                _, rows = raw_rows.decode_raw_rows(found, FACTS[g], owned)
                part.counted(g, len(rows.ids))
            parts.append(part.finish(clocks=[facts.clock for facts in FACTS]))
    writer.commit(manifest_of(1, parts))


@pytest.mark.parametrize("codec", ["none", "zlib"])
def test_each_server_reads_its_own_slots_and_no_row_is_in_two_parts(tmp_path: Path, codec: Codec) -> None:
    store = CheckpointStore(str(tmp_path))
    write_parts(store, codec)
    assert store.verify(1) == []
    rows = {
        (g, int(table), int(key)): values.tobytes()
        for g, shape in enumerate(SHAPES)
        for _, found in [
            raw_rows.decode_raw_rows(
                memory_of(shape, FACTS[g].salts, FACTS[g].clock, 100, g), FACTS[g], np.ones(4096, np.bool_)
            )
        ]
        for table, key, values in zip(found.tables, found.ids, found.values, strict=True)
    }
    assert store.manifest(1).rows == len(rows)
    for servers in (1, 2, 3):
        read = {}
        for number in range(servers):
            wanted = np.arange(slot_sets.SLOTS) % servers == number
            for block in store.rows(1, wanted, kernels=number == 1):
                assert wanted[block.slots].all()
                for i, key in enumerate(block.rows.ids.tolist()):
                    name = block.group, int(block.rows.tables[i]), key
                    assert name not in read
                    read[name] = block.rows.values[i].tobytes()
        assert read == rows


@pytest.mark.parametrize("codec", ["none", "zlib"])
def test_damage_to_any_byte_is_noticed(tmp_path: Path, codec: Codec) -> None:
    store = CheckpointStore(str(tmp_path))
    write_parts(store, codec)
    path = next(iter(sorted((tmp_path / "cut-00000001").glob("ps-0-*.part"))))
    whole = path.read_bytes()
    for at in [*range(0, 4096, 256), *range(4096, len(whole), 61), *range(len(whole) - 100, len(whole))]:
        if at - len(whole) in range(-12, -8):
            continue  # zeros of the tail, which mean nothing
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        with pytest.raises(CheckpointDamaged):
            list(store.rows(1))
        assert store.verify(1), at
    path.write_bytes(whole)
    assert store.verify(1) == []


def test_a_row_of_a_table_that_there_is_not_is_damage(tmp_path: Path) -> None:
    for name, reader in READERS.items():
        found = memory_of(SHAPES[0], [5], 9, 30, 0)
        found.meta[4] = 3, 1, 9, 0
        with pytest.raises(ValueError, match="of table 3 of 1"):
            reader(found, ArenaFacts(9, [5]), np.ones(slot_sets.SLOTS, np.bool_))
        found.meta[4, 2] = 10  # newer: whatever it is, it isn't of the snapshot
        assert len(reader(found, ArenaFacts(9, [5]), np.ones(slot_sets.SLOTS, np.bool_))[0]) > 0, name


def test_a_checkpoint_that_version_1_has_written(tmp_path: Path) -> None:
    """A base and an increment on top, as recorded bytes."""
    with zipfile.ZipFile(Path(__file__).parent / "cuts-1.0.zip") as recorded:
        recorded.extractall(tmp_path)
    store = CheckpointStore(str(tmp_path))
    assert [cut.state for cut in store.cuts()] == ["complete", "complete"]
    assert store.verify(2) == []
    before, changed = dict.fromkeys(keys(300), 1), dict.fromkeys(keys(100, start=250), 2)
    assert state_of(store.rows(1)) == expected(before)
    assert state_of(store.rows(2, kernels=True)) == expected(before | changed)
