"""What a master needs of the process, or the simulation, that it runs in."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeAlias

import msgspec

from dlrover_lite.master.cadence import USUAL, Cadence
from dlrover_lite.master.io_queue import IoQueue
from dlrover_lite.master.profiling.profiler import Pace
from dlrover_lite.transport.frames import Request

__all__ = ["Attempt", "Edge", "as_the_master"]

Attempt: TypeAlias = Callable[[Request, Callable[[Request], "msgspec.Struct | None"]], "msgspec.Struct | None"]
"""Handles a request so that no exception of it ends the master (``transport.answering.Answering.attempt``)."""


def as_the_master(url: str) -> str:
    """Return the path or URL as it is: nodes see the file system that the master sees."""
    return url


class Edge(NamedTuple):
    """What is outside of the master."""

    endpoint: str
    """Where nodes find the master."""
    attempt: Attempt
    io: Callable[[], IoQueue]
    """Makes what does the input and output at the checkpoints' destination."""
    stop: Callable[[], bool]
    """Says whether the job is to stop, though nobody has asked the master for it."""
    wall_clock: Callable[[], float]
    """Returns seconds since the epoch."""
    free: Callable[[Path], int]
    """Returns the bytes that are left for a directory."""
    pace: Pace | None = None
    """Lengths of the intervals in which is measured; None: as usual."""
    url_for_nodes: Callable[[str], str] = as_the_master
    """Returns the path or URL by which nodes reach what the master knows by this one."""
    cadence: Cadence = USUAL
    """How often the master looks at what nobody tells it."""
    is_synced: bool = True
    """Whether the ledger's file is brought to the disk now and then. What is simulated has no use for that: what is committed outlives
    the process in any case."""
