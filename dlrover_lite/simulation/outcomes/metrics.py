"""Metrics of a simulated run: how soon and how often jobs ended well, and what was used of what they were given."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from dlrover_lite.core.units import GIB
from dlrover_lite.simulation.outcomes.records import JobRecord, Run

__all__ = ["SIZES", "Metrics", "OverTime", "Prices", "metrics_of", "over_time"]

SIZES: tuple[tuple[str, float], ...] = (("small", 16.0), ("medium", 64.0), ("large", float("inf")))
"""Classes of jobs by the cores that their users ask for: up to so many. An assumption: one, and four, machines of the usual cluster."""


class Prices(msgspec.Struct, frozen=True, kw_only=True):
    """What is paid for what jobs are given, in dollars. Assumptions, near what clouds ask for machines on demand."""

    core_hour: float = 0.035
    gib_hour: float = 0.0045


class Metrics(msgspec.Struct, frozen=True, kw_only=True):
    """Metrics of one run. None: there is nothing to say it of."""

    jobs: int
    succeeded: int
    out_of_memory: int
    unfinished: int
    completion_rate: float | None
    """Share of jobs that ended well."""
    completion_by_size: dict[str, float | None]
    mean_seconds: float | None
    """Completion time, from a job's arrival to its end, of those that ended well."""
    median_seconds: float | None
    p90_seconds: float | None
    p99_seconds: float | None
    mean_waited_seconds: float | None
    """Seconds from arrival until there was room, of jobs that had some in the end."""
    cpu_use: float | None
    """CPU seconds used, over those given, of all jobs together."""
    memory_use: float | None
    core_hours: float
    """Given to jobs, as is the next one."""
    gib_hours: float
    cost: float
    """Dollars for what jobs were given."""


class OverTime(msgspec.Struct, frozen=True, kw_only=True):
    """What all jobs together used, and were given, in intervals of the same length; means over each."""

    seconds: float
    """Length of an interval."""
    used_cores: list[float]
    given_cores: list[float]
    used_bytes: list[float]
    given_bytes: list[float]


def metrics_of(run: Run, prices: Prices | None = None) -> Metrics:
    """Compute the metrics of a run."""
    its = prices or Prices()
    used_cores, given_cores, used_bytes, given_bytes = _sums(run.jobs)
    core_hours, gib_hours = given_cores / 3600.0, given_bytes / 3600.0 / GIB
    ends = [job.end for job in run.jobs]
    seconds = [job.seconds for job in run.jobs if job.seconds is not None]
    waited = [job.started_at - job.arrived_at for job in run.jobs if job.started_at is not None]
    return Metrics(
        jobs=len(run.jobs),
        succeeded=ends.count("succeeded"),
        out_of_memory=ends.count("out of memory"),
        unfinished=ends.count("unfinished"),
        completion_rate=_rate(run.jobs),
        completion_by_size={name: _rate(jobs) for name, jobs in _by_size(run.jobs).items()},
        mean_seconds=sum(seconds) / len(seconds) if seconds else None,
        median_seconds=_quantile(seconds, 0.5),
        p90_seconds=_quantile(seconds, 0.9),
        p99_seconds=_quantile(seconds, 0.99),
        mean_waited_seconds=sum(waited) / len(waited) if waited else None,
        cpu_use=used_cores / given_cores if given_cores else None,
        memory_use=used_bytes / given_bytes if given_bytes else None,
        core_hours=core_hours,
        gib_hours=gib_hours,
        cost=core_hours * its.core_hour + gib_hours * its.gib_hour,
    )


def over_time(run: Run, intervals: int, *, until: float | None = None) -> OverTime:
    """Return what jobs used and were given over time. ``until``: the end of the last interval; None: when the last job ends."""
    last = until if until is not None else max((use.stop for job in run.jobs for use in job.usage), default=0.0)
    seconds = last / intervals
    sums = np.zeros((4, intervals))
    for job in run.jobs:
        for use in job.usage:
            if use.start >= last or seconds <= 0.0:
                continue
            first = int(use.start / seconds)
            stop = min(intervals - 1, int(np.ceil(use.stop / seconds)) - 1)
            at = np.arange(first, max(first, stop) + 1)
            shared = np.minimum(use.stop, (at + 1) * seconds) - np.maximum(use.start, at * seconds)
            values = np.array([use.used_cores, use.given_cores, use.used_bytes, use.given_bytes])
            sums[:, at] += values[:, None] * np.maximum(shared, 0.0) / seconds
    used_cores, given_cores, used_bytes, given_bytes = sums.tolist()
    return OverTime(
        seconds=seconds,
        used_cores=used_cores,
        given_cores=given_cores,
        used_bytes=used_bytes,
        given_bytes=given_bytes,
    )


def _sums(jobs: Iterable[JobRecord]) -> tuple[float, float, float, float]:
    """Return core-seconds used and given, and byte-seconds used and given."""
    sums = [0.0] * 4
    for job in jobs:
        for use in job.usage:
            seconds = use.stop - use.start
            for at, value in enumerate((use.used_cores, use.given_cores, use.used_bytes, use.given_bytes)):
                sums[at] += value * seconds
    return sums[0], sums[1], sums[2], sums[3]


def _by_size(jobs: Iterable[JobRecord]) -> dict[str, list[JobRecord]]:
    found: dict[str, list[JobRecord]] = {name: [] for name, _ in SIZES}
    for job in jobs:
        found[next(name for name, most in SIZES if job.asked_cores <= most)].append(job)
    return found


def _rate(jobs: Sequence[JobRecord]) -> float | None:
    return sum(job.end == "succeeded" for job in jobs) / len(jobs) if jobs else None


def _quantile(values: Sequence[float], part: float) -> float | None:
    return float(np.quantile(values, part)) if values else None
