"""The file of a recording, as gzip has it: what is flushed can be read, whether or not more follows."""

from __future__ import annotations

import zlib
from typing import BinaryIO

__all__ = ["PackedFile", "unpacked"]

_GZIP = zlib.MAX_WBITS | 16
_MAGIC = b"\x1f\x8b"


class PackedFile:
    """Compresses what is written to ``file``."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._packer = zlib.compressobj(9, zlib.DEFLATED, _GZIP)

    def write(self, data: bytes) -> None:
        self._file.write(self._packer.compress(data))

    def flush(self) -> None:
        """Write all that was given. Raises OSError, as all here."""
        self._file.write(self._packer.flush(zlib.Z_SYNC_FLUSH))
        self._file.flush()

    def close(self) -> None:
        with self._file as file:
            file.write(self._packer.flush())


def unpacked(data: bytes, most: int) -> bytes | None:
    """Return what is compressed in ``data``, as far as it goes: a file that is still being written has no end. None: it is more than
    ``most`` bytes. Raises zlib.error for a damaged one."""
    found = bytearray()
    while data.startswith(_MAGIC):
        unpacker = zlib.decompressobj(_GZIP)
        found += unpacker.decompress(data, most + 1 - len(found))
        if len(found) > most:
            return None
        data = unpacker.unused_data
    return bytes(found)
