"""One job of the history, from its beginning to its end: all that has happened to it, with the times at which it became known."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import msgspec

from dlrover_lite.brain.store.all_jobs import news_of_row
from dlrover_lite.brain.store.decision_news import chosen
from dlrover_lite.brain.store.history import Rows
from dlrover_lite.brain.store.job_news import node_news
from dlrover_lite.brain.store.pages import decoded
from dlrover_lite.brain.store.queries import kept
from dlrover_lite.core.errors import HistoryError
from dlrover_lite.protocol.history_messages import (
    DecisionsQuestion,
    EventsQuestion,
    JobsQuestion,
    KeptDecision,
    KeptEvent,
    KeptJob,
    KeptPlan,
    KeptProfile,
    PlansQuestion,
    ProfilesQuestion,
)
from dlrover_lite.protocol.news import Chosen, JobNews, NodeNews, PlanNews
from dlrover_lite.protocol.plans import Plan

__all__ = ["Known", "Measured", "Timeline", "Used", "timeline"]


class Used(msgspec.Struct, frozen=True):
    """A node over an interval."""

    node: str
    cores: float
    minibatches: int = 0
    cpu_seconds: float = 0.0
    throttled_seconds: float = 0.0
    used_bytes: int = 0
    """Bytes of memory at the interval's end; 0: not known, as of workers."""
    peak_bytes: int = 0


class Measured(msgspec.Struct, frozen=True):
    """An interval."""

    at: float
    """Time at which the interval ended."""
    seconds: float
    samples_per_second: float
    batch_size: int = 0
    samples_so_far: int | None = None
    workers: tuple[Used, ...] = ()
    ps: tuple[Used, ...] = ()
    shared_cores: bool = False
    """The nodes share the cores that they have together, so that ``throttled_seconds`` are those of all of them."""


class Known(msgspec.Struct, frozen=True):
    """A decision as it was known from then on: first without what it brought, later with that."""

    at: float
    decision: Chosen


class Timeline(msgspec.Struct, frozen=True):
    """All that has happened to a job. Each list is in order of times."""

    job: JobNews
    """The job as it is now."""
    total_samples: int | None
    """Number of samples to train on, over all epochs."""
    measured: tuple[Measured, ...] = ()
    plans: tuple[PlanNews, ...] = ()
    decisions: tuple[Known, ...] = ()
    nodes: tuple[NodeNews, ...] = ()


class _Demand(msgspec.Struct):
    total_samples: float | None = None


class _Features(msgspec.Struct):
    demand: _Demand = msgspec.field(default_factory=_Demand)


class _Profile(msgspec.Struct):
    """The parts of a stored profile that ``Measured`` has."""

    batch_size: int = 0
    samples_so_far: int | None = None
    workers: tuple[Used, ...] = ()
    ps: tuple[Used, ...] = ()
    shared_cores: bool = False


class _At(msgspec.Struct):
    at: float


def timeline(history: Rows, job: str) -> Timeline | None:
    """Read the timeline of a job; None for one that isn't known. Raises HistoryError when it can't be read."""
    jobs = kept(history, JobsQuestion(id=job), KeptJob)
    if not jobs:
        return None
    total: float | None = None
    with suppress(HistoryError):  # of another version
        total = decoded(jobs[0].features, _Features).demand.total_samples
    return Timeline(
        news_of_row([getattr(jobs[0], name) for name in JobNews.__struct_fields__]),
        None if total is None else round(total),
        measured=tuple(_measured(history, job)),
        plans=tuple(_plans(history, job)),
        decisions=tuple(sorted(_decisions(history, job), key=lambda known: known.at)),
        nodes=tuple(
            node_news(one.at, one.node, one.event, one.reason, one.data)
            for one in kept(history, EventsQuestion(job), KeptEvent)[::-1]
        ),
    )


def _measured(history: Rows, job: str) -> Iterator[Measured]:
    for profile in kept(history, ProfilesQuestion(job), KeptProfile)[::-1]:
        one = _Profile()
        with suppress(HistoryError):  # of another version: then how fast it was is all that is known
            one = decoded(profile.data, _Profile)
        at, seconds, rate = profile.at, profile.seconds, profile.samples_per_second
        yield Measured(at, seconds, rate, one.batch_size, one.samples_so_far, one.workers, one.ps, one.shared_cores)


def _plans(history: Rows, job: str) -> Iterator[PlanNews]:
    for plan in kept(history, PlansQuestion(job, "granted"), KeptPlan)[::-1]:
        yield PlanNews(job, plan.at, decoded(plan.data, Plan))


def _decisions(history: Rows, job: str) -> Iterator[Known]:
    for one in kept(history, DecisionsQuestion(job), KeptDecision)[::-1]:
        with suppress(HistoryError):  # of another version
            made = chosen(one.number, one.data, None, None)
            yield Known(made.at, made)
            done_at = None if one.done is None else decoded(one.done, _At).at
            effect_at = None if one.effect is None else decoded(one.effect, _At).at
            for at in sorted(at for at in (done_at, effect_at) if at is not None):
                known = (
                    (one.effect if effect_at is not None and effect_at <= at else None),
                    (one.done if done_at is not None and done_at <= at else None),
                )
                yield Known(max(at, made.at), chosen(one.number, one.data, *known))
