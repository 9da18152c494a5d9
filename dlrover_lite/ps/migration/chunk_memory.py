"""Memory through which two parameter servers of one machine hand rows over: the source of a move puts them there, the target takes them
from there, and messages only say where.

It is an anonymous file of the source's, for one session of one move. The target opens it by way of ``/proc``, which the kernel lets it do
only where it might look into the source's memory anyway: same machine, same process numbers, same user. Everywhere else rows go over the
wire.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import secrets
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dlrover_lite.core.errors import DlroverLiteError
from dlrover_lite.protocol.ps_messages import Shared
from dlrover_lite.ps.memory.arena import pages
from dlrover_lite.ps.memory.node_memory_client import make_memfd

__all__ = ["ChunkMemory", "NotShared", "OfferedMemory", "offered_memory", "open_memory"]


class NotShared(DlroverLiteError):
    """This process can't map the memory that another one has offered."""


class ChunkMemory:
    """Memory of ``places`` of ``place_bytes`` each. A side that names a place in a message leaves it to the other side until that has
    answered."""

    def __init__(self, mapped: mmap.mmap, places: int, place_bytes: int) -> None:
        self.places = places
        self.place_bytes = place_bytes
        self._bytes: NDArray[np.uint8] = np.frombuffer(mapped, np.uint8)

    def records(self, place: int, n: int, words: int) -> NDArray[np.uint32] | None:
        """Return the memory of n records of so many words in this place: [n, words], over the memory itself. None if it is too small.
        Raises ValueError for numbers that no place and no records have."""
        if not 0 <= place < self.places or n < 0:
            raise ValueError(f"{n} rows in place {place} of {self.places}")
        size = 4 * n * words
        if size > self.place_bytes:
            return None
        at = place * self.place_bytes
        return self._bytes[at : at + size].view(np.uint32).reshape(n, words)


class OfferedMemory(ChunkMemory):
    """The chunk memory of the source, which makes it and offers it."""

    def __init__(self, places: int, place_bytes: int) -> None:
        """Allocate the memory. Raises OSError where there can be none."""
        place_bytes = pages(place_bytes)
        name = f"dlrover-lite-move-{secrets.token_hex(16)}"
        self._fd = make_memfd(name, places * place_bytes, fixed=True)
        try:
            os.posix_fallocate(self._fd, 0, places * place_bytes)  # now, rather than when it is written to
            mapped = mmap.mmap(self._fd, places * place_bytes)
        except BaseException:
            self.close()
            raise
        super().__init__(mapped, places, place_bytes)
        self.offer = Shared(os.getpid(), self._fd, name, places, place_bytes)

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Close the file: nobody can open it any more, but whoever has it mapped keeps it."""
        if getattr(self, "_fd", -1) >= 0:
            os.close(self._fd)
            self._fd = -1


def offered_memory(places: int, rows_bytes: int) -> OfferedMemory | None:
    """Make memory with places for ``rows_bytes`` bytes of rows each; None where there can be none."""
    try:
        return OfferedMemory(places, rows_bytes)
    except OSError:
        return None


def open_memory(offer: Shared) -> ChunkMemory:
    """Map what another process has offered, for reading. Raises NotShared."""
    path = Path(f"/proc/{offer.process}/fd/{offer.descriptor}")
    size = offer.places * offer.place_bytes
    try:
        _check_name(path, offer.name)  # before it is opened: with other process numbers it may be anything
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            _check_name(Path(f"/proc/self/fd/{fd}"), offer.name)
            fixed = fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK
            # to read beyond its end would be the end of this process
            if not fixed or size <= 0 or os.fstat(fd).st_size != size:
                raise NotShared("its memory isn't what it says")
            return ChunkMemory(mmap.mmap(fd, size, prot=mmap.PROT_READ), offer.places, offer.place_bytes)
        finally:
            os.close(fd)
    except (OSError, OverflowError) as error:
        raise NotShared(f"its memory can't be opened: {error}") from error


def _check_name(link: Path, name: str) -> None:
    """Check the name of the memory, a secret that no other memory has, on whatever machine. Raises NotShared."""
    if str(link.readlink()) != f"/memfd:{name} (deleted)":
        raise NotShared("its memory isn't here")
