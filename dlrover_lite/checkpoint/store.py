"""The checkpoints of a job at one destination: begun, written, listed, read, checked, and deleted.

A checkpoint is a directory ``cut-00000012``, called by the number of its cut, with a part by each parameter server. It exists as soon as it
has a manifest, which comes last. Nothing is ever overwritten: names of parts end with random letters, so that a writer that was given up
can't spoil its successor's.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from types import MappingProxyType
from typing import Literal, NamedTuple

import numpy as np

from dlrover_lite.checkpoint.destination import Destination, damaged, open_destination
from dlrover_lite.checkpoint.layout import BLOCK_BYTES, ENTRY, Block, Codec, GroupShape, PartHead
from dlrover_lite.checkpoint.lineage import Lineage
from dlrover_lite.checkpoint.manifest import MANIFEST, Manifest, PartEntry, configure, pack_manifest, read_manifest
from dlrover_lite.checkpoint.part_reader import PartReader
from dlrover_lite.checkpoint.part_writer import PartWriter
from dlrover_lite.checkpoint.retention import retained
from dlrover_lite.core import slot_sets
from dlrover_lite.core.errors import CheckpointDamaged, CheckpointForeign, JobError
from dlrover_lite.core.files.durable import UnsafeName, checked_name
from dlrover_lite.core.units import MIB, format_bytes

__all__ = ["Checkpoint", "CheckpointStore", "CheckpointWriter", "State", "directory_of", "number_of"]

MOST_MANIFEST_BYTES = 256 * MIB
"""Size limit of a manifest, which is read whole: 4,096 parts with thousands of open minibatches each have less."""

_NONE: Mapping[int, str] = MappingProxyType({})
_ALL = Lineage()

State = Literal["complete", "damaged", "foreign"]

_DIRECTORY = re.compile(r"cut-(\d{8}|[1-9]\d{8,11})")


def directory_of(cut: int) -> str:
    return f"cut-{cut:08}"


def number_of(directory: str) -> int | None:
    found = _DIRECTORY.fullmatch(directory)
    return int(found[1]) if found else None


class Checkpoint(NamedTuple):
    """A checkpoint that exists. ``foreign``: of a format that this version can't read."""

    number: int
    state: State
    why: str
    """Reason why the checkpoint isn't complete, with the name of the file."""
    manifest: Manifest | None
    """The checkpoint's manifest; None when it can't be read."""
    bytes: int
    """Size of all files of the checkpoint."""
    abandoned: bool = False
    """The job has gone on without the checkpoint, from an older one."""


class CheckpointWriter:
    """A checkpoint under way: parts by several processes, then the manifest by one."""

    def __init__(self, destination: Destination, cut: int) -> None:
        self._destination, self._directory = destination, directory_of(cut)
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

        Raises JobError, also when the checkpoint was given up and cleaned up meanwhile."""
        head = PartHead(job=job, cut=self.cut, ps=ps, groups=list(groups), codec=codec, entry_bytes=ENTRY.itemsize)
        name = f"ps-{ps}-{secrets.token_hex(4)}.part"
        file = self._destination.writer(f"{self._directory}/{name}")
        try:
            return PartWriter(file, name, head, owned.copy(), block_bytes=block_bytes)
        except BaseException:
            file.abandon()
            raise

    def commit(self, manifest: Manifest) -> None:
        """Write the manifest: from now on the checkpoint exists. Raises JobError when the parts don't have every slot once, when one has a
        name that can't be, or when the manifest can't be written: then it doesn't exist, unless the last thing that failed was making sure
        of it."""
        if manifest.cut != self.cut:
            raise ValueError(f"the manifest of checkpoint {manifest.cut} for checkpoint {self.cut}")
        _check_slots(manifest.cut, manifest.parts)
        _check_names(manifest.cut, manifest.parts)
        self._destination.put(f"{self._directory}/{MANIFEST}", pack_manifest(manifest))


class CheckpointStore:
    """``url``: a directory, or an fsspec URL. Makes nothing and keeps nothing open by itself.

    Every method raises JobError for a destination that can't be used right now.
    """

    def __init__(self, place: str | Destination) -> None:
        """``place``: a path or URL, or what was opened for it."""
        self._destination = open_destination(place) if isinstance(place, str) else place
        self.url = self._destination.url

    def create(self) -> None:
        """Make the destination if there is none yet: once, when a job starts."""
        self._destination.create()

    def exists(self) -> bool:
        """Return whether the destination is there; one at an object store is once there is something in it."""
        return self._destination.exists()

    # Writing

    def begin(self, cut: int) -> CheckpointWriter:
        """Begin the next checkpoint; removes what earlier ones have left half-written.

        Raises JobError for a number that was used before.
        """
        names = self._destination.directories()
        newest = max(_numbers(names, whole=True), default=-1)
        if cut <= newest:
            raise JobError(f"{self.url} has a checkpoint {newest} already: checkpoint {cut} can't follow it")
        self._clean(names)
        self._destination.make(directory_of(cut))
        return self.join(cut)

    def join(self, cut: int) -> CheckpointWriter:
        """Return the writer of a checkpoint that another process has begun: to write a part."""
        return CheckpointWriter(self._destination, cut)

    def clean(self) -> list[int]:
        """Remove half-written checkpoints; return their numbers."""
        return self._clean(self._destination.directories())

    def _clean(self, names: dict[str, dict[str, int]]) -> list[int]:
        removed = _numbers(names, whole=False)
        for number in removed:
            self._destination.remove(directory_of(number))
        return removed

    def delete(self, cut: int) -> None:
        """Delete a checkpoint: it ceases to exist first, then its files go. Those that build on it must be gone."""
        self._destination.remove(directory_of(cut), first=MANIFEST)

    def retain(self, keep: int, every_hours: float | None = None, lineage: Lineage = _ALL) -> list[int]:
        """Delete what needn't be kept (``retention.retained``), and damaged checkpoints older than all that is; return their numbers.
        Foreign ones are left alone."""
        found = self.checkpoints(lineage=lineage)
        whole = [one.manifest for one in found if one.state == "complete" and one.manifest is not None]
        kept = retained(whole, {one.number for one in found if one.abandoned}, keep, every_hours)
        spent = [one.cut for one in whole if one.cut not in kept]
        spent += [one.number for one in found if one.state == "damaged" and kept and one.number < min(kept)]
        for number in (deleted := sorted(spent, reverse=True)):  # what builds on others goes before them
            self.delete(number)
        return deleted

    # Reading

    def checkpoints(self, known_damaged: Mapping[int, str] = _NONE, lineage: Lineage = _ALL) -> list[Checkpoint]:
        """List all checkpoints that exist, newest first. Looks at manifests, and at the ends of parts; ``verify`` looks at every byte.
        ``known_damaged``: which are known to be, and why. ``lineage``: of the job whose they are; what isn't in it is abandoned."""
        names = self._destination.directories()
        found: dict[int, Checkpoint] = {}
        for number in _numbers(names, whole=True):
            size = sum(names[directory_of(number)].values())
            one = self._checkpoint(number, size, found, known_damaged.get(number, ""))
            abandoned = one.manifest is not None and not lineage.has(number, one.manifest.generation)
            found[number] = one._replace(abandoned=abandoned)
        return list(found.values())[::-1]

    def _checkpoint(self, number: int, size: int, older: dict[int, Checkpoint], why: str) -> Checkpoint:
        manifest = None
        state: State = "damaged"
        try:
            manifest = self.manifest(number)
            for part in manifest.parts:
                self._open(manifest, part).close()
        except CheckpointDamaged as error:
            why = error.message
        except CheckpointForeign as error:
            state, why = "foreign", error.message
        else:
            if not why and manifest.builds_on is not None:
                state, why = self._state_on(manifest, older.get(manifest.builds_on))
        return Checkpoint(number, state if why else "complete", why, manifest, size)

    def _state_on(self, manifest: Manifest, below: Checkpoint | None) -> tuple[State, str]:
        """Return the state of an increment that is whole itself, by that of the checkpoint it builds on; and why it can't be used: empty if
        it can."""
        if below is None:
            return "damaged", f"checkpoint {manifest.builds_on}, which it builds on, is missing"
        if below.state != "complete" or below.manifest is None:
            return below.state, f"it builds on checkpoint {below.number}, which is {below.state}: {below.why}"
        why = _why_not_on(manifest, below.manifest)
        return "damaged", f"{self.url}/{directory_of(manifest.cut)}/{MANIFEST}: {why}" if why else ""

    def manifest(self, cut: int) -> Manifest:
        """Return the manifest of a checkpoint. Raises CheckpointDamaged, CheckpointForeign."""
        name = f"{directory_of(cut)}/{MANIFEST}"
        with closing(self._destination.open(name)) as file:
            if file.size > MOST_MANIFEST_BYTES:
                raise damaged(file.url, f"it has {format_bytes(file.size)}, and no manifest has that much")
            manifest = read_manifest(file.read(0, file.size), file.url)
        if manifest.cut != cut:
            raise damaged(f"{self.url}/{name}", f"it is that of checkpoint {manifest.cut}")
        return manifest

    def chain(self, cut: int) -> list[Manifest]:
        """Return the base and all increments up to ``cut``, oldest first. Raises CheckpointDamaged, CheckpointForeign."""
        found = [self.manifest(cut)]
        while (below := found[-1].builds_on) is not None:
            file = f"{self.url}/{directory_of(found[-1].cut)}/{MANIFEST}"
            if below >= found[-1].cut:
                raise damaged(file, f"it builds on checkpoint {below}")
            found.append(self.manifest(below))
            if why := _why_not_on(found[-2], found[-1]):
                raise damaged(file, why)
        return found[::-1]

    def rows(
        self, cut: int, slots: slot_sets.SlotSet | None = None, groups: Collection[int] | None = None
    ) -> Iterator[Block]:
        """Yield rows in these slots (all, by default) of these groups: the base's, then each increment's, oldest first. So a row may come
        again, and whoever keeps the last one of each key (group, table, id) has the state of the checkpoint.

        Arrays may be views of what was read, and read-only. Raises CheckpointDamaged at the first block that isn't as it was written.
        """
        for manifest in self.chain(cut):
            yield from self.own_rows(manifest, slots, groups)

    def own_rows(
        self, manifest: Manifest, slots: slot_sets.SlotSet | None = None, groups: Collection[int] | None = None
    ) -> Iterator[Block]:
        """Yield rows as ``rows``, without those of the checkpoints that this one builds on: each row once."""
        for part in manifest.parts:
            wanted = slot_sets.unpack(part.slots)
            wanted = wanted if slots is None else wanted & slots
            if part.blocks and wanted.any():
                with closing(self._open(manifest, part)) as reader:
                    for _, block in reader.blocks(slots, groups):
                        yield block

    def verify(
        self, cut: int, *, chain: bool = True, progress: Callable[[int], object] = lambda _: None
    ) -> list[CheckpointDamaged]:
        """Read all of a checkpoint, and (with ``chain``) of those it builds on, comparing every checksum. Return what is damaged (file,
        block). ``progress`` is called with the bytes of parts that are checked so far (``stored_bytes``).

        Raises CheckpointForeign.
        """
        try:
            manifests = self.chain(cut) if chain else [self.manifest(cut)]
        except CheckpointDamaged as error:
            return [error]
        found: list[CheckpointDamaged] = []
        checked = 0
        for manifest in manifests:
            for part in manifest.parts:
                blocks = 0
                try:
                    with closing(self._open(manifest, part)) as reader:
                        for size, damages in reader.damages():
                            found += damages
                            blocks += size
                            progress(checked + blocks)
                except CheckpointDamaged as error:
                    found.append(error)
                checked += part.stored_bytes
                progress(checked)
        return found

    def stored_bytes(self, cut: int, *, chain: bool = True) -> int:
        """Return the size of the parts that ``verify`` reads; 0 where that can't be known, as a manifest is damaged or foreign."""
        try:
            return sum(one.stored_bytes for one in (self.chain(cut) if chain else [self.manifest(cut)]))
        except (CheckpointDamaged, CheckpointForeign):
            return 0

    def _open(self, manifest: Manifest, part: PartEntry) -> PartReader:
        file = self._destination.open(f"{directory_of(manifest.cut)}/{part.file}")
        return PartReader(file, part, manifest.groups)


def _numbers(names: Mapping[str, Collection[str]], *, whole: bool) -> list[int]:
    """Return the numbers of the checkpoints that exist, or, unless ``whole``, of those that are half-written, in their order."""
    numbers = ((number_of(name), MANIFEST in files) for name, files in names.items())
    return sorted(number for number, exists in numbers if number is not None and exists == whole)


def _check_slots(cut: int, parts: Sequence[PartEntry]) -> None:
    owners = np.zeros(slot_sets.SLOTS, np.int64)
    for part in parts:
        owners += slot_sets.unpack(part.slots)
    for what, wrong in (("no part has", owners == 0), ("several parts have", owners > 1)):
        if wrong.any():
            raise JobError(f"checkpoint {cut} isn't whole: {what} slots {slot_sets.describe(wrong)}")


def _check_names(cut: int, parts: Sequence[PartEntry]) -> None:
    """Check the names of parts: they come from other processes. Raises JobError."""
    try:
        for part in parts:
            checked_name(part.file)
    except UnsafeName as error:
        raise JobError(f"checkpoint {cut} can't be: {error}") from error


def _why_not_on(manifest: Manifest, below: Manifest) -> str:
    """Return why a checkpoint can't build on this one; empty if it can. What has changed since it is told by clocks, which begin anew in
    each generation: rows would be missing, and nothing else would say so. Raises CheckpointDamaged."""
    if (manifest.job, manifest.generation) != (below.job, below.generation):
        return f"it can't build on checkpoint {below.cut}, which is of generation {below.generation} of {below.job}"
    if configure(manifest) != configure(below):
        return f"it can't build on checkpoint {below.cut}, whose tables are others"
    return ""
