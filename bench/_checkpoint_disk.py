"""How fast a part of a checkpoint is written and read, beside the disk's own rates for the same bytes in the same run.

Prints a JSON object: ``persist_ratio`` and ``read_ratio`` with the rates (bytes/s) behind them. Writing: rows in memory to a part that is
synced, over one process writing the same bytes and syncing once. Reading: three processes, each with a third of the slots, that check
and take all rows, over one process reading the file; nothing is in the page cache.

    python bench/_checkpoint_disk.py DIRECTORY MEBIBYTES [ROUNDS]
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from dlrover_lite import slots as slot_sets
from dlrover_lite.checkpoint.layout import GroupShape
from dlrover_lite.checkpoint.manifest import Consumed, Manifest
from dlrover_lite.checkpoint.store import CheckpointStore, directory_of
from dlrover_lite.rows import RowData

SHAPE = GroupShape(16, 16)
ROWS_AT_ONCE = 1 << 14
PIECE = 1 << 20
READERS = 3


def make_rows(total_bytes: int) -> tuple[RowData, np.ndarray]:
    """As a server's arenas have them: in no order of slots."""
    count = total_bytes // SHAPE.known_row_bytes
    random = np.random.default_rng(1)
    ids = random.integers(0, 1 << 63, count, np.uint64)
    wide = random.random((count, SHAPE.dim), np.float32)
    small = np.arange(count, dtype=np.uint32)
    slots = (ids % np.uint64(slot_sets.SLOTS)).astype(np.uint16)
    return RowData(ids, np.zeros(count, np.uint16), small, small, wide, wide + 1), slots


def _slice(rows: RowData, some: slice) -> RowData:
    narrow = rows.ids[some], rows.tables[some], rows.counts[some], rows.ages[some]
    return RowData(*narrow, rows.values[some], rows.state[some])


def write_part(store: CheckpointStore, cut: int, rows: RowData, slots: np.ndarray) -> float:
    writer = store.begin(cut)
    began = time.perf_counter()
    with writer.part("bench", 0, ~slot_sets.none(), [SHAPE]) as part:
        for start in range(0, len(slots), ROWS_AT_ONCE):
            some = slice(start, start + ROWS_AT_ONCE)
            part.add(0, _slice(rows, some), slots[some])
        entry = part.finish()
    seconds = time.perf_counter() - began
    manifest = Manifest(
        job="bench",
        cut=cut,
        at=0.0,
        map_version=1,
        consumed=Consumed(),
        configuration={},
        groups=[SHAPE],
        parts=[entry],
    )
    writer.commit(manifest)
    return seconds


def write_raw(path: Path, data: bytes, total: int) -> float:
    began = time.perf_counter()
    with path.open("wb", buffering=0) as file:
        for start in range(0, total, PIECE):
            file.write(data[: min(PIECE, total - start)])
        os.fsync(file.fileno())
    return time.perf_counter() - began


def drop_from_cache(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read_raw(path: Path) -> float:
    drop_from_cache(path)
    buffer = bytearray(PIECE)
    began = time.perf_counter()
    with path.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass
    return time.perf_counter() - began


def _read_share(url: str, cut: int, share: int, scattered: bool, ready: object, go: object, rows: object) -> None:
    numbers = np.arange(slot_sets.SLOTS)
    mine = numbers % READERS == share if scattered else numbers * READERS // slot_sets.SLOTS == share
    store = CheckpointStore(url)
    ready.release()  # type: ignore[attr-defined]
    go.wait()  # type: ignore[attr-defined]
    count = sum(len(block.slots) for block in store.rows(cut, mine))
    with rows.get_lock():  # type: ignore[attr-defined]
        rows.value += count  # type: ignore[attr-defined]


def read_parts(url: str, cut: int, part: Path, expected: int, *, scattered: bool) -> float:
    drop_from_cache(part)
    context = multiprocessing.get_context("fork")
    ready, go, rows = context.Semaphore(0), context.Event(), context.Value("q", 0)
    processes = [
        context.Process(target=_read_share, args=(url, cut, share, scattered, ready, go, rows))
        for share in range(READERS)
    ]
    for process in processes:
        process.start()
    for _ in processes:
        ready.acquire()
    began = time.perf_counter()
    go.set()
    for process in processes:
        process.join()
    seconds = time.perf_counter() - began
    if rows.value != expected:
        raise SystemExit(f"the readers have found {rows.value:,} rows of {expected:,}")
    return seconds


def measure(directory: Path, total_bytes: int, rounds: int) -> dict[str, float]:
    rows, slots = make_rows(total_bytes)
    store = CheckpointStore(str(directory / "cuts"))
    store.create()
    raw = directory / "raw"
    noise = np.random.default_rng(2).bytes(PIECE)
    taken: dict[str, list[float]] = {}
    for cut in range(rounds):
        seconds = write_part(store, cut, rows, slots)
        (part,) = (Path(store.url) / directory_of(cut)).glob("*.part")
        size = part.stat().st_size
        steps: dict[str, Callable[[], float]] = {
            "write_raw": lambda: write_raw(raw, noise, size),  # noqa: B023 - called at once
            "read_raw": lambda: read_raw(raw),
            "read": lambda: read_parts(store.url, cut, part, len(slots), scattered=False),  # noqa: B023
            "read_scattered": lambda: read_parts(store.url, cut, part, len(slots), scattered=True),  # noqa: B023
        }
        taken.setdefault("write", []).append(seconds)
        for name, step in steps.items():
            taken.setdefault(name, []).append(step())
        raw.unlink()
        store.delete(cut)
    rates = {f"{name}_bytes_s": size / statistics.median(seconds) for name, seconds in taken.items()}
    return {
        "persist_ratio": rates["write_bytes_s"] / rates["write_raw_bytes_s"],
        "read_ratio": rates["read_bytes_s"] / rates["read_raw_bytes_s"],
        "read_scattered_ratio": rates["read_scattered_bytes_s"] / rates["read_raw_bytes_s"],
        **rates,
        "bytes": size,
    }


def main() -> None:
    directory = Path(sys.argv[1]) / "checkpoint-disk"
    directory.mkdir()
    try:
        rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 3
        print(json.dumps(measure(directory, int(sys.argv[2]) << 20, rounds)))
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
