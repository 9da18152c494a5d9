"""Why stage 2 decides as it does, in words: who, how much, and why."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

from dlrover_lite.brain.models.bottleneck import LimitName
from dlrover_lite.brain.planning.admission import place_in_queue
from dlrover_lite.brain.planning.allowed_changes import veto
from dlrover_lite.brain.planning.change_policy import Settled, Verdict
from dlrover_lite.brain.planning.job_view import Exploration, JobView, RoundInputs, held_milli
from dlrover_lite.brain.planning.plan_grid import Candidate, to_milli
from dlrover_lite.brain.planning.plan_values import Options, reading_limit
from dlrover_lite.brain.planning.shared_hosts import Placements
from dlrover_lite.brain.planning.work_shift import shift_words
from dlrover_lite.core.units import format_bytes
from dlrover_lite.core.words import plural
from dlrover_lite.protocol.hosts import Host, largest_of

__all__ = ["Reasons"]

_MOST_NAMED = 3
"""The most jobs that a reason names."""
_NOTHING_BETTER = "no other plan within reach is worth its change"
_LIMITS: dict[LimitName, str] = {
    "workers": "workers were the limit",
    "ps": "parameter servers were the limit",
    "pipeline": "the time from pull to push was the limit",
    "host": "the machine's free cores were the limit",
    "cores": "the cores that its nodes share were the limit",
    "reading": "reading was the limit",
    "network": "the network was the limit",
}


@dataclass(frozen=True)
class Reasons:
    """The sentences of one round. What all jobs together have is counted once: a thousand may ask for it."""

    inputs: RoundInputs
    options: Mapping[str, Options]
    preempted: Mapping[str, str]
    placed: Placements

    @property
    def settled(self) -> Settled:
        return self.placed.settled

    def refusal(self, view: JobView) -> str:
        """Say why a job can't ever begin."""
        bounds, capacity = view.bounds, self.inputs.capacity
        cores = bounds.min_workers * min(bounds.worker_sizes) + bounds.min_servers * min(bounds.ps_sizes)
        memory = view.need.of(Candidate(bounds.min_workers, bounds.min_servers, 1, 1))
        needs = (
            f"its smallest plan needs more than there is: {_amount(cores)} and {format_bytes(memory)}, of {_amount(capacity.cores)} "
            f"and {format_bytes(capacity.memory)}"
        )
        if len(self.inputs.hosts) <= 1:
            return needs
        most = largest_of(self.inputs.hosts)
        return f"{needs}, with {_amount(most.cores)} and {format_bytes(most.memory)} on one host at the most"

    def preemption(self, view: JobView) -> str:
        """Say for whom a job gives way, or for want of what."""
        if taker := self.preempted[view.job]:
            priorities = f"{self._views[taker].priority:g} against {view.priority:g}"
            return f"{taker} has a higher priority ({priorities}) and takes its place"
        running = sum(one.now is not None for one in self.inputs.jobs)
        capacity = self.inputs.capacity
        return (
            f"there is less than there was, {_amount(capacity.cores)} and {format_bytes(capacity.memory)}, "
            f"too little for the smallest plans of the {running} that run"
        )

    @cached_property
    def _views(self) -> dict[str, JobView]:
        return {one.job: one for one in self.inputs.jobs}

    def waiting(self, view: JobView, place: int) -> str:
        """Say what a job in the queue waits for."""
        one, verdict = self.options[view.job], self.settled.verdicts.get(view.job)
        if (piece := self.placed.homeless.get(view.job)) is not None:
            why = self._no_place(one, piece)
        else:
            why = self._full(view, one) if verdict is None else self._room_made(one, verdict)
        return f"it waits, number {place} in the queue: {why}"

    def _full(self, view: JobView, one: Options) -> str:
        smallest, capacity = one.points.candidate(one.minimum), self.inputs.capacity
        cores, memory, names = self._least
        needs = f"its smallest plan ({_amount(smallest.cores)}, {format_bytes(view.need.of(smallest))})"
        first = self._first_in_queue
        if first is not None and first.job != view.job and self._would_fit(one, cores, memory):
            return (
                f"{needs} would fit, but {first.job} has waited for {_time(first.waited_seconds)} and comes before it"
            )
        if first is None and self._would_fit(one, cores, memory):
            return f"{needs} would fit, but what {names} would save by these cores is worth more for now"
        full = (
            f"{needs} doesn't fit beside what the others need at the least ({names}: {_amount(cores)} of {capacity.cores:g}, "
            f"{format_bytes(memory)} of {format_bytes(capacity.memory)})"
        )
        ratio = self.inputs.policy.preempt_ratio
        firm = (
            f"{other.job} has less priority, but can't give way: {other.stays}"
            for other in self._firm
            if other.priority * ratio <= view.priority
        )
        return "; ".join([full, *islice(firm, _MOST_NAMED)])

    @cached_property
    def _firm(self) -> list[JobView]:
        """Jobs that run and can't give way."""
        firm = [one for one in self.inputs.jobs if one.now is not None and one.stays]
        return sorted(firm, key=lambda one: one.job)

    def _no_place(self, one: Options, piece: Host) -> str:
        """Say that what is free lies in pieces that are too small. ``piece``: the largest."""
        smallest = one.points.candidate(one.minimum)
        return (
            f"its smallest plan ({smallest.describe()}, {format_bytes(one.view.need.of(smallest))}) finds no place on the "
            f"{len(self.inputs.hosts)} hosts: the most that is free on one is {_amount(piece.resources.cores)} and "
            f"{format_bytes(piece.resources.memory)}, on {piece.name}"
        )

    @cached_property
    def _least(self) -> tuple[float, int, str]:
        """Cores and bytes that the jobs let in need at the least, and their names. One that can't be changed needs what it has."""
        cores = memory = 0
        for one in (self.options[job] for job in self.settled.verdicts):
            at = one.now if one.view.fixed and one.now is not None else one.minimum
            cores += int(one.points.milli[at])
            memory += int(one.memory[at])
        return cores / 1000, memory, _named(sorted(self.settled.verdicts))

    @cached_property
    def _first_in_queue(self) -> JobView | None:
        """The job that has waited for so long that nobody passes it any more; None: there is none."""
        policy = self.inputs.policy
        late = [
            view
            for view in self.inputs.jobs
            if view.now is None
            and view.job not in self.settled.verdicts
            and view.waited_seconds >= policy.reserve_after_seconds
        ]
        return min(late, key=lambda view: place_in_queue(view, policy), default=None)

    def _would_fit(self, one: Options, cores: float, memory: int) -> bool:
        capacity = self.inputs.capacity
        milli = to_milli(cores) + int(one.points.milli[one.minimum])
        return milli <= to_milli(capacity.cores) and memory + int(one.memory[one.minimum]) <= capacity.memory

    def _room_made(self, one: Options, verdict: Verdict) -> str:
        by = f" by {_named(self._givers)}" if self._givers else ""
        begins = one.points.candidate(verdict.at).describe()
        return (
            f"room is made for it{by}; then it begins with {begins}, in about {self.inputs.policy.room_seconds:.0f} s"
        )

    @cached_property
    def _changes(self) -> list[tuple[str, int]]:
        """Jobs whose cores change, with by how many thousandths, those that give the most first."""
        found = []
        for view in self.inputs.jobs:
            verdict = self.settled.verdicts.get(view.job)
            after = 0 if verdict is None else int(self.options[view.job].points.milli[verdict.at])
            if after != (before := held_milli(view)):
                found.append((after - before, view.job))
        return [(job, more) for more, job in sorted(found)]

    @cached_property
    def _givers(self) -> list[str]:
        return [f"{job} ({_amount(-more / 1000)})" for job, more in self._changes if more < 0]

    @cached_property
    def _takers(self) -> dict[str, str]:
        """What each job that gets more gets, in words, those that get the most first."""
        return {
            job: f"{job} gets {_amount(more / 1000)} more"
            if job in self._had
            else f"{job} begins with {_amount(more / 1000)}"
            for job, more in reversed(self._changes)
            if more > 0
        }

    def plan(self, one: Options, verdict: Verdict, limit: LimitName | None = None) -> tuple[str, str]:
        """Say which plan a job has from now on, what that brings, and why not another one; and in a few words what it follows from.
        ``limit``: what limits the plan until then, of one that changes."""
        at, view = verdict.at, one.view
        choice = one.points.candidate(at).describe()
        rate = f"{one.points.throughput[at]:,.0f} samples/s"
        why = self._why(one, verdict)
        match verdict.action:
            case "start":
                how = "goes on" if view.ran_seconds else "starts"
                text = f"it {how} with {choice}: {rate} by the model, {_time(one.seconds(at))} to go"
            case "stay":
                text = f"it stays with {choice}"
                if not why:
                    text += f": {_NOTHING_BETTER}"
            case "explore":
                assert verdict.exploration is not None
                text = f"it tries {choice} for {_tried(verdict.exploration, one.stay_seconds)}"
            case _:
                text = (
                    f"it changes to {choice}: {rate}, {_time(one.seconds(at))} to go instead of {_time(one.stay_seconds)} "
                    f"({_gain(one, at)}, {view.scale_seconds:.0f} s for the change counted)"
                )
        changed, moves = (
            (self._changed(view), self._moves(view)) if verdict.action in ("change", "explore") else ("", "")
        )
        reason = "; ".join(part for part in (text, why, changed, moves, _reading(one, at)) if part)
        if verdict.action == "stay":
            return reason, why or _NOTHING_BETTER
        by_others = why if verdict.cause in ("spare", "taken", "back") else ""
        return reason, changed or by_others or ("" if limit is None else _LIMITS[limit])

    def _why(self, one: Options, verdict: Verdict) -> str:
        match verdict.cause:
            case "fixed":
                return f"its plan can't be changed now{one.view.held and f': {one.view.held}'}"
            case "spare":
                assert one.view.now is not None
                less = one.view.now.cores - int(one.points.milli[verdict.at]) / 1000
                return f"it does as well with {_amount(less)} less"
            case "exchange":
                return self._no_exchange(one)
            case "taken":
                return self._taken(one)
            case "no place":
                assert verdict.better is not None
                wanted = one.points.candidate(verdict.better).describe()
                return f"{wanted} would take {_time(one.seconds(verdict.better))}, but finds no place on the hosts beside what is there"
            case "tried":
                assert one.view.exploration is not None
                return (
                    f"it is tried for {_time(one.view.exploration.seconds)}, and if it isn't better, the job goes back to "
                    f"{one.view.exploration.back.describe()}"
                )
            case "back":
                return self._back(one, verdict)
            case "unsettled":
                assert one.view.suspected is not None
                return f"its work may have changed just now, which is measured first: {shift_words(one.view.suspected)}"
            case _:
                at = verdict.better
                return "" if at is None else veto(one, at, self.inputs.policy)

    def _back(self, one: Options, verdict: Verdict) -> str:
        """Say what has come of the try that is over."""
        assert one.now is not None
        now, before = (float(one.points.throughput[at]) for at in (one.now, verdict.at))
        return (
            f"{one.points.candidate(one.now).describe()}, which it has tried for {_time(one.view.tried_seconds)}, isn't better: "
            f"{now:,.0f} samples/s were measured, and {before:,.0f} with the plan before"
        )

    def _changed(self, view: JobView) -> str:
        """Say how the job's work has changed, where that is new: no plan was changed since."""
        shift, change = view.shift, view.last_change
        if shift is None or (change is not None and change.fresh_windows < shift.windows):
            return ""
        return f"its work has changed {_time(max(0.0, self.inputs.at - shift.at))} ago: {shift_words(shift)}"

    def _moves(self, view: JobView) -> str:
        """Say how many PS come to other hosts with the plan: these are faster, as nothing else makes one move."""
        before = {one.host: one.servers for one in view.nodes if one.servers}
        after = {one.host: one.servers for one in self.placed.nodes.get(view.job, ())}
        more = {host: count - before.get(host, 0) for host, count in after.items() if count > before.get(host, 0)}
        come = sum(more.values()) - max(0, sum(after.values()) - sum(before.values()))
        if not before or come <= 0:
            return ""
        where = "a faster host" if len(more) == 1 else "faster hosts"
        return (
            f"{plural(come, 'parameter server')} {'comes' if come == 1 else 'come'} to {where}: {_named(sorted(more))}"
        )

    def _no_exchange(self, one: Options) -> str:
        job = one.view.job
        own = self.settled.rejected.get(job, 0.0)
        gain, lose = (_named_but(job, names) for names in self._gain_and_lose)
        if not (gain or own > 0) or not (lose or own < 0):
            return "no exchange of cores between jobs would surely gain anything"
        if own < 0:
            return f"what {gain} would surely gain by its cores is less than what it would lose, which is up to {_time(-own)}"
        if own > 0:
            return f"what it would surely gain by cores of {lose}, {_time(own)}, is less than what {lose} would lose"
        return f"what {gain} would surely gain by cores of {lose} is less than what {lose} would lose"

    @cached_property
    def _gain_and_lose(self) -> tuple[dict[str, str], dict[str, str]]:
        """Names of the jobs that would surely have gained, and of those that would have lost, by the exchange that was rejected."""
        sure = sorted(self.settled.rejected.items())
        return {job: job for job, seconds in sure if seconds > 0}, {job: job for job, seconds in sure if seconds < 0}

    @cached_property
    def _had(self) -> dict[str, int]:
        """Thousandths of a core of each job that runs."""
        return {view.job: view.now.milli for view in self.inputs.jobs if view.now is not None}

    @cached_property
    def _had_together(self) -> int:
        return sum(self._had.values())

    def _taken(self, one: Options) -> str:
        """Say who has what the job had, and what there is less of."""
        had = self._had_together
        capacity, parts = self.inputs.capacity, []
        if had > to_milli(capacity.cores):
            parts.append(
                f"there is less than there was: {_amount(capacity.cores)}, of {had / 1000:g} that the jobs had"
            )
        if takers := _named_but(one.view.job, self._takers):
            parts.append(f"others need what it had more: {takers}")
        if parts:
            return "; ".join(parts)
        assert one.now is not None
        needed, there = format_bytes(int(one.memory[one.now])), format_bytes(capacity.memory)
        return f"its plan needs {needed} of memory, more than is left for it of {there}"


def _tried(its: Exploration, stay_seconds: float) -> str:
    """Say how long a plan is tried, what that may bring, what it costs, and what follows."""
    saves = its.saves_seconds / max(its.chance, 1e-9)
    return (
        f"{_time(its.seconds)}: with a chance of {its.chance:.0%} it would save about {_time(saves)} of the {_time(stay_seconds)} to go, "
        f"and to try it costs {_time(its.costs_seconds)} on average, {_time(its.costs_at_most_seconds)} at most; if it isn't better, "
        f"the job goes back to {its.back.describe()}"
    )


def _reading(one: Options, at: int) -> str:
    """Say that no plan makes the job faster, as it trains on all samples that can be read."""
    most = reading_limit(one.view, float(one.points.throughput[at]))
    return "" if most is None else f"reading is the limit: {most:,.0f} samples/s, whatever the plan"


def _named(names: Sequence[str]) -> str:
    """Write names as ``a, b, c and 4 more``."""
    return _first_of(names, len(names))


def _named_but(job: str, words: Mapping[str, str]) -> str:
    """Write the words of all jobs but one, as ``_named``. A thousand jobs may ask for it."""
    return _first_of((its for other, its in words.items() if other != job), len(words) - (job in words))


def _first_of(first: Iterable[str], count: int) -> str:
    more = f" and {count - _MOST_NAMED} more" if count > _MOST_NAMED else ""
    return ", ".join(islice(first, _MOST_NAMED)) + more


def _gain(one: Options, at: int) -> str:
    gain, least, most = (float(each[at]) for each in (one.gain, one.least_gain, one.most_gain))
    if least >= 0:
        return f"saves {gain:.0f} s, 80% band {least:.0f} to {most:.0f} s"
    return f"ends {_by_time(gain)}, 80% band {_by_time(least)} to {_by_time(most)}"


def _by_time(seconds: float) -> str:
    return f"{_time(abs(seconds))} {'later' if seconds < 0 else 'sooner'}"


def _amount(cores: float) -> str:
    return "1 core" if abs(cores - 1) < 5e-4 else f"{cores:g} cores"


def _time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
