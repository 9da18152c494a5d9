"""What people ask a master, and what they are told."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Literal

import msgspec
from msgspec import inspect as mi

from dlrover_lite.core.bounds import (
    ByKey,
    Bytes,
    Cores,
    Count,
    Items,
    Name,
    Number,
    Rate,
    Seconds,
    SlotBits,
    Text,
    Timestamp,
)
from dlrover_lite.core.expected_end import ExpectedEnd
from dlrover_lite.core.progress import amount_text, percent, rate_text
from dlrover_lite.transport.message import Message


class StatusRequest(Message, frozen=True):
    pass


class StopRequest(Message, frozen=True):
    reason: Text = "stopped by request"
    now: bool = False
    """Stop at once, without a last checkpoint."""


class CheckpointRequest(Message, frozen=True):
    """Take a checkpoint. Answer CheckpointPromise, or Failure with the reason."""


class CheckpointPromise(Message, frozen=True):
    """The checkpoint with this number, or the next one that is complete, will hold everything acknowledged so far."""

    number: Count


class ScaleRequest(Message, frozen=True):
    """Have so many nodes of a role from now on; None leaves a role as it is. Answer Scaled, or Failure with the reason."""

    workers: Count | None = None
    ps: Count | None = None


class MoveRequest(Message, frozen=True):
    """Move these slots (512 bytes: ``slot_sets.pack``) to the PS ``target``, wherever they are now. Answer Scaled, or Failure."""

    slots: SlotBits
    target: Name


class CancelMovesRequest(Message, frozen=True):
    """Cancel the moves that are not committed yet, and what they were for. Answer Scaled, or Failure."""


class DrainRequest(Message, frozen=True):
    """Move everything off a PS and end it; with ``replace``, to a new one that is started first. Answer Scaled, or Failure."""

    node: Name
    replace: bool = False


class KillRequest(Message, frozen=True):
    """End a node at once; another one takes its place. Answer Scaled, or Failure."""

    node: Name


class ResizeRequest(Message, frozen=True):
    """Change the limits of one node that runs; None leaves cores or bytes of memory as they are. Answer Scaled, or Failure."""

    node: Name
    cores: Cores | None = None
    memory: Bytes | None = None


class Scaled(Message, frozen=True):
    """What follows from the request, in words: ``worker-3 is started``; empty: there are that many already."""

    actions: Items[Text] = []


class AutoscaleRequest(Message, frozen=True):
    """Ask for the state of autoscaling, or change it. Answer AutoscaleStatus, or Failure with the reason."""

    what: Literal["status", "pause", "resume", "accept", "reject"] = "status"
    decision: Count | None = None
    """Number of the only decision to accept or reject; None: whichever there is."""


class AutoscaleStatus(Message, frozen=True):
    mode: Literal["off", "suggest", "on"]
    paused: Text = ""
    """Why autoscaling is paused; empty: it isn't."""
    decision: Count | None = None
    """Number of the decision that is under way, or waits to be accepted; None: there is none."""
    what: Text = ""
    """The same decision in words."""
    under_way: bool = False


class SlotsRequest(Message, frozen=True):
    """What is measured of parameter servers and their slots. Answer SlotsReport."""

    hottest: Count = 10
    """The most slots that are listed as the hottest."""


class StoryRequest(Message, frozen=True):
    """What has happened to ``subject``: a node's id, or minibatches as ``EPOCH/K`` or ``EPOCH/FIRST-LAST``; "" is everything kept.
    Answer Story, or Failure for a subject that never was."""

    subject: Name = ""


About = Literal["", "decision", "checkpoint"]
"""What the master says something about, beside nodes and minibatches; "": anything else."""


class StoryEntry(Message, frozen=True):
    at: Timestamp
    """Seconds since the epoch."""
    subject: Name
    """A node's id, or minibatches as ``EPOCH/FIRST-LAST``, evaluation as ``eval ROUND/FIRST-LAST``."""
    text: Text
    node: Name = ""
    """The worker it happened with, for minibatches."""
    about: About = ""
    """What an entry of the master is about."""


class Story(Message, frozen=True):
    entries: Items[StoryEntry] = []
    """What happened, the oldest first."""
    forgotten: Count = 0
    """Number of older entries that are no longer kept."""


class NodeStatus(Message, frozen=True):
    id: Name
    role: Name
    state: Text
    cores: Cores
    memory: Bytes
    samples_per_second: Rate = 0.0
    cpu_seconds: Seconds = 0.0
    used_memory: Bytes = 0
    throttled_seconds: Seconds = 0.0
    """As of ``nodes.Usage``."""
    peak_memory: Bytes = 0
    slots: Count | None = None
    """Number of slots that a PS owns; None for others."""
    wanted_cores: Cores | None = None
    wanted_memory: Bytes | None = None
    """Cores that a node to be resized is to have, beside ``wanted_memory``; ``cores`` and ``memory`` are what it has. None: no resize
    waits."""
    waits_for: Text = ""
    """Why the node hasn't been resized yet, in words."""
    host: Name = ""
    """Host that the node runs on; empty: it isn't known."""


class ShardsStatus(Message, frozen=True):
    """Minibatches of training, over all epochs."""

    done: Count
    leased: Count
    """Number of minibatches leased to workers, which are at them or about to be."""
    left: Count
    """Number of minibatches neither done nor leased."""
    quarantined: Count = 0
    """Number of minibatches that failed twice, and are left out."""
    workers: ByKey[Name, Count] = {}
    """Number of leased minibatches by worker."""


class MoveStatus(Message, frozen=True):
    id: Count
    source: Name
    target: Name
    slots: Count
    """Number of slots in the move, those that have moved already included."""
    state: Literal["queued", "copying", "committed", "cancelled"]
    """State of the move; ``committed`` and ``cancelled`` last until both PS have tidied up."""
    rows: Count = 0
    """Number of rows received so far."""
    moved_slots: Count = 0
    """Number of slots that are the target's already."""
    bytes: Bytes = 0
    """About how many bytes of memory the rows in all its slots take."""
    moved_bytes: Bytes = 0
    """Bytes of memory of the rows in slots that have moved."""
    bytes_per_second: Rate | None = None
    """Measured speed of the move; None: nothing has moved yet."""
    seconds_left: Seconds | None = None
    """Seconds until the rest has moved at that rate. None: not known, or nothing is to move any more."""
    slowed: Rate = 0.0
    """Share of the time for which the source holds back pushes to slots that are copied."""

    @property
    def left(self) -> int:
        """Number of slots that are still to be moved."""
        return self.slots - self.moved_slots if self.state in ("queued", "copying") else 0


class PsSlots(Message, frozen=True):
    """A parameter server's slots. What is measured is of the last seconds, and None before there are measurements."""

    node: Name
    slots: Count
    bytes: Bytes | None = None
    """Bytes of memory of the rows in the slots."""
    requests_per_second: Rate | None = None
    """Pulls and pushes per second."""
    rows_per_second: Rate | None = None
    """Rows looked up and updated per second."""
    busy: Rate | None = None
    """Busy seconds per second: how much of one core the work on rows takes."""
    measured_seconds_ago: Seconds | None = None


class HotSlot(Message, frozen=True):
    slot: Count
    node: Name
    """The PS that owns the slot."""
    requests_per_second: Rate
    """Pulls and pushes per second with at least one row in this slot."""
    rows_per_second: Rate
    busy: Rate
    """Busy seconds per second."""
    bytes: Bytes


class SlotsReport(Message, frozen=True):
    slot_map_version: Count
    """Version of the slot map; 0: there is no map yet, and nothing else to tell."""
    servers: Items[PsSlots] = []
    """All parameter servers that run, the oldest first."""
    hottest: Items[HotSlot] = []
    """The slots that keep a PS busy the longest, among those that were asked for in the last seconds, in that order."""
    moves: Items[MoveStatus] = []
    """The moves that are not over."""


class EvaluationResult(Message, frozen=True):
    at_samples: Count
    samples: Count
    loss: Number | None
    """Mean log loss; None: it isn't finite."""
    auc: Number | None
    unknown_ids: ByKey[Name, Number] = {}
    """Categorical column -> share of the ids that had never been trained."""
    unusual_ids: ByKey[Name, Number | None] = {}
    """Columns where that share is far above what was seen before -> the share seen before; None: not known."""


class CheckpointStatus(Message, frozen=True):
    """The newest checkpoint that is complete."""

    number: Count
    at: Timestamp
    """Seconds since the epoch when the checkpoint was taken."""
    samples: Count
    """Number of samples consumed by then."""
    rows: Count
    """Number of rows written. An increment writes only those that have changed; the same holds for the bytes."""
    bytes: Bytes
    seconds: Seconds
    """Seconds from the checkpoint's beginning until it was durable."""
    stall_seconds: Seconds | None = None
    """Seconds by which the longest step of a worker meanwhile exceeded its usual one; None: not known (yet)."""
    usual_stall_seconds: Seconds | None = None
    """The same over as much time before the checkpoint, without one."""


class CheckpointStall(Message, frozen=True):
    """What a checkpoint took. Fields as of ``CheckpointStatus``."""

    number: Count
    seconds: Seconds
    stall_seconds: Seconds
    usual_stall_seconds: Seconds | None = None


class CheckpointUnderWay(Message, frozen=True):
    number: Count
    state: Literal["opening", "waiting", "taking", "committing"]
    """State of the checkpoint. ``waiting``: for slots on their way, or parameter servers that aren't ready; ``taking``: they write."""
    rows: Count = 0
    """Number of rows written so far."""
    bytes: Bytes = 0


class CheckpointProblem(Message, frozen=True):
    """Why a checkpoint came to nothing. It is over when there is a newer one that is complete."""

    number: Count
    at: Timestamp
    why: Text
    hint: Text = ""
    failures: Count = 0
    """Number of checkpoints in a row that couldn't be written; 0: it was given up for another reason, and is tried again at once or in a
    few seconds."""
    too_slow: bool = False
    """The checkpoint is complete, but took longer than the time from one to the next."""


class CheckpointsStatus(Message, frozen=True):
    newest: CheckpointStatus | None = None
    under_way: CheckpointUnderWay | None = None
    problem: CheckpointProblem | None = None
    """The last problem."""
    stalls: Items[CheckpointStall] = []
    """What the last checkpoints took, the oldest first."""


class RestoreStatus(Message, frozen=True):
    """How far the parameter servers are with a checkpoint that they restore."""

    checkpoint: Count
    since: Timestamp | None
    """Seconds since the epoch when the first of them began; None: none of them has begun."""
    rows: Count
    """Number of rows taken so far, by all of them."""
    total_rows: Count
    """About how many rows the checkpoint and those it builds on have."""
    bytes: Bytes
    """Bytes of memory that these rows have."""
    total_bytes: Bytes
    rows_per_second: Rate | None = None
    """Rate of all of them together since they began; None: not known yet."""
    bytes_per_second: Rate | None = None
    seconds_left: Seconds | None = None
    """Seconds until the last of them is through, at its rate; None: not known."""

    @property
    def text(self) -> str:
        """The progress in words: ``34%, 12.2 M of 36.0 M rows, 1.2 GiB of 3.4 GiB, 210 MiB/s, 0:12 left``; empty before there is any."""
        if not self.total_rows:
            return ""
        parts = [
            percent(self.rows, self.total_rows),
            amount_text(self.rows, self.total_rows, "rows"),
            amount_text(self.bytes, self.total_bytes, "bytes"),
            rate_text(self.bytes_per_second, "bytes", self.seconds_left),
        ]
        return ", ".join(part for part in parts if part)


class ExportStatus(Message, frozen=True):
    """How far the worker is that writes the model."""

    since: Timestamp
    rows: Count
    """Number of embedding rows written so far."""
    total_rows: Count
    rows_per_second: Rate | None = None
    seconds_left: Seconds | None = None
    """Seconds until all rows are written, at this rate; None: not known, or they are, and the files are being finished."""

    @property
    def text(self) -> str:
        """The progress in words: ``34%, 12.2 M of 36.0 M rows, 3.1 M rows/s, 0:08 left``; empty before there is any."""
        if not self.total_rows:
            return ""
        is_through = self.rows >= self.total_rows
        parts = [
            percent(self.rows, self.total_rows),
            amount_text(self.rows, self.total_rows, "rows"),
            "its files are finished" if is_through else rate_text(self.rows_per_second, "rows", self.seconds_left),
        ]
        return ", ".join(part for part in parts if part)


class NextLook(Message, frozen=True):
    """When the brain is asked next whether something is to be done about a job."""

    at: Timestamp | None = None
    """About when the brain is asked, in seconds since the epoch; None: not for now."""
    why: Text = ""
    """Why the brain isn't asked; or what it waits for until then, where that is something special."""


class Status(Message, frozen=True):
    job: Name
    state: Literal[
        "starting",
        "queued",
        "training",
        "evaluating",
        "exporting",
        "succeeded",
        "failed",
        "stopped",
        "suspended",
        "lost",
    ]
    """State of the job. ``queued``: it has no nodes, and waits for a plan. ``lost`` comes from no master: the job's keeper was killed, and
    the master with it."""
    epoch: Count = 0
    epochs: Count = 0
    samples: Count = 0
    """Number of samples consumed over all epochs; ``total_samples`` is the number to consume in the whole job."""
    total_samples: Count = 0
    samples_per_second: Rate = 0.0
    loss: Number | None = None
    auc: Number | None = None
    """AUC of the recent training samples, predicted before the update."""
    elapsed_seconds: Seconds = 0.0
    nodes: Items[NodeStatus] = []
    evaluations: Items[EvaluationResult] = []
    bad_lines: Count = 0
    quarantined: Count = 0
    staleness_p99: Count | None = None
    staleness_max: Count | None = None
    rows: Count = 0
    message: Text = ""
    """Why the job failed or was stopped, or what it waits for."""
    bad_examples: Items[Text] = []
    """Examples of the bad lines, a few at most: ``file:line: why``."""
    enforcement: Text = ""
    """How limits are enforced: ``cgroup v1``."""
    not_enforced: Items[Text] = []
    generation: Count = 0
    """How often the job has begun with a checkpoint."""
    begun: Text = ""
    """The checkpoint that it began with the last time, in words: "went back to checkpoint 12 (…): 3,000 minibatches are done again"."""
    master_restarts: Count = 0
    moves: Items[MoveStatus] = []
    """Moves of slots, those under way and those to come."""
    slot_map_version: Count = 0
    slots_settled: bool = True
    """No slot moves or is going to: nothing is left of what was wanted of the parameter servers."""
    checkpoints: CheckpointsStatus | None = None
    """Checkpoints of the job; None: there are none to be taken."""
    plan: Text = ""
    """The plan that the job began with, or went on with last, and why, in words; empty: it has none yet."""
    shards: ShardsStatus | None = None
    """State of the minibatches; None: the job has begun with nothing yet."""
    next_look: NextLook | None = None
    """When the brain is asked next; None: the job is over, or nobody says."""
    waits: Text = ""
    """Why nothing goes on for now, in words: the disk is full, or the model can't be exported; empty: something does."""
    expected_end: ExpectedEnd | None = None
    """When the job will have gone through its samples; None: it has, or nothing is known to go by."""
    restoring: RestoreStatus | None = None
    """Progress of a restore; None: no checkpoint is being restored."""
    exporting: ExportStatus | None = None
    """Progress of the export; None: the model isn't being written."""
    shared_cores: bool = False
    """The job's nodes share the cores that they have together."""

    def throttled_share(self, node: NodeStatus) -> float | None:
        """Return the share of the time that a node was ready to run in which its CPU limit held it back; None where nothing can be said.

        Nodes that share their cores are stopped together, and it isn't known which of them were ready to run: then it is the share for all
        those that haven't ended, since the oldest of them started.
        """
        nodes = [one for one in self.nodes if not one.state.startswith("ended")] if self.shared_cores else [node]
        if node not in nodes:
            return None
        throttled = max(one.throttled_seconds for one in nodes)
        ready = throttled + sum(one.cpu_seconds for one in nodes)
        return throttled / ready if ready else None


Wish = ScaleRequest | MoveRequest | CancelMovesRequest | DrainRequest | KillRequest | ResizeRequest
"""What is to be changed about nodes or slots."""
OperatorRequests = (
    Wish | StatusRequest | StopRequest | SlotsRequest | StoryRequest | CheckpointRequest | AutoscaleRequest
)
OperatorReplies = Status | Scaled | SlotsReport | Story | CheckpointPromise | AutoscaleStatus


def to_builtins(message: msgspec.Struct) -> Any:
    """Turn a message into plain dicts with field names, for ``--json`` (on the wire messages are arrays)."""
    return {name: _plain(getattr(message, name)) for name in message.__struct_fields__}


def _plain(value: Any) -> Any:
    if isinstance(value, msgspec.Struct):
        return to_builtins(value)
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value


def status_of(fields: Mapping[str, Any]) -> Status:
    """Turn what ``to_builtins`` has made plain into a message again, of whatever version: what isn't known here is left out, and what is
    missing has its default."""
    status: Status = _message(_status_type(), fields)
    return status


@cache
def _status_type() -> mi.Type:
    return mi.type_info(Status)


def _message(kind: mi.Type, value: Any) -> Any:
    """Return a value of this type, with messages in place of their fields by name."""
    match kind:
        case mi.UnionType() if value is not None:  # a type, or None
            return _message(next(one for one in kind.types if not isinstance(one, mi.NoneType)), value)
        case mi.ListType():
            return [_message(kind.item_type, item) for item in value]
        case mi.StructType():
            known = {field.name: field.type for field in kind.fields if field.name in value}
            return kind.cls(**{name: _message(one, value[name]) for name, one in known.items()})
    return value
