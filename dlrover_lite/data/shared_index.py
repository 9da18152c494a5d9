"""Indexes of text files under URLs that a job's master has built, for workers that don't see its cache: in pieces."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from dlrover_lite.core.files.remote import RemoteFile
from dlrover_lite.core.files.urls import local_part
from dlrover_lite.data.files import resolve
from dlrover_lite.data.index import find_index
from dlrover_lite.data.index_store import MOST_INDEX_BYTES, index_name, keep_index
from dlrover_lite.recipe.schema import CriteoData, CsvData, Data

__all__ = ["Ask", "take_indexes"]

Ask = Callable[[str, int], tuple[int, bytes]]
"""Asks for the index of a name from an offset on; returns its size, and bytes of it."""


def take_indexes(data: Data, directory: Path, ask: Ask) -> int:
    """Ask for the indexes that aren't in this process's cache; return how many have come. What doesn't come, or doesn't fit, is built here
    when it is needed. Raises DataError for files that can't be read."""
    if not isinstance(data, CriteoData | CsvData):
        return 0
    written = [pattern for pattern in (*data.train, *data.eval) if local_part(pattern) is None]
    taken = 0
    for file in resolve(written, directory):
        if isinstance(file, RemoteFile) and find_index(file) is None:
            with suppress(OSError):  # without a cache that can be written
                keep_index(file, _whole(index_name(file), ask))
                taken += find_index(file) is not None
    return taken


def _whole(name: str, ask: Ask) -> bytes:
    """Return all of an index; nothing where there is none, or where it changes meanwhile."""
    total, piece = ask(name, 0)
    found = bytearray()
    while piece and len(found) + len(piece) <= min(total, MOST_INDEX_BYTES):
        found += piece
        if len(found) == total:
            return bytes(found)
        size, piece = ask(name, len(found))
        if size != total:
            break
    return b""
