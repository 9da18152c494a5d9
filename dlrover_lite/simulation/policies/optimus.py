"""Optimus: Peng, Bao, Chen, Wu and Guo, "Optimus: An Efficient Dynamic Resource Scheduler for Deep Learning Clusters", EuroSys 2018.

For each job a speed model of its numbers of workers and servers is fitted to what was measured, by non-negative least squares; for
asynchronous training, speed(p, w) = w / (a + b w/p + c w + d p). From one worker and one server for each job on, whoever shortens its
remaining time by the most, for the dominant share of the cluster that it takes, gets the next worker or server, until nobody gains or
nothing is left. Then the same once every scheduling interval.

Adapted: the paper foresees from the training loss how many steps are left; here that is known, as a job has so many samples. It fits a new
job's model to short runs on a part of the data before it begins; here a job goes through as many plans in its first rounds, and trains
meanwhile. Nodes are as large as the user asks, servers with the memory that all of them have together in the request, as the paper's
containers are fixed. Its placement of a job's nodes on few hosts is left to the simulation. It has no priorities, and none are made up
here."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec
import numpy as np
from scipy.optimize import nnls

from dlrover_lite.core.units import Resources
from dlrover_lite.protocol.plans import Plan
from dlrover_lite.simulation.policies.policy import HostReport, JobReport, Room, with_counts

__all__ = ["Optimus", "Settings", "SpeedModel"]


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers it decides by."""

    interval_seconds: float = 600.0
    """Seconds from one division of the cluster to the next. Source: the paper's scheduling interval, from memory."""
    round_seconds: float = 60.0
    """Seconds between two rounds in which it is asked. Source: this project's brain."""
    trials: tuple[tuple[int, int], ...] = ((1, 1), (2, 1), (2, 2), (4, 2), (4, 4))
    """Workers and servers of the plans that a new job's model is fitted to. Source: the paper runs 5 of them beforehand, from memory;
    which, is an assumption."""
    least_seconds: float = 20.0
    """Seconds for which a plan must have been measured. Source: assumption."""
    least_gain: float = 0.01
    """The least part of the remaining time that another node must save. Source: assumption; the paper stops where nothing is gained."""
    most_nodes: int = 256
    """The most nodes of a role. Source: assumption."""


class SpeedModel:
    """The paper's model of asynchronous training, fitted to plans and samples/s."""

    def __init__(self, measured: Sequence[tuple[int, int, float]]) -> None:
        """``measured``: workers, servers and samples/s."""
        workers, servers, rates = (np.array(column, np.float64) for column in zip(*measured, strict=True))
        right = workers / rates
        rows = np.stack([np.ones_like(workers), workers / servers, workers, servers], axis=1)
        # By relative errors, so that slow plans don't count for more than fast ones.
        self._costs: list[float] = nnls(rows / right[:, None], np.ones(len(right)))[0].tolist()

    def rate(self, workers: int, servers: int) -> float:
        """Return the samples/s of a plan."""
        alone, shared, by_worker, by_server = self._costs
        return workers / max(alone + shared * workers / servers + by_worker * workers + by_server * servers, 1e-12)


class _Share(NamedTuple):
    """What the division has given a job so far."""

    workers: int
    servers: int


class Optimus:
    """Divides the cluster by marginal gains."""

    def __init__(self, settings: Settings | None = None) -> None:
        self._its = settings or Settings()

    def first(self, job: JobReport, hosts: Sequence[HostReport]) -> Plan | None:
        plan = _smallest(job, hosts, self._its.most_nodes)
        return plan if plan is not None and Room.left(hosts).take_all(plan) else None

    def plans(self, now: float, jobs: Sequence[JobReport], hosts: Sequence[HostReport]) -> Mapping[str, Plan]:
        found = self._trials(jobs, hosts)
        if now % self._its.interval_seconds < self._its.round_seconds:
            found |= self._divided([job for job in jobs if job.name not in found], hosts, list(found.values()))
        return found

    # --- plans that models are fitted to -------------------------------------------------------------------------------------

    def _trials(self, jobs: Sequence[JobReport], hosts: Sequence[HostReport]) -> dict[str, Plan]:
        """Return the next plan of each job whose model isn't known well enough, where it has room beside what the job has."""
        room = Room.left(hosts)
        found: dict[str, Plan] = {}
        for job in jobs:
            known = {(workers, servers) for workers, servers, _ in self._measured(job)}
            if not job.ready or len(known) >= len(self._its.trials):
                continue
            for workers, servers in self._its.trials:
                plan = with_counts(job.request, workers, servers, hosts)
                if (workers, servers) in known or plan is None or not _is_allowed(job, workers, servers):
                    continue
                if _fits_more(room, job.present, plan):
                    found[job.name] = plan
                    break
        return {name: plan for name, plan in found.items() if plan != _present(jobs, name)}

    def _measured(self, job: JobReport) -> list[tuple[int, int, float]]:
        """Return what was measured of a job: workers, servers, samples/s, the newest of each."""
        latest = {
            (one.plan.worker.count, one.plan.ps.count): one.samples_per_second
            for one in job.measured
            if one.seconds >= self._its.least_seconds and one.samples_per_second > 0.0
        }
        return [(workers, servers, rate) for (workers, servers), rate in latest.items()]

    # --- the division ----------------------------------------------------------------------------------------------------

    def _divided(
        self, jobs: Sequence[JobReport], hosts: Sequence[HostReport], others: Sequence[Plan]
    ) -> dict[str, Plan]:
        """Divide what hosts have among jobs whose model is known, beside ``others``, what those have whose model isn't, and
        what those begin with that wait."""
        models = {
            job.name: SpeedModel(measured) for job in jobs if job.ready and len(measured := self._measured(job)) >= 2
        }
        room = Room.whole(hosts)
        held = [job.present for job in jobs if job.name not in models and not job.waits]
        begin = [
            plan for job in jobs if job.waits and (plan := _smallest(job, hosts, self._its.most_nodes)) is not None
        ]
        if not all(room.take_all(plan) for plan in [*others, *held]):
            return {}  # nodes lie so that this can't be told: nothing is divided anew
        for plan in begin:
            room.take_all(plan)  # whoever has no room even then waits on
        dividing = _Division(self._its, models, [job for job in jobs if job.name in models], hosts, room)
        return {name: plan for name, plan in dividing.run().items() if plan != _present(jobs, name)}


class _Division:
    """One division of a cluster among jobs."""

    def __init__(
        self,
        its: Settings,
        models: Mapping[str, SpeedModel],
        jobs: Sequence[JobReport],
        hosts: Sequence[HostReport],
        room: Room,
    ) -> None:
        self._its, self._models, self._jobs, self._hosts, self._room = its, models, jobs, hosts, room
        self._whole = Resources(sum(host.cores for host in hosts), sum(host.memory for host in hosts))
        self._heap: list[tuple[float, int, Literal["worker", "ps"]]] = []

    def run(self) -> dict[str, Plan]:
        shares: list[_Share] = []
        for job in self._jobs:
            plan = _smallest(job, self._hosts, self._its.most_nodes)
            if plan is None or not self._room.take_all(plan):
                return {}
            shares.append(_Share(plan.worker.count, plan.ps.count))
        for at in range(len(self._jobs)):
            self._push(at, shares[at])
        while self._heap:
            gain, at, role = heapq.heappop(self._heap)
            share, job = shares[at], self._jobs[at]
            if gain != self._gain(job, share, role):
                continue  # it was of a smaller plan: the newer one is in the heap, too
            if self._room.take(self._each(job, role)) is None:
                continue
            shares[at] = _more(share, role)
            self._push(at, shares[at])
        return {job.name: self._plan(job, share) for job, share in zip(self._jobs, shares, strict=True)}

    def _plan(self, job: JobReport, share: _Share) -> Plan:
        plan = with_counts(job.request, share.workers, share.servers, self._hosts)
        assert plan is not None, "fewer servers than the smallest plan has"
        return plan

    def _push(self, at: int, share: _Share) -> None:
        roles: tuple[Literal["worker", "ps"], ...] = ("worker", "ps")
        for role in roles:
            gain = self._gain(self._jobs[at], share, role)
            if gain < 0.0:
                heapq.heappush(self._heap, (gain, at, role))

    def _gain(self, job: JobReport, share: _Share, role: Literal["worker", "ps"]) -> float:
        """Return the seconds that another node saves for the dominant share of the cluster that it takes, below zero; 0: it isn't worth
        it."""
        more = _more(share, role)
        if max(more) > self._its.most_nodes or not _is_allowed(job, *more):
            return 0.0
        model = self._models[job.name]
        now, then = (job.samples_left / model.rate(*one) for one in (share, more))
        if now - then < self._its.least_gain * now:
            return 0.0
        each = self._each(job, role)
        return -(now - then) / max(each.cores / self._whole.cores, each.memory / self._whole.memory)

    def _each(self, job: JobReport, role: Literal["worker", "ps"]) -> Resources:
        """Return what another node takes: a server shares the memory of those there are, and so no more than its cores."""
        return job.request.worker.each if role == "worker" else Resources(job.request.ps.each.cores, 0)


def _smallest(job: JobReport, hosts: Sequence[HostReport], most: int) -> Plan | None:
    """Return one worker with as few servers as hold the rows."""
    plans = (with_counts(job.request, 1, servers, hosts) for servers in range(1, most + 1))
    return next((plan for plan in plans if plan is not None), None)


def _is_allowed(job: JobReport, workers: int, servers: int) -> bool:
    """Say whether so many nodes are within the job's quota."""
    return workers * job.request.worker.each.cores + servers * job.request.ps.each.cores <= job.most_cores


def _more(share: _Share, role: Literal["worker", "ps"]) -> _Share:
    return _Share(share.workers + (role == "worker"), share.servers + (role == "ps"))


def _present(jobs: Sequence[JobReport], name: str) -> Plan:
    return next(job.present for job in jobs if job.name == name)


def _fits_more(room: Room, present: Plan, plan: Plan) -> bool:
    """Take room for what a plan has more than the present one; False, and nothing is taken, where there is none."""
    more = Plan(
        ps=msgspec.structs.replace(plan.ps, count=max(0, plan.ps.count - present.ps.count)),
        worker=msgspec.structs.replace(plan.worker, count=max(0, plan.worker.count - present.worker.count)),
    )
    return room.take_all(more)
