"""Writes a trained model as a directory of ``model.json``, ``dense.safetensors``, ``tables/``, ``model/`` and ``SHA256SUMS``.

The format is described in docs/models.md; ``serving.py`` reads it. Nothing here needs torch.
"""

from __future__ import annotations

import errno
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from dlrover_lite.core.errors import DiskFull, JobError, ModelError
from dlrover_lite.core.failpoints import needs_room
from dlrover_lite.core.files.durable import sync_directory, sync_file
from dlrover_lite.core.progress import Steps, Tally, no_steps
from dlrover_lite.data.base import Schema
from dlrover_lite.models.digests import DIGESTS_FILE, write_digests
from dlrover_lite.models.fields import EmbeddingField
from dlrover_lite.models.sources import copy_sources
from dlrover_lite.models.tables import RowShape, TableRows, TableWriter, escape, table_writer
from dlrover_lite.recipe.id_kinds import IdKind
from dlrover_lite.recipe.schema import Model, Optimizer

__all__ = [
    "DENSE_FILE",
    "FORMAT_VERSION",
    "MANIFEST_FILE",
    "MODEL_DIRECTORY",
    "ExportWriter",
    "Manifest",
    "Optimizers",
    "TableEntry",
    "TensorEntry",
]

FORMAT_VERSION = 1
MANIFEST_FILE = "model.json"
DENSE_FILE = "dense.safetensors"
DENSE_BLOCKS = "dense_blocks"
MODEL_DIRECTORY = "model"
BUFFERED_BYTES = 32 << 20
"""Maximum bytes of rows that are held back over all tables, so that files get large writes."""

Format = Literal["npz", "parquet"]


class TensorEntry(msgspec.Struct, frozen=True):
    """A dense parameter, or an averaged buffer, by its name in the module's ``state_dict``."""

    name: str
    shape: tuple[int, ...]
    dtype: str


class TableEntry(msgspec.Struct, frozen=True):
    name: str
    file: str
    """Path of the file, relative to the export directory."""
    dim: int
    init_scale: float
    rows: int = 0
    state_parts: int | None = None
    """Floats of optimizer state per value in the file; None: neither state nor counts of updates are there."""

    @property
    def shape(self) -> RowShape:
        return RowShape(self.dim, self.state_parts)


class Optimizers(msgspec.Struct, frozen=True):
    """Optimizers whose state an export holds."""

    embeddings: Optimizer
    dense: Optimizer


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """All of ``model.json``. ``ExportWriter`` fills in ``tables``, ``dense``, ``dense_blocks`` and, for a user's
    file, ``model``."""

    version: int = FORMAT_VERSION
    """Version of the export's format."""
    digests: str = ""
    """Name of the file with the digests of all others, ``SHA256SUMS``; empty: written by a version that kept none."""
    model: Model
    schema: Schema
    fields: list[EmbeddingField]
    seed: int
    """Seed of the job: unknown ids get their initial values by it."""
    data_format: str = ""
    """Format of the training data: criteo, csv, parquet, synthetic or census."""
    data_options: dict[str, Any] = {}
    """How the data's lines are read, of CSV and Parquet: label, delimiter and columns, as in the recipe."""
    id_kinds: dict[str, IdKind] = {}
    """What each categorical column's ids were in training. Columns that nothing is known of are left out, as are all in older exports."""
    unknown_ids: dict[str, float] = {}
    """Share of ids that had never been trained, by categorical column, in the job's last evaluation (or else in fresh training data)."""
    transform: str = ""
    """What the reader does with a line's values before they are ids and dense features, by name."""
    tables: list[TableEntry] = []
    dense: list[TensorEntry] = []
    optimizers: Optimizers | None = None
    """Optimizers of an export that has their state; else None."""
    dense_blocks: TableEntry | None = None
    """The dense parameters once more, in an export with optimizer state: as blocks of one flat vector (``tables.layout``), with their
    state."""


class _Table:
    """A table's file in the making, and the rows that are held back for it."""

    def __init__(self, entry: TableEntry, writer: TableWriter) -> None:
        self.entry, self.writer = entry, writer
        self.waiting_bytes = 0
        self._waiting: list[TableRows] = []

    def hold(self, rows: TableRows) -> None:
        copy = rows.copied()
        self._waiting.append(copy)
        self.waiting_bytes += copy.bytes

    def flush(self) -> None:
        """Write what is held back. Raises OSError."""
        chunks, self._waiting, self.waiting_bytes = self._waiting, [], 0
        if chunks:
            self.writer.add(chunks)

    def finish(self, copied: Callable[[int], object]) -> TableEntry:
        """Write all that is left; return what the manifest says of the table. ``copied``: see ``TableWriter.close``. Raises OSError."""
        return msgspec.structs.replace(self.entry, rows=self.writer.close(copied))


def _state_parts(optimizer: Optimizer) -> int:
    from dlrover_lite.tables.optimizer_state import STATE_PARTS

    return STATE_PARTS[optimizer.use]


class ExportWriter:
    """Writes an export into a temporary directory beside ``directory``, which ``finish`` renames.

    ``model_directory`` is where the recipe's relative model file starts. Rows are streamed: memory stays bounded
    whatever the number of rows. As a context manager, leaving without ``finish`` aborts.
    All methods raise JobError when the disk is full or can't be written, naming the directory.
    """

    def __init__(
        self,
        directory: Path,
        manifest: Manifest,
        format: Format = "npz",
        *,
        model_directory: Path | None = None,
        overwrite: bool = True,
        elsewhere: str = "export to another directory",
    ) -> None:
        """Begin an export. ``elsewhere``: what to do, beside making room, where ``directory`` can't be written."""
        self.directory = directory.absolute()
        self.manifest = manifest
        self._overwrite = overwrite
        self._elsewhere = elsewhere
        self._check_target()
        self._partial = self.directory.with_name(f".{self.directory.name}.partial-{uuid.uuid4().hex[:8]}")
        self._tables: dict[str, _Table] = {}
        self._blocks: _Table | None = None
        self._dense: list[TensorEntry] = []
        self._open = True
        with self._writing():
            (self._partial / "tables").mkdir(parents=True)
            if ":" in manifest.model.use:
                use = copy_sources(manifest.model.use, model_directory or Path.cwd(), self._partial / MODEL_DIRECTORY)
                self.manifest = msgspec.structs.replace(manifest, model=Model(use=use, options=manifest.model.options))
            for field in manifest.fields:
                self._add_table(field, format)
            if manifest.optimizers is not None:
                self._add_blocks(manifest.optimizers.dense, format)

    def _add_table(self, field: EmbeddingField, format: Format) -> None:
        name = field.table_name
        if name not in self._tables:
            # Names that differ in case only are one file name on some file systems.
            taken = {escape(other).casefold() for other in self._tables}
            stem = escape(name, every=escape(name).casefold() in taken)
            optimizers = self.manifest.optimizers
            shape = RowShape(field.dim, None if optimizers is None else _state_parts(optimizers.embeddings))
            writer = table_writer(self._partial / "tables" / stem, shape, format)
            file, scale = f"tables/{writer.path.name}", float(field.init_scale)
            self._tables[name] = _Table(TableEntry(name, file, shape.dim, scale, 0, shape.state_parts), writer)

    def _add_blocks(self, optimizer: Optimizer, format: Format) -> None:
        from dlrover_lite.tables.layout import BLOCK, PARAMETERS

        shape = RowShape(BLOCK, _state_parts(optimizer))
        writer = table_writer(self._partial / DENSE_BLOCKS, shape, format)
        self._blocks = _Table(TableEntry(PARAMETERS.name, writer.path.name, BLOCK, 0.0, 0, shape.state_parts), writer)

    def write_dense(self, tensors: Mapping[str, NDArray[np.generic]]) -> None:
        """Write the dense parameters and averaged buffers, by their names in the module's ``state_dict``; once."""
        from safetensors.numpy import save

        arrays = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
        with self._writing():
            # safetensors' own save_file reports a full disk as an error of another kind.
            (self._partial / DENSE_FILE).write_bytes(save(arrays))
        self._dense = [TensorEntry(name, array.shape, str(array.dtype)) for name, array in arrays.items()]

    def add_rows(
        self,
        table: str,
        ids: NDArray[np.uint64],
        vectors: NDArray[np.float32],
        counts: NDArray[np.uint32] | None = None,
        state: NDArray[np.float32] | None = None,
    ) -> None:
        """Add rows of a table: ids uint64 [n], vectors float32 [n, dim]; any number of times, tables in any order.

        In an export with optimizer state, also counts of updates uint32 [n], and state float32 [n, dim x parts]. An id must be added once.
        Raises ValueError for an unknown table or arrays of another shape.
        """
        if table not in self._tables:
            raise ValueError(f"no table {table!r} in this export")
        self._add(self._tables[table], TableRows(ids, vectors, counts, state))

    def add_dense_blocks(
        self,
        numbers: NDArray[np.uint64],
        values: NDArray[np.float32],
        counts: NDArray[np.uint32],
        state: NDArray[np.float32],
    ) -> None:
        """Add blocks of the flat vector of all parameters, as rows of a table are added, in an export with optimizer state."""
        if self._blocks is None:
            raise ValueError("this export is one without optimizer state")
        self._add(self._blocks, TableRows(numbers, values, counts, state))

    def _add(self, table: _Table, rows: TableRows) -> None:
        if not table.entry.shape.fits(rows):
            raise ValueError(
                f"table {table.entry.name!r} with {table.entry.shape.columns}: {rows.ids.shape} ids and {rows.vectors.shape} vectors"
                + "".join(f", {array.shape} {array.dtype}" for array in rows[2:] if array is not None)
            )
        table.hold(rows)
        tables = self._all_tables()
        while sum(one.waiting_bytes for one in tables) > BUFFERED_BYTES:
            with self._writing():
                max(tables, key=lambda one: one.waiting_bytes).flush()

    def _all_tables(self) -> list[_Table]:
        return [*self._tables.values(), *([self._blocks] if self._blocks is not None else [])]

    def finish(self, steps: Steps = no_steps) -> Path:
        """Writes what is left and puts the export in place, replacing an older export. Returns the directory. ``steps`` is told how far
        it is."""
        if not (self._partial / DENSE_FILE).exists():
            self.write_dense({})
        with self._writing():
            for table in self._all_tables():
                table.flush()
            aside = sum(table.writer.aside_bytes for table in self._all_tables())
            tally = Tally(aside, lambda done, total: steps("putting files together", done, total, "bytes"))
            tables = [table.finish(tally.add) for table in self._tables.values()]
            blocks = None if self._blocks is None else self._blocks.finish(tally.add)
        manifest = msgspec.structs.replace(
            self.manifest, tables=tables, dense=self._dense, dense_blocks=blocks, digests=DIGESTS_FILE
        )
        with self._writing():
            text = msgspec.json.format(msgspec.json.encode(manifest), indent=2)
            (self._partial / MANIFEST_FILE).write_bytes(text + b"\n")
            for path in sorted(path for path in self._partial.rglob("*") if path.is_file()):
                sync_file(path)
            sync_file(write_digests(self._partial, steps))
            for path in (self._partial, *sorted(path for path in self._partial.rglob("*") if path.is_dir())):
                sync_directory(path)
            self._check_target()
            self._replace()
        self._open = False
        return self.directory

    def _replace(self) -> None:
        old = self._partial.with_name(self._partial.name.replace(".partial-", ".old-"))
        if self.directory.exists():
            self.directory.rename(old)
        try:
            self._partial.rename(self.directory)
        except OSError:
            if old.exists():
                old.rename(self.directory)
            raise
        sync_directory(self.directory.parent)
        shutil.rmtree(old, ignore_errors=True)

    def abort(self) -> None:
        """Removes everything written so far. Does nothing after ``finish``."""
        if self._open:
            self._open = False
            for table in self._all_tables():
                table.writer.abort()
            shutil.rmtree(self._partial, ignore_errors=True)

    def __enter__(self) -> ExportWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.abort()

    def _check_target(self) -> None:
        """Check the directory: an export may be replaced, an empty directory filled; anything else there is somebody's data."""
        target = self.directory
        if not target.exists() and not target.is_symlink():
            return
        empty = target.is_dir() and not any(target.iterdir())
        if not empty and not (target.is_dir() and (target / MANIFEST_FILE).is_file()):
            raise JobError(
                f"{target} exists and is not an exported model.", hint="Choose another directory to export to."
            )
        if not empty and not self._overwrite:
            raise JobError(
                f"{target} holds an exported model already.",
                hint="Allow overwriting it (--overwrite), or choose another.",
            )

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            needs_room("export")
            yield
        except OSError as error:
            self.abort()
            where = self.directory.parent
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise DiskFull(
                    f"The disk is full: the model can't be exported to {self.directory}.",
                    directory=where,
                    hint=f"Make room under {where}, or {self._elsewhere}.",
                ) from error
            raise JobError(
                f"The model can't be exported to {self.directory}: {error.strerror or error}.",
                hint=f"Check that {where} can be written, or {self._elsewhere}.",
            ) from error
        except ModelError:
            self.abort()
            raise
