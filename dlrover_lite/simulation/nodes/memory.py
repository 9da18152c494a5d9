"""What a simulated parameter server knows that outlives its process: what it has applied, and how often in each slot."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from dlrover_lite.core import slot_sets
from dlrover_lite.core.slot_sets import SLOTS, SlotSet
from dlrover_lite.ps.journal.applied_minibatches import AppliedEntries, AppliedMinibatches, Name, Part, to_bitmap

__all__ = ["AppliedCounts", "ServerMemory", "members_of"]


@lru_cache(maxsize=64)
def members_of(mask: int) -> SlotSet:
    """Return a set of slots, a bit each, as an array, to read only."""
    members = slot_sets.unpack(to_bitmap(mask))
    members.setflags(write=False)
    return members


class _Entries(AppliedEntries):
    """Applied minibatches in plain memory: it outlives the process as all else that is kept here."""

    def __init__(self) -> None:
        self._slots: dict[Name, int] = {}
        self._parts: list[Part] = []

    def items(self) -> Iterator[tuple[Name, int]]:
        yield from self._slots.items()

    def put(self, name: Name, slots: int) -> None:
        self._slots[name] = slots

    def remove(self, name: Name) -> None:
        del self._slots[name]

    def parts(self) -> list[Part]:
        return list(self._parts)

    def put_parts(self, parts: list[Part]) -> None:
        self._parts = list(parts)


class AppliedCounts:
    """How often each minibatch was applied in each slot: what the rows of a census would hold."""

    def __init__(self, minibatches: int, epochs: int) -> None:
        self._minibatches = minibatches
        self.counts: NDArray[np.uint8] = np.zeros((minibatches * epochs, SLOTS), np.uint8)
        self.changed_at: NDArray[np.int64] = np.zeros(minibatches * epochs, np.int64)
        """Epoch of the server's rows in which each minibatch was applied last."""

    def apply(self, epoch: int, k: int, members: SlotSet, at: int) -> bool:
        """Count a minibatch in these slots; return whether it was applied there before."""
        number = epoch * self._minibatches + k
        row = self.counts[number]
        twice = bool(row.any() and row[members].any())
        row += members
        self.changed_at[number] = at
        return twice

    def forget(self, members: SlotSet) -> None:
        self.counts[:, members] = 0


@dataclass
class ServerMemory:
    counts: AppliedCounts | None
    """None: nobody counts."""
    entries: _Entries = field(default_factory=_Entries)
    pushes: int = 0
    """Number of pushes applied so far."""
    row_epoch: int = 1
    """Epoch of its rows: it rises with each snapshot, and rows that change have that of their change."""
    extra_bytes: int = 0
    """Bytes that its rows have beside what ``Work`` says."""
    begun_empty: bool = False
    """As ``ps.journal.server_state`` has it."""
    restored: int = 0
    """Generation whose checkpoint is here; 0: none."""

    def applied(self) -> AppliedMinibatches:
        """Return the applied minibatches, for a process that begins."""
        return AppliedMinibatches(self.entries)
