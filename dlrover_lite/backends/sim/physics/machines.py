"""Machines that simulated nodes run on."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dlrover_lite.core.units import GIB

__all__ = ["STEADY", "Disturbances", "Machine"]


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


@dataclass(frozen=True)
class Disturbances:
    """What goes wrong with each machine, at times that have no memory. Infinite: never."""

    failing_seconds: float = math.inf
    """Mean time from when it works until it fails, with all that runs on it."""
    repair_seconds: float = 600.0
    """Mean time until it works again."""
    slowing_seconds: float = math.inf
    """Mean time between two phases in which it is slow."""
    slow_seconds: float = 300.0
    """Mean time that such a phase lasts."""
    slow_speed: float = 0.5
    """Its speed then, over its usual one."""


STEADY = Disturbances()
"""Nothing goes wrong."""
