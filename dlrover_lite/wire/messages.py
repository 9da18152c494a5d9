"""Every message of the job's processes: what they ask a master or a parameter server, and the answers.

Tensor frames follow the header in the order given in each docstring. All arrays are little-endian and contiguous.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from dlrover_lite.recipe.schema import Optimizer, Recipe

__all__ = [
    "Ack",
    "Configure",
    "DenseSpec",
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
    "NodeFailed",
    "NodeStatus",
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
    """The slot map: PS ids with their endpoints, and 4,096 uint16 as bytes: the position in ``ps`` of each slot's owner.
    ``version`` 0: not all parameter servers are up yet."""

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
    """What a PS holds, now and then."""

    node: str
    rows: int
    bytes: int
    """Of embedding rows and their index."""
    pushes: int


class StatusRequest(_Message, frozen=True):
    pass


class StopRequest(_Message, frozen=True):
    reason: str = "stopped by request"


class ScaleRequest(_Message, frozen=True):
    """Have so many nodes of a role from now on; None leaves a role as it is. Answer Scaled, or Failure with the reason."""

    workers: int | None = None
    ps: int | None = None


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
    | StoryRequest
)
MasterReplies = Ack | Welcome | Topology | Lease | Wait | Export | Finished | Status | Scaled | Story


# --- parameter server -----------------------------------------------------------------------------------------------


class TableSpec(_Message, frozen=True):
    """An embedding table; tables of the same dim form a group, in the order listed."""

    name: str
    dim: int
    init_scale: float


class DenseSpec(_Message, frozen=True):
    """This PS's share of the dense vector: ``length`` float32. From ``averaged_from`` on they are buffers, not parameters: a push
    is subtracted from them as it is, without the optimizer."""

    length: int
    averaged_from: int


class Configure(_Message, frozen=True):
    """Sent by each worker before its first pull; the first one configures, later ones must agree. Frame: dense float32 [length]."""

    seed: int
    tables: list[TableSpec]
    dense: DenseSpec
    optimizer: Optimizer
    embedding_optimizer: Optimizer


class Pull(_Message, frozen=True):
    """``counts[g][t]``: number of keys of the t-th table of group g. Frames: uint64 ids of each group, table after table.
    Answer Pulled; frames: dense float32 (if ``dense``), then float32 rows [keys, dim] of each group."""

    counts: list[list[int]]
    dense: bool


class Pulled(_Message, frozen=True):
    version: int
    """Pushes applied so far."""


class Push(_Message, frozen=True):
    """Gradients of minibatch (epoch, k): summed over its samples' mean loss, no id twice within a table.
    Frames: dense float32 gradient, then for each group uint64 ids and float32 gradients [keys, dim]."""

    epoch: int
    k: int
    learning_rate_factor: float
    counts: list[list[int]]


class Pushed(_Message, frozen=True):
    """``version``: pushes applied before this one; ``applied`` False: it had been applied before, nothing changed."""

    version: int
    applied: bool


class Scan(_Message, frozen=True):
    """Rows of a table group, from row number ``start``. Answer Rows; frames: uint64 ids, uint16 position of the row's table within
    the group, float32 values [rows, dim]."""

    group: int
    start: int
    limit: int


class Rows(_Message, frozen=True):
    next_start: int | None
    """None after the last row."""
    total: int


PsRequests = Configure | Pull | Push | Scan
PsReplies = Ack | Pulled | Pushed | Rows


def to_builtins(message: msgspec.Struct) -> Any:
    """A message as plain dicts with field names, for ``--json`` (on the wire they are arrays)."""
    return {name: _plain(getattr(message, name)) for name in message.__struct_fields__}


def _plain(value: Any) -> Any:
    if isinstance(value, msgspec.Struct):
        return to_builtins(value)
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value
