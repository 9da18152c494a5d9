"""What is measured of a job over an interval: all that the models of the brain are fitted to.

CPU is counted as CPU seconds, by the accounting of each node: a worker's wall time of a pull holds the queue of the parameter server (PS)
that it waited for, its CPU seconds don't.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import NamedTuple, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from dlrover_lite.core.bounds import ByKey, Bytes, Cores, Count, Name, Number, Rate, Row, Seconds, Timestamp

FloatArray: TypeAlias = NDArray[np.float64]

_ROWS_POWER = 0.6
"""Power of the number of rows with which a PS's CPU seconds rise: a part of them is for each request, whatever it asks for."""
_SPEED_PRIOR = 2.0
"""Weight of the prior that all hosts are equally fast, as a number of comparisons."""
_LEAST_FREE_CORES = 0.05


class WorkerUse(msgspec.Struct, frozen=True, gc=False):
    """A worker over the interval."""

    node: Name
    host: Name
    cores: Cores
    """Cores that the worker may use."""
    minibatches: Count
    """Number of minibatches consumed."""
    cpu_seconds: Seconds
    throttled_seconds: Seconds = 0.0
    """Seconds in which the worker was ready to run and held back by its CPU limit. With ``Profile.shared_cores``: seconds in which the
    limit of all nodes has stopped them, whichever was ready to run."""
    phase_seconds: ByKey[Name, Seconds] = {}
    """Wall seconds by phase: read, pull, compute, push, wait. A pull or push lasts until all PS have answered, beside other phases."""
    phase_cpu_seconds: ByKey[Name, Seconds] = {}
    """CPU seconds by phase: read, pull, compute, push; the rest of ``cpu_seconds`` belongs to no phase."""
    read_delay_seconds: Seconds = 0.0
    """Seconds of the phase ``read`` in which the reading thread was ready to run and had no core: its CPU limit held it back, or others on
    the host."""


class PsUse(msgspec.Struct, frozen=True, gc=False):
    """A parameter server over the interval."""

    node: Name
    host: Name
    cores: Cores
    minibatches: Count
    """Number of minibatches whose pull and push the PS has answered: with all its slots in use, as many as the job has consumed."""
    cpu_seconds: Seconds
    busy_seconds: Seconds = 0.0
    """Wall seconds in which the PS worked on requests."""
    queue_seconds: Seconds = 0.0
    """Seconds that requests waited before the PS began with them, summed over requests."""
    throttled_seconds: Seconds = 0.0
    """As of a worker."""
    rows: Count = 0
    """Number of embedding rows at the end of the interval."""
    row_bytes: Bytes = 0
    """Bytes of memory that rows and index take at the end of the interval."""
    used_bytes: Bytes = 0
    """Bytes of memory that the PS can't give back, at the end of the interval."""
    peak_bytes: Bytes = 0
    requests: Count = 0
    """Number of pulls and pushes that the PS has answered."""


class HostUse(msgspec.Struct, frozen=True, gc=False):
    """A machine over the interval."""

    host: Name
    cores: Cores
    """Cores that nodes may use on this machine."""
    other_cores: Number = 0.0
    """CPU seconds per second that anything but this job's workers and PS took: its master and keeper, other jobs, strangers."""
    received_bytes: Bytes = 0
    """Bytes of rows and gradients that came from other hosts; 0 where that isn't measured."""
    receiving_seconds: Seconds = 0.0
    """Seconds in which they came."""


class TableUse(msgspec.Struct, frozen=True, gc=False):
    """An embedding table at the end of the interval."""

    table: Name
    dim: Count
    rows: ByKey[Name, Count]
    """Number of rows by PS."""

    @property
    def total_rows(self) -> int:
        return sum(self.rows.values())

    def shares(self, nodes: Iterable[str]) -> dict[str, float]:
        """Return the share of the table's rows that each of these PS has; 0 while there are none."""
        total = max(1, self.total_rows)
        return {node: self.rows.get(node, 0) / total for node in nodes}


class Profile(msgspec.Struct, frozen=True, gc=False):
    """An interval in which the plan didn't change and nothing was starting, moving or ending."""

    job: Name
    at: Timestamp
    """Seconds since the epoch at its end."""
    seconds: Seconds
    """Length of the interval."""
    batch_size: Count
    samples: Count
    """Number of samples consumed in the interval."""
    samples_so_far: Count
    """Number of samples trained on since the job began, over all epochs."""
    workers: Row[WorkerUse]
    ps: Row[PsUse]
    hosts: Row[HostUse]
    relative_sd: Number = 0.0
    """Standard error of the mean throughput over its mean, from the parts of the interval."""
    tables: Row[TableUse] = ()
    shared_cores: bool = False
    """The job's nodes share the cores that they have together."""

    @property
    def makes_sense(self) -> bool:
        """Whether anything can be computed from it: a master of another version, or a clock that was set back, may tell anything."""
        uses: list[WorkerUse | PsUse] = [*self.workers, *self.ps]
        taken = [value for use in uses for value in (use.cpu_seconds, use.throttled_seconds)]
        taken += [value for host in self.hosts for value in (host.cores, host.other_cores)]
        positive = (self.seconds, self.batch_size, *(use.cores for use in uses))
        return (
            math.isfinite(self.at)
            and all(math.isfinite(value) and value > 0 for value in positive)
            and all(math.isfinite(value) and value >= 0 for value in (self.samples, self.relative_sd, *taken))
        )

    @property
    def samples_per_second(self) -> float:
        return self.samples / self.seconds

    @property
    def minibatches(self) -> float:
        return self.samples / self.batch_size


class PsLevel(msgspec.Struct, frozen=True, gc=False):
    """What a parameter server holds at one moment. Fields as of ``PsUse``."""

    node: Name
    rows: Count
    row_bytes: Bytes
    used_bytes: Bytes


class Level(msgspec.Struct, frozen=True, gc=False):
    """What a job's PS hold at one moment: known sooner, and oftener, than a profile is measured, whatever else goes on in the job."""

    at: Timestamp
    """Seconds since the epoch."""
    samples_so_far: Count
    samples_per_second: Rate
    """Throughput of the last seconds before."""
    ps: Row[PsLevel]
    tables: Row[TableUse] = ()

    @staticmethod
    def of(profile: Profile) -> Level:
        """Make the level at a profile's end."""
        return Level(
            profile.at,
            profile.samples_so_far,
            profile.samples_per_second,
            tuple(PsLevel(use.node, use.rows, use.row_bytes, use.used_bytes) for use in profile.ps),
            profile.tables,
        )


class Observation(msgspec.Struct, frozen=True, gc=False):
    """A profile as the throughput model takes it. CPU seconds are those of a host of speed 1."""

    samples_per_second: float
    batch_size: float
    workers: float
    worker_cores: float
    """Mean cores of a worker."""
    worker_speed: float
    """Speed of the workers' hosts, the mean weighted by the workers' cores."""
    ps: float
    ps_cores: float
    """Cores of the busiest PS: the one that uses the most CPU for what it may use."""
    ps_speed: float
    """Speed of the busiest PS's host."""
    ps_share: float
    """Share of all PS's work that the busiest PS has: 1 / ps if all have the same."""
    free_power: float
    """Power of the fullest host: cores that others don't take, times speed."""
    host_workers: float
    """Share of the workers that are on the fullest host."""
    host_ps: float
    """Share of the PS that are on the fullest host."""
    card_share: float = 0.0
    """Share of the bytes of pulled rows, and as many of gradients, that come in through the fullest host's network card: 0 on one host."""
    worker_cpu_seconds: float | None = None
    """CPU seconds per minibatch of the worker that trains it."""
    ps_cpu_seconds: float | None = None
    """CPU seconds per minibatch (its pull and its push) of each PS, the mean over PS."""
    read_seconds: float | None = None
    """Seconds that a worker takes to read a minibatch, without those in which it had no core for that."""
    read_cpu_seconds: float | None = None
    """CPU seconds of these."""
    sample_bytes: float | None = None
    """Bytes of rows per sample that go to a worker, and of gradients that come back."""
    byte_seconds: float | None = None
    """Seconds per byte of the network card that was the busiest."""
    shared_cores: bool = False
    """The nodes share the cores that they have together, and these are all that ``free_power`` counts of the host's."""
    relative_sd: float = 0.0
    weight: float = 1.0
    """Weight of this observation: below 1 for those that are old, or of another job."""


def observe(profile: Profile, speeds: Mapping[str, float] | None = None) -> Observation | None:
    """Compute what the throughput model needs of ``profile``; None if nothing was trained in it, or no node is known of a role.

    ``speeds`` of hosts: ``host_speeds``; 1 for those not named.
    """
    seen = SeenProfile.of(profile)
    return None if seen is None else seen.observation(speeds or {})


class SeenProfile(NamedTuple):
    """A profile as far as an observation of it doesn't depend on how fast its hosts are."""

    even: Observation
    """The observation where all are equally fast."""
    hosts: tuple[str, ...]
    workers: tuple[tuple[str, float, float], ...]
    """Host, CPU seconds and cores of each worker."""
    ps: tuple[tuple[str, float], ...]
    """Host and CPU seconds of each PS."""
    busiest: int
    """Position of the busiest PS."""
    of_workers: float
    """Number of minibatches that workers have counted."""
    minibatches: float
    fullest: tuple[str, float]
    """The fullest host, and the cores that others leave there."""

    @staticmethod
    def of(profile: Profile) -> SeenProfile | None:
        """Return what there is to see; None as of ``observe``."""
        workers, ps = profile.workers, profile.ps
        if profile.samples <= 0 or profile.seconds <= 0 or not workers or not ps:
            return None
        of_workers = sum(worker.minibatches for worker in workers) or profile.minibatches
        hot = max(range(len(ps)), key=lambda i: ps[i].cpu_seconds / (1.0 if profile.shared_cores else ps[i].cores))
        fullest, host_workers, host_ps = _fullest_host(profile)
        read = sum(max(0.0, worker.phase_seconds.get("read", 0.0) - worker.read_delay_seconds) for worker in workers)
        card_share, sample_bytes, byte_seconds = _transfers(profile)
        even = Observation(
            samples_per_second=profile.samples_per_second,
            batch_size=profile.batch_size,
            workers=len(workers),
            worker_cores=sum(worker.cores for worker in workers) / len(workers),
            worker_speed=1.0,
            ps=len(ps),
            ps_cores=ps[hot].cores,
            ps_speed=1.0,
            ps_share=1 / len(ps),
            free_power=fullest[1],
            host_workers=host_workers,
            host_ps=host_ps,
            card_share=card_share,
            read_seconds=read / of_workers if read > 0 else None,
            read_cpu_seconds=sum(worker.phase_cpu_seconds.get("read", 0.0) for worker in workers) / of_workers,
            sample_bytes=sample_bytes,
            byte_seconds=byte_seconds,
            shared_cores=profile.shared_cores,
            relative_sd=profile.relative_sd,
        )
        seen = SeenProfile(
            even,
            tuple(host.host for host in profile.hosts),
            tuple((worker.host, worker.cpu_seconds, worker.cores) for worker in workers),
            tuple((server.host, server.cpu_seconds) for server in ps),
            hot,
            of_workers,
            profile.minibatches,
            fullest,
        )
        return seen._replace(even=seen.observation({}))

    def observation(self, speeds: Mapping[str, float]) -> Observation:
        """Make the observation with these speeds of hosts; 1 for those not named. CPU seconds become those of a host of speed 1."""
        speed = {host: speeds.get(host, 1.0) for host in self.hosts}
        worker_cpu = sum(cpu * speed.get(host, 1.0) for host, cpu, _ in self.workers)
        ps_cpu = [cpu * speed.get(host, 1.0) for host, cpu in self.ps]
        total = sum(ps_cpu)
        return msgspec.structs.replace(
            self.even,
            worker_speed=sum(cores * speed.get(host, 1.0) for host, _, cores in self.workers)
            / sum(cores for _, _, cores in self.workers),
            ps_speed=speed.get(self.ps[self.busiest][0], 1.0),
            ps_share=ps_cpu[self.busiest] / total if total > 0 else 1 / len(self.ps),
            free_power=self.fullest[1] * speed.get(self.fullest[0], 1.0),
            worker_cpu_seconds=worker_cpu / self.of_workers if worker_cpu > 0 else None,
            ps_cpu_seconds=total / len(self.ps) / self.minibatches if total > 0 else None,
        )


def _fullest_host(profile: Profile) -> tuple[tuple[str, float], float, float]:
    """Find the host whose nodes use the most of what others leave there. Return its name with the cores that others leave, and its shares
    of workers and PS."""
    found, fullest = (("", math.inf), 1.0, 1.0), -1.0
    for host in profile.hosts:
        workers = [worker for worker in profile.workers if worker.host == host.host]
        ps = [server for server in profile.ps if server.host == host.host]
        used = sum(worker.cpu_seconds for worker in workers) + sum(server.cpu_seconds for server in ps)
        free = host.cores - host.other_cores
        if profile.shared_cores:
            free = min(free, sum(worker.cores for worker in workers) + sum(server.cores for server in ps))
        # where others want all they can get, nodes are given more than what these leave
        free = max(free, used / profile.seconds, _LEAST_FREE_CORES)
        if (workers or ps) and used / free > fullest:
            fullest = used / free
            found = ((host.host, free), len(workers) / len(profile.workers), len(ps) / len(profile.ps))
    return found


def _transfers(profile: Profile) -> tuple[float, float | None, float | None]:
    """Return the share of the rows' bytes that come in through the fullest card, the bytes of a sample's rows, and the seconds per byte of
    the busiest card; None: nothing came from another host."""
    workers = Counter(worker.host for worker in profile.workers)
    servers = Counter(server.host for server in profile.ps)
    shares = []
    for host in sorted(workers.keys() | servers.keys()):
        of_workers, of_ps = workers[host] / len(profile.workers), servers[host] / len(profile.ps)
        shares.append(of_workers + of_ps - 2 * of_workers * of_ps)
    received = sum(host.received_bytes for host in profile.hosts)
    busiest = max(profile.hosts, key=lambda host: host.receiving_seconds, default=None)
    if busiest is None or not (received and busiest.received_bytes and busiest.receiving_seconds and sum(shares) > 0):
        return max(shares), None, None
    return max(shares), received / profile.samples / sum(shares), busiest.receiving_seconds / busiest.received_bytes


def host_speeds(profiles: Sequence[Profile]) -> dict[str, float]:
    """Estimate how fast each host's cores are, 1 being the (geometric) mean, as ``SpeedComparisons`` does. Profiles are of one job."""
    return SpeedComparisons().speeds(profiles)


class _Compared(NamedTuple):
    """What one profile tells of the speeds of hosts."""

    at_work: frozenset[str]
    groups: tuple[Sequence[tuple[str, float]], ...]
    """Nodes that did the same work: the host of each, with the logarithm of what it cost there."""
    hosts: frozenset[str]
    """Hosts of these."""


class SpeedComparisons:
    """Estimates how fast hosts' cores are. What each profile of a job tells by itself is kept by its time: with each new one, little more
    than that has to be computed."""

    def __init__(self) -> None:
        self._of: dict[float, _Compared] = {}
        self._hosts: list[str] = []
        self._terms: dict[float, list[tuple[FloatArray, FloatArray]]] = {}
        """What each profile adds to the equations for ``_hosts``."""

    def forget(self, times: Set[float]) -> None:
        """Forget profiles of all times but these."""
        for kept in (self._of, self._terms):
            for at in kept.keys() - times:
                del kept[at]

    def speeds(self, profiles: Sequence[Profile]) -> dict[str, float]:
        """Estimate how fast each host's cores are, 1 being the (geometric) mean. Compare the CPU seconds of the same minibatches between
        workers in the same interval; and, where a host has no workers, between PS, less what more rows cost: slots that are asked for more
        than others make a host look slow. Hosts seen alone have 1; few comparisons pull towards 1."""
        compared = [self._compared(profile) for profile in profiles]
        there = frozenset[str]().union(*(one.at_work for one in compared))
        if len(there) < 2:
            return dict.fromkeys(sorted(there), 1.0)
        hosts = sorted(frozenset[str]().union(*(one.hosts for one in compared)))
        if len(hosts) < 2:
            return dict.fromkeys(hosts, 1.0)
        if hosts != self._hosts:
            self._hosts, self._terms = hosts, {}
        normal, right = _SPEED_PRIOR * np.eye(len(hosts)), np.zeros(len(hosts))
        for profile, one in zip(profiles, compared, strict=True):
            for squares, logs in self._terms_of(profile.at, one.groups):
                normal += squares
                right -= logs
        found = np.linalg.solve(normal, right)
        return {host: float(math.exp(found[i] - found.mean())) for i, host in enumerate(hosts)}

    def _compared(self, profile: Profile) -> _Compared:
        if (known := self._of.get(profile.at)) is not None:
            return known
        groups = [_logs((use.host, use.cpu_seconds / use.minibatches) for use in profile.workers if use.minibatches)]
        with_workers = {host for host, _ in groups[0]}
        if any(use.host not in with_workers for use in profile.ps):
            groups.append(_logs((use.host, _cost_of(use)) for use in profile.ps if use.minibatches))
        hosts = frozenset(host for group in groups for host, _ in group)
        found = self._of[profile.at] = _Compared(frozenset(_hosts_at_work(profile)), tuple(groups), hosts)
        return found

    def _terms_of(
        self, at: float, groups: Sequence[Sequence[tuple[str, float]]]
    ) -> Sequence[tuple[FloatArray, FloatArray]]:
        """Return the terms of groups of nodes that are on several hosts."""
        if (known := self._terms.get(at)) is not None:
            return known
        position = {host: i for i, host in enumerate(self._hosts)}
        found = self._terms[at] = []
        for group in groups:
            if len({host for host, _ in group}) < 2:
                continue
            mean = sum(log for _, log in group) / len(group)
            rows = np.zeros((len(group), len(self._hosts)))
            for i, (host, _) in enumerate(group):
                rows[i, position[host]] = 1.0
            rows -= rows.mean(axis=0)
            found.append((rows.T @ rows, rows.T @ np.array([log - mean for _, log in group])))
        return found


def _hosts_at_work(profile: Profile) -> set[str]:
    uses: list[WorkerUse | PsUse] = [*profile.workers, *profile.ps]
    return {use.host for use in uses if use.minibatches and use.cpu_seconds > 0}


def _cost_of(use: PsUse) -> float:
    """Return the CPU seconds of a minibatch, as far as they don't come from the number of rows, as a multiple of whatever unit."""
    return use.cpu_seconds / use.minibatches / math.pow(max(1, use.rows), _ROWS_POWER)


def _logs(costs: Iterable[tuple[str, float]]) -> Sequence[tuple[str, float]]:
    return [(host, math.log(cost)) for host, cost in costs if cost > 0]
