"""A model of a cut in memory, straight from the cut's files: they are read once for the ids, and once more for the vectors."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np
from numpy.typing import NDArray

from dlrover_lite.checkpoint.manifest import Manifest, known_id_kinds, usual_unknown_ids
from dlrover_lite.checkpoint.store import CheckpointStore
from dlrover_lite.core.errors import JobError
from dlrover_lite.core.progress import Steps, no_steps
from dlrover_lite.models.export import TableEntry
from dlrover_lite.models.serving import EmbeddingTable, ServingModel
from dlrover_lite.models.tables import SortedTable
from dlrover_lite.protocol.ps_messages import TableSpec
from dlrover_lite.recipe.schema import Recipe
from dlrover_lite.worker.export.checkpoint_rows import CutRows
from dlrover_lite.worker.export.export_rows import export_manifest

__all__ = ["cut_model"]

_GROWTH = 8
"""Room for ids grows by one part in this many."""


def cut_model(store: CheckpointStore, manifest: Manifest, recipe: Recipe, steps: Steps = no_steps) -> ServingModel:
    """Return the model as it was at a cut, in evaluation mode. ``steps`` is told how far it is. Beside the tables it takes bounded memory.

    Raises CheckpointDamaged, JobError for a recipe that the cut isn't of, ModelError and DataError.
    """
    cut = CutRows(store, manifest, recipe)
    ids: dict[str, _Growing] = {table.name: _Growing() for table in cut.declared.configuration.tables}
    for table, found, _ in _tables(cut, "looking for ids", steps):
        ids[table.name].extend(found)
    tables = {}
    for table in cut.declared.configuration.tables:
        tables[table.name] = SortedTable(ids.pop(table.name).all(), table.dim)
    for table, found, vectors in _tables(cut, "loading", steps):
        if not tables[table.name].put(found, vectors):
            raise JobError(f"checkpoint {manifest.cut} has changed while it was read")
    declared = cut.declared
    kinds, unknown = known_id_kinds(manifest), usual_unknown_ids(manifest)
    described = msgspec.structs.replace(
        export_manifest(recipe, declared.schema, declared.module, kinds, unknown),
        tables=[
            TableEntry(table.name, "", table.dim, table.init_scale, len(tables[table.name].ids))
            for table in declared.configuration.tables
        ],
    )
    loaded = {
        entry.name: EmbeddingTable(entry, one.ids, one.vectors, seed=described.seed)
        for entry, one in zip(described.tables, tables.values(), strict=True)
    }
    return ServingModel(declared.module, described, loaded).eval()


def _tables(
    cut: CutRows, what: str, steps: Steps
) -> Iterator[tuple[TableSpec, NDArray[np.uint64], NDArray[np.float32]]]:
    """Yield some ids and vectors of one table at a time."""
    rows = cut.rows(cut.embeddings)
    for some in rows:
        for position in np.unique(some.rows.tables).tolist():
            mine = some.rows.tables == position
            yield cut.table(some.group, position), some.rows.ids[mine], some.rows.values[mine]
        steps(what, some.seen, rows.total, "rows")


class _Growing:
    """Ids that are added at the end, in memory that is enlarged where it is."""

    def __init__(self) -> None:
        self._ids: NDArray[np.uint64] = np.empty(0, np.uint64)
        self._used = 0

    def extend(self, ids: NDArray[np.uint64]) -> None:
        stop = self._used + len(ids)
        if stop > len(self._ids):
            self._ids.resize(stop + stop // _GROWTH, refcheck=False)
        self._ids[self._used : stop] = ids
        self._used = stop

    def all(self) -> NDArray[np.uint64]:
        """Return the ids that were added; nothing is to be added any more."""
        self._ids.resize(self._used, refcheck=False)
        return self._ids
