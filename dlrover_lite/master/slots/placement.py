"""Which slots to move where, so that parameter servers are loaded evenly. Pure.

A slot weighs its share of all busy time, its share of all bytes, and a little for being a slot, so that without measurements slots are
counted. Each PS is to carry weight by its cores, and by how fast these are. As little as possible moves: a PS that carries about its due is
left alone, and large slots go first, since few of them make up for what is too much. A slot that alone weighs more than a PS is due is left
where it is, and the others go around it. One PS after the other is filled, so that few pairs of them have slots to move: a PS takes part in
one move at a time, and a move takes its time however few slots it has.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dlrover_lite.core.errors import JobError
from dlrover_lite.core.units import format_bytes
from dlrover_lite.master.slots.slot_state import Transfer

__all__ = ["MEMORY_SHARE", "ServerRoom", "place", "weights"]

MEMORY_SHARE = 0.9
"""Share of the memory that a PS has free that may be filled with rows that come to it."""
_COUNT_SHARE = 0.05
"""Share of the weight for being a slot, beside 1 for busy time and 1 for bytes."""
_TOLERANCE = 0.05
"""Share above its due load up to which a PS is left alone."""

Floats = NDArray[np.float64]


class ServerRoom(NamedTuple):
    """A PS as the placement sees it."""

    id: str
    cores: float
    """Cores that it has, times their speed."""
    free: float
    """Bytes it has left for rows; ``MEMORY_SHARE`` of them may come. ``math.inf``: not known."""
    leaving: bool = False
    """The PS is to own nothing."""


def weights(busy: Floats, row_bytes: Floats) -> Floats:
    """Return the weight of each slot [4096]; they add up to at most 2.05."""
    found = np.full(len(busy), _COUNT_SHARE / len(busy))
    for measured in (busy, row_bytes):
        if (total := float(measured.sum())) > 0:
            found += measured / total
    return found


def place(
    owners: NDArray[np.integer], busy: Floats, row_bytes: Floats, servers: Sequence[ServerRoom], *, balance: bool
) -> list[Transfer]:
    """List what to move. ``owners`` [4096] are positions in ``servers``; ``busy`` seconds/s and ``row_bytes`` are those of each slot.

    PS that leave are emptied; with ``balance`` the others are evened out too. No PS that stays is left without any slot.
    Raises JobError, with figures, when what has to move doesn't fit into the memory of those that stay.
    """
    return _Placement(owners, weights(busy, row_bytes), row_bytes, servers).run(balance)


class _Placement:
    """The arrays by PS have as many entries as there are servers."""

    def __init__(
        self, owners: NDArray[np.integer], weight: Floats, row_bytes: Floats, servers: Sequence[ServerRoom]
    ) -> None:
        self._before = owners.astype(np.int64)
        self._owners = self._before.copy()
        self._weight = weight
        self._bytes = row_bytes
        self._servers = servers
        self._staying = np.array([not server.leaving for server in servers])
        cores = np.array([0.0 if server.leaving else max(server.cores, 1e-3) for server in servers])
        self._due = weight.sum() * cores / max(cores.sum(), 1e-9)
        self._load = np.bincount(self._owners, weight, len(servers))
        self._room = np.array([MEMORY_SHARE * max(0.0, server.free) for server in servers])

    def run(self, balance: bool) -> list[Transfer]:
        if not self._staying.any():
            raise JobError("there is no parameter server left to move slots to")
        self._empty_the_leaving()
        if balance:
            self._even_out()
        self._leave_none_without()
        moved = self._owners != self._before
        pairs = sorted({(int(a), int(b)) for a, b in zip(self._before[moved], self._owners[moved], strict=True)})
        return [
            (self._servers[a].id, self._servers[b].id, moved & (self._before == a) & (self._owners == b))
            for a, b in pairs
        ]

    def _heaviest_first(self, source: int) -> list[int]:
        held = np.flatnonzero(self._owners == source)
        return [int(slot) for slot in held[np.argsort(-self._weight[held], kind="stable")]]

    def _give(self, slot: int, target: int) -> None:
        """Give a slot to a PS. One that goes back to where it is needs no room there."""
        source = self._owners[slot]
        self._load[source] -= self._weight[slot]
        self._load[target] += self._weight[slot]
        if source != self._before[slot]:
            self._room[source] += self._bytes[slot]
        if target != self._before[slot]:
            self._room[target] -= self._bytes[slot]
        self._owners[slot] = target

    def _empty_the_leaving(self) -> None:
        due, target = np.where(self._staying, self._due, 1.0), -1
        for source in np.flatnonzero(~self._staying):
            for slot in self._heaviest_first(int(source)):
                if self._takes(target, slot):
                    self._give(slot, target)
                    continue
                fits = self._staying & (self._bytes[slot] <= self._room)
                if not fits.any():
                    raise self._no_room(int(source))
                target = int(np.argmin(np.where(fits, (self._load + self._weight[slot]) / due, math.inf)))
                self._give(slot, target)

    def _takes(self, target: int, slot: int) -> bool:
        """Say whether a PS (-1: none) has room for a slot, and carries no more than its due with it."""
        return (
            target >= 0
            and bool(self._bytes[slot] <= self._room[target])
            and bool(self._weight[slot] <= self._due[target] - self._load[target] + 1e-12)
        )

    def _no_room(self, source: int) -> JobError:
        leaving = self._bytes[(self._before == source)].sum()
        free = ", ".join(
            f"{server.id} {format_bytes(MEMORY_SHARE * max(0.0, server.free))}"
            for server in self._servers
            if not server.leaving
        )
        return JobError(
            f"{self._servers[source].id} holds {format_bytes(leaving)} of rows, and the parameter servers that stay have "
            f"room for less: {free}",
            hint="Start another parameter server first (dlrover-lite scale --ps N), or replace this one "
            "(dlrover-lite drain --replace).",
        )

    def _even_out(self) -> None:
        excess, target = np.where(self._staying, self._load / np.maximum(self._due, 1e-12), 0.0), -1
        for source in np.argsort(-excess, kind="stable"):
            if excess[source] <= 1 + _TOLERANCE:
                break
            for slot in self._heaviest_first(int(source)):
                weight = self._weight[slot]
                if weight > self._load[source] - self._due[source] + 1e-12:
                    continue
                if target != source and self._takes(target, slot):
                    self._give(slot, target)
                    continue
                lack = np.where(self._staying & (self._bytes[slot] <= self._room), self._due - self._load, -1.0)
                target = int(np.argmax(lack))
                if weight <= lack[target] + 1e-12:
                    self._give(slot, target)

    def _leave_none_without(self) -> None:
        """Give each PS without slots the lightest slot of whoever has most of them, where it fits."""
        counts = np.bincount(self._owners, minlength=len(self._servers))
        for target in np.flatnonzero(self._staying & (counts == 0)):
            source = int(np.argmax(counts))
            fitting = [slot for slot in self._heaviest_first(source) if self._bytes[slot] <= self._room[target]]
            if counts[source] > 1 and fitting:
                self._give(fitting[-1], int(target))
                counts[source] -= 1
                counts[target] += 1
