"""Where a parameter server's memory comes from."""

from __future__ import annotations

from typing import Protocol

__all__ = ["Memory"]


class Memory(Protocol):
    """Files that can be mapped, by name. Each call gives file descriptors of the caller's own: it closes them."""

    def create(self, name: str, reserve_bytes: int) -> int:
        """A file of ``reserve_bytes`` that holds zeros and costs memory only where it is touched. One of this name that was left is
        no more."""
        ...

    def left(self) -> dict[str, int]:
        """What the predecessor has left; nothing for a server that follows none."""
        ...
