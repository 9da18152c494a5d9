"""Places for the nodes of all jobs of a round. Cores and memory were shared by their totals, and 64 free cores in four pieces of 16 hold no
worker of 17: whose plan finds no place gets the best one that does.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from dlrover_lite.brain.planning.change_policy import Settled, Verdict
from dlrover_lite.brain.planning.node_placement import HostSpace, place, worker_places
from dlrover_lite.brain.planning.plan_grid import IntArray, to_milli
from dlrover_lite.brain.planning.plan_values import Options
from dlrover_lite.core.units import Resources
from dlrover_lite.protocol.hosts import Host, HostNodes
from dlrover_lite.protocol.plans import Plan

__all__ = ["Placements", "place_all", "together"]


class Placements(NamedTuple):
    settled: Settled
    nodes: Mapping[str, tuple[HostNodes, ...]] = {}
    """Nodes on each host of every job that begins or changes."""
    homeless: Mapping[str, Host] = {}
    """Jobs that were to begin, and of which no plan finds a place, each with what the host with the most free cores has free."""


def place_all(
    options: Mapping[str, Options], settled: Settled, waiting: Collection[str], hosts: Sequence[Host]
) -> Placements:
    """Find a place for all nodes of the plans that were settled. ``waiting``: jobs that begin later.

    Those come first that take less than they have, then the most important. What others have, or are to have, is theirs.
    """
    if len(hosts) < 2:
        return Placements(settled)
    free = _Free(hosts, options)
    verdicts = dict(settled.verdicts)
    nodes: dict[str, tuple[HostNodes, ...]] = {}
    homeless: dict[str, Host] = {}
    spare_milli, spare_memory = to_milli(settled.free.cores), settled.free.memory
    for job in sorted(verdicts, key=lambda job: _turn(options[job], verdicts[job])):
        one, wanted = options[job], verdicts[job]
        if job in waiting or wanted.at == one.now:
            continue
        there = free.beside(job)
        found = _best(one, wanted, there)
        if found is None:
            homeless[job] = max(there, key=lambda host: (host.resources.cores, host.name))
            del verdicts[job]
        else:
            verdicts[job] = found
            if found.at != one.now:
                nodes[job] = _placed(one, found.at, there)
                free.give(job, one, found.at, nodes[job])
        before, after = _size(one, wanted.at), (0, 0) if found is None else _size(one, found.at)
        spare_milli, spare_memory = spare_milli + before[0] - after[0], spare_memory + before[1] - after[1]
    left = Resources(spare_milli / 1000, spare_memory)
    return Placements(settled._replace(verdicts=verdicts, free=left), nodes, homeless)


def _turn(one: Options, verdict: Verdict) -> tuple[bool, float, str]:
    had = 0 if one.view.now is None else one.view.now.milli
    return _size(one, verdict.at)[0] > had, -one.view.priority, one.view.job


def _size(one: Options, at: int) -> tuple[int, int]:
    return int(one.points.milli[at]), int(one.memory[at])


def _best(one: Options, wanted: Verdict, there: Sequence[Host]) -> Verdict | None:
    """Choose the wanted plan if it finds a place, else the best one that takes no more; None: a job that doesn't run yet finds none."""
    space = HostSpace.of(there, one.view.nodes, one.view.host_speeds).grouped()
    fits = _find_places(one, space)
    if fits[wanted.at]:
        return wanted
    milli, memory = _size(one, wanted.at)
    fits &= (one.points.milli <= milli) & (one.memory <= memory)
    if one.now is not None and one.gain[wanted.at] > 0:  # else others need what it has
        fits &= one.least_gain > 0
    if fits.any():
        at = int(np.where(fits, one.gain, -np.inf).argmax())
        return Verdict(at, "start" if one.now is None else "change", "no place", wanted.at)
    return None if one.now is None else Verdict(one.now, "stay", "no place", wanted.at)


def _find_places(one: Options, space: HostSpace) -> np.typing.NDArray[np.bool_]:
    points = one.points
    most = worker_places(points.servers, points.worker_cores, points.ps_cores, one.view.need, space)
    return np.asarray(points.workers <= most, np.bool_)


def _placed(one: Options, at: int, there: Sequence[Host]) -> tuple[HostNodes, ...]:
    found = place(one.points.candidate(at), one.view.need, HostSpace.of(there, one.view.nodes, one.view.host_speeds))
    assert found is not None  # as _find_places says
    return found


class _Free:
    """What hosts have beside what jobs have, or are to have."""

    def __init__(self, hosts: Sequence[Host], options: Mapping[str, Options]) -> None:
        self._hosts = hosts
        self._row = {host.name: at for at, host in enumerate(hosts)}
        self._held = {job: self._of(one.view.node_resources) for job, one in options.items()}
        self._left = self._of(hosts) - sum(self._held.values(), np.zeros((len(hosts), 2), np.int64))

    def _of(self, resources: Sequence[Host]) -> IntArray:
        """Return cores in thousandths and bytes, [hosts, 2]."""
        found = np.zeros((len(self._hosts), 2), np.int64)
        for one in resources:
            if (row := self._row.get(one.name)) is not None:
                found[row] += to_milli(one.resources.cores), one.resources.memory
        return found

    def beside(self, job: str) -> list[Host]:
        """Return what each host has for a job beside all others."""
        left = np.maximum(self._left + self._held[job], 0).tolist()
        return [
            Host(host.name, Resources(milli / 1000, memory))
            for host, (milli, memory) in zip(self._hosts, left, strict=True)
        ]

    def give(self, job: str, one: Options, at: int, nodes: Sequence[HostNodes]) -> None:
        """Give the job's nodes under a plan their places instead of those that it has."""
        plan = one.view.need.plan(one.points.candidate(at))
        taken = self._of([Host(on.host, together(plan, on)) for on in nodes])
        self._left += self._held[job] - taken
        self._held[job] = taken


def together(plan: Plan, on: HostNodes) -> Resources:
    """Return what a plan's nodes on a host have together."""
    worker, ps = plan.worker.each, plan.ps.each
    return Resources(
        on.workers * worker.cores + on.servers * ps.cores, on.workers * worker.memory + on.servers * ps.memory
    )
