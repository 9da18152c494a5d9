"""Scanned rows go into the tables they belong to, with their state if the recipe says so."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dlrover_lite.core.rows import RowData
from dlrover_lite.data.base import Schema
from dlrover_lite.models.export import ExportWriter, Manifest
from dlrover_lite.models.fields import EmbeddingField
from dlrover_lite.models.serving import read_manifest
from dlrover_lite.models.tables import TableRows, iterate_table, joined
from dlrover_lite.protocol.ps_messages import TableSpec
from dlrover_lite.recipe.load import parse_recipe
from dlrover_lite.recipe.schema import Recipe
from dlrover_lite.worker.export.export_rows import exported_groups, optimizers_of, write_rows

TABLES = [TableSpec("a", 2, 0.05), TableSpec("b", 3, 0.05), TableSpec("c", 2, 0.05)]
FIELDS = [EmbeddingField(table.name, table.dim) for table in TABLES]


def some_rows(keys: list[int], tables: list[int], dim: int, parts: int) -> RowData:
    values = np.repeat(np.array(keys, np.float32), dim)
    updates = np.array(keys, np.uint32) + np.uint32(1)
    state = np.repeat(-np.array(keys, np.float32), dim * parts)
    return RowData(np.array(keys, np.uint64), np.array(tables, np.uint16), updates, values, state)


def recipe(optimizer: str, *, state: bool) -> Recipe:
    text = "version: 1\nname: x\nmodel: dcn\ndata: {format: synthetic, samples: 9}\n"
    overrides = {"training.optimizer.use": optimizer, "export.optimizer_state": state}
    return parse_recipe(text, overrides=overrides)


@pytest.mark.parametrize("state", [False, True])
@pytest.mark.parametrize(("optimizer", "parts"), [("sgd", 0), ("adagrad", 1), ("adam", 2)])
def test_exported_rows_are_split_by_table(state: bool, optimizer: str, parts: int, tmp_path: Path) -> None:
    asked: list[tuple[int, bool]] = []

    def scan(group: int, with_state: bool) -> list[RowData]:
        asked.append((group, with_state))
        dim = (2, 3, 4096)[group]
        several = [([7, 1, 8], [1, 0, 1]), ([], []), ([2], [0])] if group == 0 else [([1, 0], [0, 0])]
        return [some_rows(keys, tables, dim, parts if with_state else 0) for keys, tables in several]

    written = recipe(optimizer, state=state)
    groups = exported_groups(written, TABLES, 5000)
    manifest = Manifest(
        model=written.model,
        schema=Schema((), ("a", "b", "c")),
        fields=FIELDS,
        seed=0,
        optimizers=optimizers_of(written),
    )
    with ExportWriter(tmp_path / "export", manifest) as writer:
        assert write_rows(writer, groups, scan, state=state) == 6
        directory = writer.finish()
    assert asked == [(group, state) for group in range(3 if state else 2)]
    found = read_manifest(directory)
    assert (found.dense_blocks is not None) == state
    entries = [*found.tables, *([found.dense_blocks] if found.dense_blocks else [])]
    expected = {"a": [1, 2], "b": [1, 0], "c": [7, 8], "dense parameters": [1, 0]}
    for entry in entries:
        assert entry.state_parts == (parts if state else None)
        chunks = iterate_table(directory / entry.file, rows=entry.rows, dim=entry.dim, state_parts=entry.state_parts)
        rows: TableRows = joined(list(chunks))
        keys = np.array(expected[entry.name], np.float32)
        assert rows.ids.tolist() == expected[entry.name]
        assert np.array_equal(rows.vectors, np.repeat(keys, entry.dim).reshape(2, -1))
        if rows.counts is not None and rows.state is not None:
            assert rows.counts.tolist() == [key + 1 for key in expected[entry.name]]
            assert np.array_equal(rows.state, np.repeat(-keys, entry.dim * parts).reshape(2, -1))


def test_a_model_without_dense_parameters_has_no_group_of_them() -> None:
    assert [group.dim for group in exported_groups(recipe("adam", state=True), TABLES, 0)] == [2, 3]
