"""How fast a part of a checkpoint is written and read, beside the disk's own rates for the same bytes in the same run.

Writing: a server's rows in memory to a part that is synced, as its persister does it. Reading: three processes, each with a third of the
slots, that check and take all rows.
The disk's own rate is that of the fastest plain way: 1 MiB at a time, through the page cache or past it (O_DIRECT), past it also by two
threads; synced once at the end, or with nothing in the page cache.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import statistics
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from _plain_disk import WAYS, drop_from_cache, read_plainly, write_plainly
from numpy.typing import NDArray

from dlrover_lite.checkpoint.manifest import Consumed, Manifest
from dlrover_lite.checkpoint.store import CheckpointStore, directory_of
from dlrover_lite.core import slot_sets
from dlrover_lite.core.records import EPOCH_BITS, TABLE_EPOCH, RecordShape
from dlrover_lite.ps.snapshots.copy_on_write_log import CopyOnWriteLog, GroupSnapshot
from dlrover_lite.ps.snapshots.snapshot_kernels import compile_kernels
from dlrover_lite.ps.snapshots.snapshot_reader import SnapshotReader

__all__ = ["Medians", "measure"]

SHAPE = RecordShape(16, 16, False)
EPOCH = 1000
READERS = 3


class Cost(NamedTuple):
    seconds: float
    cpu_s: float


class Arena(NamedTuple):
    """Of a server with one group: the file of its records, and what a snapshot of it is."""

    file: int
    group: GroupSnapshot


def make_rows(total_bytes: int) -> Arena:
    """As a server has them: in no order of slots."""
    count = total_bytes // SHAPE.bytes
    random = np.random.default_rng(1)
    records = np.empty((count, SHAPE.words), np.uint32)
    records[:, :TABLE_EPOCH] = random.integers(0, 1 << 32, (count, int(TABLE_EPOCH)), np.uint32)
    records[:, TABLE_EPOCH] = np.uint32(1) << EPOCH_BITS | (1 + np.arange(count) % EPOCH).astype(np.uint32)
    records.view(np.float32)[:, SHAPE.values_at :] = random.random((count, SHAPE.dim + SHAPE.state), np.float32)
    group = GroupSnapshot(SHAPE, count, EPOCH, bytes(8), 1, rows=count)
    return Arena(_file(records), group)


def _file(records: NDArray[np.uint32]) -> int:
    descriptor = os.memfd_create("bench")
    data = records.reshape(-1).data.cast("B")
    while data:
        data = data[os.write(descriptor, data) :]
    return descriptor


def _cpu_s(who: int = resource.RUSAGE_SELF) -> float:
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime


def write_part(store: CheckpointStore, number: int, arena: Arena) -> Cost:
    """As the persister does."""
    writer = store.begin(number)
    every, none = ~slot_sets.none(), slot_sets.none()
    spill = CopyOnWriteLog([arena.group])
    reader = SnapshotReader([arena.group], [arena.file], spill, every, none, kernels=True)
    began, cpu_s = time.perf_counter(), _cpu_s()
    with writer.part("bench", 0, every, [arena.group.stored]) as part:
        for _ in reader.steps(part):
            pass
        entry = part.finish()
    cost = Cost(time.perf_counter() - began, _cpu_s() - cpu_s)
    manifest = Manifest(
        job="bench",
        cut=number,
        at=0.0,
        map_version=1,
        consumed=Consumed(),
        configuration={},
        groups=[arena.group.stored],
        parts=[entry],
    )
    writer.commit(manifest)
    spill.close()
    return cost


def _read_share(url: str, cut: int, share: int, scattered: bool, ready: Any, go: Any, rows: Any, cpu_s: Any) -> None:
    numbers = np.arange(slot_sets.SLOTS)
    mine = numbers % READERS == share if scattered else numbers * READERS // slot_sets.SLOTS == share
    store = CheckpointStore(url)
    used_before = _cpu_s()
    ready.release()
    go.wait()
    count = sum(len(block.slots) for block in store.rows(cut, mine))
    with rows.get_lock():
        rows.value += count
        cpu_s.value += _cpu_s() - used_before
    ready.release()


def read_parts(url: str, cut: int, part: Path, expected: int, *, scattered: bool) -> Cost:
    """Three processes; ``scattered``: each has every third slot, otherwise a third of neighbours."""
    drop_from_cache(part)
    context = multiprocessing.get_context("fork")
    ready, go = context.Semaphore(0), context.Event()
    rows, cpu_s = context.Value("q", 0), context.Value("d", 0.0)
    processes = [
        context.Process(target=_read_share, args=(url, cut, share, scattered, ready, go, rows, cpu_s))
        for share in range(READERS)
    ]
    for process in processes:
        process.start()
    for _ in processes:
        ready.acquire()
    began = time.perf_counter()
    go.set()
    for _ in processes:
        ready.acquire(timeout=60)
    seconds = time.perf_counter() - began
    for process in processes:
        process.join()
    if rows.value != expected:
        raise SystemExit(f"the readers have found {rows.value:,} rows of {expected:,}")
    return Cost(seconds, cpu_s.value)


class Medians(NamedTuple):
    """Bytes/s, and CPU seconds a GiB, by what was done; those of the disk by plain way."""

    bytes_s: dict[str, float]
    cpu_s_per_gib: dict[str, float]
    disk_writes: dict[str, float]
    disk_reads: dict[str, float]


def measure(directory: Path, total_bytes: int, rounds: int, *, reading: bool) -> Medians:
    """In rounds of one part written, and (``reading``) read, and the same bytes by each plain way."""
    arena = make_rows(total_bytes)
    compile_kernels()
    store = CheckpointStore(str(directory / "cuts"))
    store.create()
    plain = directory / "plain"
    costs: dict[str, list[Cost]] = {}
    writes: dict[str, list[float]] = {}
    reads: dict[str, list[float]] = {}
    size = 0
    for cut in range(rounds):
        costs.setdefault("write", []).append(write_part(store, cut, arena))
        (part,) = (Path(store.url) / directory_of(cut)).glob("*.part")
        size = part.stat().st_size
        for way, how in WAYS.items():
            with suppress(OSError):  # not past the page cache here
                writes.setdefault(way, []).append(write_plainly(plain, size, *how))
        if reading:
            for name, scattered in (("read", False), ("read_scattered", True)):
                cost = read_parts(store.url, cut, part, arena.group.used, scattered=scattered)
                costs.setdefault(name, []).append(cost)
            for way, how in WAYS.items():
                with suppress(OSError):
                    reads.setdefault(way, []).append(read_plainly(part, size, *how))
        plain.unlink()
        store.delete(cut)
    os.close(arena.file)
    return Medians(
        {name: size / statistics.median(cost.seconds for cost in found) for name, found in costs.items()},
        {name: statistics.median(cost.cpu_s for cost in found) / size * 2**30 for name, found in costs.items()},
        {way: size / statistics.median(seconds) for way, seconds in writes.items() if seconds},
        {way: size / statistics.median(seconds) for way, seconds in reads.items() if seconds},
    )
