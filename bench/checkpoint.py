"""What it costs that a parameter server's state outlives its process, and what is kept on disk. ``journal_cost``: time of pushes with the
chunk journal over that of the same ones without, in process (26 tables of dim 16 with Adagrad, 26 k keys a push; Zipf 1.2 and uniform; the
worse of both counts). ``restore_s``: from the memory that a server of 1 GiB of rows has left to an engine that can take requests.

``persist_ratio``: bytes/s of a part with 1 GiB of rows, from memory until it is synced, over the fastest plain way to write as much to the
same disk. ``read_ratio``: bytes/s at which three processes take the rows of their slots from it, over the fastest plain way to read it;
nothing is in the page cache. ``--directory`` says on which disk: by default that of the jobs.

The gradients of a push are copied before it, as they come from a socket: they are in the cache. Pushes with and without take turns, one
by one.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
from _checkpoint_disk import Medians, measure
from common import Figure, arguments, emit
from numpy.typing import NDArray
from reference import zipf_ids

from dlrover_lite.jobs.paths import state_directory
from dlrover_lite.ps.engine import Engine, Slice
from dlrover_lite.ps.index import CHUNK
from dlrover_lite.ps.marks import ALL_SLOTS
from dlrover_lite.ps.memory import PrivateMemory
from dlrover_lite.recipe.schema import Optimizer
from dlrover_lite.wire.ps_messages import Configure, DenseSpec, TableSpec

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
            self.engine.marks.consumed(0, [(0, [(0, self.number)])])
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
    directory.mkdir(parents=True, exist_ok=True)
    reading = options.only != "persist_ratio"
    with tempfile.TemporaryDirectory(prefix="bench-checkpoint-", dir=directory) as place:
        size, rounds = (GIB // 4, 3) if options.quick else (GIB, 5)
        found = measure(Path(place), size, rounds, reading=reading)
    figures = [_disk_figure("persist_ratio", "write", found, found.disk_writes, ">= 0.7")]
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


FIGURES = ("journal_cost", "restore_s", "persist_ratio", "read_ratio")


def _extend(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", choices=FIGURES, help="measure one figure")
    parser.add_argument("--directory", type=Path, default=state_directory(), help="on the disk to measure")


def main() -> None:
    options = arguments(__doc__ or "", _extend)
    figures = []
    if options.only in (None, "journal_cost"):
        figures.append(journal_cost(4 if options.quick else 16))
    if options.only in (None, "restore_s"):
        figures.append(restore_seconds(3 if options.quick else 7))
    if options.only in (None, "persist_ratio", "read_ratio"):
        figures += disk_figures(options.directory, options)
    emit(options, figures)


if __name__ == "__main__":
    main()
