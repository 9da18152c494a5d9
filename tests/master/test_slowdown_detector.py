"""A node that gets much slower ends the interval that is measured, and short ones follow: soon, and for no smaller reason."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlrover_lite.master.profiling.profiler import Pace, Part, Profiler, Situation
from dlrover_lite.protocol.messages import PsCounters, PsReport, WorkReport
from dlrover_lite.protocol.nodes import HostUsage, Readings, Usage
from dlrover_lite.protocol.profiles import Profile

PACE = Pace(first_seconds=10.0)
WORKERS, SERVERS = ("worker-0", "worker-1", "worker-2"), ("ps-0", "ps-1")
STEP = 0.25
PLAN = Situation(tuple(Part(node, "worker" if node in WORKERS else "ps", 0.5) for node in (*WORKERS, *SERVERS)))


class Job:
    """Workers tell what they have done every half second, the others every second, each at a moment of its own."""

    def __init__(self, *, noise: float = 0.0, seed: int = 0, rate: float = 24.0, pace: Pace = PACE) -> None:
        """``noise``: most that a worker's rate or a PS's cost is off, in each quarter of a second. ``rate``: minibatches/s of a worker."""
        self.profiler = Profiler("job", batch_size=100, samples_so_far=0, pace=pace)
        self.now = 0.0
        self.slow: dict[str, float] = {}
        """How many times, by node; a PS slows all workers down."""
        self.found: list[tuple[float, Profile]] = []
        """With when they were known."""
        self._noise, self._random, self._rate = noise, np.random.default_rng(seed), rate
        self._done = dict.fromkeys(WORKERS, 0.0)
        self._told = dict.fromkeys(WORKERS, 0)
        self._busy = dict.fromkeys(SERVERS, 0.0)
        self.profiler.situation(0.0, 1000.0, PLAN)

    def run(self, until: float) -> None:
        while self.now < until - 1e-9:
            self.now += STEP
            self._work()
            step = round(self.now / STEP)
            for at, node in enumerate(WORKERS):
                if step % 2 == at % 2:
                    new, self._told[node] = int(self._done[node]) - self._told[node], int(self._done[node])
                    self.profiler.worked(self.now, node, samples=100 * new, minibatches=new, report=WorkReport())
            for at, node in enumerate(SERVERS):
                if step % 4 == at:
                    counters = PsCounters(self._busy[node], 0.0, 0, 0)
                    self.profiler.served(
                        self.now, PsReport(node, 0, 0, int(sum(self._done.values())), counters=counters)
                    )
            if step % 4 == 3:
                nodes = {node: Usage(self.now / 2, 1, 1, 0, 0.0) for node in (*WORKERS, *SERVERS)}
                readings = Readings(nodes, dict.fromkeys(nodes, "here"), [HostUsage("here", 4.0, 3 * self.now)])
                self.profiler.readings(self.now, readings)
            found = self.profiler.tick(self.now, 1000.0 + self.now)
            if isinstance(found, Profile):
                self.found.append((self.now, found))

    def _work(self) -> None:
        held_up = max(self.slow.get(node, 1.0) for node in SERVERS)
        done = {node: self._rate * STEP * self._off() / max(self.slow.get(node, 1.0), held_up) for node in WORKERS}
        for node in WORKERS:
            self._done[node] += done[node]
        for node in SERVERS:
            self._busy[node] += sum(done.values()) * 0.01 * self._off() * self.slow.get(node, 1.0)

    def _off(self) -> float:
        return float(1 + self._noise * self._random.uniform(-1, 1))

    @property
    def lengths(self) -> list[float]:
        return [round(profile.seconds, 6) for _, profile in self.found]


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from([*WORKERS, *SERVERS]),
    st.floats(2.5, 12.0),
    st.floats(11.0, 30.0),
    st.floats(0.0, 0.2),
    st.integers(0, 999),
)
def test_a_node_that_gets_slow_is_measured_anew_within_seconds(
    node: str, times: float, when: float, noise: float, seed: int
) -> None:
    job = Job(noise=noise, seed=seed)
    job.run(when)
    slowed = job.now
    job.slow[node] = times
    job.run(when + 9.0)
    known, first = next(
        (at, one) for at, one in job.found if one.at - one.seconds > 1000.0 + slowed - 1.0 and one.seconds < 4
    )
    assert first.seconds == pytest.approx(PACE.look_seconds) and known <= slowed + 6.0
    assert first.at - first.seconds >= 1000.0 + slowed - 0.5  # next to nothing of what was before is in it
    for (_, one), (_, other) in itertools.pairwise(job.found):
        assert other.at - other.seconds >= one.at - 1e-6


@settings(max_examples=30, deadline=None)
@given(st.floats(0.0, 0.2), st.integers(0, 999), st.floats(1.0, 1.4))
def test_noise_does_not_end_an_interval_early(noise: float, seed: int, times: float) -> None:
    job = Job(noise=noise, seed=seed)
    job.run(30.0)
    job.slow["worker-1"] = job.slow["ps-1"] = times
    job.run(60.0)
    assert job.lengths == [PACE.seconds] * 5


def test_time_before_a_slowing_is_its_own_interval_if_long_enough() -> None:
    job = Job()
    job.run(19.0)
    job.slow["worker-0"] = 4.0
    job.run(40.0)
    assert job.lengths[:6] == [10.0, pytest.approx(6.0, abs=1.0), 2.5, 2.5, 2.5, 2.5]
    before, after = job.found[1][1], job.found[2][1]
    assert after.at - after.seconds == pytest.approx(before.at)
    assert after.workers[0].minibatches / after.seconds == pytest.approx(6, abs=1.5)
    job.run(60.0)
    assert job.lengths[6:] == [10.0, 10.0]  # it is usual by now
    short = Job()
    short.run(15.0)
    short.slow["worker-0"] = 4.0
    short.run(25.0)
    assert short.lengths[:3] == [10.0, 2.5, 2.5]  # two seconds of it are worth nothing


@pytest.mark.parametrize(
    "fields", [{"rate": 1.5}, {"pace": msgspec.structs.replace(Pace.of(2.5), first_seconds=2.5)}], ids=["few", "short"]
)
def test_few_minibatches_or_short_intervals_never_end_sooner(fields: Any) -> None:
    job = Job(**fields)
    job.run(33.0)
    job.slow["worker-0"] = 4.0
    job.run(80.0)
    assert len(set(job.lengths)) == 1


def test_a_change_of_plan_begins_a_new_interval() -> None:
    job = Job()
    job.run(19.0)
    job.slow["worker-0"] = 4.0
    job.run(22.0)
    job.profiler.situation(job.now, 1000.0 + job.now, Situation(PLAN.parts, "slots move"))
    job.profiler.situation(job.now + 1.0, 1001.0 + job.now, PLAN)
    count = len(job.found)
    job.run(60.0)
    assert set(job.lengths[count:]) == {10.0}


def test_pace_of_short_intervals_has_short_looks() -> None:
    assert Pace.of(10.0) == Pace() and Pace.of(2.0).look_seconds == 2.0


def test_the_backend_is_asked_at_the_end_of_an_interval() -> None:
    job = Job()
    job.run(12.5)
    asked = []
    while not job.found:
        job.run(job.now + STEP)
        asked.append(job.profiler.waits_for_readings(job.now))
    assert job.found[0][1].at == pytest.approx(1013.0) and any(asked) and not asked[-1]
    assert not Profiler("job", batch_size=1, samples_so_far=0).waits_for_readings(99.0)
