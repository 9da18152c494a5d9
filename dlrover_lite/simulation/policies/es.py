"""Elastic scaling: Or, Zhang and Freedman, "Resource Elasticity in Distributed Deep Learning", MLSys 2020.

Workers are added as long as that raises the throughput nearly in proportion, and taken away again where it didn't: scaling efficiency, the
relative gain of throughput over the relative gain of workers, is held against a threshold. There is no model; what decides is measured.

Adapted: theirs are workers of all-reduce on GPUs, so that servers stay as the user asks here. The engine is of one job; of several, each
takes what is left in the order of their arrival. Its second condition, money saved against a price for time that a user names, is left out,
since no job of a trace names one. The numbers are from memory of the paper, or assumptions where that is said.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from dlrover_lite.protocol.plans import Plan
from dlrover_lite.simulation.policies.policy import HostReport, JobReport, Room, with_counts

__all__ = ["ElasticScaling", "Settings"]


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers it decides by."""

    first_workers: int = 4
    """Workers that a job begins with at the most, where its user asks for more. Source: the paper's jobs begin with 4, from memory."""
    step: int = 4
    """Workers that are added at once, at the most. Source: the paper adds 4, from memory."""
    step_share: float = 0.5
    """The same as a share of those there are, so that few workers aren't more than doubled. Source: assumption."""
    least_efficiency: float = 0.5
    """Scaling efficiency below which workers are taken away again. Source: the paper leaves it to the user; an assumption."""
    least_seconds: float = 55.0
    """Seconds for which a plan must have been measured: a round, about. Source: assumption."""
    most_workers: int = 256
    """The most workers of a job. Source: assumption; the paper's grow to 64."""


class ElasticScaling:
    """Scales workers by measured efficiency."""

    def __init__(self, settings: Settings | None = None) -> None:
        self._its = settings or Settings()

    def first(self, job: JobReport, hosts: Sequence[HostReport]) -> Plan | None:
        for workers in range(min(job.request.worker.count, self._its.first_workers), 0, -1):
            plan = with_counts(job.request, workers, job.request.ps.count, hosts)
            if plan is not None and Room.left(hosts).take_all(plan):
                return plan
        return None

    def plans(self, now: float, jobs: Sequence[JobReport], hosts: Sequence[HostReport]) -> Mapping[str, Plan]:
        room = Room.left(hosts)
        found: dict[str, Plan] = {}
        for job in jobs:
            workers = self._workers(job)
            if workers > job.present.worker.count:
                more = workers - job.present.worker.count
                taken = sum(room.take(job.present.worker.each) is not None for _ in range(more))
                workers = job.present.worker.count + taken
            if workers != job.present.worker.count:
                found[job.name] = msgspec.structs.replace(
                    job.present, worker=msgspec.structs.replace(job.present.worker, count=workers)
                )
        return found

    def _workers(self, job: JobReport) -> int:
        """Return how many workers a job is to have, if there is room."""
        present = job.present.worker.count
        rates = {
            one.plan.worker.count: one.samples_per_second
            for one in job.measured
            if one.plan.ps == job.present.ps and one.seconds >= self._its.least_seconds
        }
        if not job.ready or present not in rates:
            return present
        fewer = max((count for count in rates if count < present), default=None)
        if fewer is not None and self._efficiency(rates, fewer, present) < self._its.least_efficiency:
            return fewer
        step = max(1, min(self._its.step, int(present * self._its.step_share)))
        more = min((count for count in rates if count > present), default=present + step)
        if more in rates and self._efficiency(rates, present, more) < self._its.least_efficiency:
            return present  # it was tried
        left = job.most_cores - job.present.ps.count * job.present.ps.each.cores
        return max(present, int(min(more, self._its.most_workers, left // job.present.worker.each.cores)))

    @staticmethod
    def _efficiency(rates: Mapping[int, float], few: int, many: int) -> float:
        """Return the relative gain of throughput for the relative gain of workers."""
        return (rates[many] / rates[few] - 1.0) / (many / few - 1.0) if rates[few] > 0.0 else 0.0
