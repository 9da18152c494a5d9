"""The rows of a checkpoint as they were then, each once, without a place for all of them: increments are read from the newest to the
oldest, then the base, and a row that has come is passed over further on.

Of increments the ids that have come are kept, of some slots at a time so that they don't take more than ``KNOWN_BYTES``; the base's are
not. A checkpoint that builds on none is read from its beginning to its end.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dlrover_lite.checkpoint.destination import damaged
from dlrover_lite.checkpoint.layout import BUCKETS, Block
from dlrover_lite.checkpoint.manifest import Manifest
from dlrover_lite.checkpoint.store import CheckpointStore
from dlrover_lite.core import slot_sets
from dlrover_lite.core.rows import RowData

__all__ = ["KNOWN_BYTES", "NewestRows", "RowChunk"]

KNOWN_BYTES = 64 << 20
"""Bytes for ids that have come. With more rows in increments than find room (67 million) blocks are read more than once."""
_ID_BYTES = 16
"""Bytes of an id, and room to put it in order."""

Table = tuple[int, int]
"""Group and position within the group."""


class RowChunk(NamedTuple):
    """Some rows of one group; ``seen``: rows that have been read so far, of ``NewestRows.total``."""

    group: int
    rows: RowData
    seen: int


class NewestRows:
    """Rows of these groups of a checkpoint, each as it is there.

    Raises CheckpointDamaged, CheckpointForeign, and JobError for a destination that can't be read; while it is iterated over, too.
    """

    def __init__(self, store: CheckpointStore, cut: int, groups: Collection[int]) -> None:
        self._store, self._groups = store, groups
        self._chain = store.chain(cut)
        self.total = sum(map(self._rows_of, self._chain))
        """Number of rows of the checkpoint and those it builds on: a row that was changed meanwhile counts several times."""

    def __iter__(self) -> Iterator[RowChunk]:
        seen = 0
        for members in self._ranges():
            known = _Known()
            for manifest in self._chain[::-1]:
                is_base = manifest is self._chain[0]
                for block in self._store.own_rows(manifest, members, self._groups):
                    seen += len(block.slots)
                    new = block.rows if len(self._chain) == 1 else known.sift(block, keep=not is_base)
                    yield RowChunk(block.group, new, seen)
                known.put_in_order(manifest.cut)

    def _rows_of(self, manifest: Manifest) -> int:
        return sum(rows for part in manifest.parts for g, rows in enumerate(part.rows) if g in self._groups)

    def _ranges(self) -> Iterator[slot_sets.SlotSet | None]:
        """Yield sets of slots that together are all; None: all of them. Blocks are of one sixteenth of the slots each: down to that,
        nothing is read twice."""
        pieces = -(-sum(map(self._rows_of, self._chain[1:])) * _ID_BYTES // KNOWN_BYTES)
        if pieces <= 1:
            yield None
            return
        if pieces > BUCKETS:
            pieces = min(slot_sets.SLOTS, BUCKETS * -(-pieces // BUCKETS))
        unit = slot_sets.SLOTS // BUCKETS if pieces <= BUCKETS else 1
        ends = [slot_sets.SLOTS // unit * piece // pieces * unit for piece in range(pieces + 1)]
        numbers = np.arange(slot_sets.SLOTS)
        for low, high in pairwise(ends):
            yield (numbers >= low) & (numbers < high)


class _Known:
    """Ids that have come: those of checkpoints that are through in order, and those of the one that is read."""

    def __init__(self) -> None:
        self._sorted: dict[Table, NDArray[np.uint64]] = {}
        self._fresh: dict[Table, list[NDArray[np.uint64]]] = {}

    def sift(self, block: Block, *, keep: bool) -> RowData:
        """Return the rows of a block that haven't come before. ``keep``: remember them."""
        rows = block.rows
        new = np.ones(len(rows.ids), np.bool_)
        for position in np.unique(rows.tables).tolist():
            table = block.group, position
            mine = np.flatnonzero(rows.tables == position)
            ids = rows.ids[mine]
            if (known := self._sorted.get(table)) is not None:
                at = np.minimum(np.searchsorted(known, ids), len(known) - 1)
                come = known[at] == ids
                new[mine[come]] = False
                ids = ids[~come]
            if keep and len(ids):
                self._fresh.setdefault(table, []).append(ids)
        if new.all():
            return rows
        return RowData(rows.ids[new], rows.tables[new], rows.counts[new], rows.values[new], rows.state[new])

    def put_in_order(self, cut: int) -> None:
        """Put the ids seen in order: another checkpoint follows. Raises CheckpointDamaged."""
        for table in list(self._fresh):
            ids = np.concatenate(
                [*self._fresh.pop(table), *([self._sorted.pop(table)] if table in self._sorted else [])]
            )
            ids.sort()
            if (ids[1:] == ids[:-1]).any():
                raise damaged(f"checkpoint {cut}", "it has a row twice")
            self._sorted[table] = ids
