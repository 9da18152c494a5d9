"""Jobs on simulated hosts (``physics.queues``), decided for by the real advisor over a database of its own.

Time passes in windows of five seconds. What is decided is carried out in the next one, at four fifths of the speed: nodes go where most
cores are free, PS first. Of what is done about slow nodes slots move, at once; other nodes aren't started.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np
from _host_plans import SIMULATED_SECONDS, measure, placed_by

from dlrover_lite.backends.sim.physics.machines import Machine
from dlrover_lite.backends.sim.physics.queues import Costs, Window
from dlrover_lite.brain.advisor import Advisor, Arrival
from dlrover_lite.brain.effect import Effect
from dlrover_lite.brain.healing.mitigation import Treatment
from dlrover_lite.brain.job_tracker import candidate
from dlrover_lite.brain.planning.decision import Decision
from dlrover_lite.brain.planning.plan_grid import Candidate
from dlrover_lite.brain.policies import USUAL, Policies
from dlrover_lite.brain.store import queries
from dlrover_lite.brain.store.database import ConfigStore
from dlrover_lite.brain.store.records import JobEntry
from dlrover_lite.core.units import GIB, MIB, Resources
from dlrover_lite.protocol.acts import MoveSlots, Resize
from dlrover_lite.protocol.demands import DecisionOutcome, Demand, Standing, StandingNode
from dlrover_lite.protocol.features import JobFeatures
from dlrover_lite.protocol.hosts import Host
from dlrover_lite.protocol.outcomes import JobOutcome
from dlrover_lite.protocol.plans import Plan, RolePlan
from dlrover_lite.protocol.profiles import HostUse, Profile, PsUse, WorkerUse, host_speeds

__all__ = [
    "WINDOW_SECONDS",
    "Cluster",
    "SimulatedJob",
    "changes_of",
    "mean_rate",
    "profile_of",
    "run_alone",
]

WINDOW_SECONDS = 5.0
_CHANGE_SECONDS, _KEPT = 4.0, 0.8
_RESIZE_SECONDS = 1.0
"""Seconds until all nodes have other limits, where none comes or goes: a fifteenth of a second each, and as long until the next is told."""
_BEGAN = 1_000_000.0
_ROWS, _ROW_BYTES, _PS_BYTES, _WORKER_BYTES = 2_000_000, 144, 90 * MIB, 400 * MIB


def shares_by_speed(profiles: Sequence[Profile], hosts: Sequence[int]) -> list[float]:
    """Give PS on ``hosts`` slots by the speeds that are known of these, as a master does when their number changes."""
    known = host_speeds(profiles[-64:])
    speeds = [known.get(f"host-{host}", 1.0) for host in hosts]
    return [speed / sum(speeds) for speed in speeds]


@dataclass
class SimulatedJob:
    """``costs``: at a time, in seconds since the job began."""

    name: str
    costs: Callable[[float], Costs]
    total_samples: float
    seed: int
    priority: float = 1.0
    fixed: Candidate | None = None
    """The plan that its recipe fixes."""
    model: str = "wide_deep"
    checkpoints: bool = False
    """It can give way to another job, and go on later."""
    plan: Candidate | None = None
    hosts: list[int] = field(default_factory=list)
    shares: list[float] = field(default_factory=list)
    """Share of all work on rows that each PS has; empty: even."""
    memory: dict[str, int] = field(default_factory=dict)
    """Bytes of nodes that were resized since the last change of the plan."""
    samples: float = 0.0
    began: float = _BEGAN
    history: list[tuple[float, Candidate, float]] = field(default_factory=list)
    """Seconds since the job began at the end of each window, the plan then, and samples/s in it."""
    decisions: list[Decision] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)
    """What its decisions have brought, as far as that was measured, once it has run."""
    windows: int = 0
    profile: Profile | None = None
    """Profile of the last window, if its plan didn't change."""
    profiles: list[Profile] = field(default_factory=list)
    done: DecisionOutcome | None = None
    """What became of a decision in the last window."""

    def nodes(self) -> list[tuple[str, str, float, int]]:
        """Name, role, cores and host of each node, workers first."""
        assert self.plan is not None
        roles = [("worker", at, self.plan.worker_cores) for at in range(self.plan.workers)]
        roles += [("ps", at, self.plan.ps_cores) for at in range(self.plan.servers)]
        return [(f"{role}-{at}", role, cores, host) for (role, at, cores), host in zip(roles, self.hosts, strict=True)]


class Cluster:
    """Hosts, jobs on them, and the advisor. ``pass_window`` lets five seconds pass."""

    def __init__(
        self,
        machines: Sequence[Machine],
        directory: Path,
        *,
        memory: int = 64 * GIB,
        policies: Policies = USUAL,
        shared_cores: bool = False,
    ) -> None:
        """``shared_cores``: each job's nodes share the cores that they have together."""
        self.machines = list(machines)
        self.shared_cores = shared_cores
        self.hosts = tuple(Host(f"host-{at}", Resources(one.cores, memory)) for at, one in enumerate(machines))
        self.store = ConfigStore(directory / "brain.sqlite", busy_seconds=0.01)
        self.said: list[str] = []
        self.advisor = Advisor(self.store, policies=policies, say=self.said.append)
        self.now = _BEGAN
        self.jobs: dict[str, SimulatedJob] = {}
        self._pending: dict[str, tuple[int, Decision]] = {}
        self._heard: dict[str, int] = {}
        self._arrivals: dict[str, Arrival] = {}
        self._entries: dict[str, JobEntry] = {}

    def arrives(self, job: SimulatedJob) -> None:
        job.began = self.now
        costs = job.costs(0.0)
        features = JobFeatures(
            model=job.model,
            tables=26,
            dims=int(costs.sample_bytes / 4),
            batch_size=costs.batch_size,
            rows=int(job.total_samples),
            optimizer="adagrad",
        )
        worker, servers = (None, None) if job.fixed is None else _roles(job.fixed)
        demand = Demand(
            hosts=self.hosts,
            worker=worker,
            ps=servers,
            total_samples=job.total_samples,
            epoch_samples=job.total_samples,
            checkpoints=job.checkpoints,
            shared_cores=self.shared_cores,
        )
        self._entries[job.name] = JobEntry(
            id=job.name, name=job.name, state="running", created_at=self.now, features=msgspec.to_builtins(features)
        )
        self.store.put_job(self._entries[job.name])
        self.store.commit()
        self.jobs[job.name], self._heard[job.name] = job, 0
        arrival = Arrival(
            job=job.name,
            features=msgspec.to_builtins(features),
            demand=demand,
            began=self.now,
            priority=job.priority,
        )
        self._arrivals[job.name] = arrival
        self.advisor.arrived(arrival, self.now)
        self._decide()

    def ends(self, job: SimulatedJob) -> None:
        """Take a job away that has ended, or failed."""
        del self.jobs[job.name], self._heard[job.name], self._arrivals[job.name]
        self._pending.pop(job.name, None)
        self.store.put_job(msgspec.structs.replace(self._entries.pop(job.name), state="succeeded", ended_at=self.now))
        self.advisor.ended(job.name, JobOutcome(), self.now)
        self._decide()

    def pass_window(self) -> None:
        for job in sorted(self.jobs.values(), key=self._takes):
            self._train(job)
        self.now += WINDOW_SECONDS
        for job in list(self.jobs.values()):
            self._report(job)
        self._decide()

    def close(self) -> None:
        self.store.close()

    def _decide(self) -> None:
        for advice in self.advisor.step(self.now):
            for name, one in advice.items():
                if one.number > self._heard[name]:
                    self._heard[name] = one.number
                    decision = msgspec.convert(one.decision, Decision)
                    self.jobs[name].decisions.append(decision)
                    self._pending[name] = one.number, decision

    def _takes(self, job: SimulatedJob) -> float:
        """Compute the cores that a job takes by what is decided for it: who gives some comes first."""
        _, decision = self._pending.get(job.name, (0, None))
        had = 0.0 if job.plan is None else job.plan.cores
        if decision is None or (decision.plan is None and decision.action != "preempt"):
            return 0.0
        return (0.0 if decision.plan is None else candidate(decision.plan).cores) - had

    def _train(self, job: SimulatedJob) -> None:
        number, decision = self._pending.pop(job.name, (0, None))
        seconds = WINDOW_SECONDS
        job.profile, job.done = None, None
        trained = 0.0
        if decision is not None and decision.plan is not None and decision.action in ("start", "change", "explore"):
            wanted = candidate(decision.plan)
            hosts = placed_by(decision, self.machines, self._held(job))
            if hosts is None:
                job.done = self._became(job, number, "given up", 0.0, 0)
            else:
                in_place = job.plan is not None and _in_place(job.plan, wanted, job.hosts, hosts)
                takes, kept = (_RESIZE_SECONDS, 1.0) if in_place else (_CHANGE_SECONDS, _KEPT)
                if job.plan is not None:
                    trained = kept * takes * self._window(job, takes)[1]
                seconds -= takes
                if job.plan is None or job.plan.servers != wanted.servers:
                    job.shares = shares_by_speed(job.profiles, hosts[wanted.workers :])
                job.plan, job.hosts, job.memory = wanted, hosts, {}
                job.done = self._became(job, number, "done", takes, int(trained))
        elif decision is not None and decision.action == "preempt" and job.plan is not None:
            job.done = self._became(job, number, "done", WINDOW_SECONDS, 0)
            job.samples += _KEPT * WINDOW_SECONDS * self._window(job, WINDOW_SECONDS)[1]
            job.plan, job.hosts = None, []
            return
        elif decision is not None:
            moved = job.plan is not None and decision.treatment is not None and self._treat(job, decision.treatment)
            job.done = self._became(job, number, "done" if moved else "given up", 0.0, 0)
        if job.plan is None:
            return
        window, rate = self._window(job, seconds)
        trained += seconds * rate
        job.samples = min(job.total_samples, job.samples + trained)
        job.history.append((self.now + WINDOW_SECONDS - job.began, job.plan, trained / WINDOW_SECONDS))
        if seconds == WINDOW_SECONDS:
            ends, held = self.now + WINDOW_SECONDS, self._held(job)
            profile = profile_of(job, window, self.machines, at=ends, held=held)
            job.profile = msgspec.structs.replace(profile, shared_cores=self.shared_cores)
            job.profiles.append(job.profile)

    @staticmethod
    def _treat(job: SimulatedJob, treatment: Treatment) -> bool:
        """Carry out a treatment at once; return whether that can be: slots move, and memory is there for the taking."""
        if isinstance(act := treatment.act, Resize):
            if treatment.cause == "hot ps":
                return False
            job.memory.update({treatment.node: act.resources.memory})
            job.memory.update({name: resources.memory for name, resources in act.others.items()})
            return True
        if not isinstance(treatment.act, MoveSlots):
            return False
        names = [name for name, role, _, _ in job.nodes() if role == "ps"]
        shares = job.shares or [1 / len(names)] * len(names)
        moved = treatment.act.share * shares[names.index(treatment.node)]
        shares[names.index(treatment.node)] -= moved
        for name, part in treatment.act.to.items():
            shares[names.index(name)] += moved * part
        job.shares = [share / sum(shares) for share in shares]
        return True

    def _window(self, job: SimulatedJob, seconds: float) -> tuple[Window, float]:
        assert job.plan is not None
        job.windows += 1
        costs = job.costs(self.now - job.began)
        machines = [
            Machine(one.cores - taken, one.speed, one.bytes_per_second)
            for one, taken in zip(self.machines, self._held(job), strict=True)
        ]
        window = measure(
            job.plan,
            job.hosts,
            machines,
            costs,
            seed=1000 * job.seed + job.windows,
            seconds=SIMULATED_SECONDS,
            shares=job.shares,
            shared_cores=self.shared_cores,
        )
        return window, float(window.minibatches.sum()) * costs.batch_size / SIMULATED_SECONDS

    def _held(self, job: SimulatedJob) -> list[float]:
        """Cores of each host that other jobs have."""
        held = [0.0] * len(self.machines)
        for other in self.jobs.values():
            if other is not job and other.plan is not None:
                for _, _, cores, host in other.nodes():
                    held[host] += cores
        return held

    def _became(self, job: SimulatedJob, number: int, state: str, seconds: float, samples: int) -> DecisionOutcome:
        done = {"job": job.name, "number": number, "at": self.now + seconds, "state": state}
        return msgspec.convert({**done, "seconds": seconds, "samples": samples}, DecisionOutcome)

    def _report(self, job: SimulatedJob) -> None:
        profile, done = job.profile, job.done
        if job.plan is None and done is None:
            return
        standing = None
        if job.plan is not None:
            plan = self._plan(job)
            nodes = tuple(
                StandingNode(name, role, f"host-{host}", self._resources(job, plan, name, role))  # type: ignore[arg-type]
                for name, role, _, host in job.nodes()
            )
            standing = Standing(
                plan=plan, nodes=nodes, worker_peak=_WORKER_BYTES, heard=self._heard[job.name], move_rate=2.0e8
            )
        self.advisor.reported(
            job.name,
            samples=int(job.samples),
            profiles=[profile] if profile is not None else [],
            standing=standing,
            done=[done] if done is not None else [],
        )
        if standing is None and job.samples:
            self.advisor.arrived(msgspec.structs.replace(self._arrivals[job.name], waits_since=self.now), self.now)

    @staticmethod
    def _resources(job: SimulatedJob, plan: Plan, name: str, role: str) -> Resources:
        each = (plan.worker if role == "worker" else plan.ps).each
        return Resources(each.cores, job.memory.get(name, each.memory))

    def _plan(self, job: SimulatedJob) -> Plan:
        latest = [one.plan for one in job.decisions if one.plan is not None and candidate(one.plan) == job.plan]
        assert latest[-1] is not None
        return latest[-1]


def profile_of(
    job: SimulatedJob, window: Window, machines: Sequence[Machine], *, at: float, held: Sequence[float]
) -> Profile:
    """Make the profile of a window that ended ``at`` that time. ``held``: cores of each host that other jobs had."""
    factor, nodes = WINDOW_SECONDS / window.seconds, job.nodes()
    batch_size = job.costs(at - WINDOW_SECONDS - job.began).batch_size
    assert job.plan is not None
    workers, servers = [], []
    done = int(window.minibatches.sum() * factor)
    shares = job.shares or [1 / job.plan.servers] * job.plan.servers
    for number, (name, role, cores, host) in enumerate(nodes):
        used, busy, throttled, waited = (float(of[number]) * factor for of in window[2:6])
        if role == "worker":
            read = {"read": float(window.read_seconds[number]) * factor}
            count = int(window.minibatches[number] * factor)
            workers.append(WorkerUse(name, f"host-{host}", cores, count, used, throttled, read, {"compute": used}))
        else:
            server = PsUse(name, f"host-{host}", cores, done, used, busy, waited, throttled)
            rows = int(_ROWS * shares[number - job.plan.workers])
            memory = dict.fromkeys(("used_bytes", "peak_bytes"), _PS_BYTES + rows * _ROW_BYTES)
            servers.append(msgspec.structs.replace(server, rows=rows, row_bytes=rows * _ROW_BYTES, **memory))
    return Profile(
        job=job.name,
        at=at,
        seconds=WINDOW_SECONDS,
        batch_size=batch_size,
        samples=done * batch_size,
        samples_so_far=int(job.samples),
        workers=tuple(workers),
        ps=tuple(servers),
        hosts=tuple(
            HostUse(
                f"host-{host}",
                machines[host].cores,
                held[host],
                received_bytes=int(window.moved_bytes[host] * factor),
                receiving_seconds=float(window.moved_seconds[host]) * factor,
            )
            for host in sorted({node[3] for node in nodes})
        ),
    )


def _in_place(plan: Candidate, wanted: Candidate, hosts: Sequence[int], new_hosts: Sequence[int]) -> bool:
    """Say whether no node comes, goes or moves."""
    if (plan.workers, plan.servers) != (wanted.workers, wanted.servers):
        return False
    n = plan.workers
    return all(sorted(hosts[part]) == sorted(new_hosts[part]) for part in (slice(n), slice(n, None)))


def _roles(plan: Candidate) -> tuple[RolePlan, RolePlan]:
    return (
        RolePlan(plan.workers, Resources(plan.worker_cores, _WORKER_BYTES)),
        RolePlan(plan.servers, Resources(plan.ps_cores, GIB)),
    )


def run_alone(
    job: SimulatedJob,
    machines: Sequence[Machine],
    seconds: float,
    policies: Policies = USUAL,
) -> None:
    """Let one job run on hosts of its own. Raises SystemExit where the brain complains."""
    with tempfile.TemporaryDirectory(prefix="dlrover-lite-bench-") as directory:
        cluster = Cluster(machines, Path(directory), policies=policies)
        cluster.arrives(job)
        while cluster.now - job.began < seconds:
            cluster.pass_window()
        job.effects = [one.effect for one in queries.decisions(cluster.store, job.name, newest=256) if one.effect]
        cluster.close()
    for sentence in cluster.said:
        raise SystemExit(f"The brain complains: {sentence}")


def mean_rate(job: SimulatedJob, until: float, since: float = 0.0) -> float:
    rates = [rate for at, _, rate in job.history if since < at <= until]
    return float(np.mean(rates)) if rates else 0.0


def changes_of(job: SimulatedJob) -> Iterable[Decision]:
    return (one for one in job.decisions if one.acts)
