"""The manifest of a checkpoint: what makes it exist, and says all there is to know of it but the rows."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

import msgspec

from dlrover_lite.checkpoint.destination import damaged
from dlrover_lite.checkpoint.layout import VERSION, GroupShape, refuse_other_major
from dlrover_lite.core.decoding import convert, from_json
from dlrover_lite.core.errors import CheckpointDamaged
from dlrover_lite.core.files.durable import UnsafeName, checked_name
from dlrover_lite.core.intervals import Range
from dlrover_lite.core.slot_sets import BITMAP_BYTES
from dlrover_lite.core.unknown_ids import usual_shares
from dlrover_lite.protocol.ps_messages import Configure, DenseSpec, TableSpec
from dlrover_lite.protocol.questions import to_builtins
from dlrover_lite.recipe.id_kinds import IdKind, kinds_of_format
from dlrover_lite.recipe.schema import Optimizer

__all__ = [
    "MANIFEST",
    "Applied",
    "AppliedAtSnapshot",
    "Consumed",
    "Layout",
    "Manifest",
    "PartEntry",
    "configuration_of",
    "configure",
    "damaged_manifest",
    "known_id_kinds",
    "pack_manifest",
    "read_manifest",
    "usual_unknown_ids",
]

MANIFEST = "manifest.json"
_FORMAT = "dlrover-lite checkpoint"


class Consumed(msgspec.Struct, frozen=True):
    """Minibatches: all of the epochs ``below``, and of each later epoch these ranges."""

    below: int = 0
    ranges: list[tuple[int, list[Range]]] = []


class Applied(msgspec.Struct, frozen=True):
    """A minibatch that a parameter server has applied in some slots (a bitmap, ``slot_sets.pack``)."""

    epoch: int
    k: int
    slots: bytes


class AppliedAtSnapshot(msgspec.Struct, frozen=True):
    """What a parameter server remembered when its snapshot began: in its slots, these are not to be applied again."""

    consumed: Consumed = Consumed()
    applied: list[Applied] = []


class Layout(msgspec.Struct, frozen=True):
    """What parameter servers keep, as each of them tells the master."""

    configuration: dict[str, Any]
    """Configuration that workers have sent, by ``configuration_of``."""
    groups: list[GroupShape]


class PartEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A part: the file (within the checkpoint's directory), who wrote it, and what is in it."""

    file: str
    """Name of the file, checked by ``files.checked_name``."""
    ps: int
    slots: bytes
    """Slots that the part has all rows of (all changed ones, in an increment): a bitmap."""
    rows: list[int]
    """Number of rows of each group."""
    stored_bytes: int
    blocks: int
    index_crc32: int
    clocks: list[int] = []
    """Epoch of each group: that of what had changed until then (version 1: pushes)."""
    applied_minibatches: AppliedAtSnapshot = msgspec.field(default=AppliedAtSnapshot(), name="marks")


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    job: str
    cut: int
    at: float
    """Seconds since the epoch."""
    builds_on: int | None = None
    """Number of the checkpoint that this one has the changes since; None: a base, which has all rows."""
    generation: int = 0
    map_version: int
    consumed: Consumed
    """Minibatches that the ledger said were consumed before any snapshot began."""
    configuration: dict[str, Any]
    """``Configure`` message by field names."""
    groups: list[GroupShape]
    """Shapes of the groups, as ``tables.layout.groups_of`` has them."""
    samples: int = 0
    """Number of consumed samples."""
    facts: dict[str, Any] = {}
    """Facts: whatever else the master is to know again."""
    parts: list[PartEntry]

    @property
    def rows(self) -> int:
        return sum(sum(part.rows) for part in self.parts)

    @property
    def stored_bytes(self) -> int:
        """Size of the parts in bytes."""
        return sum(part.stored_bytes for part in self.parts)


class _Stamp(msgspec.Struct):
    format: str
    version: tuple[int, int]


class _Envelope(_Stamp):
    crc32: int
    manifest: msgspec.Raw


def _checksum(version: tuple[int, int], manifest: bytes | memoryview) -> int:
    return zlib.crc32(manifest, zlib.crc32(f"{version[0]}.{version[1]} ".encode()))


def pack_manifest(manifest: Manifest, version: tuple[int, int] = VERSION) -> bytes:
    text = msgspec.json.encode(manifest)
    envelope = _Envelope(_FORMAT, version, _checksum(version, text), msgspec.Raw(text))
    return msgspec.json.encode(envelope) + b"\n"


def read_manifest(data: bytes | memoryview, file: str) -> Manifest:
    """Read a manifest. Raises CheckpointDamaged, and CheckpointForeign for another major version."""
    try:
        stamp = from_json(data, _Stamp)
        if stamp.format != _FORMAT:
            raise damaged(file, "it isn't the manifest of a checkpoint")
        refuse_other_major(file, stamp.version)
        envelope = from_json(data, _Envelope)
        if _checksum(envelope.version, memoryview(envelope.manifest)) != envelope.crc32:
            raise damaged(file, "its checksum is another")
        manifest = from_json(envelope.manifest, Manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise damaged(file, str(error)) from error
    try:
        for part in manifest.parts:
            checked_name(part.file)
    except UnsafeName as error:
        raise damaged(file, f"it names a part that can't be there: {error}") from error
    bitmaps = [part.slots for part in manifest.parts]
    bitmaps += [one.slots for part in manifest.parts for one in part.applied_minibatches.applied]
    if any(len(bitmap) != BITMAP_BYTES for bitmap in bitmaps):
        raise damaged(file, "a set of slots has the wrong length")
    return manifest


def damaged_manifest(manifest: Manifest, what: str) -> CheckpointDamaged:
    return damaged(f"the manifest of checkpoint {manifest.cut}", what)


def known_id_kinds(manifest: Manifest) -> dict[str, IdKind]:
    """Tell the kind of each categorical column that the checkpoint was trained with: as it says, or else as follows from its data's format.

    Raises CheckpointDamaged.
    """
    recipe, kept = manifest.facts.get("recipe") or {}, manifest.facts.get("id_kinds") or {}
    try:
        data = recipe.get("data", {})
        follows = kinds_of_format(str(data.get("format", "")), data.get("categorical", ()))
        return {**follows, **convert(kept, dict[str, IdKind])}
    except (AttributeError, TypeError, msgspec.ValidationError) as error:
        raise damaged_manifest(manifest, f"its kinds of ids make no sense: {error}") from error


def usual_unknown_ids(manifest: Manifest) -> dict[str, float]:
    """Tell each categorical column's share of unknown ids in the last evaluation before the checkpoint: later ones are compared with it."""
    for result in reversed(manifest.facts.get("evaluations") or []):
        try:
            shares = convert(result.get("unknown_ids") or {}, dict[str, float])
            unusual = convert(result.get("unusual_ids") or {}, dict[str, float | None])
        except (AttributeError, msgspec.ValidationError) as error:
            raise damaged_manifest(manifest, f"its evaluations make no sense: {error}") from error
        if shares:
            return usual_shares(shares, unusual)
    return {}


def configuration_of(message: Configure) -> dict[str, Any]:
    """Return a ``Configure`` message as a manifest has it."""
    return dict(to_builtins(message))


def configure(manifest: Manifest) -> Configure:
    """Return the message that a server was configured with. Keys that this version doesn't know are passed over.

    Raises CheckpointDamaged when something is missing.
    """
    found = manifest.configuration
    try:
        return Configure(
            seed=found["seed"],
            tables=[TableSpec(**_known(TableSpec, table)) for table in found["tables"]],
            dense=DenseSpec(**_known(DenseSpec, found["dense"])),
            optimizer=convert(_known(Optimizer, found["optimizer"]), Optimizer),
            embedding_optimizer=convert(_known(Optimizer, found["embedding_optimizer"]), Optimizer),
            counted=convert(found.get("counted", False), bool),
        )
    except (KeyError, TypeError, msgspec.ValidationError) as error:
        raise damaged_manifest(manifest, f"its configuration makes no sense: {error}") from error


def _known(kind: type[msgspec.Struct], fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name in kind.__struct_fields__}
