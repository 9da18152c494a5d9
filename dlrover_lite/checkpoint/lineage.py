"""Lineage of a job: which of its checkpoints led to where it is, and which it has gone on without.

Each generation but the first begins with a checkpoint. What was taken after that in the generation that took it is abandoned: the job has
gone on from before it.
"""

from __future__ import annotations

import math

import msgspec

__all__ = ["Lineage", "Origin", "Start"]


class Origin(msgspec.Struct, frozen=True):
    """The checkpoint of another job that a job began with."""

    url: str
    """URL of a ``CheckpointStore``."""
    cut: int
    exactly: bool = False
    """No older checkpoint may be used in its place."""
    only_parameters: bool = False
    """The job goes through its data from the beginning."""


class Start(msgspec.Struct, frozen=True):
    """How a generation began."""

    generation: int
    cut: int
    taken_in: int | None
    """Generation of the same job in which the checkpoint was taken; None: another job has taken it."""


class Lineage(msgspec.Struct, frozen=True):
    """Empty: the job never went on from a checkpoint since this is kept, and nothing is abandoned."""

    starts: tuple[Start, ...] = ()
    """Starts of generations, by rising generation; the last is the present one. Those of older versions are missing, and all before them
    counts as theirs."""

    def begin(self, generation: int, cut: int, taken_in: int | None) -> Lineage:
        """Return the lineage with another beginning; one that was noted with this generation's number never came about."""
        before = tuple(start for start in self.starts if start.generation < generation)
        return Lineage((*before, Start(generation, cut, taken_in)))

    def has(self, cut: int, generation: int) -> bool:
        """Say whether the checkpoint, taken in this generation, led to where the job is."""
        if not self.starts:
            return True
        now, most = self.starts[-1].generation, math.inf
        for start in reversed(self.starts):
            if start.generation == now and generation != now:
                if start.taken_in is None:
                    return False
                now, most = start.taken_in, start.cut
        return generation <= now and cut <= most

    def taken_in(self, cut: int, now: int) -> int:
        """Return the generation in which a checkpoint was taken that led to generation ``now``."""
        for start in reversed(self.starts):
            if start.generation == now and start.taken_in is not None and cut <= start.cut:
                now = start.taken_in
        return now
