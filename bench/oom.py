"""Memory of parameter servers (PS) whose tables grow: how well it is foreseen, and whether the kernel ever has to end one.

``oom.prediction_error``: of the memory that a PS will have needed at its peak by the end of the job, as forecast from any moment from 30%
of the run on; the worst of all courses. Ids are really drawn, row by row, over one and three epochs: from vocabularies that are finite,
that grow with every sample, and that change with time, shuffled and in the order of time; with rows that stay, and with rows that are
evicted when they haven't been seen for some samples. (The parameter servers of today never evict: those courses are drawn as if they did.)

``oom.kills``: nodes that were ended for want of memory in real jobs (10) with real limits, whose tables outgrow the PS that they begin
with; ``oom.kills_without``: how many of the same jobs lose at least one such node when nobody looks ahead (autoscale off: a PS then comes
back with half as much again, each time, and the job fails if that isn't enough). ``oom.overprovision``: the limit of a PS at the end over
the most it has used; the worst of the PS of all jobs that were given more.
"""

from __future__ import annotations

import argparse
import math
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
from common import Figure, arguments, emit
from numpy.typing import NDArray

if TYPE_CHECKING:
    from dlrover_lite.brain.models.table_rows import Growth

MIB = 1 << 20
PATIENCE_SECONDS = 600.0


# --- what is foreseen -----------------------------------------------------------------------------------------------------


Ids = NDArray[np.int64]
TABLES = ((0, 32), (1, 16), (2, 16), (3, 1))
"""Seed and dim of each."""
BASE, STATE_PARTS = 16 * MIB, 1
LOOKS = 60
"""At what the PS holds, at equal steps of the run."""
FROM = 0.3
EVICT_AFTER = 0.4
"""Of an epoch's samples, in courses with eviction: it begins after the first looks at what is foreseen, or, of three epochs, before."""


def zipf(random: np.random.Generator, samples: int, ids: int, exponent: float) -> Ids:
    """From a finite vocabulary, the k-th id being drawn in proportion to k ** -exponent."""
    weights = np.cumsum(np.arange(1, ids + 1, dtype=np.float64) ** -exponent)
    found: Ids = np.searchsorted(weights, random.random(samples) * weights[-1])
    return found


def endless(random: np.random.Generator, samples: int, exponent: float) -> Ids:
    """From a vocabulary without end: ids that are drawn with the power law's tail, so that new ones come with every sample."""
    return (random.random(samples) ** (-1 / (exponent - 1))).clip(max=1e15).astype(np.int64)


def drifting(random: np.random.Generator, samples: int, ids: int) -> Ids:
    """Of the ids that are about at the time: those of a window that moves on over the whole run."""
    began = np.linspace(0, 2 * ids, samples)
    return (began + random.exponential(ids / 4, samples)).astype(np.int64)


COURSES: dict[str, Callable[[np.random.Generator, int], Ids]] = {
    "finite, soon seen": lambda random, samples: zipf(random, samples, samples // 20, 1.0),
    "finite, seen late": lambda random, samples: zipf(random, samples, samples, 0.8),
    "uniform": lambda random, samples: random.integers(0, samples // 2, samples),
    "growing": lambda random, samples: endless(random, samples, 1.6),
    "growing fast": lambda random, samples: endless(random, samples, 1.25),
    "every id its own": lambda random, samples: np.arange(samples),
    "changing with time": lambda random, samples: drifting(random, samples, samples // 10),
}


def rows_at(ids: Ids, looks: NDArray[np.int64]) -> NDArray[np.int64]:
    """Distinct ids among the first so many, for each of ``looks``, rising."""
    _, first = np.unique(ids, return_index=True)
    return np.searchsorted(np.sort(first), looks)


def rows_of_late(ids: Ids, looks: NDArray[np.int64], window: int) -> NDArray[np.int64]:
    """Distinct ids among the last ``window`` before each of ``looks``: those whose last occurrence before is further back."""
    order = np.argsort(ids, kind="stable")
    again = ids[order[1:]] == ids[order[:-1]]
    before = np.full(len(ids), -1)
    before[order[1:][again]] = order[:-1][again]
    starts = np.maximum(looks - window, 0).tolist()
    return np.array(
        [np.count_nonzero(before[start:end] < start) for start, end in zip(starts, looks.tolist(), strict=True)]
    )


class Course(NamedTuple):
    looks: NDArray[np.int64]
    """Samples trained on at each, over all epochs."""
    rows: list[NDArray[np.int64]]
    """Of each table, at each."""
    growth: Growth


def course(kind: str, *, samples: int, epochs: int, shuffled: bool, evicts: bool, seed: int) -> Course:
    from dlrover_lite.brain.models.table_rows import Growth

    looks = np.linspace(0, samples * epochs, LOOKS + 1).astype(np.int64)[1:]
    window = int(EVICT_AFTER * samples)
    rows = []
    for table, _ in TABLES:
        random = np.random.default_rng((seed, table))
        ids = COURSES[kind](random, samples)
        if shuffled:
            random.shuffle(ids)
        if not evicts:
            rows.append(rows_at(ids, np.minimum(looks, samples)))
            continue
        each = [random.permutation(ids) if shuffled else ids for _ in range(epochs)]
        rows.append(rows_of_late(np.concatenate(each), looks, window))
    return Course(looks, rows, Growth(samples, window if evicts else math.inf, not shuffled))


def used_bytes(dim: int, rows: int) -> int:
    """Bytes of rows and index, which rise with the number of rows."""
    from dlrover_lite.brain.models.memory_model import index_bytes, row_bytes

    return int(rows * row_bytes(dim, STATE_PARTS) + index_bytes(rows))


def errors(found: Course) -> Iterator[float]:
    """Of the peak, relative, at each look from ``FROM`` on."""
    from dlrover_lite.brain.models.memory_forecast import forecast
    from dlrover_lite.brain.models.memory_model import expected_bytes
    from dlrover_lite.protocol.demands import TableFacts
    from dlrover_lite.protocol.profiles import Level, PsLevel, TableUse

    levels = []
    for at, samples in enumerate(found.looks.tolist()):
        rows = {f"t{table}": int(found.rows[table][at]) for table, _ in TABLES}
        dims = {dim: sum(rows[f"t{table}"] for table, its in TABLES if its == dim) for _, dim in TABLES}
        used = sum(used_bytes(dim, count) for dim, count in dims.items())
        tables = tuple(TableUse(f"t{table}", dim, {"ps-0": rows[f"t{table}"]}) for table, dim in TABLES)
        levels.append(Level(float(at), samples, 1.0, (PsLevel("ps-0", sum(rows.values()), used, BASE + used),), tables))
    for at in range(int(LOOKS * FROM), LOOKS):
        seen = forecast(
            levels[: at + 1],
            epoch_samples=found.growth.epoch_samples,
            evict_after_samples=found.growth.evict_after_samples,
            in_order=found.growth.in_order,
            facts=TableFacts(state_parts=STATE_PARTS),
        )
        assert seen is not None
        peak = BASE
        for dim in {dim for _, dim in TABLES}:
            rows = np.sum([found.rows[table] for table, its in TABLES if its == dim], axis=0)
            peak += used_bytes(dim, int(rows.max()))
        expected = float(expected_bytes(*seen.of("ps-0"), float(found.looks[-1]))[0])
        yield expected / peak - 1


def prediction_error(quick: bool) -> Figure:
    samples, seeds = (400_000, 1) if quick else (1_500_000, 3)
    worst: dict[str, float] = {}
    for kind, epochs, shuffled, evicts in product(COURSES, (1, 3), (True, False), (False, True)):
        order, which = "shuffled" if shuffled else "by time", "rows evicted" if evicts else "rows kept"
        name = f"{kind}, {epochs} epoch{'s' * (epochs > 1)}, {order}, {which}"
        found = [
            error
            for seed in range(seeds)
            for error in errors(
                course(kind, samples=samples, epochs=epochs, shuffled=shuffled, evicts=evicts, seed=seed)
            )
        ]
        worst[name] = max(found, key=abs)
        say(f"forecast: {name}: {worst[name]:+.1%} at worst")
    value = max(map(abs, worst.values()))
    return Figure("oom.prediction_error", value, "x", "<= 0.15", detail={"worst": worst})


# --- what is done about it ------------------------------------------------------------------------------------------------


class Growing(NamedTuple):
    """A job that trains for about half a minute, its tables outgrowing its PS."""

    ids: int
    exponent: float
    samples: int
    limit_mib: int
    """Of each PS, as it begins."""
    dim: int = 16
    epochs: int = 1
    servers: int = 1
    optimizer: str = "adagrad"


JOBS = (
    Growing(300_000, 0.6, 1_500_000, 256),
    Growing(400_000, 1.0, 1_600_000, 192),
    Growing(1_000_000, 0.9, 1_400_000, 256, dim=8),
    Growing(300_000, 0.4, 500_000, 256, epochs=3),
    Growing(300_000, 0.8, 1_500_000, 192, servers=2),
    Growing(150_000, 0.0, 1_300_000, 256, dim=24),
    Growing(300_000, 0.7, 1_300_000, 256, optimizer="adam"),
    Growing(800_000, 1.1, 1_700_000, 192, dim=24),
    Growing(400_000, 0.5, 450_000, 192, epochs=3, servers=2),
    Growing(150_000, 0.3, 1_500_000, 160, dim=32, optimizer="sgd"),
)


def recipe_of(job: Growing, home: Path, *, autoscale: str) -> dict[str, Any]:
    return {
        "version": 1,
        "name": "bench-oom",
        "model": {"use": "wide_deep", "options": {"embedding_dim": job.dim, "hidden": [32]}},
        "data": {
            "format": "synthetic",
            "samples": job.samples,
            "eval_samples": 0,
            "ids_per_field": job.ids,
            "zipf_exponent": job.exponent,
        },
        "training": {"batch_size": 512, "epochs": job.epochs, "optimizer": {"use": job.optimizer}},
        "resources": {
            "ps": {"count": job.servers, "cores": 0.75 / job.servers, "memory": job.limit_mib * MIB},
            "worker": {"count": 1, "cores": 1, "memory": 1024 * MIB},
        },
        "autoscale": autoscale,
        "checkpoint": "off",
        "export": {"format": "none"},
        "directory": str(home),
    }


class Ran(NamedTuple):
    seconds: float
    kills: int
    finished: bool
    """Otherwise it failed, its nodes having been killed too often."""
    limits: dict[str, tuple[int, int]]
    """Of each PS at the end: its limit, and the most that it has used; only of those that have more than they began with."""


def ran(job: Growing, home: Path, *, autoscale: str) -> Ran:
    import dlrover_lite

    handle = dlrover_lite.run(recipe_of(job, home, autoscale=autoscale))
    try:
        result = handle.wait(PATIENCE_SECONDS)
    except BaseException:
        handle.stop(kill=True)
        handle.wait()
        raise
    nodes = result.status["nodes"] if result.status else []
    kills = sum(node["state"].startswith("ended (OOMKilled") for node in nodes)
    if result.status is None or not (result.ok or kills):
        raise SystemExit(f"{result.state}: {result.message}\n{result.hint}\nSee {handle.directory}")
    servers = [node for node in nodes if node["role"] == "ps" and not node["state"].startswith("ended (OOMKilled")]
    limits = {
        node["id"]: (node["memory"], node["peak_memory"]) for node in servers if node["memory"] > job.limit_mib * MIB
    }
    return Ran(result.status["elapsed_seconds"], kills, result.ok, limits)


def job_figures(quick: bool, only: int | None) -> list[Figure]:
    jobs = JOBS[only : only + 1] if only is not None else JOBS[:2] if quick else JOBS
    kills, killed, over, details = 0, 0, 0.0, []
    with tempfile.TemporaryDirectory(prefix="bench-oom-") as home:
        os.environ["DLROVER_LITE_HOME"] = home
        for job in jobs:
            os.environ["DLROVER_LITE_BRAIN"] = "embedded"
            ours = ran(job, Path(home), autoscale="on")
            os.environ["DLROVER_LITE_BRAIN"] = "off"
            without = ran(job, Path(home), autoscale="off")
            kills += ours.kills
            killed += without.kills > 0
            ratios = {node: limit / peak for node, (limit, peak) in ours.limits.items() if peak}
            over = max([over, *ratios.values()])
            details.append({"job": job._asdict(), "with": ours._asdict(), "without": without._asdict()})
            say(
                f"{job.limit_mib} MiB, {job.servers} PS: {ours.kills} kills in {ours.seconds:.0f} s, limits over peaks "
                f"{', '.join(f'{ratio:.2f}' for ratio in ratios.values()) or 'as they were'}; without the brain {without.kills} kills in "
                f"{without.seconds:.0f} s{'' if without.finished else ', and it failed'}"
            )
    most = -(-6 * len(jobs) // 10)
    return [
        Figure("oom.kills", kills, "nodes", "<= 0", detail={"jobs": details}),
        Figure("oom.kills_without", killed, "jobs", f">= {most}", detail={"of": len(jobs)}),
        Figure("oom.overprovision", over, "x", "<= 1.4"),
    ]


def say(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


def _extend(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", choices=("prediction", "jobs"), help="measure these figures")
    parser.add_argument("--job", type=int, choices=range(len(JOBS)), metavar="N", help="of the growing jobs, this one")


def main() -> None:
    options = arguments(__doc__ or "", _extend)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # jobs are ended, and their files deleted
    figures = []
    if options.only in (None, "prediction"):
        figures.append(prediction_error(options.quick))
    if options.only in (None, "jobs"):
        figures += job_figures(options.quick, options.job)
    emit(options, figures)


if __name__ == "__main__":
    main()
