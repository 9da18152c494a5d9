"""Which parameter server owns which slot, as the master said last."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dlrover_lite.core.errors import JobError
from dlrover_lite.core.slot_sets import SLOTS, SlotSet, pack
from dlrover_lite.protocol.messages import Topology

__all__ = ["SlotMap"]


@dataclass(frozen=True, eq=False)
class SlotMap:
    """One version of the map; never changed. Within it a PS is called by its position in ``names``: its part; across maps by its id."""

    version: int
    names: tuple[str, ...]
    """Ids of the PS that own slots."""
    endpoints: tuple[str, ...]
    owners: NDArray[np.uint16]
    """Part that owns each slot [4096]."""

    @classmethod
    def of(cls, topology: Topology) -> SlotMap:
        """Make the map of a topology. Raises JobError for one that is no map."""
        # a copy, since kernels are compiled anew for an array that can't be written
        owners = np.frombuffer(topology.slots, np.uint16).copy()
        if len(owners) != SLOTS or int(owners.max()) >= len(topology.ps):
            raise JobError(
                f"the master's slot map {topology.version} has {len(owners)} slots on {len(topology.ps)} parameter servers",
                hint="This is a bug of dlrover-lite: please report it with the job's directory.",
            )
        names, endpoints = zip(*topology.ps, strict=True)
        return cls(topology.version, names, endpoints, owners)

    @property
    def parts(self) -> int:
        return len(self.names)

    def members(self, part: int) -> SlotSet:
        """Return the slots that a PS owns."""
        return self._members[part]

    def covers(self, part: int) -> bytes:
        """Return the slots that a PS owns as they travel: 512 bytes."""
        return self._covers[part]

    @cached_property
    def _members(self) -> list[SlotSet]:
        return [np.equal(self.owners, part) for part in range(self.parts)]

    @cached_property
    def _covers(self) -> list[bytes]:
        return [pack(members) for members in self._members]
