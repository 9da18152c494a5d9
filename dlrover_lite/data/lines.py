"""Where given lines of indexed files are: maps the files into memory, or fetches ranges of those under URLs, and scans newlines a window at
a time."""

from __future__ import annotations

import mmap
import os
import sys
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dlrover_lite.core.errors import DataError
from dlrover_lite.data.block_cache import FileRange, process_cache
from dlrover_lite.data.index import LINES_PER_CHECKSUM, LINES_PER_MARK, TextIndex, unpack_again

__all__ = ["LineReader", "Spans", "line_starts"]

_WINDOW_LINES = LINES_PER_CHECKSUM
_KEPT_LINES = 4 * _WINDOW_LINES
_REMOTE_WINDOW_LINES = 8 * LINES_PER_MARK
"""Lines of a file under a URL that are in memory together. A shuffled block of samples begins anywhere in the first of five."""
_KEPT_BYTES = 64 << 20
"""Bytes of such lines in memory; the two windows used last are kept all the same."""
_KEPT_FILES = 64
_BOM = b"\xef\xbb\xbf"


class Spans(NamedTuple):
    """Some of the lines asked for: line ``lines[rows[i]]`` is ``buffer[starts[i]:ends[i]]``, its newline left out."""

    buffer: NDArray[np.uint8]
    rows: NDArray[np.int64]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]


class _OpenFile:
    """A mapped file. The descriptor stays open to notice changes before they become a bus error."""

    def __init__(self, index: TextIndex) -> None:
        self.index = index
        self.descriptor = index.open()
        self.memory = mmap.mmap(self.descriptor, index.size, access=mmap.ACCESS_READ)
        self.buffer = np.frombuffer(self.memory, np.uint8)
        self.first = len(_BOM) if self.memory[: len(_BOM)] == _BOM else 0

    def close(self) -> None:
        # The mapping itself goes with the last array that refers to it.
        os.close(self.descriptor)


class _Window(NamedTuple):
    starts: NDArray[np.int64]
    """Positions [lines + 1] where each line starts; the last one is where the next would."""
    buffer: NDArray[np.uint8]
    file: _OpenFile | None
    """The mapped file that is the buffer; None for lines that were fetched."""

    @property
    def fetched_bytes(self) -> int:
        return 0 if self.file else len(self.buffer)


class LineReader:
    """Finds lines in several files by file and line number (from 0).

    Samples are read in a shuffled order of blocks, so the line starts of the last few blocks' windows are kept, and
    pages of older windows are given back (mapped pages count as this process's memory).
    """

    def __init__(self, indexes: Sequence[TextIndex]) -> None:
        self._indexes = list(indexes)
        self._files: OrderedDict[int, _OpenFile] = OrderedDict()
        self._windows: OrderedDict[tuple[int, int], _Window] = OrderedDict()
        self._kept_lines = self._kept_bytes = 0

    def find(self, file: int, lines: NDArray[np.int64]) -> Iterator[Spans]:
        """Yield spans that together cover ``lines`` (which exist) of file number ``file``. Raises DataError."""
        size = _REMOTE_WINDOW_LINES if self._is_remote(file) else _WINDOW_LINES
        if not self._is_remote(file):
            mapped = self._open(file)
            mapped.index.check(mapped.descriptor)
        windows = lines // size
        first = int(windows[0])
        for number in [first] if (windows == first).all() else np.unique(windows).tolist():
            rows = np.flatnonzero(windows == number)
            window = self._window(file, number)
            starts = window.starts
            local = lines[rows] - number * size
            yield Spans(window.buffer, rows, starts[local], starts[local + 1] - 1)

    def byte_range(self, file: int, first: int, stop: int) -> FileRange | None:
        """Return where lines [first, stop) will be read from; None for a file on this machine."""
        index = self._indexes[file]
        return None if index.remote is None else FileRange(index.remote, *_marked_range(index, first, stop))

    def line(self, file: int, line: int) -> bytes:
        """Return one line without its newline, of which at most 64 KiB."""
        span = next(self.find(file, np.array([line])))
        return bytes(span.buffer[span.starts[0] : min(span.ends[0], span.starts[0] + (64 << 10))])

    def close(self) -> None:
        """Let go of the files. Reading again opens them again."""
        self._windows.clear()
        self._kept_lines = self._kept_bytes = 0
        while self._files:
            self._files.popitem()[1].close()

    def _open(self, file: int) -> _OpenFile:
        if file in self._files:
            self._files.move_to_end(file)
            return self._files[file]
        opened = self._files[file] = _OpenFile(self._indexes[file])
        if len(self._files) > _KEPT_FILES:
            self._files.popitem(last=False)[1].close()
        return opened

    def _open_whole(self, file: int, window: int) -> _OpenFile:
        """Return the file, with the lines of this window as they were unpacked: where they no longer are, it is unpacked anew."""
        mapped = self._open(file)
        index = mapped.index
        if index.is_whole(mapped.buffer, window):
            return mapped
        mapped = self._open_again(file)
        if index.is_whole(mapped.buffer, window):
            return mapped  # another process has found it, and unpacked it
        print(
            f"The unpacked text {index.text} of {index.source} is damaged: it is unpacked anew",
            file=sys.stderr,
            flush=True,
        )
        self._indexes[file] = unpack_again(index)
        mapped = self._open_again(file)
        if not mapped.index.is_whole(mapped.buffer, window):
            raise DataError(
                f"the unpacked text {index.text} of {index.source} is damaged again, just after it was unpacked anew",
                hint="Check the disk and the memory of this machine; DLROVER_LITE_HOME moves the cache to another disk.",
            )
        return mapped

    def _open_again(self, file: int) -> _OpenFile:
        self._files.pop(file).close()
        return self._open(file)

    def _window(self, file: int, number: int) -> _Window:
        key = (file, number)
        if key in self._windows:
            self._windows.move_to_end(key)
            return self._windows[key]
        window = self._fetched(file, number) if self._is_remote(file) else self._mapped(file, number)
        self._windows[key] = window
        self._kept_lines += len(window.starts) - 1
        self._kept_bytes += window.fetched_bytes
        while (self._kept_lines > _KEPT_LINES or self._kept_bytes > _KEPT_BYTES) and len(self._windows) > 2:
            old = self._windows.popitem(last=False)[1]
            self._kept_lines -= len(old.starts) - 1
            self._kept_bytes -= old.fetched_bytes
            _give_back_pages(old)
        return window

    def _mapped(self, file: int, number: int) -> _Window:
        mapped = self._open_whole(file, number)
        index = mapped.index
        first = number * _WINDOW_LINES
        count = min(_WINDOW_LINES, index.lines - first)
        offset = int(index.offsets[first // LINES_PER_MARK])
        starts = _starts_of(index, mapped.buffer, offset, count)
        if number == 0:
            starts[0] = min(mapped.first, starts[1] - 1)
        return _Window(starts, mapped.buffer, mapped)

    def _fetched(self, file: int, number: int) -> _Window:
        index = self._indexes[file]
        assert index.remote is not None
        first = number * _REMOTE_WINDOW_LINES
        count = min(_REMOTE_WINDOW_LINES, index.lines - first)
        buffer = process_cache().read(index.remote, *_marked_range(index, first, first + count))
        starts = _starts_of(index, buffer, 0, count)
        if number == 0 and buffer[: len(_BOM)].tobytes() == _BOM:
            starts[0] = min(len(_BOM), starts[1] - 1)
        return _Window(starts, buffer, None)

    def _is_remote(self, file: int) -> bool:
        return self._indexes[file].remote is not None


def _starts_of(index: TextIndex, buffer: NDArray[np.uint8], offset: int, count: int) -> NDArray[np.int64]:
    starts = line_starts(buffer, offset, count)
    if starts is None:
        raise DataError(f"{index.text} was changed while it was being read", hint="Start the job again.")
    return starts


def _marked_range(index: TextIndex, first: int, stop: int) -> tuple[int, int]:
    """Return the range of bytes between marks that has lines [first, stop)."""
    after = -(-stop // LINES_PER_MARK)
    end = int(index.offsets[after]) if after < len(index.offsets) else index.size
    return int(index.offsets[first // LINES_PER_MARK]), end


def line_starts(buffer: NDArray[np.uint8], offset: int, count: int) -> NDArray[np.int64] | None:
    """Return where ``count`` lines from ``offset`` start, and where the one after them would: int64 [count + 1].

    The end of the buffer ends a line as a newline would. None when there aren't that many lines.
    """
    from dlrover_lite.data.kernels.lines import find_starts

    starts = np.empty(count + 1, np.int64)
    words = buffer[: len(buffer) // 8 * 8].view(np.uint64)
    return starts if find_starts(buffer, words, np.uint64(offset), starts) else None


def _give_back_pages(window: _Window) -> None:
    if window.file is None or not hasattr(mmap, "MADV_DONTNEED"):
        return
    begin = int(window.starts[0]) // mmap.PAGESIZE * mmap.PAGESIZE
    end = min(int(window.starts[-1]), window.file.index.size)
    if end > begin:
        window.file.memory.madvise(mmap.MADV_DONTNEED, begin, end - begin)
