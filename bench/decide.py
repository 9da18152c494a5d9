"""How long deciding takes.

All in CPU seconds, so that others on the machine count as little as can be; the details have the wall times too.
``one_ms``: one job's whole decision, from 64 intervals with 26 tables each, with nothing kept of them: its view, the model's fit, the
forecast of memory, the decision and the printed explanation, among the 445,440 plans of a recipe that may have 128 cores on one host
(``_one_job``). The detail has the parts, and the same for 2,000 cores, on 20 hosts and on 4. ``large_ms``: of that the decision and its
explanation, given the view, for 2,000 cores; the slower of the two.

The others are on a lattice of 524,288 plans (1 to 64 workers, 1 to 32 PS, 16 sizes each) with its exact Pareto front. ``thousand_s``: a
round of 1,000 jobs, each with a model of its own, two thirds of them running, all of them short of what they would like. ``growth``: time
for 10,000 jobs over that of 10 rounds of 1,000 (``--quick``: 2,000 over 2), in turn. ``nsga2_ratio``: time of NSGA-II (100 x 100) over the
exact front's. ``nsga2_beats``: its points that are better than the exact front, over several seeds; the detail says how many of the front
it misses.

``round``: cores that the brain's process takes for 1,000 jobs with 64 intervals and 26 tables each, each of which reports every 15 s, with
all that the real advisor does over its store (``_many_jobs``, in a process of its own; ``--quick``: 100 jobs, for as many times as much).
``memory_mib``: the most memory of that process. ``round_growth``: CPU of a report at 10,000 jobs over that at 1,000; both with 8 intervals
each, which is what memory suffices for, and over 15 s (``--quick``: 400 over 100 jobs).
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from _one_job import OneJob, decided
from common import Figure, arguments, emit, line_of, medians, start_process

from dlrover_lite.brain.models.fitted_model import load_model, model_data
from dlrover_lite.brain.models.throughput import Prior, fit
from dlrover_lite.brain.planning.decision import decide
from dlrover_lite.brain.planning.job_view import JobView, RoundInputs
from dlrover_lite.brain.planning.paper.nsga2 import nsga2_front
from dlrover_lite.brain.planning.pareto import fastest, points_of
from dlrover_lite.brain.planning.plan_grid import Bounds, Candidate, MemoryNeed, even_sizes, lattice_of
from dlrover_lite.core.garbage_collection import infrequent_garbage_collection
from dlrover_lite.core.units import GIB, Resources

BOUNDS = Bounds(worker_sizes=even_sizes(8), ps_sizes=even_sizes(4))
SIZES = {"one host": (1, 128.0), "20 hosts": (20, 100.0), "4 hosts": (4, 500.0)}
"""Hosts, with the cores of each, of the jobs that ``whole`` decides for."""
CORES_PER_JOB = 24
"""Of the cluster."""
COSTS = {
    "worker_sample": 1e-5,
    "worker_minibatch": 1e-3,
    "worker_request": 2e-4,
    "ps_sample": 4e-6,
    "ps_request": 2e-4,
    "latency": 2e-2,
}


def job(number: int, random: np.random.Generator) -> JobView:
    costs = {name: value * float(random.lognormal(0, 0.5)) for name, value in COSTS.items()}
    fitted = fit([], prior=Prior(costs, exponent=float(random.choice([3.0, 4.0, 6.0, 8.0]))))
    now = Candidate(int(random.integers(1, 16)), int(random.integers(1, 4)), 1.0, 0.5)
    return JobView(
        job=f"job-{number:05}",
        bounds=BOUNDS,
        model=model_data(fitted, batch_size=1024, free_cores={"a": 1e4}),
        need=MemoryNeed(worker=GIB // 2, ps=GIB // 4, tables=int(random.integers(1, 64)) * GIB, most_per_ps=16 * GIB),
        priority=float(random.choice([1.0, 1.0, 2.0, 4.0])),
        remaining_samples=float(random.lognormal(20, 1)),
        now=None if number % 3 == 0 else now,
        scale_seconds=5.0,
    )


def a_round(jobs: int) -> RoundInputs:
    random = np.random.default_rng(jobs)
    views = tuple(job(number, random) for number in range(jobs))
    return RoundInputs(at=0.0, capacity=Resources(float(CORES_PER_JOB * jobs), 256 * GIB * jobs), jobs=views)


def cpu_seconds(subject: Callable[[], object]) -> Callable[[], float]:
    def measure() -> float:
        gc.collect()
        start = time.process_time()
        subject()
        return time.process_time() - start

    return measure


def whole(*, quick: bool) -> list[Figure]:
    """Decide for one job from nothing kept, as large as one host and as several."""
    found = {name: parts_of(OneJob(*size), quick=quick) for name, size in SIZES.items()}
    first, *larger = found.values()
    return [
        Figure("decide.one_ms", first["whole"], "ms of CPU", "<= 30", detail=found),
        Figure("decide.large_ms", max(one["given"] for one in larger), "ms of CPU", "<= 10"),
    ]


def parts_of(one: OneJob, *, quick: bool) -> dict[str, float]:
    """Measure the parts of a job's decision; all in milliseconds of CPU but for the number of plans."""

    def measure() -> tuple[float, float]:
        known = one.registered()
        lattice_of.cache_clear()
        gc.collect()
        start = time.process_time()
        inputs = one.inputs(known)
        seen = time.process_time()
        decided(inputs)
        return seen - start, time.process_time() - seen

    inputs = one.inputs(one.registered())
    given = cpu_seconds(lambda: decided(inputs))
    rounds = 5 if quick else 25
    views, decisions = zip(*[measure() for _ in range(rounds + 3)][3:], strict=True)
    found = {
        "view": statistics.median(views),
        "decision": statistics.median(decisions),
        "whole": statistics.median(map(sum, zip(views, decisions, strict=True))),
        "given": medians({"given": given}, rounds, warm_up=3)["given"],
    }
    return {"plans": float(one.points), **{name: seconds * 1e3 for name, seconds in found.items()}}


def deciding(*, quick: bool) -> list[Figure]:
    thousand, more = a_round(1000), a_round(2000 if quick else 10_000)
    times = len(more.jobs) // len(thousand.jobs)
    walls: dict[str, float] = {}

    def timed(name: str, subject: Callable[[], object]) -> Callable[[], object]:
        def run() -> None:
            start = time.perf_counter()
            subject()
            walls[name] = min(walls.get(name, 1e9), time.perf_counter() - start)

        return run

    took: dict[str, float] = {}
    small = cpu_seconds(timed("thousand", lambda: decide(thousand, load_model)))
    large = cpu_seconds(timed("more", lambda: decide(more, load_model)))
    singles: list[float] = []

    def as_many() -> float:
        """As long as the large one, so that whatever slows the machine for a moment counts in both alike."""
        found = [small() for _ in range(times)]
        singles.extend(found)
        return sum(found)

    rounds = [(as_many(), large(), as_many()) for _ in range(1 if quick else 3)]
    growths = [2 * middle / (first + last) for first, middle, last in rounds]
    took["thousand"] = statistics.median(singles)
    took["more"] = statistics.median(middle for _, middle, _ in rounds)
    decisions = decide(thousand, load_model).decisions
    actions = {
        action: sum(one.action == action for one in decisions)
        for action in ("start", "change", "stay", "explore", "queue")
    }
    of_more = {"jobs": len(more.jobs), "cpu_s": took["more"], "wall_s": walls["more"], "rounds": growths}
    return [
        Figure(
            "decide.thousand_s",
            took["thousand"],
            "s of CPU",
            "<= 2",
            detail={"actions": actions, "wall_s": walls["thousand"]},
        ),
        Figure("decide.growth", statistics.median(growths), "x", "<= 1.05", took["thousand"], of_more),
    ]


def against_nsga2(*, quick: bool) -> list[Figure]:
    view = a_round(1).jobs[0]
    lattice, model = lattice_of(BOUNDS), load_model(view.model)
    fitting = lattice.fitting(view.need, 512 * GIB)
    subjects = {
        "exact": cpu_seconds(lambda: fastest(lattice, model, most_cores=128.0, fitting=fitting)),
        "nsga2": cpu_seconds(lambda: nsga2_front(lattice, model, most_cores=128.0, fitting=fitting)),
    }
    took = medians(subjects, 1 if quick else 5)
    exact = points_of(model, lattice.parts(fastest(lattice, model, most_cores=128.0, fitting=fitting)))
    beats = missing = 0
    for seed in range(1 if quick else 5):
        parts = lattice.parts(nsga2_front(lattice, model, most_cores=128.0, fitting=fitting, seed=seed))
        w, p, worker_cores, ps_cores = parts
        milli = np.rint((w * worker_cores + p * ps_cores) * 1000).astype(np.int64)
        rate = model.predict(*parts)[0]
        best = exact.throughput[np.searchsorted(exact.milli, milli, side="right") - 1]
        beats += int((rate > best * (1 + 1e-9)).sum())
        found = sum(
            bool(((milli == m) & (rate >= t * (1 - 1e-9))).any())
            for m, t in zip(exact.milli, exact.throughput, strict=True)
        )
        missing = max(missing, len(exact.milli) - found)
    detail = {"front": len(exact.milli), "not_found": missing}
    return [
        Figure("decide.nsga2_ratio", took["nsga2"] / took["exact"], "x", ">= 1", took["exact"], detail),
        Figure("decide.nsga2_beats", beats, "points", "<= 0", detail=detail),
    ]


def many(jobs: int, windows: int, seconds: float) -> dict[str, Any]:
    """Have so many jobs report in a process of their own; return what it measured."""
    with start_process(str(Path(__file__).parent / "_many_jobs.py"), str(jobs), str(windows), str(seconds)) as process:
        found: dict[str, Any] = msgspec.json.decode(line_of(process))
    if found["said"]:
        raise SystemExit(f"the brain couldn't decide: {found['said'][0]}")
    return found


def reporting(*, quick: bool) -> list[Figure]:
    jobs, more = (100, 400) if quick else (1000, 10_000)
    steady = many(jobs, 64, 30.0)
    few, all_of_them = many(jobs, 8, 15.0), many(more, 8, 15.0)
    growth = all_of_them["ms_per_report"] / few["ms_per_report"]
    return [
        Figure("decide.round", steady["cores"] * 1000 / jobs, "cores", "<= 0.5", detail=steady),
        Figure("decide.memory_mib", steady["memory_mib"], "MiB", "<= 1024"),
        Figure("decide.round_growth", growth, "x", "<= 1.2", few["ms_per_report"], all_of_them),
    ]


def main() -> None:
    options = arguments(__doc__ or "")
    with infrequent_garbage_collection():  # as the brain's process does
        for measure in (whole, deciding, against_nsga2, reporting):  # the last one takes most of the time
            emit(options, measure(quick=options.quick))


if __name__ == "__main__":
    main()
