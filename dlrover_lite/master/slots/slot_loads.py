"""What is measured of each slot, as its parameter server last told it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from dlrover_lite.core.slot_sets import SLOTS, SlotSet
from dlrover_lite.master.slots.slot_state import SlotState
from dlrover_lite.protocol.messages import PsReport
from dlrover_lite.protocol.questions import HotSlot, PsSlots
from dlrover_lite.transport.frames import MalformedMessage

__all__ = ["SlotLoads", "decode"]

_NOT_ASKED = 0.01
"""Least rows/s of a slot that is asked for: fewer are what is left of times long past in a smoothed figure."""
_MEASURES = 4
"""Number of measures of a slot: requests/s, rows/s, busy seconds/s, bytes of rows."""
_REQUESTS, _ROWS, _BUSY, _BYTES = range(_MEASURES)

Floats = NDArray[np.float64]


def decode(loads: bytes) -> Floats:
    """Decode ``PsReport.loads`` into an array [4, 4096]. Raises MalformedMessage for anything else."""
    if len(loads) != _MEASURES * SLOTS * 4:
        raise MalformedMessage(f"loads of {len(loads)} bytes")
    found = np.frombuffer(loads, "<f4").reshape(_MEASURES, SLOTS).astype(np.float64)
    if not np.isfinite(found).all() or (found < 0).any():
        raise MalformedMessage("loads that are no measures")
    return found


class SlotLoads:
    """Loads by slot and not by PS: what was measured of a slot goes with it when it moves, until its new owner has measured it."""

    def __init__(self) -> None:
        self._measured: Floats = np.zeros((_MEASURES, SLOTS))
        self._measured_at: Floats = np.zeros(SLOTS)
        """Time when each slot was measured, in seconds since the epoch; 0: never."""
        self._requests: dict[str, float] = {}

    def take(self, node: str, owned: SlotSet, loads: Floats, *, requests_per_second: float, at: float) -> None:
        """Record the loads of the slots that a PS owns. ``at``: seconds since the epoch."""
        self._measured[:, owned] = loads[:, owned]
        self._measured_at[owned] = at
        self._requests[node] = requests_per_second

    @property
    def busy(self) -> Floats:
        """Busy seconds/s of each slot [4096]."""
        busy: Floats = self._measured[_BUSY]
        return busy

    def busy_elsewhere(self, members: SlotSet) -> Floats:
        """Return the busy seconds/s of each slot [4096], as ``members`` would keep other PS busy: whoever has them now may be slow, and is
        busy the longer for it. Estimated by rows, which are as many wherever they are."""
        found, rows = self.busy.copy(), self._measured[_ROWS]
        here, there = (float(found[which].sum() / max(rows[which].sum(), 1e-9)) for which in (members, ~members))
        if 0 < there < here:
            found[members] *= there / here
        return found

    def row_bytes(self, state: SlotState, reports: Mapping[str, PsReport]) -> Floats:
        """Return the bytes of rows of each slot [4096]. A PS that has not told them has its bytes spread over its slots."""
        found: Floats = self._measured[_BYTES].copy()
        for node, report in reports.items():
            if node not in self._requests and (owned := state.owned(node)).any():
                found[owned] = report.bytes / owned.sum()
        return found

    def of(self, node: str, owned: SlotSet, now: float) -> PsSlots:
        """Return what was measured last of a PS's slots; for those that it has not measured yet, by the PS that had them before."""
        at = float(self._measured_at[owned].max(initial=0.0))
        count = int(owned.sum())
        if not at:
            return PsSlots(node, count)
        total = self._measured[:, owned].sum(axis=1)
        return PsSlots(
            node,
            count,
            bytes=int(total[_BYTES]),
            requests_per_second=self._requests.get(node),
            rows_per_second=float(total[_ROWS]),
            busy=float(total[_BUSY]),
            measured_seconds_ago=max(0.0, now - at),
        )

    def hottest(self, most: int, state: SlotState) -> list[HotSlot]:
        """List the slots that keep their PS busy the longest, ``most`` at most; none that nobody has asked for."""
        asked = np.flatnonzero(self._measured[_ROWS] >= _NOT_ASKED)
        ranks = self._measured[:, asked]
        order = asked[np.lexsort((asked, -ranks[_ROWS], -ranks[_BUSY]))][: max(0, most)]
        positions = state.positions()
        found = []
        for slot in order.tolist():
            requests, rows, busy, size = self._measured[:, slot].tolist()
            found.append(HotSlot(slot, state.ps[positions[slot]], requests, rows, busy, int(size)))
        return found
