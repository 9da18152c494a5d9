"""Machines that simulated nodes run on."""

from __future__ import annotations

from dataclasses import dataclass

from dlrover_lite.core.units import GIB

__all__ = ["Machine"]


@dataclass(frozen=True)
class Machine:
    """A host, with what it has for nodes."""

    cores: float
    speed: float = 1.0
    """Work that a core does in a second, in CPU seconds of the machine that costs are told of."""
    bytes_per_second: float = 1.25e9
    """Bytes that its network card carries in a second, each way: 10 Gbit/s."""
    memory: int = 64 * GIB
    """Bytes of memory."""
