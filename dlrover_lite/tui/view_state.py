"""What is known of jobs, put together from what the database tells and from what their masters have written or answered: news in, rows out.

No clock, no files. A row is made again only if something about its job is new.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from dlrover_lite.brain.store.decision_news import choice_of
from dlrover_lite.core.expected_end import ExpectedEnd
from dlrover_lite.protocol.news import Chosen, DecisionNews, JobNews, PlanNews, RateNews, WatchedJobs
from dlrover_lite.tui.model import OVER, Cost, Given, HostShare, JobRow, LastDecision, Look, Rate
from dlrover_lite.tui.text import clean

__all__ = ["JobsFold", "LocalNode", "LocalStatus"]

KEPT_RATES = 60
KEPT_PLANS = 64
_COST_SECONDS = 10.0
"""Seconds after which the cost of a job that runs is reckoned anew: what it is told to is more."""
SILENT_SECONDS = 15.0
"""Seconds without a word after which a master is silent: it writes every two seconds that it is there."""


_PLANNED = ("change", "explore")
"""Actions that have taken place once the job has another plan: a person may be asked before, or refuse."""


class LocalNode(msgspec.Struct, frozen=True):
    """As much of a node's status as a list of jobs needs. Field names are those of ``NodeStatus``."""

    role: str
    state: str
    cores: float
    memory: int
    cpu_seconds: float = 0.0
    used_memory: int = 0
    host: str = ""


class LocalStatus(msgspec.Struct, frozen=True):
    """As much of what a master says as a list of jobs needs. Field names are those of ``Status``, which it is read from."""

    state: str
    samples: int
    total_samples: int
    samples_per_second: float
    elapsed_seconds: float
    nodes: tuple[LocalNode, ...] = ()
    message: str = ""
    next_look: Look | None = None
    expected_end: ExpectedEnd | None = None

    @property
    def alive(self) -> Iterable[LocalNode]:
        return (node for node in self.nodes if not node.state.startswith("ended"))

    @property
    def cpu_seconds(self) -> float:
        return sum(node.cpu_seconds for node in self.nodes)


@dataclass(slots=True)
class _Known:
    """What is known of one job."""

    news: JobNews
    rates: list[Rate] = field(default_factory=list)
    cost: Cost | None = None
    given: tuple[Given, ...] = ()
    workers: int | None = None
    servers: int | None = None
    decision: LastDecision | None = None
    change: Chosen | None = None
    is_changed: bool = False
    """Whether the job has had the plan of ``change``, or it is about no plan."""
    local: LocalStatus | None = None
    before: LocalStatus | None = None
    """The status before ``local``."""
    heard_at: float | None = None

    def give(self, at: float, cores: float, memory: int) -> None:
        """Note what it has from a time on."""
        self.cost = (self.cost or Cost()).given(at, cores, memory)
        self.given = (*self.given, Given(at, cores, memory))[-KEPT_PLANS:]

    @property
    def over(self) -> bool:
        return self.news.state in OVER or (self.local is not None and self.local.state in OVER)


class JobsFold:
    """What is known of all jobs, or of one."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}
        self._rows: dict[str, JobRow] = {}
        self._moved = False
        """Whether the jobs that there are have changed."""
        self._dirty: set[str] = set()

    # --- news -------------------------------------------------------------------------------------------------------

    def take(self, news: WatchedJobs) -> None:
        """Take what the database tells."""
        if news.anew:
            self._known.clear()
            self._moved = True
        for job in news.gone:
            self.drop(job)
        for one in news.jobs:
            self.put(one)
        self._take_rates(news.rates)
        self._take_plans(news.plans)
        self._take_decisions(news.decisions)

    def put(self, news: JobNews) -> None:
        known = self._known.get(news.id)
        if known is None:
            self._known[news.id] = _Known(news)
            self._moved = True
        elif known.news != news:
            known.news = news
        else:
            return
        self._dirty.add(news.id)

    def drop(self, job: str) -> None:
        if self._known.pop(job, None) is not None:
            self._moved = True

    def _take_rates(self, rates: Sequence[RateNews]) -> None:
        for one in rates:
            known = self._known.get(one.job)
            if known is None or (known.rates and one.at <= known.rates[-1].at):
                continue
            known.rates.append(Rate(one.at, one.samples_per_second, one.seconds))
            if len(known.rates) > 2 * KEPT_RATES:
                del known.rates[:-KEPT_RATES]
            self._dirty.add(one.job)

    def _take_plans(self, plans: Sequence[PlanNews]) -> None:
        for one in plans:
            if (known := self._known.get(one.job)) is None:
                continue
            ps, worker = one.plan.ps, one.plan.worker
            cores = ps.count * ps.each.cores + worker.count * worker.each.cores
            memory = ps.count * ps.each.memory + worker.count * worker.each.memory
            known.give(one.at, cores, memory)
            known.workers, known.servers = worker.count, ps.count
            if known.change is not None and one.at >= known.change.at and choice_of(one.plan) == known.change.choice:
                known.is_changed = True
            self._dirty.add(one.job)

    def _take_decisions(self, decisions: Sequence[DecisionNews]) -> None:
        for one in decisions:
            if (known := self._known.get(one.job)) is None:
                continue
            if one.changed is not None and (known.change is None or known.change.number <= one.number):
                same = known.change is not None and known.change.number == one.number
                known.change = one.changed
                known.is_changed = (
                    (same and known.is_changed) or one.action not in _PLANNED or one.changed.done == "done"
                )
                self._dirty.add(one.job)
            if known.decision is not None and known.decision.number > one.number:
                continue
            known.decision = LastDecision(one.number, one.at, one.action, clean(one.reason))
            self._dirty.add(one.job)

    def hear(self, job: str, status: LocalStatus, at: float) -> None:
        """Take what a job's master has said, and when."""
        known = self._known.get(job)
        if known is None or (known.heard_at is not None and at <= known.heard_at):
            return
        known.before, known.local, known.heard_at = known.local, status, at
        if status.state == "queued" and known.cost is not None and known.cost.cores:
            known.give(max(at, known.cost.at), 0.0, 0)  # it has given way
        self._dirty.add(job)

    # --- what there is ----------------------------------------------------------------------------------------------

    def knows(self, job: str) -> bool:
        return job in self._known

    def live(self) -> list[tuple[str, str]]:
        """Return id and directory of each job that isn't over and whose files are on this machine."""
        return [(job, one.news.directory) for job, one in self._known.items() if not one.over and one.news.directory]

    def silent(self, now: float) -> list[str]:
        """Return the jobs that should say something and don't."""
        return [
            job
            for job, one in self._known.items()
            if not one.over and one.heard_at is not None and now - one.heard_at > SILENT_SECONDS
        ]

    def news_of(self, job: str) -> JobNews | None:
        known = self._known.get(job)
        return known.news if known else None

    def rows(self, now: float) -> dict[str, JobRow]:
        """Return the rows, the newest job first. The same object as before if nothing is new."""
        silent = set(self.silent(now))
        for job in silent | {job for job, row in self._rows.items() if row.silent_since is not None}:
            before = self._rows.get(job)
            if before is None or (before.silent_since is not None) != (job in silent):
                self._dirty.add(job)
        if not self._dirty and not self._moved:
            return self._rows
        made = {job: _row(self._known[job], job in silent) for job in self._dirty if job in self._known}
        rows = {job: made.get(job) or self._rows[job] for job in self._known}
        if self._moved:
            order = sorted(rows, key=lambda job: (-rows[job].created_at, job))
            rows = {job: rows[job] for job in order}
            self._known = {job: self._known[job] for job in order}
        self._rows, self._moved = rows, False
        self._dirty.clear()
        return rows


def _row(known: _Known, silent: bool) -> JobRow:
    news, local = known.news, known.local
    rates = known.rates[-KEPT_RATES:]
    cores, used_cores, memory, used_memory = _resources(known)
    samples = max(news.samples, local.samples if local else 0)
    total = local.total_samples or None if local else None
    return JobRow(
        id=news.id,
        name=news.name,
        owner=news.owner,
        model=news.model,
        state=_state(known),
        message=clean(news.message or (local.message if local and not known.over else "")),
        created_at=news.created_at,
        started_at=news.started_at,
        ended_at=news.ended_at,
        samples=samples,
        total_samples=total,
        rate=_rate(known),
        rates=tuple(round(rate.value, 1) for rate in rates),
        expected=local.expected_end if local is not None and not known.over else None,
        workers=known.workers if local is None or known.over else _count(local, "worker"),
        servers=known.servers if local is None or known.over else _count(local, "ps"),
        cores=cores,
        used_cores=used_cores,
        memory=memory,
        used_memory=used_memory,
        cost=_cost(known),
        decision=known.decision,
        change=known.change,
        is_changed=known.is_changed,
        silent_since=known.heard_at if silent else None,
        directory=news.directory,
        look=local.next_look if local is not None and not known.over and not silent else None,
        source=news.source,
        given=known.given,
        hosts=() if local is None or known.over else _hosts(local),
    )


def _hosts(local: LocalStatus) -> tuple[HostShare, ...]:
    """Return what of a job is on each host."""
    found: dict[str, HostShare] = {}
    for node in local.alive:
        if node.role in ("worker", "ps"):
            before = found.get(node.host, HostShare(node.host, 0, 0, 0.0, 0))
            found[node.host] = HostShare(
                node.host,
                before.workers + (node.role == "worker"),
                before.servers + (node.role == "ps"),
                round(before.cores + node.cores, 3),
                before.memory + node.memory,
            )
    return tuple(found.values())


def _state(known: _Known) -> str:
    """Return the state of a job: what its master says is more than that it runs."""
    if known.local is None or known.news.state in OVER:
        return known.news.state
    return known.local.state


def _count(local: LocalStatus, role: str) -> int:
    return sum(node.role == role for node in local.alive)


def _rate(known: _Known) -> float | None:
    if known.over:
        return known.news.outcome.samples_per_second or None
    if known.local is not None:
        return known.local.samples_per_second
    return known.rates[-1].value if known.rates else None


def _resources(known: _Known) -> tuple[float | None, float | None, int | None, int | None]:
    """Return cores given and used, memory given and used: of nodes that run; of a job that is over, what it was given last."""
    local, before = known.local, known.before
    if known.over or local is None:
        return (known.cost.cores, None, known.cost.memory, None) if known.cost else (None, None, None, None)
    used: float | None = None
    if before is not None and local.elapsed_seconds > before.elapsed_seconds:
        used = max(0.0, local.cpu_seconds - before.cpu_seconds) / (local.elapsed_seconds - before.elapsed_seconds)
    alive = list(local.alive)
    return (
        round(sum(node.cores for node in alive), 3),
        used if used is None else round(used, 2),
        sum(node.memory for node in alive),
        sum(node.used_memory for node in alive),
    )


def _cost(known: _Known) -> Cost | None:
    """Return the cost of a job until its end, or until something was heard of it last."""
    if known.cost is None:
        return None
    until = known.news.ended_at
    if until is None:
        heard = known.heard_at or (known.rates[-1].at if known.rates else known.cost.at)
        until = heard - heard % _COST_SECONDS
    return known.cost.until(max(until, known.cost.at))
