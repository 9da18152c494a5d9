"""Blocks of files under URLs, kept on this machine's disk while a process reads them, and fetched before they are needed.

The blocks of all files of a process lie in one file without a name, which is gone with the process, however that ends. What is fetched is
used only when the file's version after it was fetched is still the one that reading goes by.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dlrover_lite.core.errors import DataError
from dlrover_lite.core.files.remote import RangeStream, RemoteFile, Version
from dlrover_lite.core.units import GIB, MIB, format_bytes, parse_memory
from dlrover_lite.data.block_book import Block, BlockBook
from dlrover_lite.data.files import scratch_directory, unnamed_file

__all__ = ["BLOCK_BYTES", "CACHE_VARIABLE", "BlockCache", "FileRange", "cache_bytes", "process_cache"]

CACHE_VARIABLE = "DLROVER_LITE_DATA_CACHE"
BLOCK_BYTES = 2 * MIB
"""Bytes of a block. A shuffled block of 32,768 samples of Criteo's is four of them; larger ones would hold more of its neighbours, which
are wanted at another time."""
_THREADS = 4
_LEAST_BLOCKS = 16
_SHARE_OF_FREE = 8
_MOST_BYTES = 16 * GIB
"""A process takes an eighth of what is free on its disk, and at most 16 GiB, unless it is told how much: there may be several."""
_IDLE_SECONDS = 10.0
"""Seconds after which a thread without work ends."""

Fetch = Callable[[RemoteFile, int, int], bytes]


class FileRange(NamedTuple):
    """Bytes [start, stop) of a file."""

    file: RemoteFile
    start: int
    stop: int
    alone: bool = False
    """The range has blocks of its own, counted from its start, so that nothing beside it is fetched with it. Else they are counted from the
    file's start."""


class _Key(NamedTuple):
    file: RemoteFile
    version: Version
    first: int
    """First byte of the block."""
    last: int
    """Byte behind its last one."""


class BlockCache:
    """Reads ranges of remote files through blocks on the disk; used by any threads. ``fetch``: how bytes come from a store."""

    def __init__(
        self, directory: Path, most_bytes: int, fetch: Fetch | None = None, block_bytes: int = BLOCK_BYTES
    ) -> None:
        self._book = BlockBook(max(_LEAST_BLOCKS, most_bytes // block_bytes))
        self._fetch = fetch or _fetch
        self._block_bytes = block_bytes
        self._directory = directory
        self._file = unnamed_file(directory)
        self._changed = threading.Condition()
        self._wanted: deque[_Key] = deque()
        """Blocks to be fetched ahead, what is needed first at the front."""
        self._threads = 0
        self._closed = False

    def read(self, file: RemoteFile, start: int, stop: int, within: FileRange | None = None) -> NDArray[np.uint8]:
        """Return bytes [start, stop) of a file. ``within``: a range that stands alone and has them all. Raises DataError."""
        out = np.empty(stop - start, np.uint8)
        for key in self._blocks(file, start, stop, within):
            part = out[max(start, key.first) - start : min(stop, key.last) - start]
            self._copy(key, max(0, start - key.first), part)
        return out

    def expect(self, ranges: Iterable[FileRange]) -> None:
        """Fetch these ranges soon, in this order, as far as half of the cache holds them. They take the place of those expected before."""
        keys = [
            key for one in ranges for key in self._blocks(one.file, one.start, one.stop, one if one.alone else None)
        ]
        keys = list(dict.fromkeys(keys))[: self._book.slots // 2]
        with self._changed:
            self._wanted = deque(key for key in keys if key not in self._book)
            for _ in range(min(_THREADS - self._threads, len(self._wanted))):
                self._threads += 1
                threading.Thread(target=self._fetch_ahead, name="read-ahead", daemon=True).start()
            self._changed.notify_all()

    def stream(self, file: RemoteFile, ahead_bytes: int = 0) -> RangeStream:
        """Open a stream over a file, of which the next bytes are fetched ahead."""

        def fetch(start: int, stop: int) -> memoryview:
            if ahead_bytes:
                self.expect([FileRange(file, start, min(stop + ahead_bytes, file.version().size))])
            return self.read(file, start, stop).data

        return RangeStream(file.version().size, fetch)

    def close(self) -> None:
        """End the threads, and give the disk's room back."""
        with self._changed:
            self._closed = True
            self._wanted.clear()
            self._changed.notify_all()
            while self._threads:
                self._changed.wait()
        self._file.close()

    def _blocks(self, file: RemoteFile, start: int, stop: int, within: FileRange | None) -> Iterator[_Key]:
        """Give the blocks that hold a range."""
        version = file.version()
        base, end = (within.start, within.stop) if within is not None else (0, version.size)
        for number in range((start - base) // self._block_bytes, -((base - stop) // self._block_bytes)):
            first = base + number * self._block_bytes
            yield _Key(file, version, first, min(first + self._block_bytes, end))

    def _copy(self, key: _Key, skipped: int, out: NDArray[np.uint8]) -> None:
        """Copy bytes of a block, from ``skipped`` on."""
        block = self._acquire(key)
        if not block.ready:
            data = self._load(block, key)
            out[:] = np.frombuffer(data, np.uint8)[skipped : skipped + len(out)]
            return
        try:
            self._read_slot(block.slot * self._block_bytes + skipped, out.data)
        finally:
            with self._changed:
                self._book.leave(block)
                self._changed.notify_all()

    def _acquire(self, key: _Key) -> Block:
        """Return the block, ready, or to be loaded by the caller."""
        with self._changed:
            while True:
                if block := self._book.use(key):
                    return block
                if key not in self._book and (block := self._book.begin(key)):
                    return block
                self._changed.wait()

    def _load(self, block: Block, key: _Key) -> bytes:
        """Fetch a block and keep it. Raises DataError; then the next who wants it tries again."""
        kept = False
        try:
            data = self._fetch(key.file, key.first, key.last)
            kept = self._write_slot(block.slot * self._block_bytes, data)
            return data
        finally:
            with self._changed:
                if kept:
                    self._book.loaded(block)
                    self._book.leave(block)
                else:
                    self._book.abandoned(block)
                self._changed.notify_all()

    def _fetch_ahead(self) -> None:
        """Fetch what is expected, until there has been nothing for a while."""
        while (begun := self._next_expected()) is not None:
            block, key = begun
            try:
                self._load(block, key)
            except DataError:
                continue  # whoever reads it meets the error, unless it has passed by then
        with self._changed:
            self._threads -= 1
            self._changed.notify_all()

    def _next_expected(self) -> tuple[Block, _Key] | None:
        with self._changed:
            while not self._closed:
                while self._wanted:
                    key = self._wanted.popleft()
                    if key not in self._book and (block := self._book.begin(key)):
                        return block, key
                if not self._changed.wait_for(lambda: self._wanted or self._closed, _IDLE_SECONDS):
                    break
            return None

    def _read_slot(self, offset: int, view: memoryview) -> None:
        done = 0
        while done < len(view):
            got = os.preadv(self._file.fileno(), [view[done:]], offset + done)
            if not got:
                raise DataError(f"blocks of data can't be read back from {self._directory}", hint="Check that disk.")
            done += got

    def _write_slot(self, offset: int, data: bytes) -> bool:
        """Return whether the bytes are kept; where they can't be, reading goes on without."""
        view = memoryview(data)
        try:
            while view:
                written = os.pwrite(self._file.fileno(), view, offset)
                view, offset = view[written:], offset + written
        except OSError as error:
            print(
                f"A block of data can't be kept in {self._directory}: {error.strerror or error}. It is fetched again when it is "
                f"needed again; {CACHE_VARIABLE}=SIZE makes this process's cache smaller.",
                file=sys.stderr,
                flush=True,
            )
            return False
        return True


def cache_bytes() -> int:
    """Return how many bytes of data under URLs a process may keep on its disk. Raises DataError for a setting that is no size."""
    written = os.environ.get(CACHE_VARIABLE, "").strip()
    if not written:
        return int(min(_MOST_BYTES, shutil.disk_usage(scratch_directory()).free // _SHARE_OF_FREE))
    try:
        return parse_memory(written)
    except ValueError as error:
        raise DataError(f"{CACHE_VARIABLE}: {error}", hint=f"Write it as {CACHE_VARIABLE}=8GiB.") from None


def process_cache() -> BlockCache:
    """Return the cache that all data of this process share."""
    return _cache(os.getpid(), scratch_directory(), cache_bytes() if os.environ.get(CACHE_VARIABLE) else None)


@lru_cache(maxsize=1)
def _cache(process: int, directory: Path, most_bytes: int | None) -> BlockCache:
    """Make the cache of a process: one that is forked has none of its parent's threads, and gets one of its own."""
    try:
        return BlockCache(directory, cache_bytes() if most_bytes is None else most_bytes)
    except OSError as error:
        raise DataError(
            f"data under URLs need a directory to be kept in, and {directory} can't be written: {error.strerror}",
            hint=f"DLROVER_LITE_HOME or TMPDIR name another one ({format_bytes(_LEAST_BLOCKS * BLOCK_BYTES)} are enough).",
        ) from error


def _fetch(file: RemoteFile, start: int, stop: int) -> bytes:
    data = file.read(start, stop)
    file.check()
    return data
