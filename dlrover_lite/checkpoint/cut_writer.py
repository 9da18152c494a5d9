"""A cut under way: parts by several processes, then the manifest by one."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import numpy as np

from dlrover_lite.checkpoint.destination import Destination
from dlrover_lite.checkpoint.layout import BLOCK_BYTES, ENTRY, Codec, GroupShape, PartHead
from dlrover_lite.checkpoint.manifest import MANIFEST, Manifest, PartEntry, pack_manifest
from dlrover_lite.checkpoint.part_writer import PartWriter
from dlrover_lite.core import slots as slot_sets
from dlrover_lite.core.errors import JobError
from dlrover_lite.core.files.durable import UnsafeName, checked_name

__all__ = ["CutWriter"]


class CutWriter:
    def __init__(self, destination: Destination, directory: str, cut: int) -> None:
        self._destination, self._directory = destination, directory
        self.cut = cut

    def part(
        self,
        job: str,
        ps: int,
        owned: slot_sets.SlotSet,
        groups: Sequence[GroupShape],
        *,
        codec: Codec = "none",
        block_bytes: int = BLOCK_BYTES,
    ) -> PartWriter:
        """Return the writer of the part with the rows of the slots ``owned``.

        Raises JobError, also when the cut was given up and cleaned up meanwhile."""
        head = PartHead(job=job, cut=self.cut, ps=ps, groups=list(groups), codec=codec, entry_bytes=ENTRY.itemsize)
        name = f"ps-{ps}-{secrets.token_hex(4)}.part"
        file = self._destination.writer(f"{self._directory}/{name}")
        try:
            return PartWriter(file, name, head, owned.copy(), block_bytes=block_bytes)
        except BaseException:
            file.abandon()
            raise

    def commit(self, manifest: Manifest) -> None:
        """Write the manifest: from now on the cut exists. Raises JobError when the parts don't have every slot once, when one has a name
        that can't be, or when the manifest can't be written: then it doesn't exist, unless the last thing that failed was making sure of
        it."""
        if manifest.cut != self.cut:
            raise ValueError(f"the manifest of cut {manifest.cut} for cut {self.cut}")
        _check_slots(manifest.cut, manifest.parts)
        _check_names(manifest.cut, manifest.parts)
        self._destination.put(f"{self._directory}/{MANIFEST}", pack_manifest(manifest))

    def abandon(self) -> None:
        """Remove all of the cut; not for one that was committed."""
        self._destination.remove(self._directory)


def _check_slots(cut: int, parts: Sequence[PartEntry]) -> None:
    owners = np.zeros(slot_sets.SLOTS, np.int64)
    for part in parts:
        owners += slot_sets.unpack(part.slots)
    for what, wrong in (("no part has", owners == 0), ("several parts have", owners > 1)):
        if wrong.any():
            raise JobError(f"cut {cut} isn't whole: {what} slots {slot_sets.describe(wrong)}")


def _check_names(cut: int, parts: Sequence[PartEntry]) -> None:
    """Check the names of parts: they come from other processes. Raises JobError."""
    try:
        for part in parts:
            checked_name(part.file)
    except UnsafeName as error:
        raise JobError(f"cut {cut} can't be: {error}") from error
