"""All rows of a cut, each once, whatever increments it builds on; in memory that is bounded."""

from __future__ import annotations

import tempfile
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlrover_lite.checkpoint import newest_rows
from dlrover_lite.checkpoint.newest_rows import NewestRows
from dlrover_lite.checkpoint.part_reader import PartReader
from dlrover_lite.checkpoint.store import CheckpointStore
from dlrover_lite.core.errors import CheckpointDamaged
from dlrover_lite.protocol.ps_messages import Configure, DenseSpec, TableSpec
from dlrover_lite.recipe.schema import Optimizer
from tests.checkpoint.record_cuts import Key, found_in, row_of, shapes_of, write_cut

CONFIGURATION = Configure(
    seed=7,
    tables=[TableSpec("user", 4, 0.1), TableSpec("item", 4, 0.1), TableSpec("city", 3, 0.1)],
    dense=DenseSpec(0, 0),
    optimizer=Optimizer(use="sgd"),
    embedding_optimizer=Optimizer(use="adagrad"),
    counted=True,
)
SHAPES = shapes_of(CONFIGURATION)
ALL = range(len(SHAPES))
EACH_ID = newest_rows._ID_BYTES


def keys(ids: range) -> list[Key]:
    return [(group, table, i) for i in ids for group, table in ((0, 0), (0, 1), (1, 0))]


KEYS = st.tuples(st.sampled_from([(0, 0), (0, 1), (1, 0)]), st.integers(0, 40)).map(lambda key: (*key[0], key[1]))


@given(
    st.lists(st.dictionaries(KEYS, st.integers(0, 1 << 20), max_size=60), min_size=1, max_size=5),
    st.sampled_from([1, 3, 20, 1 << 20]),
    st.integers(1, 3),
    st.sampled_from(["none", "zlib"]),
)
def test_newest_rows_equal_a_dict_updated_by_each_cut(
    changes: list[dict[Key, int]], known_ids: int, servers: int, codec: Any
) -> None:
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(newest_rows, "KNOWN_BYTES", known_ids * EACH_ID)
        store = CheckpointStore(directory)
        expected: dict[Key, int] = {}
        for cut, changed in enumerate(changes, start=1):
            write_cut(store, cut, CONFIGURATION, changed, builds_on=cut - 1 or None, servers=servers, codec=codec)
            expected |= changed
        rows = NewestRows(store, len(changes), ALL)
        some = list(rows)
        found = found_in((one.group, one.rows) for one in some)
        assert found == {key: row_of(version, SHAPES[key[0]]) for key, version in expected.items()}
        seen = [one.seen for one in some]
        assert seen == sorted(seen)
        assert (seen[-1] if seen else 0) == rows.total == sum(map(len, changes))


def test_only_the_wanted_groups_are_read(tmp_path: Path) -> None:
    store = CheckpointStore(str(tmp_path))
    write_cut(store, 1, CONFIGURATION, dict.fromkeys(keys(range(100)), 1))
    rows = NewestRows(store, 1, [1])
    assert {some.group for some in rows} == {1}
    assert rows.total == 100


def watch(patch: pytest.MonkeyPatch) -> tuple[Counter[tuple[str, int]], list[int]]:
    """How often each block is read, and how many ids are known at each time."""
    read: Counter[tuple[str, int]] = Counter()
    known: list[int] = []
    block, sift = PartReader._block, newest_rows._Known.sift

    def counted(self: PartReader, number: int, *rest: Any) -> Any:
        read[self.url, number] += 1
        return block(self, number, *rest)

    def sifted(self: Any, *rest: Any, **options: Any) -> Any:
        found = sift(self, *rest, **options)
        fresh = sum(len(ids) for chunks in self._fresh.values() for ids in chunks)
        known.append(fresh + sum(len(ids) for ids in self._sorted.values()))
        return found

    patch.setattr(PartReader, "_block", counted)
    patch.setattr(newest_rows._Known, "sift", sifted)
    return read, known


def test_a_base_alone_is_read_once_without_remembering_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = CheckpointStore(str(tmp_path))
    manifest = write_cut(store, 1, CONFIGURATION, dict.fromkeys(keys(range(3000)), 1))
    monkeypatch.setattr(newest_rows, "KNOWN_BYTES", EACH_ID)
    read, known = watch(monkeypatch)
    assert sum(len(some.rows.ids) for some in NewestRows(store, 1, ALL)) == 9000
    assert not known
    assert list(read.values()) == [1] * manifest.parts[0].blocks


@pytest.mark.parametrize(("most", "times"), [(700, 1), (100, 4)])
def test_memory_for_known_ids_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, times: int
) -> None:
    """Of 6,000 rows in increments: down to a sixteenth of the slots nothing is read twice."""
    store = CheckpointStore(str(tmp_path))
    write_cut(store, 1, CONFIGURATION, dict.fromkeys(keys(range(3000)), 1))
    write_cut(store, 2, CONFIGURATION, dict.fromkeys(keys(range(0, 2000, 2)), 2), builds_on=1)
    write_cut(store, 3, CONFIGURATION, dict.fromkeys(keys(range(0, 2000, 2)), 3), builds_on=2)
    monkeypatch.setattr(newest_rows, "KNOWN_BYTES", most * EACH_ID)
    read, known = watch(monkeypatch)
    found = found_in((some.group, some.rows) for some in NewestRows(store, 3, ALL))
    assert Counter(count for count, _, _ in found.values()) == {1: 6000, 3: 3000}
    assert max(known) <= most
    assert max(read.values()) <= times


def test_an_increment_with_a_row_twice_is_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which of the two counts can't be known."""
    store = CheckpointStore(str(tmp_path))
    write_cut(store, 1, CONFIGURATION, dict.fromkeys(keys(range(10)), 1))
    write_cut(store, 2, CONFIGURATION, dict.fromkeys(keys(range(10)), 2), builds_on=1)
    own = CheckpointStore.own_rows

    def twice(self: CheckpointStore, manifest: Any, *rest: Any) -> Any:
        blocks = list(own(self, manifest, *rest))
        return iter(blocks + blocks[:1] * (manifest.cut == 2))

    monkeypatch.setattr(CheckpointStore, "own_rows", twice)
    with pytest.raises(CheckpointDamaged, match="checkpoint 2 is damaged: it has a row twice"):
        list(NewestRows(store, 2, ALL))


def test_ranges_cover_every_slot_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = CheckpointStore(str(tmp_path))
    write_cut(store, 1, CONFIGURATION, {})
    write_cut(store, 2, CONFIGURATION, dict.fromkeys(keys(range(200)), 2), builds_on=1)
    rows = NewestRows(store, 2, ALL)
    for ids in (1, 7, 30, 100, 599):
        monkeypatch.setattr(newest_rows, "KNOWN_BYTES", ids * EACH_ID)
        ranges = [np.asarray(members, np.int64) for members in rows._ranges() if members is not None]
        assert (sum(ranges) == 1).all()
        assert len(ranges) >= 600 / ids


def test_newest_rows_of_cuts_of_version_1_are_read(tmp_path: Path) -> None:
    """Their blocks are of arrays."""
    with zipfile.ZipFile(Path(__file__).with_name("cuts-1.0.zip")) as archive:
        archive.extractall(tmp_path)
    store = CheckpointStore(str(tmp_path))
    expected: dict[Key, bytes] = {}
    for block in store.rows(2):
        for i, key in enumerate(zip(block.rows.tables.tolist(), block.rows.ids.tolist(), strict=True)):
            expected[block.group, *key] = block.rows.values[i].tobytes()
    found = [
        ((some.group, *key), some.rows.values[i].tobytes())
        for some in NewestRows(store, 2, ALL)
        for i, key in enumerate(zip(some.rows.tables.tolist(), some.rows.ids.tolist(), strict=True))
    ]
    assert len(found) == 350
    assert dict(found) == expected
