"""A model as files, straight from those of a cut: in bounded memory, however many rows there are."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from dlrover_lite.checkpoint.manifest import Manifest, known_id_kinds, usual_unknown_ids
from dlrover_lite.checkpoint.store import CheckpointStore
from dlrover_lite.core.progress import Steps, no_steps
from dlrover_lite.models.export import ExportWriter
from dlrover_lite.recipe.schema import Recipe
from dlrover_lite.worker.export.checkpoint_rows import CutRows
from dlrover_lite.worker.export.export_rows import export_manifest, exported_groups, write_some

__all__ = ["export_cut"]


def export_cut(
    store: CheckpointStore,
    manifest: Manifest,
    recipe: Recipe,
    target: Path,
    table_format: Literal["npz", "parquet"],
    *,
    overwrite: bool = False,
    steps: Steps = no_steps,
) -> Path:
    """Write the model as it was at a cut to ``target``; returns it, absolute. ``steps`` is told how far it is.

    Raises CheckpointDamaged, JobError for a recipe that the cut isn't of or a target that can't be written, ModelError and DataError.
    """
    cut = CutRows(store, manifest, recipe)
    declared, state = cut.declared, recipe.export.optimizer_state
    with ExportWriter(
        target,
        export_manifest(
            recipe, declared.schema, declared.module, known_id_kinds(manifest), usual_unknown_ids(manifest)
        ),
        table_format,
        model_directory=Path(recipe.directory),
        overwrite=overwrite,
    ) as writer:
        writer.write_dense(declared.flat.named_arrays())
        groups = exported_groups(recipe, declared.configuration.tables, declared.flat.averaged_from)
        rows = cut.rows(range(len(groups)))
        for some in rows:
            cut.table(some.group, int(some.rows.tables.max(initial=0)))
            write_some(writer, groups[some.group], some.rows, state=state)
            steps("exporting", some.seen, rows.total, "rows")
        return writer.finish(steps)
