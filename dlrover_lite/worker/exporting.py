"""Writing the trained model: dense parameters and every row of every table, scanned from the parameter servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from dlrover_lite.data.base import Schema
from dlrover_lite.models.export import ExportWriter
from dlrover_lite.recipe.schema import Recipe
from dlrover_lite.wire.messages import Export, Exported
from dlrover_lite.worker.client import PsClient
from dlrover_lite.worker.export_rows import ScannedRows, export_manifest, exported_groups, write_rows
from dlrover_lite.worker.trainer import Trainer

__all__ = ["export"]

_ROWS_A_SCAN = 1 << 16


def export(
    node: str, recipe: Recipe, trainer: Trainer, schema: Schema, task: Export, *, mark: Callable[[str], None]
) -> Exported:
    """Write the model to ``task.destination``. Raises JobError when the destination can't be written. ``mark`` is told of progress."""
    manifest = export_manifest(recipe, schema, trainer.module, task.id_kinds, task.unknown_ids)
    directory = Path(task.destination)
    elsewhere = "keep jobs on another disk (DLROVER_LITE_HOME)"
    with ExportWriter(
        directory, manifest, task.format, model_directory=Path(recipe.directory), elsewhere=elsewhere
    ) as writer:
        mark("the export")
        trainer.ps.refresh()
        trainer.pull_dense()
        writer.write_dense(trainer.flat.named_arrays())
        groups = exported_groups(recipe, trainer.layout.tables, trainer.flat.averaged_from)
        rows = write_rows(
            writer,
            groups,
            lambda group, state: _scan(trainer.ps, group, state, mark),
            state=recipe.export.optimizer_state,
        )
        written = writer.finish()
    size = sum(path.stat().st_size for path in written.rglob("*") if path.is_file())
    return Exported(node, rows, size)


def _scan(ps: PsClient, group: int, state: bool, mark: Callable[[str], None]) -> Iterator[ScannedRows]:
    """All rows of a group, PS after PS. Nothing moves meanwhile: the master has seen to it before it asked for the export."""
    for members in [ps.map.members(part) for part in range(ps.map.parts)]:
        start: int | None = 0
        while start is not None:
            mark("the export")
            found = ps.scan(members, group, start, _ROWS_A_SCAN, state=state)
            yield found
            start = found.next_start
