"""What people ask a master, and what they are told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from dlrover_lite.expected_end import ExpectedEnd
from dlrover_lite.wire.message import Message

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
    "HotSlot",
    "KillRequest",
    "MoveRequest",
    "MoveStatus",
    "NextLook",
    "NodeStatus",
    "PsSlots",
    "ResizeRequest",
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
    reason: str = "stopped by request"
    now: bool = False
    """Without a last checkpoint."""


class CheckpointRequest(Message, frozen=True):
    """Take a checkpoint. Answer CheckpointPromise, or Failure with the reason."""


class CheckpointPromise(Message, frozen=True):
    """The checkpoint with this number, or the next one that is complete, will hold everything acknowledged so far."""

    number: int


class ScaleRequest(Message, frozen=True):
    """Have so many nodes of a role from now on; None leaves a role as it is. Answer Scaled, or Failure with the reason."""

    workers: int | None = None
    ps: int | None = None


class MoveRequest(Message, frozen=True):
    """Move these slots (512 bytes: ``slots.pack``) to the PS ``target``, wherever they are now. Answer Scaled, or Failure."""

    slots: bytes
    target: str


class CancelMovesRequest(Message, frozen=True):
    """Cancel the moves that are not committed yet, and what they were for. Answer Scaled, or Failure."""


class DrainRequest(Message, frozen=True):
    """Move everything off a PS and end it; with ``replace``, to a new one that is started first. Answer Scaled, or Failure."""

    node: str
    replace: bool = False


class KillRequest(Message, frozen=True):
    """End a node at once; another one takes its place. Answer Scaled, or Failure."""

    node: str


class ResizeRequest(Message, frozen=True):
    """Change the limits of one node that runs; None leaves cores or bytes of memory as they are. Answer Scaled, or Failure."""

    node: str
    cores: float | None = None
    memory: int | None = None


class Scaled(Message, frozen=True):
    """What follows from it, in words: ``worker-3 is started``; empty: there are that many already."""

    actions: list[str] = []


class AutoscaleRequest(Message, frozen=True):
    """Answer AutoscaleStatus, or Failure with the reason."""

    what: Literal["status", "pause", "resume", "accept", "reject"] = "status"
    decision: int | None = None
    """Accept or reject this one only; None: whichever there is."""


class AutoscaleStatus(Message, frozen=True):
    mode: Literal["off", "suggest", "on"]
    paused: str = ""
    """Why; empty: it isn't."""
    decision: int | None = None
    """That is under way, or waits to be accepted."""
    what: str = ""
    """The same in words."""
    under_way: bool = False


class SlotsRequest(Message, frozen=True):
    """What is measured of parameter servers and their slots. Answer SlotsReport."""

    hottest: int = 10
    """How many slots at most."""


class StoryRequest(Message, frozen=True):
    """What has happened to ``subject``: a node's id, or minibatches as ``EPOCH/K`` or ``EPOCH/FIRST-LAST``; "" is everything kept.
    Answer Story, or Failure for a subject that never was."""

    subject: str = ""


class StoryEntry(Message, frozen=True):
    at: float
    """Seconds since the epoch."""
    subject: str
    """A node's id, or minibatches as ``EPOCH/FIRST-LAST``, evaluation as ``eval ROUND/FIRST-LAST``."""
    text: str
    node: str = ""
    """For minibatches: the worker it happened with."""


class Story(Message, frozen=True):
    entries: list[StoryEntry] = []
    """The oldest first."""
    forgotten: int = 0
    """Older entries that are no longer kept."""


class NodeStatus(Message, frozen=True):
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
    wanted_cores: float | None = None
    wanted_memory: int | None = None
    """While it is to be resized: what it is to have; ``cores`` and ``memory`` are what it has."""
    waits_for: str = ""
    """Why it hasn't been resized yet, in words."""


class ShardsStatus(Message, frozen=True):
    """Minibatches of training, over all epochs."""

    done: int
    leased: int
    """To workers, which are at them or about to be."""
    left: int
    """Neither done nor leased."""
    quarantined: int = 0
    """Failed twice, and left out."""
    workers: dict[str, int] = {}
    """Leased, by worker."""


class MoveStatus(Message, frozen=True):
    id: int
    source: str
    target: str
    slots: int
    state: Literal["queued", "copying", "committed", "cancelled"]
    """``committed`` and ``cancelled``: until both PS have tidied up."""
    rows: int = 0
    """Received so far."""


class PsSlots(Message, frozen=True):
    """A parameter server's slots. What is measured is of the last seconds, and None before there are measurements."""

    node: str
    slots: int
    bytes: int | None = None
    """Of the rows in them."""
    requests_per_second: float | None = None
    """Pulls and pushes."""
    rows_per_second: float | None = None
    """Looked up and updated."""
    busy: float | None = None
    """Seconds/s: how much of one core the work on rows takes."""
    measured_seconds_ago: float | None = None


class HotSlot(Message, frozen=True):
    slot: int
    node: str
    """Its owner."""
    requests_per_second: float
    """Pulls and pushes with at least one row in this slot."""
    rows_per_second: float
    busy: float
    """Seconds/s."""
    bytes: int


class SlotsReport(Message, frozen=True):
    slot_map_version: int
    """0: there is no map yet, and nothing else to tell."""
    servers: list[PsSlots] = []
    """All that run, the oldest first."""
    hottest: list[HotSlot] = []
    """Of the slots that were asked for in the last seconds: those that keep a PS busy the longest, in that order."""
    moves: list[MoveStatus] = []
    """Those that are not over."""


class EvaluationResult(Message, frozen=True):
    at_samples: int
    samples: int
    loss: float
    auc: float | None


class CheckpointStatus(Message, frozen=True):
    """The newest that is complete."""

    number: int
    at: float
    """When it was taken: seconds since the epoch."""
    samples: int
    """Consumed by then."""
    rows: int
    """Written, as are the bytes: of an increment, those that have changed."""
    bytes: int
    seconds: float
    """From its beginning until it was durable."""
    stall_seconds: float | None = None
    """The longest step of a worker meanwhile, over its usual one; None: not known (yet)."""
    usual_stall_seconds: float | None = None
    """The same of as much time before it, without a checkpoint."""


class CheckpointStall(Message, frozen=True):
    """What a checkpoint took. Fields as of ``CheckpointStatus``."""

    number: int
    seconds: float
    stall_seconds: float
    usual_stall_seconds: float | None = None


class CheckpointUnderWay(Message, frozen=True):
    number: int
    state: Literal["opening", "waiting", "taking", "committing"]
    """``waiting``: for slots on their way, or parameter servers that aren't ready; ``taking``: they write."""
    rows: int = 0
    """Written so far."""
    bytes: int = 0


class CheckpointProblem(Message, frozen=True):
    """Why a checkpoint came to nothing. It is over when there is a newer one that is complete."""

    number: int
    at: float
    why: str
    hint: str = ""
    failures: int = 0
    """So many in a row couldn't be written; 0: it was given up for another reason, and is tried again at once or in a few seconds."""


class CheckpointsStatus(Message, frozen=True):
    newest: CheckpointStatus | None = None
    under_way: CheckpointUnderWay | None = None
    problem: CheckpointProblem | None = None
    """The last one."""
    stalls: list[CheckpointStall] = []
    """Of the last ones, the oldest first."""


class NextLook(Message, frozen=True):
    """When the brain is asked next whether something is to be done about a job."""

    at: float | None = None
    """Seconds since the epoch: about then; None: not for now."""
    why: str = ""
    """Why not; or what it waits for until then, where that is something special."""


class Status(Message, frozen=True):
    job: str
    state: Literal[
        "starting", "queued", "training", "evaluating", "exporting", "succeeded", "failed", "stopped", "lost"
    ]
    """``queued``: it has no nodes, and waits for a plan. ``lost`` comes from no master: the job's keeper was killed, and the master with
    it."""
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
    generation: int = 0
    """How often it has begun with a checkpoint."""
    begun: str = ""
    """With which one the last time, in words: "went back to checkpoint 12 (…): 3,000 minibatches are done again"."""
    master_restarts: int = 0
    moves: list[MoveStatus] = []
    """Of slots, those under way and those to come."""
    slot_map_version: int = 0
    slots_settled: bool = True
    """No slot moves or is going to: nothing is left of what was wanted of the parameter servers."""
    checkpoints: CheckpointsStatus | None = None
    """None: there are none to be taken."""
    plan: str = ""
    """With which plan it began, or went on last, and why, in words; empty: it has none yet."""
    shards: ShardsStatus | None = None
    """None: it has begun with nothing yet."""
    next_look: NextLook | None = None
    """None: it is over, or nobody says."""
    expected_end: ExpectedEnd | None = None
    """When it will have gone through its samples; None: it has, or nothing is known to go by."""


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
    return Status(**plain)
