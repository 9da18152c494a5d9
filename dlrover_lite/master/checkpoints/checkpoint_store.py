"""What the master does at its checkpoints' destination. Any of it may take long, hang or raise JobError."""

from __future__ import annotations

from typing import NamedTuple

from dlrover_lite.checkpoint.lineage import Lineage
from dlrover_lite.checkpoint.manifest import Manifest
from dlrover_lite.checkpoint.store import Checkpoint, CheckpointStore, CheckpointWriter
from dlrover_lite.master.checkpoints.checkpoint_files import Basis

__all__ = ["CutStore", "Found", "Opened"]


class Found(NamedTuple):
    newest: Manifest | None
    """The newest cut that is complete, and not abandoned."""
    used: int
    """The highest number of any cut there, whole or not."""


class Opened(NamedTuple):
    writer: CheckpointWriter
    basis: Basis | None
    """The newest cut that is complete, and not abandoned."""


class CutStore:
    """The cuts of a job at their destination, for one thread. ``create``: the destination may be made if it isn't there, as long as nothing
    has been seen of it. ``lineage``: of the job."""

    def __init__(self, url: str, *, create: bool, lineage: Lineage) -> None:
        self.url = url
        self._lineage = lineage
        self._create = create
        self._store: CheckpointStore | None = None

    def _opened(self) -> CheckpointStore:
        if self._store is None:
            store = CheckpointStore(self.url)
            if self._create:
                store.create()
            self._store = store
        return self._store

    def look(self) -> Found:
        """Return what there is at the destination; remove half-written cuts."""
        store = self._opened()
        cuts, removed = store.checkpoints(lineage=self._lineage), store.clean()
        used = max([cut.number for cut in cuts] + removed, default=0)
        basis = _basis(cuts)
        return Found(basis.manifest if basis else None, used)

    def open(self, cut: int) -> Opened | Found:
        """Begin this cut; or what there is, if its number is in use."""
        store = self._opened()
        cuts = store.checkpoints(lineage=self._lineage)
        if cuts and cuts[0].number >= cut:
            return self.look()
        return Opened(store.begin(cut), _basis(cuts))

    def retain(self, keep: int, every_hours: float | None) -> list[int]:
        """Delete cuts that needn't be kept; return their numbers."""
        return self._opened().retain(keep, every_hours, self._lineage)

    def clean(self) -> list[int]:
        """Remove half-written cuts; return their numbers."""
        return self._opened().clean()


def _basis(cuts: list[Checkpoint]) -> Basis | None:
    by_number = {cut.number: cut.manifest for cut in cuts if cut.state == "complete"}
    newest = next((cut.manifest for cut in cuts if cut.state == "complete" and not cut.abandoned), None)
    if newest is None:
        return None
    increments, below = 0, newest.builds_on
    while below is not None and (manifest := by_number[below]) is not None:
        increments, below = increments + 1, manifest.builds_on
    return Basis(newest, increments)
