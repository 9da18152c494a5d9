"""Where indexes of text files are kept, and pieces of them for workers that don't see this cache. Light: a master imports it."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

from dlrover_lite.core.files.data_file import DataFile
from dlrover_lite.core.files.paths import cache_directory, make_cache
from dlrover_lite.core.files.regular import open_regular
from dlrover_lite.core.files.remote import RemoteFile
from dlrover_lite.data.files import atomic_file

__all__ = ["MOST_INDEX_BYTES", "index_file", "index_name", "index_piece", "keep_index"]

MOST_INDEX_BYTES = 1 << 30
"""Size of the index of 128 billion lines."""
_PIECE_BYTES = 256 << 10
_NAME = re.compile(r"[0-9a-f]{32}")


def index_name(source: DataFile) -> str:
    """Return the name that a file's index is kept under."""
    name = source.url if isinstance(source, RemoteFile) else source.absolute()
    return hashlib.blake2b(os.fsencode(name), digest_size=16).hexdigest()


def index_file(name: str) -> Path:
    return cache_directory() / "indexes" / f"{name}.index"


def keep_index(source: DataFile, stored: bytes) -> None:
    """Put an index, as it is stored, into the cache; ``find_index`` says whether it is one, and fits. Raises OSError."""
    path = index_file(index_name(source))
    if stored:
        make_cache(path.parent.name)
        with atomic_file(path, private=True) as file:
            file.write(stored)


def index_piece(name: str, offset: int) -> tuple[int, bytes]:
    """Return the size of an index in the cache of this process, and a piece of it: 0 and nothing where there is none."""
    if not _NAME.fullmatch(name):
        return 0, b""
    try:
        with open_regular(index_file(name)) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(offset)
            return size, file.read(_PIECE_BYTES)
    except OSError:
        return 0, b""
