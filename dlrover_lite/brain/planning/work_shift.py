"""When a job's work became another: its minibatches cost workers, or parameter servers (PS), much more or much less than they did.

It is looked for in CPU seconds, which depend on the plan and the host far less than throughput does. Where the number of PS has changed as
well, what a minibatch costs all PS, or a worker, lies between what it did and that times the ratio of the numbers: a part of the cost comes
with each PS, and nobody knows how large that is. Only what lies far outside of that is a shift then.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from dlrover_lite.brain.planning.job_view import WorkShift
from dlrover_lite.brain.policies import USUAL, ObservationPolicy
from dlrover_lite.protocol.acts import WorkRole
from dlrover_lite.protocol.profiles import Profile

__all__ = ["MinibatchCost", "Shift", "cost_of", "last_shift", "shift_words", "suspected_shift"]


class MinibatchCost(NamedTuple):
    """What a minibatch costs, as a window has measured it; 0: not known."""

    servers: float
    """Number of PS: each costs something for every minibatch, whatever it holds."""
    worker_cpu_seconds: float
    ps_cpu_seconds: float
    """CPU seconds of all PS together."""


class Shift(NamedTuple):
    first: int
    """Position of the first window since the shift."""
    role: WorkRole
    times: float
    """What a minibatch has cost in the first windows since, over what it cost before."""


def cost_of(profile: Profile, speeds: Mapping[str, float]) -> MinibatchCost:
    """Compute what a minibatch cost in a window, in CPU seconds of a host of speed 1. ``speeds`` of hosts: ``host_speeds``."""
    done = profile.minibatches
    if done <= 0:
        return MinibatchCost(len(profile.ps), 0.0, 0.0)
    own = sum(use.minibatches for use in profile.workers) or done
    workers = sum(use.cpu_seconds * speeds.get(use.host, 1.0) for use in profile.workers)
    servers = sum(use.cpu_seconds * speeds.get(use.host, 1.0) for use in profile.ps)
    return MinibatchCost(len(profile.ps), workers / own, servers / done)


class _Usual:
    """Costs since the shift before, by number of PS, each list in order."""

    def __init__(self, least_windows: int) -> None:
        self._least_windows = least_windows
        self._costs: dict[float, list[float]] = {}

    def add(self, servers: float, cost: float) -> None:
        insort(self._costs.setdefault(servers, []), cost)

    def range(self, servers: float) -> tuple[float, float] | None:
        """Return the least and the most that a minibatch usually costs with so many PS; None: too little is known."""
        own = self._costs.get(servers, ())
        if len(own) >= self._least_windows:
            return (usual := _median(own)), usual
        known = {number: _median(costs) for number, costs in self._costs.items() if len(costs) >= self._least_windows}
        return _within(known, servers) if known else None


def _within(known: Mapping[float, float], servers: float) -> tuple[float, float]:
    low = min(cost * min(1.0, servers / number) for number, cost in known.items())
    return low, max(cost * max(1.0, servers / number) for number, cost in known.items())


def _median(ordered: Sequence[float]) -> float:
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def _about_the_same(costs: Sequence[MinibatchCost], times: float) -> bool:
    """Say whether no cost is so much more than another that there could be a shift: it is never less than is usual, nor usual more than the
    most, whatever the number of PS."""
    if not costs:
        return True
    for role in (1, 2):
        own = [one[role] for one in costs]
        if min(own) <= 0 or max(own) > times * min(own):
            return False
    return True


def last_shift(costs: Sequence[MinibatchCost], policy: ObservationPolicy = USUAL.observation) -> Shift | None:
    """Find the last shift in windows by time; None: a minibatch has cost the same all the time.

    A shift is several windows in a row, with the same number of PS, that all cost workers, or PS, so much more, or so much less, than is
    usual since the shift before.
    """
    found = None
    if _about_the_same(costs, policy.shift_times):
        return None
    for found in _shifts(costs, policy):  # noqa: B007 - the last one counts
        pass
    return found


def _shifts(costs: Sequence[MinibatchCost], policy: ObservationPolicy) -> Iterator[Shift]:
    count, times = policy.shift_windows, policy.shift_times
    of_role: dict[WorkRole, _Usual] = {"worker": _Usual(count), "ps": _Usual(count)}
    for at in range(len(costs) - count + 1):
        new = costs[at : at + count]
        if all(one.servers == new[0].servers for one in new):
            shift = _looked_at("worker", of_role["worker"], new, at, times) or _looked_at(
                "ps", of_role["ps"], new, at, times
            )
            if shift is not None:
                yield shift
                of_role = {"worker": _Usual(count), "ps": _Usual(count)}
        of_role["worker"].add(costs[at].servers, costs[at].worker_cpu_seconds)
        of_role["ps"].add(costs[at].servers, costs[at].ps_cpu_seconds)


def suspected_shift(costs: Sequence[MinibatchCost], policy: ObservationPolicy = USUAL.observation) -> Shift | None:
    """Find a shift that only the newest windows speak of, too few to be sure of it. ``costs``: since the last shift."""
    if _about_the_same(costs, policy.shift_times):
        return None
    for count in range(min(policy.shift_windows, len(costs)) - 1, 0, -1):
        before, new = costs[:-count], costs[-count:]
        if any(one.servers != new[0].servers for one in new):
            continue
        roles: tuple[WorkRole, ...] = ("worker", "ps")
        for role in roles:
            usual = _Usual(policy.shift_windows)
            for one in before:
                usual.add(one.servers, _of_role(one, role))
            if (found := _looked_at(role, usual, new, len(before), policy.shift_times)) is not None:
                return found
    return None


def _of_role(cost: MinibatchCost, role: WorkRole) -> float:
    return cost.worker_cpu_seconds if role == "worker" else cost.ps_cpu_seconds


def _looked_at(role: WorkRole, usual: _Usual, windows: Sequence[MinibatchCost], at: int, times: float) -> Shift | None:
    new = [_of_role(one, role) for one in windows]
    before = usual.range(windows[0].servers)
    if before is None or before[0] <= 0 or min(new) <= 0:
        return None
    low, high = before
    if min(new) > times * high:
        return Shift(at, role, _median(sorted(new)) / high)
    if max(new) < low / times:
        return Shift(at, role, _median(sorted(new)) / low)
    return None


def shift_words(shift: WorkShift) -> str:
    """Say what has changed, and by how much."""
    who = "a worker's" if shift.role == "worker" else "the parameter servers'"
    return f"{who} CPU seconds for a minibatch are {shift.times:.2g} times what they were"
