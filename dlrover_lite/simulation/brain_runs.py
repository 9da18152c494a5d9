"""Traces run with the real brain and a real master for each job, whose nodes train as fluids on simulated machines."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from dlrover_lite.backends.sim.fluid.job import Usage
from dlrover_lite.backends.sim.machine_faults import schedule_faults
from dlrover_lite.backends.sim.physics.rates import Rates
from dlrover_lite.core.errors import DlroverLiteError
from dlrover_lite.core.files.durable import without_syncing
from dlrover_lite.core.garbage_collection import infrequent_garbage_collection
from dlrover_lite.master.cadence import Cadence
from dlrover_lite.master.profiling.profiler import Pace
from dlrover_lite.master.work.lease_size import LeasePolicy
from dlrover_lite.master.work.shard_plan import ShardPlan
from dlrover_lite.simulation.ablations import WHOLE, Ablation
from dlrover_lite.simulation.fluid_nodes.fluid_program import FluidPrograms
from dlrover_lite.simulation.fluid_nodes.fluid_work import FluidWork
from dlrover_lite.simulation.fluid_nodes.job_rates import JobTruth
from dlrover_lite.simulation.job import JobSpec, SimulatedJob
from dlrover_lite.simulation.job_recipe import recipe_of
from dlrover_lite.simulation.outcomes.records import End, JobRecord, Run
from dlrover_lite.simulation.traces.cluster import ClusterFile
from dlrover_lite.simulation.traces.trace import Trace, TraceJob
from dlrover_lite.simulation.world import World

__all__ = ["BrainRun", "simulate_with_brain"]

REPORT_SECONDS = 15.0
"""Seconds between two reports of a node to which nothing special happens, and between two profiles of a job."""
CADENCE = Cadence(
    reconcile_seconds=1.0,
    calm_seconds=1.0,
    usage_seconds=REPORT_SECONDS,
    hosts_seconds=60.0,
    remember_seconds=600.0,
    show_seconds=math.inf,
    leases=LeasePolicy(lease_seconds=60.0, first_minibatches=200, memory_seconds=60.0),
    wait_seconds=5.0,
)
"""How often masters look at things, whose nodes report that seldom: once a second, whether a server is about to be full. What nodes use is
read once between two profiles, and when a server has grown."""
PACE = Pace(
    REPORT_SECONDS,
    first_seconds=REPORT_SECONDS,
    least_seconds=REPORT_SECONDS,
    warm_up_seconds=5.0,
    patience_seconds=REPORT_SECONDS + 1.0,
    look_seconds=REPORT_SECONDS,
)
_BRAIN_SECONDS = 1.0
"""Seconds between two looks of the brain at what it was told, which it decides by every minute."""
_LOOK_SECONDS = 60.0
"""Seconds between two looks at what jobs use."""
_HEARTBEAT_SECONDS = 10 * REPORT_SECONDS


class _Totals(NamedTuple):
    """What a job has used and was given until now."""

    used_core_seconds: float
    given_core_seconds: float
    used_byte_seconds: float
    given_byte_seconds: float


class BrainRun:
    """A world with the brain, into which the jobs of a trace come; its files are in ``directory``."""

    def __init__(
        self,
        trace: Trace,
        cluster: ClusterFile,
        directory: Path,
        *,
        seed: int = 0,
        rates: Rates | None = None,
        without: Ablation = WHOLE,
    ) -> None:
        pools = [pool for one in cluster.pools for pool in [one.pool] * one.most]
        machines = {
            f"machine-{at:03}": one for at, one in enumerate([*cluster.fixed, *(pool.machine for pool in pools)])
        }
        self.world = World(
            directory,
            seed=seed,
            machines=machines,
            pools=dict(zip(list(machines)[len(cluster.fixed) :], pools, strict=True)),
            startup=cluster.start,
            latency=False,
            hands_over=True,
            cadence=CADENCE,
            policies=without.policies,
            brain_seconds=_BRAIN_SECONDS,
        )
        self._trace = {f"job-{at:05}": job for at, job in enumerate(trace.jobs)}
        """Jobs by their names here: in a trace, a name may be anything, and need be none of a directory."""
        self._rates = Rates(seed) if rates is None else rates
        self._slowing = without.slowing
        self._usage: dict[str, list[Usage]] = {name: [] for name in self._trace}
        self._totals: dict[str, _Totals] = {}
        self._ended_at: dict[str, float] = {}
        self._looked_at = 0.0
        self._programs: list[FluidPrograms] = []
        for name, job in self._trace.items():
            self.world.add(self._spec(name, job))
        for at, name in enumerate(machines):
            schedule_faults(
                self.world.clock,
                seed,
                at,
                cluster.disturbances,
                set_works=partial(self._set_works, name),
                set_speed=partial(self._set_speed, name, machines[name].speed),
            )

    def run(self, until: float) -> float:
        """Let jobs run until all have ended, or up to a time; return when that was."""
        world = self.world
        world.clock.at(_LOOK_SECONDS, self._look)
        with infrequent_garbage_collection(), without_syncing():
            while world.clock.now < until and not world.is_over:
                world.happen()
        self._look()
        return min(until, world.clock.now)

    def records(self) -> tuple[JobRecord, ...]:
        return tuple(self._record(name, job) for name, job in self._trace.items())

    # --- jobs -------------------------------------------------------------------------------------------------------------

    def _spec(self, name: str, job: TraceJob) -> JobSpec:
        """Return a job whose user leaves its resources to the brain."""
        samples = int(job.samples)
        recipe = recipe_of(name, job, heartbeat_seconds=_HEARTBEAT_SECONDS)
        truth = JobTruth(job.costs, job.memory, slowing=self._slowing)
        programs = FluidPrograms(truth, self._rates, report_seconds=REPORT_SECONDS)
        self._programs.append(programs)
        return JobSpec(
            recipe,
            ShardPlan(samples=samples, batch_size=job.batch_size, epochs=1, eval_samples=0),
            arrives_at=job.arrives_at,
            id=name,
            owner=job.owner,
            work=FluidWork(job.costs, job.memory),
            program=programs,
            pace=PACE,
        )

    # --- what goes wrong --------------------------------------------------------------------------------------------------

    def _set_works(self, name: str, works: bool) -> None:
        if works:
            self.world.machines.repair(name)
        else:
            self.world.fail_machine(name)

    def _set_speed(self, name: str, usual: float, factor: float) -> None:
        self.world.machines.set_speed(name, usual * factor)
        for programs in self._programs:
            programs.changed()

    # --- what becomes of them ---------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Note what each job has used and was given since the last look."""
        now = self.world.clock.now
        self.world.machines.count(self.world.machines.machines)
        for job in self.world.jobs.values():
            if job.id not in self._ended_at:
                self._look_at(job, now)
        self._looked_at = now
        if not self.world.is_over:
            self.world.clock.at(now + _LOOK_SECONDS, self._look)

    def _look_at(self, job: SimulatedJob, now: float) -> None:
        total = _Totals(0.0, 0.0, 0.0, 0.0)
        for one in job.backend.processes.values():
            its = _Totals(one.cpu_seconds, one.given_core_seconds, one.used_byte_seconds, one.given_byte_seconds)
            total = _Totals(*(before + more for before, more in zip(total, its, strict=True)))
        seconds, before = now - self._looked_at, self._totals.get(job.id, _Totals(0.0, 0.0, 0.0, 0.0))
        if seconds > 0 and total != before:
            means = [(after - until) / seconds for after, until in zip(total, before, strict=True)]
            self._usage[job.id].append(Usage(self._looked_at, now, *means))
        self._totals[job.id] = total
        if job.is_over:
            result = job.files.result()
            self._ended_at[job.id] = now if result is None else result.ended_at - self.world.epoch

    def _record(self, name: str, job: TraceJob) -> JobRecord:
        usage = tuple(self._usage[name])
        found = self.world.jobs.get(name)
        outcome = found.outcome if found is not None else None
        end: End = "unfinished"
        if outcome is not None:
            end = "succeeded" if outcome.state == "succeeded" else "failed"
            if end == "failed" and "OOMKilled" in outcome.message:
                end = "out of memory"
        return JobRecord(
            name=job.name,
            model=job.model,
            asked_cores=job.asked_cores,
            priority=job.priority,
            arrived_at=job.arrives_at,
            started_at=max(job.arrives_at, usage[0].start) if usage else None,
            ended_at=self._ended_at.get(name),
            end=end,
            usage=usage,
        )


def simulate_with_brain(
    trace: Trace,
    cluster: ClusterFile,
    *,
    seed: int = 0,
    hours: float | None = None,
    rates: Rates | None = None,
    without: Ablation = WHOLE,
    keep: Callable[[Path], None] | None = None,
) -> Run:
    """Run a trace with the real brain until all jobs have ended, or for so many hours. The same arguments give the same run. ``keep`` is
    called with the brain's database before that is gone. Raises TraceError for a trace without jobs."""
    until = trace.ends_at(hours)
    with tempfile.TemporaryDirectory(prefix="dlrover-lite-simulation-") as directory:
        simulated = BrainRun(trace, cluster, Path(directory), seed=seed, rates=rates, without=without)
        try:
            ended = simulated.run(until)
            if told := [*simulated.world.problems, *simulated.world.said]:
                raise DlroverLiteError(
                    f"A simulated process met what it mustn't, so that nothing that came of it counts: {told[0]}",
                    hint="This is a fault of dlrover-lite: please report it, with the trace, the cluster file and the seed.",
                )
            jobs = simulated.records()
        finally:
            simulated.world.close()
        if keep is not None:
            keep(simulated.world.database)
    return Run(policy="dlrover", seed=seed, until=ended, jobs=jobs)
