"""Every message of the job's processes: what they ask a master or a parameter server, and the answers.

Tensor frames follow the header in the order given in each docstring. All arrays are little-endian and contiguous.
"""

from __future__ import annotations

from typing import Literal

from dlrover_lite.core.bounds import (
    Blob,
    ByKey,
    Bytes,
    Cores,
    Count,
    IdBits,
    Items,
    Name,
    Owners,
    Rate,
    Seconds,
    SlotBits,
    Text,
    Url,
)
from dlrover_lite.protocol.questions import OperatorReplies, OperatorRequests
from dlrover_lite.recipe.id_kinds import IdKind
from dlrover_lite.recipe.schema import Optimizer, Recipe
from dlrover_lite.transport.message import Message

_Bytes = bytes  # where a field is called "bytes"


class Ack(Message, frozen=True):
    pass


# --- master ---------------------------------------------------------------------------------------------------------


class Hello(Message, frozen=True):
    """A node is up. A PS names the endpoint it serves."""

    node: Name
    role: Literal["ps", "worker"]
    endpoint: Url = ""


class Welcome(Message, frozen=True):
    job: Name
    recipe: Recipe


class TopologyRequest(Message, frozen=True):
    """Answer Topology; or Wait, which is to say that a checkpoint is still being read: ask again."""

    node: Name


class Topology(Message, frozen=True):
    """The slot map: those PS that own slots, ids with their endpoints, and 4,096 uint16 as bytes: the position in ``ps`` of each
    slot's owner. ``version`` rises with every change. The answer waits until all of them are up."""

    version: Count
    ps: Items[tuple[Name, Url]] = []
    slots: Owners = b""


class IndexRequest(Message, frozen=True):
    """Ask for the index of a text file under a URL, which the master has built: ``data.shared_index``. Answer IndexPiece."""

    node: Name
    index: Name
    """The name it is kept under."""
    offset: Bytes


class IndexPiece(Message, frozen=True):
    """Bytes of an index from the offset on; none at its end, or where there is no such index."""

    total: Bytes = 0
    data: Blob = b""


_MOST_COUNTED = 1 << 53


class UnknownIds(Message, frozen=True):
    """Ids of a categorical column, in samples that were evaluated, that had never been trained."""

    column: Name
    table: Name
    """The embedding table that the ids are looked up in."""
    unknown: Count
    """Number of samples with an id that had never been trained."""
    table_rows: Count
    """Number of rows of the table then: ids that have been trained."""

    def plus(self, other: UnknownIds) -> UnknownIds:
        """Add up both samples."""
        unknown = min(self.unknown + other.unknown, _MOST_COUNTED)
        return UnknownIds(self.column, self.table, unknown, max(self.table_rows, other.table_rows))


class WorkReport(Message, frozen=True):
    """What a worker has done since its last report."""

    samples: Count = 0
    minibatches: Count = 0
    bad_lines: Count = 0
    bad_examples: Items[Text] = []
    """Examples of the bad lines, a few at most: ``file:line: why``."""
    metrics: Blob = b""
    """Metrics, as ``Metrics.to_bytes()``, of these samples' predictions before the update (train) or of the evaluation shard."""
    staleness: ByKey[Count, Count] = {}
    """Pushes applied between a pull and its push, the worker's own ones included -> number of minibatches."""
    seconds: ByKey[Name, Seconds] = {}
    """Wall seconds by phase: read, pull, compute, push, wait. ``pull`` and ``push`` last until all PS have answered, and overlap with
    others; ``wait`` is time in which there was nothing to compute."""
    cpu_seconds: ByKey[Name, Seconds] = {}
    """CPU seconds by phase: read, pull, compute, push; for compute, those of the computing thread. The process uses more for whatever else
    it does."""
    samples_per_second: Rate = 0.0
    longest_step_seconds: Seconds = 0.0
    """The longest time from one acknowledged push to the next, where the worker had something to do all the while."""
    unknown_ids: Items[UnknownIds] = []
    """Ids of an evaluation that had never been trained, by column."""
    read_delay_seconds: Seconds = 0.0
    """Seconds of the phase ``read`` in which the reading thread was ready to run and had no core."""


class LeaseRequest(Message, frozen=True):
    """Reports on lease ``token`` and, with ``want``, asks for the next one. A report without ``want`` is answered by Ack or Finished."""

    node: Name
    token: Count | None = None
    consumed: Items[tuple[Count, Count]] = []
    """Half-open ranges of minibatch numbers that every PS they touched has acknowledged."""
    failed: Count | None = None
    """Minibatch that raised; ``error`` holds the traceback."""
    error: Text = ""
    give_back: bool = False
    want: bool = True
    report: WorkReport | None = None
    holding: Items[Count] = []
    """Tokens of all leases of which this worker will still report something. What is open of others of its leases is to do again: they were
    granted in an answer that got lost, or reported to a master that was killed before that was durable."""


class Lease(Message, frozen=True):
    """Minibatches [start, stop) of a pass: ``kind`` train (``index`` = epoch) or eval (``index`` = evaluation round)."""

    token: Count
    kind: Literal["train", "eval"]
    index: Count
    start: Count
    stop: Count
    cores: Cores = 0.0
    """Cores that the worker has now; 0: those it was started with."""


class Wait(Message, frozen=True):
    """Nothing to lease right now: all that is left is leased to others."""

    seconds: Seconds


class Export(Message, frozen=True):
    """All training and evaluation is done: write the model to ``destination``, then send Exported, or ExportFailed."""

    destination: Url
    format: Literal["npz", "parquet"]
    id_kinds: ByKey[Name, IdKind] = {}
    """Kind of ids of each categorical column; goes into the model's ``Manifest``, as does ``unknown_ids``."""
    unknown_ids: ByKey[Name, Rate] = {}


class Exported(Message, frozen=True):
    node: Name
    rows: Count
    bytes: Bytes


class ExportFailed(Message, frozen=True):
    """The model couldn't be written; nothing of it is there. The worker asks for work again, and may be told to write it once more."""

    node: Name
    message: Text
    hint: Text
    disk_is_full: bool


class Finished(Message, frozen=True):
    """The job needs nothing more of this worker."""


class NodeFailed(Message, frozen=True):
    """A node can't go on; ``user_error`` when the person's own code or data is at fault."""

    node: Name
    user_error: bool
    message: Text
    traceback: Text = ""
    because: Literal["", "lost", "damaged"] = ""
    """What else could help: ``lost``, a PS has found nothing of the parameters it was to take up; ``damaged``, it can't restore the cut it
    was ordered to."""


class Heartbeat(Message, frozen=True):
    """A worker is alive, whatever it is busy with."""

    node: Name
    doing: Text = ""
    """What the worker is doing, in words: ``minibatch 17 of epoch 0``."""
    seconds: Seconds = 0.0
    """Seconds for which the worker has been doing that."""
    exported_rows: Count = 0
    """Number of embedding rows that it has written so far while it exports the model."""


class SnapshotReport(Message, frozen=True):
    """How far a PS is with its part of a cut."""

    cut: Count
    state: Literal["taking", "written", "failed"]
    """State of the PS's part of the cut. ``taking``: its snapshot has begun: nothing that is pushed from now on is in it."""
    rows: Count = 0
    """Number of rows written so far."""
    bytes: Bytes = 0
    part: Blob = b""
    """When ``written``: the ``PartEntry`` of the manifest, as JSON."""
    why: Text = ""
    """Reason when ``failed``; this PS does nothing more for the cut."""
    hint: Text = ""
    layout: Blob = b""
    """When ``written``: what the PS keeps, a ``checkpoint.manifest.Layout`` as JSON. It is the same for every PS."""


class RestoreReport(Message, frozen=True):
    """How far a PS is with the cut that it restores, or was when it was done."""

    generation: Count
    """Number of the restore: see RestoreOrder."""
    rows: Count
    """Number of rows taken so far from the cut and those it builds on."""
    total_rows: Count
    """About how many rows are to be taken in all."""
    bytes: Bytes
    """Bytes of memory that these rows have."""
    total_bytes: Bytes
    seconds: Seconds
    """Seconds that the restore has taken so far, or took in all."""


class TableCount(Message, frozen=True):
    """Rows of an embedding table, as one PS has it."""

    name: Name
    dim: Count
    rows: Count


class PeerTransfers(Message, frozen=True):
    """What has gone over TCP between a PS and all processes at an address, since the PS started."""

    peer: Name
    """IP address."""
    sent_bytes: Bytes
    received_bytes: Bytes
    bytes_per_second: Rate = 0.0
    """The fastest rate of the last seconds at which the peer has acknowledged what was sent."""


class PsCounters(Message, frozen=True):
    """Counters for the profile of the job. They count since the PS started."""

    busy_seconds: Seconds
    """Wall seconds in which the PS answered pulls and pushes."""
    queue_seconds: Seconds
    """Seconds that pulls and pushes waited before they were answered, summed over requests."""
    requests: Count
    """Number of pulls and pushes answered."""
    row_bytes: Bytes
    """Bytes of memory that rows of embeddings and their index take, free rows included."""
    tables: Items[TableCount] = []
    transfers: Items[PeerTransfers] = []
    """Transfers by peer, where the PS listens at a TCP address."""


class ReadySlots(Message, frozen=True):
    """Slots of a move that its target has all of: the source has frozen them, and the master may commit them. They name what is meant:
    once committed they are no longer the move's, so that a report that comes late, or twice, changes nothing."""

    move: Count
    slots: SlotBits
    """The slots, as 512 bytes: ``slot_sets.pack``."""
    rows: Count = 0
    bytes: Bytes = 0
    """Bytes of memory that these rows take."""


class PsReport(Message, frozen=True):
    """What a PS holds and how far it has got, several times a second. Answer PsOrders."""

    node: Name
    rows: Count
    """Number of embedding rows in the slots that the PS owns."""
    bytes: Bytes
    """Bytes of memory that rows and index take, free rows included."""
    pushes: Count
    version: Count = 0
    """Version of the newest orders that the PS follows; 0: none yet."""
    tidy: bool = True
    """The PS holds no row of a slot that it neither owns nor receives, and all others without a gap."""
    ready: Items[ReadySlots] = []
    """Slots that are not its own yet, and of which it, the target of a move, holds all there is."""
    received: ByKey[Count, Count] = {}
    """Number of rows received so far, by move, without those of ``ready`` slots."""
    slowed: Rate = 0.0
    """Share of the time for which the PS holds back pushes for slots that leave it."""
    loads: Blob = b""
    """Loads of the slots it owns, sent now and then: four float32 [4096] one after the other: requests/s, rows/s and busy seconds/s of the
    last seconds, and bytes of its rows."""
    requests_per_second: Rate = 0.0
    """Pulls and pushes per second that the PS has answered, over the same seconds as ``loads``, with which it is sent."""
    snapshot: SnapshotReport | None = None
    """How far the PS is with the newest cut that it was ordered to take part in."""
    restored: Count = 0
    """The generation whose cut the PS holds: see RestoreOrder."""
    counters: PsCounters | None = None
    """Counters for the profile, sent twice a second."""
    restoring: RestoreReport | None = None
    """How far the PS is with the cut that it was ordered to restore; None: it hasn't begun, or need not."""
    gives_back: bool = False
    """The PS gives back memory that it no longer needs, a little at a time."""


class SnapshotOrder(Message, frozen=True):
    """Take part in cut ``cut``: all that was pushed before the PS follows this order goes into its part, and nothing of later pushes.

    Numbers of cuts rise; a PS begins the snapshot of each once. While one is taken, no slot moves, and no row is removed or moved within
    memory. An order that is no longer listed has ended: what isn't written by then is abandoned.
    """

    cut: Count
    job: Name
    url: Url
    """URL of the checkpoint store: ``CheckpointStore(url).join(cut)`` writes the part."""
    since: Items[Count] = []
    """The epoch of each table group at the cut that this one builds on: rows changed later are written. Empty: all rows."""
    whole: SlotBits = b""
    """Slots of which all rows are written all the same, as they were elsewhere at the cut before (512 bytes)."""
    compress: bool = False
    spill_bytes: Bytes = 0
    """The most bytes of memory that may be used for rows that change before they are written; at most a quarter of what the rows take (but
    16 MiB) in any case. 0: only the latter limit."""
    seconds: Seconds = 0.0
    """Seconds that the part may take beside training; it takes no more of the processor than it has to for that. 0: no longer than need be,
    which may be told later."""


class TrainingSettings(Message, frozen=True):
    """Seed and optimizers of a recipe; ``counted`` as in ``Configure``."""

    seed: IdBits
    optimizer: Optimizer
    embedding_optimizer: Optimizer
    counted: bool = False


class RestoreOrder(Message, frozen=True):
    """Take the rows and applied minibatches of the slots owned from checkpoint ``cut`` at ``url`` (a ``CheckpointStore``) before anything
    else is answered, and say so with ``restored``. Done once for each generation; where it is interrupted, it is done again from its
    beginning."""

    url: Url
    cut: Count
    generation: Count
    """Number of the restore, from 1; each restore has a new one."""
    applied_minibatches: bool = True
    """Restore the applied minibatches too. False: only the rows; what had been applied where is forgotten, and the job
    goes through its data from the beginning."""
    training: TrainingSettings | None = None
    """What the job trains with; None: what the cut was trained with. Optimizer state that doesn't fit it begins anew, and so do counts of
    updates that the cut doesn't have."""


class MoveOrder(Message, frozen=True):
    """A move of slots under way, as both its PS are told: the target asks the source for the rows, some slots at a time."""

    move: Count
    source: Name
    source_endpoint: Url
    target: Name
    slots: SlotBits
    """The slots that are still the source's, as 512 bytes: ``slot_sets.pack``."""
    at_once: bool = False
    """The source is to freeze the slots before the first row is copied: it is slow, and what it would still train on meanwhile is less than
    what that would cost."""
    coldest_first: bool = False
    """Move the slots first that keep the source the least busy, as the source is to be emptied. False: those that keep it the most busy."""


class PsOrders(Message, frozen=True):
    """What a PS is to do from now on, all of it. A PS ignores orders older than those it has: ``version`` rises with each change of
    the map and of the moves, and is the map's version too.

    Slots of a move are committed when they are the target's. A move no longer listed has ended: those of its slots that are still the
    source's stay there.
    """

    version: Count
    """Version of the map and the moves; 0: no map yet."""
    owned: SlotBits = b""
    """The slots that the PS owns, as 512 bytes: ``slot_sets.pack``."""
    moves: Items[MoveOrder] = []
    """Moves under way with this PS as source or target."""
    consumed_below: Count = 0
    """Number of the epoch below which all minibatches are consumed (or quarantined): their pushes change nothing any more."""
    consumed: Items[tuple[Count, Items[tuple[Count, Count]]]] = []
    """Consumed minibatches of the later epochs: (epoch, half-open ranges of minibatches)."""
    snapshot: SnapshotOrder | None = None
    """The snapshot to take. It doesn't wait for a new ``version``, nor does it need one."""
    restore: RestoreOrder | None = None
    """The restore to do, until all PS have followed it. It comes with the map, from the first version on."""


MasterRequests = (
    Hello
    | TopologyRequest
    | IndexRequest
    | LeaseRequest
    | Heartbeat
    | Exported
    | ExportFailed
    | NodeFailed
    | PsReport
    | OperatorRequests
)
MasterReplies = Ack | Welcome | Topology | IndexPiece | PsOrders | Lease | Wait | Export | Finished | OperatorReplies
