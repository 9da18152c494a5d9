"""From a minibatch's ids to the embedded tensor, and from its gradient back to one gradient a row.

Ids are de-duplicated per table; the distinct keys of each table group are ordered by the PS that owns their slot, so that the rows of
one PS are one contiguous piece of the group's row buffer, as they come and as their gradients go.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dlrover_lite.core.kernels.compile import kernel
from dlrover_lite.core.records import table_salt
from dlrover_lite.data.base import Schema
from dlrover_lite.models.fields import EmbeddingField
from dlrover_lite.protocol.messages import UnknownIds
from dlrover_lite.protocol.ps_messages import TableSpec
from dlrover_lite.tables.dedupe import Deduplicator
from dlrover_lite.tables.hashing import SLOT_SHIFT, mix64
from dlrover_lite.tables.layout import group_tables

__all__ = ["EmbeddingLayout", "GroupKeys", "order_by_owner", "tables_of"]


@kernel
def _embed(rows, inverse, samples, dim, first_key, offsets, width, out):  # type: ignore[no-untyped-def]
    """Copy row ``inverse[first_key[f] + s]`` of each sample s and field f into ``out[s, offsets[f] : offsets[f] + dim]`` (all flat)."""
    for s in range(samples):
        for f in range(np.uint64(first_key.shape[0])):
            source = np.uint64(inverse[first_key[f] + s]) * dim
            target = s * width + offsets[f]
            for j in range(dim):
                out[target + j] = rows[source + j]


@kernel
def _collect(grads, inverse, samples, dim, first_key, offsets, width, out):  # type: ignore[no-untyped-def]
    """Sum the gradients of equal keys into ``out`` (flat, zeroed here): the reverse of ``_embed``."""
    out[:] = np.float32(0.0)
    for s in range(samples):
        for f in range(np.uint64(first_key.shape[0])):
            target = np.uint64(inverse[first_key[f] + s]) * dim
            source = s * width + offsets[f]
            for j in range(dim):
                out[target + j] += grads[source + j]


@kernel
def _order_by_owner(keys, counts, salts, owners, parts, order, part_counts):  # type: ignore[no-untyped-def]
    """Sort the keys by (owner of their slot, table), by counting: new position of each key, and keys per owner and table."""
    owner_of = np.empty(keys.shape[0], np.int64)
    start = 0
    for t in range(counts.shape[0]):
        for i in range(start, start + counts[t]):
            owner = np.int64(owners[mix64(keys[i] ^ salts[t]) >> np.uint64(SLOT_SHIFT)])
            owner_of[i] = owner
            part_counts[owner, t] += 1
        start += counts[t]
    next_position = np.empty((parts, counts.shape[0]), np.int64)
    position = 0
    for p in range(parts):
        for t in range(counts.shape[0]):
            next_position[p, t] = position
            position += part_counts[p, t]
    start = 0
    for t in range(counts.shape[0]):
        for i in range(start, start + counts[t]):
            order[i] = next_position[owner_of[i], t]
            next_position[owner_of[i], t] += 1
        start += counts[t]


def order_by_owner(
    keys: NDArray[np.uint64],
    counts: NDArray[np.int64],
    salts: NDArray[np.uint64],
    owners: NDArray[np.uint16],
    parts: int,
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Order keys, runs of length ``counts`` (one a table, with its salt), by the PS that owns their slots: the new position of each
    key, PS after PS and table after table, and the number of keys [parts, tables]."""
    order = np.empty(len(keys), np.int32)
    part_counts = np.zeros((parts, len(counts)), np.int64)
    _order_by_owner(keys, counts, salts, owners, parts, order, part_counts)
    return order, part_counts


@dataclass(eq=False)
class GroupKeys:
    """The distinct keys of one table group, or of one kind of dense blocks, in one minibatch."""

    keys: NDArray[np.uint64]
    """uint64, ordered by PS, then table."""
    counts: NDArray[np.int64]
    """int64 [PS, tables]."""
    inverse: NDArray[np.int32]
    """int32: position in ``keys`` of each id of the minibatch."""
    dim: int
    salts: NDArray[np.uint64]
    """uint64 [tables]: the salts that give the slots of keys."""

    def __post_init__(self) -> None:
        self.bounds = np.concatenate(([0], np.cumsum(self.counts.sum(axis=1))))
        """Positions where each PS's keys begin; one more for the end."""


class _Group:
    def __init__(self, tables: Sequence[TableSpec], fields: Sequence[EmbeddingField], schema: Schema) -> None:
        self.tables = tables
        self.dim = tables[0].dim
        starts = np.concatenate(([0], np.cumsum([field.dim for field in fields])))
        members = [[i for i, field in enumerate(fields) if field.table_name == t.name] for t in tables]
        ordered = [i for table in members for i in table]
        self.columns = np.array([schema.categorical.index(fields[i].column) for i in ordered])
        self.fields_per_table = np.array([len(table) for table in members], np.int64)
        self.offsets = starts[ordered].astype(np.uint64)
        self.salts = np.array([table_salt(table.name) for table in tables], np.uint64)
        whole = len(ordered) == len(schema.categorical) and (self.columns == np.arange(len(ordered))).all()
        self.takes_all_columns = bool(whole)


def tables_of(fields: Sequence[EmbeddingField]) -> list[TableSpec]:
    """Return the distinct tables of a model's fields, in order of first appearance."""
    tables: dict[str, TableSpec] = {}
    for field in fields:
        tables.setdefault(field.table_name, TableSpec(field.table_name, field.dim, field.init_scale))
    return list(tables.values())


class EmbeddingLayout:
    """Where each field's vectors come from and go to. Keeps scratch memory: not for several threads."""

    def __init__(self, fields: Sequence[EmbeddingField], schema: Schema) -> None:
        self.tables = tables_of(fields)
        self.columns = schema.categorical
        """Columns of the ids that ``keys`` takes."""
        self.width = sum(field.dim for field in fields)
        self._groups = [_Group(tables, fields, schema) for tables in group_tables(self.tables)]
        self._deduplicator = Deduplicator()

    def keys(self, ids: NDArray[np.uint64], owners: NDArray[np.uint16], parts: int) -> list[GroupKeys]:
        """Return the distinct keys of ``ids`` [columns, samples] per group, for slots owned by ``owners`` [4096], each one of ``parts``
        PS."""
        found = []
        for group in self._groups:
            columns = ids if group.takes_all_columns else ids[group.columns]
            flat = np.ascontiguousarray(columns).reshape(-1)
            keys, counts, inverse = self._deduplicator.unique(flat, group.fields_per_table * ids.shape[1])
            if parts == 1:
                found.append(GroupKeys(keys, counts[None], inverse, group.dim, group.salts))
                continue
            order, part_counts = order_by_owner(keys, counts, group.salts, owners, parts)
            ordered = np.empty_like(keys)
            ordered[order] = keys
            found.append(GroupKeys(ordered, part_counts, order[inverse], group.dim, group.salts))
        return found

    def embed(
        self, groups: Sequence[GroupKeys], rows: Sequence[NDArray[np.float32]], samples: int
    ) -> NDArray[np.float32]:
        """Return the embedded tensor [samples, width] from each group's rows [keys, dim]."""
        out = np.empty((samples, self.width), np.float32)
        for group, layout, values in zip(groups, self._groups, rows, strict=True):
            _embed(values.reshape(-1), group.inverse, *self._shape(group, layout), out.reshape(-1))
        return out

    def collect(self, groups: Sequence[GroupKeys], grads: NDArray[np.float32]) -> list[NDArray[np.float32]]:
        """Return one gradient a key, [keys, dim] for each group, from the embedded tensor's gradient [samples, width]."""
        out = [np.empty((len(group.keys), group.dim), np.float32) for group in groups]
        flat = np.ascontiguousarray(grads).reshape(-1)
        for group, layout, summed in zip(groups, self._groups, out, strict=True):
            _collect(flat, group.inverse, *self._shape(group, layout), summed.reshape(-1))
        return out

    def unknown_ids(
        self, groups: Sequence[GroupKeys], flags: Sequence[NDArray[np.uint8]], rows: Sequence[Sequence[int]]
    ) -> list[UnknownIds]:
        """Count the samples that have a key that is flagged, by column; for a column that is embedded several times, by the first table.
        ``flags`` [keys] and ``rows`` (of each table) are of each group."""
        found: dict[str, UnknownIds] = {}
        for group, layout, unknown, table_rows in zip(groups, self._groups, flags, rows, strict=True):
            counts = unknown[group.inverse].reshape(len(layout.columns), -1).sum(1, np.int64)
            tables = np.repeat(np.arange(len(layout.tables)), layout.fields_per_table).tolist()
            for column, table, count in zip(layout.columns, tables, counts, strict=True):
                name = self.columns[column]
                one = UnknownIds(name, layout.tables[table].name, int(count), table_rows[table])
                found.setdefault(name, one)
        return list(found.values())

    def _shape(
        self, group: GroupKeys, layout: _Group
    ) -> tuple[np.uint64, np.uint64, NDArray[np.uint64], NDArray[np.uint64], np.uint64]:
        """Return samples, dim, where each field's ids begin in ``inverse``, where its vectors begin in a sample, width of a sample."""
        fields = len(layout.columns)
        samples = len(group.inverse) // fields
        first_key = np.arange(fields, dtype=np.uint64) * np.uint64(samples)
        return np.uint64(samples), np.uint64(group.dim), first_key, layout.offsets, np.uint64(self.width)
