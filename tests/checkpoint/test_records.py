"""Rows as records: what each word of one is, how they come into blocks and out of them again, in whatever order groups come; damage; and
checkpoints of version 1, whose blocks are arrays."""

from __future__ import annotations

import struct
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlrover_lite.checkpoint import buckets, part_writer
from dlrover_lite.checkpoint.layout import ENTRY_BYTES_1, HEAD, TAIL, Codec, GroupShape
from dlrover_lite.checkpoint.manifest import MANIFEST, Manifest, pack_manifest
from dlrover_lite.checkpoint.part_writer import PartWriter
from dlrover_lite.checkpoint.store import CheckpointStore
from dlrover_lite.core import records, slot_sets
from dlrover_lite.core.errors import CheckpointDamaged, CheckpointForeign
from dlrover_lite.core.records import RecordShape, mixed, pack_rows, table_salt, unpack_rows
from dlrover_lite.core.rows import RowData
from dlrover_lite.tables.hashing import mix64
from dlrover_lite.tables.layout import hashes_of, slots_of
from tests.checkpoint.cuts import (
    BLOCK_BYTES,
    SALTS,
    SHAPES,
    TABLES,
    Key,
    State,
    expected,
    halves,
    keys,
    manifest_of,
    rows_of,
    slot_of,
    state_of,
)

WORD = 1 << 64
IDS = st.sampled_from([0, 1, 2, 1 << 32, 1 << 63, WORD - 1]) | st.integers(0, WORD - 1)
EVERY_SLOT = ~slot_sets.none()


# --- one record ---------------------------------------------------------------------------------------------------------


@st.composite
def some_rows(draw: st.DrawFn) -> tuple[RowData, RecordShape, np.ndarray]:
    """Of any bits. Also the salts of their group."""
    salts = np.array(draw(st.lists(IDS, min_size=1, max_size=5)), np.uint64)
    shape = RecordShape(draw(st.integers(1, 9)), draw(st.integers(0, 18)), draw(st.booleans()))
    ids = np.array(draw(st.lists(IDS, max_size=30)), np.uint64)
    random = np.random.default_rng(draw(st.integers(0, 1000)))

    def bits(*size: int) -> np.ndarray:
        return random.integers(0, 1 << 32, (len(ids), *size), np.uint32)

    counts = bits() if shape.counted else np.zeros(len(ids), np.uint32)
    values, state = bits(shape.dim).view(np.float32), bits(shape.state).view(np.float32)
    return RowData(ids, random.integers(0, len(salts), len(ids), np.uint16), counts, values, state), shape, salts


def check_same(found: RowData, wanted: RowData) -> None:
    """Bit for bit: not a number is what it was, too."""
    for name, one, other in zip(RowData._fields, found, wanted, strict=True):
        assert (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes()), name


@settings(deadline=None)
@given(some_rows())
def test_rows_survive_packing_into_records(given_rows: tuple[RowData, RecordShape, np.ndarray]) -> None:
    rows, shape, salts = given_rows
    packed = pack_rows(rows, shape, salts)
    assert (packed.dtype, packed.shape) == (np.uint32, (len(rows.ids), shape.words))
    assert packed.nbytes == len(rows.ids) * shape.bytes
    check_same(unpack_rows(packed, shape, salts), rows)
    check_same(unpack_rows(packed, shape, salts, with_state=False), rows._replace(state=rows.state[:, :0]))
    assert records.positions_of(packed).tolist() == (rows.tables + 1).tolist()
    assert not records.epochs_of(packed).any()
    packed[:, 2] |= np.uint32(records.EPOCHS_MOST)
    check_same(unpack_rows(packed, shape, salts), rows)  # when a row has changed last says nothing of what it is
    assert (records.epochs_of(packed) == records.EPOCHS_MOST).all()


def test_unpacked_rows_are_copies() -> None:
    rows, shape = rows_of(keys(9), 0, 1), SHAPES[0].record
    packed = rows.records.copy()
    found = unpack_rows(packed, shape, SALTS[0])
    packed[:] = 0
    check_same(found, rows.rows)


@pytest.mark.parametrize("counted", [False, True])
def test_layout_of_the_words_of_a_record(counted: bool) -> None:
    """As docs/checkpoints.md draws them."""
    values, state = np.array([[1.5, -2.0]], np.float32), np.array([[3.0]], np.float32)
    one = np.array([1], np.uint64), np.array([6], np.uint16), np.array([77 * counted], np.uint32), values, state
    salts = np.zeros(7, np.uint64)
    (packed,) = pack_rows(RowData(*one), RecordShape(2, 1, counted), salts)
    count = struct.pack("<I", 77) if counted else b""
    # mix64(1), which is MurmurHash3's, and the seventh table
    assert packed.tobytes() == struct.pack("<QI", 0xB456BCFC34C2CB2C, 7 << 20) + count + struct.pack("<fff", 1.5, -2, 3)
    assert (int(records.slots_of(packed[None])[0]), int(records.hashes_of(packed[None])[0])) == (
        0xB45,
        0xB456BCFC34C2CB2C,
    )


def test_a_record_that_is_free_or_of_no_table_is_no_row() -> None:
    for position, what in ((0, "a free row"), (3, "of table 3 of 2"), (4095, "of table 4095 of 2")):
        packed = rows_of(keys(9), 0, 1).records.copy()
        packed[4, 2] = position << 20 | 9
        with pytest.raises(ValueError, match=what):
            unpack_rows(packed, SHAPES[0].record, SALTS[0])


# --- hashes -------------------------------------------------------------------------------------------------------------


def mix_of(x: int) -> int:
    """``mix64``, in plain numbers."""
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        x = (x ^ x >> 33) * factor % WORD
    return x ^ x >> 33


@settings(deadline=None)
@given(st.lists(IDS, min_size=1, max_size=50), st.text(max_size=9))
def test_hashes_and_slots_are_the_same_everywhere(ids: list[int], table: str) -> None:
    """In checkpoints as in servers, with and without compiled code; and ids follow from them."""
    salt = table_salt(table)
    hashes = [mix_of(number ^ int(salt)) for number in ids]
    given_ids = np.array(ids, np.uint64)
    assert mixed(given_ids ^ salt).tolist() == hashes
    assert [int(mix64(number ^ salt)) for number in given_ids] == hashes
    assert hashes_of(table, given_ids).tolist() == hashes
    n = len(ids)
    rows = RowData(
        given_ids,
        np.zeros(n, np.uint16),
        np.zeros(n, np.uint32),
        np.zeros((n, 1), np.float32),
        np.empty((n, 0), np.float32),
    )
    packed = pack_rows(rows, RecordShape(1, 0, False), np.array([salt]))
    assert records.hashes_of(packed).tolist() == hashes
    assert records.slots_of(packed).tolist() == slots_of(table, given_ids).tolist() == [h >> 52 for h in hashes]
    assert unpack_rows(packed, RecordShape(1, 0, False), np.array([salt])).ids.tolist() == ids


def test_salts_of_tables_never_change() -> None:
    """Checkpoints and slot maps of years ago depend on it."""
    assert [int(table_salt(name)) for name in ("user", "")] == [0x638DD47B9A5CDFAF, 0xB4B2797457A0A6E4]


def test_slots_computed_by_the_tests_are_those_of_servers() -> None:
    for key in keys(30):
        assert slot_of(key) == slots_of(TABLES[key[0]][key[1]], np.array([key[2]], np.uint64))[0]


# --- parts --------------------------------------------------------------------------------------------------------------


def put(part: PartWriter, group: int, found: np.ndarray) -> None:
    """Each where the next one of its slots belongs, as compiled code does."""
    buckets = part.buckets(group)
    for record, slot in zip(found, records.slots_of(found).tolist(), strict=True):
        number = slot >> 8
        if buckets.used[number] == buckets.capacity:
            part.flush_full()
        start = int(buckets.offsets[number]) + int(buckets.used[number]) * buckets.words
        buckets.memory[start : start + buckets.words] = record
        buckets.used[number] += np.uint64(1)
    part.flush_full()


WAYS: dict[str, Callable[[PartWriter, int, np.ndarray], None]] = {
    "add": PartWriter.add,
    "put": put,
    "set_aside": PartWriter.set_aside,
}


def records_of(some: list[Key], group: int) -> np.ndarray:
    return rows_of(some, group, 1).records.copy()


def write_parts(
    store: CheckpointStore,
    codec: Codec,
    steps: list[tuple[str, int, list[Key]]],
    owners: list[slot_sets.SlotSet],
    block_bytes: int = BLOCK_BYTES,
) -> Manifest:
    """Cut 1: what each step puts into its group, one of the ``WAYS``; each server what is in its slots."""
    writer = store.begin(1)
    parts = []
    for ps, owned in enumerate(owners):
        with writer.part("job-1", ps, owned, SHAPES, codec=codec, block_bytes=block_bytes) as part:
            for way, group, some in steps:
                found = records_of([key for key in some if owned[slot_of(key)]], group)
                WAYS[way](part, group, found)
                found[:] = 0xFFFFFFFF  # it was copied
            parts.append(part.finish())
    manifest = manifest_of(1, parts)
    writer.commit(manifest)
    return manifest


@st.composite
def ways_to_write(draw: st.DrawFn) -> list[tuple[str, int, list[Key]]]:
    """Group after group; of those whose turn hasn't come some rows are set aside meanwhile."""
    left = draw(st.permutations(keys(90)))[: draw(st.integers(0, 90))]
    steps: list[tuple[str, int, list[Key]]] = []
    for now in range(len(SHAPES)):
        for _ in range(draw(st.integers(0, 5))):
            group = draw(st.sampled_from([now, *range(now, len(SHAPES))]))
            way = draw(st.sampled_from(["add", "put"])) if group == now else "set_aside"
            chosen = [key for key in left if key[0] == group][: draw(st.sampled_from([1, 5, 40]))]
            left = [key for key in left if key not in chosen]
            steps.append((way, group, chosen))
    return steps


@settings(max_examples=40, deadline=None)
@given(
    ways_to_write(),
    st.sampled_from(["none", "zlib"]),
    st.sampled_from([0, 1500, 4096]),
    st.binary(min_size=512, max_size=512),
)
def test_rows_come_in_any_order_of_groups(
    steps: list[tuple[str, int, list[Key]]], codec: Codec, border: int, wanted: bytes
) -> None:
    """Each row is there once, in whatever way it came, and whoever wants some slots gets theirs."""
    everything = [key for _, _, some in steps for key in some]
    with tempfile.TemporaryDirectory() as directory:
        store = CheckpointStore(directory)
        manifest = write_parts(store, codec, steps, halves(border), block_bytes=150)
        assert store.verify(1) == []
        for g in range(len(SHAPES)):
            assert sum(part.rows[g] for part in manifest.parts) == len([key for key in everything if key[0] == g])
        blocks = list(store.rows(1))
        assert sum(len(block.slots) for block in blocks) == len(everything)
        assert state_of(blocks) == expected(dict.fromkeys(everything, 1))
        slots = slot_sets.unpack(wanted)
        mine = {key: 1 for key in everything if slots[slot_of(key)] and key[0] == 1}
        some = list(store.rows(1, slots, [1]))
        assert sum(len(block.slots) for block in some) == len(mine)
        assert state_of(some) == expected(mine)
        for part in manifest.parts:
            with closing(store._open(manifest, part)) as reader:
                for number, block in reader.blocks():
                    entry = reader.index[number]
                    assert len(block.slots) * SHAPES[block.group].record.bytes <= 150
                    assert (entry["rows"], entry["first_slot"], entry["last_slot"]) == (
                        len(block.slots),
                        block.slots.min(),
                        block.slots.max(),
                    )


MIXED = [
    ("set_aside", 1, keys(200)[2::6]),
    ("add", 0, [key for key in keys(300) if key[0] == 0]),
    ("set_aside", 1, keys(900)[302::6]),
    ("put", 1, keys(200)[5::6]),
]
"""Blocks that are full and some that aren't, of slots that are neighbours and of whatever slots."""


@pytest.mark.parametrize("codec", ["none", "zlib"])
def test_each_server_reads_its_own_slots_and_no_row_twice(tmp_path: Path, codec: Codec) -> None:
    store = CheckpointStore(str(tmp_path))
    write_parts(store, codec, MIXED, halves())
    rows = expected({key: 1 for _, _, some in MIXED for key in some})
    assert store.manifest(1).rows == len(rows)
    for servers in (1, 2, 3):
        read: State = {}
        for number in range(servers):
            wanted = np.arange(slot_sets.SLOTS) % servers == number
            blocks = list(store.rows(1, wanted))
            assert all(wanted[block.slots].all() for block in blocks)
            found = state_of(blocks)
            assert len(found) == sum(len(block.slots) for block in blocks)
            assert not found.keys() & read.keys()
            read |= found
        assert read == rows


def test_records_are_read_as_they_were_written(tmp_path: Path) -> None:
    """Word for word: whoever keeps rows in the same way needn't take them apart."""
    store = CheckpointStore(str(tmp_path))
    found = records_of(keys(40), 0)
    found[:, 2] |= np.arange(len(found), dtype=np.uint32)
    writer = store.begin(1)
    with writer.part("job-1", 0, EVERY_SLOT, SHAPES, block_bytes=BLOCK_BYTES) as part:
        part.add(0, found[:9])
        part.set_aside(0, found[9:])
        entry = part.finish()
    writer.commit(manifest_of(1, [entry]))
    read = []
    for block in store.rows(1):
        assert block.records is not None
        assert (block.records.shape, block.records.salts.tolist()) == (SHAPES[0].record, SALTS[0].tolist())
        assert block.slots.tolist() == records.slots_of(block.records.words).tolist()
        read += block.records.words.tolist()
    assert sorted(read) == sorted(found.tolist())


# --- damage -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["none", "zlib"])
def test_damage_to_any_byte_is_noticed(tmp_path: Path, codec: Codec) -> None:
    store = CheckpointStore(str(tmp_path))
    write_parts(store, codec, MIXED, halves())
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


def write_unchecked(store: CheckpointStore, shape: GroupShape, found: np.ndarray) -> None:
    """Cut 1, of these records whatever they are."""
    writer = store.begin(1)
    with writer.part("job-1", 0, EVERY_SLOT, [shape]) as part:
        put(part, 0, found)
        entry = part.finish()
    writer.commit(msgspec.structs.replace(manifest_of(1, [entry]), groups=[shape]))


@pytest.mark.parametrize("position", [0, 3, 4095])
def test_a_row_of_an_unknown_table_is_damage(tmp_path: Path, position: int) -> None:
    """Its bytes are as they were written: they were wrong before."""
    store = CheckpointStore(str(tmp_path))
    found = records_of(keys(9), 0)
    found[4, 2] = position << 20
    write_unchecked(store, SHAPES[0], found)
    for _ in range(2):
        with pytest.raises(
            CheckpointDamaged, match=r"block \d of \d: it has rows of tables that there aren't: 2 are known"
        ):
            list(store.rows(1))
    (damage,) = store.verify(1)
    assert "tables that there aren't" in damage.message


def test_a_part_without_its_tables_is_damaged(tmp_path: Path) -> None:
    """Its ids can't be known."""
    store = CheckpointStore(str(tmp_path))
    write_unchecked(store, GroupShape(4, 4, counted=True), records_of(keys(9), 0)[:1])
    with pytest.raises(CheckpointDamaged, match="tables that there aren't: 0 are known"):
        list(store.rows(1))
    assert len(store.verify(1)) == 1


@pytest.mark.parametrize("codec", ["none", "zlib"])
def test_a_block_shorter_than_its_rows_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, codec: Codec
) -> None:
    store = CheckpointStore(str(tmp_path))
    real = buckets.Room.pieces
    with monkeypatch.context() as patch:
        patch.setattr(buckets.Room, "pieces", lambda room, used: [real(room, used)[0][: 48 * used - 8]])
        write_parts(store, codec, MIXED[1:2], halves())
    with pytest.raises(CheckpointDamaged, match=r"block 0 of \d+: it is too short"):
        list(store.rows(1))


def test_blocks_of_an_unknown_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = CheckpointStore(str(tmp_path))
    with monkeypatch.context() as patch:
        patch.setattr(part_writer, "RECORDS", 2)
        write_parts(store, "none", MIXED, halves())
    with pytest.raises(CheckpointForeign, match="blocks of a kind 2"):
        list(store.rows(1))


# --- version 1 ----------------------------------------------------------------------------------------------------------


def expected_1(versions: dict[Key, int]) -> State:
    """As ``expected``, of the recorded cuts: each row has a count of updates, and is in a slot that was made up."""
    found: State = {}
    for (group, table, number), version in versions.items():
        first, dim, state = number % (1 << 20) + version, (4, 3)[group], (4, 0)[group]
        slot = (number * 2_654_435_761 + table * 977 + group) % slot_sets.SLOTS
        values, more = (tuple(float(first * k + i) for i in range(n)) for k, n in ((1, dim), (2, state)))
        found[group, table, number] = (slot, first, values, more)
    return found


BEFORE, CHANGED = dict.fromkeys(keys(300), 1), dict.fromkeys(keys(100, start=250), 2)


@pytest.fixture
def recorded(tmp_path: Path) -> CheckpointStore:
    """A base and an increment on top, as recorded bytes."""
    with zipfile.ZipFile(Path(__file__).parent / "cuts-1.0.zip") as cuts:
        cuts.extractall(tmp_path)
    return CheckpointStore(str(tmp_path))


def test_a_checkpoint_written_by_version_1_is_read(recorded: CheckpointStore) -> None:
    assert [cut.state for cut in recorded.checkpoints()] == ["complete", "complete"]
    assert recorded.verify(2) == []
    assert state_of(recorded.rows(1)) == expected_1(BEFORE)
    assert state_of(recorded.rows(2)) == expected_1(BEFORE | CHANGED)
    assert all(block.records is None for block in recorded.rows(2))


def test_slots_and_groups_of_a_checkpoint_of_version_1(recorded: CheckpointStore) -> None:
    whole = expected_1(BEFORE | CHANGED)
    for wanted in (np.arange(slot_sets.SLOTS) % 3 == 1, np.arange(slot_sets.SLOTS) < 900):
        mine = {key: row for key, row in whole.items() if wanted[row[0]] and key[0] == 0}
        assert 0 < len(mine) < len(whole)
        assert state_of(recorded.rows(2, wanted, [0])) == mine


def test_damage_to_any_byte_of_version_1_is_noticed(recorded: CheckpointStore) -> None:
    path = next(iter(sorted((Path(recorded.url) / "cut-00000002").glob("ps-0-*.part"))))
    whole = path.read_bytes()
    for at in [*range(0, 4096, 256), *range(4096, len(whole), 31)]:
        if at - len(whole) in range(-12, -8):
            continue  # zeros of the tail, which mean nothing
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        with pytest.raises(CheckpointDamaged, match=path.name):
            list(recorded.rows(2))
        assert recorded.verify(2), at


@pytest.mark.parametrize("more", [0, 4])
def test_rows_of_a_newer_minor_version_1_may_be_longer(recorded: CheckpointStore, more: int) -> None:
    """A newer minor version's: four bytes a row more at the end of each block; or less than that."""
    for cut in (1, 2):
        manifest = recorded.manifest(cut)
        parts = []
        for part in manifest.parts:
            path = Path(recorded.url) / f"cut-{cut:08}" / part.file
            data, index_crc32 = longer_rows(path.read_bytes(), more)
            path.write_bytes(data)
            parts.append(msgspec.structs.replace(part, stored_bytes=len(data), index_crc32=index_crc32))
        changed = pack_manifest(msgspec.structs.replace(manifest, parts=parts), (1, 1))
        (Path(recorded.url) / f"cut-{cut:08}" / MANIFEST).write_bytes(changed)
    if more < 4:
        with pytest.raises(CheckpointDamaged, match="it is too short"):
            list(recorded.rows(2))
        return
    assert recorded.verify(2) == []
    assert state_of(recorded.rows(2)) == expected_1(BEFORE | CHANGED)


def longer_rows(part: bytes, more: int) -> tuple[bytes, int]:
    """The part, each of whose rows has so many bytes more, and should have four; and its index's checksum."""
    magic, major, minor, length, _ = HEAD.unpack_from(part)
    head = msgspec.json.decode(part[HEAD.size : HEAD.size + length])
    sizes = [group["row_bytes"] for group in head["groups"]]
    for group in head["groups"]:
        group["row_bytes"] += 4
    text = msgspec.json.encode(head).ljust(length)
    start = HEAD.pack(magic, major, minor + 1, length, 0)[:-4]
    made = start + struct.pack("<I", zlib.crc32(start + text)) + text
    index_at, rows, blocks, *_ = TAIL.unpack_from(part, len(part) - TAIL.size)
    index = b""
    for number in range(blocks):
        offset, size, n, g, first, last, _ = struct.unpack_from("<QIIIHHI", part, index_at + number * ENTRY_BYTES_1)
        packed = head["codec"] == "zlib"  # as the second cut is
        block = zlib.decompress(part[offset : offset + size]) if packed else part[offset : offset + size]
        block = block[: n * sizes[g]] + b"\7" * more * n
        block = zlib.compress(block) if packed else block
        index += struct.pack("<QIIIHHI", len(made), len(block), n, g, first, last, zlib.crc32(block))
        made += block
    tail = struct.pack("<QQII", len(made), rows, blocks, zlib.crc32(index))
    return made + index + tail + struct.pack("<I4x8s", zlib.crc32(tail), b"DLRLTAIL"), zlib.crc32(index)
