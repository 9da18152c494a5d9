"""What is written comes back: bases with increments on top, any owners, either codec, a directory or an object store."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import fsspec
import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlrover_lite.checkpoint.layout import Codec, GroupShape
from dlrover_lite.checkpoint.manifest import configure
from dlrover_lite.checkpoint.store import CheckpointStore
from dlrover_lite.core import slot_sets
from dlrover_lite.core.errors import JobError
from dlrover_lite.core.records import pack_rows, table_salt
from dlrover_lite.core.rows import RowData
from tests.checkpoint.cuts import (
    CONFIGURATION,
    SHAPES,
    expected,
    halves,
    keys,
    manifest_of,
    rows_of,
    slot_of,
    state_of,
    write_cut,
)
from tests.checkpoint.served_files import served


@pytest.fixture(params=["directory", "memory", "served"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CheckpointStore]:
    with ExitStack() as stack:
        match request.param:
            case "directory":
                url = str(tmp_path / "checkpoints")
            case "memory":
                url = f"memory://bucket/{tmp_path.name}"
                stack.callback(fsspec.filesystem("memory").store.clear)
            case _:
                url = f"{stack.enter_context(served(tmp_path / 'job', monkeypatch)).url}/checkpoints"
        made = CheckpointStore(url)
        made.create()
        yield made


@pytest.mark.parametrize("codec", ["none", "zlib"])
def test_a_base_and_increments_whose_slots_move(store: CheckpointStore, codec: Codec) -> None:
    versions = dict.fromkeys(keys(400), 1)
    write_cut(store, 1, versions, codec=codec)
    for cut, border in ((2, 1000), (4, 4000)):
        changed = dict.fromkeys([*keys(40, start=cut * 30), *keys(20, start=400 + cut * 20)], cut)
        versions |= changed
        write_cut(store, cut, changed, builds_on=cut // 2, owners=halves(border), codec=codec)
    assert state_of(store.rows(4)) == expected(versions)
    assert [manifest.cut for manifest in store.chain(4)] == [1, 2, 4]
    assert [(cut.number, cut.state) for cut in store.checkpoints()] == [
        (4, "complete"),
        (2, "complete"),
        (1, "complete"),
    ]
    assert store.verify(4) == []


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_any_history_of_cuts_is_read_back_as_a_dict_says(data: st.DataObject) -> None:
    """Against a dict: cuts of random keys, bases and increments, read whole and by slots and groups."""
    pool = keys(60)
    some = st.dictionaries(st.sampled_from(pool), st.integers(0, 9), max_size=40)
    states: list[dict[tuple[int, int, int], int]] = []
    with tempfile.TemporaryDirectory() as directory:
        store = CheckpointStore(directory)
        for cut in range(data.draw(st.integers(1, 4), "cuts")):
            below = data.draw(st.sampled_from([None, *range(cut)]), "builds on")
            changed = data.draw(some, "changed")
            owners = halves(data.draw(st.sampled_from([0, 1, 100, 2048, 4095, 4096]), "border"))
            chunk = data.draw(st.sampled_from([1, 7, 50]), "chunk")
            write_cut(store, cut, changed, builds_on=below, owners=owners, chunk=chunk)
            states.append((states[below] if below is not None else {}) | changed)
        wanted = slot_sets.unpack(data.draw(st.binary(min_size=512, max_size=512), "slots"))
        for cut, versions in enumerate(states):
            assert state_of(store.rows(cut)) == expected(versions)
            mine = {key: version for key, version in versions.items() if wanted[slot_of(key)] and key[0] == 0}
            assert state_of(store.rows(cut, wanted, [0])) == expected(mine)


def test_the_manifest_is_read_back_as_written(store: CheckpointStore) -> None:
    written = write_cut(store, 12, dict.fromkeys(keys(30), 1))
    found = store.manifest(12)
    assert found == written
    assert configure(found) == CONFIGURATION
    assert found.rows == 30
    assert sum(part.rows[1] for part in found.parts) == 10


def test_readers_of_disjoint_slots_together_get_all_rows(store: CheckpointStore) -> None:
    versions = dict.fromkeys(keys(500), 3)
    write_cut(store, 1, versions)
    numbers = np.arange(slot_sets.SLOTS)
    states = [state_of(store.rows(1, numbers % 3 == one)) for one in range(3)]
    assert sum(len(state) for state in states) == 500
    assert states[0] | states[1] | states[2] == expected(versions)


def test_a_reader_of_a_few_slots_reads_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dlrover_lite.checkpoint import local

    store = CheckpointStore(str(tmp_path))
    size = write_cut(store, 1, dict.fromkeys(keys(3000), 3)).stored_bytes
    read = 0
    real = local._Reader.read

    def counting(self: local._Reader, offset: int, length: int) -> memoryview:
        nonlocal read
        read += length
        return real(self, offset, length)

    monkeypatch.setattr(local._Reader, "read", counting)
    assert state_of(store.rows(1, slot_sets.of(range(256))))
    assert read < size / 6


def test_an_empty_cut_is_read_and_verified(store: CheckpointStore) -> None:
    write_cut(store, 0, {})
    assert list(store.rows(0)) == []
    assert store.verify(0) == []


def test_blocks_name_their_cut_oldest_first(store: CheckpointStore) -> None:
    write_cut(store, 1, dict.fromkeys(keys(3), 1))
    write_cut(store, 2, dict.fromkeys(keys(1), 2), builds_on=1)
    blocks = list(store.rows(2))
    assert [block.cut for block in blocks] == sorted(block.cut for block in blocks)  # what is older comes first
    assert {block.cut for block in blocks} == {1, 2}
    assert state_of(block for block in blocks if block.cut == 2) == expected(dict.fromkeys(keys(1), 2))


@pytest.mark.parametrize("into", ["add", "set_aside"])
def test_rows_that_do_not_fit_are_refused(store: CheckpointStore, into: str) -> None:
    below, _ = halves()
    odd, right = (
        next(key for key in keys(100) if key[:2] == (0, 0) and owned[slot_of(key)]) for owned in halves()[::-1]
    )
    with store.begin(1).part("job-1", 0, below, SHAPES) as part:
        put = getattr(part, into)
        records = rows_of([right], 0, 1).records
        with pytest.raises(ValueError, match="in slots"):
            put(0, rows_of([odd], 0, 1).records)
        for wrong in (records[0], records[:, :-1]):
            with pytest.raises(ValueError, match="in group 0: 12 words each"):
                put(0, wrong)
        with pytest.raises(ValueError, match="in group 1: 6 words each"):
            put(1, records)
        for position, found in ((0, "tables 0 to 1 of 2"), (3, "tables 1 to 3 of 2")):
            wrong = records.repeat(2, axis=0)
            wrong[1, 2] = position << 20
            with pytest.raises(ValueError, match=found):
                put(0, wrong)
        assert part.finish().rows == [0, 0]


def test_a_cut_must_have_every_slot_exactly_once(store: CheckpointStore) -> None:
    below, _ = halves()
    with pytest.raises(JobError, match=r"checkpoint 1 isn't whole: no part has slots 2048-4095"):
        write_cut(store, 1, {}, owners=[below])
    with pytest.raises(JobError, match=r"several parts have slots 0-2047"):
        write_cut(store, 1, {}, owners=[below, below, ~below])
    assert store.checkpoints() == []


def test_numbers_of_cuts_must_rise(store: CheckpointStore) -> None:
    write_cut(store, 3, {})
    with pytest.raises(JobError, match="checkpoint 3 can't follow"):
        store.begin(3)


def test_rows_larger_than_a_block_survive(tmp_path: Path) -> None:
    """A row that is larger than the block it is to be in."""
    store = CheckpointStore(str(tmp_path))
    salts = np.array([table_salt("t")])
    shape = GroupShape(4096, 4096, counted=True, salts=salts.tolist())
    everything = ~slot_sets.none()
    values = np.random.default_rng(1).random((5, 4096), np.float32)
    ids = np.arange(5, dtype=np.uint64)
    rows = RowData(ids, np.zeros(5, np.uint16), ids.astype(np.uint32), values, values * 2)
    for cut, into in enumerate(("add", "set_aside"), 1):
        writer = store.begin(cut)
        with writer.part("job-1", 0, everything, [shape], block_bytes=1000) as part:
            getattr(part, into)(0, pack_rows(rows, shape.record, salts))
            entry = part.finish()
        writer.commit(msgspec.structs.replace(manifest_of(cut, [entry]), groups=[shape]))
        found = list(store.rows(cut))
        assert [len(block.slots) for block in found] == [1] * 5
        order = np.argsort([block.rows.ids[0] for block in found])
        for name in RowData._fields:
            together = np.concatenate([getattr(found[at].rows, name) for at in order])
            np.testing.assert_array_equal(together, getattr(rows, name))
