"""Every message of the job's processes: what they ask a master or a parameter server, and the answers.

Tensor frames follow the header in the order given in each docstring. All arrays are little-endian and contiguous.
"""

from __future__ import annotations

import builtins
from typing import Any, Literal

import msgspec

from dlrover_lite.recipe.schema import Optimizer, Recipe

__all__ = [
    "Ack",
    "CancelMovesRequest",
    "Configure",
    "Copied",
    "CopyBegin",
    "CopyNext",
    "Copying",
    "DenseSpec",
    "DrainRequest",
    "EvaluationResult",
    "Export",
    "Exported",
    "Finished",
    "Heartbeat",
    "Hello",
    "Lease",
    "LeaseRequest",
    "MasterReplies",
    "MasterRequests",
    "MoveOrder",
    "MoveRequest",
    "MoveStatus",
    "Moved",
    "NodeFailed",
    "NodeStatus",
    "NotNow",
    "PsOrders",
    "PsReplies",
    "PsReport",
    "PsRequests",
    "Pull",
    "Pulled",
    "Push",
    "Pushed",
    "Rows",
    "ScaleRequest",
    "Scaled",
    "Scan",
    "Status",
    "StatusRequest",
    "StopRequest",
    "Story",
    "StoryEntry",
    "StoryRequest",
    "TableSpec",
    "Topology",
    "TopologyRequest",
    "Wait",
    "Welcome",
    "WorkReport",
]


class _Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    pass


class Ack(_Message, frozen=True):
    pass


# --- master ---------------------------------------------------------------------------------------------------------


class Hello(_Message, frozen=True):
    """A node is up. A PS names the endpoint it serves."""

    node: str
    role: Literal["ps", "worker"]
    endpoint: str = ""


class Welcome(_Message, frozen=True):
    job: str
    recipe: Recipe


class TopologyRequest(_Message, frozen=True):
    node: str


class Topology(_Message, frozen=True):
    """The slot map: those PS that own slots, ids with their endpoints, and 4,096 uint16 as bytes: the position in ``ps`` of each
    slot's owner. ``version`` 0: not all parameter servers are up yet. It rises with every change."""

    version: int
    ps: list[tuple[str, str]] = []
    slots: bytes = b""


class WorkReport(_Message, frozen=True):
    """What a worker has done since its last report."""

    samples: int = 0
    minibatches: int = 0
    bad_lines: int = 0
    bad_examples: list[str] = []
    """``file:line: why``, at most a few."""
    metrics: bytes = b""
    """``Metrics.to_bytes()`` of these samples' predictions before the update (train) or of the evaluation shard."""
    staleness: dict[int, int] = {}
    """Pushes of other workers between a pull and its push -> number of minibatches."""
    seconds: dict[str, float] = {}
    """Wall seconds by phase: read, wait, compute, push."""
    samples_per_second: float = 0.0


class LeaseRequest(_Message, frozen=True):
    """Reports on lease ``token`` and, with ``want``, asks for the next one. A report without ``want`` is answered by Ack or Finished."""

    node: str
    token: int | None = None
    consumed: list[tuple[int, int]] = []
    """Half-open ranges of minibatch numbers that every PS they touched has acknowledged."""
    failed: int | None = None
    """Minibatch that raised; ``error`` holds the traceback."""
    error: str = ""
    give_back: bool = False
    want: bool = True
    report: WorkReport | None = None
    holding: list[int] = []
    """Tokens of all leases this worker knows of: what it doesn't was granted in an answer that got lost."""


class Lease(_Message, frozen=True):
    """Minibatches [start, stop) of a pass: ``kind`` train (``index`` = epoch) or eval (``index`` = evaluation round)."""

    token: int
    kind: Literal["train", "eval"]
    index: int
    start: int
    stop: int


class Wait(_Message, frozen=True):
    """Nothing to lease right now: all that is left is leased to others."""

    seconds: float


class Export(_Message, frozen=True):
    """All training and evaluation is done: write the model to ``destination``, then send Exported."""

    destination: str
    format: Literal["npz", "parquet"]


class Exported(_Message, frozen=True):
    node: str
    rows: int
    bytes: int


class Finished(_Message, frozen=True):
    """The job needs nothing more of this worker."""


class NodeFailed(_Message, frozen=True):
    """A node can't go on; ``user_error`` when the person's own code or data is at fault."""

    node: str
    user_error: bool
    message: str
    traceback: str = ""


class Heartbeat(_Message, frozen=True):
    """A worker is alive, whatever it is busy with."""

    node: str
    doing: str = ""
    """In words: ``minibatch 17 of epoch 0``."""
    seconds: float = 0.0
    """For so long already."""


class PsReport(_Message, frozen=True):
    """What a PS holds and how far it has got, several times a second. Answer PsOrders."""

    node: str
    rows: int
    """Of the slots it owns."""
    bytes: int
    """Memory that rows and index take, free rows included."""
    pushes: int
    version: int = 0
    """Of the newest orders it follows; 0: none yet."""
    tidy: bool = True
    """It holds no row of a slot that it neither owns nor receives, and has given free memory back."""
    ready: list[int] = []
    """Moves of which it, the target, holds all there is: the source is frozen, and the master may commit them."""
    received: dict[int, int] = {}
    """Rows received so far, by move."""
    loads: builtins.bytes = b""
    """Now and then: four float32 [4096] one after the other, for the slots it owns: requests/s, rows/s and busy seconds/s of the last
    seconds, and bytes of its rows."""


class MoveOrder(_Message, frozen=True):
    """A move of slots under way, as both its PS are told: the target asks the source for the rows."""

    move: int
    source: str
    source_endpoint: str
    target: str
    slots: bytes
    """512 bytes: ``slots.pack``."""


class PsOrders(_Message, frozen=True):
    """What a PS is to do from now on, all of it. A PS ignores orders older than those it has: ``version`` rises with each change of
    the map and of the moves, and is the map's version too.

    A move no longer listed has ended: committed if its slots are now the target's, else cancelled.
    """

    version: int
    """0: no map yet."""
    owned: bytes = b""
    """512 bytes: ``slots.pack``."""
    moves: list[MoveOrder] = []
    """Under way, with this PS as source or target."""
    consumed_below: int = 0
    """All minibatches of the epochs below this one are consumed (or quarantined): their pushes change nothing any more."""
    consumed: list[tuple[int, list[tuple[int, int]]]] = []
    """Of later epochs: (epoch, half-open ranges of minibatches)."""


class StatusRequest(_Message, frozen=True):
    pass


class StopRequest(_Message, frozen=True):
    reason: str = "stopped by request"


class ScaleRequest(_Message, frozen=True):
    """Have so many nodes of a role from now on; None leaves a role as it is. Answer Scaled, or Failure with the reason."""

    workers: int | None = None
    ps: int | None = None


class MoveRequest(_Message, frozen=True):
    """Move these slots (512 bytes: ``slots.pack``) to the PS ``target``, wherever they are now. Answer Scaled, or Failure."""

    slots: bytes
    target: str


class CancelMovesRequest(_Message, frozen=True):
    """Cancel the moves that are not committed yet, and what they were for. Answer Scaled, or Failure."""


class DrainRequest(_Message, frozen=True):
    """Move everything off a PS and end it; with ``replace``, to a new one that is started first. Answer Scaled, or Failure."""

    node: str
    replace: bool = False


class Scaled(_Message, frozen=True):
    """What follows from it, in words: ``worker-3 is started``; empty: there are that many already."""

    actions: list[str] = []


class StoryRequest(_Message, frozen=True):
    """What has happened to ``subject``: a node's id, or minibatches as ``EPOCH/K`` or ``EPOCH/FIRST-LAST``; "" is everything kept.
    Answer Story, or Failure for a subject that never was."""

    subject: str = ""


class StoryEntry(_Message, frozen=True):
    at: float
    """Seconds since the epoch."""
    subject: str
    """A node's id, or minibatches as ``EPOCH/FIRST-LAST``, evaluation as ``eval ROUND/FIRST-LAST``."""
    text: str
    node: str = ""
    """For minibatches: the worker it happened with."""


class Story(_Message, frozen=True):
    entries: list[StoryEntry] = []
    """The oldest first."""
    forgotten: int = 0
    """Older entries that are no longer kept."""


class NodeStatus(_Message, frozen=True):
    id: str
    role: str
    state: str
    cores: float
    memory: int
    samples_per_second: float = 0.0
    cpu_seconds: float = 0.0
    used_memory: int = 0
    throttled_seconds: float = 0.0
    peak_memory: int = 0
    slots: int | None = None
    """How many a PS owns; None for others."""


class MoveStatus(_Message, frozen=True):
    id: int
    source: str
    target: str
    slots: int
    state: Literal["queued", "copying", "committed", "cancelled"]
    """``committed`` and ``cancelled``: until both PS have tidied up."""
    rows: int = 0
    """Received so far."""


class EvaluationResult(_Message, frozen=True):
    at_samples: int
    samples: int
    loss: float
    auc: float | None


class Status(_Message, frozen=True):
    job: str
    state: Literal["starting", "training", "evaluating", "exporting", "succeeded", "failed", "stopped", "lost"]
    """``lost`` comes from no master: the job's keeper was killed, and the master with it."""
    epoch: int
    epochs: int
    samples: int
    """Samples consumed over all epochs, and the number to consume in the whole job."""
    total_samples: int
    samples_per_second: float
    loss: float | None
    auc: float | None
    """Of the recent training samples, predicted before the update."""
    elapsed_seconds: float
    nodes: list[NodeStatus]
    evaluations: list[EvaluationResult]
    bad_lines: int
    quarantined: int
    staleness_p99: int | None
    staleness_max: int | None
    rows: int
    message: str = ""
    """Why the job failed or was stopped, or what it waits for."""
    bad_examples: list[str] = []
    """Of the bad lines: ``file:line: why``, at most a few."""
    enforcement: str = ""
    """How limits are enforced: ``cgroup v1``."""
    not_enforced: list[str] = []
    master_restarts: int = 0
    moves: list[MoveStatus] = []
    """Of slots, those under way and those to come."""
    slot_map_version: int = 0


MasterRequests = (
    Hello
    | TopologyRequest
    | LeaseRequest
    | Heartbeat
    | Exported
    | NodeFailed
    | PsReport
    | StatusRequest
    | StopRequest
    | ScaleRequest
    | MoveRequest
    | CancelMovesRequest
    | DrainRequest
    | StoryRequest
)
MasterReplies = Ack | Welcome | Topology | PsOrders | Lease | Wait | Export | Finished | Status | Scaled | Story


# --- parameter server -----------------------------------------------------------------------------------------------


class TableSpec(_Message, frozen=True):
    """An embedding table; tables of the same dim form a group, in the order listed."""

    name: str
    dim: int
    init_scale: float


class DenseSpec(_Message, frozen=True):
    """The dense vector in blocks of 4,096 float32, all of them: parameters first, then buffers, which a push is subtracted from as it is,
    without the optimizer. Each kind is padded to whole blocks; a block lives in the slot of its number (``ps.layout``)."""

    parameter_blocks: int
    buffer_blocks: int


class Configure(_Message, frozen=True):
    """Sent by each worker before its first pull: what this PS is to keep. Later ones must agree. Dense blocks that are there already stay
    as they are, the others get the values given. Frames: the slots that are meant (``slots.pack``); then for each dense group that
    has blocks uint64 numbers of its blocks in those slots, and float32 values [blocks, 4096]. Answer Ack, or Moved."""

    seed: int
    tables: list[TableSpec]
    dense: DenseSpec
    optimizer: Optimizer
    embedding_optimizer: Optimizer


class Pull(_Message, frozen=True):
    """Rows. Groups are those of ``ps.layout.groups_of``: tables of equal dim together, then dense parameters, then buffers, if there are any;
    groups at the end may be left out. ``counts[g][t]``: number of keys of the t-th table of group g. Frames: uint64 keys of each group,
    table after table. Answer Pulled, with float32 rows [keys, dim] of each group as frames, or Moved."""

    counts: list[list[int]]


class Pulled(_Message, frozen=True):
    version: int
    """Pushes applied so far."""


class Moved(_Message, frozen=True):
    """The request touches slots that this PS doesn't own: nothing was done. Ask the master for the map and try again; at once if it is
    newer than the one that was followed, else a few milliseconds later."""

    version: int
    """Of the PS's orders."""


class Push(_Message, frozen=True):
    """Gradients of minibatch (epoch, k): summed over its samples' mean loss, no key twice within a table.
    Frames: the slots covered (``slots.pack``), those with no row in this minibatch included; then for each group of ``ps.layout.groups_of``
    uint64 keys and float32 gradients [keys, dim]. Slots for which (epoch, k) was applied before are left alone. Answer Pushed, or
    Moved if any slot covered isn't owned: then nothing was applied."""

    epoch: int
    k: int
    learning_rate_factor: float
    counts: list[list[int]]


class Pushed(_Message, frozen=True):
    """``version``: pushes applied before this one; ``applied`` False: it had been applied before in all its slots, nothing changed."""

    version: int
    applied: bool


class Scan(_Message, frozen=True):
    """Rows of a group that are in slots this PS owns, from row number ``start``; about ``limit`` rows are looked at. Answer Rows; frames:
    uint64 keys, uint16 position of the row's table within the group, float32 values [rows, dim]; with ``state`` also uint32 counts of
    updates, and float32 optimizer state [rows, dim x parts]."""

    group: int
    start: int
    limit: int
    state: bool = False


class Rows(_Message, frozen=True):
    next_start: int | None
    """None after the last row."""
    total: int
    """Row numbers in use: the end of the scan."""


class CopyBegin(_Message, frozen=True):
    """Target to source: begin, or begin anew, with a move that both have orders for. Answer Copying, or NotNow."""

    move: int


class Copying(_Message, frozen=True):
    session: int
    rows: int
    """About so many are to come."""
    configuration: Configure | None
    """None: no worker has configured the source yet."""


class CopyNext(_Message, frozen=True):
    """More rows. With ``freeze`` the source takes no more pushes for these slots until the master has spoken. Answer Copied, or NotNow for
    a session that is no more."""

    session: int
    freeze: bool = False


class Copied(_Message, frozen=True):
    """Some rows of one group. Frames: uint64 keys, uint16 tables, uint32 counts of updates, uint32 ages (pushes since the last change),
    float32 values and float32 optimizer state; when ``complete``, only one: the marks, as msgpack."""

    group: int
    rows: int
    round: int
    """1: all rows there are; later ones: those changed since the one before began."""
    left: int
    """Rows changed so far and not sent since."""
    complete: bool = False
    """The source is frozen and this was the last: the target holds all there is."""
    configuration: Configure | None = None
    """If it has changed since ``Copying``."""


class NotNow(_Message, frozen=True):
    """Ask again in a moment; for a session, begin anew."""


PsRequests = Configure | Pull | Push | Scan | CopyBegin | CopyNext
PsReplies = Ack | Pulled | Pushed | Moved | Rows | Copying | Copied | NotNow


def to_builtins(message: msgspec.Struct) -> Any:
    """A message as plain dicts with field names, for ``--json`` (on the wire they are arrays)."""
    return {name: _plain(getattr(message, name)) for name in message.__struct_fields__}


def _plain(value: Any) -> Any:
    if isinstance(value, msgspec.Struct):
        return to_builtins(value)
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value
