"""From scans of parameter servers to an export: whose rows belong to which table, and with how much of their state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from torch import nn

from dlrover_lite.core.rows import RowData
from dlrover_lite.data.base import Schema
from dlrover_lite.models.check import fields_of_model
from dlrover_lite.models.export import ExportWriter, Manifest, Optimizers
from dlrover_lite.protocol.ps_messages import DenseSpec, TableSpec
from dlrover_lite.recipe.id_kinds import IdKinds
from dlrover_lite.recipe.schema import Recipe
from dlrover_lite.tables.layout import BLOCK, GroupSpec, dense_groups, group_tables
from dlrover_lite.tables.optimizer_state import STATE_PARTS

__all__ = ["export_manifest", "exported_groups", "optimizers_of", "write_rows", "write_some"]


def optimizers_of(recipe: Recipe) -> Optimizers | None:
    """Return the optimizers for the manifest; None when the export is to be without their state."""
    if not recipe.export.optimizer_state:
        return None
    training = recipe.training
    return Optimizers(training.embedding_optimizer or training.optimizer, training.optimizer)


def export_manifest(
    recipe: Recipe, schema: Schema, module: nn.Module, id_kinds: IdKinds, unknown_ids: Mapping[str, float]
) -> Manifest:
    """Describe a recipe's model: see ``Manifest.id_kinds`` and ``Manifest.unknown_ids``."""
    return Manifest(
        model=recipe.model,
        schema=schema,
        fields=fields_of_model(module),
        seed=recipe.training.seed,
        data_format=str(type(recipe.data).__struct_config__.tag),
        data_options={
            name: value for name in ("label", "delimiter", "columns") if (value := getattr(recipe.data, name, None))
        },
        optimizers=optimizers_of(recipe),
        id_kinds=dict(id_kinds),
        unknown_ids=dict(unknown_ids),
    )


def exported_groups(recipe: Recipe, tables: list[TableSpec], parameters: int) -> list[GroupSpec]:
    """Return the groups to be scanned, by their numbers in requests: those of the embedding ``tables``; with optimizer state, then that of
    so many dense parameters (without it they are as the module has them)."""
    training = recipe.training
    optimizer = training.embedding_optimizer or training.optimizer
    groups = [GroupSpec(group, optimizer) for group in group_tables(tables)]
    if recipe.export.optimizer_state:
        groups += dense_groups(DenseSpec(-(-parameters // BLOCK), 0), training.optimizer)
    return groups


def write_rows(
    writer: ExportWriter,
    groups: Sequence[GroupSpec],
    scan: Callable[[int, bool], Iterable[RowData]],
    *,
    state: bool,
    progress: Callable[[int], object] = lambda _: None,
) -> int:
    """Add all rows of ``groups``; return how many embedding rows that were, which ``progress`` is told as they come. ``scan(group, state)``
    gives those of the group with this number."""
    written = 0
    for number, group in enumerate(groups):
        for found in scan(number, state):
            written += write_some(writer, group, found, state=state)
            progress(written)
    return written


def write_some(writer: ExportWriter, group: GroupSpec, found: RowData, *, state: bool) -> int:
    """Add some rows of a group, whose values and state may be of any shape; return how many of them are of embeddings."""
    rows = len(found.ids)
    values = found.values.reshape(rows, group.dim)
    kept = found.state.reshape(rows, group.dim * STATE_PARTS[group.optimizer.use]) if state else None
    if group.complete:
        assert kept is not None
        writer.add_dense_blocks(found.ids, values, found.counts, kept)
        return 0
    for position in np.unique(found.tables).tolist():
        mine = found.tables == position
        extra = (found.counts[mine], kept[mine]) if kept is not None else ()
        writer.add_rows(group.tables[position].name, found.ids[mine], values[mine], *extra)
    return rows
