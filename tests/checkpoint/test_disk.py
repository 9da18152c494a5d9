"""Large blocks in a directory, which go past the page cache where the file system can do that, and through it where not: the same files,
the same rows; full disks and damage as with small ones."""

from __future__ import annotations

import errno
import fcntl
import gc
import itertools
import os
import resource
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dlrover_lite.checkpoint import local
from dlrover_lite.checkpoint.layout import ALIGNMENT, LARGE_BYTES, Block, GroupShape
from dlrover_lite.checkpoint.manifest import Manifest
from dlrover_lite.checkpoint.store import CheckpointStore
from dlrover_lite.core import slot_sets
from dlrover_lite.core.errors import CheckpointDamaged, JobError
from dlrover_lite.core.records import pack_rows, table_salt
from dlrover_lite.core.rows import RowData
from dlrover_lite.tables.layout import slots_of
from tests.checkpoint.cuts import manifest_of

TABLES = ["user", "city"]
SALTS = [np.array([table_salt(name)]) for name in TABLES]
SHAPES = [
    GroupShape(2048, 1024, counted=True, salts=SALTS[0].tolist()),
    GroupShape(3000, 0, salts=SALTS[1].tolist()),
]
BLOCK_BYTES = LARGE_BYTES + 50_000
EVERYTHING = ~slot_sets.none()
needs_direct = pytest.mark.skipif(not hasattr(os, "O_DIRECT"), reason="this system has no way past the page cache")


def rows_of(group: int, count: int) -> tuple[RowData, np.ndarray]:
    """In the slots of two sixteenths."""
    shape = SHAPES[group]
    ids = np.arange(16 * count, dtype=np.uint64)
    slots = slots_of(TABLES[group], ids).astype(np.uint16)
    chosen = np.flatnonzero(slots < 512)[:count]
    ids = ids[chosen]
    values = (ids[:, None] + np.arange(shape.dim, dtype=np.uint64)).astype(np.float32)
    state = (ids[:, None] * np.uint64(2) + np.arange(shape.state, dtype=np.uint64)).astype(np.float32)
    counts = ids.astype(np.uint32) + np.uint32(1) if shape.counted else np.zeros(count, np.uint32)
    return RowData(ids, np.zeros(count, np.uint16), counts, values, state), slots[chosen]


def records_of(group: int, count: int) -> np.ndarray:
    return pack_rows(rows_of(group, count)[0], SHAPES[group].record, SALTS[group])


COUNTS = [140, 100]
"""Full blocks and some that aren't, of either group."""


def write(store: CheckpointStore, cut: int = 1, *, aside: int = 0) -> Manifest:
    """``aside``: so many rows of the second group come before their turn."""
    writer = store.begin(cut)
    with writer.part("job-1", 0, EVERYTHING, SHAPES, block_bytes=BLOCK_BYTES) as part:
        for group, count in enumerate(COUNTS):
            records = records_of(group, count)
            for start in range(group * aside, count, 33):
                part.add(group, records[start : start + 33])
                if group == 0 and start < aside:
                    part.set_aside(1, records_of(1, aside)[start : start + 33])
        entry = part.finish()
    manifest = manifest_of(cut, [entry])
    fields = {name: getattr(manifest, name) for name in manifest.__struct_fields__}
    writer.commit(Manifest(**fields | {"groups": SHAPES}))
    return store.manifest(cut)


def check(blocks: Iterator[Block], owned: slot_sets.SlotSet = EVERYTHING) -> None:
    """Every row in these slots once, as it was written."""
    found = list(blocks)
    for group, count in enumerate(COUNTS):
        expected, slots = rows_of(group, count)
        of_group = [block for block in found if block.group == group]
        ids = np.concatenate([block.rows.ids for block in of_group])
        order = np.argsort(ids)
        which = np.flatnonzero(owned[slots])
        np.testing.assert_array_equal(np.concatenate([block.slots for block in of_group])[order], slots[which])
        for name in RowData._fields:
            together = np.concatenate([getattr(block.rows, name) for block in of_group])
            np.testing.assert_array_equal(together[order], getattr(expected, name)[which])


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    made = CheckpointStore(str(tmp_path / "checkpoints"))
    made.create()
    return made


def part_of(store: CheckpointStore) -> Path:
    (path,) = (Path(store.url) / "cut-00000001").glob("*.part")
    return path


def descriptors() -> int:
    gc.collect()  # those of tests before
    return len(list(Path("/dev/fd").iterdir()))


class Refusing:
    """A file system that can't write or read past the page cache, and says so at some step."""

    def __init__(self, patch: pytest.MonkeyPatch, step: str) -> None:
        self.flags: dict[int, int] = {}
        self.refused = 0
        real = {name: getattr(os, name) for name in ("open", "writev", "preadv")}
        real_fcntl = fcntl.fcntl

        def refuse(*_: Any) -> Any:
            self.refused += 1
            raise OSError(errno.EINVAL, "Invalid argument")

        def is_direct(descriptor: int) -> bool:
            return bool(real_fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT)

        def call(name: str) -> Any:
            return lambda descriptor, *more: (
                refuse() if step == "use" and is_direct(descriptor) else real[name](descriptor, *more)
            )

        def opened(path: Any, flags: int, *more: Any) -> int:
            return refuse() if step == "ask" and flags & os.O_DIRECT else real["open"](path, flags, *more)

        def asked(descriptor: int, command: int, argument: int = 0) -> Any:
            wanted = command == fcntl.F_SETFL and argument & os.O_DIRECT
            return refuse() if step == "ask" and wanted else real_fcntl(descriptor, command, argument)

        patch.setattr(os, "writev", call("writev"))
        patch.setattr(os, "preadv", call("preadv"))
        patch.setattr(os, "open", opened)
        patch.setattr(fcntl, "fcntl", asked)


@needs_direct
@pytest.mark.parametrize("step", ["ask", "use"])
def test_cuts_are_written_and_read_where_direct_io_is_refused(store: CheckpointStore, step: str) -> None:
    write(store)
    as_usual = part_of(store).read_bytes()
    store.delete(1)
    with pytest.MonkeyPatch.context() as patch:
        system = Refusing(patch, step)
        write(store)
        assert system.refused == 1  # it isn't asked again
        check(store.rows(1))
        assert system.refused > 1
    check(store.rows(1))
    assert part_of(store).read_bytes() == as_usual
    assert store.verify(1) == []


def test_cuts_are_written_and_read_on_a_system_without_direct_io(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "O_DIRECT", raising=False)
    write(store)
    check(store.rows(1))


def test_writes_that_are_cut_short_are_continued(store: CheckpointStore, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.writev
    monkeypatch.setattr(os, "writev", lambda descriptor, views: real(descriptor, [views[0][:100_001]]))
    write(store)
    check(store.rows(1))
    assert store.verify(1) == []


def test_reads_that_are_cut_short_are_continued(store: CheckpointStore, monkeypatch: pytest.MonkeyPatch) -> None:
    write(store)
    real = os.preadv
    monkeypatch.setattr(os, "preadv", lambda descriptor, rooms, at: real(descriptor, [rooms[0][: 3 * ALIGNMENT]], at))
    check(store.rows(1))


@pytest.mark.parametrize("aside", [3, 60, COUNTS[1]])
def test_rows_set_aside_before_their_groups_turn_are_written(store: CheckpointStore, aside: int) -> None:
    """Some, more than a block of them, and all of their group."""
    manifest = write(store, aside=aside)
    assert manifest.parts[0].rows == COUNTS
    with closing(store._open(manifest, manifest.parts[0])) as reader:
        blocks = [(int(entry["offset"]), int(entry["bytes"])) for entry in reader.index]
    assert all(offset + size == following for (offset, size), (following, _) in itertools.pairwise(blocks))
    assert store.verify(1) == []
    check(store.rows(1))


@needs_direct
def test_full_blocks_pass_by_the_page_cache(store: CheckpointStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the second group too, whatever was left of the first; on a file system that can do that at all."""
    sizes: list[tuple[bool, int]] = []
    real = os.writev

    def noting(descriptor: int, views: list[memoryview]) -> int:
        sizes.append((bool(fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT), real(descriptor, views)))
        return sizes[-1][1]

    monkeypatch.setattr(os, "writev", noting)
    size = write(store).parts[0].stored_bytes
    direct = sum(written for past, written in sizes if past)
    if not direct:
        pytest.skip("this file system has no way past the page cache")
    assert direct > size / 3
    switched = [past for past, _ in itertools.groupby(past for past, _ in sizes)]
    assert switched[:4] == [False, True, False, True]


@pytest.mark.parametrize("at_byte", [600_000, 1_100_123, 2_000_000])
def test_a_disk_that_gets_full_within_a_part_leaves_nothing_behind(store: CheckpointStore, at_byte: int) -> None:
    open_before = descriptors()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (at_byte, before[1]))
    try:
        with pytest.raises(JobError, match="destination is full"):
            write(store)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list((Path(store.url) / "cut-00000001").iterdir()) == []
    assert descriptors() == open_before
    write(store)
    check(store.rows(1))


def test_an_abandoned_part_leaves_no_file_or_descriptor(store: CheckpointStore) -> None:
    open_before = descriptors()
    with store.begin(1).part("job-1", 0, EVERYTHING, SHAPES, block_bytes=BLOCK_BYTES) as part:
        part.add(0, records_of(0, COUNTS[0]))
        part.set_aside(1, records_of(1, COUNTS[1]))
    assert list((Path(store.url) / "cut-00000001").iterdir()) == []
    assert descriptors() == open_before


def test_a_bit_flipped_in_or_the_end_cut_off_at_every_block(store: CheckpointStore) -> None:
    manifest = write(store)
    path = part_of(store)
    with closing(store._open(manifest, manifest.parts[0])) as reader:
        blocks = [(int(entry["offset"]), int(entry["bytes"])) for entry in reader.index]
    whole = path.read_bytes()
    assert len(blocks) > 8
    assert all(offset + size == following for (offset, size), (following, _) in itertools.pairwise(blocks))
    for number, (offset, size) in enumerate(blocks):
        for at in (offset, offset + size // 2, offset + size - 1):
            with path.open("r+b") as file:
                file.seek(at)
                file.write(bytes([whole[at] ^ 1 << at % 8]))
            with pytest.raises(CheckpointDamaged, match=f"block {number} of {len(blocks)}"):
                list(store.rows(1))
            (damage,) = store.verify(1)
            assert str(path) in damage.message
            with path.open("r+b") as file:
                file.seek(at)
                file.write(whole[at : at + 1])
        path.write_bytes(whole[: offset + size // 2])
        with pytest.raises(CheckpointDamaged, match=path.name):
            list(store.rows(1))
        path.write_bytes(whole)
    check(store.rows(1))


def test_a_part_that_shrinks_while_read_is_damaged(store: CheckpointStore) -> None:
    manifest = write(store)
    with closing(store._open(manifest, manifest.parts[0])) as reader:
        os.truncate(part_of(store), 700_001)
        with pytest.raises(CheckpointDamaged, match=r"it ends at byte 700,001"):
            list(reader.blocks())
        found = [damage for _, damages in reader.damages() for damage in damages]
    assert len(found) == len([one for one in reader.index if one["offset"] + one["bytes"] > 700_001])


def test_an_unreadable_sector_damages_only_its_block(store: CheckpointStore, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = write(store)
    real = local._Reader.read
    with closing(store._open(manifest, manifest.parts[0])) as reader:
        bad = int(reader.index["offset"][2]) + 5

        def read(self: local._Reader, offset: int, length: int) -> memoryview:
            if offset <= bad < offset + length:
                raise CheckpointDamaged(f"{self.url} is damaged: the disk can't read it", file=self.url, hint="")
            return real(self, offset, length)

        monkeypatch.setattr(local._Reader, "read", read)
        assert [damage.message for _, damages in reader.damages() for damage in damages] == [
            f"{reader.url} is damaged: the disk can't read it"
        ]


def test_readers_of_some_slots_get_exactly_their_rows(store: CheckpointStore) -> None:
    write(store)
    numbers = np.arange(slot_sets.SLOTS)
    for owned in (numbers < 100, numbers % 3 == 1, (numbers >= 300) & (numbers < 4000)):
        check(store.rows(1, owned), owned)


def test_a_reader_that_stops_early_leaves_no_file_open(store: CheckpointStore) -> None:
    write(store)
    open_before = descriptors()
    for _ in store.rows(1):
        break
    assert descriptors() == open_before
