"""Writing the trained model: dense parameters and every row of every table, scanned from the parameter servers."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from dlrover_lite.core.rows import RowData
from dlrover_lite.data.base import Schema
from dlrover_lite.models.export import ExportWriter
from dlrover_lite.protocol.messages import Export, Exported
from dlrover_lite.recipe.schema import Recipe
from dlrover_lite.tables.layout import GroupSpec
from dlrover_lite.tables.optimizer_state import STATE_PARTS
from dlrover_lite.worker.export.export_rows import export_manifest, exported_groups, write_rows
from dlrover_lite.worker.export.upload import upload
from dlrover_lite.worker.parameters.client import PsClient
from dlrover_lite.worker.trainer import Trainer

__all__ = ["export"]

SCAN_BYTES = 8 << 20
"""Approximate bytes of rows that are asked for at once."""
_ROW_BYTES = 16
"""Bytes of a row beside its values and state."""


def export(
    node: str, recipe: Recipe, trainer: Trainer, schema: Schema, task: Export, *, mark: Callable[[str, int], None]
) -> Exported:
    """Write the model to ``task.destination``, a directory or a URL. Raises JobError when the destination can't be written.

    ``mark`` is told what is being done whenever something has got done, and how many rows of embeddings are written by then."""
    if "://" not in task.destination:
        return _export(node, recipe, trainer, schema, task, Path(task.destination), mark=mark)
    with tempfile.TemporaryDirectory(prefix="export-") as scratch:
        directory = Path(scratch) / "model"
        exported = _export(node, recipe, trainer, schema, task, directory, mark=mark)
        upload(
            directory,
            task.destination,
            lambda _: mark("the export, bringing it to where the job is kept", exported.rows),
        )
        return exported


def _export(
    node: str,
    recipe: Recipe,
    trainer: Trainer,
    schema: Schema,
    task: Export,
    directory: Path,
    *,
    mark: Callable[[str, int], None],
) -> Exported:
    manifest = export_manifest(recipe, schema, trainer.module, task.id_kinds, task.unknown_ids)
    elsewhere = "keep jobs on another disk (DLROVER_LITE_HOME)"
    with ExportWriter(
        directory, manifest, task.format, model_directory=Path(recipe.directory), elsewhere=elsewhere
    ) as writer:
        mark("the export", 0)
        trainer.ps.refresh()
        trainer.pull_dense()
        writer.write_dense(trainer.flat.named_arrays())
        groups = exported_groups(recipe, trainer.layout.tables, trainer.flat.averaged_from)
        rows = write_rows(
            writer,
            groups,
            lambda group, state: _scan(trainer.ps, group, groups[group], state=state),
            state=recipe.export.optimizer_state,
            progress=lambda written: mark("the export", written),
        )
        written = writer.finish(lambda what, *_: mark(f"the export, {what}", rows))
    size = sum(path.stat().st_size for path in written.rglob("*") if path.is_file())
    return Exported(node, rows, size)


def _scan(ps: PsClient, group: int, spec: GroupSpec, *, state: bool) -> Iterator[RowData]:
    """Yield all rows of a group, PS after PS. Nothing moves meanwhile: the master has seen to it before it asked for the export."""
    parts = STATE_PARTS[spec.optimizer.use] if state else 0
    limit = max(1, SCAN_BYTES // (4 * spec.dim * (1 + parts) + _ROW_BYTES))
    for members in [ps.map.members(part) for part in range(ps.map.parts)]:
        start: int | None = 0
        while start is not None:
            rows, start = ps.scan(members, group, start, limit, state=state)
            yield rows
