"""Copies an export, if need be with its tables in the other format, table by table and chunk by chunk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from dlrover_lite.core.errors import ModelError
from dlrover_lite.core.files.regular import NotRegularFile, check_regular
from dlrover_lite.core.progress import Steps, no_steps
from dlrover_lite.models.digests import EXPORT_AGAIN
from dlrover_lite.models.export import DENSE_FILE, ExportWriter, TableEntry
from dlrover_lite.models.export_reader import ExportReader, Say
from dlrover_lite.models.tables import TableRows, iterate_table

__all__ = ["copy_export"]


def copy_export(
    source: Path,
    target: Path,
    format: Literal["npz", "parquet"] | None = None,
    *,
    overwrite: bool = False,
    steps: Steps = no_steps,
    say: Say | None = None,
) -> Path:
    """Write the export in ``source`` to ``target``, tables as ``format`` (None: as they are); returns ``target``, absolute.

    ``steps`` is told how far it is, ``say`` as by ``serving.load_model``. Raises ModelError when the source can't be
    used, or isn't what was exported, JobError when the target can't be written, or holds something (other than an export that may be
    overwritten) already.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    export = ExportReader(source, say=say)
    manifest = export.manifest
    if format is None:
        format = "parquet" if any(entry.file.endswith(".parquet") for entry in manifest.tables) else "npz"
    done, total = 0, sum(entry.rows for entry in manifest.tables)
    with ExportWriter(target, manifest, format, model_directory=export.code(), overwrite=overwrite) as writer:
        try:
            dense = export.dense()
            check_regular(dense)
            writer.write_dense(load_file(dense))
        except (SafetensorError, FileNotFoundError, NotRegularFile) as error:
            raise ModelError(
                f"{source / DENSE_FILE} can't be used: {str(error).rstrip('.')}.", hint=EXPORT_AGAIN
            ) from error
        for entry in manifest.tables:
            for rows in _rows(export, entry):
                writer.add_rows(entry.name, *rows)
                done += len(rows.ids)
                steps("exporting", done, total, "rows")
        if manifest.dense_blocks is not None:
            for rows in _rows(export, manifest.dense_blocks):
                writer.add_dense_blocks(*rows)  # type: ignore[arg-type]  # with state, as its entry says
        return writer.finish(steps)


def _rows(export: ExportReader, entry: TableEntry) -> Iterator[TableRows]:
    (path,) = export.files(entry.file)
    return iterate_table(path, rows=entry.rows, dim=entry.dim, state_parts=entry.state_parts)
