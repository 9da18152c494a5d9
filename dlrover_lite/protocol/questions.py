"""What people ask a master, and what they are told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

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

__all__ = [
    "AutoscaleRequest",
    "AutoscaleStatus",
    "CancelMovesRequest",
    "CheckpointProblem",
    "CheckpointPromise",
    "CheckpointRequest",
    "CheckpointStall",
    "CheckpointStatus",
    "CheckpointUnderWay",
    "CheckpointsStatus",
    "DrainRequest",
    "EvaluationResult",
    "ExportStatus",
    "HotSlot",
    "KillRequest",
    "MoveRequest",
    "MoveStatus",
    "NextLook",
    "NodeStatus",
    "PsSlots",
    "ResizeRequest",
    "RestoreStatus",
    "ScaleRequest",
    "Scaled",
    "ShardsStatus",
    "SlotsReport",
    "SlotsRequest",
    "Status",
    "StatusRequest",
    "StopRequest",
    "Story",
    "StoryEntry",
    "StoryRequest",
    "status_of",
]


class StatusRequest(Message, frozen=True):
    pass


class StopRequest(Message, frozen=True):
    reason: Text = "stopped by request"
    now: bool = False
    """Without a last checkpoint."""


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
    """Move these slots (512 bytes: ``slots.pack``) to the PS ``target``, wherever they are now. Answer Scaled, or Failure."""

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
    """What follows from it, in words: ``worker-3 is started``; empty: there are that many already."""

    actions: Items[Text] = []


class AutoscaleRequest(Message, frozen=True):
    """Answer AutoscaleStatus, or Failure with the reason."""

    what: Literal["status", "pause", "resume", "accept", "reject"] = "status"
    decision: Count | None = None
    """Accept or reject this one only; None: whichever there is."""


class AutoscaleStatus(Message, frozen=True):
    mode: Literal["off", "suggest", "on"]
    paused: Text = ""
    """Why; empty: it isn't."""
    decision: Count | None = None
    """That is under way, or waits to be accepted."""
    what: Text = ""
    """The same in words."""
    under_way: bool = False


class SlotsRequest(Message, frozen=True):
    """What is measured of parameter servers and their slots. Answer SlotsReport."""

    hottest: Count = 10
    """How many slots at most."""


class StoryRequest(Message, frozen=True):
    """What has happened to ``subject``: a node's id, or minibatches as ``EPOCH/K`` or ``EPOCH/FIRST-LAST``; "" is everything kept.
    Answer Story, or Failure for a subject that never was."""

    subject: Name = ""


class StoryEntry(Message, frozen=True):
    at: Timestamp
    """Seconds since the epoch."""
    subject: Name
    """A node's id, or minibatches as ``EPOCH/FIRST-LAST``, evaluation as ``eval ROUND/FIRST-LAST``."""
    text: Text
    node: Name = ""
    """For minibatches: the worker it happened with."""


class Story(Message, frozen=True):
    entries: Items[StoryEntry] = []
    """The oldest first."""
    forgotten: Count = 0
    """Older entries that are no longer kept."""


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
    peak_memory: Bytes = 0
    slots: Count | None = None
    """How many a PS owns; None for others."""
    wanted_cores: Cores | None = None
    wanted_memory: Bytes | None = None
    """While it is to be resized: what it is to have; ``cores`` and ``memory`` are what it has."""
    waits_for: Text = ""
    """Why it hasn't been resized yet, in words."""


class ShardsStatus(Message, frozen=True):
    """Minibatches of training, over all epochs."""

    done: Count
    leased: Count
    """To workers, which are at them or about to be."""
    left: Count
    """Neither done nor leased."""
    quarantined: Count = 0
    """Failed twice, and left out."""
    workers: ByKey[Name, Count] = {}
    """Leased, by worker."""


class MoveStatus(Message, frozen=True):
    id: Count
    source: Name
    target: Name
    slots: Count
    """That it is of, those that have moved already included."""
    state: Literal["queued", "copying", "committed", "cancelled"]
    """``committed`` and ``cancelled``: until both PS have tidied up."""
    rows: Count = 0
    """Received so far."""
    moved_slots: Count = 0
    """Those that are the target's."""
    bytes: Bytes = 0
    """Memory of the rows in all its slots, about."""
    moved_bytes: Bytes = 0
    """Of those in slots that have moved."""
    bytes_per_second: Rate | None = None
    """Measured; None: nothing has moved yet."""
    seconds_left: Seconds | None = None
    """Until the rest has moved at that rate. None: not known, or nothing is to move any more."""
    slowed: Rate = 0.0
    """Share of the time for which the source holds back pushes to slots that are copied."""

    @property
    def left(self) -> int:
        """Slots that are still to be moved."""
        return self.slots - self.moved_slots if self.state in ("queued", "copying") else 0


class PsSlots(Message, frozen=True):
    """A parameter server's slots. What is measured is of the last seconds, and None before there are measurements."""

    node: Name
    slots: Count
    bytes: Bytes | None = None
    """Of the rows in them."""
    requests_per_second: Rate | None = None
    """Pulls and pushes."""
    rows_per_second: Rate | None = None
    """Looked up and updated."""
    busy: Rate | None = None
    """Seconds/s: how much of one core the work on rows takes."""
    measured_seconds_ago: Seconds | None = None


class HotSlot(Message, frozen=True):
    slot: Count
    node: Name
    """Its owner."""
    requests_per_second: Rate
    """Pulls and pushes with at least one row in this slot."""
    rows_per_second: Rate
    busy: Rate
    """Seconds/s."""
    bytes: Bytes


class SlotsReport(Message, frozen=True):
    slot_map_version: Count
    """0: there is no map yet, and nothing else to tell."""
    servers: Items[PsSlots] = []
    """All that run, the oldest first."""
    hottest: Items[HotSlot] = []
    """Of the slots that were asked for in the last seconds: those that keep a PS busy the longest, in that order."""
    moves: Items[MoveStatus] = []
    """Those that are not over."""


class EvaluationResult(Message, frozen=True):
    at_samples: Count
    samples: Count
    loss: Number | None
    """Mean log loss; None: it isn't finite."""
    auc: Number | None
    unknown_ids: ByKey[Name, Number] = {}
    """By categorical column: share of the ids that had never been trained."""
    unusual_ids: ByKey[Name, Number | None] = {}
    """Of the columns where that is far above what was seen before: what was seen before; None: that isn't known."""


class CheckpointStatus(Message, frozen=True):
    """The newest that is complete."""

    number: Count
    at: Timestamp
    """When it was taken: seconds since the epoch."""
    samples: Count
    """Consumed by then."""
    rows: Count
    """Written, as are the bytes: of an increment, those that have changed."""
    bytes: Bytes
    seconds: Seconds
    """From its beginning until it was durable."""
    stall_seconds: Seconds | None = None
    """The longest step of a worker meanwhile, over its usual one; None: not known (yet)."""
    usual_stall_seconds: Seconds | None = None
    """The same of as much time before it, without a checkpoint."""


class CheckpointStall(Message, frozen=True):
    """What a checkpoint took. Fields as of ``CheckpointStatus``."""

    number: Count
    seconds: Seconds
    stall_seconds: Seconds
    usual_stall_seconds: Seconds | None = None


class CheckpointUnderWay(Message, frozen=True):
    number: Count
    state: Literal["opening", "waiting", "taking", "committing"]
    """``waiting``: for slots on their way, or parameter servers that aren't ready; ``taking``: they write."""
    rows: Count = 0
    """Written so far."""
    bytes: Bytes = 0


class CheckpointProblem(Message, frozen=True):
    """Why a checkpoint came to nothing. It is over when there is a newer one that is complete."""

    number: Count
    at: Timestamp
    why: Text
    hint: Text = ""
    failures: Count = 0
    """So many in a row couldn't be written; 0: it was given up for another reason, and is tried again at once or in a few seconds."""
    too_slow: bool = False
    """It is complete, but took longer than the time from one to the next."""


class CheckpointsStatus(Message, frozen=True):
    newest: CheckpointStatus | None = None
    under_way: CheckpointUnderWay | None = None
    problem: CheckpointProblem | None = None
    """The last one."""
    stalls: Items[CheckpointStall] = []
    """Of the last ones, the oldest first."""


class RestoreStatus(Message, frozen=True):
    """How far the parameter servers are with a checkpoint that they restore."""

    checkpoint: Count
    since: Timestamp | None
    """None: none of them has begun."""
    rows: Count
    """Taken so far, by all of them."""
    total_rows: Count
    """Of the checkpoint and those it builds on, about."""
    bytes: Bytes
    """Of memory, that these rows have."""
    total_bytes: Bytes
    rows_per_second: Rate | None = None
    """All of them, since they began; None: not known yet."""
    bytes_per_second: Rate | None = None
    seconds_left: Seconds | None = None
    """Until the last of them is through, at its rate; None: not known."""

    @property
    def text(self) -> str:
        """``34%, 12.2 M of 36.0 M rows, 1.2 GiB of 3.4 GiB, 210 MiB/s, 0:12 left``; empty before there is anything to say."""
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
    """Of embeddings, written so far."""
    total_rows: Count
    rows_per_second: Rate | None = None
    seconds_left: Seconds | None = None
    """Until all rows are written, at this rate; None: not known, or they are, and the files are being finished."""

    @property
    def text(self) -> str:
        """``34%, 12.2 M of 36.0 M rows, 3.1 M rows/s, 0:08 left``; empty before there is anything to say."""
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
    """Seconds since the epoch: about then; None: not for now."""
    why: Text = ""
    """Why not; or what it waits for until then, where that is something special."""


class Status(Message, frozen=True):
    job: Name
    state: Literal[
        "starting", "queued", "training", "evaluating", "exporting", "succeeded", "failed", "stopped", "lost"
    ]
    """``queued``: it has no nodes, and waits for a plan. ``lost`` comes from no master: the job's keeper was killed, and the master with
    it."""
    epoch: Count
    epochs: Count
    samples: Count
    """Samples consumed over all epochs, and the number to consume in the whole job."""
    total_samples: Count
    samples_per_second: Rate
    loss: Number | None
    auc: Number | None
    """Of the recent training samples, predicted before the update."""
    elapsed_seconds: Seconds
    nodes: Items[NodeStatus]
    evaluations: Items[EvaluationResult]
    bad_lines: Count
    quarantined: Count
    staleness_p99: Count | None
    staleness_max: Count | None
    rows: Count
    message: Text = ""
    """Why the job failed or was stopped, or what it waits for."""
    bad_examples: Items[Text] = []
    """Of the bad lines: ``file:line: why``, at most a few."""
    enforcement: Text = ""
    """How limits are enforced: ``cgroup v1``."""
    not_enforced: Items[Text] = []
    generation: Count = 0
    """How often it has begun with a checkpoint."""
    begun: Text = ""
    """With which one the last time, in words: "went back to checkpoint 12 (…): 3,000 minibatches are done again"."""
    master_restarts: Count = 0
    moves: Items[MoveStatus] = []
    """Of slots, those under way and those to come."""
    slot_map_version: Count = 0
    slots_settled: bool = True
    """No slot moves or is going to: nothing is left of what was wanted of the parameter servers."""
    checkpoints: CheckpointsStatus | None = None
    """None: there are none to be taken."""
    plan: Text = ""
    """With which plan it began, or went on last, and why, in words; empty: it has none yet."""
    shards: ShardsStatus | None = None
    """None: it has begun with nothing yet."""
    next_look: NextLook | None = None
    """None: it is over, or nobody says."""
    waits: Text = ""
    """Why nothing goes on for now, in words: the disk is full, or the model can't be exported; empty: something does."""
    expected_end: ExpectedEnd | None = None
    """When it will have gone through its samples; None: it has, or nothing is known to go by."""
    restoring: RestoreStatus | None = None
    """None: no checkpoint is being restored."""
    exporting: ExportStatus | None = None
    """None: the model isn't being written."""


def status_of(fields: Mapping[str, Any]) -> Status:
    """What ``to_builtins`` has made plain, as a message again; what isn't known is passed over."""
    plain = {name: value for name, value in fields.items() if name in Status.__struct_fields__}
    plain["nodes"] = [NodeStatus(**node) for node in plain["nodes"]]
    plain["moves"] = [MoveStatus(**move) for move in plain["moves"]]
    plain["evaluations"] = [EvaluationResult(**evaluation) for evaluation in plain["evaluations"]]
    if (known := plain["checkpoints"]) is not None:
        newest, under_way, problem = known["newest"], known["under_way"], known["problem"]
        plain["checkpoints"] = CheckpointsStatus(
            newest and CheckpointStatus(**newest),
            under_way and CheckpointUnderWay(**under_way),
            problem and CheckpointProblem(**problem),
            [CheckpointStall(**stall) for stall in known.get("stalls", ())],
        )
    if (shards := plain.get("shards")) is not None:
        plain["shards"] = ShardsStatus(**shards)
    if (look := plain.get("next_look")) is not None:
        plain["next_look"] = NextLook(**look)
    if (end := plain.get("expected_end")) is not None:
        plain["expected_end"] = ExpectedEnd(**end)
    if (restoring := plain.get("restoring")) is not None:
        plain["restoring"] = RestoreStatus(**restoring)
    if (exporting := plain.get("exporting")) is not None:
        plain["exporting"] = ExportStatus(**exporting)
    return Status(**plain)
