"""What checkpoints cost, and what it costs that a parameter server's state outlives its process. 1 GiB of rows with Adagrad state.

In process: ``journal_cost``: time of pushes with the chunk journal over that of the same ones without (26 tables of dim 16, 26 k keys a
push; Zipf 1.2 and uniform; the worse of both counts). ``restore_s``: from the memory that a server has left to an engine that can take
requests. ``part_ratio``: bytes/s of a part, from memory until it is synced, over the fastest plain way to write as much to the same
disk. ``read_ratio``: bytes/s at which three processes take the rows of their slots from it, over the fastest plain way to read it;
nothing is in the page cache.

Of jobs with one PS and one worker: ``stall_ms``: the longest step while a full cut is taken, over the usual step (beside it, the second
longest, and the longest while as much time passes without a cut). ``throughput_kept``: samples/s while one cut follows the other over
those without; ``throughput_kept_60s``: the same for one cut a minute (``--quick`` derives it from what each cut of ``throughput_kept``
took away). ``persist_ratio``: bytes/s of a full cut with training idle, from the request until it is complete, over the fastest plain
way to write as much. ``incremental_ratio``: bytes of an increment over those of the rows that were changed. ``recover_s``: from kill -9
of the PS to the next step of the worker. ``reshard_ratio``: bytes/s at which a cut of one PS is restored onto three, over the fastest
plain way to read it; nothing is in the page cache.

``--directory`` says on which disk: by default that of the jobs. The gradients of a push are copied before it, as they come from a
socket: they are in the cache. Pushes with and without take turns, one by one.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

import _checkpoint_jobs as jobs
from _checkpoint_disk import Medians, measure
from common import Figure, arguments, emit
from numpy.typing import NDArray
from reference import zipf_ids

from dlrover_lite.core.files.paths import state_directory
from dlrover_lite.protocol.ps_messages import Configure, DenseSpec, TableSpec
from dlrover_lite.ps.journal.applied_minibatches import ALL_SLOTS
from dlrover_lite.ps.memory.state_memory import PrivateMemory
from dlrover_lite.ps.server.engine import Engine, Slice
from dlrover_lite.ps.tables.bucket_index import CHUNK
from dlrover_lite.recipe.schema import Optimizer

TABLES, DIM, SAMPLES = 26, 16, 1024
ROWS_A_TABLE = 80_000
"""Two million in all."""
GIB = 1 << 30
_WITHOUT = (None, np.uint64(0), np.uint64(CHUNK))


def configured(memory: PrivateMemory | None = None) -> Engine:
    engine = Engine(owned=ALL_SLOTS, memory=memory)
    tables = [TableSpec(f"t{i}", DIM, 0.05) for i in range(TABLES)]
    optimizer = Optimizer(use="adagrad", learning_rate=0.01)
    engine.configure(Configure(0, tables, DenseSpec(0, 0), optimizer, optimizer), ALL_SLOTS)
    return engine


class Pushes:
    """Each is applied once: they are numbered on."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.number = 0

    def push(self, keys: NDArray[np.uint64], counts: list[int], grads: NDArray[np.float32]) -> float:
        """Seconds it takes."""
        of_group: Slice = keys.copy(), counts, grads.copy()
        self.number += 1
        start = time.perf_counter()
        self.engine.push(0, self.number, 1.0, ALL_SLOTS, [of_group])
        seconds = time.perf_counter() - start
        if self.number % 16 == 0:
            self.engine.applied_minibatches.consumed(0, [(0, [(0, self.number)])])
        return seconds

    def fill(self, rows_a_table: int) -> None:
        """All rows there are, in the order of a random stream of samples."""
        ids = np.random.default_rng(0).permutation(rows_a_table).astype(np.uint64)
        for start in range(0, len(ids), SAMPLES):
            part = ids[start : start + SAMPLES]
            self.push(np.tile(part, TABLES), [len(part)] * TABLES, np.ones((TABLES * len(part), DIM), np.float32))


def draw(kind: str, batches: int) -> list[tuple[NDArray[np.uint64], list[int], NDArray[np.float32]]]:
    """Distinct keys of each table, in the order of their first sample."""
    random = np.random.default_rng(1)
    drawn = []
    for _ in range(batches):
        tables = []
        for _ in range(TABLES):
            if kind == "zipf":
                ids = zipf_ids(SAMPLES, ids=ROWS_A_TABLE, exponent=1.2, random=random)
            else:
                ids = random.integers(0, ROWS_A_TABLE, SAMPLES)
            distinct, first = np.unique(ids, return_index=True)
            tables.append(distinct[np.argsort(first)].astype(np.uint64))
        keys = np.concatenate(tables)
        grads = random.standard_normal((len(keys), DIM)).astype(np.float32)
        drawn.append((keys, [len(of_table) for of_table in tables], grads))
    return drawn


def journal_cost(rounds: int) -> Figure:
    pushes = Pushes(configured())
    pushes.fill(ROWS_A_TABLE)
    (group,) = pushes.engine.groups
    modes = {"with": group._journal, "without": _WITHOUT}
    medians: dict[str, dict[str, float]] = {}
    for kind in ("zipf", "uniform"):
        batches = draw(kind, 16)
        seconds: dict[str, list[float]] = {name: [] for name in modes}
        for number in range(-1, rounds):
            for at, batch in enumerate(batches):
                for name in list(modes) if (number + at) % 2 else list(modes)[::-1]:
                    group._journal = modes[name]
                    taken = pushes.push(*batch)
                    if number >= 0:
                        seconds[name].append(taken)
        medians[kind] = {name: statistics.median(values) for name, values in seconds.items()}
    ratios = {kind: found["with"] / found["without"] for kind, found in medians.items()}
    worse = max(ratios, key=ratios.__getitem__)
    detail = {"worse_of": ratios, "seconds": medians}
    return Figure("checkpoint.journal_cost", ratios[worse], "x", "<= 1.05", medians[worse]["without"], detail)


def restore_seconds(rounds: int) -> Figure:
    with PrivateMemory() as memory:
        engine = configured(memory)
        row_bytes = engine.groups[0].row_bytes
        Pushes(engine).fill(GIB // row_bytes // TABLES)
        rows = engine.rows
        del engine
        seconds = []
        for _ in range(rounds):
            memory = memory.hand_over()
            start = time.perf_counter()
            follower = Engine(memory=memory)
            follower.own(ALL_SLOTS)
            seconds.append(time.perf_counter() - start)
            assert follower.rows == rows
            del follower
        memory.close()
    detail = {"rows": rows, "bytes": rows * row_bytes, "all": seconds}
    return Figure("checkpoint.restore_s", statistics.median(seconds), "s", "<= 0.5", detail=detail)


def disk_figures(directory: Path, options: argparse.Namespace) -> list[Figure]:
    reading = options.only != "part_ratio"
    size, rounds = (GIB // 4, 3) if options.quick else (GIB, 5)
    with tempfile.TemporaryDirectory(prefix="bench-checkpoint-", dir=directory) as place:
        found = measure(Path(place), size, rounds, reading=reading)
    figures = [_disk_figure("part_ratio", "write", found, found.disk_writes, ">= 0.7")]
    if reading:
        scattered = {"scattered_bytes_s": found.bytes_s["read_scattered"]}
        figures.append(_disk_figure("read_ratio", "read", found, found.disk_reads, ">= 0.5", scattered))
    return [figure for figure in figures if options.only in (None, figure.figure.partition(".")[2])]


def _disk_figure(
    name: str, what: str, found: Medians, disk: dict[str, float], target: str, more: dict[str, float] | None = None
) -> Figure:
    limit = max(disk.values())
    costs = {"bytes_s": found.bytes_s[what], "cpu_s_per_gib": found.cpu_s_per_gib[what]}
    detail = {**costs, **(more or {}), "disk_bytes_s": disk}
    return Figure(f"checkpoint.{name}", found.bytes_s[what] / limit, "x", target, limit, detail)


# --- of jobs --------------------------------------------------------------------------------------------------------------


def stall(home: Path, size: int, quick: bool) -> list[Figure]:
    first, later = jobs.stalls(home, size, 2 if quick else 7)
    median = statistics.median
    detail = {
        "second_longest_ms": median(later.second),
        "without_ms": median(later.without),
        "worst_ms": max(later.longest),
        "worst_without_ms": max(later.without),
        "all_ms": later.longest,
        "without_all_ms": later.without,
        "first_save_ms": first.longest[0],
        "save_s": median(later.seconds),
    }
    _say(
        f"stall: longest {_listed(later.longest)} ms, second longest {_listed(later.second)} ms, without saves {_listed(later.without)} ms;"
        f" the first save {first.longest[0]:.1f} ms; usual step {median(later.step_ms):.1f} ms; a save takes {median(later.seconds):.2f} s"
    )
    stall_ms, step_ms = median(later.longest), median(later.step_ms)
    return [Figure("checkpoint.stall_ms", stall_ms, "ms", "<= 20", step_ms, detail)]


def throughput(home: Path, size: int, quick: bool) -> list[Figure]:
    found = jobs.losses(home, size, 3 if quick else 5, 5.0 if quick else 20.0, every=0.0)
    kept = statistics.median(found.kept)
    detail = {"all": found.kept, "saves": found.saves, "lost_s_a_save": found.lost_s}
    _say(f"throughput: kept {_listed(found.kept, 3)} with {found.saves} saves")
    figures = [Figure("checkpoint.throughput_kept", kept, "x", ">= 0.90", detail=detail)]
    if quick:
        figures.append(_kept_a_minute(1 - statistics.median(found.lost_s) / 60, "derived from throughput_kept", found))
    return figures


def throughput_60s(home: Path, size: int, quick: bool) -> list[Figure]:
    if quick:
        return throughput(home, size, quick)[1:]
    found = jobs.losses(home, size, 2, 60.0, every=60.0)
    return [_kept_a_minute(statistics.median(found.kept), "measured", found)]


def _kept_a_minute(kept: float, how: str, found: jobs.Losses) -> Figure:
    detail = {"how": how, "all": found.kept, "saves": found.saves, "lost_s_a_save": found.lost_s}
    return Figure("checkpoint.throughput_kept_60s", kept, "x", ">= 0.98", detail=detail)


def persist(home: Path, size: int, quick: bool) -> list[Figure]:
    rates, disk = jobs.idle_saves(home, size, 3 if quick else 5)
    return [_disk_ratio("persist_ratio", rates, disk, ">= 0.7", {})]


def reshard(home: Path, size: int, quick: bool) -> list[Figure]:
    found = jobs.reshards(home, size, 2 if quick else 5)
    rates = [found.size / seconds for seconds in found.seconds]
    detail = {"seconds": found.seconds, "of_server_s": found.of_server, "bytes": found.size}
    return [_disk_ratio("reshard_ratio", rates, found.disk, ">= 0.5", detail)]


def _disk_ratio(
    name: str, rates: list[float], disk: dict[str, list[float]], target: str, more: dict[str, object]
) -> Figure:
    of_ways = {way: statistics.median(found) for way, found in disk.items()}
    rate, limit = statistics.median(rates), max(of_ways.values())
    detail = {"bytes_s": rate, "all_bytes_s": rates, "disk_bytes_s": of_ways, **more}
    return Figure(f"checkpoint.{name}", rate / limit, "x", target, limit, detail)


def incremental(home: Path, size: int, quick: bool) -> list[Figure]:
    found = jobs.increments(home, size, 2 if quick else 5)
    ratios = [stored / changed for stored, changed in zip(found.stored, found.changed, strict=True)]
    return [Figure("checkpoint.incremental_ratio", max(ratios), "x", "<= 1.2", detail=found._asdict())]


def recover(home: Path, size: int, quick: bool) -> list[Figure]:
    found = jobs.recoveries(home, size, 2 if quick else 5)
    medians = {name: statistics.median(each[name] for each in found) for name in found[0]}
    detail = {**medians, "all": [each["recover_s"] for each in found]}
    return [Figure("checkpoint.recover_s", medians["recover_s"], "s", "<= 1.5", medians["step_s"], detail)]


def _say(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


def _listed(values: list[float], digits: int = 1) -> str:
    return ", ".join(f"{value:.{digits}f}" for value in values)


OF_JOBS: dict[str, Callable[[Path, int, bool], list[Figure]]] = {
    "stall_ms": stall,
    "throughput_kept": throughput,
    "throughput_kept_60s": throughput_60s,
    "persist_ratio": persist,
    "incremental_ratio": incremental,
    "recover_s": recover,
    "reshard_ratio": reshard,
}
FIGURES = ("journal_cost", "restore_s", "part_ratio", "read_ratio", *OF_JOBS)


def job_figures(options: argparse.Namespace) -> list[Figure]:
    paths = [str(Path(__file__).parent), str(Path(__file__).resolve().parent.parent)]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [*paths, os.environ.get("PYTHONPATH", "")]))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # jobs are ended, and their files deleted
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="bench-checkpoint-", dir=options.directory) as home:
        os.environ["DLROVER_LITE_HOME"] = home  # compiled kernels are kept from one figure to the next
        for name, of_job in OF_JOBS.items():
            known = {figure.figure.partition(".")[2] for figure in figures}
            if options.only in (None, name) and name not in known:
                place = Path(home) / name
                place.mkdir()
                figures += of_job(place, GIB // 4 if options.quick else GIB, options.quick)
                shutil.rmtree(state_directory())  # of the jobs, which have ended
    return [figure for figure in figures if options.only in (None, figure.figure.partition(".")[2])]


def _extend(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", choices=FIGURES, help="measure one figure")
    parser.add_argument("--directory", type=Path, default=state_directory(), help="on the disk to measure")


def main() -> None:
    options = arguments(__doc__ or "", _extend)
    options.directory.mkdir(parents=True, exist_ok=True)
    figures = []
    if options.only in (None, "journal_cost"):
        figures.append(journal_cost(4 if options.quick else 16))
    if options.only in (None, "restore_s"):
        figures.append(restore_seconds(3 if options.quick else 7))
    if options.only in (None, "part_ratio", "read_ratio"):
        figures += disk_figures(options.directory, options)
    if options.only in (None, *OF_JOBS):
        figures += job_figures(options)
    emit(options, figures)


if __name__ == "__main__":
    main()
