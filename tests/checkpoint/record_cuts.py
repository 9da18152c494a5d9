"""Cuts of rows that are known, in records: a base and what has changed since, and the rows that there are in the end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from dlrover_lite.checkpoint.layout import Codec, GroupShape
from dlrover_lite.checkpoint.manifest import Consumed, Manifest, configuration_of
from dlrover_lite.checkpoint.store import CheckpointStore
from dlrover_lite.core import slot_sets
from dlrover_lite.core.records import pack_rows, slots_of, table_salt
from dlrover_lite.core.rows import RowData
from dlrover_lite.protocol.ps_messages import Configure
from dlrover_lite.tables.layout import groups_of
from dlrover_lite.tables.optimizer_state import STATE_PARTS

Key = tuple[int, int, int]
"""Group, table, id."""
Version = float
"""What all values of a row are; its state is twice that, its count of updates the whole part."""
Row = tuple[int, tuple[float, ...], tuple[float, ...]]
"""Count of updates, values, state."""


def shapes_of(configuration: Configure) -> list[GroupShape]:
    return [
        GroupShape(
            spec.dim,
            spec.dim * STATE_PARTS[spec.optimizer.use],
            counted=spec.counted,
            salts=[int(table_salt(table.name)) for table in spec.tables],
        )
        for spec in groups_of(configuration)
    ]


def rows_of(chosen: Sequence[tuple[Key, Version]], shape: GroupShape) -> RowData:
    versions = np.array([version for _, version in chosen], np.float32)
    return RowData(
        np.array([key[2] for key, _ in chosen], np.uint64),
        np.array([key[1] for key, _ in chosen], np.uint16),
        versions.astype(np.uint32),
        np.repeat(versions[:, None], shape.dim, 1),
        np.repeat(2 * versions[:, None], shape.state, 1),
    )


def row_of(version: Version, shape: GroupShape) -> Row:
    """What a reader finds."""
    return int(version) * shape.counted, (version,) * shape.dim, (2 * version,) * shape.state


def found_in(groups: Iterable[tuple[int, RowData]]) -> dict[Key, Row]:
    """Raises AssertionError for a row that comes twice."""
    found: dict[Key, Row] = {}
    for group, rows in groups:
        for i in range(len(rows.ids)):
            key = (group, int(rows.tables[i]), int(rows.ids[i]))
            assert key not in found
            found[key] = int(rows.counts[i]), tuple(rows.values[i].tolist()), tuple(rows.state[i].tolist())
    return found


def write_cut(
    store: CheckpointStore,
    cut: int,
    configuration: Configure,
    versions: Mapping[Key, Version],
    *,
    builds_on: int | None = None,
    servers: int = 1,
    codec: Codec = "none",
    block_bytes: int = 2048,
) -> Manifest:
    """Rows of these keys at these versions, in parts of neighbouring slots."""
    store.create()
    writer, shapes, parts = store.begin(cut), shapes_of(configuration), []
    owners = np.arange(slot_sets.SLOTS) * servers // slot_sets.SLOTS
    for ps in range(servers):
        owned = owners == ps
        with writer.part("job-1", ps, owned, shapes, codec=codec, block_bytes=block_bytes) as part:
            for g, shape in enumerate(shapes):
                chosen = [(key, version) for key, version in versions.items() if key[0] == g]
                records = pack_rows(rows_of(chosen, shape), shape.record, np.array(shape.salts, np.uint64))
                mine = records[owned[slots_of(records)]]
                for start in range(0, len(mine), 500):
                    part.add(g, mine[start : start + 500])
            parts.append(part.finish())
    manifest = Manifest(
        job="job-1",
        cut=cut,
        at=1e9 + cut,
        builds_on=builds_on,
        map_version=1,
        consumed=Consumed(),
        configuration=configuration_of(configuration),
        groups=shapes,
        facts={"minibatches": 5},
        parts=parts,
    )
    writer.commit(manifest)
    return manifest
