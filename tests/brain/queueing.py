"""A small queueing simulation of training, to test the models against: it shares no formula with them.

Minibatches circulate: pulled from every PS, computed by their worker, pushed to every PS, with a delay on each way. Workers and PS serve
one after the other, first come first served; so does what minibatches are read from, a minibatch ahead for each worker. CPU limits are
those of the kernel: so many seconds in each period of 0.1 s, at full speed until they are used up; and nodes that run share the host's
free cores.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dlrover_lite.protocol.profiles import Observation

_PERIOD = 0.1
_NOTHING = 1e-9


@dataclass(frozen=True)
class Plan:
    workers: int
    ps: int
    worker_cores: float
    ps_cores: float
    free_cores: float = 64.0


@dataclass(frozen=True)
class Costs:
    """CPU seconds per minibatch, apart from ``latency``."""

    worker: float = 0.020
    worker_request: float = 0.0008
    ps: float = 0.008
    """Of all PS together."""
    ps_request: float = 0.0012
    latency: float = 0.003
    variation: float = 0.15
    batch_size: int = 1024
    read: float = 0.0
    """Seconds that what all workers read from takes for a minibatch."""


class _Node:
    def __init__(self, cores: float, speed: float = 1.0) -> None:
        self.cores = cores
        self.speed = speed
        """Work done in a CPU second."""
        self.queue: deque[tuple[int, float]] = deque()
        """Minibatches with the seconds of work that they need."""
        self.left = 0.0
        """Of the first one's."""
        self.budget = 0.0
        self.used = 0.0
        self.busy = 0.0
        """Seconds in which it had work,"""
        self.throttled = 0.0
        """and of these, those in which its limit kept it from that."""
        self.waiting = 0.0
        """Seconds that minibatches waited, added up."""
        self.done = 0
        """Minibatches trained, of a worker."""

    def add(self, minibatch: int, seconds: float) -> None:
        if not self.queue:
            self.left = seconds
        self.queue.append((minibatch, seconds))


class _Run:
    def __init__(
        self,
        plan: Plan,
        costs: Costs,
        rng: np.random.Generator,
        worker_speeds: Sequence[float] = (),
        ps_speeds: Sequence[float] = (),
        ps_shares: Sequence[float] = (),
    ) -> None:
        self.plan, self.costs, self.rng = plan, costs, rng
        depth = 2 if plan.worker_cores >= 1 else 1
        self.workers = [_Node(plan.worker_cores, speed) for speed in worker_speeds or [1.0] * plan.workers]
        self.ps = [_Node(plan.ps_cores, speed) for speed in ps_speeds or [1.0] * plan.ps]
        self.ps_shares = list(ps_shares) or [1 / plan.ps] * plan.ps
        self.nodes = self.workers + self.ps
        self.owner = [i // depth for i in range(plan.workers * depth)]
        self.computed = [False] * len(self.owner)
        self.missing = [0] * len(self.owner)
        self.travelling: deque[tuple[float, int]] = deque()
        self.unread: deque[int] = deque()
        self.ahead = len(self.workers)
        """Minibatches that have been read, at most one for each worker."""
        self.read_left, self.reading = costs.read, 0.0
        """Seconds left of what is being read; and those that workers were reading, or waited for their turn, added up."""
        self.now, self.period_ends, self.done = 0.0, 0.0, 0
        for minibatch in range(len(self.owner)):
            self.begin(minibatch)

    def work(self, seconds: float) -> float:
        return seconds * self.rng.gamma(1 / self.costs.variation**2, self.costs.variation**2)

    def begin(self, minibatch: int) -> None:
        self.unread.append(minibatch)
        self.hand_out()

    def hand_out(self) -> None:
        while self.unread and (self.ahead or not self.costs.read):
            self.ahead -= bool(self.costs.read)
            self.ask(self.unread.popleft())

    def ask(self, minibatch: int) -> None:
        """Half of a PS's work is for the pull, half for the push."""
        self.missing[minibatch] = len(self.ps)
        for server, share in zip(self.ps, self.ps_shares, strict=True):
            server.add(minibatch, self.work((self.costs.ps * share + self.costs.ps_request) / 2))

    def run_until(self, end: float) -> None:
        while self.now < end:
            self.next_event()

    def next_event(self) -> None:
        if self.now >= self.period_ends - _NOTHING:
            self.period_ends = self.now + _PERIOD
            for node in self.nodes:
                node.budget = node.cores * _PERIOD
        active = [node for node in self.nodes if node.queue and node.budget > _NOTHING]
        speed = min(1.0, self.plan.free_cores / len(active)) if active else 1.0
        seconds = self._seconds_to_next(active, speed)
        readers = len(self.workers) - self.ahead
        self.now += seconds
        for node in self.nodes:
            if queue := node.queue:
                node.waiting += seconds * (len(queue) - 1)
                node.busy += seconds
                if node.budget <= _NOTHING:
                    node.throttled += seconds
        spent = seconds * speed
        for node in active:
            node.left -= spent * node.speed
            node.budget -= spent
            node.used += spent
            if node.left <= _NOTHING:
                minibatch, _ = node.queue.popleft()
                node.left = node.queue[0][1] if node.queue else 0.0
                self.served(minibatch, node)
        if readers:
            self.reading += seconds * readers
            self.read_left -= seconds
            if self.read_left <= _NOTHING:
                self.ahead, self.read_left = self.ahead + 1, self.costs.read
                self.hand_out()
        while self.travelling and self.travelling[0][0] <= self.now + _NOTHING:
            self.arrived(self.travelling.popleft()[1])

    def _seconds_to_next(self, active: list[_Node], speed: float) -> float:
        """Compare without calls of ``min``: this is most of what tests of the brain take."""
        seconds = self.period_ends - self.now
        if self.travelling and (arrives := self.travelling[0][0] - self.now) < seconds:
            seconds = arrives
        for node in active:
            if (served := node.left / (speed * node.speed)) < seconds:
                seconds = served
            if (exhausted := node.budget / speed) < seconds:
                seconds = exhausted
        if self.ahead < len(self.workers) and self.read_left < seconds:
            seconds = self.read_left
        return seconds

    def served(self, minibatch: int, node: _Node) -> None:
        if node in self.workers:
            self.computed[minibatch] = True
            self.ask(minibatch)
            return
        self.missing[minibatch] -= 1
        if self.missing[minibatch] == 0:
            self.travelling.append((self.now + self.costs.latency / 2, minibatch))

    def arrived(self, minibatch: int) -> None:
        if self.computed[minibatch]:
            self.computed[minibatch] = False
            self.done += 1
            self.workers[self.owner[minibatch]].done += 1
            self.begin(minibatch)
        else:
            seconds = self.costs.worker + self.costs.worker_request * len(self.ps)
            self.workers[self.owner[minibatch]].add(minibatch, self.work(seconds))


def simulate(plan: Plan, costs: Costs, rng: np.random.Generator, *, seconds: float = 4.0) -> Observation:
    """What would be measured of ``seconds`` of training, after half a second of warming up."""
    run = _Run(plan, costs, rng)
    run.run_until(0.5)
    before, done_before, reading_before = [node.used for node in run.nodes], run.done, run.reading
    run.run_until(0.5 + seconds)
    used = [node.used - was for node, was in zip(run.nodes, before, strict=True)]
    done = max(run.done - done_before, 1)
    return Observation(
        samples_per_second=done * costs.batch_size / seconds,
        batch_size=costs.batch_size,
        workers=plan.workers,
        worker_cores=plan.worker_cores,
        worker_speed=1.0,
        ps=plan.ps,
        ps_cores=plan.ps_cores,
        ps_share=1 / plan.ps,
        ps_speed=1.0,
        free_power=plan.free_cores,
        host_workers=1.0,
        host_ps=1.0,
        worker_cpu_seconds=sum(used[: plan.workers]) / done,
        ps_cpu_seconds=sum(used[plan.workers :]) / plan.ps / done,
        read_seconds=(run.reading - reading_before) / done or None,
    )


PLANS = [
    Plan(w, p, w_cores, p_cores, free)
    for w, p, w_cores, p_cores, free in [
        (1, 1, 0.25, 0.25, 4), (1, 1, 0.5, 0.5, 4), (1, 1, 1, 0.5, 4), (1, 1, 1, 0.25, 4), (1, 2, 1, 0.25, 4), (1, 3, 0.75, 0.25, 4),
        (2, 1, 0.25, 0.25, 4), (2, 1, 0.5, 0.25, 4), (2, 1, 0.75, 0.5, 4), (2, 1, 1, 0.25, 4), (2, 2, 1, 0.25, 4), (2, 2, 0.5, 0.5, 4),
        (2, 3, 0.75, 0.25, 4), (3, 1, 0.25, 0.25, 4), (3, 1, 0.5, 0.5, 4), (3, 1, 1, 0.5, 4), (3, 2, 0.75, 0.25, 4), (3, 3, 1, 0.25, 4),
        (4, 1, 0.25, 0.25, 4), (4, 1, 0.5, 0.5, 4), (4, 1, 0.75, 1, 4), (4, 2, 1, 0.25, 4), (4, 2, 0.5, 0.25, 4), (4, 3, 0.75, 0.5, 4),
        (2, 1, 1, 1, 2), (3, 1, 1, 0.5, 2), (4, 1, 0.75, 0.5, 2), (4, 2, 1, 0.5, 2), (3, 2, 0.75, 1, 2), (4, 3, 1, 1, 2),
        (2, 1, 1, 0.5, 1), (4, 1, 0.5, 1, 1), (3, 3, 0.5, 0.5, 1), (1, 1, 1, 1, 1), (6, 1, 0.5, 1, 4), (6, 2, 1, 1, 4),
    ]
]  # fmt: skip
"""Few and many workers, one to three PS, small and whole quotas, enough cores and too few."""


def observations(costs: Costs, seed: int, plans: Sequence[Plan] = PLANS) -> list[Observation]:
    rng = np.random.default_rng(seed)
    return [simulate(plan, costs, rng) for plan in plans]


__all__ = ["PLANS", "Costs", "Plan", "observations", "replace", "simulate"]
