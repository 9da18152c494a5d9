"""What is new of jobs since somebody asked last, as data. Times are seconds since the epoch."""

from __future__ import annotations

import msgspec

from dlrover_lite.core.bounds import Bytes, Cores, Count, Name, Number, Rate, Row, Seconds, Text, Timestamp, Url
from dlrover_lite.protocol.outcomes import JobOutcome
from dlrover_lite.protocol.plans import Plan


class JobNews(msgspec.Struct, frozen=True):
    """A job that is new, or of which something has changed."""

    id: Name
    name: Name
    owner: Name
    model: Url
    state: Name
    created_at: Timestamp
    started_at: Timestamp | None
    ended_at: Timestamp | None
    samples: Count
    message: Text
    directory: Url
    source: Name = ""
    """Cluster that the job runs in, by the name that lists of jobs have for it; empty: its brain is the one that tells."""
    outcome: JobOutcome = JobOutcome()


class RateNews(msgspec.Struct, frozen=True):
    """An interval that was measured."""

    job: Name
    at: Timestamp
    """Time at which the interval ended."""
    seconds: Seconds
    samples_per_second: Rate


class PlanNews(msgspec.Struct, frozen=True):
    """The plan that a job was given from then on."""

    job: Name
    at: Timestamp
    plan: Plan


class NodeNews(msgspec.Struct, frozen=True):
    """Something that happened to a node: launched, up, resized or ended."""

    at: Timestamp
    node: Name
    event: Name
    reason: Text = ""
    role: Name = ""
    cores: Cores | None = None
    """Number of cores that the node was given; None, as for its memory: it isn't about that."""
    memory: Bytes | None = None
    follows: Name = ""
    """The node in whose place this one was launched."""


class Chosen(msgspec.Struct, frozen=True):
    """A decision as it is shown in full, without the plans that it was chosen from."""

    number: Count
    at: Timestamp
    stage: Name
    action: Name
    reason: Text
    before: Text
    """The plan until then, in words; empty: none."""
    choice: Text
    grows: bool
    """The choice takes more cores than before."""
    predicted: Number | None
    """Predicted samples/s."""
    lower: Number | None
    upper: Number | None
    gain_seconds: Number | None
    """Seconds saved against staying."""
    measured: Number | None
    """Measured samples/s, once the decision has taken effect."""
    error: Number | None
    """Measured over predicted, less 1."""
    done: Name = ""
    """What became of the decision: done, given up, rejected, superseded; empty: nothing is known yet."""
    why: Text = ""
    cause: Text = ""
    """What it follows from, in a few words: workers were the limit; empty: the reason says it."""
    difference: Text = ""
    """What is changed, in a few words: +2 workers; empty: nothing, or it isn't known, in recordings of earlier versions."""
    rate_before: Number | None = None
    """Samples/s with the plan until then, as far as was known."""


class DecisionNews(msgspec.Struct, frozen=True):
    """A decision as a list has it."""

    job: Name
    number: Count
    at: Timestamp
    action: Name
    reason: Text
    changed: Chosen | None = None
    """The same in full, told again when it becomes known what it brought; None: it changes nothing about the job."""


class WatchedJobs(msgspec.Struct, frozen=True):
    """What is new of all jobs. After ``anew`` nothing that was told before holds."""

    anew: bool = False
    jobs: Row[JobNews] = ()
    gone: Row[Name] = ()
    rates: Row[RateNews] = ()
    plans: Row[PlanNews] = ()
    decisions: Row[DecisionNews] = ()

    @property
    def empty(self) -> bool:
        return self == WatchedJobs()


class WatchedJob(msgspec.Struct, frozen=True):
    """What is new of one job."""

    anew: bool = False
    jobs: Row[JobNews] = ()
    """The job, if it has changed."""
    rates: Row[RateNews] = ()
    plans: Row[PlanNews] = ()
    decisions: Row[Chosen] = ()
    """New decisions, and those of which more is known; by number."""
    nodes: Row[NodeNews] = ()

    @property
    def empty(self) -> bool:
        return self == WatchedJob()
