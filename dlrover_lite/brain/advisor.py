"""The brain at its decisions: keeps each registered job as it stands, and calls the stages when something new is known.

Stage 1 when a job comes, stage 2 over all jobs after new profiles, stage 3 with each profile. What is decided is stored with all it
follows from before anyone is told; what came of it is judged by the profiles after it.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeAlias

import msgspec

from dlrover_lite.brain.background_load import BackgroundLoad
from dlrover_lite.brain.capacity import Capacity
from dlrover_lite.brain.cluster_use import ClusterUse
from dlrover_lite.brain.effect import cost_of_change, judge
from dlrover_lite.brain.healing.health import heal
from dlrover_lite.brain.healing.mitigation import HealInputs
from dlrover_lite.brain.job_history import past_jobs, remember
from dlrover_lite.brain.job_tracker import Numbered, RegisteredJob, candidate, smallest_cores
from dlrover_lite.brain.models.memory_model import ACT_TIMES
from dlrover_lite.brain.node_health import heal_inputs
from dlrover_lite.brain.planning.decision import Decision, Round, decide
from dlrover_lite.brain.planning.job_view import Policy, RoundInputs, index_of
from dlrover_lite.brain.planning.kept_options import KeptOptions
from dlrover_lite.brain.planning.prescale import basis
from dlrover_lite.brain.policies import USUAL, Policies
from dlrover_lite.brain.store import preferences, queries
from dlrover_lite.brain.store.database import ConfigStore
from dlrover_lite.brain.store.preferences import Preferences
from dlrover_lite.brain.store.records import profile_of
from dlrover_lite.core.decoding import convert
from dlrover_lite.core.errors import DlroverLiteError, HistoryError
from dlrover_lite.core.units import GIB, Resources
from dlrover_lite.protocol.acts import Resize, Tell
from dlrover_lite.protocol.brain_messages import Advice, EndJob, RegisterJob, Report
from dlrover_lite.protocol.demands import DecisionOutcome, Demand, Standing
from dlrover_lite.protocol.features import JobFeatures
from dlrover_lite.protocol.history_messages import KeptJob
from dlrover_lite.protocol.outcomes import JobOutcome
from dlrover_lite.protocol.plans import Plan
from dlrover_lite.protocol.profiles import Level, Profile

__all__ = ["Advisor", "Arrival", "Told"]

Told: TypeAlias = RegisterJob | Report | EndJob

_REMEMBERED = 64
"""Number of decisions of a job by an earlier brain that are remembered."""


class Arrival(msgspec.Struct, frozen=True, kw_only=True):
    """A job that registers."""

    job: str
    features: dict[str, Any]
    """The job's ``JobFeatures`` by field names."""
    demand: Demand
    began: float
    priority: float = 1.0
    samples: int = 0
    plan: Plan | None = None
    """The plan that the job runs with; None: it waits for one."""
    waits_since: float | None = None
    """Time since which a job without a plan, which has run, waits to go on; None: it hasn't run yet."""


class Advisor:
    """Decides for all registered jobs. ``store`` is its own: nobody else's rows wait in it. Times are seconds since the epoch."""

    def __init__(
        self,
        store: ConfigStore,
        *,
        policies: Policies = USUAL,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Begin without jobs. ``say`` is told, once, what keeps ``step`` from deciding."""
        self._store = store
        self._policies = policies
        self._say = say
        self._complained = ""
        self._jobs: dict[str, RegisteredJob] = {}
        self._use = ClusterUse()
        self._came = 0
        self._waiting: dict[str, None] = {}
        """Jobs whose master is to be told something."""
        self._to_treat: dict[str, None] = {}
        """Jobs of which stage 3 has something new to look at."""
        self._to_decide: dict[str, None] = {}
        """Jobs that were measured since the last round."""
        self._queued: dict[str, None] = {}
        """Jobs that have no nodes yet, or no longer."""
        self._advised: dict[str, tuple[Numbered, Advice]] = {}
        self._options = KeptOptions()
        self._liked: Preferences | None = None
        self._steps = False
        """A step is being taken, in which what a person prefers is read once."""
        self._decide_at = 0.0
        self._changed = False
        """Jobs have come or gone since the last round."""
        self._to_register: dict[str, RegisterJob] = {}
        """Jobs that couldn't be taken when they came: the database was locked, say."""

    @property
    def _likes(self) -> Preferences:
        """What a person prefers, as of the step that is being taken."""
        if self._liked is None or not self._steps:
            self._liked = preferences.read(self._store)
        return self._liked

    @property
    def _policy(self) -> Policy:
        return self._policies.planning or Policy(name=self._likes.policy)

    @property
    def jobs(self) -> frozenset[str]:
        """The jobs that are registered."""
        return frozenset(self._jobs)

    # --- driven from outside --------------------------------------------------------------------------------------------

    def step(self, at: float, told: Sequence[Told] = ()) -> Iterator[dict[str, Advice]]:
        """Take in what masters have told, and decide. Yield what each job's master is to be told, by job: what is urgent first, then all.

        What goes wrong with one job is said, and others are decided about all the same."""
        self._steps, self._liked = True, None
        try:
            self.hear(at, told)
            for decide_now in (self.treat, self.turn):
                self._guarded(partial(decide_now, at))
                yield {job: self._advice(job, one) for job, one in self.waiting().items()}
        finally:
            self._steps = False

    def hear(self, at: float, told: Sequence[Told]) -> None:
        """Take in what masters have told, and before that what couldn't be taken when it came."""
        for body in [*self._to_register.values(), *told]:
            done = self._guarded(partial(self._hear, body, at))
            if isinstance(body, RegisterJob) and not done:
                self._to_register[body.job] = body
            elif isinstance(body, RegisterJob | EndJob):
                self._to_register.pop(body.job, None)

    def recall(self, at: float, runs: Callable[[str], bool]) -> None:
        """Recall jobs that ran under the brain before this one: until they register again, nobody else gets what they have. ``runs`` says
        whether the job with these files runs. What can't be read of one job is said, and others are recalled all the same."""
        rows: list[KeptJob] = []
        self._guarded(lambda: rows.extend(running_jobs(self._store)))
        for row in rows:
            self._guarded(partial(self._recall, row, at, runs))

    def _recall(self, row: KeptJob, at: float, runs: Callable[[str], bool]) -> None:
        arrival = arrival_of(self._store, row)
        if arrival is not None and arrival.plan is not None and runs(row.directory):
            self.arrived(arrival, at)

    def _hear(self, body: Told, at: float) -> None:
        match body:
            case RegisterJob() if body.demand is not None:
                arrival = Arrival(
                    job=body.job,
                    features=body.features,
                    demand=body.demand,
                    began=body.started_at or body.created_at,
                    priority=body.priority,
                    samples=body.samples,
                    plan=body.plan,
                    waits_since=body.waits_since,
                )
                self.arrived(arrival, at)
            case Report():
                self.reported(
                    body.job,
                    samples=body.samples,
                    profiles=body.profiles,
                    standing=body.standing,
                    done=body.done,
                    levels=body.levels,
                )
            case EndJob():
                self.ended(body.job, body.outcome, at)

    def _guarded(self, action: Callable[[], None]) -> bool:
        """Do ``action``; return whether it could be done. What is wrong is said once, until something else is."""
        try:
            action()
            return True
        except DlroverLiteError as error:
            what, text = error.message, str(error)
        except Exception as error:  # noqa: BLE001 - whatever one job has reported, others are to be decided about as long as there is a brain
            what, text = repr(error), traceback.format_exc().rstrip()
        if what != self._complained:
            self._say(f"a decision can't be made: {text}")
        self._complained = what
        return False

    # --- what is told ---------------------------------------------------------------------------------------------------

    def arrived(self, arrival: Arrival, at: float) -> None:
        """Register a job, for the first time or again. Raises HistoryError when the database can't be read, or the job can't be understood:
        it is as if it hadn't come."""
        known = self._jobs.get(arrival.job)
        if known is None:
            known = RegisteredJob(
                job=arrival.job,
                features=_features(arrival),
                demand=arrival.demand,
                began=arrival.began,
                priority=arrival.priority,
                place=self._came,
                policies=self._policies,
            )
            known.policy = self._policy
            self._came += 1
            self._remember(known)
            self._measure_background(known)
            known.history = tuple(past_jobs(self._store, at=at, without=known.job))
            known.begin(self._left_for(known), at)
            self._jobs[known.job] = known
            self._changed = True
        known.demand = msgspec.structs.replace(known.demand, hosts=arrival.demand.hosts, shared=arrival.demand.shared)
        known.samples, known.plan = arrival.samples, arrival.plan or known.plan
        if arrival.plan is None and arrival.waits_since is not None:
            known.gave_way(arrival.waits_since)
        self._use.put(known)
        self._note(known)
        if known.plan is None:
            self._changed = True

    def reported(
        self,
        job: str,
        *,
        samples: int,
        profiles: Sequence[Profile],
        standing: Standing | None,
        done: Sequence[DecisionOutcome],
        levels: Sequence[Level] = (),
    ) -> None:
        """Take in what a master reports while its job runs."""
        known = self._jobs.get(job)
        if known is None:
            return
        known.samples = samples
        for level in levels:
            known.add_level(level)
        for profile in profiles:
            known.add(profile)
        if profiles:
            if standing is None:
                self._use.put(known)
            self._measure_background(known)
        self._note(known)
        for one in done:
            self._take(known, one)
        if standing is not None:
            demand = known.demand
            known.stands(standing)
            self._use.put(known)
            self._changed |= known.demand is not demand and known.demand != demand
            self._forget_lost(known, standing)
        self._note(known)
        if done and self._queued:
            self._changed = True  # there may be room now
        self._judge(known)

    def ended(self, job: str, outcome: JobOutcome, at: float) -> None:
        """Store what the job leaves to those after it. Raises HistoryError."""
        known = self._jobs.pop(job, None)
        if known is None:
            return
        self._use.remove(job, at=at)
        for there in (self._waiting, self._to_treat, self._to_decide, self._queued, self._advised):
            there.pop(job, None)
        self._changed = True
        remember(self._store, known, outcome, at)
        self._store.commit()

    def _remember(self, known: RegisteredJob) -> None:
        """Recall what an earlier brain knew of the job, as far as it can still be read: another version may have stored it."""
        for record in queries.profiles(self._store, known.job, newest=256):
            with suppress(HistoryError):
                known.add(profile_of(record))
        for stored in queries.decisions(self._store, known.job, newest=_REMEMBERED, lenient=True):
            known.reason = stored.decision.reason
            if (treatment := stored.decision.treatment) is not None:
                known.treated[stored.number] = treatment
            if stored.decision.acts:
                known.decided.append(Numbered(stored.number, stored.decision, stored.effect))
            if stored.done is not None:
                self._take(known, stored.done)

    @staticmethod
    def _forget_lost(known: RegisteredJob, standing: Standing) -> None:
        """Forget treatments, or mark them as done, that are not under way any more, though nothing came of them: their master never heard
        of those that an earlier brain decided in its last moment, and one that was killed can't tell what has become of others."""
        for number, treatment in list(known.treated.items()):
            waits = known.waits is not None and known.waits.number == number
            if treatment.done_at is not None or isinstance(treatment.act, Tell) or waits:
                continue
            if number > standing.heard:
                del known.treated[number]
            elif not standing.busy:
                known.treated[number] = msgspec.structs.replace(treatment, done_at=treatment.at)

    def _take(self, known: RegisteredJob, done: DecisionOutcome) -> None:
        if (treatment := known.treated.get(done.number)) is not None:
            known.treated[done.number] = msgspec.structs.replace(treatment, done_at=done.at)
        for at, one in enumerate(known.decided):
            if one.number != done.number or one.done is not None:
                continue
            known.decided[at] = msgspec.structs.replace(one, done=done)
            if done.state in ("rejected", "given up"):
                known.refused(done, one.decision)
            predicted = one.decision.predicted
            if done.state == "done" and predicted is not None and one.decision.action != "start":
                if before := self._rate_before(known, one):
                    known.scale_costs.append(cost_of_change(done, before, predicted.throughput.expected))
                if one.decision.action == "explore":
                    exploration, whole = one.decision.exploration, done.seconds + self._policy.exploration_seconds
                    known.explored_seconds += whole if exploration is None else exploration.costs_at_most_seconds

    @staticmethod
    def _rate_before(known: RegisteredJob, one: Numbered) -> float:
        before = [p for p in known.profiles if p.at <= one.decision.at]
        return before[-1].samples_per_second if before else 0.0

    def _judge(self, known: RegisteredJob) -> None:
        """Judge what the last change of the plan has brought, once that is measured, whatever else was decided about nodes since."""
        if not known.present:
            return
        at = next(
            (at for at in reversed(range(len(known.decided))) if known.decided[at].decision.choice is not None), None
        )
        if at is None or (one := known.decided[at]).effect is not None or one.decision.predicted is None:
            return
        if known.plan is None or candidate(known.plan) != one.decision.choice:
            return
        windows = [p for p in known.profiles if p.at - p.seconds >= one.decision.at]
        if len(windows) < self._policies.tracking.judged_after_windows:
            return
        view = known.view(free_cores=known.free_cores(self._capacity()), at=known.profiles[-1].at)
        if view.measured is None:
            return
        effect = judge(
            one.decision,
            view.measured,
            windows=len(windows),
            at=known.profiles[-1].at,
            scale_seconds=known.scale_costs[-1] if one.done is not None and known.scale_costs else None,
            policy=self._policies.tracking,
        )
        known.decided[at] = msgspec.structs.replace(one, effect=effect)
        self._store.put_effect(known.job, one.number, effect)
        self._store.commit()

    # --- what follows ---------------------------------------------------------------------------------------------------

    def waiting(self) -> dict[str, Numbered]:
        """Return what each job's master is to be told, by job."""
        return {job: one for job in self._waiting if (one := self._jobs[job].waits) is not None}

    def _advice(self, job: str, one: Numbered) -> Advice:
        """Return what a master is told of a decision, which is asked for again and again until it has heard it."""
        kept = self._advised.get(job)
        if kept is None or kept[0] is not one:
            kept = self._advised[job] = one, Advice(one.number, msgspec.to_builtins(one.decision))
        return kept[1]

    def _note(self, known: RegisteredJob) -> None:
        """Note what is to be done with a job that may have changed: of a thousand, few have."""
        job = known.job
        for there, wanted in (
            (self._waiting, known.waits is not None),
            (self._to_treat, known.to_heal or known.new_level),
            (self._to_decide, known.new_profile),
            (self._queued, known.plan is None),
        ):
            if wanted:
                there[job] = None
            else:
                there.pop(job, None)
        if known.waits is None:
            self._advised.pop(job, None)

    def turn(self, at: float) -> None:
        """Decide, if there is anything new to decide by. Raises HistoryError when it can't be stored."""
        self._store.commit()  # what a job has left that ended while nothing could be written
        self.treat(at)
        due = at >= self._decide_at and bool(self._to_decide)
        if not self._jobs or not (due or self._changed):
            return
        if not self._capacity().total.cores:
            return  # no host is left: what runs waits for one, and nothing can begin before there is one again
        seconds = self._policies.decide_seconds
        self._decide_at = at + (self._likes.decide_seconds if seconds is None else seconds)
        self._carry(self.round(at), at)
        reported = self._in_order(self._to_decide)
        for known in reported:  # of these, those that stage 2 leaves as they are
            self._heal(known, at, spare=True)
        # only now: what couldn't be stored is decided again
        self._changed = False
        for known in reported:
            known.new_profile = False
            self._note(known)

    def _in_order(self, jobs: Collection[str]) -> list[RegisteredJob]:
        """List these jobs, those that have come first first."""
        return sorted((self._jobs[job] for job in jobs), key=lambda known: known.place)

    def treat(self, at: float) -> None:
        """Do the part of ``turn`` that doesn't wait for the rest: whoever is slow, or runs full, holds all up meanwhile. Memory to spare
        comes back where that is done before plans are looked at again. Raises HistoryError."""
        for known in self._in_order(self._to_treat):
            spare = known.to_heal and at + ACT_TIMES * known.seconds_to_resize < self._decide_at
            self._heal(known, at, only_memory=not known.to_heal, spare=spare)
            known.to_heal = known.new_level = False
            self._note(known)

    def _heal(self, known: RegisteredJob, at: float, *, only_memory: bool = False, spare: bool = False) -> None:
        """Do stage 3: choose the most urgent thing that a node of the job needs, and keep what can only be told, too. ``spare``: memory may
        be taken back as well, which waits for what else is decided."""
        if not known.may_be_relieved:
            return
        inputs = heal_inputs(known, self._room(), at=at, spare=spare)
        if inputs is None:
            return
        if only_memory or not known.may_change or not known.present:
            inputs = msgspec.structs.replace(inputs, profiles=())
        found = heal(inputs)
        acts = [one for one in found if one.acts and (known.may_change or _is_more_memory(one))][:1]
        self._treat(known, inputs, [*acts, *(one for one in found if not one.acts)])

    def _treat(self, known: RegisteredJob, inputs: HealInputs, chosen: Sequence[Decision]) -> None:
        """Store the chosen treatments, and have them told."""
        if not chosen:
            return
        numbers = self._store.add_treatments(inputs, chosen, heard=known.heard)
        for one, number in zip(chosen, numbers, strict=True):
            if one.treatment is not None:
                known.treated[number] = one.treatment
            if one.acts:
                known.waits = Numbered(number, one)
                known.decided.append(known.waits)
            else:  # its master says it, where people look
                known.tell(Numbered(number, one))
        self._note(known)

    def _room(self) -> Capacity:
        """Return what no job has."""
        return self._use.left_of(self._capacity())

    def round(self, at: float) -> Round:
        """Do stage 2 over all jobs; those that wait for their first plan are among them."""
        return decide(self.inputs(at), kept=self._options)

    def inputs(self, at: float) -> RoundInputs:
        policy = self._policy
        for known in self._jobs.values():
            changed, known.policy = known.policy.name != policy.name, policy
            begins = known.plan is None and known.waits_since is None
            if begins and (known.room != (room := self._left_for(known)) or changed):
                known.begin(room, at)
        capacity = self._capacity()
        views = (known.view(free_cores=known.free_cores(capacity), at=at) for known in self._jobs.values())
        # jobs of which no host is known can't get anything
        able = [view for view in views if view.most is None or view.most.cores]
        return RoundInputs(at=at, capacity=capacity.total, hosts=capacity.hosts, jobs=tuple(able), policy=policy)

    def first(self, job: str, at: float) -> tuple[Decision, RoundInputs]:
        """Decide what a job that has arrived would get now. The decision has its index, and nothing is stored."""
        inputs = self.inputs(at)
        decision = self._initial(self._jobs[job], decide(inputs, kept=self._options).of(job), at)
        return msgspec.structs.replace(decision, index=index_of(inputs, job)), inputs

    def _initial(self, known: RegisteredJob, decision: Decision, at: float) -> Decision:
        words = basis(known.begin(known.room or self._left_for(known), at))
        reason = decision.reason if decision.action == "queue" else f"{words}: {decision.reason}"
        cause = words if decision.action == "start" else decision.cause
        return msgspec.structs.replace(decision, stage="initial", reason=reason, cause=cause)

    def _carry(self, found: Round, at: float) -> None:
        """Store what is new, and have it told."""
        decisions = tuple(
            self._initial(known, decision, at)
            if (known := self._jobs[decision.job]).plan is None
            and known.waits_since is None
            and decision.action in ("start", "queue", "refuse")
            else decision
            for decision in found.decisions
        )
        held = {view.job for view in found.inputs.jobs if view.fixed or view.unmeasured}
        kept = [one for one in decisions if self._is_news(one, held)]
        heard = {job: known.heard for job, known in self._jobs.items()}
        numbers = self._store.add_round(found._replace(decisions=decisions), [one.job for one in kept], heard=heard)
        for one in kept:
            known = self._jobs[one.job]
            known.reason = one.reason
            numbered = Numbered(numbers[one.job], one)
            if one.acts:
                known.decided.append(numbered)
            if one.acts or one.action in ("queue", "refuse"):
                known.waits = numbered
                self._use.put(known)
                self._note(known)

    def _is_news(self, one: Decision, held: Collection[str]) -> bool:
        """Say whether a decision is to be stored and told. ``held``: jobs whose plan isn't to be changed now."""
        known = self._jobs[one.job]
        if one.action == "start":  # a job that hasn't begun yet is decided on in each round
            return known.waits is None or known.waits.decision.choice != one.choice
        return one.acts or (one.reason != known.reason and one.job not in held)

    # --- what there is --------------------------------------------------------------------------------------------------

    def _capacity(self, of: RegisteredJob | None = None) -> Capacity:
        """Return what there is for all jobs together: as the person prefers, or what the hosts have."""
        liked = self._likes
        return self._use.capacity(
            Resources(liked.capacity_cores, int(liked.capacity_gib * GIB)),
            None if of is None or of.job in self._jobs else of.demand,
        )

    def _left_for(self, known: RegisteredJob) -> Capacity:
        """Compute what a job that comes can have: what the others leave when each has the least, and the same part of the memory. It is at
        least the smallest plan, for which the job waits otherwise."""
        capacity = self._capacity(known)
        there = capacity.total
        others = self._use.least_cores(without=known.job)
        cores = min(there.cores, max(there.cores - others, smallest_cores(known.demand)))
        memory = int(there.memory * cores / there.cores) if there.cores else there.memory
        return capacity.within(Resources(cores, memory))

    def _measure_background(self, known: RegisteredJob) -> None:
        """Find out what others than the brain's jobs took on each host while the job's last interval was measured."""
        if not known.profiles:
            return
        last = known.profiles[-1]
        for use in last.hosts:
            jobs = self._use.used(use.host, without=known.job, since=last.at - last.seconds)
            its = known.background.setdefault(use.host, BackgroundLoad())
            its.measured(last.seconds, of=use.cores, others=use.other_cores, jobs=jobs)


def _features(arrival: Arrival) -> JobFeatures:
    try:
        return convert(arrival.features, JobFeatures)
    except msgspec.ValidationError as error:
        raise HistoryError(
            f"What {arrival.job} says of itself can't be understood: {error}",
            hint="Its master is of another version of dlrover-lite: it keeps the plan that it has.",
        ) from error


def _is_more_memory(decision: Decision) -> bool:
    treatment = decision.treatment
    return treatment is not None and treatment.cause == "memory ahead" and isinstance(treatment.act, Resize)


def running_jobs(store: ConfigStore) -> list[KeptJob]:
    """List the jobs of this brain that run, or wait, as the database has them. Raises HistoryError."""
    rows = queries.kept(store, queries.JobsQuestion(state="starting,running,queued"), KeptJob)
    return [row for row in rows if not row.source]


def arrival_of(store: ConfigStore, row: KeptJob) -> Arrival | None:
    """Return what a job said when it registered, and has come to since, as the database has it; None: it wanted no advice. Raises
    HistoryError for what can't be read."""
    entry, plan = queries.job_with_plan(store, row)
    if (demand := entry.features.get("demand")) is None:
        return None
    try:
        told = convert(demand, Demand)
    except msgspec.ValidationError as error:
        raise HistoryError(f"What {entry.id} asks for can't be read: {error}") from error
    return Arrival(
        job=entry.id,
        features=entry.features,
        demand=told,
        began=entry.started_at or entry.created_at,
        priority=entry.priority,
        samples=entry.samples,
        plan=plan if entry.state != "queued" else None,
    )
