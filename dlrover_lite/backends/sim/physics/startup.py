"""Seconds from the launch of a simulated node until it trains or serves, phase by phase."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["CLUSTER", "WORKSTATION", "Phases", "Startup"]


class Phases(NamedTuple):
    """Seconds of each phase, in their order."""

    pending: float
    """Until a machine is found, and whatever starts nodes there has been told."""
    pulling: float
    """Until the image is on that machine."""
    starting: float
    """Until the process runs."""
    joining: float
    """Until it has what it needs: memory that another has left is taken up, or rows are read from a checkpoint."""

    @property
    def seconds(self) -> float:
        return self.pending + self.pulling + self.starting + self.joining


@dataclass(frozen=True)
class Startup:
    """What starts of nodes take, on the median."""

    pending_seconds: float
    starting_seconds: float
    joining_seconds: float
    image_bytes: float = 0.0
    """Bytes of the image, compressed; 0: there is none."""
    pulled_bytes_per_second: float = 50e6
    """Bytes of an image that are pulled and unpacked in a second. An assumption: registries give between 20 and 200 MB/s."""
    attached_row_seconds: float = 47e-9
    """Seconds for each row of memory that another server has left, whose index is built anew (docs/figures.md, "On paper")."""
    restored_bytes_per_second: float = 0.46e9
    """Bytes of a checkpoint that one server takes up in a second (the same)."""
    variation: float = 0.3
    """Standard deviation of the logarithm of each phase. An assumption."""

    def draw(
        self, chance: random.Random, *, pulled: bool = True, left_rows: float = 0.0, restored_bytes: float = 0.0
    ) -> Phases:
        """Draw a start. ``pulled``: the image is on the machine. ``left_rows``: those in memory that the node takes up. ``restored_bytes``:
        those of rows that it reads from a checkpoint. As much chance is used whatever happens, so that what follows stays the same."""
        factors = [math.exp(self.variation * chance.gauss(0.0, 1.0)) for _ in range(4)]
        joining = (
            self.joining_seconds
            + left_rows * self.attached_row_seconds
            + restored_bytes / self.restored_bytes_per_second
        )
        pulling = 0.0 if pulled else self.image_bytes / self.pulled_bytes_per_second
        means = (self.pending_seconds, pulling, self.starting_seconds, joining)
        return Phases(*(seconds * factor for seconds, factor in zip(means, factors, strict=True)))


WORKSTATION = Startup(pending_seconds=0.01, starting_seconds=0.04, joining_seconds=0.4)
"""Nodes of one machine: forked within 40 ms from a process that has everything imported; a worker trains again 0.46 s after another was
killed (docs/figures.md, ``lifecycle.worker_back_s``)."""
CLUSTER = Startup(pending_seconds=1.0, starting_seconds=6.0, joining_seconds=0.4, image_bytes=600e6)
"""Pods: the agent runs within a second of being scheduled, and the first node 5 s later on a machine of two cores that has compiled kernels
(docs/decisions/0018-agents-in-pods.md). The size of the image, torch for CPUs and Python in it, is an assumption."""
