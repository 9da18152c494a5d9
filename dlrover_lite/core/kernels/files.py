"""Files of compiled kernels, each with a digest at its end: what is run is what was compiled.

A digest tells damage, not intent: whoever can write to the cache can have anything run. So only directories are used that nobody but this
user can write to.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

__all__ = ["INDEX", "damaged_files", "is_ours", "is_whole", "seal"]

INDEX = ".sealed.nbi"
"""Ending of the names of indexes."""
_DATA = ".nbc"
_MAGIC = b"DLRLKRNL"
_DIGEST_BYTES = 16


def seal(data: bytes) -> bytes:
    """Return what is to stand behind ``data`` in its file."""
    return _MAGIC + hashlib.blake2b(data, digest_size=_DIGEST_BYTES).digest()


def is_whole(path: Path) -> bool:
    """Say whether the file is as it was written. Raises OSError."""
    data = path.read_bytes()
    end = len(data) - len(_MAGIC) - _DIGEST_BYTES
    return end >= 0 and data[end:] == seal(data[:end])


def damaged_files(directory: Path) -> Iterator[Path]:
    """Find the files below ``directory`` that aren't as they were written."""
    for index in sorted(directory.rglob(f"*{INDEX}")):
        stem = index.name.removesuffix(".nbi")
        for path in (index, *sorted(index.parent.glob(f"{stem}.*{_DATA}"))):
            try:
                whole = is_whole(path)
            except FileNotFoundError:  # another process has just removed it
                continue
            except OSError:
                whole = False
            if not whole:
                yield path


def is_ours(directory: Path) -> bool:
    """Say whether nobody but this user can write to ``directory``. Raises OSError."""
    status = directory.stat()
    return status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
