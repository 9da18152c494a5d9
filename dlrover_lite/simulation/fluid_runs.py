"""Traces run as fluids under a policy: what the policy is told, when it is asked, and what is done of what it says."""

from __future__ import annotations

import math

from dlrover_lite.backends.sim.clock import source_of_chance
from dlrover_lite.backends.sim.fluid.job import FluidJob, PlanRate
from dlrover_lite.backends.sim.fluid.world import FluidWorld
from dlrover_lite.backends.sim.physics.noise import Noise
from dlrover_lite.backends.sim.physics.rates import Rates
from dlrover_lite.protocol.plans import Plan
from dlrover_lite.simulation.outcomes.records import Run, record_of
from dlrover_lite.simulation.policies.choose import policy_named
from dlrover_lite.simulation.policies.costs import CostTable, costs_of
from dlrover_lite.simulation.policies.policy import HostReport, JobReport, Measurement, Policy
from dlrover_lite.simulation.traces.cluster import ClusterFile
from dlrover_lite.simulation.traces.trace import Trace

__all__ = ["ROUND_SECONDS", "PolicyWorld", "simulate"]

ROUND_SECONDS = 60.0
"""Seconds between two rounds in which the policy is asked."""
_NOISE = Noise()


class PolicyWorld:
    """A world of fluids with a policy that is asked every round."""

    def __init__(
        self,
        trace: Trace,
        cluster: ClusterFile,
        policy: str,
        *,
        seed: int = 0,
        costs: CostTable = "mechanisms",
        rates: Rates | None = None,
    ) -> None:
        requests = [job.request for job in trace.jobs]
        known = Rates(seed) if rates is None else rates
        machines = cluster.fixed
        pools = [one.pool for one in cluster.pools]
        everything = [*machines, *(pool.machine for pool in pools for _ in range(pool.most))]
        self.policy: Policy = policy_named(policy, requests, everything, known)
        self.world = FluidWorld(
            machines,
            requests,
            startup=cluster.start,
            seed=seed,
            disturbances=cluster.disturbances,
            rates=known,
            pools=pools,
            costs=costs_of(policy, costs),
            first_plan=self._first,
        )
        self._seed = seed
        self._off: dict[str, float] = {}
        """How far what is measured of a job with a plan is off, in standard deviations."""
        self._hosts: tuple[int, list[HostReport]] = (-1, [])

    def run(self, until: float) -> float:
        """Let jobs run until all have ended, or up to a time; return when that was."""
        moment = 0.0
        arrivals = max((job.request.arrives_at for job in self.world.jobs), default=0.0)
        while moment < until and (moment <= arrivals or self.world.live):
            moment = min(until, moment + ROUND_SECONDS)
            self.world.run_until(moment)
            self._round(moment)
        return moment

    def _first(self, job: FluidJob) -> Plan | None:
        return self.policy.first(self.report(job), self.hosts)

    def _round(self, now: float) -> None:
        jobs = {job.request.name: job for job in self.world.live}
        wanted = self.policy.plans(now, [self.report(job) for job in jobs.values()], self.hosts)
        # Who gives up something goes first, so that others find it.
        for name in sorted(wanted, key=lambda name: (cores_of(wanted[name]) > cores_of(jobs[name].plan), name)):
            self.world.changes.change(jobs[name], wanted[name])

    @property
    def hosts(self) -> list[HostReport]:
        """What machines have that work."""
        places = self.world.places
        if self._hosts[0] != places.version:
            found = [
                HostReport(machine.cores, machine.memory, float(cores), int(memory))
                for machine, cores, memory, works, there in zip(
                    places.machines, places.left_cores, places.left_bytes, places.works, places.there, strict=True
                )
                if works and there
            ]
            self._hosts = places.version, found
        return self._hosts[1]

    def report(self, job: FluidJob) -> JobReport:
        """Return what a policy is told of a job."""
        given = [
            sum(node.resources.cores for node in job.of_role(role) if node.up) or 1.0 for role in ("worker", "server")
        ]
        return JobReport(
            name=job.request.name,
            priority=job.request.priority,
            request=job.request.plan,
            present=job.plan,
            ready=job.state == "training" and not job.changing and all(node.up for node in job.nodes),
            samples_left=max(0.0, job.request.samples - job.samples),
            measured=tuple(self._measurement(job, one) for one in job.measured.values()),
            worker_use=job.rate.worker_cores / given[0],
            server_use=job.rate.server_cores / given[1],
            waits=job.started_at is None,
            most_cores=job.request.most_cores,
        )

    def _measurement(self, job: FluidJob, its: PlanRate) -> Measurement:
        """Return what is told of a plan: its rate, off by what rates wander, the less the longer it was measured. Another policy that has a
        job try the same plan for as long is told the same."""
        case = f"{its.plan.describe()} of {job.request.name}, measured"
        if case not in self._off:
            self._off[case] = source_of_chance(self._seed, case).gauss(0.0, 1.0)
        lasts = 2 * _NOISE.memory_seconds
        sd = _NOISE.variation * math.sqrt(lasts / max(lasts, its.seconds))
        return Measurement(its.plan, its.samples / its.seconds * math.exp(sd * self._off[case]), its.seconds)


def simulate(
    trace: Trace,
    cluster: ClusterFile,
    policy: str,
    *,
    seed: int = 0,
    costs: CostTable = "mechanisms",
    hours: float | None = None,
    rates: Rates | None = None,
) -> Run:
    """Run a trace under a policy until all jobs have ended, or for so many hours. ``rates`` that were looked up before, with this seed, are
    taken over. The same arguments give the same run. Raises TraceError for a trace without jobs."""
    until = trace.ends_at(hours)
    simulated = PolicyWorld(trace, cluster, policy, seed=seed, costs=costs, rates=rates)
    ended = simulated.run(until)
    models = {job.name: job.model for job in trace.jobs}
    jobs = tuple(record_of(job, models[job.request.name]) for job in simulated.world.jobs)
    return Run(policy=policy, seed=seed, until=ended, jobs=jobs)


def cores_of(plan: Plan) -> float:
    return plan.worker.count * plan.worker.each.cores + plan.ps.count * plan.ps.each.cores
