"""What is in the parts of a simulated job's checkpoints beside their files: counts, which take the place of rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dlrover_lite.checkpoint.manifest import Manifest
from dlrover_lite.core import slot_sets
from dlrover_lite.core.slot_sets import SlotSet
from dlrover_lite.simulation.nodes.memory import AppliedCounts

__all__ = ["PartContents"]


class _Content(NamedTuple):
    owned: SlotSet
    whole: SlotSet
    """Slots of which it has all counts."""
    rows: NDArray[np.int64]
    """Minibatches that have changed since the checkpoint that it builds on."""
    counts: NDArray[np.uint8]
    """Counts of these minibatches in all slots."""
    all_counts: NDArray[np.uint8]
    """Counts of all minibatches in the slots of which it has them."""


class PartContents:
    """The contents of parts, by the names of their files."""

    def __init__(self) -> None:
        self._by_file: dict[str, _Content] = {}

    def put(self, file: str, counts: AppliedCounts, owned: SlotSet, since: int | None, whole: SlotSet) -> None:
        """Keep what a part has: of the slots ``owned`` what has changed after the epoch ``since`` (None: all), of those in ``whole``
        all."""
        whole = owned if since is None else whole & owned
        rows = np.flatnonzero(counts.changed_at > (0 if since is None else since))
        self._by_file[file] = _Content(owned, whole, rows, counts.counts[rows], counts.counts[:, whole])

    def rename(self, before: str, file: str) -> None:
        """Keep under its file's name what was put under another."""
        if (content := self._by_file.pop(before, None)) is not None:
            self._by_file[file] = content

    def restore(self, chain: Sequence[Manifest], members: SlotSet, counts: AppliedCounts) -> None:
        """Take the counts of these slots from a checkpoint and those that it builds on, the oldest first."""
        counts.forget(members)
        for manifest in chain:
            for part in manifest.parts:
                content = self._by_file.get(part.file)
                if content is None:
                    continue
                there = slot_sets.unpack(part.slots) & members
                whole, changed = there & content.whole, there & ~content.whole
                if whole.any():
                    counts.counts[:, whole] = content.all_counts[:, whole[content.whole]]
                if changed.any() and len(content.rows):
                    counts.counts[np.ix_(content.rows, np.flatnonzero(changed))] = content.counts[:, changed]
        counts.changed_at[:] = 0
