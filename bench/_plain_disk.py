"""How fast a disk is by the plain ways to write and to read a file: 1 MiB at a time, through the page cache or past it (O_DIRECT), past it
also by two threads; synced once at the end, or with nothing in the page cache."""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable
from pathlib import Path
from threading import Thread

import numpy as np

__all__ = ["WAYS", "drop_from_cache", "read_plainly", "write_plainly"]

PIECE = 1 << 20
Ways = dict[str, tuple[bool, int]]
WAYS: Ways = {"buffered": (False, 1), "direct": (True, 1), "direct_two_threads": (True, 2)}
"""Past the page cache or not, and the number of threads."""


def _opened(path: Path, flags: int, direct: bool) -> int:
    return os.open(path, flags | (os.O_DIRECT if direct else 0), 0o600)


def _by_threads(one: Callable[[int], None], threads: int) -> float:
    """Seconds that ``one(number)`` takes in all of them."""
    others = [Thread(target=one, args=(number,)) for number in range(1, threads)]
    began = time.perf_counter()
    for thread in others:
        thread.start()
    one(0)
    for thread in others:
        thread.join()
    return time.perf_counter() - began


def write_plainly(path: Path, total: int, direct: bool, threads: int) -> float:
    """Seconds. Raises OSError where the file system can't do it past the page cache."""
    piece = mmap.mmap(-1, PIECE)  # aligned
    piece[:] = np.random.default_rng(2).bytes(PIECE)
    descriptor = _opened(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, direct)
    try:

        def one(number: int) -> None:
            for start in range(number * PIECE, total, threads * PIECE):
                os.pwrite(descriptor, piece, start)

        seconds = _by_threads(one, threads)
        began = time.perf_counter()
        os.fsync(descriptor)
        return seconds + time.perf_counter() - began
    finally:
        os.close(descriptor)


def drop_from_cache(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read_plainly(path: Path, total: int, direct: bool, threads: int) -> float:
    drop_from_cache(path)
    descriptor = _opened(path, os.O_RDONLY, direct)
    try:

        def one(number: int) -> None:
            piece = mmap.mmap(-1, PIECE)
            for start in range(number * PIECE, total, threads * PIECE):
                os.preadv(descriptor, [piece], start)

        return _by_threads(one, threads)
    finally:
        os.close(descriptor)
