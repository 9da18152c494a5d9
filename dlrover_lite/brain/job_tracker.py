"""A job as the brain keeps it while it runs: what its master has told, and what was decided for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

import msgspec

from dlrover_lite.brain.background_load import BackgroundLoad
from dlrover_lite.brain.capacity import Capacity
from dlrover_lite.brain.effect import Effect, doubt_after
from dlrover_lite.brain.healing.mitigation import Treatment
from dlrover_lite.brain.job_bounds import bounds_of, smallest_cores
from dlrover_lite.brain.models.fitted_model import KeptModel
from dlrover_lite.brain.models.memory_history import MemoryHistory
from dlrover_lite.brain.models.memory_model import LEAST_PS, LEAST_WORKER, SPILL_PART, worker_limit
from dlrover_lite.brain.models.similarity import neighbours, pooled_prior
from dlrover_lite.brain.models.throughput import Prior
from dlrover_lite.brain.planning.decision import Decision
from dlrover_lite.brain.planning.job_view import Exploration, JobView, LastChange, Policy
from dlrover_lite.brain.planning.observed_job import KeptWindows, ObservedJob, candidate_of, observe_job, observed_view
from dlrover_lite.brain.planning.plan_grid import MILLI, Candidate, MemoryNeed, to_milli
from dlrover_lite.brain.planning.prescale import PastJob, StartInputs, initial_view
from dlrover_lite.brain.planning.shared_hosts import together
from dlrover_lite.brain.policies import USUAL, Policies
from dlrover_lite.core.units import Resources
from dlrover_lite.protocol.acts import Replace, Resize
from dlrover_lite.protocol.demands import DecisionOutcome, Demand, Standing, StandingNode, within
from dlrover_lite.protocol.features import JobFeatures
from dlrover_lite.protocol.hosts import Host, HostNodes, by_name, sum_of
from dlrover_lite.protocol.plans import Plan
from dlrover_lite.protocol.profiles import HostUse, Level, Profile, PsUse, WorkerUse

__all__ = ["Numbered", "RegisteredJob", "bounds_of", "candidate", "smallest_cores", "used_of"]

_OF_PLANS = ("start", "change", "explore", "preempt")
"""Actions of decisions on a job's whole plan."""


class Numbered(msgspec.Struct, frozen=True):
    number: int
    decision: Decision
    effect: Effect | None = None
    done: DecisionOutcome | None = None


def candidate(plan: Plan) -> Candidate:
    worker, ps = (to_milli(role.each.cores) / MILLI for role in (plan.worker, plan.ps))
    return Candidate(plan.worker.count, plan.ps.count, worker, ps)


def used_of(profile: Profile) -> list[tuple[str, float]]:
    """List the cores that each node used, with its host."""
    uses: list[WorkerUse | PsUse] = [*profile.workers, *profile.ps]
    return [(use.host, use.cpu_seconds / profile.seconds) for use in uses]


@dataclass(eq=False)
class RegisteredJob:
    job: str
    features: JobFeatures
    demand: Demand
    began: float
    """Seconds since the epoch."""
    priority: float = 1.0
    place: int = 0
    """Number of jobs that had come before this one."""
    samples: int = 0
    plan: Plan | None = None
    """The plan that the job runs with; None: it waits for one."""
    waits_since: float | None = None
    """Time since which a job that has run waits to go on; None: it doesn't."""
    standing: Standing | None = None
    profiles: list[Profile] = field(default_factory=list)
    windows: KeptWindows = field(default_factory=KeptWindows)
    observed: tuple[float, ObservedJob | None] | None = None
    """Time of the newest profile, and what all of them tell; None: it isn't known yet."""
    observed_view: tuple[ObservedJob | None, tuple[object, ...], JobView] | None = None
    """What the view of what was observed follows from, and that view."""
    model: KeptModel = field(default_factory=KeptModel)
    worker_peak: int = 0
    """The most bytes of memory that a worker has used, as far as is known."""
    worker_rose: int = 0
    """What ``worker_peak`` was when it rose last by more than a little."""
    steady_seconds: float = 0.0
    """Measured seconds since then, and those of all workers together."""
    steady_worker_seconds: float = 0.0
    evaluated: bool = False
    """An evaluation has ended, so that ``worker_peak`` has what that takes; or the job has none to come."""
    worker_given: int = 0
    """The most bytes of memory that a worker has had before the first evaluation ended; 0: not known."""
    heard: int = 0
    """Number of the newest decision that the job's master knows of. It may be of another database, which is gone."""
    waits: Numbered | None = None
    """The decision that its master is to be told."""
    to_tell: list[Numbered] = field(default_factory=list)
    """Decisions that the master is to be told next."""
    decided: list[Numbered] = field(default_factory=list)
    """Decisions that act, the newest last."""
    history: tuple[PastJob, ...] = ()
    """Past jobs that were known when this one came."""
    room: Capacity | None = None
    """What the job's first plan was made for."""
    treated: dict[int, Treatment] = field(default_factory=dict)
    """Treatments by number of the decision, the newest last."""
    levels: MemoryHistory = field(default_factory=MemoryHistory)
    """What the PS held, by time, with what profiles say of it."""
    new_level: bool = False
    background: dict[str, BackgroundLoad] = field(default_factory=dict)
    """What others than the brain's jobs take, by host."""
    policy: Policy = field(default_factory=Policy)
    """Policy that decides for the job now."""
    policies: Policies = USUAL
    """The others that the brain goes by."""
    prior: Prior | None = None
    first_view: JobView | None = None
    scale_costs: list[float] = field(default_factory=list)
    explored_seconds: float = 0.0
    declined: list[tuple[float, Candidate]] = field(default_factory=list)
    """Plans that aren't wanted again, each with the time until then."""
    left: tuple[Capacity, Resources, Capacity] | None = None
    """What all jobs have left, what this one may have more, and what it can have of it by that."""
    stays_until: float = 0.0
    """Time until which the job isn't asked to give way again, since it couldn't."""
    new_profile: bool = False
    """A profile has come since plans were looked at last."""
    to_heal: bool = False
    """A profile has come since the nodes' health was looked at last."""
    reason: str = ""
    """Reason of the last decision that was stored, so that the same one isn't stored twice."""

    def begin(self, room: Capacity, at: float) -> StartInputs:
        """Work out what the job's first plan follows from. ``room``: what others leave it."""
        most, history = within(self.demand), self.history if self.policies.start.heeds_past_jobs else ()
        self.room, ours = room, room.within(most)
        inputs = StartInputs(
            at=at,
            job=self.job,
            features=self.features,
            bounds=bounds_of(self.demand),
            history=history,
            capacity=ours.total,
            free=by_name(ours.hosts),
            total_samples=self.demand.total_samples,
            shared_cores=self.demand.shared_cores,
            priority=self.priority,
            policy=self.policy,
            start=self.policies.start,
        )
        near = neighbours(self.features, [(past.job, past.features, past.fit) for past in history])
        self.prior = pooled_prior(near)
        first = initial_view(inputs)
        self.first_view = msgspec.structs.replace(first, most=most, need=self.with_room(first.need))
        return inputs

    def add(self, profile: Profile) -> None:
        """Add a profile. One that is older than the last, or makes no sense, is left out."""
        if (self.profiles and profile.at <= self.profiles[-1].at) or not profile.makes_sense:
            return
        if self.profiles:  # how tables have grown is in the levels
            self.profiles[-1] = msgspec.structs.replace(self.profiles[-1], tables=())
        self.profiles.append(profile)
        self.steady_seconds += profile.seconds
        self.steady_worker_seconds += profile.seconds * len(profile.workers)
        self.new_profile = self.to_heal = True
        if len(self.profiles) > self.policies.tracking.most_profiles:
            self.profiles = self._thinned()
            self.windows.forget(self.profiles)
        if profile.ps and profile.seconds > 0:
            self.add_level(Level.of(profile))

    def _thinned(self) -> list[Profile]:
        """Leave out every second profile of the older half; of a plan of which there are few, only where nothing else would do."""
        policy = self.policies.tracking
        half = policy.most_profiles // 2
        counts = Counter(self.windows.plan(profile) for profile in self.profiles)
        older = []
        for at, profile in enumerate(self.profiles[:-half]):
            plan = self.windows.plan(profile)
            if at % 2 and counts[plan] > policy.few_windows:
                counts[plan] -= 1
            else:
                older.append(profile)
        return [*older[-(policy.most_profiles - half - policy.few_windows) :], *self.profiles[-half:]]

    def add_level(self, level: Level) -> None:
        if len(self.levels) and level.at <= self.levels.last_at:
            return
        self.levels.append(level)
        self.levels.thin(self.policies.tracking.most_levels)
        self.new_level = True

    # --- as stage 2 takes it --------------------------------------------------------------------------------------------

    def view(self, *, free_cores: Mapping[str, float], at: float) -> JobView:
        """Make the job's view for stage 2: ``first_view`` as long as it hasn't begun; fixed where its plan can't be changed now."""
        assert self.first_view is not None
        if self.plan is None and self.waits_since is None:
            waited = max(0.0, at - self.began)
            return msgspec.structs.replace(self.first_view, waited_seconds=waited, room_promised=self._room_promised)
        has = candidate(self.plan) if self.plan is not None else None
        view = self._observed_view(has, free_cores)
        if has is None:
            return self._waiting(view, at)
        present, exploration = self.present, self._exploration(has)
        nodes, node_resources = self._by_host()
        under_way = self.under_way
        now = under_way.choice if under_way is not None and under_way.choice is not None else has
        return msgspec.structs.replace(
            view,
            nodes=nodes,
            node_resources=_most_of(node_resources, under_way),
            bounds=bounds_of(self.demand),
            need=self.with_room(view.need, runs=True),
            now=now,
            changes_from=None if now == has else has,
            measured=view.measured if present and now == has else None,
            last_change=self._last_change(view, has),
            exploration=exploration,
            tried_seconds=self._tried_seconds(has) if exploration is not None else 0.0,
            scale_seconds=self.scale_seconds,
            change_seconds=self.change_seconds,
            ran_seconds=max(0.0, at - self.began),
            explored_seconds=self.explored_seconds,
            doubt=doubt_after(
                [(one.decision, one.effect) for one in self.decided if one.effect is not None], self.policies.tracking
            ),
            fixed=not (self.may_change and self.policies.tracking.changes_plans),
            busy=self.demand.autoscale == "on"
            and self.standing is not None
            and not self.standing.paused
            and not self.may_change,
            gives_way=under_way is not None and under_way.action == "preempt",
            unmeasured=self.may_change and not present,
            held=self._held(),
            stays=self.stays(at),
            declined=tuple(plan for until, plan in self.declined if at < until),
        )

    def _observed_view(self, now: Candidate | None, free_cores: Mapping[str, float]) -> JobView:
        """Make the view that profiles tell, which is made once for each new one, or when other cores are free."""
        observed, first = self._observe(), self.first_view
        assert first is not None
        follows_from = first, self.demand.total_samples, None if observed is not None else now, dict(free_cores)
        kept = self.observed_view
        if kept is None or kept[0] is not observed or kept[1] != follows_from:
            view = observed_view(
                msgspec.structs.replace(first, now=now),
                observed,
                free_cores=free_cores,
                total_samples=self.demand.total_samples,
                model=self.model,
                policy=self.policies.observation,
            )
            kept = self.observed_view = observed, follows_from, view
        return kept[2]

    def _by_host(self) -> tuple[tuple[HostNodes, ...], tuple[Host, ...]]:
        """Return how many nodes the job has on each host, and what these have; nothing where there is only one host."""
        if self.standing is None or len(self.demand.hosts) < 2:
            return (), ()
        of: dict[str, list[StandingNode]] = {}
        for node in self.standing.nodes:
            if node.host:
                of.setdefault(node.host, []).append(node)
        counts = [
            HostNodes(host, *(sum(node.role == role for node in of[host]) for role in ("worker", "ps")))
            for host in sorted(of)
        ]
        return tuple(counts), tuple(Host(host, sum_of(node.resources for node in of[host])) for host in sorted(of))

    def _observe(self) -> ObservedJob | None:
        """Return what the profiles tell, which is found once for each new one."""
        newest = self.profiles[-1].at if self.profiles else 0.0
        by_paper = self.policy.name == "paper"
        known = self.observed[1] if self.observed is not None and self.observed[0] == newest else None
        if self.observed is None or self.observed[0] != newest or (known and by_paper and known.additive is None):
            found = observe_job(
                self.profiles,
                prior=self.prior,
                depth=float(self.features.pipeline_depth),
                epoch_samples=self.demand.epoch_samples,
                spill_part=self.spill_part,
                facts=self.demand.facts,
                levels=self.levels,
                additive=by_paper,
                windows=self.windows,
                before=None if self.observed is None else self.observed[1],
                policy=self.policies.observation,
            )
            self.observed = newest, found
        return self.observed[1]

    def _waiting(self, view: JobView, at: float) -> JobView:
        """Make the view of a job that has given way: what was measured of it holds."""
        since = at if self.waits_since is None else self.waits_since
        return msgspec.structs.replace(
            view,
            bounds=bounds_of(self.demand),
            need=self.with_room(view.need),
            now=None,
            measured=None,
            last_change=None,
            waited_seconds=max(0.0, at - since),
            room_promised=self._room_promised,
            ran_seconds=max(0.0, since - self.began),
            explored_seconds=self.explored_seconds,
        )

    @property
    def _room_promised(self) -> bool:
        """Whether the job waits until others have made room, with a plan that it is to begin with then."""
        if self.waits is None:
            return False
        last = self.waits.decision
        return last.action == "queue" and last.predicted is not None

    def with_room(self, need: MemoryNeed, *, runs: bool = False) -> MemoryNeed:
        """Add room above what nodes use. A role that the recipe fixes begins with the memory that the recipe says, and has at least as much
        as long as the job ``runs``."""
        worker, ps = self._worker_memory(need), max(need.ps, LEAST_PS)
        if (fixed := self.demand.worker) is not None:
            worker = max(worker, fixed.each.memory) if runs else fixed.each.memory
        need = msgspec.structs.replace(need, worker=worker, ps=ps, fixed_ps=None)
        if (fixed := self.demand.ps) is not None:
            own = need.per_ps(fixed.count)
            need = msgspec.structs.replace(need, fixed_ps=max(own, fixed.each.memory) if runs else fixed.each.memory)
        return need

    def _worker_memory(self, need: MemoryNeed) -> int:
        """Compute the memory of a worker. An evaluation may take more than training: before the first one nobody knows, and a worker gets
        no less than those before it."""
        peak = self.worker_peak
        own = worker_limit(peak, steady=self.worker_steady) if peak else max(need.worker, LEAST_WORKER)
        return own if self.evaluated else max(own, self.worker_given)

    def _held(self) -> str:
        """Say why its plan isn't to be changed now; "" if it may be."""
        standing, mode = self.standing, self.demand.autoscale
        if mode == "off":
            return "autoscaling is off for it"
        if not self.policies.tracking.changes_plans:
            return "this brain changes no plans of jobs that run"
        if standing is None:
            return "it has only just come"
        if standing.paused:
            return f"autoscaling is paused for it ({standing.paused})"
        if not self.may_change:
            return "a change of it is under way"
        return "" if self.present else "its present plan hasn't been measured yet"

    def stays(self, at: float) -> str:
        """Say why the job can't give way to another one now; "" if it can."""
        standing = self.standing
        if not self.demand.checkpoints:
            return "it takes no checkpoints"
        if self.demand.autoscale != "on":
            return f"autoscaling is {self.demand.autoscale} for it"
        if standing is None:
            return "it has only just come"
        if standing.paused:
            return f"autoscaling is paused for it ({standing.paused})"
        if standing.busy or self.waits is not None:
            return "a change of it is under way"
        return "it couldn't when it was asked a short while ago" if at < self.stays_until else ""

    @property
    def least_cores(self) -> float:
        """Cores that the job keeps while it runs, whoever else comes; 0: it doesn't run."""
        if self.plan is None:
            return 0.0
        if self.demand.autoscale != "on" or (self.standing is not None and self.standing.paused):
            return candidate(self.plan).cores
        return smallest_cores(self.demand)

    def held(self) -> list[tuple[str, Resources]]:
        """List what the job's nodes have, each with its host; of what is still to come, by a change that is under way as well, it isn't
        known: ""."""
        nodes = self.standing.nodes if self.standing is not None else ()
        held = [(node.host, node.resources) for node in nodes]
        if self.plan is not None:
            for role, planned in (("ps", self.plan.ps), ("worker", self.plan.worker)):
                held += [("", planned.each)] * max(0, planned.count - sum(node.role == role for node in nodes))
        if (under_way := self.under_way) is not None and under_way.plan is not None:
            roles = under_way.plan.ps, under_way.plan.worker
            there, wanted = sum_of(its for _, its in held), sum_of(one.each for one in roles for _ in range(one.count))
            more = Resources(max(0.0, wanted.cores - there.cores), max(0, wanted.memory - there.memory))
            held.append(("", more))
        return held

    @property
    def present(self) -> bool:
        """Whether the last profile was measured under the plan that the job has."""
        return bool(self.profiles) and self.plan is not None and candidate_of(self.profiles[-1]) == candidate(self.plan)

    @property
    def under_way(self) -> Decision | None:
        """The decision by which the job's plan changes, or by which it gives way, that its master hasn't heard yet, or is at; None: there
        is none."""
        standing = self.standing
        if self.demand.autoscale != "on" or standing is None or standing.paused:
            return None
        last = next((one for one in reversed(self.decided) if one.decision.action in _OF_PLANS), None)
        if last is None or last.done is not None or last.decision.action == "start":
            return None
        unheard = self.waits is not None and self.waits.number == last.number
        return last.decision if unheard or (standing.busy and last.number <= self.heard) else None

    @property
    def may_change(self) -> bool:
        return self.may_be_relieved and self.standing is not None and not self.standing.busy

    @property
    def may_be_relieved(self) -> bool:
        """Whether a node may get more memory now. That doesn't wait for a change that is under way, but for a person's word."""
        standing, mode = self.standing, self.demand.autoscale
        if mode == "off" or self.waits is not None or standing is None or standing.paused:
            return False
        return not standing.busy or (mode == "on" and not any(one.done_at is None for one in self.memory_treated))

    @property
    def memory_treated(self) -> list[Treatment]:
        return [one for one in self.treated.values() if one.cause == "memory ahead" and isinstance(one.act, Resize)]

    @property
    def worker_steady(self) -> bool:
        """Whether no worker has used more memory than before for so long that none is likely to."""
        policy = self.policies.tracking
        measured = self.steady_seconds >= policy.steady_seconds
        return self.worker_rose > 0 and measured and self.steady_worker_seconds >= policy.steady_worker_seconds

    @property
    def spill_part(self) -> float:
        return SPILL_PART if self.demand.checkpoints else 0.0

    @property
    def seconds_to_resize(self) -> float:
        """Seconds that a resize takes, as measured of late."""
        policy = self.policies.tracking
        took = [one.done_at - one.at for one in self.memory_treated if one.done_at is not None]
        return max([policy.resize_seconds, *took[-policy.newest_measured :]])

    @property
    def seconds_to_replace(self) -> float:
        """Seconds that a replacement takes, as measured of late."""
        took = [
            one.done_at - one.at
            for one in self.treated.values()
            if isinstance(one.act, Replace) and one.done_at is not None and one.done_at > one.at
        ]
        return self._newest_mean(took, max(self.policies.tracking.replace_seconds, self._launch_seconds))

    @property
    def _launch_seconds(self) -> float:
        return 0.0 if self.standing is None else self.standing.launch_seconds

    def stands(self, standing: Standing) -> None:
        """Take in how the job stands, as its master says."""
        self.standing, self.plan, self.waits_since = standing, standing.plan, None
        if standing.hosts and standing.hosts != self.demand.hosts:
            self.demand = msgspec.structs.replace(self.demand, hosts=standing.hosts)
        if standing.shared is not None and standing.shared != self.demand.shared:
            self.demand = msgspec.structs.replace(self.demand, shared=standing.shared)
        self.worker_peak = max(self.worker_peak, standing.worker_peak)
        if self.worker_peak > self.worker_rose * (1 + self.policies.tracking.steady_share):
            self.worker_rose, self.steady_seconds, self.steady_worker_seconds = self.worker_peak, 0.0, 0.0
        self.evaluated = self.evaluated or standing.evaluated
        if not self.evaluated:
            there = [node.resources.memory for node in standing.nodes if node.role == "worker"]
            self.worker_given = max([standing.plan.worker.each.memory, *there])
        self.heard = max(self.heard, standing.heard)
        if self.waits is not None and standing.heard >= self.waits.number:
            self.waits = self.to_tell.pop(0) if self.to_tell else None

    def tell(self, one: Numbered) -> None:
        """Have the master told of a decision, as soon as it has heard what comes before."""
        if self.waits is None:
            self.waits = one
        else:
            self.to_tell.append(one)

    def gave_way(self, since: float) -> None:
        """Note that the job has run, has no nodes any more, and waits for a plan since then."""
        if self.waits_since is None and self.waits is not None and self.waits.decision.action not in ("start", "queue"):
            self.waits = None  # of when it ran
        self.to_tell.clear()
        self.standing, self.plan, self.waits_since = None, None, since

    def refused(self, done: DecisionOutcome, what: Decision) -> None:
        """Note that a decision came to nothing: a person rejected it, or it couldn't be done."""
        policy = self.policies.tracking
        until = done.at + (policy.rejected_seconds if done.state == "rejected" else policy.given_up_seconds)
        if what.action == "preempt":
            self.stays_until = until
        elif what.choice is not None:
            self.declined = [*(one for one in self.declined if one[0] > done.at), (until, what.choice)]

    @property
    def scale_seconds(self) -> float:
        return self._newest_mean(self.scale_costs, self.policies.tracking.scale_seconds)

    def _newest_mean(self, measured: Sequence[float], unmeasured: float) -> float:
        """Return the mean of the newest of what was measured; ``unmeasured`` if there is nothing."""
        newest = measured[-self.policies.tracking.newest_measured :]
        return sum(newest) / len(newest) if newest else unmeasured

    @property
    def change_seconds(self) -> float:
        """Seconds from a decision until a change of the plan has taken effect, as measured of late."""
        took = [
            one.done.seconds
            for one in self.decided[-32:]
            if one.decision.action in ("change", "explore") and one.done is not None and one.done.state == "done"
        ]
        return self._newest_mean(took, max(self.policies.tracking.change_seconds, self._launch_seconds))

    def _exploration(self, now: Candidate) -> Exploration | None:
        """Return the try that the plan which the job has ``now`` is; None: it is none."""
        plans = (
            one.decision for one in reversed(self.decided) if one.decision.action in ("start", "change", "explore")
        )
        last = next(plans, None)
        return last.exploration if last is not None and last.choice == now else None

    def _last_change(self, view: JobView, now: Candidate) -> LastChange | None:
        """Return the change that the plan which the job has ``now`` follows from."""
        found = view.last_change if self.present or view.now in (None, now) else LastChange(left=view.now)
        last = next((one.decision for one in reversed(self.decided) if one.decision.choice is not None), None)
        if found is None or last is None or last.choice != now or last.predicted is None:
            return found
        return msgspec.structs.replace(found, taken=last.action == "change" and last.predicted.gain.expected <= 0)

    def _tried_seconds(self, now: Candidate) -> float:
        """Compute the seconds of intervals measured with the plan that the job has ``now``, since it had another one."""
        return sum(p.seconds for p in takewhile(lambda p: candidate_of(p) == now, reversed(self.profiles)))

    def cores_used(self, host: str) -> float:
        """Return the cores that the job's nodes on a host used in the last profile; a node of which the host isn't known may be there."""
        if not self.profiles:
            return 0.0
        return sum(cores for its, cores in used_of(self.profiles[-1]) if its in ("", host))

    def left_of(self, room: Capacity, most: Resources) -> Capacity:
        """Return as much of a room as ``most`` allows, which is kept until one of them is another."""
        if self.left is None or self.left[0] is not room or self.left[1] != most:
            self.left = room, most, room.within(most)
        return self.left[2]

    def free_cores(self, capacity: Capacity) -> dict[str, float]:
        """Compute the cores of each host that nobody but the brain's jobs takes."""
        measured = self.profiles[-1].hosts if self.profiles else ()
        uses = {use.host: use for use in reversed(measured)}
        if len(capacity.hosts) == 1:  # it is meant, by whatever name
            return {host.name: self._free_on(host, measured[0] if measured else None) for host in capacity.hosts}
        return {host.name: self._free_on(host, uses.get(host.name)) for host in capacity.hosts}

    def _free_on(self, host: Host, use: HostUse | None) -> float:
        """Compute the cores of a host that nobody but the brain's jobs takes, and at least half of them: the kernel gives those who ask
        their share, however much strangers take while nobody does. ``use``: as the job has measured it last."""
        if use is None:
            return host.resources.cores
        background = self.background.get(use.host)
        left = use.cores - (0.0 if background is None else background.cores)
        return min(host.resources.cores, max(left, self.cores_used(use.host), use.cores / 2))


def _most_of(held: Sequence[Host], under_way: Decision | None) -> tuple[Host, ...]:
    """Return what a job holds of each host: what its nodes have there, or are to have by the decision that is ``under_way``, whichever is
    more."""
    if under_way is None or under_way.plan is None or not under_way.placement:
        return tuple(held)
    found = by_name(held)
    for on in under_way.placement:
        has, wanted = found.get(on.host, Resources(0.0, 0)), together(under_way.plan, on)
        found[on.host] = Resources(max(has.cores, wanted.cores), max(has.memory, wanted.memory))
    return tuple(Host(name, found[name]) for name in sorted(found))
