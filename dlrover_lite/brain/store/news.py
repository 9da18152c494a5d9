"""What a look at the config database tells, as data. Times are seconds since the epoch."""

from __future__ import annotations

import msgspec

from dlrover_lite.protocol.outcomes import JobOutcome
from dlrover_lite.protocol.plans import Plan

__all__ = ["Chosen", "DecisionNews", "JobNews", "NodeNews", "PlanNews", "RateNews", "WatchedJob", "WatchedJobs"]


class JobNews(msgspec.Struct, frozen=True):
    """A job that is new, or of which something has changed."""

    id: str
    name: str
    owner: str
    model: str
    state: str
    created_at: float
    started_at: float | None
    ended_at: float | None
    samples: int
    message: str
    directory: str
    outcome: JobOutcome = JobOutcome()


class RateNews(msgspec.Struct, frozen=True):
    """An interval that was measured."""

    job: str
    at: float
    """Time at which the interval ended."""
    seconds: float
    samples_per_second: float


class PlanNews(msgspec.Struct, frozen=True):
    """The plan that a job was given from then on."""

    job: str
    at: float
    plan: Plan


class DecisionNews(msgspec.Struct, frozen=True):
    """A decision as a list has it."""

    job: str
    number: int
    at: float
    action: str
    reason: str


class NodeNews(msgspec.Struct, frozen=True):
    """Something that happened to a node: launched, up, resized or ended."""

    at: float
    node: str
    event: str
    reason: str
    follows: str = ""
    """The node in whose place this one was launched."""


class Chosen(msgspec.Struct, frozen=True):
    """A decision as it is shown in full, without the plans that it was chosen from."""

    number: int
    at: float
    stage: str
    action: str
    reason: str
    before: str
    """The plan until then, in words; empty: none."""
    choice: str
    grows: bool
    """The choice takes more cores than before."""
    predicted: float | None
    """Predicted samples/s."""
    lower: float | None
    upper: float | None
    gain_seconds: float | None
    """Seconds saved against staying."""
    measured: float | None
    """Measured samples/s, once the decision has taken effect."""
    error: float | None
    """Measured over predicted, less 1."""
    done: str = ""
    """What became of the decision: done, given up, rejected, superseded; empty: nothing is known yet."""
    why: str = ""


class WatchedJobs(msgspec.Struct, frozen=True):
    """What is new of all jobs. After ``anew`` nothing that was told before holds."""

    anew: bool = False
    jobs: tuple[JobNews, ...] = ()
    gone: tuple[str, ...] = ()
    rates: tuple[RateNews, ...] = ()
    plans: tuple[PlanNews, ...] = ()
    decisions: tuple[DecisionNews, ...] = ()

    @property
    def empty(self) -> bool:
        return not (self.anew or self.jobs or self.gone or self.rates or self.plans or self.decisions)


class WatchedJob(msgspec.Struct, frozen=True):
    """What is new of one job."""

    anew: bool = False
    jobs: tuple[JobNews, ...] = ()
    """The job, if it has changed."""
    rates: tuple[RateNews, ...] = ()
    plans: tuple[PlanNews, ...] = ()
    decisions: tuple[Chosen, ...] = ()
    """New decisions, and those of which more is known; by number."""
    nodes: tuple[NodeNews, ...] = ()

    @property
    def empty(self) -> bool:
        return not (self.anew or self.jobs or self.rates or self.plans or self.decisions or self.nodes)
