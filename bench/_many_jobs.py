"""A thousand jobs that report to the brain: what its process takes of CPU and memory, in a steady state. Run as a process of its own.

    python bench/_many_jobs.py JOBS WINDOWS SECONDS

Each job has 26 tables and reports every 15 s, evenly spread: an interval with its profile, as a message that is decoded. What the service
does with it is done (the profile is written), then what the decision thread does (``Advisor.step``), one report at a time. What is
decided takes effect at once, which is reported too. Only what the brain does is timed. Prints a line of JSON.
"""

from __future__ import annotations

import math
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np

from dlrover_lite.brain.advisor import Advisor, Arrival
from dlrover_lite.brain.planning.decision import Decision
from dlrover_lite.brain.store.database import ConfigStore
from dlrover_lite.brain.store.records import JobEntry, profile_record
from dlrover_lite.core.garbage_collection import infrequent_garbage_collection
from dlrover_lite.core.units import GIB, MIB, Resources
from dlrover_lite.protocol.acts import Resize, WorkRole
from dlrover_lite.protocol.brain_messages import Advice, Report
from dlrover_lite.protocol.demands import DecisionOutcome, Demand, Standing, StandingNode, TableFacts
from dlrover_lite.protocol.features import JobFeatures
from dlrover_lite.protocol.hosts import Host
from dlrover_lite.protocol.plans import Plan, RolePlan
from dlrover_lite.protocol.profiles import HostUse, Profile, PsUse, TableUse, WorkerUse

TABLES, REPORT_SECONDS = 26, 15.0
CORES_PER_JOB, MEMORY_PER_JOB = 6, 24 * GIB
MOST = Resources(16.0, 64 * GIB)
"""Ceiling of each job's recipe."""
BATCH, DIM = 512, 16
FEATURES = JobFeatures(
    model="wide_deep", tables=TABLES, dims=TABLES * DIM, batch_size=BATCH, rows=10**10, optimizer="adagrad"
)
ROW_BYTES, BUCKET_BYTES = 12 + 4 * DIM * 2, 7
BEGAN = 1_000_000.0
NOISE, EXPONENT = 0.02, 5.0


@dataclass
class SteadyJob:
    """A job that goes on and on. Costs are CPU seconds of a minibatch."""

    name: str
    plan: Plan
    worker_cost: float
    ps_cost: float
    random: np.random.Generator
    slopes: np.ndarray
    samples: float = 0.0
    heard: int = 0
    given: dict[str, int] = field(default_factory=dict)
    """Bytes of memory of nodes that have been resized."""

    def report(self, at: float, host: str) -> Report:
        return Report(self.name, int(self.samples), [self.window(at, host)], standing=self.standing(host))

    def carries_out(self, number: int, decision: Decision, at: float, host: str) -> Report:
        """Do what was decided; return the report that it is done."""
        self.heard = number
        if decision.plan is not None:
            self.plan, self.given = decision.plan, {}
        elif decision.treatment is not None and isinstance(act := decision.treatment.act, Resize):
            resized = {decision.treatment.node: act.resources, **act.others}
            self.given |= {node: its.memory for node, its in resized.items()}
        done = DecisionOutcome(job=self.name, number=number, at=at, state="done", seconds=4.0, samples=1000)
        return Report(self.name, int(self.samples), standing=self.standing(host), done=[done])

    def standing(self, host: str) -> Standing:
        roles: list[tuple[WorkRole, RolePlan]] = [("worker", self.plan.worker), ("ps", self.plan.ps)]
        nodes = [
            StandingNode(
                name, role, host,
                Resources(planned.each.cores, self.given.get(name, planned.each.memory)), planned.each.memory // 2,
            )
            for role, planned in roles
            for name in (f"{role}-{at}" for at in range(planned.count))
        ]  # fmt: skip
        return Standing(plan=self.plan, nodes=tuple(nodes), heard=self.heard, worker_peak=300 * MIB)

    def window(self, at: float, host: str) -> Profile:
        worker, ps = self.plan.worker, self.plan.ps
        limits = (
            self.worker_cost / (worker.count * min(worker.each.cores, 1.6)),
            self.ps_cost / (ps.count * min(ps.each.cores, 1.0)),
        )
        seconds = sum(one**EXPONENT for one in limits) ** (1 / EXPONENT) * math.exp(NOISE * self.random.normal())
        minibatches = int(REPORT_SECONDS / seconds)
        samples = minibatches * BATCH
        self.samples += samples
        rows = (3.0 * self.samples**self.slopes).astype(np.int64)
        tables = [
            TableUse(f"table-{at}", DIM, {f"ps-{one}": int(count) // ps.count for one in range(ps.count)})
            for at, count in enumerate(rows.tolist())
        ]
        each = int(rows.sum()) // ps.count
        held = each * (ROW_BYTES + BUCKET_BYTES)
        noise = np.exp(NOISE * self.random.normal(size=worker.count + ps.count)).tolist()
        workers = [
            WorkerUse(
                f"worker-{one}", host, worker.each.cores, minibatches // worker.count,
                self.worker_cost * minibatches / worker.count * noise[one],
                phase_seconds={"read": 0.5, "pull": 3.0, "compute": 9.0, "push": 2.0, "wait": 0.5},
                phase_cpu_seconds={"read": 0.4, "pull": 1.0, "compute": 8.0, "push": 1.0},
            )
            for one in range(worker.count)
        ]  # fmt: skip
        servers = [
            PsUse(
                f"ps-{one}", host, ps.each.cores, minibatches,
                self.ps_cost * minibatches / ps.count * noise[worker.count + one],
                busy_seconds=0.4 * REPORT_SECONDS, queue_seconds=0.1 * REPORT_SECONDS,
                rows=each, row_bytes=held, used_bytes=90 * MIB + held, peak_bytes=90 * MIB + held,
                requests=2 * minibatches,
            )
            for one in range(ps.count)
        ]  # fmt: skip
        return Profile(
            self.name, at, REPORT_SECONDS, BATCH, samples, int(self.samples), tuple(workers), tuple(servers),
            (HostUse(host, 0.0, 0.0),), 0.01, tuple(tables),
        )  # fmt: skip


class ManyJobs:
    """Jobs on one host that is as large as all need, and the brain's process."""

    def __init__(self, jobs: int, windows: int, directory: Path) -> None:
        path = directory / "brain.sqlite"
        self.service, self.store = ConfigStore(path), ConfigStore(path)
        self.said: list[str] = []
        self.advisor = Advisor(self.store, say=self.said.append)
        self.hosts = (Host("cluster", Resources(float(CORES_PER_JOB * jobs), MEMORY_PER_JOB * jobs)),)
        self.seconds = 0.0
        """CPU seconds of the brain."""
        self.slowest = 0.0
        self.actions: Counter[str] = Counter()
        self.now = BEGAN + windows * REPORT_SECONDS
        self.jobs = [self._arrives(number, windows, jobs) for number in range(jobs)]
        self._turn = 0
        self.by_name = {job.name: job for job in self.jobs}

    def _arrives(self, number: int, windows: int, jobs: int) -> SteadyJob:
        random = np.random.default_rng(number)
        plan = Plan(
            ps=RolePlan(int(random.integers(1, 3)), Resources(0.5, 4 * GIB)),
            worker=RolePlan(int(random.integers(2, 6)), Resources(1.0, GIB)),
        )
        worker_cost, ps_cost = 0.02 * random.lognormal(0, 0.3), 0.006 * random.lognormal(0, 0.3)
        job = SteadyJob(
            f"job-{number:05}", plan, worker_cost, ps_cost, random, random.uniform(0.55, 0.75, TABLES)
        )  # fmt: skip
        arrival = Arrival(
            job=job.name,
            features=msgspec.to_builtins(FEATURES),
            demand=Demand(
                hosts=self.hosts, total=MOST, total_samples=1e10, epoch_samples=1e10,
                facts=TableFacts(state_parts=1, most_ids=1e8), checkpoints=True,
            ),
            began=BEGAN,
            plan=plan,
            priority=float(random.choice([1.0, 1.0, 2.0])),
        )  # fmt: skip
        self.service.put_job(JobEntry(id=job.name, name=job.name, state="running", created_at=BEGAN))
        self.service.commit()
        self.advisor.arrived(arrival, BEGAN)
        offset = number / jobs * REPORT_SECONDS
        for window in range(windows):
            self._hear(self._encoded(job, BEGAN + window * REPORT_SECONDS + offset))
        return job

    def _encoded(self, job: SteadyJob, at: float) -> bytes:
        report = job.report(at, self.hosts[0].name)
        uses: list[WorkerUse | PsUse] = [*report.profiles[0].workers, *report.profiles[0].ps]
        used = sum(use.cpu_seconds for use in uses) / REPORT_SECONDS
        cores = self.hosts[0].resources.cores
        others = 0.5 * cores * math.exp(0.01 * job.random.normal()) - used
        hosts = (HostUse(self.hosts[0].name, cores, others),)
        report = msgspec.structs.replace(report, profiles=[msgspec.structs.replace(report.profiles[0], hosts=hosts)])
        return msgspec.msgpack.encode(report)

    def _hear(self, message: bytes) -> None:
        body = msgspec.msgpack.decode(message, type=Report)
        for profile in body.profiles:
            self.service.add_profile(profile_record(profile))
        self.service.commit()
        self.advisor.hear(self.now, [body])

    def run(self, seconds: float) -> float:
        """Let time pass; return the CPU seconds that the brain took for it."""
        began, wall = self.seconds, time.perf_counter()
        each = REPORT_SECONDS / len(self.jobs)
        for _ in range(round(seconds / each)):
            job = self.jobs[self._turn % len(self.jobs)]
            self._turn += 1
            self.now += each
            message = self._encoded(job, self.now)
            advice = self._timed(message)
            for name, one in sorted(advice.items()):
                told = self.by_name[name]
                if one.number > told.heard:
                    self._timed(self._done(told, one))
        self.wall = time.perf_counter() - wall
        return self.seconds - began

    def _timed(self, message: bytes) -> dict[str, Advice]:
        start = time.process_time()
        self._hear(message)
        *_, advice = self.advisor.step(self.now)
        took = time.process_time() - start
        self.seconds += took
        self.slowest = max(self.slowest, took)
        return advice

    def _done(self, job: SteadyJob, one: Advice) -> bytes:
        decision = msgspec.convert(one.decision, Decision)
        self.actions[decision.action if decision.treatment is None else decision.treatment.cause] += 1
        return msgspec.msgpack.encode(job.carries_out(one.number, decision, self.now, self.hosts[0].name))


def most_memory_mib() -> float:
    """The most memory that the process has had, without what the one had that it was forked from."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return float(status.split("VmHWM:")[1].split()[0]) / 1024


def main(jobs: int, windows: int, seconds: float) -> None:
    with (
        infrequent_garbage_collection(),
        tempfile.TemporaryDirectory(prefix="dl-bench-") as name,
    ):  # as the brain's process does
        many = ManyJobs(jobs, windows, Path(name))
        first = many.run(REPORT_SECONDS * 2)
        settled = dict(many.actions)
        many.actions.clear()
        many.slowest = 0.0
        took = many.run(seconds)
        found = {
            "jobs": jobs,
            "windows": windows,
            "seconds": seconds,
            "cores": took / seconds,
            "ms_per_report": took / (jobs * seconds / REPORT_SECONDS) * 1e3,
            "first_cores": first / (2 * REPORT_SECONDS),
            "slowest_s": many.slowest,
            "memory_mib": most_memory_mib(),
            "settled": settled,
            "actions": dict(many.actions),
            "said": many.said,
            "wall_s": many.wall,
            "store_mib": sum(file.stat().st_size for file in Path(name).iterdir()) / MIB,
        }
        print(msgspec.json.encode(found).decode(), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
