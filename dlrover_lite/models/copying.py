"""Copies an export, if need be with its tables in the other format, table by table and chunk by chunk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

from dlrover_lite.errors import ModelError
from dlrover_lite.models.export import DENSE_FILE, ExportWriter, TableEntry
from dlrover_lite.models.serving import read_manifest
from dlrover_lite.models.tables import TableRows, iterate_table
from dlrover_lite.regular_files import NotRegularFile, check_regular

__all__ = ["copy_export"]


def copy_export(
    source: Path,
    target: Path,
    format: Literal["npz", "parquet"] | None = None,
    *,
    overwrite: bool = False,
    progress: Callable[[int], object] | None = None,
) -> Path:
    """Write the export in ``source`` to ``target``, tables as ``format`` (None: as they are); returns ``target``, absolute.

    ``progress`` is called with the number of rows done. Raises ModelError when the source can't be used, JobError when
    the target can't be written, or holds something (other than an export that may be overwritten) already.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    manifest = read_manifest(source)
    if format is None:
        format = "parquet" if any(entry.file.endswith(".parquet") for entry in manifest.tables) else "npz"
    done = 0
    with ExportWriter(target, manifest, format, model_directory=source / "model", overwrite=overwrite) as writer:
        try:
            check_regular(source / DENSE_FILE)
            writer.write_dense(load_file(source / DENSE_FILE))
        except (SafetensorError, FileNotFoundError, NotRegularFile) as error:
            raise ModelError(
                f"{source / DENSE_FILE} can't be used: {str(error).rstrip('.')}.", hint="Export the model again."
            ) from error
        for entry in manifest.tables:
            for rows in _rows(source, entry):
                writer.add_rows(entry.name, *rows)
                done += len(rows.ids)
                if progress is not None:
                    progress(done)
        if manifest.dense_blocks is not None:
            for rows in _rows(source, manifest.dense_blocks):
                writer.add_dense_blocks(*rows)  # type: ignore[arg-type]  # with state, as its entry says
        return writer.finish()


def _rows(source: Path, entry: TableEntry) -> Iterator[TableRows]:
    return iterate_table(source / entry.file, rows=entry.rows, dim=entry.dim, state_parts=entry.state_parts)
