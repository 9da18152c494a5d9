"""Cuts made of rows that are known: what the tests of checkpoints write, and what they expect to read."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from dlrover_lite.checkpoint.layout import Block, Codec, GroupShape
from dlrover_lite.checkpoint.manifest import Applied, AppliedAtSnapshot, Consumed, Manifest, PartEntry, configuration_of
from dlrover_lite.checkpoint.store import CheckpointStore
from dlrover_lite.core import slot_sets
from dlrover_lite.core.records import mixed, pack_rows, table_salt
from dlrover_lite.core.rows import RowData
from dlrover_lite.protocol.ps_messages import Configure, DenseSpec, TableSpec
from dlrover_lite.recipe.schema import Optimizer

TABLES = [["user", "item"], ["city"]]
"""Of each group."""
SALTS = [np.array([table_salt(name) for name in group]) for group in TABLES]
SHAPES = [
    GroupShape(4, 4, counted=True, salts=SALTS[0].tolist()),
    GroupShape(3, 0, salts=SALTS[1].tolist()),
]
"""With Adagrad's state and counts of updates, and without either."""
BLOCK_BYTES = 600
CONFIGURATION = Configure(
    seed=7,
    tables=[TableSpec(name, SHAPES[g].dim, 0.1) for g, names in enumerate(TABLES) for name in names],
    dense=DenseSpec(0, 0),
    optimizer=Optimizer(use="sgd"),
    embedding_optimizer=Optimizer(use="adagrad"),
    counted=True,
)

Key = tuple[int, int, int]
"""Group, table, id."""
State = dict[Key, tuple[Any, ...]]


class Rows(NamedTuple):
    slots: NDArray[np.uint16]
    rows: RowData
    records: NDArray[np.uint32]


@cache
def slot_of(key: Key) -> int:
    group, table, number = key
    return int(mixed(np.array([number], np.uint64) ^ SALTS[group][table])[0] >> np.uint64(52))


def rows_of(keys: Iterable[Key], group: int, version: int) -> Rows:
    """Rows whose every field follows from key and version."""
    chosen = [key for key in keys if key[0] == group]
    ids = np.array([key[2] for key in chosen], np.uint64)
    tables = np.array([key[1] for key in chosen], np.uint16)
    number = (ids % np.uint64(1 << 20)).astype(np.uint32) + np.uint32(version)
    shape = SHAPES[group]
    values = (number[:, None] + np.arange(shape.dim)).astype(np.float32)
    state = (number[:, None] * 2 + np.arange(shape.state)).astype(np.float32)
    slots = np.array([slot_of(key) for key in chosen], np.uint16)
    rows = RowData(ids, tables, number if shape.counted else np.zeros_like(number), values, state)
    return Rows(slots, rows, pack_rows(rows, shape.record, SALTS[group]))


def state_of(blocks: Iterable[Block]) -> State:
    """What whoever keeps the last row of each key has."""
    found: State = {}
    for block in blocks:
        rows = block.rows
        for at in range(len(block.slots)):
            key = (block.group, int(rows.tables[at]), int(rows.ids[at]))
            row = (int(block.slots[at]), int(rows.counts[at]))
            found[key] = (*row, tuple(rows.values[at].tolist()), tuple(rows.state[at].tolist()))
    return found


def expected(versions: dict[Key, int]) -> State:
    found: State = {}
    for key, version in versions.items():
        slots, rows, _ = rows_of([key], key[0], version)
        found |= state_of([Block(0, key[0], slots, rows)])
    return found


def halves(border: int = slot_sets.SLOTS // 2) -> list[slot_sets.SlotSet]:
    """The slots of two servers."""
    below = np.arange(slot_sets.SLOTS) < border
    return [below, ~below]


def manifest_of(cut: int, parts: list[PartEntry], *, builds_on: int | None = None, at: float = 1e9) -> Manifest:
    return Manifest(
        job="job-1",
        cut=cut,
        at=at,
        builds_on=builds_on,
        map_version=3,
        consumed=Consumed(1, [(1, [(0, 4), (6, 9)])]),
        configuration=configuration_of(CONFIGURATION),
        groups=SHAPES,
        samples=cut * 1000,
        facts={"epochs": 2},
        parts=parts,
    )


def write_cut(
    store: CheckpointStore,
    cut: int,
    versions: dict[Key, int],
    *,
    builds_on: int | None = None,
    owners: list[slot_sets.SlotSet] | None = None,
    codec: Codec = "none",
    chunk: int = 50,
    at: float = 1e9,
) -> Manifest:
    """Rows of these keys at these versions, in parts by the owners of the slots."""
    writer = store.begin(cut)
    parts = []
    for ps, owned in enumerate(owners if owners is not None else halves()):
        with writer.part("job-1", ps, owned, SHAPES, codec=codec, block_bytes=BLOCK_BYTES) as part:
            for group in range(len(SHAPES)):
                mine = [key for key in versions if key[0] == group and owned[slot_of(key)]]
                for start in range(0, len(mine), chunk):
                    some = mine[start : start + chunk]
                    part.add(group, np.concatenate([rows_of([key], group, versions[key]).records for key in some]))
            applied = AppliedAtSnapshot(Consumed(1, [(1, [(0, 5)])]), [Applied(1, 7, slot_sets.pack(owned))])
            parts.append(msgspec.structs.replace(part.finish(), applied_minibatches=applied, clocks=[cut, cut]))
    manifest = manifest_of(cut, parts, builds_on=builds_on, at=at)
    writer.commit(manifest)
    return manifest


def keys(count: int, *, start: int = 0) -> list[Key]:
    """Of all tables."""
    places = [(0, 0), (0, 1), (1, 0)]
    return [(*places[number % 3], number * 7919 + 1) for number in range(start, start + count)]
