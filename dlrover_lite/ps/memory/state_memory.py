"""Where a parameter server's memory comes from: what outlives its process, and what its predecessor has left."""

from __future__ import annotations

import os
from typing import Protocol

import psutil

from dlrover_lite.core.errors import JobError
from dlrover_lite.ps.memory.arena import Arena, pages
from dlrover_lite.ps.memory.node_memory_client import make_memfd

__all__ = ["Arenas", "Memory", "PrivateMemory"]


class Memory(Protocol):
    """Files that can be mapped, by name. Each call gives file descriptors of the caller's own: it closes them."""

    def create(self, name: str, reserve_bytes: int) -> int:
        """Create a file of ``reserve_bytes``, whole pages, that holds zeros and costs memory only where it is touched. A file of this name
        that was left is replaced. Raises JobError or OSError when there can be none."""
        ...

    def left(self) -> dict[str, int]:
        """Return what the predecessor has left; nothing for a server that follows none."""
        ...


class PrivateMemory:
    """Memfds that this process alone holds. ``hand_over`` makes them what another one finds, in this process or in one forked from it."""

    def __init__(self, left: dict[str, int] | None = None) -> None:
        self._left = dict(left or {})
        self._held = dict(self._left)

    def __enter__(self) -> PrivateMemory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def create(self, name: str, reserve_bytes: int) -> int:
        fd = make_memfd(name, reserve_bytes)
        if name in self._held:
            os.close(self._held.pop(name))
            self._left.pop(name, None)
        self._held[name] = fd
        return os.dup(fd)

    def left(self) -> dict[str, int]:
        return {name: os.dup(fd) for name, fd in self._left.items()}

    def hand_over(self) -> PrivateMemory:
        """Hand all files over to an engine that follows. This object has none any more."""
        held, self._held, self._left = self._held, {}, {}
        return PrivateMemory(held)

    def close(self) -> None:
        """Close the files. Arenas that are mapped stay as they are."""
        for fd in self._held.values():
            os.close(fd)
        self._held, self._left = {}, {}


class Arenas:
    """Makes arenas of ``memory``, or takes up those that were left there. Without ``memory``, arenas are of this process alone."""

    def __init__(self, memory: Memory | None = None) -> None:
        self._memory = memory
        self._left = memory.left() if memory is not None else {}

    def left(self, name: str) -> bool:
        """Say whether there is an arena of this name that nobody has taken up."""
        return name in self._left

    def open(self, name: str, reserve_bytes: int | None = None) -> Arena:
        """Open the arena that was left, as large as it is, or a new one. ``reserve_bytes``: as much as the machine has, unless given."""
        size = pages(reserve_bytes or psutil.virtual_memory().total)
        if name in self._left:
            return Arena(name, fd=self._left.pop(name))
        if self._memory is None:
            return Arena(name, size)
        try:
            return Arena(name, size, fd=self._memory.create(name, size))
        except OSError as error:
            raise JobError(f"there is no memory for {name}: {error}") from error

    def close(self) -> None:
        """Close what was left and isn't taken up: it is of no use."""
        for fd in self._left.values():
            os.close(fd)
        self._left = {}
