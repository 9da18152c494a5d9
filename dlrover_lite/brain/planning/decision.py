"""Decisions as data: what was decided for each job of a round, from what, why, and what it is predicted to bring.

::

    decided = decide(inputs)            # inputs: RoundInputs, all that counts, and nothing else
    replay(decided.decisions[0], inputs).same
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, NamedTuple

import msgspec
import numpy as np

from dlrover_lite.brain.explain.reasons import Reasons
from dlrover_lite.brain.healing.mitigation import Treatment
from dlrover_lite.brain.models.bottleneck import LimitName
from dlrover_lite.brain.models.fitted_model import Bottleneck, load_model
from dlrover_lite.brain.planning.admission import Admission, Need, admit
from dlrover_lite.brain.planning.allowed_changes import kept_to_its_end
from dlrover_lite.brain.planning.change_policy import Verdict
from dlrover_lite.brain.planning.job_view import (
    FORMAT,
    Action,
    Exploration,
    JobView,
    ModelData,
    RoundInputs,
    Stage,
    index_of,
)
from dlrover_lite.brain.planning.kept_options import KeptOptions
from dlrover_lite.brain.planning.pareto import Band, ThroughputModel
from dlrover_lite.brain.planning.plan_grid import Candidate, IntArray, MemoryBand
from dlrover_lite.brain.planning.plan_values import Options
from dlrover_lite.brain.planning.rules import Rules, rules_of
from dlrover_lite.brain.planning.shared_hosts import place_all
from dlrover_lite.brain.planning.start_order import begin, free_now, no_more_than_free
from dlrover_lite.core.errors import JobError
from dlrover_lite.core.units import Resources
from dlrover_lite.protocol.hosts import HostNodes
from dlrover_lite.protocol.plans import Plan

__all__ = ["Candidates", "Decision", "Load", "Predicted", "Replay", "Round", "decide", "replay", "with_index"]

Load = Callable[[ModelData], ThroughputModel]
"""Makes a model of its data: the same one of the same data, at any time."""

_MOST_KEPT = 48
"""About how many plans a decision is stored with: a thousand jobs decide every few seconds."""
_SAME = 1e-6
"""Relative difference by which numbers of a replay may differ (another processor rounds in another way)."""


class Candidates(msgspec.Struct, frozen=True):
    """Plans that could have been chosen, by cost, a column each: of the front (all of it, or those around the choice and some over all
    costs), and the present and the smallest plan."""

    workers: list[int]
    servers: list[int]
    worker_cores: list[float]
    ps_cores: list[float]
    cores: list[float]
    memory: list[int]
    throughput: list[float]
    lower: list[float]
    upper: list[float]
    seconds: list[float]
    """Remaining seconds with each plan, the change included."""
    chosen: int
    """Position of the chosen plan."""
    now: int | None
    """Position of the present plan."""
    minimum: int
    left_out: int = 0
    """Number of plans of the front that aren't here."""

    def candidate(self, at: int) -> Candidate:
        return Candidate(self.workers[at], self.servers[at], self.worker_cores[at], self.ps_cores[at])


class Predicted(msgspec.Struct, frozen=True, kw_only=True):
    """What the choice is to bring."""

    throughput: Band
    seconds: float
    """Remaining seconds, the change included."""
    stay_seconds: float
    """Remaining seconds if nothing were changed (of a job that starts: with its smallest plan)."""
    gain: Band
    """Seconds saved."""


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    job: str
    at: float
    """Seconds since the epoch."""
    index: str = ""
    """The state of the world that the decision holds for (``index_of``), if it is shown before it is carried out."""
    stage: Stage = "scale"
    action: Action
    before: Candidate | None = None
    choice: Candidate | None = None
    """The chosen plan without its memory; None: the job gets nothing for now."""
    plan: Plan | None = None
    """The chosen plan with its memory."""
    placement: tuple[HostNodes, ...] = ()
    """Number of nodes of the chosen plan on each host, where there are several hosts; empty: wherever there is room."""
    reason: str
    cause: str = ""
    """What it follows from, in a few words: the limit of the plan until then, who needs what the job had, why no other plan is worth a
    change; empty: the reason says it."""
    predicted: Predicted | None = None
    memory: MemoryBand | None = None
    """Memory that each PS (a treatment: the node) needs until it is decided again, with its limit; None where there is no forecast."""
    treatment: Treatment | None = None
    """What is done about a node, in stage 3."""
    exploration: Exploration | None = None
    """The try that begins with the chosen plan (``explore``)."""
    candidates: Candidates | None = None
    room: Resources | None = None
    """The most that the job could have had: its own and what is left over."""
    format: int = FORMAT

    @property
    def acts(self) -> bool:
        """Whether anything is to be done."""
        return self.action in ("start", "change", "explore", "preempt", "heal")


class Round(NamedTuple):
    inputs: RoundInputs
    decisions: tuple[Decision, ...]
    """One for each job, in the order of the inputs."""
    free: Resources

    def of(self, job: str) -> Decision:
        """Return the decision for a job. Raises KeyError if the round has no such job."""
        for decision in self.decisions:
            if decision.job == job:
                return decision
        raise KeyError(job)


def decide(inputs: RoundInputs, load: Load = load_model, *, kept: KeptOptions | None = None) -> Round:
    """Decide stage 2: what each job gets, by the policy that ``inputs`` name. Everything follows from ``inputs``: the same ones give the
    same decisions. ``kept``: options of the rounds before, which those of this one are put in place of.

    Where ``lite`` decides, raising a job's priority, all else alike, neither puts it out, nor leaves it waiting, nor ends it later, but for
    what counts as equal (``Policy.tie_share``, ``fewer_nodes_share``) and for the time in which room is made (``room_seconds``); plans that
    it may not be changed to of its own accord count with what they surely bring (``change_policy``), and neither those that are only tried
    count nor the way back from a try. That holds where cores are short. Where memory is short as well, plans are packed by two sizes, and
    one may fit worse; and where all changes together would surely gain nothing, nobody loses, so nobody gets what others have. By a higher
    priority they may just be worth it, in which case a job may lose by it: one of 100,000 random rounds (``bench/_priority_rounds.py``).

    A job that ends sooner than a change would take effect keeps its plan and its place, whoever comes.
    """
    views, capacity, policy = inputs.jobs, inputs.capacity, inputs.policy
    rules = rules_of(policy.name)
    options: dict[str, Options] = {}
    kept = KeptOptions() if kept is None else kept
    kept.keep([view.job for view in views])
    for view in views:
        if (one := kept.of(view, load, capacity, policy, inputs.hosts)) is not None:
            options[view.job] = one._replace(view=kept_to_its_end(one))
    views = tuple(options[view.job].view if view.job in options else view for view in views)
    needs = {job: _need(one, keeps=one.view.fixed or bool(one.view.declined)) for job, one in options.items()}
    reluctant = {job: _need(one) for job, one in options.items() if one.view.declined and not one.view.fixed}
    later = {
        job: Need(0, 0) if one.view.gives_way else _need(one)
        for job, one in options.items()
        if one.view.fixed and one.view.busy
    }
    admission = admit(views, needs, capacity, policy, reluctant=reluctant, later=later)
    alone = len(views) == 1
    let_in = [options[job] for job in admission.admitted]
    # nobody waits for others' sake where jobs give way for somebody
    beginnings = {} if any(admission.preempted.values()) else rules.may_wait(let_in, policy)
    admitted = set(admission.admitted)
    inside = [options[view.job] for view in views if view.job in admitted]
    forced = bool(admission.preempted) or any(one.now is None and one.view.job not in beginnings for one in inside)
    free_milli = free_now(views, capacity)
    inside = [no_more_than_free(one, free_milli, policy) for one in inside]
    settled = rules.settle(inside, capacity, policy, alone=alone, forced=forced, beginnings=beginnings)
    admission = _without(admission, settled.held)
    settled, early = begin(admission.admitted, options, settled, free_milli, policy)
    placed = place_all(options, settled, early, inputs.hosts)
    places = {job: place for place, job in enumerate([*early, *placed.homeless, *admission.queued], 1)}
    reasons = Reasons(msgspec.structs.replace(inputs, jobs=views), options, admission.preempted, placed)
    decisions = tuple(_named(_decision(view, inputs, places, reasons, kept), rules) for view in views)
    return Round(inputs, decisions, placed.settled.free)


def _without(admission: Admission, held: Collection[str]) -> Admission:
    """Put those who are held back into the queue again, before those for whom there is no room."""
    return admission._replace(
        admitted=tuple(job for job in admission.admitted if job not in held),
        queued=(*(job for job in admission.admitted if job in held), *admission.queued),
    )


def _named(decision: Decision, rules: Rules) -> Decision:
    """Let the reason say by which policy it was decided, if that isn't the usual one."""
    return msgspec.structs.replace(decision, reason=rules.named + decision.reason) if rules.named else decision


def _need(one: Options, *, keeps: bool = False) -> Need:
    """Return what a job is admitted with: its smallest plan, or the present one, if it ``keeps`` that."""
    at = one.now if keeps and one.now is not None else one.minimum
    return Need(int(one.points.milli[at]), int(one.memory[at]))


def _decision(
    view: JobView, inputs: RoundInputs, places: Mapping[str, int], reasons: Reasons, kept: KeptOptions
) -> Decision:
    one, settled = reasons.options.get(view.job), reasons.settled
    verdict = settled.verdicts.get(view.job)
    head: dict[str, Any] = {"job": view.job, "at": inputs.at, "before": view.now}
    if one is None:
        return Decision(**head, action="refuse", reason=reasons.refusal(view))
    if verdict is None and view.job in reasons.preempted:
        cause = reasons.preemption(view)
        return Decision(**head, action="preempt", reason=f"it gives way, and waits: {cause}", cause=cause)
    if verdict is None or view.job in places:
        predicted = None if verdict is None else _predicted(one, verdict.at, waits=inputs.policy.room_seconds)
        return Decision(**head, action="queue", reason=reasons.waiting(view, places[view.job]), predicted=predicted)
    choice = one.points.candidate(verdict.at)
    reason, cause = reasons.plan(one, verdict, _limit(view, verdict, kept))
    # where jobs that can't be changed have more than there is, less than nothing is left over
    room = Resources(
        max(0.0, choice.cores + settled.free.cores), max(0, int(one.memory[verdict.at]) + settled.free.memory)
    )
    return Decision(
        **head,
        action=verdict.action,
        choice=choice,
        plan=view.need.plan(choice),
        placement=reasons.placed.nodes.get(view.job, ()),
        reason=reason,
        cause=cause,
        predicted=_predicted(one, verdict.at),
        memory=view.need.band(choice),
        candidates=kept.made(view.job, verdict.at, partial(_candidates, one, verdict.at)),
        room=room,
        exploration=verdict.exploration,
    )


def _limit(view: JobView, verdict: Verdict, kept: KeptOptions) -> LimitName | None:
    """Name what limits the plan that is to be changed; None where none is, or the model has no limits."""
    model = kept.model_of(view.job)
    if verdict.action not in ("change", "explore") or view.now is None or not isinstance(model, Bottleneck):
        return None
    return model.nearest_limit(*view.now.parts())


def _predicted(one: Options, at: int, *, waits: float = 0.0) -> Predicted:
    """Predict what the plan at a position brings. ``waits``: seconds until the job has that plan."""
    gain = (float(each[at]) - waits for each in (one.gain, one.least_gain, one.most_gain))
    return Predicted(
        throughput=one.points.band(at),
        seconds=one.seconds(at) + waits,
        stay_seconds=one.stay_seconds,
        gain=Band(*gain),
    )


def _candidates(one: Options, chosen: int) -> Candidates:
    p, kept = one.points, _kept(one, chosen)
    seconds = one.stay_seconds - one.gain[kept]
    position = {at: number for number, at in enumerate(kept.tolist())}
    return Candidates(
        workers=p.workers[kept].tolist(),
        servers=p.servers[kept].tolist(),
        worker_cores=p.worker_cores[kept].tolist(),
        ps_cores=p.ps_cores[kept].tolist(),
        cores=(p.milli[kept] / 1000).tolist(),
        memory=one.memory[kept].tolist(),
        throughput=p.throughput[kept].tolist(),
        lower=p.lower[kept].tolist(),
        upper=p.upper[kept].tolist(),
        seconds=seconds.tolist(),
        chosen=position[chosen],
        now=None if one.now is None else position[one.now],
        minimum=position[one.minimum],
        left_out=len(p.milli) - len(kept),
    )


def _kept(one: Options, chosen: int) -> IntArray:
    """Choose the positions of the plans that a decision is stored with."""
    count = len(one.points.milli)
    if count <= _MOST_KEPT:
        return np.arange(count)
    wanted = np.zeros(count, np.bool_)
    wanted[np.linspace(0, count - 1, _MOST_KEPT - 7).astype(np.int64)] = True
    wanted[max(0, chosen - 2) : chosen + 3] = True
    wanted[[one.minimum, chosen if one.now is None else one.now]] = True
    return wanted.nonzero()[0]


class Replay(NamedTuple):
    same: bool
    differences: list[str]
    """Differences in words."""
    decision: Decision
    """The decision as it comes out now."""


def replay(stored: Decision, inputs: RoundInputs, load: Load = load_model) -> Replay:
    """Decide again from stored inputs, and compare. Raises JobError when they are of a format that can't be decided from any more, or the
    decision isn't one of that round."""
    if stored.format != FORMAT or inputs.format != FORMAT:
        raise JobError(
            f"The decision for {stored.job} was stored in format {stored.format}; this dlrover-lite knows {FORMAT}",
            hint="Replay it with the version that stored it.",
        )
    again = {decision.job: decision for decision in decide(inputs, load).decisions}.get(stored.job)
    if again is None:
        raise JobError(
            f"The stored inputs know no job {stored.job}", hint="The decision and the inputs are not of the same round."
        )
    found = []
    for name in ("action", "before", "choice", "plan"):
        was, now = getattr(stored, name), getattr(again, name)
        if was != now:
            found.append(f"{name} was {_words(was)}, and is now {_words(now)}")
    if stored.predicted is not None and again.predicted is not None:
        for name in ("throughput", "gain"):
            was, now = getattr(stored.predicted, name), getattr(again.predicted, name)
            if any(abs(a - b) > _SAME * max(1.0, abs(a), abs(b)) for a, b in zip(was, now, strict=True)):
                found.append(f"the predicted {name} was {_words(was)}, and is now {_words(now)}")
    return Replay(not found, found, again)


def _words(value: object) -> str:
    match value:
        case None:
            return "nothing"
        case Candidate() | Plan():
            return value.describe()
        case Band():
            return f"{value.expected:.6g} ({value.lower:.6g} to {value.upper:.6g})"
        case _:
            return str(value)


def with_index(decision: Decision, inputs: RoundInputs) -> Decision:
    """Add the index of its world to a decision that is shown before it is carried out."""
    return msgspec.structs.replace(decision, index=index_of(inputs, decision.job))
