"""Files that aren't as they were written: what is read is the state, or nothing with the damaged file's name."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dlrover_lite.checkpoint.layout import HEAD, TAIL, Codec
from dlrover_lite.checkpoint.manifest import MANIFEST, pack_manifest, read_manifest
from dlrover_lite.checkpoint.part_reader import PartReader
from dlrover_lite.checkpoint.store import Checkpoint, CheckpointStore
from dlrover_lite.core.errors import CheckpointDamaged, CheckpointForeign, JobError
from tests.checkpoint.cuts import State, expected, keys, state_of, write_cut

OLD = dict.fromkeys(keys(120), 1)
CHANGED = dict.fromkeys(keys(40, start=100), 2)


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    """Cut 1, a base, and cut 2, which builds on it."""
    made = CheckpointStore(str(tmp_path))
    write_cut(made, 1, OLD)
    write_cut(made, 2, CHANGED, builds_on=1)
    return made


def files(store: CheckpointStore, cut: int, pattern: str = "*") -> list[Path]:
    return sorted((Path(store.url) / f"cut-{cut:08}").glob(pattern))


def edges(store: CheckpointStore, cut: int, path: Path) -> list[int]:
    """Where the sections of a part begin: header, its JSON, each block, index, tail; and the end."""
    manifest = store.manifest(cut)
    (entry,) = (part for part in manifest.parts if part.file == path.name)
    with closing(store._open(manifest, entry)) as reader:
        assert isinstance(reader, PartReader)
        blocks = reader.index["offset"].tolist()
        end = int(reader.index["offset"][-1]) + int(reader.index["bytes"][-1])
    size = path.stat().st_size
    return [0, HEAD.size, *blocks, end, size - TAIL.size, size]


def newest_good(store: CheckpointStore) -> tuple[int | None, list[Checkpoint]]:
    """The newest checkpoint of which every byte is as it was written, and newer ones that aren't whole."""
    passed_over: list[Checkpoint] = []
    for one in store.checkpoints():
        if one.state == "complete" and (damages := store.verify(one.number)):
            one = one._replace(state="damaged", why=damages[0].message)
        if one.state == "complete":
            return one.number, passed_over
        passed_over.append(one)
    return None, passed_over


def read(store: CheckpointStore) -> tuple[State, int]:
    """What a restore takes in the end."""
    good, _ = newest_good(store)
    assert good is not None
    return state_of(store.rows(good)), good


def refuses(store: CheckpointStore, path: Path) -> None:
    """Cut 2 can't be read; who tries is told the file. The cut before is taken, and that is said, if it isn't damaged itself."""
    with pytest.raises((CheckpointDamaged, CheckpointForeign)) as raised:
        list(store.rows(2))
    assert str(path) in raised.value.message
    assert str(path) in store.verify(2)[0].message
    good, passed_over = newest_good(store)
    if path.parent.name == "cut-00000002":
        assert good == 1
        assert [one.number for one in passed_over] == [2]
        assert str(path) in passed_over[0].why
        assert state_of(store.rows(1)) == expected(OLD)
    else:
        assert good is None


@pytest.mark.parametrize("codec", ["none", "zlib"])
def test_a_bit_flipped_in_any_section_of_a_part_is_found(tmp_path: Path, codec: Codec) -> None:
    store = CheckpointStore(str(tmp_path))
    write_cut(store, 1, OLD, codec=codec)
    write_cut(store, 2, CHANGED, builds_on=1, codec=codec)
    for path in [*files(store, 1, "*.part"), *files(store, 2, "*.part")]:
        sections = edges(store, int(path.parent.name[4:]), path)
        whole = path.read_bytes()
        for start, stop in itertools.pairwise(sections):
            at = start + (stop - start) // 3
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :])
            refuses(store, path)
        path.write_bytes(whole)
    assert read(store) == (expected(OLD | CHANGED), 2)


def test_a_part_truncated_anywhere_is_damaged(store: CheckpointStore) -> None:
    for path in [*files(store, 1, "*.part"), *files(store, 2, "*.part")]:
        sections = edges(store, int(path.parent.name[4:]), path)
        whole = path.read_bytes()
        for start, stop in itertools.pairwise(sections):
            for length in (start, (start + stop) // 2):
                path.write_bytes(whole[:length])
                refuses(store, path)
        path.unlink()
        refuses(store, path)
        path.write_bytes(whole)


def test_a_block_of_another_file_is_noticed_when_read(store: CheckpointStore) -> None:
    """Parts swapped: each is whole by itself."""
    first, second = files(store, 2, "*.part")
    one, other = first.read_bytes(), second.read_bytes()
    first.write_bytes(other)
    second.write_bytes(one)
    with pytest.raises(CheckpointDamaged):
        list(store.rows(2))


def test_damaged_blocks_are_named_by_verify(store: CheckpointStore) -> None:
    path = files(store, 1, "*.part")[0]
    sections = edges(store, 1, path)
    data = bytearray(path.read_bytes())
    for number in (1, 3):
        data[sections[2 + number] + 10] ^= 4
    path.write_bytes(data)
    # every byte is looked at by verify only
    assert [cut.state for cut in store.checkpoints()] == ["complete", "complete"]
    blocks = len(sections) - 5
    assert [str(one.message) for one in store.verify(1)] == [
        f"{path} is damaged: block {number} of {blocks}: its checksum is another" for number in (1, 3)
    ]


def variants(data: bytes) -> Iterator[bytes]:
    for at in range(len(data)):
        yield data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :]
    for length in range(0, len(data), 97):
        yield data[:length]


def test_a_manifest_with_a_flipped_bit_or_cut_off_end_is_refused(store: CheckpointStore) -> None:
    path = files(store, 2, MANIFEST)[0]
    whole = path.read_bytes()
    written = store.manifest(2)
    refused = 0
    for data in variants(whole):
        try:
            assert read_manifest(data, str(path)) == written  # its last byte is a line feed
        except (CheckpointDamaged, CheckpointForeign) as error:
            assert str(path) in error.message
            refused += 1
    assert refused >= len(whole) - 1
    path.write_bytes(whole[:-30])
    assert read(store) == (expected(OLD), 1)


def test_a_cut_whose_base_is_missing_is_damaged(store: CheckpointStore) -> None:
    store.delete(1)
    (cut,) = store.checkpoints()
    assert (cut.number, cut.state) == (2, "damaged")
    assert "checkpoint 1, which it builds on, is missing" in cut.why
    assert newest_good(store)[0] is None


def test_a_damaged_base_makes_its_increments_unusable(store: CheckpointStore) -> None:
    path = files(store, 1, "*.part")[0]
    path.write_bytes(path.read_bytes()[:-1])
    assert [cut.state for cut in store.checkpoints()] == ["damaged", "damaged"]
    assert str(path) in store.checkpoints()[0].why


def stamped(store: CheckpointStore, version: tuple[int, int], change: Any = None) -> None:
    path = files(store, 2, MANIFEST)[0]
    data = pack_manifest(store.manifest(2), version)
    if change is not None:
        envelope = msgspec.json.decode(data)
        change(envelope["manifest"])
        import zlib

        text = msgspec.json.encode(envelope["manifest"])
        checksum = zlib.crc32(text, zlib.crc32(f"{version[0]}.{version[1]} ".encode()))
        data = msgspec.json.encode(envelope | {"manifest": msgspec.Raw(text), "crc32": checksum})
    path.write_bytes(data)


def test_another_major_version_is_refused_by_name(store: CheckpointStore) -> None:
    stamped(store, (3, 3))
    with pytest.raises(
        CheckpointForeign, match=r"manifest.json is of checkpoint format 3.3; this dlrover-lite reads 1.x to 2.x"
    ):
        store.manifest(2)
    assert [cut.state for cut in store.checkpoints()] == ["foreign", "complete"]
    assert store.retain(1) == []


def test_additions_to_a_manifest_of_a_newer_minor_version_are_ignored(store: CheckpointStore) -> None:
    def change(manifest: dict[str, Any]) -> None:
        manifest["moon"] = "full"
        manifest["parts"][0]["colour"] = "green"
        manifest["configuration"]["optimizer"]["momentum"] = 0.9
        del manifest["generation"]

    stamped(store, (2, 7), change)
    assert read(store) == (expected(OLD | CHANGED), 2)
    from dlrover_lite.checkpoint.manifest import configure
    from tests.checkpoint.cuts import CONFIGURATION

    assert configure(store.manifest(2)) == CONFIGURATION


@pytest.mark.parametrize("codec", ["none", "zlib"])
def test_unknown_blocks_and_fields_of_a_newer_minor_version_are_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, codec: Codec
) -> None:
    """Blocks with four bytes a row more at their ends, and index entries with eight more."""
    import numpy as np

    from dlrover_lite.checkpoint import buckets, layout, part_writer
    from dlrover_lite.checkpoint import store as store_module

    wider = np.dtype([*layout.ENTRY.descr, ("more", "<u8")])
    real = buckets.Room.pieces

    def pieces(room: buckets.Room, used: int) -> list[Any]:
        full = used == room.capacity
        room.capacity += full
        records = real(room, used)
        room.capacity -= full
        return [*records, b"\7" * 4 * used]

    def array(entries: list[tuple[int, ...]], kind: Any) -> Any:
        return np.array([(*entry, 5) for entry in entries], wider)

    with monkeypatch.context() as patch:
        patch.setattr(buckets.Room, "pieces", pieces)
        patch.setattr(part_writer, "ENTRY", wider)
        patch.setattr(store_module, "ENTRY", wider)
        patch.setattr(part_writer, "np", type("", (), {**vars(np), "array": staticmethod(array)}))
        store = CheckpointStore(str(tmp_path))
        write_cut(store, 1, OLD, codec=codec)
    assert state_of(store.rows(1)) == expected(OLD)
    assert store.verify(1) == []


def test_an_unknown_compression_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = CheckpointStore(str(tmp_path))
    write_cut(store, 1, OLD, codec="middle-out")  # type: ignore[arg-type]
    with pytest.raises(CheckpointForeign, match="compressed by middle-out"):
        list(store.rows(1))


def test_a_destination_that_is_gone_is_not_a_damaged_cut(store: CheckpointStore, tmp_path: Path) -> None:
    elsewhere = tmp_path.with_name(f"{tmp_path.name}-unmounted")
    tmp_path.rename(elsewhere)
    with pytest.raises(JobError, match="destination is gone") as raised:
        newest_good(store)
    assert not isinstance(raised.value, CheckpointDamaged)
    elsewhere.rename(tmp_path)
    assert read(store)[1] == 2


@pytest.mark.parametrize("name", ["../ps-0.part", "/etc/passwd", "..", "", "x/../../ps-0.part", "a\0b"])
@pytest.mark.parametrize("kind", ["a directory", "an object store"])
def test_a_manifest_naming_files_outside_its_cut_is_damaged(tmp_path: Path, name: str, kind: str) -> None:
    """Whoever can write a manifest can write its checksum."""
    store = CheckpointStore(str(tmp_path / "c") if kind == "a directory" else f"memory://{tmp_path.name}")
    store.create()
    manifest = write_cut(store, 1, OLD)
    moved = msgspec.structs.replace(manifest.parts[0], file=name)
    store._destination.put(
        f"cut-00000001/{MANIFEST}", pack_manifest(msgspec.structs.replace(manifest, parts=[moved, *manifest.parts[1:]]))
    )
    (cut,) = store.checkpoints()
    assert cut.state == "damaged" and "can't be there" in cut.why
    with pytest.raises(CheckpointDamaged, match="can't be there"):
        list(store.rows(1))
    writer = store.begin(2)
    with pytest.raises(JobError, match="can't be"):  # nor is one written, whatever a server tells
        writer.commit(msgspec.structs.replace(manifest, cut=2, parts=[moved, *manifest.parts[1:]]))
    assert [cut.number for cut in store.checkpoints()] == [1]
    for use in (store._destination.open, store._destination.writer, store._destination.make, store._destination.remove):
        with pytest.raises(JobError, match="can't hold such a file"):
            use(f"cut-00000001/{name}")


@pytest.mark.parametrize("change", [{"generation": 1}, {"job": "job-2"}, {"configuration": {}}], ids=str)
def test_an_increment_on_a_cut_of_another_job_or_generation_is_damaged(tmp_path: Path, change: dict[str, Any]) -> None:
    """Of another generation or job: its clocks mean nothing there, so that rows would be missing without a word."""
    store = CheckpointStore(str(tmp_path))
    base = write_cut(store, 1, OLD)
    manifest = write_cut(store, 2, CHANGED, builds_on=1)
    if "configuration" in change:
        change = {"configuration": {**base.configuration, "seed": 8}}
    path = Path(store.url) / "cut-00000002" / MANIFEST
    path.write_bytes(pack_manifest(msgspec.structs.replace(manifest, **change)))
    assert [cut.state for cut in store.checkpoints()] == ["damaged", "complete"]
    refuses(store, path)
    # one that builds on it is no better
    write_cut(store, 3, CHANGED, builds_on=2)
    assert [cut.state for cut in store.checkpoints()] == ["damaged", "damaged", "complete"]
