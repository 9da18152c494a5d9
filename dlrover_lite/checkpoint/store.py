"""The cuts of a job at one destination: begun, written, listed, read, checked, and deleted.

A cut is a directory ``cut-00000012`` with a part by each parameter server, and exists as soon as it has a manifest, which comes last.
Nothing is ever overwritten: names of parts end with random letters, so that a writer that was given up can't spoil its successor's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple

from dlrover_lite.checkpoint.cut_writer import CutWriter
from dlrover_lite.checkpoint.destination import damaged, open_destination
from dlrover_lite.checkpoint.layout import Block
from dlrover_lite.checkpoint.lineage import Lineage
from dlrover_lite.checkpoint.manifest import MANIFEST, Manifest, PartEntry, configure, read_manifest
from dlrover_lite.checkpoint.part_reader import PartReader
from dlrover_lite.checkpoint.retention import CutFacts, retained
from dlrover_lite.core import slots as slot_sets
from dlrover_lite.core.errors import CheckpointDamaged, CheckpointForeign, JobError
from dlrover_lite.core.units import MIB, format_bytes

__all__ = ["CheckpointStore", "Cut", "NewestGood", "State", "directory_of", "number_of"]

MOST_MANIFEST_BYTES = 256 * MIB
"""Size limit of a manifest, which is read whole: 4,096 parts with thousands of open minibatches each have less."""

_NONE: Mapping[int, str] = MappingProxyType({})
_ALL = Lineage()

State = Literal["complete", "damaged", "foreign"]

_DIRECTORY = re.compile(r"cut-(\d{8,12})")


def directory_of(cut: int) -> str:
    return f"cut-{cut:08}"


def number_of(directory: str) -> int | None:
    found = _DIRECTORY.fullmatch(directory)
    return int(found[1]) if found else None


class Cut(NamedTuple):
    """A cut that exists. ``foreign``: of a format that this version can't read."""

    number: int
    state: State
    why: str
    """Reason why the cut isn't complete, with the name of the file."""
    manifest: Manifest | None
    """The cut's manifest; None when it can't be read."""
    bytes: int
    """Size of all files of the cut."""
    abandoned: bool = False
    """The job has gone on without the cut, from an older one."""


class NewestGood(NamedTuple):
    manifest: Manifest
    passed_over: list[Cut]
    """Newer cuts that can't be used, newest first."""


class CheckpointStore:
    """``url``: a directory, or an fsspec URL. Makes nothing and keeps nothing open by itself.

    Every method raises JobError for a destination that can't be used right now.
    """

    def __init__(self, url: str) -> None:
        self._destination = open_destination(url)
        self.url = self._destination.url

    def create(self) -> None:
        """Make the destination if there is none yet: once, when a job starts."""
        self._destination.create()

    def exists(self) -> bool:
        """Return whether the destination is there; one at an object store is once there is something in it."""
        return self._destination.exists()

    # Writing

    def begin(self, cut: int, *, under_way: Collection[int] = ()) -> CutWriter:
        """Begin the next cut; removes what earlier ones have left half-written, but for those ``under_way``.

        Raises JobError for a number that was used before.
        """
        names = self._destination.directories()
        newest = max(
            (number for name in names if (number := number_of(name)) is not None and MANIFEST in names[name]),
            default=-1,
        )
        if cut <= newest:
            raise JobError(f"{self.url} has a cut {newest} already: cut {cut} can't follow it")
        self._clean(names, under_way)
        self._destination.make(directory_of(cut))
        return CutWriter(self._destination, directory_of(cut), cut)

    def join(self, cut: int) -> CutWriter:
        """Return the writer of a cut that another process has begun: to write a part."""
        return CutWriter(self._destination, directory_of(cut), cut)

    def clean(self, *, under_way: Collection[int] = ()) -> list[int]:
        """Remove half-written cuts, but for those ``under_way``; return their numbers."""
        return self._clean(self._destination.directories(), under_way)

    def _clean(self, names: dict[str, dict[str, int]], under_way: Collection[int]) -> list[int]:
        removed = []
        for name in sorted(names):
            number = number_of(name)
            if number is not None and MANIFEST not in names[name] and number not in under_way:
                self._destination.remove(name)
                removed.append(number)
        return removed

    def delete(self, cut: int) -> None:
        """Delete a cut: it ceases to exist first, then its files go. Those that build on it must be gone."""
        self._destination.remove(directory_of(cut), first=MANIFEST)

    def retain(self, keep: int, every_hours: float | None = None, lineage: Lineage = _ALL) -> list[int]:
        """Delete what needn't be kept (``retention.retained``), and damaged cuts older than all that is; return their numbers. Foreign ones
        are left alone."""
        cuts = self.cuts(lineage=lineage)
        whole = [
            CutFacts(cut.number, cut.manifest.at, cut.manifest.builds_on, cut.abandoned)
            for cut in cuts
            if cut.state == "complete" and cut.manifest is not None
        ]
        kept = retained(whole, keep, every_hours)
        spent = [one.number for one in whole if one.number not in kept]
        spent += [cut.number for cut in cuts if cut.state == "damaged" and kept and cut.number < min(kept)]
        for number in (deleted := sorted(spent, reverse=True)):  # what builds on others goes before them
            self.delete(number)
        return deleted

    # Reading

    def cuts(self, known_damaged: Mapping[int, str] = _NONE, lineage: Lineage = _ALL) -> list[Cut]:
        """List all cuts that exist, newest first. Looks at manifests, and at the ends of parts; ``verify`` looks at every byte.
        ``known_damaged``: which are known to be, and why. ``lineage``: of the job whose they are; what isn't in it is abandoned."""
        names = self._destination.directories()
        numbers = sorted(
            number for name in names if (number := number_of(name)) is not None and MANIFEST in names[name]
        )
        found: dict[int, Cut] = {}
        for number in numbers:
            size = sum(names[directory_of(number)].values())
            cut = self._cut(number, size, found, known_damaged.get(number, ""))
            abandoned = cut.manifest is not None and not lineage.has(number, cut.manifest.generation)
            found[number] = cut._replace(abandoned=abandoned)
        return list(found.values())[::-1]

    def _cut(self, number: int, size: int, older: dict[int, Cut], why: str) -> Cut:
        manifest = None
        try:
            manifest = self.manifest(number)
            for part in manifest.parts:
                self._open(manifest, part).close()
        except CheckpointDamaged as error:
            return Cut(number, "damaged", error.message, manifest, size)
        except CheckpointForeign as error:
            return Cut(number, "foreign", error.message, manifest, size)
        if why:
            return Cut(number, "damaged", why, manifest, size)
        if manifest.builds_on is not None:
            below = older.get(manifest.builds_on)
            if below is None:
                return Cut(
                    number, "damaged", f"cut {manifest.builds_on}, which it builds on, is missing", manifest, size
                )
            if below.state != "complete":
                why = f"it builds on cut {below.number}, which is {below.state}: {below.why}"
                return Cut(number, below.state, why, manifest, size)
            if below.manifest is not None and (why := _why_not_on(manifest, below.manifest)):
                return Cut(number, "damaged", f"{self.url}/{directory_of(number)}/{MANIFEST}: {why}", manifest, size)
        return Cut(number, "complete", "", manifest, size)

    def manifest(self, cut: int) -> Manifest:
        """Return the manifest of a cut. Raises CheckpointDamaged, CheckpointForeign."""
        name = f"{directory_of(cut)}/{MANIFEST}"
        with self._destination.open(name) as file:
            if file.size > MOST_MANIFEST_BYTES:
                raise damaged(file.url, f"it has {format_bytes(file.size)}, and no manifest has that much")
            manifest = read_manifest(file.read(0, file.size), file.url)
        if manifest.cut != cut:
            raise damaged(f"{self.url}/{name}", f"it is that of cut {manifest.cut}")
        return manifest

    def chain(self, cut: int) -> list[Manifest]:
        """Return the base and all increments up to ``cut``, oldest first. Raises CheckpointDamaged, CheckpointForeign."""
        found = [self.manifest(cut)]
        while (below := found[-1].builds_on) is not None:
            if below >= found[-1].cut:
                raise damaged(f"{self.url}/{directory_of(found[-1].cut)}/{MANIFEST}", f"it builds on cut {below}")
            found.append(self.manifest(below))
            if why := _why_not_on(found[-2], found[-1]):
                raise damaged(f"{self.url}/{directory_of(found[-2].cut)}/{MANIFEST}", why)
        return found[::-1]

    def rows(
        self,
        cut: int,
        slots: slot_sets.SlotSet | None = None,
        groups: Collection[int] | None = None,
    ) -> Iterator[Block]:
        """Yield rows in these slots (all, by default) of these groups: the base's, then each increment's, oldest first. So a row may come
        again, and whoever keeps the last one of each key (group, table, id) has the state of the cut.

        Arrays may be views of what was read, and read-only. Raises CheckpointDamaged at the first block that isn't as it was written.
        """
        for manifest in self.chain(cut):
            yield from self.own_rows(manifest, slots, groups)

    def own_rows(
        self, manifest: Manifest, slots: slot_sets.SlotSet | None = None, groups: Collection[int] | None = None
    ) -> Iterator[Block]:
        """Yield rows as ``rows``, without those of the cuts that the cut builds on: each row once."""
        for part in manifest.parts:
            wanted = slot_sets.unpack(part.slots)
            wanted = wanted if slots is None else wanted & slots
            if part.blocks and wanted.any():
                with self._open(manifest, part) as reader:
                    for _, block in reader.blocks(slots, groups):
                        yield block

    def verify(
        self, cut: int, *, chain: bool = True, progress: Callable[[int], object] = lambda _: None
    ) -> list[CheckpointDamaged]:
        """Read all of a cut, and (with ``chain``) of those it builds on, comparing every checksum. Return what is damaged (file, block).
        ``progress`` is called with the bytes of parts that are checked so far (``stored_bytes``).

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
                    with self._open(manifest, part) as reader:
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

    def newest_good(
        self, *, before: int | None = None, thorough: bool = True, known_damaged: Mapping[int, str] = _NONE
    ) -> NewestGood | None:
        """Return the newest cut (with a number lower than ``before``) that is whole, and those newer ones that aren't; None if none is.

        ``thorough`` reads all of it, as ``verify`` does; else a block may still turn out to be damaged when it is read. ``known_damaged``:
        as in ``cuts``.
        """
        passed_over: list[Cut] = []
        for cut in self.cuts(known_damaged):
            if before is not None and cut.number >= before:
                continue
            if cut.state == "complete" and thorough and (damages := self.verify(cut.number)):
                cut = cut._replace(state="damaged", why=damages[0].message)
            if cut.state == "complete" and cut.manifest is not None:
                return NewestGood(cut.manifest, passed_over)
            passed_over.append(cut)
        return None

    def _open(self, manifest: Manifest, part: PartEntry) -> PartReader:
        file = self._destination.open(f"{directory_of(manifest.cut)}/{part.file}")
        return PartReader(file, part, manifest.groups)


def _why_not_on(manifest: Manifest, below: Manifest) -> str:
    """Return why a cut can't build on this one; empty if it can. What has changed since it is told by clocks, which begin anew in each
    generation: rows would be missing, and nothing else would say so. Raises CheckpointDamaged."""
    if (manifest.job, manifest.generation) != (below.job, below.generation):
        return f"it can't build on cut {below.cut}, which is of generation {below.generation} of {below.job}"
    if configure(manifest) != configure(below):
        return f"it can't build on cut {below.cut}, whose tables are others"
    return ""
