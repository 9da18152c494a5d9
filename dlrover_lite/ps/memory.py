"""Where a parameter server's memory comes from: it may outlive the process that fills it (``kept_memory``), or not."""

from __future__ import annotations

import os
import sys
import tempfile
from typing import Protocol

__all__ = ["Memory", "PrivateMemory"]


class Memory(Protocol):
    def create(self, name: str, reserve_bytes: int) -> int:
        """A new file of so many bytes that cost memory where touched; its descriptor, which is the caller's to close. It takes the place of
        an earlier one of this name."""

    def left(self) -> dict[str, int]:
        """What the node that this one follows has left: names and descriptors, which are the caller's to close."""


class PrivateMemory:
    """Nothing outlives the process."""

    def create(self, name: str, reserve_bytes: int) -> int:
        if sys.platform == "linux":
            fd = os.memfd_create(name, os.MFD_CLOEXEC)
        else:
            with tempfile.TemporaryFile() as file:
                fd = os.dup(file.fileno())
        os.ftruncate(fd, reserve_bytes)
        return fd

    def left(self) -> dict[str, int]:
        return {}
