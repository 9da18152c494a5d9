"""From ids to the embedded tensor and back, against numpy and torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dlrover_lite.core.records import table_salt
from dlrover_lite.data.base import Schema
from dlrover_lite.models.fields import EmbeddingField
from dlrover_lite.tables.hashing import SLOT_SHIFT, SLOTS, mix64
from dlrover_lite.tables.layout import group_tables
from dlrover_lite.worker.parameters.embedding import EmbeddingLayout, GroupKeys, tables_of

SCHEMA = Schema(dense=(), categorical=("A", "B", "C", "D", "E"))
MODELS = {
    "a table per column": [EmbeddingField(column, 4) for column in "ABCDE"],
    "several dims": [EmbeddingField("A", 3), EmbeddingField("B", 1), EmbeddingField("C", 3), EmbeddingField("D", 17)],
    "shared tables": [
        EmbeddingField("A", 2, "t"),
        EmbeddingField("B", 5),
        EmbeddingField("E", 2, "t"),
        EmbeddingField("C", 2),
    ],
    "one column twice": [EmbeddingField("B", 3, "x"), EmbeddingField("B", 3, "y"), EmbeddingField("B", 3, "x")],
    "not in the order of columns": [EmbeddingField(column, 2) for column in "DBA"],
    "one field": [EmbeddingField("C", 16)],
    "none": [],
}


def owners_of(parts: int) -> np.ndarray:
    return np.array([slot * parts // SLOTS for slot in range(SLOTS)], np.uint16)


def owner(table: str, key: int, parts: int) -> int:
    slot = int(mix64(np.uint64(key) ^ table_salt(table))) >> SLOT_SHIFT
    return int(owners_of(parts)[slot])


def keys_by_part_and_table(group: GroupKeys, parts: int) -> list[list[list[int]]]:
    found = []
    for part in range(parts):
        piece = group.keys[group.bounds[part] : group.bounds[part + 1]].tolist()
        runs = []
        for count in group.counts[part].tolist():
            runs.append(piece[:count])
            piece = piece[count:]
        assert piece == []
        found.append(runs)
    return found


def ids_of(samples: int, seed: int, distinct: int) -> np.ndarray:
    random = np.random.default_rng(seed)
    pool = np.concatenate([np.array([0, 2**64 - 1], np.uint64), random.integers(0, 2**64, distinct, np.uint64)])
    return random.choice(pool, (len(SCHEMA.categorical), samples))


@pytest.mark.parametrize("parts", [1, 2, 3, 5])
@pytest.mark.parametrize("model", MODELS)
def test_keys_are_those_of_the_fields_each_for_its_owner(model: str, parts: int) -> None:
    fields = MODELS[model]
    layout = EmbeddingLayout(fields, SCHEMA)
    ids = ids_of(300, 1, 50)
    groups = layout.keys(ids, owners_of(parts), parts)
    grouped = group_tables(tables_of(fields))
    assert len(groups) == len(grouped)
    assert layout.tables == tables_of(fields)
    for group, tables in zip(groups, grouped, strict=True):
        found = keys_by_part_and_table(group, parts)
        for t, table in enumerate(tables):
            rows = [SCHEMA.categorical.index(field.column) for field in fields if field.table_name == table.name]
            wanted = {key for row in rows for key in ids[row].tolist()}
            owned_by = {key: owner(table.name, key, parts) for key in wanted}
            for part in range(parts):
                assert len(found[part][t]) == len(set(found[part][t]))
                assert set(found[part][t]) == {key for key in wanted if owned_by[key] == part}


def rows_for(fields: list[EmbeddingField], groups: list[GroupKeys], parts: int, seed: int):
    """Random rows for each group's keys, whole numbers so that sums are exact; and the same by (table, key)."""
    random = np.random.default_rng(seed)
    rows, by_key = [], {}
    for group, tables in zip(groups, group_tables(tables_of(fields)), strict=True):
        values = random.integers(-99, 99, (len(group.keys), group.dim)).astype(np.float32)
        rows.append(values)
        at = 0
        for runs in keys_by_part_and_table(group, parts):
            for table, run in zip(tables, runs, strict=True):
                for key in run:
                    by_key[table.name, key] = values[at]
                    at += 1
    return rows, by_key


@settings(max_examples=30, deadline=None)
@given(
    model=st.sampled_from(sorted(MODELS)),
    parts=st.integers(1, 5),
    samples=st.integers(0, 40),
    distinct=st.integers(1, 30),
    seed=st.integers(0, 2**32),
)
def test_embed_and_collect_equal_naive_look_ups_and_gradients(
    model: str, parts: int, samples: int, distinct: int, seed: int
):
    fields = MODELS[model]
    layout = EmbeddingLayout(fields, SCHEMA)
    ids = ids_of(samples, seed, distinct)
    groups = layout.keys(ids, owners_of(parts), parts)
    rows, by_key = rows_for(fields, groups, parts, seed)

    embedded = layout.embed(groups, rows, samples)
    columns = [SCHEMA.categorical.index(field.column) for field in fields]
    naive = [
        [by_key[f.table_name, int(ids[c, s])] for f, c in zip(fields, columns, strict=True)] for s in range(samples)
    ]
    assert embedded.shape == (samples, sum(field.dim for field in fields))
    for got, wanted in zip(embedded, naive, strict=True):
        assert np.array_equal(got, np.concatenate([*wanted, np.empty(0, np.float32)]))

    grads = np.random.default_rng(seed).integers(-9, 9, embedded.shape).astype(np.float32)
    summed: dict[tuple[str, int], torch.Tensor] = {name: torch.zeros(len(row)) for name, row in by_key.items()}
    for s in range(samples):
        start = 0
        for field, column in zip(fields, columns, strict=True):
            summed[field.table_name, int(ids[column, s])] += torch.from_numpy(grads[s, start : start + field.dim])
            start += field.dim
    for group, tables, collected in zip(
        groups, group_tables(tables_of(fields)), layout.collect(groups, grads), strict=True
    ):
        assert collected.shape == (len(group.keys), group.dim)
        at = 0
        for runs in keys_by_part_and_table(group, parts):
            for table, run in zip(tables, runs, strict=True):
                for key in run:
                    assert np.array_equal(collected[at], summed[table.name, key].numpy())
                    at += 1


def test_collect_takes_gradients_in_any_memory_layout() -> None:
    layout = EmbeddingLayout(MODELS["several dims"], SCHEMA)
    groups = layout.keys(ids_of(20, 3, 5), owners_of(2), 2)
    grads = np.asfortranarray(np.random.default_rng(0).normal(size=(20, layout.width)).astype(np.float32))
    for one, other in zip(layout.collect(groups, grads), layout.collect(groups, grads.copy("C")), strict=True):
        assert np.array_equal(one, other)


@settings(deadline=None, max_examples=60)
@given(
    model=st.sampled_from(sorted(MODELS)), parts=st.integers(1, 3), samples=st.integers(1, 40), seed=st.integers(0, 99)
)
def test_samples_with_flagged_keys_are_counted_by_column(model: str, parts: int, samples: int, seed: int) -> None:
    """A key is flagged by its table and itself: some in one table, others in another."""
    fields = MODELS[model]
    layout = EmbeddingLayout(fields, SCHEMA)
    ids = ids_of(samples, seed, 6)

    def is_flagged(table: str, key: int) -> bool:
        return bool((sum(table.encode()) ^ key ^ seed) & 4)

    groups = layout.keys(ids, owners_of(parts), parts)
    flags, rows = [], []
    for group, tables in zip(groups, group_tables(tables_of(fields)), strict=True):
        names = [
            table.name for counts in group.counts for table, n in zip(tables, counts, strict=True) for _ in range(n)
        ]
        pairs = zip(names, group.keys.tolist(), strict=True)
        flags.append(np.array([is_flagged(*pair) for pair in pairs], np.uint8))
        rows.append([100 + len(table.name) for table in tables])
    first = {field.column: field for field in reversed(fields) if field.dim == _first_dim(fields, field.column)}
    found = {one.column: one for one in layout.unknown_ids(groups, flags, rows)}
    assert found.keys() == {field.column for field in fields}
    for column, one in found.items():
        assert (one.table, one.table_rows) == (first[column].table_name, 100 + len(one.table))
        keys = ids[SCHEMA.categorical.index(column)].tolist()
        assert one.unknown == sum(is_flagged(one.table, key) for key in keys)


def _first_dim(fields: list[EmbeddingField], column: str) -> int:
    """Tables of one dim are one group; the first group with the column counts."""
    dims = list(dict.fromkeys(field.dim for field in fields))
    return next(dim for dim in dims if any(field.dim == dim and field.column == column for field in fields))
