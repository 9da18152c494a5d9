"""Files of embedding tables: ids uint64 [rows] and vectors float32 [rows, dim], as npz or Parquet."""

from __future__ import annotations

import re
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from dlrover_lite.errors import JobError, ModelError

__all__ = ["TableWriter", "escape", "iterate_table", "read_table", "table_writer", "unescape"]

Rows = tuple[NDArray[np.uint64], NDArray[np.float32]]

_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]")
_COPY_BYTES = 1 << 20
_CHUNK_BYTES = 8 << 20


def escape(name: str, *, every: bool = False) -> str:
    """A file name for a table: letters, digits, ``_``, ``-`` and ``.`` stay, other bytes of its UTF-8 become %XX.

    So do a leading dot and, if asked for, ``every`` byte. ``unescape`` gives the name back.
    """
    if every and name:
        return _percent(name)
    quoted = _UNSAFE.sub(lambda found: _percent(found[0]), name)
    return "%2E" + quoted[1:] if quoted.startswith(".") else quoted or "%"


def _percent(text: str) -> str:
    return "".join(f"%{byte:02X}" for byte in text.encode())


def unescape(file: str) -> str:
    """The table name that ``escape`` was given."""
    if file == "%":
        return ""
    raw = re.sub(rb"%([0-9A-F]{2})", lambda found: bytes([int(found[1], 16)]), file.encode())
    return raw.decode()


class TableWriter(Protocol):
    path: Path

    def add(self, ids: NDArray[np.uint64], vectors: NDArray[np.float32]) -> None: ...

    def close(self) -> int:
        """Finishes the file; returns its number of rows."""

    def abort(self) -> None:
        """Lets go of open files."""


def table_writer(stem: Path, dim: int, format: Literal["npz", "parquet"]) -> TableWriter:
    """Writes ``stem`` with the format's suffix. Raises JobError when the format's package isn't installed."""
    path = stem.with_name(f"{stem.name}.{format}")
    return _ParquetWriter(path, dim) if format == "parquet" else _NpzWriter(path, dim)


class _NpzWriter:
    """An .npy file starts with its shape, which is known at the end only, and a zip member can't be changed: rows go
    to two plain files first, which are copied into the zip, one table after the other, when all are there."""

    def __init__(self, path: Path, dim: int) -> None:
        self.path, self.dim, self.rows = path, dim, 0
        self._parts = {"ids": path.with_suffix(".ids"), "vectors": path.with_suffix(".vectors")}

    def add(self, ids: NDArray[np.uint64], vectors: NDArray[np.float32]) -> None:
        # Opened for each write: there may be more tables than a process may hold files open.
        for key, array in (("ids", ids.astype("<u8")), ("vectors", vectors.astype("<f4"))):
            with self._parts[key].open("ab") as file:
                file.write(array.tobytes())
        self.rows += len(ids)

    def close(self) -> int:
        kinds = {"ids": ((self.rows,), "<u8"), "vectors": ((self.rows, self.dim), "<f4")}
        with zipfile.ZipFile(self.path, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
            for key, (shape, descr) in kinds.items():
                with archive.open(f"{key}.npy", "w", force_zip64=True) as member:
                    header = {"descr": descr, "fortran_order": False, "shape": shape}
                    np.lib.format.write_array_header_1_0(member, header)
                    if self.rows:
                        with self._parts[key].open("rb") as part:
                            shutil.copyfileobj(part, member, _COPY_BYTES)
                        self._parts[key].unlink()
        return self.rows

    def abort(self) -> None:
        pass


class _ParquetWriter:
    """One row group per call of ``add``; columns ``id`` (uint64) and ``vector`` (fixed-size list of float32)."""

    def __init__(self, path: Path, dim: int) -> None:
        self._arrow = _import_parquet(JobError)
        self.path, self.dim, self.rows = path, dim, 0
        pa = self._arrow
        self._schema = pa.schema([("id", pa.uint64()), ("vector", pa.list_(pa.float32(), dim))])
        self._writer = pa.parquet.ParquetWriter(path, self._schema, compression="zstd")

    def add(self, ids: NDArray[np.uint64], vectors: NDArray[np.float32]) -> None:
        pa = self._arrow
        lists = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), self.dim)
        self._writer.write_table(pa.table([pa.array(ids), lists], schema=self._schema))
        self.rows += len(ids)

    def close(self) -> int:
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


def read_table(path: Path, *, rows: int, dim: int) -> Rows:
    """(ids uint64 [rows], vectors float32 [rows, dim]) of a table file.

    Raises ModelError, naming the file, when it is missing, damaged, or has other numbers of rows or values.
    """
    if not path.is_file():
        raise _damaged(path, "it is missing")
    ids, vectors = _read_parquet(path, dim) if path.suffix == ".parquet" else _read_npz(path)
    if ids.shape != (rows,) or vectors.shape != (rows, dim):
        raise _damaged(path, f"it holds {list(ids.shape)} ids and {list(vectors.shape)} vectors, not {rows} of {dim}")
    return ids, vectors


def iterate_table(path: Path, *, rows: int, dim: int) -> Iterator[Rows]:
    """The rows of a table file in chunks of some megabytes. Raises ModelError as ``read_table`` does."""
    if not path.is_file():
        raise _damaged(path, "it is missing")
    count = max(1, _CHUNK_BYTES // (8 + 4 * dim))
    seen = 0
    chunks = _parquet_chunks(path, dim, count) if path.suffix == ".parquet" else _npz_chunks(path, dim, count)
    for ids, vectors in chunks:
        if vectors.shape != (len(ids), dim):
            raise _damaged(path, f"it holds vectors {list(vectors.shape)} for {len(ids)} ids, not of {dim}")
        seen += len(ids)
        yield ids, vectors
    if seen != rows:
        raise _damaged(path, f"it holds {seen} rows, not {rows}")


def _npz_chunks(path: Path, dim: int, count: int) -> Iterator[Rows]:
    try:
        with zipfile.ZipFile(path) as archive, archive.open("ids.npy") as ids, archive.open("vectors.npy") as vectors:
            (rows,), (_, width) = _npy_shape(ids), _npy_shape(vectors)
            if width != dim:
                raise ValueError(f"its vectors have {width} values, not {dim}")
            for start in range(0, rows, count):
                size = min(count, rows - start)
                read_ids, read_vectors = ids.read(size * 8), vectors.read(size * 4 * dim)
                yield (
                    np.frombuffer(read_ids, "<u8", size),
                    np.frombuffer(read_vectors, "<f4", size * dim).reshape(size, dim),
                )
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise _damaged(path, str(error)) from error


def _npy_shape(file: IO[bytes]) -> tuple[int, ...]:
    np.lib.format.read_magic(file)
    shape, _, _ = np.lib.format.read_array_header_1_0(file)
    return tuple(shape)


def _parquet_chunks(path: Path, dim: int, count: int) -> Iterator[Rows]:
    pa = _import_parquet(ModelError)
    try:
        with pa.parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=count):
                ids = batch.column("id").to_numpy(zero_copy_only=False).astype(np.uint64)
                values = batch.column("vector").flatten().to_numpy(zero_copy_only=False)
                yield ids, values.astype(np.float32).reshape(-1, dim)
    except (OSError, ValueError, KeyError, pa.ArrowException) as error:
        raise _damaged(path, str(error)) from error


def _damaged(path: Path, why: str) -> ModelError:
    return ModelError(f"The export's file {path} can't be used: {why.rstrip('.')}.", hint="Export the model again.")


def _read_npz(path: Path) -> Rows:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return arrays["ids"].astype(np.uint64), arrays["vectors"].astype(np.float32)
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise _damaged(path, str(error)) from error


def _read_parquet(path: Path, dim: int) -> Rows:
    pa = _import_parquet(ModelError)
    try:
        table = pa.parquet.read_table(path)
        ids = table.column("id").to_numpy().astype(np.uint64)
        values = table.column("vector").combine_chunks()
        flat = values.flatten().to_numpy(zero_copy_only=False) if len(ids) else np.empty(0)
        return ids, flat.astype(np.float32).reshape(-1, dim)
    except (OSError, ValueError, KeyError, pa.ArrowException) as error:
        raise _damaged(path, str(error)) from error
