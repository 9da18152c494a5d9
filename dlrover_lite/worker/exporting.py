"""Writing the trained model: dense parameters and every row of every table, scanned from the parameter servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from dlrover_lite.data.base import Schema
from dlrover_lite.models.check import fields_of_model
from dlrover_lite.models.export import ExportWriter, Manifest
from dlrover_lite.ps.layout import group_tables
from dlrover_lite.recipe.schema import Recipe
from dlrover_lite.wire.messages import Export, Exported
from dlrover_lite.worker.client import PsClient
from dlrover_lite.worker.tickets import Scanned
from dlrover_lite.worker.trainer import Trainer

__all__ = ["export"]

_ROWS_A_SCAN = 1 << 16


def export(
    node: str, recipe: Recipe, trainer: Trainer, schema: Schema, task: Export, *, mark: Callable[[str], None]
) -> Exported:
    """Write the model to ``task.destination``. Raises JobError when the destination can't be written. ``mark`` is told of progress."""
    manifest = Manifest(
        model=recipe.model,
        schema=schema,
        fields=fields_of_model(trainer.module),
        seed=recipe.training.seed,
        data_format=str(type(recipe.data).__struct_config__.tag),
        data_options={
            name: value for name in ("label", "delimiter", "columns") if (value := getattr(recipe.data, name, None))
        },
    )
    rows = 0
    directory = Path(task.destination)
    elsewhere = "keep jobs on another disk (DLROVER_LITE_HOME)"
    with ExportWriter(
        directory, manifest, task.format, model_directory=Path(recipe.directory), elsewhere=elsewhere
    ) as writer:
        mark("the export")
        trainer.ps.refresh()
        trainer.pull_dense()
        writer.write_dense(trainer.flat.named_arrays())
        for group, tables in enumerate(group_tables(trainer.layout.tables)):
            for found in _scan(trainer.ps, group, mark):
                rows += len(found.keys)
                values = found.values.reshape(len(found.keys), tables[0].dim)
                for position in np.unique(found.tables).tolist():
                    mine = found.tables == position
                    writer.add_rows(tables[position].name, found.keys[mine], values[mine])
        written = writer.finish()
    size = sum(path.stat().st_size for path in written.rglob("*") if path.is_file())
    return Exported(node, rows, size)


def _scan(ps: PsClient, group: int, mark: Callable[[str], None]) -> Iterator[Scanned]:
    """All rows of a group, PS after PS. Nothing moves meanwhile: the master has seen to it before it asked for the export."""
    for name in ps.map.names:
        start: int | None = 0
        while start is not None:
            mark("the export")
            found = ps.scan(name, group, start, _ROWS_A_SCAN)
            yield found
            start = found.next_start
