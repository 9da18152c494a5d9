"""What parameter servers are asked, by workers and by each other, and the answers. Tensor frames follow the header in the order given in
each docstring; all arrays are little-endian and contiguous."""

from __future__ import annotations

from dlrover_lite.core.bounds import (
    Bytes,
    Count,
    IdBits,
    Items,
    Name,
    Number,
    OptionalIndex,
    Pid,
    Rate,
    Seconds,
    SlotBits,
)
from dlrover_lite.protocol.messages import Ack
from dlrover_lite.recipe.schema import Optimizer
from dlrover_lite.transport.message import Message


class TableSpec(Message, frozen=True):
    """An embedding table; tables of the same dim form a group, in the order listed."""

    name: Name
    dim: Count
    init_scale: Number


class DenseSpec(Message, frozen=True):
    """The dense vector in blocks of 4,096 float32, all of them: parameters first, then buffers, which a push is subtracted from as it is,
    without the optimizer. Each kind is padded to whole blocks; a block lives in the slot of its number (``tables.layout``)."""

    parameter_blocks: Count
    buffer_blocks: Count


class Configure(Message, frozen=True):
    """Sent by each worker before its first pull: what this PS is to keep. Later ones must agree. Dense blocks that are there already stay
    as they are, the others get the values given. Frames: the slots that are meant (``slot_sets.pack``); then for each dense group that
    has blocks uint64 numbers of its blocks in those slots, and float32 values [blocks, 4096]. Answer Ack, or Moved."""

    seed: IdBits
    tables: Items[TableSpec]
    dense: DenseSpec
    optimizer: Optimizer
    embedding_optimizer: Optimizer
    counted: bool = False
    """Each row has a count of its updates, whether or not the optimizer needs it."""


class Pull(Message, frozen=True):
    """Rows. Groups are those of ``tables.layout.groups_of``: tables of equal dim together, then dense parameters, then buffers, if
    there are any; groups at the end may be left out. ``counts[g][t]``: number of keys of the t-th table of group g. Frames: uint64 keys
    of each group, table after table. Answer Pulled, with float32 rows [keys, dim] of each group as frames, or Moved. With ``unknown``, a
    frame more of each group of embeddings: uint8 [keys], 1 for a key that has no row yet, since no push has touched it."""

    counts: Items[Items[Count]]
    unknown: bool = False


class Pulled(Message, frozen=True):
    version: Count
    """Number of pushes applied so far."""
    table_rows: Items[Items[Count]] = []
    """Number of rows that this PS has of each table of each group of embeddings; only with ``unknown``."""
    map_version: Count = 0
    """Version of the PS's orders. A worker that follows an older map should ask the master for a new one before a request is refused."""


class Moved(Message, frozen=True):
    """The request touches slots that this PS doesn't own: nothing was done. Ask the master for the map and try again; at once if it is
    newer than the one that was followed, else a few milliseconds later."""

    version: Count
    """Version of the PS's orders."""


class Push(Message, frozen=True):
    """Gradients of minibatch (epoch, k): summed over its samples' mean loss, no key twice within a table.
    Frames: the slots covered (``slot_sets.pack``), those with no row in this minibatch included; then for each group of
    ``tables.layout.groups_of`` uint64 keys and float32 gradients [keys, dim]. Slots for which (epoch, k) was applied before are left
    alone. Answer Pushed, or Moved if any slot covered isn't owned: then nothing was applied."""

    epoch: Count
    k: Count
    learning_rate_factor: Rate
    counts: Items[Items[Count]]


class Pushed(Message, frozen=True):
    """The push is applied. ``version``: pushes applied before this one; ``applied`` False: it had been applied before in all its slots,
    nothing changed."""

    version: Count
    applied: bool
    map_version: Count = 0
    """Version of the PS's orders, as in ``Pulled``."""


class Scan(Message, frozen=True):
    """Rows of a group that are in slots this PS owns, from row number ``start``; about ``limit`` rows are looked at. Answer Rows, or Moved
    from a PS that doesn't know yet what it owns; frames:
    uint64 keys, uint16 position of the row's table within the group, float32 values [rows, dim]; with ``state`` also uint32 counts of
    updates, and float32 optimizer state [rows, dim x parts]."""

    group: OptionalIndex
    start: Count
    limit: Count
    state: bool = False


class Rows(Message, frozen=True):
    next_start: Count | None
    """Row number to start from next; None after the last row."""
    total: Count
    """Number of row numbers in use: the end of the scan."""


class CopyBegin(Message, frozen=True):
    """Target to source: begin, or begin anew, with a move that both have orders for. Answer Copying, or NotNow."""

    move: Count
    have: SlotBits = b""
    """Slots of which the target has all there is, from sessions before (``slot_sets.pack``). Empty: none."""


class Shared(Message, frozen=True):
    """Memory of a process that another one on the same machine may map (``ps.migration.chunk_memory``): in places, one behind the other."""

    process: Pid
    descriptor: Count
    """File descriptor of an anonymous file in that process."""
    name: Name
    """Name of the file; no other one has it."""
    places: Count
    place_bytes: Bytes


class Copying(Message, frozen=True):
    session: IdBits
    rows: Items[Count]
    """About how many rows of each group are to come."""
    configuration: Configure | None
    """What the source keeps; None: no worker has configured it yet."""
    memory: Shared | None = None
    """Memory in which the source can put rows instead of sending them, until this session ends."""


class CopyNext(Message, frozen=True):
    """More rows. Answer Copied, or NotNow for a session that is no more."""

    session: IdBits
    number: Count
    """Number of the request: 0, 1, 2, … A number that doesn't follow the last one is answered by NotNow, since a chunk may have been
    lost."""
    place: OptionalIndex = -1
    """Place where the source may put the rows: the target has done with what was there. -1: they are to be sent."""
    batch: Count = 0
    """The batch that the other fields are meant for; the source ignores them while another batch is copied."""
    freeze: bool = False
    """The source is to take no more pushes for the batch's slots until the master has spoken."""
    slowed: Rate = 0.0
    """Share of the time for which the source is to hold back pushes for the batch's slots."""
    split: bool = False
    """The source is to go on with one half of the batch's slots, as another batch; the other half comes later."""


class Copied(Message, frozen=True):
    """Some rows of one group. A frame, unless the rows are in a place: their records (uint32 [rows, words], ``dlrover_lite.core.records``);
    when ``complete``, the applied minibatches instead, as msgpack."""

    session: IdBits
    group: OptionalIndex
    """Number of the group; -1: none, there is nothing to send right now."""
    rows: Count
    round: Count
    """Round of the copying. 1: all rows that the batch has; later ones: those changed since the one before began."""
    left: Bytes
    """Bytes of the rows changed so far and not sent since."""
    complete: bool = False
    """The batch's slots are frozen and this was the last: the target holds all that is in them."""
    batch: Count = 0
    """Number of the batch of slots that are copied, within the session from 1 on; 0: none right now."""
    slots: SlotBits = b""
    """The batch's slots (``slot_sets.pack``) when ``complete``."""
    pause_seconds: Seconds = 0.0
    """Seconds that the target should wait before it asks again: the source has something to do before."""
    configuration: Configure | None = None
    """What the source keeps, if it has changed since ``Copying``."""
    seconds: Seconds = 0.0
    """Seconds that it took the source to gather the rows."""
    busy: bool = False
    """The source has been asked by workers within the last half second."""
    place: OptionalIndex = -1
    """Place where the source has put the rows, as the target said; -1: they come in frames."""
    kept_speed: Rate = 0.0
    """Throughput of the last second over that before the move; 0: not known, or told before."""


class NotNow(Message, frozen=True):
    """Ask again in a moment; for a session, begin anew."""


PsRequests = Configure | Pull | Push | Scan | CopyBegin | CopyNext
PsReplies = Ack | Pulled | Pushed | Moved | Rows | Copying | Copied | NotNow
