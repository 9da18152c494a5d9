"""An adviser over a database of its own, and simulated jobs that tell it what masters would."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from dlrover_lite.brain.advisor import Advisor, Arrival
from dlrover_lite.brain.job_tracker import candidate
from dlrover_lite.brain.planning.decision import Decision
from dlrover_lite.brain.planning.plan_grid import Candidate
from dlrover_lite.brain.policies import USUAL, Policies
from dlrover_lite.brain.store import queries
from dlrover_lite.brain.store.database import ConfigStore
from dlrover_lite.brain.store.records import JobEntry, profile_record
from dlrover_lite.core.units import GIB, Resources
from dlrover_lite.protocol.demands import DecisionOutcome, Demand, Standing, StandingNode
from dlrover_lite.protocol.features import JobFeatures
from dlrover_lite.protocol.plans import Plan, RolePlan
from tests.brain.simulated import START, Job, hosts

FEATURES = JobFeatures(model="wide_deep", tables=26, dims=416, batch_size=512, rows=20_000_000, optimizer="adagrad")
MACHINE = Resources(8.0, 16 * GIB)


def demand(**fields: Any) -> Demand:
    return Demand(**{"hosts": hosts(a=MACHINE), "total_samples": 4e7, "epoch_samples": 2e7, **fields})


def role(count: int, cores: float = 1.0, memory: int = GIB) -> RolePlan:
    return RolePlan(count, Resources(cores, memory))


class Office:
    """``turn`` lets five seconds pass, and decides."""

    def __init__(self, directory: Path, *, policies: Policies = USUAL) -> None:
        self.path = directory / "brain.sqlite"
        self.store = ConfigStore(self.path, busy_seconds=0.01)
        self.adviser = Advisor(self.store, policies=policies)
        self.now = START
        self.jobs: dict[str, Job] = {}

    def restart(self) -> None:
        """Another brain takes over; jobs have still to register with it."""
        self.store.close()
        self.store = ConfigStore(self.path, busy_seconds=0.01)
        self.adviser = Advisor(self.store)

    def arrives(self, job: str = "ads-1", **fields: Any) -> None:
        arrival = {
            "job": job,
            "features": msgspec.to_builtins(FEATURES),
            "demand": demand(),
            "began": self.now,
            **fields,
        }
        self.store.put_job(JobEntry(id=job, name="ads", state="running", created_at=arrival["began"]))
        self.store.commit()
        self.adviser.arrived(Arrival(**arrival), self.now)

    def turn(self) -> None:
        self.now += 5.0
        self.adviser.turn(self.now)

    def decisions(self, job: str = "ads-1") -> list[Decision]:
        """As they are in the database."""
        return [one.decision for one in queries.decisions(self.store, job)]

    def told(self, job: str = "ads-1") -> Decision | None:
        """What its master is to be told."""
        one = self.adviser.waiting().get(job)
        return None if one is None else one.decision

    def begins(self, job: str = "ads-1", *, plan: Candidate | None = None, **costs: Any) -> Job:
        """It has the plan that it was told, or this one, and trains from now on."""
        if plan is None:
            decided = self.told(job)
            assert decided is not None and decided.plan is not None
            plan = candidate(decided.plan)
        self.jobs[job] = Job(plan, name=job, seed=len(self.jobs), at=self.now, **costs)
        return self.jobs[job]

    def trains(
        self, job: str = "ads-1", windows: int = 1, done: tuple[DecisionOutcome, ...] = (), **standing: Any
    ) -> None:
        """As many windows of measuring, each reported, and kept in the database as the service does."""
        known = self.jobs[job]
        for _ in range(windows):
            profile = known.window()
            self.now = max(self.now, profile.at)
            self.store.add_profile(profile_record(profile))
            self.store.commit()
            self.says(job, profiles=(profile,), done=done, **standing)
            done = ()

    def says(self, job: str, *, profiles: Any = (), done: Any = (), **standing: Any) -> None:
        """A report. ``heard``: by default all that it was told."""
        known = self.jobs[job]
        waiting = self.adviser.waiting().get(job)
        stands = {
            "plan": plan_of(known),
            "nodes": nodes_of(known),
            "heard": waiting.number if waiting else 0,
            **standing,
        }
        self.adviser.reported(
            job, samples=int(known.samples), profiles=profiles, standing=Standing(**stands), done=done
        )

    def close(self) -> None:
        self.store.close()


def plan_of(job: Job) -> Plan:
    plan = job.plan
    return Plan(ps=role(plan.servers, plan.ps_cores), worker=role(plan.workers, plan.worker_cores))


def nodes_of(job: Job) -> tuple[StandingNode, ...]:
    return tuple(StandingNode(node.node, node.role, node.host, node.resources) for node in job.nodes())


def done(job: str, number: int, at: float, state: Any = "done", **fields: Any) -> DecisionOutcome:
    return DecisionOutcome(
        **{"job": job, "number": number, "at": at, "state": state, "seconds": 4.0, "samples": 1000, **fields}
    )
