"""What is measured of each slot, as its parameter server last told it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from dlrover_lite.master.slot_state import SlotState
from dlrover_lite.slots import SLOTS, SlotSet
from dlrover_lite.wire.frames import MalformedMessage
from dlrover_lite.wire.messages import PsReport

__all__ = ["SlotLoads", "decode"]

_MEASURES = 4
"""Requests/s, rows/s, busy seconds/s, bytes of rows."""
_BUSY, _BYTES = 2, 3

Floats = NDArray[np.float64]


def decode(loads: bytes) -> Floats:
    """[4, 4096] of ``PsReport.loads``. Raises MalformedMessage for anything else."""
    if len(loads) != _MEASURES * SLOTS * 4:
        raise MalformedMessage(f"loads of {len(loads)} bytes")
    found = np.frombuffer(loads, "<f4").reshape(_MEASURES, SLOTS).astype(np.float64)
    if not np.isfinite(found).all() or (found < 0).any():
        raise MalformedMessage("loads that are no measures")
    return found


class SlotLoads:
    """By slot and not by PS: what was measured of a slot goes with it when it moves, until its new owner has measured it."""

    def __init__(self) -> None:
        self._measured: Floats = np.zeros((_MEASURES, SLOTS))
        self._heard: set[str] = set()

    def take(self, node: str, owned: SlotSet, loads: Floats) -> None:
        self._measured[:, owned] = loads[:, owned]
        self._heard.add(node)

    @property
    def busy(self) -> Floats:
        """Seconds/s of each slot [4096]."""
        busy: Floats = self._measured[_BUSY]
        return busy

    def row_bytes(self, state: SlotState, reports: Mapping[str, PsReport]) -> Floats:
        """Of each slot [4096]. A PS that has not told them has its bytes spread over its slots."""
        found: Floats = self._measured[_BYTES].copy()
        for node, report in reports.items():
            if node not in self._heard and (owned := state.owned(node)).any():
                found[owned] = report.bytes / owned.sum()
        return found
