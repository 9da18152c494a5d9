"""Nodes that have got slower than they were, and how sure that is: the slower, the sooner.

A node is compared with itself before, and what its peers have got slower by meanwhile is no fault of its own. How sure it is counts in
seconds times the square of the logarithm of how many times slower: a measured rate is off by so many percent of noise, and by half as
many over four times as long, so that much evidence is as unlikely to be noise whether it comes of a little for long or of a lot for a
moment. One whose minibatches take even longer than its own work explains is held responsible for half of the difference (of logarithms):
what a parameter server (PS) takes to receive and to send isn't counted as its work, nor what is under way as a window ends.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from statistics import median
from typing import NamedTuple

from dlrover_lite.brain.healing.policies import SlowdownPolicy
from dlrover_lite.protocol.profiles import Profile, PsUse, WorkerUse

__all__ = ["NewestPaces", "Others", "Slowing", "slower_than_peers", "slowing", "work_times"]

_WORK = ("read", "compute")
"""Phases of a worker that take as long as it does, and not as others do."""


class Slowing(NamedTuple):
    before: Sequence[Profile]
    """Windows that say what was usual, with the same nodes and sizes."""
    windows: Sequence[Profile]
    """Windows since the node got slower, the newest last."""
    times: float
    """How many times as long as usual the node takes for the same work."""


def _uses(profile: Profile) -> list[WorkerUse | PsUse]:
    return [*profile.workers, *profile.ps]


class Others:
    """Medians of all values but one: sorted once, whichever of hundreds is left out."""

    def __init__(self, values: Iterable[float]) -> None:
        self._sorted = sorted(values)

    def median_without(self, value: float | None) -> float | None:
        """Return the median without one of the values, or (None) of all; None where there are no others."""
        found, count = self._sorted, len(self._sorted)
        left_out = count if value is None else bisect_left(found, value)
        count -= value is not None
        if count < 1:
            return None
        low, high = (found[at + (at >= left_out)] for at in ((count - 1) // 2, count // 2))
        return low if count % 2 else (low + high) / 2


class NewestPaces:
    """Paces of all nodes in the newest profiles: of most nodes nothing else has to be looked at, and they are found for all at once."""

    def __init__(self, profiles: Sequence[Profile], policy: SlowdownPolicy) -> None:
        self.profiles = profiles
        self._within: dict[tuple[int, ...], _Paces] = {}
        """Paces that were found, by the identities of their windows, which ``profiles`` keeps alive."""
        self._done: dict[int, dict[str, int]] = {}
        self._slower: dict[tuple[int, int], Others] = {}
        self._expected: dict[tuple[int, float], Others] = {}
        self._workers: dict[int, dict[str, WorkerUse]] = {}
        self._servers: dict[int, dict[str, float]] = {}
        self._costs: dict[tuple[int, ...], dict[str, float]] = {}
        self._most_windows = policy.most_windows
        self._of: dict[str, list[float]] = {}
        """Seconds of a minibatch of each worker, or of its work of each PS, by time."""
        for profile in profiles[-policy.most_windows :]:
            seconds = profile.seconds
            for worker in profile.workers:
                self._of.setdefault(worker.node, []).append(seconds / (worker.minibatches or 1))
            for ps in profile.ps:
                self._of.setdefault(ps.node, []).append(ps.busy_seconds / (ps.minibatches or 1))

    def may_be_slow(self, node: str, least: float) -> bool:
        """Say whether the node is at least ``least`` times slower than at its fastest."""
        paces = self._of.get(node, ())
        return len(paces) > 1 and paces[-1] >= least * min(paces)

    @cached_property
    def alike(self) -> Sequence[Profile]:
        """The newest profiles that have the same nodes and sizes as the last."""
        return _alike(self.profiles[-self._most_windows :])

    def done(self, profiles: Sequence[Profile], node: str) -> int:
        """Return the minibatches of a node in some of the profiles."""
        total = 0
        for profile in profiles:
            if (known := self._done.get(id(profile))) is None:
                known = self._done[id(profile)] = {use.node: use.minibatches for use in _uses(profile)}
            total += known.get(node, 0)
        return total

    def slower_than_peers(self, before: Mapping[str, float], now: Mapping[str, float], node: str) -> float:
        """Compute what the function of this name does, of paces that were found here."""
        if (others := self._slower.get((id(before), id(now)))) is None:
            times = (now[peer] / took for peer, took in before.items() if peer in now and took > 0)
            others = self._slower[id(before), id(now)] = Others(times)
        own = now[node] / before[node]
        return own / max(1.0, others.median_without(own) or 1.0)

    def against_peers(self, profile: Profile, node: str) -> float | None:
        """Compute a worker's rate in one of the profiles over what its peers' let expect of one with its cores, as the function
        ``slow_nodes.against_peers`` does; None if it has none, or none of them does anything."""
        if (workers := self._workers.get(id(profile))) is None:
            workers = self._workers[id(profile)] = {use.node: use for use in profile.workers}
        if (own := workers.get(node)) is None:
            return None
        if (others := self._expected.get((id(profile), own.cores))) is None:
            each = (use.minibatches * min(1.0, own.cores / use.cores) for use in profile.workers)
            others = self._expected[id(profile), own.cores] = Others(each)
        expected = others.median_without(float(own.minibatches))
        return own.minibatches / expected if expected else None

    def servers(self, profile: Profile) -> dict[str, float]:
        """Return the cores of each PS in a profile; the same dict each time."""
        if (found := self._servers.get(id(profile))) is None:
            found = self._servers[id(profile)] = {use.node: use.cores for use in profile.ps}
        return found

    def server_costs(self, profiles: Sequence[Profile]) -> dict[str, float]:
        """Compute the median seconds that each PS works on a minibatch in some of the profiles; the same dict each time."""
        key = tuple(map(id, profiles))
        if (found := self._costs.get(key)) is None:
            each: dict[str, list[float]] = {}
            for use in (use for profile in profiles for use in profile.ps):
                each.setdefault(use.node, []).append(use.busy_seconds / max(1, use.minibatches))
            found = self._costs[key] = {node: median(costs) for node, costs in each.items()}
        return found

    def within(self, windows: Sequence[Profile]) -> _Paces:
        """Compute the paces of all nodes in some of the profiles; once, whichever of the nodes are looked at."""
        key = tuple(map(id, windows))
        found = self._within.get(key)
        if found is None:
            found = self._within[key] = _Paces.of(windows)
        return found


def slowing(
    profiles: Sequence[Profile],
    node: str,
    *,
    least: float,
    evidence: float,
    policy: SlowdownPolicy,
    newest: NewestPaces | None = None,
) -> Slowing | None:
    """Find out whether ``node`` has got slower, by the last of ``profiles`` (by time, the newest last); None: it hasn't. It is ``least``
    times as slow in each window since, with so much ``evidence`` in all of them (seconds times the square of the natural logarithm of how
    many times). ``newest``: paces in these profiles, if they are known."""
    if newest is None or newest.profiles is not profiles:
        newest = NewestPaces(profiles, policy)
    if not newest.may_be_slow(node, least):
        return None
    alike = newest.alike
    seconds = 0.0
    for count in range(1, len(alike)):
        windows, before = alike[-count:], alike[:-count][-policy.usual_windows :]
        seconds += windows[0].seconds
        if seconds > policy.most_seconds:
            return None
        usual = sum(profile.seconds for profile in before)
        if usual < policy.usual_seconds or seconds < policy.least_seconds:
            continue
        if newest.done(before, node) / usual * seconds < policy.least_minibatches:
            continue
        usual_paces = newest.within(before)
        found = [_times(usual_paces, newest, profile, node, policy) for profile in windows]
        times = [each.least for each in found]
        sure = sum(
            p.seconds * math.log(min(x.mean, policy.most_times)) ** 2 for p, x in zip(windows, found, strict=True)
        )
        if min(times) >= least and sure >= evidence:
            return Slowing(before, windows, float(median(times)))
    return None


def _alike(profiles: Sequence[Profile]) -> Sequence[Profile]:
    """Return the last profiles that have the same nodes and sizes."""
    count = 0
    for profile in reversed(profiles):
        if _nodes(profile) != _nodes(profiles[-1]):
            break
        count += 1
    return profiles[len(profiles) - count :]


def _nodes(profile: Profile) -> set[tuple[str, float]]:
    return {(use.node, use.cores) for use in _uses(profile)}


class _Paces(NamedTuple):
    """Seconds for a minibatch, by node; those that did none aren't there."""

    workers: Mapping[str, float]
    """Seconds from one minibatch to the next, by worker."""
    work: Mapping[str, float]
    """Seconds that a worker was at work on a minibatch: one that waits for others isn't slow. Empty where phases weren't measured."""
    ps: Mapping[str, float]
    """Seconds that a PS was at work on a minibatch's requests."""
    ps_paces: Mapping[str, float]
    """Seconds from one minibatch to the next, by PS."""

    @staticmethod
    def of(profiles: Sequence[Profile]) -> _Paces:
        return _Paces(
            _each((use.node, profile.seconds, use.minibatches) for profile in profiles for use in profile.workers),
            _each((use.node, _at_work(use), use.minibatches) for profile in profiles for use in profile.workers),
            _each((use.node, use.busy_seconds, use.minibatches) for profile in profiles for use in profile.ps),
            _each((use.node, profile.seconds, use.minibatches) for profile in profiles for use in profile.ps),
        )


def _at_work(use: WorkerUse) -> float:
    return sum(use.phase_seconds.get(phase, 0.0) for phase in _WORK)


def _each(parts: Iterable[tuple[str, float, int]]) -> dict[str, float]:
    seconds: dict[str, float] = {}
    minibatches: dict[str, int] = {}
    for node, took, done in parts:
        seconds[node] = seconds.get(node, 0.0) + took
        minibatches[node] = minibatches.get(node, 0) + done
    return {node: seconds[node] / done for node, done in minibatches.items() if done and seconds[node] > 0}


class _Times(NamedTuple):
    """How many times as long as usual a node takes for the same work, next to its peers, by what is measured of it; 1 where that can't be
    told."""

    least: float = 1.0
    mean: float = 1.0
    """Geometric mean of the least and the most: what doesn't count as the node's work, as receiving and sending, is half its fault."""


def _times(usual: _Paces, newest: NewestPaces, profile: Profile, node: str, policy: SlowdownPolicy) -> _Times:
    if newest.done([profile], node) < policy.least_done:
        return _Times()
    now = newest.within([profile])
    found = [
        newest.slower_than_peers(before, after, node)
        for before, after in ((usual.workers, now.workers), (usual.work, now.work), (usual.ps, now.ps))
        if node in before and node in after
    ]
    least = min(found, default=1.0)
    # all wait for a PS that answers late, so its peers are no slower than it from one minibatch to the next
    pace = now.ps_paces[node] / usual.ps_paces[node] if node in usual.ps_paces and node in now.ps_paces else 1.0
    return _Times(least, math.sqrt(least * max(least, pace, *found)))


def work_times(before: Sequence[Profile], now: Sequence[Profile]) -> float | None:
    """Compute how many times as long as before workers are at work on a minibatch themselves, whatever they wait for: the median over
    workers; None where phases weren't measured."""
    usual, since = _Paces.of(before).work, _Paces.of(now).work
    return median(times) if (times := [since[node] / took for node, took in usual.items() if node in since]) else None


def slower_than_peers(before: Mapping[str, float], now: Mapping[str, float], node: str) -> float:
    """Compute how many times the seconds of before ``node`` takes now, over how many times its peers do, if they have got slower at all.
    Both are by node; ``node`` is in both."""
    others = [now[peer] / took for peer, took in before.items() if peer != node and peer in now and took > 0]
    return now[node] / before[node] / max(1.0, median(others) if others else 1.0)
