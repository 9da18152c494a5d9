"""A file's memory mapped at a multiple of a huge page, which shared memory has to be if the kernel is to give it huge pages."""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import weakref
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["HUGE_BYTES", "Mapping"]

HUGE_BYTES = 2 << 20
"""Bytes of a huge page."""
_PROT_NONE, _MAP_FIXED, _MAP_NORESERVE = 0, 0x10, 0x4000
_FAILED = ctypes.c_void_p(-1).value


def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    number, size, address = ctypes.c_int, ctypes.c_size_t, ctypes.c_void_p
    libc.mmap.argtypes, libc.mmap.restype = [address, size, number, number, number, ctypes.c_int64], address
    libc.munmap.argtypes = [address, size]
    libc.madvise.argtypes = [address, size, number]
    return libc


_LIBC: Any = _libc() if sys.platform == "linux" else None


class Mapping:
    """``size`` bytes of ``fd``, or of nothing (zeros) if that is None, for reading and writing. It stays mapped as long as ``bytes``, or an
    array made of it, is there. Raises OSError."""

    def __init__(self, fd: int | None, size: int) -> None:
        self._address = 0
        self._anonymous: mmap.mmap | None = None
        if fd is None or _LIBC is None:
            self._anonymous = mmap.mmap(-1 if fd is None else fd, size)
            self.bytes: NDArray[np.uint8] = np.frombuffer(self._anonymous, np.uint8)
            return
        self._address = _map(fd, size)
        memory = (ctypes.c_ubyte * size).from_address(self._address)
        weakref.finalize(memory, _LIBC.munmap, self._address, size).atexit = False
        self.bytes = np.ctypeslib.as_array(memory)

    def advise(self, advice: int, start: int, length: int) -> None:
        """Call madvise, without the interpreter's lock where that can be. Raises OSError."""
        if self._anonymous is not None:
            self._anonymous.madvise(advice, start, length)
        elif _LIBC.madvise(self._address + start, length, advice):
            raise _error()


def _map(fd: int, size: int) -> int:
    """Map a file at a multiple of a huge page: address space with room for that is taken before, and what is left of it given back."""
    reserved = _call_mmap(None, size + HUGE_BYTES, _PROT_NONE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE)
    address = -(-reserved // HUGE_BYTES) * HUGE_BYTES
    try:
        _call_mmap(address, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED | _MAP_FIXED, fd)
    except OSError:
        _LIBC.munmap(reserved, size + HUGE_BYTES)
        raise
    if address > reserved:
        _LIBC.munmap(reserved, address - reserved)
    _LIBC.munmap(address + size, reserved + HUGE_BYTES - address)
    return address


def _call_mmap(address: int | None, size: int, protection: int, flags: int, fd: int = -1) -> int:
    found = _LIBC.mmap(address, size, protection, flags, fd, 0)
    if found == _FAILED:
        raise _error()
    return int(found)


def _error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))
