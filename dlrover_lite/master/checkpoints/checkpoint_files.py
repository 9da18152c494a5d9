"""What a cut's orders and its manifest say. Pure: data in, data out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from dlrover_lite.checkpoint.manifest import Layout, Manifest, PartEntry
from dlrover_lite.core import slot_sets
from dlrover_lite.core.decoding import from_json
from dlrover_lite.core.errors import JobError
from dlrover_lite.core.slot_sets import SlotSet
from dlrover_lite.protocol.messages import SnapshotOrder, SnapshotReport
from dlrover_lite.protocol.nodes import Usage

__all__ = [
    "Basis",
    "Owner",
    "basis_for",
    "interval_for",
    "manifest_of",
    "number_of",
    "part_order",
    "spill_bytes",
]

_LEAST_SPILL_BYTES = 1 << 20


class Basis(NamedTuple):
    """The newest complete cut, and how many have been taken since its base."""

    manifest: Manifest
    increments: int


class Owner(NamedTuple):
    """A PS that owns slots."""

    owned: SlotSet
    numbers: list[int]
    """Number of the PS, then those of the PS whose memory it has taken over, the last one first."""


def number_of(node: str) -> int:
    """Return the number of a node: 3 for ``ps-3``."""
    return int(node.rpartition("-")[2])


def basis_for(found: Basis | None, job: str, generation: int, full_every: int, owners: Sequence[Owner]) -> Basis | None:
    """Return what the next cut is to build on; None: it is a base. Another generation's epochs mean nothing in this one."""
    if found is None or found.increments + 1 >= full_every:
        return None
    manifest = found.manifest
    if manifest.job != job or manifest.generation != generation:
        return None
    return found if any(_part_before(manifest, owner) is not None for owner in owners) else None


def spill_bytes(limit: int, usage: Usage | None) -> int:
    """Return the spill size in bytes for a server with this memory limit: half of what is left of it, so that a cut doesn't take it over
    its limit; 0 where that isn't known."""
    return max(_LEAST_SPILL_BYTES, (limit - usage.memory) // 2) if limit and usage is not None else 0


def interval_for(seconds: float) -> float:
    """Tell how many seconds from one checkpoint to the next would do, if one takes so many: half as many again, in whole tens."""
    return max(10.0, 10.0 * math.ceil(1.5 * seconds / 10.0))


def part_order(order: SnapshotOrder, basis: Basis | None, owner: Owner, moved: SlotSet) -> SnapshotOrder:
    """Return ``order`` with what the owner is to write. ``moved``: slots that came to their owners after the cut to build on."""
    if basis is None:
        return order
    before = _part_before(basis.manifest, owner)
    if before is None:
        return msgspec.structs.replace(order, whole=slot_sets.pack(owner.owned))
    whole = owner.owned & (moved | ~slot_sets.unpack(before.slots))
    return msgspec.structs.replace(order, since=before.clocks, whole=slot_sets.pack(whole))


def _part_before(manifest: Manifest, owner: Owner) -> PartEntry | None:
    """Find the part of the same memory at an earlier cut."""
    for number in owner.numbers:
        for part in manifest.parts:
            if part.ps == number and len(part.clocks) == len(manifest.groups) > 0:
                return part
    return None


def manifest_of(noted: Manifest, reports: Mapping[str, SnapshotReport]) -> Manifest:
    """Return the manifest of a cut; ``noted``: what was known before any snapshot began. Raises JobError when parameter servers have
    reported what can't be."""
    layouts, parts = list[Layout](), list[PartEntry]()
    for node, report in reports.items():
        try:
            parts.append(from_json(report.part, PartEntry))
            layouts.append(from_json(report.layout, Layout))
        except msgspec.MsgspecError as error:
            raise JobError(f"{node} has told of its part what can't be understood: {error}") from error
    if not layouts or any(layout != layouts[0] for layout in layouts):
        raise JobError("the parameter servers don't keep the same tables")
    layout = layouts[0]
    return msgspec.structs.replace(noted, configuration=layout.configuration, groups=layout.groups, parts=parts)
