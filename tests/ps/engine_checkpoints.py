"""Checkpoints of the engines of a rig, as their servers and the master would write them."""

from __future__ import annotations

from typing import Any

import msgspec

from dlrover_lite.checkpoint.manifest import Applied, AppliedAtSnapshot, Consumed, Manifest, PartEntry, configuration_of
from dlrover_lite.checkpoint.store import CheckpointStore
from dlrover_lite.core import slot_sets
from dlrover_lite.core.records import epochs_of
from dlrover_lite.ps.journal.applied_minibatches import to_bitmap
from dlrover_lite.ps.server.engine import Engine
from tests.ps.snapshots import shapes_of


def write_checkpoint(
    store: CheckpointStore,
    cut: int,
    engines: list[Engine],
    *,
    builds_on: Manifest | None = None,
    ledger: Consumed | None = None,
    known: list[Consumed] | None = None,
    names: list[tuple[int, int]] | None = None,
    facts: dict[str, Any] | None = None,
    job: str = "job-1",
) -> Manifest:
    """All they have, or what has changed since the checkpoint it builds on. ``known``: what each has heard as consumed; ``names``:
    minibatches that are written as applied."""
    store.create()
    writer = store.begin(cut)
    parts: list[PartEntry] = []
    shapes = shapes_of(engines[0])
    for ps, engine in enumerate(engines):
        owned = slot_sets.unpack(to_bitmap(engine.owned))
        before = builds_on.parts[ps].clocks if builds_on is not None else [0] * len(shapes)
        with writer.part(job, ps, owned, shapes, block_bytes=4096) as part:
            for g, group in enumerate(engine.groups):
                rows, _ = group.find(owned, 0, scan_limit=1 << 40, row_limit=1 << 40)
                records = group.read_records(rows)
                part.add(g, records[epochs_of(records) > before[g]])
            applied = [
                Applied(epoch, k, to_bitmap(mask))
                for epoch, k in names or []
                if (mask := engine.applied_minibatches.applied(epoch, k))
            ]
            minibatches = AppliedAtSnapshot(known[ps] if known else ledger or Consumed(), applied)
            clocks = [group.begin_snapshot().epoch for group in engine.groups]
            parts.append(msgspec.structs.replace(part.finish(), applied_minibatches=minibatches, clocks=clocks))
    assert engines[0].configuration is not None
    manifest = Manifest(
        job=job,
        cut=cut,
        at=1e9 + cut,
        builds_on=builds_on.cut if builds_on is not None else None,
        map_version=1,
        consumed=ledger or Consumed(),
        configuration=configuration_of(engines[0].configuration),
        groups=shapes,
        facts=facts or {},
        parts=parts,
    )
    writer.commit(manifest)
    return manifest
