"""What checkpoints cost a job of one PS and one worker, as ``bench/migrate.py`` has them: tables of ``table_bytes`` with Adagrad state.

Each function runs a job of its own, or several, and ends it whatever happens. When a worker did its steps is known from when it read each
minibatch; when a cut was complete, from its manifest: looking for a file takes nothing from training.
"""

from __future__ import annotations

import os
import re
import signal
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from _plain_disk import WAYS, drop_from_cache, read_plainly, write_plainly
from _train_worker import BATCH_SIZE, BATCHES, load_batches
from migrate import Job

__all__ = [
    "Increments",
    "Losses",
    "Reshard",
    "Stalls",
    "idle_saves",
    "increments",
    "losses",
    "recoveries",
    "reshards",
    "stalls",
]

NEVER = 1e9
"""Seconds: saves are on demand."""
USUAL_SECONDS = 3.0
LOOK_SECONDS = 0.005
PATIENCE_SECONDS = 120.0
SETTLE_SECONDS = 0.5
_TAKEN_UP = re.compile(r"has taken up ([\d,]+) rows of \S+ in ([\d.]+) s")
_BEGINS, _RESTORED = "restores checkpoint", "has restored"


class SavingJob(Job):
    """Its cuts are those it is asked for, each ``full_every``-th with all rows."""

    def __init__(self, home: Path, table_bytes: int, *, full_every: int) -> None:
        checkpoint = {"every_seconds": NEVER, "full_every": full_every}
        super().__init__(home, table_bytes, servers=1, checkpoint=checkpoint)

    def save(self) -> tuple[int, float, float]:
        """The cut, when it was asked for, and when it was complete."""
        from dlrover_lite.checkpoint.store import directory_of

        asked = time.monotonic()
        cut = self.handle.checkpoint(wait=False)
        manifest = self.handle.directory / "checkpoints" / directory_of(cut) / "manifest.json"
        wait_until(manifest.exists, f"checkpoint {cut} was complete; see {self.handle.directory}")
        return cut, asked, time.monotonic()

    def manifest(self, cut: int) -> Any:
        from dlrover_lite.jobs.checkpoint_location import store_of

        return store_of(self.handle.job).manifest(cut)

    def part(self, cut: int) -> Path:
        from dlrover_lite.checkpoint.store import directory_of

        parts: list[Path] = list((self.handle.directory / "checkpoints" / directory_of(cut)).glob("*.part"))
        return parts[0]  # of the only server

    def pid(self, node: str) -> int:
        import psutil

        keeper = self.handle.job.record().keeper
        for process in psutil.Process(keeper.pid).children(recursive=True):
            if process.name() == f"dl:{node}":
                return int(process.pid)
        raise SystemExit(f"{node} doesn't run")

    @contextmanager
    def idle(self) -> Iterator[None]:
        """The worker is stopped, for less than would have it replaced."""
        worker = self.pid("worker-0")
        os.kill(worker, signal.SIGSTOP)
        try:
            time.sleep(SETTLE_SECONDS)  # what is under way at the server, it ends
            yield
        finally:
            os.kill(worker, signal.SIGCONT)


def wait_until(done: Callable[[], bool], what: str) -> float:
    end = time.monotonic() + PATIENCE_SECONDS
    while not done():
        if time.monotonic() > end:
            raise SystemExit(f"not within {PATIENCE_SECONDS:g} s: {what}")
        time.sleep(LOOK_SECONDS)
    return time.monotonic()


@contextmanager
def running(job: Job, times: list[float]) -> Iterator[None]:
    """A job that is ended, and when its minibatches were read, in ``times``."""
    try:
        job.until_full()
        yield
        times += job.end()
    except BaseException:
        job.handle.stop(kill=True)
        job.handle.wait()
        raise


def gaps(times: list[float], start: float, end: float) -> list[float]:
    """Between reads, of those that overlap with the time from ``start`` to ``end``."""
    return [later - earlier for earlier, later in pairwise(times) if later > start and earlier < end]


# --- stalls ---------------------------------------------------------------------------------------------------------------


@dataclass
class Stalls:
    """Of each save; in ms over the usual step."""

    longest: list[float] = field(default_factory=list)
    second: list[float] = field(default_factory=list)
    without: list[float] = field(default_factory=list)
    """The longest while as much time passed without a save."""
    step_ms: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)


def stalls(home: Path, table_bytes: int, saves: int, *, full_every: int = 1) -> tuple[Stalls, Stalls]:
    """Of the first save, which starts the persister, and of the later ones."""
    job = SavingJob(home, table_bytes, full_every=full_every)
    times: list[float] = []
    windows: list[tuple[float, float, float, float]] = []
    with running(job, times):
        for _ in range(1 + saves):
            time.sleep(USUAL_SECONDS)
            _, asked, complete = job.save()
            usual = time.monotonic() + SETTLE_SECONDS
            time.sleep(max(USUAL_SECONDS, SETTLE_SECONDS + complete - asked))
            windows.append((asked, complete, usual, usual + complete - asked))
    found = Stalls(), Stalls()
    for number, (asked, complete, start, end) in enumerate(windows):
        to = found[min(number, 1)]
        usual_steps, meanwhile = gaps(times, start, end), sorted(gaps(times, asked, complete))
        step = statistics.median(usual_steps)
        to.longest.append(1000 * (meanwhile[-1] - step))
        to.second.append(1000 * (meanwhile[-2] - step))
        to.without.append(1000 * (max(usual_steps) - step))
        to.step_ms.append(1000 * step)
        to.seconds.append(complete - asked)
    return found


# --- throughput -----------------------------------------------------------------------------------------------------------


class Losses(NamedTuple):
    kept: list[float]
    """Samples/s of each round with saves over those of the ones beside it without."""
    saves: list[int]
    """In each round."""
    lost_s: list[float]
    """Of each round: seconds of training that a save takes away."""


def losses(home: Path, table_bytes: int, rounds: int, seconds: float, *, every: float) -> Losses:
    """Rounds of ``seconds`` with a save each ``every`` (0: one after the other), between such ones without; full ones as by default."""
    from dlrover_lite.recipe.schema import Checkpoint

    job = SavingJob(home, table_bytes, full_every=Checkpoint().full_every)
    times: list[float] = []
    windows: list[tuple[float, float, int]] = []
    with running(job, times):
        time.sleep(USUAL_SECONDS)
        job.save()
        for number in range(2 * rounds + 1):
            start, saves = time.monotonic(), 0
            if number % 2:
                saves = _save_for(job, seconds, every)
            time.sleep(max(0.0, start + seconds - time.monotonic()))
            windows.append((start, time.monotonic(), saves))
    rates = [sum(start <= at < end for at in times) / (end - start) for start, end, _ in windows]
    found = Losses([], [], [])
    for at in range(1, len(windows), 2):
        start, end, saves = windows[at]
        kept = rates[at] / ((rates[at - 1] + rates[at + 1]) / 2)
        found.kept.append(kept)
        found.saves.append(saves)
        found.lost_s.append((1 - kept) * (end - start) / saves)
    return found


def _save_for(job: SavingJob, seconds: float, every: float) -> int:
    """How many saves it were; the last one is waited for."""
    start, saves = time.monotonic(), 0
    while (now := time.monotonic()) < start + seconds:
        if now < start + saves * every:
            time.sleep(min(start + seconds, start + saves * every) - now)
            continue
        job.save()
        saves += 1
    return saves


# --- what is written ------------------------------------------------------------------------------------------------------


def idle_saves(home: Path, table_bytes: int, rounds: int) -> tuple[list[float], dict[str, list[float]]]:
    """Bytes/s of full cuts while nothing is trained, from the request to the manifest; and of the same bytes written by each plain way."""
    job = SavingJob(home, table_bytes, full_every=1)
    plain = home / "plain"
    rates: list[float] = []
    disk: dict[str, list[float]] = {}
    with running(job, []):
        for number in range(1 + rounds):
            with job.idle():
                cut, asked, complete = job.save()
                size = job.part(cut).stat().st_size
                if number:  # the first one starts the persister
                    rates.append(size / (complete - asked))
                    _add(disk, size, lambda *how, size=size: write_plainly(plain, size, *how))
            plain.unlink(missing_ok=True)
            time.sleep(SETTLE_SECONDS)
    return rates, disk


def _add(rates: dict[str, list[float]], size: int, seconds: Callable[[bool, int], float]) -> None:
    """The rate of each plain way."""
    for way, how in WAYS.items():
        try:
            rates.setdefault(way, []).append(size / seconds(*how))
        except OSError:  # not past the page cache here
            rates.pop(way)


class Increments(NamedTuple):
    stored: list[int]
    """Bytes of each: part and manifest."""
    changed: list[int]
    """Bytes of the rows changed meanwhile, as stored."""
    rows_stored: list[int]
    rows_changed: list[int]


def increments(home: Path, table_bytes: int, saves: int) -> Increments:
    """Between two cuts, each of the minibatches there are is trained at least once: which rows that changes is known from their ids."""
    job = SavingJob(home, table_bytes, full_every=1 + saves)
    found = Increments([], [], [], [])
    distinct = _distinct_rows(home / "batches.npz")
    with running(job, []):
        job.save()
        for _ in range(saves):
            at = job.handle.status().samples
            job.until(lambda status, at=at: status.samples > at + 2 * BATCHES * BATCH_SIZE, "more was trained")  # type: ignore[misc]
            cut, _, _ = job.save()
            manifest, part = job.manifest(cut), job.part(cut)
            assert manifest.builds_on is not None
            changed = [blocks or distinct for blocks in _dense_blocks(manifest)]
            found.stored.append(part.stat().st_size + part.with_name("manifest.json").stat().st_size)
            sizes = [shape.record.bytes for shape in manifest.groups]
            found.changed.append(sum(rows * size for rows, size in zip(changed, sizes, strict=True)))
            found.rows_stored.append(manifest.rows)
            found.rows_changed.append(sum(changed))
    return found


def _dense_blocks(manifest: Any) -> list[int]:
    """By group: blocks of dense values, all of which each minibatch changes; 0 for the tables, which are of one dim here."""
    from dlrover_lite.checkpoint.manifest import configure
    from dlrover_lite.tables.layout import BUFFERS, PARAMETERS, groups_of

    configuration = configure(manifest)
    blocks = {
        PARAMETERS.name: configuration.dense.parameter_blocks,
        BUFFERS.name: configuration.dense.buffer_blocks,
    }
    return [blocks.get(group.tables[0].name, 0) for group in groups_of(configuration)]


def _distinct_rows(path: Path) -> int:
    """Pairs of table and id in the minibatches that are trained again and again."""
    ids = np.concatenate([batch.ids for batch in load_batches(path)], axis=1)
    return sum(len(np.unique(of_table)) for of_table in ids)


# --- restoring and recovering ----------------------------------------------------------------------------------------------


class Reshard(NamedTuple):
    seconds: list[float]
    """From the first server that begins to the last that has everything."""
    of_server: list[list[float]]
    """As each server says."""
    size: int
    disk: dict[str, list[float]]
    """Bytes/s of reading the same file by each plain way."""


def reshards(home: Path, table_bytes: int, rounds: int, *, servers: int = 3) -> Reshard:
    """A base of one server, with nothing of it in the page cache, by jobs with more of them."""
    job = SavingJob(home, table_bytes, full_every=1)
    with running(job, []):
        cut, _, _ = job.save()
        part = job.part(cut)
    found = Reshard([], [], part.stat().st_size, {})
    for _ in range(rounds):
        _add(found.disk, found.size, lambda *how: read_plainly(part, found.size, *how))
        drop_from_cache(part)
        seconds, of_server = _restore_onto(home, table_bytes, job, cut, servers)
        found.seconds.append(seconds)
        found.of_server.append(of_server)
    return found


def _restore_onto(home: Path, table_bytes: int, origin: Job, cut: int, servers: int) -> tuple[float, list[float]]:
    from dlrover_lite.client import resuming
    from dlrover_lite.jobs.checkpoint_location import locate

    beginning = resuming.beginning_of(resuming.choose(locate(origin.handle.id), cut))
    job = Job(home, table_bytes, servers=servers, beginning=beginning)
    try:
        logs = [job.handle.job.log(f"ps-{number}") for number in range(servers)]

        def say(what: str) -> list[bool]:
            return [log.exists() and what in log.read_text() for log in logs]

        began = wait_until(lambda: any(say(_BEGINS)), f"a server restored; see {job.handle.directory}")
        ended = wait_until(lambda: all(say(_RESTORED)), f"all had restored; see {job.handle.directory}")
        of_server = [float(log.read_text().split(_RESTORED)[1].split()[3]) for log in logs]
    finally:
        job.handle.stop(kill=True)
        job.handle.wait()
    return ended - began, of_server


def recoveries(home: Path, table_bytes: int, jobs: int) -> list[dict[str, float]]:
    """Of each job the first kill: later ones wait first, on purpose.

    ``recover_s``: from the kill to the next minibatch that needs rows of the one that follows; ``attach_s``: how much of it the follower
    takes to take up the memory; ``rows``, that it holds; ``step_s``, what the worker's usual step takes.
    """
    return [_recovery(home, table_bytes) for _ in range(jobs)]


def _recovery(home: Path, table_bytes: int) -> dict[str, float]:
    job = SavingJob(home, table_bytes, full_every=1)
    times: list[float] = []
    with running(job, times):
        time.sleep(USUAL_SECONDS)
        pid = job.pid("ps-0")
        killed = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        job.until(lambda status: any((node.id, node.state) == ("ps-1", "up") for node in status.nodes), "ps-1 was up")
        at = job.handle.status().samples
        # what was pushed before the kill is reported with its lease, up to two seconds later
        job.until(lambda status: status.samples > at + 300 * BATCH_SIZE, "training went on")
    found = _TAKEN_UP.search(job.handle.job.log("ps-1").read_text())
    if found is None:
        raise SystemExit("ps-1 has taken up nothing")
    return {
        "recover_s": _resumed(times, killed) - killed,
        "attach_s": float(found[2]),
        "rows": float(found[1].replace(",", "")),
        "step_s": statistics.median(later - earlier for earlier, later in pairwise(times)),
    }


def _resumed(times: list[float], killed: float) -> float:
    """When the longest pause ended of those that begin at the kill or up to a second later: until then, rows pulled before were used up."""
    around = [(earlier, later) for earlier, later in pairwise(times) if later > killed and earlier < killed + 1.0]
    return max(around, key=lambda pair: pair[1] - pair[0])[1]
