"""A snapshot of a parameter server: what it holds between two pushes, while it goes on (docs/checkpoints.md)."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from dlrover_lite.checkpoint.manifest import Applied, AppliedAtSnapshot, Consumed, PartEntry
from dlrover_lite.core.decoding import from_json
from dlrover_lite.core.errors import JobError
from dlrover_lite.ps.journal.applied_minibatches import to_bitmap
from dlrover_lite.ps.server.engine import Engine
from dlrover_lite.ps.snapshots.copy_on_write_log import ANSWERED, CopyOnWriteLog, SpillMemory

__all__ = ["Snapshot", "prepare_spill", "spill_limit"]

LEAST_SPILL_BYTES = 16 << 20
SPILL_SHARE = 4
"""Bytes of rows for each byte of the spill."""
PREPARED_SHARE = 4
MOST_PREPARED_BYTES = 64 << 20
"""Maximum bytes of the spill that have their memory before the snapshot begins, and one byte in ``PREPARED_SHARE`` at most: until the
persister takes what waits, training changes so much."""


def spill_limit(engine: Engine, spill_bytes: int = 0) -> int:
    """Return how many bytes entries may take in groups in which not all rows have room for one. ``spill_bytes``: as in SnapshotOrder."""
    rows = sum(group.used * group.row_bytes for group in engine.groups if not group.complete)
    usual = max(LEAST_SPILL_BYTES, rows // SPILL_SHARE)
    return min(spill_bytes, usual) if spill_bytes else usual


def prepare_spill(engine: Engine, spill_bytes: int = 0) -> SpillMemory:
    """Make the memory that a snapshot that begins soon will need at first. Raises JobError when there is none."""
    return SpillMemory(min(MOST_PREPARED_BYTES, spill_limit(engine, spill_bytes) // PREPARED_SHARE))


class Snapshot:
    """A snapshot of ``engine``, from now until ``end``. Raises JobError when there is no memory for it, or ``since`` doesn't fit.

    ``since``: by group, the epoch after which changed rows are wanted; empty: all are. ``spill_bytes``: as in SnapshotOrder. ``prepared``:
    of ``prepare_spill``, whose file it takes.
    """

    def __init__(
        self, engine: Engine, since: Sequence[int] = (), spill_bytes: int = 0, prepared: SpillMemory | None = None
    ) -> None:
        self._engine = engine
        groups = [group.begin_snapshot() for group in engine.groups]
        if since and len(since) != len(groups):
            raise JobError(
                f"changes since a checkpoint of {len(since)} groups of tables are asked for, where there are {len(groups)}"
            )
        self.spill_bytes = spill_limit(engine, spill_bytes)
        owned = engine.owned_set()
        self.groups = [
            msgspec.structs.replace(
                begun,
                rows=int(group.slot_rows[owned].sum()),
                capacity=begun.used if group.complete else min(begun.used, self.spill_bytes // begun.entry_bytes),
                since=since[g] if since else 0,
            )
            for g, (begun, group) in enumerate(zip(groups, engine.groups, strict=True))
        ]
        self.owned = engine.owned
        self._applied_minibatches = _applied_minibatches(engine)
        self.spill = CopyOnWriteLog(self.groups, prepared=prepared)
        for group, area in zip(engine.groups, self.spill.areas, strict=True):
            group.spill(area)

    @property
    def files(self) -> list[int]:
        """Descriptors of the files of each group's records, then of the spill."""
        files = [group.file.fd for group in self._engine.groups[: len(self.groups)]]
        return [fd for fd in [*files, self.spill.fd] if fd is not None]  # there is no spill where they have none

    @property
    def overflown(self) -> bool:
        """Whether it isn't whole any more: more has changed than may be kept."""
        return self.spill.overflown or self.spill.limited_bytes > self.spill_bytes

    def note_training(self) -> None:
        """Write down how much training there has been, for the persister to see."""
        self.spill.header[ANSWERED] = self._engine.loads.answered

    def entry(self, part: str) -> PartEntry:
        """Return what the manifest is to say of the part, from what the persister has said."""
        entry = from_json(part, PartEntry)
        epochs = [group.epoch for group in self.groups]
        return msgspec.structs.replace(entry, clocks=epochs, applied_minibatches=self._applied_minibatches)

    def end(self) -> CopyOnWriteLog:
        """End the snapshot: rows may change as they like again. Returns the spill, which is to be freed little by little, and closed."""
        for group in self._engine.groups:
            group.spill(None)
        self.spill.stop()
        return self.spill


def _applied_minibatches(engine: Engine) -> AppliedAtSnapshot:
    below, ranges, applied = engine.applied_minibatches.noted(engine.owned)
    return AppliedAtSnapshot(
        Consumed(below, ranges), [Applied(epoch, k, to_bitmap(slots)) for epoch, k, slots in applied]
    )
