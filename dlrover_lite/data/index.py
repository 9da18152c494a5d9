"""Offset indexes of text files: where every 1,024th line starts, and how many lines there are.

Built in one pass, kept in the cache directory under the file's absolute path or URL, and used as long as the file's
version (size and modification time, or tag) is that which it was built for. A
.gz file (known by its first bytes) is unpacked there in the same pass; the unpacked text has a checksum for every
32,768 lines, which readers compare (``lines``): nobody else would notice that it was damaged.
"""

from __future__ import annotations

import gzip
import io
import os
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dlrover_lite.core.errors import DataError
from dlrover_lite.core.files.data_file import DataFile, open_stream, version_of
from dlrover_lite.core.files.paths import cache_directory, make_cache
from dlrover_lite.core.files.regular import open_descriptor, read_file
from dlrover_lite.core.files.remote import RemoteFile, Version
from dlrover_lite.core.units import format_bytes
from dlrover_lite.data.block_cache import CACHE_VARIABLE, cache_bytes, process_cache
from dlrover_lite.data.files import Progress, atomic_file, is_disk_full, unnamed_file
from dlrover_lite.data.index_store import MOST_INDEX_BYTES, index_file, index_name, keep_index

__all__ = [
    "LINES_PER_CHECKSUM",
    "LINES_PER_MARK",
    "TextIndex",
    "find_index",
    "index_text",
    "open_head",
    "unpack_again",
]

LINES_PER_MARK = 1024
LINES_PER_CHECKSUM = 32 * LINES_PER_MARK
_CHUNK_BYTES = 4 << 20
_SAMPLE_BYTES = 4 << 20
_AHEAD_BYTES = 16 << 20
"""Bytes of a file under a URL that are fetched before they are read, while it is indexed."""
_FORMAT = 0x314C4449  # "IDL1"
_HEADER = 7  # format, source size, source stamp, text size, text stamp, lines, CRC of what follows
_LATER_NANOSECONDS = 2_000_000_000
"""Age difference in nanoseconds of an unpacked text to what it was unpacked from: not equal, and the same whoever unpacks it, so that who
has an index of it can go on with the text that another process has unpacked anew."""
_GZIP_MAGIC = b"\x1f\x8b"


@dataclass(frozen=True)
class TextIndex:
    """Positions of the lines of ``source`` in ``text``: the file itself, or what it holds unpacked."""

    source: DataFile
    text: DataFile
    size: int
    """Bytes of ``text``."""
    stamp: int
    """Modification time of ``text`` in nanoseconds, or what a store has instead, to notice when it is changed."""
    lines: int
    offsets: NDArray[np.int64]
    """Byte offsets [ceil(lines / 1024)] in ``text`` at which line 1024 * i starts."""
    checksums: NDArray[np.int64]
    """CRC-32 of each 32,768 lines of an unpacked text; empty for a file that isn't ours."""
    unnamed: BinaryIO | None = None
    """The unpacked text where no cache can be written: a file without a name, gone with this object."""

    @property
    def remote(self) -> RemoteFile | None:
        """Return the file under a URL that lines are read from; None where the text is on this machine."""
        return self.text if isinstance(self.text, RemoteFile) and self.unnamed is None else None

    def open(self) -> int:
        """Return a descriptor of the text, to be closed by the caller. Raises DataError when the text isn't as indexed."""
        try:
            descriptor = os.dup(self.unnamed.fileno()) if self.unnamed else open_descriptor(str(self.text))
        except OSError as error:
            raise DataError(f"data file {self.text} can't be read: {error.strerror}") from None
        try:
            self.check(descriptor)
        except DataError:
            os.close(descriptor)
            raise
        return descriptor

    def is_whole(self, buffer: NDArray[np.uint8], window: int) -> bool:
        """Return whether the lines from 32,768 * ``window`` on are in ``buffer``, the text, as they were unpacked."""
        if not len(self.checksums):
            return True
        first, after = (number * (LINES_PER_CHECKSUM // LINES_PER_MARK) for number in (window, window + 1))
        end = int(self.offsets[after]) if after < len(self.offsets) else self.size
        return zlib.crc32(buffer[int(self.offsets[first]) : end].data) == int(self.checksums[window])

    def check(self, descriptor: int) -> None:
        """Check that the open text wasn't changed since it was indexed. Raises DataError when it was."""
        status = os.fstat(descriptor)
        if (status.st_size, status.st_mtime_ns) != (self.size, self.stamp):
            raise _changed(self.text)


def find_index(source: DataFile) -> TextIndex | None:
    """Return the cached index of a file, if there is one that still fits. Raises OSError when ``source`` can't be read."""
    version = version_of(source)
    try:
        stored = np.frombuffer(_whole_words(read_file(index_file(index_name(source)), MOST_INDEX_BYTES)), np.int64)
        if len(stored) < _HEADER or stored[0] != _FORMAT or stored[6] != zlib.crc32(stored[_HEADER:].tobytes()):
            return None
        _, source_size, source_mtime, size, mtime, lines, _ = (int(value) for value in stored[:_HEADER])
        # A text that was unpacked has a modification time of its own.
        unpacked = (size, mtime) != (source_size, source_mtime)
        text = _unpacked_path(source, version) if unpacked else source
        offsets, checksums = np.split(stored[_HEADER:], [_marks(lines)])
        fits = (source_size, source_mtime) == version and (size, mtime) == version_of(text)
    except OSError:
        return None
    fits = fits and len(offsets) == _marks(lines) and len(checksums) == (_windows(lines) if unpacked else 0)
    return TextIndex(source, text, size, mtime, lines, offsets, checksums) if fits else None


def index_text(source: DataFile, progress: Progress | None = None) -> TextIndex:
    """Return the index of a text file or .gz, cached or built now. Several processes may build the same one at once.

    ``progress(what, done, total)`` is called in bytes of ``source``. Raises DataError.
    """
    try:
        return find_index(source) or _build(source, progress)
    except OSError as error:
        raise DataError(f"data file {source} can't be read: {error.strerror or error}") from error


def unpack_again(damaged: TextIndex) -> TextIndex:
    """Return the index of a text whose unpacked copy turned out to be ``damaged``, unpacked anew. Raises DataError, also where its source
    is another one by now."""
    try:
        found = _build(damaged.source, None)
    except OSError as error:
        raise DataError(f"data file {damaged.source} can't be read: {error.strerror or error}") from error
    if (found.size, found.lines) != (damaged.size, damaged.lines) or not np.array_equal(
        found.checksums, damaged.checksums
    ):
        raise _changed(damaged.source)
    return found


def _build(source: DataFile, progress: Progress | None) -> TextIndex:
    """Build the index of a file. Raises DataError and OSError."""
    with _open(source) as file:
        version = _version(source, file)
        packed = file.read(2) == _GZIP_MAGIC
        file.seek(0)
        index = _unpack(source, file, version, progress) if packed else _scan(source, file, version, progress)
        if isinstance(source, RemoteFile):
            source.check()
        elif _version(source, file) != version:
            raise _changed(source)
    if index.unnamed is None:
        _store(index, version)
    return index


def _open(source: DataFile) -> io.BufferedReader:
    """Open a file that is to be read from its beginning to its end."""
    if isinstance(source, RemoteFile):
        return io.BufferedReader(process_cache().stream(source, _AHEAD_BYTES), _CHUNK_BYTES)
    return open_stream(source)


def _version(source: DataFile, file: io.BufferedReader) -> Version:
    """Return the version of an open file."""
    if isinstance(source, RemoteFile):
        return source.version()
    status = os.fstat(file.fileno())
    return Version(status.st_size, status.st_mtime_ns)


def open_head(source: DataFile, byte_count: int) -> bytes:
    """Return the first bytes of a text file, or of what a .gz holds: at most ``byte_count``. Raises DataError."""
    try:
        with open_stream(source) as file:
            if file.peek(2)[:2] != _GZIP_MAGIC:
                return file.read(byte_count)
            return b"".join(_unpacked_chunks(source, file, byte_count))
    except OSError as error:
        raise DataError(f"data file {source} can't be read: {error.strerror or error}") from error


class _Marks(NamedTuple):
    """See ``TextIndex``."""

    lines: int
    """Number of lines; a last one without newline counts."""
    offsets: NDArray[np.int64]
    checksums: NDArray[np.int64]


class _Builder:
    """Finds the marks of a text that is fed to it in pieces, and ``with_checksums`` those of every 32,768 lines too."""

    def __init__(self, *, with_checksums: bool = False) -> None:
        self.size = 0
        self._with_checksums = with_checksums
        self._checksum = 0
        """CRC-32 of the lines since the last whole 32,768."""
        self._checksums: list[int] = []
        self._found = 1
        """Number of marks found."""
        self._newlines = 0
        self._ends_with_newline = True
        self._marks = [np.zeros(1, np.int64)]

    def feed(self, piece: NDArray[np.uint8]) -> None:
        from dlrover_lite.data.kernels.lines import mark_lines

        if not len(piece):
            return
        marks = np.empty(len(piece) // LINES_PER_MARK + 1, np.int64)
        self._newlines, found = mark_lines(piece, self._newlines, self.size, marks)
        self._marks.append(marks[:found])
        if self._with_checksums:
            self._add_checksums(piece, marks[:found])
        self._ends_with_newline = bool(piece[-1] == 10)
        self.size += len(piece)

    def _add_checksums(self, piece: NDArray[np.uint8], marks: NDArray[np.int64]) -> None:
        step = LINES_PER_CHECKSUM // LINES_PER_MARK
        begin = 0
        for end in (marks[-self._found % step :: step] - self.size).tolist():
            self._checksums.append(zlib.crc32(piece[begin:end].data, self._checksum))
            self._checksum, begin = 0, end
        self._checksum = zlib.crc32(piece[begin:].data, self._checksum)
        self._found += len(marks)

    def finish(self) -> _Marks:
        lines = self._newlines + (not self._ends_with_newline)
        checksums = [*self._checksums, self._checksum][: _windows(lines)] if self._with_checksums else []
        return _Marks(lines, np.concatenate(self._marks)[: _marks(lines)], np.array(checksums, np.int64))


def _scan(source: DataFile, file: io.BufferedReader, version: Version, progress: Progress | None) -> TextIndex:
    builder = _Builder()
    buffer = np.empty(_CHUNK_BYTES, np.uint8)
    while count := file.readinto(buffer.data):
        builder.feed(buffer[:count])
        if progress:
            progress(f"indexing {source.name}", builder.size, version.size)
    if builder.size != version.size:
        raise _changed(source)
    return TextIndex(source, source, version.size, version.stamp, *builder.finish())


def _unpack(source: DataFile, file: BinaryIO, version: Version, progress: Progress | None) -> TextIndex:
    """Unpack into the cache directory, or where that can't be written into a file without a name."""
    needed = _unpacked_size(source, file, version.size)
    most = _most_unpacked(source, needed)
    text = _unpacked_path(source, version)
    if _writable(text.parent):
        _check_space(source, text.parent, needed)
        try:
            _remove_other_versions(source, text)
            with atomic_file(text, private=True) as target:
                marks = _unpack_to(target, source, file, version, most, progress)
                target.flush()
                later = version.stamp + _LATER_NANOSECONDS
                os.utime(target.fileno(), ns=(later, later))
                unpacked = os.fstat(target.fileno())
        except OSError as error:
            raise _write_error(error, source, text.parent, needed) from error
        return TextIndex(source, text, unpacked.st_size, unpacked.st_mtime_ns, *marks)
    directory = Path(tempfile.gettempdir())
    _check_space(source, directory, needed)
    try:
        target = unnamed_file(directory)
        marks = _unpack_to(target, source, file, version, most, progress)
        target.flush()
        unpacked = os.fstat(target.fileno())
    except OSError as error:
        raise _write_error(error, source, directory, needed) from error
    return TextIndex(source, source, unpacked.st_size, unpacked.st_mtime_ns, *marks, unnamed=target)


def _unpack_to(
    target: BinaryIO, source: DataFile, file: BinaryIO, version: Version, most: int | None, progress: Progress | None
) -> _Marks:
    file.seek(0)
    builder = _Builder(with_checksums=True)
    for chunk in _unpacked_chunks(source, file):
        if most is not None and builder.size + len(chunk) > most:
            raise _too_large(source, builder.size + len(chunk), most)
        target.write(chunk)
        builder.feed(np.frombuffer(chunk, np.uint8))
        if progress:
            progress(f"unpacking {source.name}", file.tell(), version.size)
    return builder.finish()


def _unpacked_chunks(source: DataFile, file: BinaryIO, limit: int | None = None) -> Iterator[bytes]:
    try:
        with gzip.GzipFile(fileobj=file, mode="rb") as unpacked:
            while chunk := unpacked.read(_CHUNK_BYTES if limit is None else min(limit, _CHUNK_BYTES)):
                yield chunk
                if limit is not None:
                    limit -= len(chunk)
    except EOFError:
        raise DataError(f"{source} is cut short: the end of the gzip data is missing", hint="Fetch it again.") from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{source} is not intact gzip data: {error}", hint="Fetch it again.") from None


def _unpacked_size(source: DataFile, file: BinaryIO, packed_size: int) -> int:
    """Estimate the unpacked size from how the first few MB unpack (the size stored in a .gz is wrong above 4 GiB, or with several
    members)."""
    file.seek(0)
    unpacked = sum(map(len, _unpacked_chunks(source, file, _SAMPLE_BYTES)))
    return unpacked if unpacked < _SAMPLE_BYTES else int(unpacked * (packed_size / min(file.tell(), packed_size)))


def _most_unpacked(source: DataFile, needed: int) -> int | None:
    """Return how large the text in a packed file under a URL may be: what this machine may keep of such data. Raises DataError when it
    ``needed`` more; None for a file that is here anyway."""
    if not isinstance(source, RemoteFile):
        return None
    most = cache_bytes()
    if needed > most:
        raise _too_large(source, needed, most)
    return most


def _too_large(source: DataFile, size: int, most: int) -> DataError:
    return DataError(
        f"{source} is compressed, and unpacked it takes {format_bytes(size)} or more: of data under URLs {format_bytes(most)} may be kept",
        hint=f"Store it unpacked (it is then read where it is), or in smaller files; or allow for more: {CACHE_VARIABLE}=SIZE.",
    )


def _check_space(source: DataFile, directory: Path, needed: int) -> None:
    free = shutil.disk_usage(directory).free
    if free < needed:
        raise DataError(
            f"unpacking {source} needs about {format_bytes(needed)} in {directory}, where {format_bytes(free)} are free",
            hint="Free some space, or move the cache with DLROVER_LITE_HOME to a disk that has it.",
        )


def _write_error(error: OSError, source: DataFile, directory: Path, needed: int) -> DataError:
    if is_disk_full(error):
        return DataError(
            f"the disk of {directory} is full: unpacking {source} needs about {format_bytes(needed)}",
            hint="Free some space, or move the cache with DLROVER_LITE_HOME to a disk that has it.",
        )
    return DataError(f"unpacking {source} into {directory} failed: {error.strerror or error}")


def _remove_other_versions(source: DataFile, current: Path) -> None:
    for old in current.parent.glob(f"{index_name(source)}-*.txt"):
        if old != current:
            old.unlink(missing_ok=True)


def _store(index: TextIndex, version: Version) -> None:
    body = index.offsets.tobytes() + index.checksums.tobytes()
    header = [_FORMAT, *version, index.size, index.stamp, index.lines, zlib.crc32(body)]
    # Without a cache the index is built again next time: slower, but nothing is lost.
    with suppress(OSError):
        keep_index(index.source, np.array(header, np.int64).tobytes() + body)


def _writable(directory: Path) -> bool:
    try:
        make_cache(directory.name)
        with tempfile.TemporaryFile(dir=directory):
            return True
    except OSError:
        return False


def _changed(path: DataFile) -> DataError:
    return DataError(f"{path} was changed while it was being read", hint="Start again once nothing writes to it.")


def _whole_words(data: bytes) -> bytes:
    """Cut off what a damaged index may end in."""
    return data[: len(data) // 8 * 8]


def _marks(lines: int) -> int:
    return -(-lines // LINES_PER_MARK)


def _windows(lines: int) -> int:
    return -(-lines // LINES_PER_CHECKSUM)


def _unpacked_path(source: DataFile, version: Version) -> Path:
    return cache_directory() / "indexes" / f"{index_name(source)}-{version.size}-{version.stamp}.txt"
