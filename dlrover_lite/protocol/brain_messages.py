"""What masters and people tell the brain, and what they are told.

A master says hello, registers its job, and then reports every few seconds. What is reported may be repeated: the brain knows what it has.
An answer other than Failure means that all of it is in the database.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from dlrover_lite.core.bounds import ByKey, Count, Items, Name, Pid, Rate, Row, Seconds, Text, Timestamp, Url
from dlrover_lite.core.decoding import convert
from dlrover_lite.protocol.acts import Act, Cause
from dlrover_lite.protocol.demands import DecisionOutcome, Demand, Standing
from dlrover_lite.protocol.hosts import HostNodes
from dlrover_lite.protocol.outcomes import JobOutcome
from dlrover_lite.protocol.plans import Plan
from dlrover_lite.protocol.profiles import Level, Profile
from dlrover_lite.protocol.records import NodeRecord, PlanRecord
from dlrover_lite.transport.message import Message

PROTOCOL = 2
"""Version of the messages below; rises with a change that an older peer can't leave unread."""
OLDEST = 1
"""The oldest version of the messages that is understood."""

UNKNOWN_JOB, UNWRITTEN, REFUSED, NO_NEWER = "unknown job", "unwritten", "refused", "no newer"
"""``Failure.code``: register the job first; the database can't be written, so keep it and report it later; it makes no sense, so don't;
this brain hands over to newer ones only."""


class BrainHello(Message, frozen=True):
    """First of all. This, HandOver and their answers never change: versions that know nothing else of each other understand them."""

    version: Name
    protocol: Count = PROTOCOL
    oldest: Count = OLDEST


class BrainWelcome(Message, frozen=True):
    version: Name
    protocol: Count
    oldest: Count
    pid: Pid
    started_at: Timestamp


class HandOver(Message, frozen=True):
    """End once what is under way is committed: a brain of this newer version follows. Answer BrainAck, or Failure."""

    version: Name
    protocol: Count = PROTOCOL


class BrainAck(Message, frozen=True):
    pass


class RegisterJob(Message, frozen=True):
    """A job runs, and its master is going to report. Answer BrainAck, or Advice."""

    job: Name
    name: Name
    owner: Name
    model: Url
    directory: Url
    created_at: Timestamp
    started_at: Timestamp | None
    features: ByKey[Name, Any]
    """The job's ``JobFeatures`` by field names."""
    samples: Count = 0
    """Number of samples consumed so far."""
    priority: Rate = 1.0
    demand: Demand | None = None
    """What the job asks for; None: it wants no advice."""
    plan: Plan | None = None
    """The plan that the job runs with; None: it waits for one."""
    waits_since: Timestamp | None = None
    """Seconds since the epoch at which a job without a plan gave way to others; None: it hasn't run yet, and waits for its first plan."""


class Report(Message, frozen=True):
    """What has happened since the last report that was answered. Answer BrainAck, Advice, or Failure."""

    job: Name
    samples: Count
    """Number of samples consumed so far."""
    profiles: Items[Profile] = []
    events: Items[NodeRecord] = []
    plans: Items[PlanRecord] = []
    """What the job has been given (``granted``), and what it was to have (``desired``)."""
    standing: Standing | None = None
    """How the job stands now; None: it hasn't begun."""
    done: Items[DecisionOutcome] = []
    """What became of decisions."""
    levels: Items[Level] = []
    """What the PS have held since the last report; some may be missing."""


class EndJob(Message, frozen=True):
    """The job has ended, and its master is about to. Answer BrainAck, or Failure."""

    job: Name
    state: Name
    at: Timestamp
    samples: Count
    message: Text = ""
    outcome: JobOutcome = JobOutcome()


class Advice(Message, frozen=True):
    """What the brain wants to be done about the job that was registered or reported."""

    number: Count
    """Number of the decision within its job."""
    decision: ByKey[Name, Any]
    """A ``brain.planning.decision.Decision``, by field names: ``understood`` makes of it what a master needs."""


class AdvisedTreatment(msgspec.Struct, frozen=True):
    """What is to be done about a node."""

    node: Name
    cause: Cause
    act: Act


class AdvisedDecision(msgspec.Struct, frozen=True):
    """A decision of the brain, as far as a master carries it out."""

    action: Name
    """As ``brain.planning.decision`` has them. One that a master doesn't know is left alone."""
    reason: Text = ""
    plan: Plan | None = None
    placement: Row[HostNodes] = ()
    """Number of nodes of the plan on each host; empty: wherever there is room."""
    predicted: ByKey[Name, Any] | None = None
    treatment: AdvisedTreatment | None = None


def understood(advice: Advice) -> AdvisedDecision:
    """Read a decision. Raises msgspec.ValidationError for what makes no sense to this version, such as an act that it doesn't know."""
    return convert(advice.decision, AdvisedDecision)


class BrainStatusRequest(Message, frozen=True):
    pass


class BrainJob(Message, frozen=True):
    """A job that is registered."""

    job: Name
    samples: Count
    silent_seconds: Seconds
    """Seconds since the last message of the job's master."""


class BrainStatus(Message, frozen=True):
    version: Name
    pid: Pid
    started_at: Timestamp
    embedded: bool
    database: Url
    jobs: Items[BrainJob]
    idle_exit_seconds: Seconds | None
    """Seconds until the brain ends because it has no jobs; None while there are any, and for a brain that stays."""
    problem: Text = ""
    """Why what is reported can't be written, or empty."""
    hint: Text = ""
    malformed: Count = 0
    """Number of messages that couldn't be understood."""


class StopBrain(Message, frozen=True):
    """End once what is under way is committed. Answer BrainAck."""


BrainRequests = BrainHello | HandOver | RegisterJob | Report | EndJob | BrainStatusRequest | StopBrain
BrainReplies = BrainWelcome | BrainAck | Advice | BrainStatus


def understand_each_other(protocol: int, oldest: int) -> bool:
    """Say whether a peer that speaks ``protocol``, and understands ``oldest`` and later, can be talked to."""
    return protocol >= OLDEST and oldest <= PROTOCOL


def is_newer(one: tuple[str, int], other: tuple[str, int]) -> bool:
    """Say whether version ``one`` is newer than ``other``, each with its protocol: compare protocols, then the numbers in the versions."""
    return (one[1], _numbers(one[0])) > (other[1], _numbers(other[0]))


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))
