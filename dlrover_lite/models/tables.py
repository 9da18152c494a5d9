"""Files of embedding tables: ids uint64 [rows] and vectors float32 [rows, dim], as npz or Parquet; with optimizer state, if wanted."""

from __future__ import annotations

import math
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from dlrover_lite.core.errors import JobError, ModelError
from dlrover_lite.core.files.regular import check_regular
from dlrover_lite.models.digests import EXPORT_AGAIN

__all__ = [
    "RowShape",
    "SortedTable",
    "TableRows",
    "TableWriter",
    "escape",
    "iterate_table",
    "joined",
    "read_table",
    "table_writer",
]

_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]")
_COPY_BYTES = 1 << 20
_CHUNK_BYTES = 8 << 20


class TableRows(NamedTuple):
    """Rows of one table; ``counts`` and ``state`` are both there, or neither."""

    ids: NDArray[np.uint64]
    """Ids of the rows [n]."""
    vectors: NDArray[np.float32]
    """Vectors of the rows [n, dim]."""
    counts: NDArray[np.uint32] | None = None
    """Number of updates so far of each row [n]."""
    state: NDArray[np.float32] | None = None
    """Optimizer state [n, dim x state parts]: of each row the first part, then the second."""

    @property
    def bytes(self) -> int:
        return sum(array.nbytes for array in self if array is not None)

    def copied(self) -> TableRows:
        """Copy the rows into arrays of their own, of the types above."""
        counts = None if self.counts is None else self.counts.astype(np.uint32)
        state = None if self.state is None else self.state.astype(np.float32)
        return TableRows(self.ids.astype(np.uint64), self.vectors.astype(np.float32), counts, state)


def joined(chunks: Sequence[TableRows]) -> TableRows:
    """Join chunks of rows: at least one, all with state or all without."""
    ids, vectors = np.concatenate([rows.ids for rows in chunks]), np.concatenate([rows.vectors for rows in chunks])
    counts = [rows.counts for rows in chunks if rows.counts is not None]
    state = [rows.state for rows in chunks if rows.state is not None]
    if not counts or not state:
        return TableRows(ids, vectors)
    return TableRows(ids, vectors, np.concatenate(counts), np.concatenate(state))


class RowShape(NamedTuple):
    dim: int
    state_parts: int | None = None
    """Floats of optimizer state per value; None: rows come without state and counts."""

    @property
    def columns(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """The arrays of a file: dtype, and the shape behind [rows]. State of no parts is no array."""
        columns: dict[str, tuple[str, tuple[int, ...]]] = {"ids": ("<u8", ()), "vectors": ("<f4", (self.dim,))}
        if self.state_parts is not None:
            columns["counts"] = ("<u4", ())
        if self.state_parts:
            columns["state"] = ("<f4", (self.dim * self.state_parts,))
        return columns

    @property
    def bytes(self) -> int:
        """Bytes of a row."""
        return sum(np.dtype(dtype).itemsize * math.prod(width) for dtype, width in self.columns.values())

    def fits(self, rows: TableRows) -> bool:
        """Say whether all arrays have the lengths they must have."""
        n, parts = len(rows.ids), self.state_parts
        if rows.ids.ndim != 1 or rows.vectors.shape != (n, self.dim):
            return False
        if parts is None or rows.counts is None or rows.state is None:
            return parts is None and rows.counts is None and rows.state is None
        return rows.counts.shape == (n,) and rows.state.shape == (n, self.dim * parts)

    def rows(self, arrays: Mapping[str, NDArray[Any]]) -> TableRows:
        """Make rows of arrays by the names of ``columns``."""
        ids = arrays["ids"]
        if self.state_parts is None:
            return TableRows(ids, arrays["vectors"])
        state = arrays["state"] if self.state_parts else np.empty((len(ids), 0), np.float32)
        return TableRows(ids, arrays["vectors"], arrays["counts"], state)


def escape(name: str, *, every: bool = False) -> str:
    """Return a file name for a table: letters, digits, ``_``, ``-`` and ``.`` stay, other bytes of its UTF-8 become %XX.

    So do a leading dot and, if asked for, ``every`` byte. No two names give one file.
    """
    if every and name:
        return _percent(name)
    quoted = _UNSAFE.sub(lambda found: _percent(found[0]), name)
    return "%2E" + quoted[1:] if quoted.startswith(".") else quoted or "%"


def _percent(text: str) -> str:
    return "".join(f"%{byte:02X}" for byte in text.encode())


class TableWriter(Protocol):
    path: Path

    def add(self, chunks: Sequence[TableRows]) -> None:
        """Writes these rows, one chunk after the other."""

    @property
    def aside_bytes(self) -> int:
        """Bytes that ``close`` still has to copy to their places."""

    def close(self, copied: Callable[[int], object] = lambda _: None) -> int:
        """Finishes the file; returns its number of rows. ``copied`` is called with the numbers of bytes that have got to their place."""

    def abort(self) -> None:
        """Lets go of open files."""


def table_writer(stem: Path, shape: RowShape, format: Literal["npz", "parquet"]) -> TableWriter:
    """Make a writer of ``stem`` with the format's suffix. Raises JobError when the format's package isn't installed."""
    path = stem.with_name(f"{stem.name}.{format}")
    return _ParquetWriter(path, shape) if format == "parquet" else _NpzWriter(path, shape)


class _NpzWriter:
    """Writes npz files. An .npy file starts with its shape, which is known at the end only, and a zip member can't be changed: rows go to
    plain files first, which are copied into the zip, one table after the other, when all are there."""

    def __init__(self, path: Path, shape: RowShape) -> None:
        self.path, self.rows = path, 0
        self._columns, self._row_bytes = shape.columns, shape.bytes
        self._parts = {name: path.with_suffix(f".{name}") for name in self._columns}

    def add(self, chunks: Sequence[TableRows]) -> None:
        # Opened for each write: there may be more tables than a process may hold files open.
        for name, (dtype, _) in self._columns.items():
            with self._parts[name].open("ab") as file:
                for rows in chunks:
                    file.write(np.ascontiguousarray(getattr(rows, name), dtype).reshape(-1).view(np.uint8).data)
        self.rows += sum(len(rows.ids) for rows in chunks)

    @property
    def aside_bytes(self) -> int:
        return self.rows * self._row_bytes

    def close(self, copied: Callable[[int], object] = lambda _: None) -> int:
        with zipfile.ZipFile(self.path, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
            for name, (dtype, shape) in self._columns.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    header = {"descr": dtype, "fortran_order": False, "shape": (self.rows, *shape)}
                    np.lib.format.write_array_header_1_0(member, header)
                    if self.rows:
                        with self._parts[name].open("rb") as part:
                            while data := part.read(_COPY_BYTES):
                                member.write(data)
                                copied(len(data))
                        self._parts[name].unlink()
        return self.rows

    def abort(self) -> None:
        pass


_PARQUET_NAMES = {"ids": "id", "vectors": "vector", "counts": "count", "state": "state"}


class _ParquetWriter:
    """Writes Parquet files: row groups of some megabytes; columns ``id`` (uint64) and ``vector`` (fixed-size list of float32), with state
    ``count`` (uint32) and ``state`` (fixed-size list of float32) too."""

    def __init__(self, path: Path, shape: RowShape) -> None:
        self._arrow = _import_parquet(JobError)
        self.path, self.rows = path, 0
        self._columns = shape.columns
        pa = self._arrow
        kinds = {"<u8": pa.uint64(), "<u4": pa.uint32(), "<f4": pa.float32()}
        self._schema = pa.schema(
            [
                (_PARQUET_NAMES[name], pa.list_(kinds[dtype], *width) if width else kinds[dtype])
                for name, (dtype, width) in self._columns.items()
            ]
        )
        self._row_group = max(1, _CHUNK_BYTES // shape.bytes)
        # Numbers that hardly repeat: a dictionary of them would only take memory.
        self._writer = pa.parquet.ParquetWriter(path, self._schema, compression="zstd", use_dictionary=False)

    def add(self, chunks: Sequence[TableRows]) -> None:
        pa, rows = self._arrow, joined(chunks)
        arrays = []
        for name, (_, width) in self._columns.items():
            flat = pa.array(getattr(rows, name).reshape(-1))
            arrays.append(pa.FixedSizeListArray.from_arrays(flat, *width) if width else flat)
        self._writer.write_table(pa.table(arrays, schema=self._schema), row_group_size=self._row_group)
        self.rows += len(rows.ids)

    @property
    def aside_bytes(self) -> int:
        return 0

    def close(self, copied: Callable[[int], object] = lambda _: None) -> int:
        self._writer.close()
        return self.rows

    def abort(self) -> None:
        self._writer.close()


def _import_parquet(error: type[JobError] | type[ModelError]) -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as missing:
        raise error(
            "Parquet tables need pyarrow, which isn't installed.",
            hint="pip install 'dlrover-lite[parquet]', or export as npz.",
        ) from missing
    return pyarrow


def read_table(path: Path, *, rows: int, dim: int, progress: Callable[[int], object] = lambda _: None) -> TableRows:
    """Read ids and vectors of a table file, without optimizer state, by rising ids. Memory beside these is for a chunk of
    ``iterate_table``: the file is read once for the ids, and once more for the vectors, each of which goes to its place. ``progress`` is
    called with the number of rows that are there.

    Raises ModelError, naming the file, when it is missing, damaged, or has other numbers of rows or values.
    """
    _check_file(path)
    try:
        ids = np.empty(rows, np.uint64)
    except (MemoryError, ValueError) as error:
        raise _damaged(path, f"it can't hold {rows} rows") from error
    at = 0
    for arrays in _chunks(path, {"ids": ("<u8", ())}, _CHUNK_BYTES // 8):
        stop = at + len(arrays["ids"])
        if stop > rows:
            raise _damaged(path, f"it holds more than {rows} rows")
        ids[at:stop] = arrays["ids"]
        at = stop
    if at < rows:
        raise _damaged(path, f"it holds {at} rows, not {rows}")
    table = SortedTable(ids, dim)
    for chunk in iterate_table(path, rows=rows, dim=dim):
        if not table.put(chunk.ids, chunk.vectors):
            raise _damaged(path, "it has changed while it was read")
        progress(table.filled)
    if table.filled != rows or table.twice:
        raise _damaged(path, "it holds an id twice")
    return TableRows(table.ids, table.vectors)


class SortedTable:
    """Vectors by rising ids, put at their places as they come: in no more memory than they need."""

    def __init__(self, ids: NDArray[np.uint64], dim: int) -> None:
        """Begin with all ``ids``, in any order; they are put in order where they are."""
        ids.sort()
        self.ids = ids
        self.vectors: NDArray[np.float32] = np.empty((len(ids), dim), np.float32)
        self.filled = 0
        """Number of rows that have been put at their places."""

    @property
    def twice(self) -> bool:
        """Whether an id is there more than once."""
        first, second, step = self.ids[:-1], self.ids[1:], _CHUNK_BYTES // 8
        return any((first[at : at + step] == second[at : at + step]).any() for at in range(0, len(second), step))

    def put(self, ids: NDArray[np.uint64], vectors: NDArray[np.float32]) -> bool:
        """Put vectors of some of the ids at their places; False, and nothing is done, where one of them isn't among these."""
        order = np.argsort(ids)  # neighbours are found much faster one after the other
        wanted = ids[order]
        at = np.minimum(np.searchsorted(self.ids, wanted), max(0, len(self.ids) - 1))
        if len(wanted) and not (len(self.ids) and (self.ids[at] == wanted).all()):
            return False
        self.vectors[at] = vectors[order]
        self.filled += len(ids)
        return True


def iterate_table(path: Path, *, rows: int, dim: int, state_parts: int | None = None) -> Iterator[TableRows]:
    """Yield the rows of a table file in chunks of some megabytes, with optimizer state if ``state_parts`` is given.

    Raises ModelError as ``read_table`` does.
    """
    _check_file(path)
    shape = RowShape(dim, state_parts)
    count = max(1, _CHUNK_BYTES // (12 + 4 * dim * (1 + (state_parts or 0))))
    seen = 0
    for arrays in _chunks(path, shape.columns, count):
        chunk = shape.rows(arrays)
        if not shape.fits(chunk):
            raise _damaged(path, f"it holds vectors {list(chunk.vectors.shape)} for {len(chunk.ids)} ids, not of {dim}")
        seen += len(chunk.ids)
        yield chunk
    if seen != rows:
        raise _damaged(path, f"it holds {seen} rows, not {rows}")


def _check_file(path: Path) -> None:
    try:
        check_regular(path)
    except FileNotFoundError as error:
        raise _damaged(path, "it is missing") from error
    except OSError as error:
        raise _damaged(path, str(error.strerror)) from error


_Columns = Mapping[str, tuple[str, tuple[int, ...]]]
"""Columns as in ``RowShape.columns``, or some of them."""
_Arrays = dict[str, NDArray[Any]]


def _chunks(path: Path, columns: _Columns, count: int) -> Iterator[_Arrays]:
    """Yield these columns of a table file, of ``count`` rows at a time. Raises ModelError."""
    return _parquet_chunks(path, columns, count) if path.suffix == ".parquet" else _npz_chunks(path, columns, count)


def _npz_chunks(path: Path, columns: _Columns, count: int) -> Iterator[_Arrays]:
    try:
        with ExitStack() as stack:
            archive = stack.enter_context(zipfile.ZipFile(path))
            files = {name: stack.enter_context(archive.open(f"{name}.npy")) for name in columns}
            rows = _npy_rows(files, columns)
            for start in range(0, rows, count):
                size = min(count, rows - start)
                arrays = {}
                for name, (dtype, width) in columns.items():
                    data = files[name].read(size * np.dtype(dtype).itemsize * int(np.prod(width)))
                    arrays[name] = np.frombuffer(data, dtype).reshape(size, *width)
                yield arrays
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise _damaged(path, str(error)) from error


def _npy_rows(files: Mapping[str, IO[bytes]], columns: _Columns) -> int:
    """Return how many rows all of the arrays have. Raises ValueError when they don't go together."""
    rows: int | None = None
    for name, (dtype, width) in columns.items():
        np.lib.format.read_magic(files[name])
        found, _, kind = np.lib.format.read_array_header_1_0(files[name])
        rows = found[0] if rows is None else rows
        if tuple(found) != (rows, *width) or kind != np.dtype(dtype):
            raise ValueError(f"its {name} are {kind} {list(found)}, not {np.dtype(dtype)} {[rows, *width]}")
    return rows or 0


def _parquet_chunks(path: Path, columns: _Columns, count: int) -> Iterator[_Arrays]:
    pa = _import_parquet(ModelError)
    try:
        with pa.parquet.ParquetFile(path) as file:
            names = [_PARQUET_NAMES[name] for name in columns]
            # One after the other: of several, all are read ahead, and kept.
            for group in range(file.num_row_groups):
                for batch in file.iter_batches(batch_size=count, row_groups=[group], columns=names):
                    arrays = {}
                    for name, (dtype, width) in columns.items():
                        column = batch.column(_PARQUET_NAMES[name])
                        flat = (column.flatten() if width else column).to_numpy(zero_copy_only=False)
                        arrays[name] = flat.astype(dtype).reshape(-1, *width)
                    yield arrays
    except (OSError, ValueError, KeyError, pa.ArrowException) as error:
        raise _damaged(path, str(error)) from error


def _damaged(path: Path, why: str) -> ModelError:
    return ModelError(f"The export's file {path} can't be used: {why.rstrip('.')}.", hint=EXPORT_AGAIN)
