"""Row groups that are too large to be held decoded are read piece by piece, in any order, within bounds of memory."""

from __future__ import annotations

import errno
import os
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dlrover_lite.core.errors import DataError
from dlrover_lite.data import parquet, spilled_group
from dlrover_lite.data.base import Batch
from dlrover_lite.data.order import EpochOrder
from dlrover_lite.data.parquet import ParquetDataset
from dlrover_lite.recipe.schema import ParquetData
from tests.data.test_parquet import RECIPE, columns, write

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

ROWS, PIECE = 500, 32


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that hundreds of rows are many."""
    for module in (parquet, spilled_group):
        monkeypatch.setattr(module, "PIECE_ROWS", PIECE)
    monkeypatch.setattr(parquet, "_LARGE_ROWS", 2 * PIECE)
    monkeypatch.setattr(parquet, "_KEPT_BYTES", 1)


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DLROVER_LITE_HOME", str(tmp_path / "home"))
    return tmp_path


def same(found: Batch, expected: Batch) -> bool:
    arrays = zip(found[:3], expected[:3], strict=True)
    bad = [line[1:] for line in found.bad] == [line[1:] for line in expected.bad]
    return bad and all(np.array_equal(one, other) for one, other in arrays)


def with_bad_rows() -> dict[str, Any]:
    values = columns()
    values["y"] = pa.array([{70: 2.0, 400: None}.get(i, 1.0) for i in range(ROWS)])
    return values


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(group=st.integers(1, ROWS), seed=st.integers(0, 99), block=st.sampled_from([16, PIECE, 100]))
def test_samples_do_not_depend_on_the_size_of_row_groups(
    disk: Path, small_pieces: None, group: int, seed: int, block: int
) -> None:
    expected = ParquetDataset([write(disk / "small", with_bad_rows(), group=20)], RECIPE)
    found = ParquetDataset([write(disk / "large", with_bad_rows(), group=group)], RECIPE)
    order = EpochOrder(ROWS, seed, 0, block_size=block)
    for start in range(0, ROWS, 25):
        numbers = order.numbers(start, start + 25)
        assert same(found.read(numbers), expected.read(numbers))
    found.close()
    expected.close()


def test_row_groups_take_turns_on_the_disk(disk: Path, small_pieces: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was dropped from there is decoded again."""
    monkeypatch.setattr(parquet, "_SPILLED_BYTES", 1)
    expected = ParquetDataset([write(disk / "small", columns(), group=20)], RECIPE)
    found = ParquetDataset([write(disk / "large", columns(), group=100)], RECIPE)
    numbers = np.random.default_rng(0).permutation(ROWS)
    assert same(found.read(numbers), expected.read(numbers))
    assert len(found._spilled) == 2
    found.close()


def test_only_the_asked_rows_of_a_group_are_decoded(
    disk: Path, small_pieces: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[int] = []
    columns_of = ParquetDataset._columns_of
    monkeypatch.setattr(
        ParquetDataset, "_columns_of", lambda self, table: decoded.append(table.num_rows) or columns_of(self, table)
    )
    data = ParquetDataset([write(disk / "a", columns(), group=ROWS)], RECIPE)
    data.read(np.arange(PIECE))
    assert sum(decoded) == PIECE
    data.read(np.arange(PIECE))
    assert sum(decoded) == PIECE
    data.close()


def test_no_file_or_descriptor_is_left_after_closing(disk: Path, small_pieces: None) -> None:
    data = ParquetDataset([write(disk / "a", columns(), group=ROWS)], RECIPE)
    data.read(np.arange(ROWS))
    assert not [path for path in (disk / "home").rglob("*") if path.is_file()]
    before = len(list(Path("/proc/self/fd").iterdir()))
    data.close()
    assert len(list(Path("/proc/self/fd").iterdir())) < before
    assert same(data.read(np.arange(9)), ParquetDataset([disk / "a"], RECIPE).read(np.arange(9)))
    data.close()


def test_a_full_disk_is_named_while_reading_large_groups(
    disk: Path, small_pieces: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    data = ParquetDataset([write(disk / "a", columns(), group=ROWS)], RECIPE)
    with pytest.raises(DataError, match=r"row group 0 of .*/a is too large .* can't be kept in .*: the disk is full\n"):
        data.read(np.arange(9))
    data.close()


@pytest.mark.parametrize("rows", [ROWS - 1, ROWS + 1, ROWS + 7 * PIECE])
def test_a_row_group_changed_meanwhile_is_refused(disk: Path, small_pieces: None, rows: int) -> None:
    data = ParquetDataset([write(disk / "a", columns(), group=ROWS)], RECIPE)
    write(disk / "a", columns(rows), group=rows)
    with pytest.raises(DataError, match="was changed while it was being read"):
        data.read(np.arange(ROWS))
    data.close()


@pytest.fixture
def arrow_peak() -> Iterator[Any]:
    pool = pa.proxy_memory_pool(pa.system_memory_pool())
    before = pa.default_memory_pool()
    pa.set_memory_pool(pool)
    yield pool.max_memory
    pa.set_memory_pool(before)


def test_memory_does_not_grow_with_the_size_of_the_row_group(
    disk: Path, arrow_peak: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What arrow and numpy have allocated at most, beside what would be there if a group was held as a whole."""
    monkeypatch.setattr(parquet, "_KEPT_BYTES", 1)
    rows, names = 12 * spilled_group.PIECE_ROWS, [f"c{i}" for i in range(12)]
    table = {name: pa.array(np.arange(rows) * (i + 1)) for i, name in enumerate(names)}
    pq.write_table(
        pa.table({**table, "y": pa.array(np.zeros(rows, np.int8))}),
        disk / "a",
        row_group_size=rows,
        use_dictionary=False,
        compression="none",
    )
    whole = rows * (8 * len(names) + 8)
    del table
    data = ParquetDataset([disk / "a"], ParquetData(train=["x"], label="y", categorical=names))
    order = EpochOrder(rows, 0, 0)
    tracemalloc.start()
    for start in range(0, rows, rows // 12):
        assert len(data.read(order.numbers(start, start + 100)).labels) == 100
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    data.close()
    kept = parquet._LEAST_KEPT * spilled_group.PIECE_ROWS * (8 * len(names) + 8)
    assert arrow_peak() < whole / 3
    assert peak < kept + whole / 3
