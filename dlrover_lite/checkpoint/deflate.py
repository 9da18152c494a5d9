"""CRC-32 and zlib's format, by the fastest library there is: isal does both several times as fast as zlib, with the same checksums, and
either reads what the other has compressed. It exists for x86-64 and ARM; elsewhere it is zlib."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from dlrover_lite.checkpoint.destination import Piece

__all__ = ["BrokenStream", "compress", "crc32", "decompress"]

BrokenStream = zlib.error
"""Error that ``decompress`` raises."""
_LEVEL = 1

_fast: Any = zlib
with suppress(ImportError):  # no package for this machine
    from isal import isal_zlib

    _fast = isal_zlib


def crc32(pieces: Sequence[Piece]) -> int:
    """Return the CRC-32 of all pieces, one behind the other."""
    checksum = 0
    for piece in pieces:
        checksum = _fast.crc32(piece, checksum)
    return checksum


def compress(pieces: Sequence[Piece]) -> bytes:
    return bytes(_fast.compress(b"".join(pieces), _LEVEL))


def decompress(data: memoryview, size: int) -> bytes:
    """Decompress data. ``size``: about what comes out, in bytes. Raises BrokenStream."""
    try:
        return bytes(_fast.decompress(data, bufsize=size))
    except _fast.error as error:
        raise BrokenStream(str(error)) from error
