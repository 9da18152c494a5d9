"""A stored decision as it is shown: what was changed, and why, in words, and what it was to bring and brought."""

from __future__ import annotations

import msgspec

from dlrover_lite.brain.store.pages import decoded
from dlrover_lite.core.units import format_bytes
from dlrover_lite.core.words import plural
from dlrover_lite.protocol.acts import Act, AddPs, Cause, MoveSlots, Replace, Resize, SmallerShards
from dlrover_lite.protocol.news import Chosen, DecisionNews
from dlrover_lite.protocol.plans import Plan

__all__ = ["CHANGING", "choice_of", "chosen", "listed"]

CHANGING = ("start", "change", "explore", "preempt", "heal")
"""Actions that change something about a job."""


class _Candidate(msgspec.Struct):
    workers: int
    servers: int
    worker_cores: float
    ps_cores: float

    @property
    def cores(self) -> float:
        return self.workers * self.worker_cores + self.servers * self.ps_cores

    def describe(self) -> str:
        return _in_words(self.workers, self.worker_cores, self.servers, self.ps_cores)


class _Treatment(msgspec.Struct):
    node: str = ""
    cause: Cause | None = None
    act: Act | None = None


class _Predicted(msgspec.Struct):
    throughput: tuple[float, float, float]
    gain: tuple[float, float, float]


class _Candidates(msgspec.Struct):
    throughput: list[float] = []
    now: int | None = None


class _Decision(msgspec.Struct):
    """The parts of a stored decision that ``Chosen`` has: the rest is skipped unread."""

    at: float
    action: str
    reason: str
    cause: str = ""
    stage: str = "scale"
    before: _Candidate | None = None
    choice: _Candidate | None = None
    predicted: _Predicted | None = None
    candidates: _Candidates | None = None
    treatment: _Treatment | None = None


class _Effect(msgspec.Struct):
    measured: tuple[float, float, float]
    error: float


class _Done(msgspec.Struct):
    state: str
    why: str = ""


def choice_of(plan: Plan) -> str:
    """Return the words that a decision for this plan has as its ``choice``."""
    return _in_words(plan.worker.count, plan.worker.each.cores, plan.ps.count, plan.ps.each.cores)


def _in_words(workers: int, worker_cores: float, servers: int, ps_cores: float) -> str:
    return f"{workers} worker x {worker_cores:g}, {servers} ps x {ps_cores:g}"


def chosen(number: int, data: str, effect: str | None, done: str | None) -> Chosen:
    """Make a decision to show of a row of the table. Raises HistoryError for one that another version has stored."""
    one = decoded(data, _Decision)
    rate = one.predicted.throughput if one.predicted else (None, None, None)
    brought = decoded(effect, _Effect) if effect is not None else None
    became = decoded(done, _Done) if done is not None else None
    choice = one.choice.describe() if one.choice else one.treatment.node if one.treatment else ""
    return Chosen(
        number=number,
        at=one.at,
        stage=one.stage,
        action=one.action,
        reason=one.reason,
        before=one.before.describe() if one.before else "",
        choice=choice,
        grows=one.choice is not None and one.choice.cores > (one.before.cores if one.before else 0.0),
        predicted=rate[0],
        lower=rate[1],
        upper=rate[2],
        gain_seconds=one.predicted.gain[0] if one.predicted else None,
        measured=brought.measured[0] if brought else None,
        error=brought.error if brought else None,
        done=became.state if became else "",
        why=became.why if became else "",
        cause=one.cause,
        difference=_difference(one),
        rate_before=_rate_before(one.candidates),
    )


def listed(job: str, one: Chosen) -> DecisionNews:
    """Make news for a list of jobs of a decision."""
    return DecisionNews(job, one.number, one.at, one.action, one.reason, one if one.action in CHANGING else None)


def _rate_before(candidates: _Candidates | None) -> float | None:
    """Return the samples/s that the present plan had, as far as was known then."""
    if candidates is None or candidates.now is None or candidates.now >= len(candidates.throughput):
        return None
    return candidates.throughput[candidates.now]


# --- what is changed, in a few words ----------------------------------------------------------------------------------


def _difference(one: _Decision) -> str:
    """Say what a decision changes: ``+2 workers``, ``PS 0.5 → 1 core``; empty: nothing."""
    match one.action:
        case "preempt":
            return "gives way"
        case "heal":
            return _treated(one.treatment) if one.treatment is not None else ""
        case "start" | "change" | "explore" if one.choice is not None:
            before, after = one.before, one.choice
            if before is None or one.action == "start":
                return f"starts with {plural(after.workers, 'worker')}, {after.servers} PS"
            return ("tries " if one.action == "explore" else "") + _between(before, after)
        case _:
            return ""


def _between(before: _Candidate, after: _Candidate) -> str:
    """Say by what two plans differ."""
    parts = []
    if more := after.workers - before.workers:
        parts.append(f"{more:+} worker{'' if abs(more) == 1 else 's'}")
    if after.worker_cores != before.worker_cores:
        parts.append(f"workers {before.worker_cores:g} → {_cores(after.worker_cores)}")
    if more := after.servers - before.servers:
        parts.append(f"{more:+} PS")
    if after.ps_cores != before.ps_cores:
        parts.append(f"PS {before.ps_cores:g} → {_cores(after.ps_cores)}")
    return ", ".join(parts) or "the same plan"


def _cores(cores: float) -> str:
    return "1 core" if cores == 1 else f"{cores:g} cores"


def _treated(one: _Treatment) -> str:
    """Say what is done about a node."""
    match one.act:
        case SmallerShards():
            return f"smaller shards for {one.node}"
        case Replace():
            return f"{one.node} replaced"
        case Resize() if one.cause == "memory to spare":
            others = f" and {len(one.act.others)} more" if one.act.others else ""
            return f"memory back from {one.node}{others}"
        case Resize() if one.cause == "hot ps":
            return f"{one.node} gets {_cores(one.act.resources.cores)}"
        case Resize():
            return f"{one.node} gets {format_bytes(one.act.resources.memory)}"
        case MoveSlots():
            return f"{one.act.share:.0%} of {one.node}'s {'work' if one.cause == 'hot ps' else 'rows'} to others"
        case AddPs():
            return f"+1 PS beside {one.node}"
        case _:
            return one.node
