"""A model straight from the files of a cut, without parameter servers: some slots at a time, so that memory stays bounded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dlrover_lite.checkpoint.layout import BUCKET_SHIFT, BUCKETS
from dlrover_lite.checkpoint.manifest import Manifest, configure, known_id_kinds, usual_unknown_ids
from dlrover_lite.errors import JobError
from dlrover_lite.models.export import ExportWriter
from dlrover_lite.ps.engine import Engine
from dlrover_lite.ps.layout import BLOCK
from dlrover_lite.ps.restoring import Restoring
from dlrover_lite.recipe.schema import Recipe
from dlrover_lite.wire.messages import RestoreOrder
from dlrover_lite.worker.declared import Declared, declare
from dlrover_lite.worker.export_rows import ScannedRows, export_manifest, exported_groups, write_rows

__all__ = ["export_cut"]

_PASS_BYTES = 1 << 30
"""Of rows in memory at once, about."""
_ROWS_A_SCAN = 1 << 16


@dataclass(frozen=True)
class _Rows:
    keys: NDArray[np.uint64]
    tables: NDArray[np.uint16]
    values: NDArray[np.float32]
    updates: NDArray[np.uint32]
    state: NDArray[np.float32]


def export_cut(
    url: str,
    manifest: Manifest,
    recipe: Recipe,
    target: Path,
    table_format: Literal["npz", "parquet"],
    *,
    overwrite: bool = False,
    progress: Callable[[int], object] | None = None,
) -> Path:
    """Write the model as it was at a cut to ``target``; returns it, absolute. ``progress`` is called with the number of rows done.

    Raises CheckpointDamaged, JobError for a recipe that the cut isn't of or a target that can't be written, ModelError and DataError.
    """
    declared = declare(recipe)
    if declared.configuration.tables != configure(manifest).tables or declared.flat.spec != configure(manifest).dense:
        raise JobError(
            f"The model of the recipe isn't that of checkpoint {manifest.cut} any more: its tables or parameters are others",
            hint="Has the model's file been changed since?",
        )
    with ExportWriter(
        target,
        export_manifest(
            recipe, declared.schema, declared.module, known_id_kinds(manifest), usual_unknown_ids(manifest)
        ),
        table_format,
        model_directory=Path(recipe.directory),
        overwrite=overwrite,
    ) as writer:
        groups = exported_groups(recipe, declared.configuration.tables, declared.flat.averaged_from)
        done = 0
        for engine in _passes(url, manifest):
            _take_dense(declared, engine)
            done += write_rows(
                writer,
                groups,
                lambda group, state, engine=engine: _scan(engine, group, state),  # type: ignore[misc]
                state=recipe.export.optimizer_state,
            )
            if progress is not None:
                progress(done)
        writer.write_dense(declared.flat.named_arrays())
        return writer.finish()


def _passes(url: str, manifest: Manifest) -> Iterator[Engine]:
    """With the rows of some slots each, in the order of slots."""
    row_bytes = [4 * (shape.dim + shape.state) + 40 for shape in manifest.groups]
    size = sum(rows * row_bytes[g] for part in manifest.parts for g, rows in enumerate(part.rows))
    if manifest.builds_on is not None:
        size = BUCKETS * _PASS_BYTES  # of the whole not much is known
    buckets = max(1, min(BUCKETS, BUCKETS * _PASS_BYTES // max(1, size)))
    for first in range(0, BUCKETS, buckets):
        low, high = first << BUCKET_SHIFT, min(first + buckets, BUCKETS) << BUCKET_SHIFT
        slots = (1 << high) - (1 << low)
        engine = Engine(owned=slots)
        with closing(Restoring(engine, RestoreOrder(url, manifest.cut, 1, marks=False), slots)) as restoring:
            while not restoring.step(1.0):
                pass
        yield engine


def _take_dense(declared: Declared, engine: Engine) -> None:
    """Into the module: parameters' blocks first, then buffers'."""
    flat, start = declared.flat.values.reshape(-1, BLOCK), 0
    blocks = [count for count in (declared.flat.spec.parameter_blocks, declared.flat.spec.buffer_blocks) if count]
    for group, count in zip([group for group in engine.groups if group.complete], blocks, strict=True):
        rows, _ = group.scan(0, group.used)
        flat[start + rows.ids.astype(np.int64)] = rows.values
        start += count


def _scan(engine: Engine, group: int, state: bool) -> Iterator[ScannedRows]:
    tables, start = engine.groups[group], 0
    while start < tables.used:
        found, start = tables.scan(start, _ROWS_A_SCAN, state=state)
        yield _Rows(found.ids, found.tables, found.values, found.counts, found.state)
