"""What happens to one job of ``bench/size.py``, phase after phase, and what each of them cost the worker.

Every job goes through ``start``, ``half`` of its size, ``resize`` there, and ``growth`` to all of it. Then, as wanted and in this order:
``quiet`` training, ``cut``: a checkpoint of all rows, training ``after`` it, ``recover`` from kill -9 of the server, ``move`` of half of
the slots to a second one. When the worker did its steps is known once the job has ended.
"""

from __future__ import annotations

import mmap
import os
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import psutil
from _plain_disk import WAYS, drop_from_cache, read_plainly
from _size_ids import TABLES
from _size_jobs import GIB, ROW_BYTES, WORKER_MEMORY, NotDone, SizedJob, Sizes, restore_seconds, rows_of
from _size_worker import write_wish
from _train_worker import BATCH_SIZE

from dlrover_lite.core.errors import DlroverLiteError

__all__ = ["PHASES", "Course", "Numbers", "Pace", "gaps", "of_pause", "of_span", "run", "say"]

FIRST = ("start", "half", "resize", "growth")
PHASES = ("quiet", "cut", "after", "recover", "move")
SETTLE_SECONDS = 3.0
"""What a server uses is measured about every second."""
READ_PLAINLY = 2 * GIB
"""Bytes of a part that are read by each plain way, at most."""
SPARE = GIB
"""Bytes of memory that the rest of the machine is left."""

Numbers = dict[str, float]


class Pace(NamedTuple):
    """Seconds of training without anything."""

    quiet: float
    """Before and after a cut, and with it at least."""
    short: float
    """Around what else is done."""


class Span(NamedTuple):
    start: float
    end: float


@dataclass
class Course:
    """What one job has shown."""

    gib: float
    kind: str
    found: dict[str, Numbers] = field(default_factory=dict)
    """What each phase has measured."""
    undone: list[str] = field(default_factory=list)
    """What couldn't be done, and why."""

    @property
    def name(self) -> str:
        return f"{self.gib:g} GiB {self.kind}"


def say(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


# --- what steps say ---------------------------------------------------------------------------------------------------


def gaps(times: list[float], span: Span) -> list[float]:
    """Seconds between reads that overlap with the span. Raises NotDone where there are none."""
    found = [later - earlier for earlier, later in pairwise(times) if later > span.start and earlier < span.end]
    if not found:
        raise NotDone(f"the worker has done no step within {span.end - span.start:.1f} s")
    return found


def of_span(times: list[float], span: Span, quiet: Span, *, own_step: bool = False) -> Numbers:
    """Find the longest step of a span over the usual one of quiet training (``own_step``: of the span itself), the longest of quiet
    training over its own, and samples/s over those of quiet training."""
    meanwhile = gaps(times, span)
    without = gaps(
        [at for at in times if quiet.start <= at <= quiet.end], quiet
    )  # not a step that ends in what follows
    usual = statistics.median(without)
    step = statistics.median(meanwhile) if own_step else usual
    return {
        "stall_ms": 1000 * (max(meanwhile) - step),
        "without_ms": 1000 * (max(without) - usual),
        "step_ms": 1000 * step,
        "kept": rate(times, span) / usual_rate(times, quiet),
        "seconds": span.end - span.start,
    }


def rate(times: list[float], span: Span) -> float:
    """Samples/s."""
    return BATCH_SIZE * sum(span.start <= at < span.end for at in times) / (span.end - span.start)


def usual_rate(times: list[float], quiet: Span) -> float:
    """Samples/s of quiet training. Raises NotDone where nothing was trained."""
    if found := rate(times, quiet):
        return found
    raise NotDone(f"the worker has read no minibatch within {quiet.end - quiet.start:.1f} s of quiet training")


def of_pause(times: list[float], killed: float) -> float:
    """Seconds from a kill until the longest pause ended of those that begin then, or within a second: until it began, rows that were
    there already were used up."""
    around = [(earlier, later) for earlier, later in pairwise(times) if later > killed and earlier < killed + 1.0]
    if not around:
        raise NotDone("the worker has done no step after the kill")
    return max(around, key=lambda pair: pair[1] - pair[0])[1] - killed


# --- a job ------------------------------------------------------------------------------------------------------------


class _Run:
    """One job, while it runs."""

    def __init__(self, job: SizedJob, course: Course, wanted: Collection[str], pace: Pace) -> None:
        self.job, self.course, self.wanted, self.pace = job, course, wanted, pace
        self.all_rows = rows_of(job.gib)
        self.evaluate: list[tuple[str, Callable[[list[float]], Numbers]]] = []
        """What is left to do once it is known when the steps were."""
        self.spans: dict[str, Span] = {}
        """Quiet training, the last one last; by phase."""
        self.cut_number = self.cut_bytes = 0
        self._empty = (0, 0)

    def phases(self) -> Iterator[tuple[str, Callable[[], None], bool]]:
        """The name of each, what it does, and whether the others need it."""
        for name in FIRST:
            yield name, getattr(self, name), True
        for name in PHASES:
            if name in self.wanted:
                yield name, getattr(self, name), name == "quiet"

    @property
    def before(self) -> Span:
        """The last quiet training."""
        return list(self.spans.values())[-1]

    def rest(self, seconds: float) -> Span:
        """Train with nothing else going on."""
        start = time.monotonic()
        time.sleep(seconds)
        if not self.job.runs():
            raise NotDone(f"the job has ended: {self.job.handle.status().message}")
        return Span(start, time.monotonic())

    def memory(self) -> tuple[int, int]:
        """Bytes that the server takes, and rows it holds."""
        status = self.job.handle.status()
        return self.job.server().used_memory, status.rows

    def start(self) -> None:
        rows = 4 * BATCH_SIZE
        self.job.let_grow(min(rows, self.all_rows), 400)  # the first job compiles kernels
        self.rest(SETTLE_SECONDS)
        self._empty = self.memory()

    def half(self) -> None:
        self.job.let_grow(self.all_rows // 2, self._patience(60, 60))
        self.spans["half"] = self.rest(self.pace.short)

    def resize(self) -> None:
        before = self.before
        span = Span(*self.job.raise_memory(self.job.server().id, self.job.sizes.raised))
        self.rest(SETTLE_SECONDS)
        span = Span(span.start, time.monotonic())
        self._later("resize", lambda times: of_span(times, span, before))

    def growth(self) -> None:
        before = self.before
        span = Span(*self.job.let_grow(self.all_rows, self._patience(60, 60)))
        self._later("growth", lambda times: of_span(times, span, self.spans.get("quiet", before), own_step=True))

    def quiet(self) -> None:
        self.rest(SETTLE_SECONDS)  # what growing has left behind is tidied up
        cpu = self.job.cpu_seconds()
        span = self.spans["quiet"] = self.rest(self.pace.quiet)
        busy = {role: (now - cpu[role]) / (span.end - span.start) for role, now in self.job.cpu_seconds().items()}
        (bytes_now, rows_now), (bytes_then, rows_then) = self.memory(), self._empty
        row_bytes = (bytes_now - bytes_then) / (rows_now - rows_then)
        known = {
            "row_bytes": row_bytes,
            "ps_cores": busy["ps"],
            "worker_cores": busy["worker"],
            "rows": float(rows_now),
        }
        self._later("quiet", lambda times: {**known, "samples_s": usual_rate(times, span)})

    def cut(self) -> None:
        self._check_disk()
        before = self.before
        self.cut_number, asked, complete = self.job.save(self._patience(120, 30))
        time.sleep(max(0.0, asked + self.pace.quiet - time.monotonic()))
        writing, minute = Span(asked, complete), Span(asked, time.monotonic())

        def found(times: list[float]) -> Numbers:
            around = (usual_rate(times, before) + usual_rate(times, self.spans.get("after", before))) / 2
            kept = rate(times, minute) / around
            return {
                **of_span(times, writing, before),
                "kept_while_written": rate(times, writing) / around,
                "kept": kept,
                "minute_s": minute.end - minute.start,
                "bytes": float(self.cut_bytes),
            }

        self.cut_bytes = sum(part.stat().st_size for part in self.job.parts(self.cut_number))
        self._later("cut", found)

    def after(self) -> None:
        span = self.spans["after"] = self.rest(self.pace.quiet)
        self._later("after", lambda times: {"samples_s": rate(times, span)})

    def recover(self) -> None:
        step = self.before
        killed = self.job.kill_server(self._patience(60, 5))
        self.rest(self.pace.short)
        self._later(
            "recover",
            lambda times: {
                "recover_s": of_pause(times, killed),
                "step_ms": 1000 * statistics.median(gaps(times, step)),
            },
        )

    def move(self) -> None:
        _check_available(0.8 * self.job.gib + 0.5, "a second parameter server")
        before = self.spans["move"] = self.rest(max(self.pace.short, self.pace.quiet / 2))
        began, ended, tidy, share = self.job.move_half(self._patience(180, 60))
        payload = share * rows_of(self.job.gib) * TABLES * ROW_BYTES / GIB

        def found(times: list[float]) -> Numbers:
            copying, all_of_it = (of_span(times, Span(began, end), before) for end in (ended, tidy))
            seconds = ended - began
            tidying = {"copying_stall_ms": copying["stall_ms"], "with_tidying_s": all_of_it["seconds"]}
            rates = {"kept": copying["kept"], "seconds": seconds, "gib": payload, "gib_s": payload / seconds}
            return {**all_of_it, **tidying, **rates}

        self._later("move", found)

    def _later(self, phase: str, found: Callable[[list[float]], Numbers]) -> None:
        self.evaluate.append((phase, found))

    def _patience(self, seconds: float, seconds_a_gib: float) -> float:
        return seconds + seconds_a_gib * self.job.gib

    def _check_disk(self) -> None:
        needed, free = int(1.5 * self.job.gib * GIB) + GIB, shutil.disk_usage(self.job.handle.directory).free
        if free < needed:
            raise NotDone(f"the disk has {free / GIB:.1f} GiB left, and needs {needed / GIB:.1f}")


def _check_available(gib: float, what: str) -> None:
    available = psutil.virtual_memory().available - SPARE
    if available < gib * GIB:
        raise NotDone(f"{what} takes {gib:.1f} GiB, and {available / GIB:.1f} GiB of this machine's memory can be used")


def run(home: Path, course: Course, wanted: Collection[str], pace: Pace, restores: Collection[int]) -> None:
    """Have a job of this size go through these phases, then restore its checkpoint onto so many servers, one time each."""
    home.mkdir()
    made: list[SizedJob] = []
    with _told(course, "memory") as known:
        _check_room(course.gib)
    if not known.ok:
        return
    with _told(course, "launch"):
        write_wish(home, BATCH_SIZE, course.kind)
        made.append(SizedJob(home, course.gib, course.kind))
    for job in made:
        one = _Run(job, course, wanted, pace)
        try:
            _go_through(one)
            times = job.end()
        except BaseException:
            job.kill()
            raise
        for phase, found in one.evaluate:
            with _told(course, phase, quietly=True):
                course.found[phase] = found(times)
        if restores:
            _restore(one, restores)


def _check_room(gib: float) -> None:
    from dlrover_lite.client.handle import this_machine

    sizes, machine = Sizes(gib), this_machine().memory
    if (limits := sizes.first + sizes.raised + WORKER_MEMORY) > machine:
        raise NotDone(f"its nodes get {limits / GIB:.1f} GiB, and this machine has {machine / GIB:.1f}")
    _check_available(1.5 * gib + 1.5, "the job")


def _go_through(one: _Run) -> None:
    for name, phase, needed in one.phases():
        with _told(one.course, name) as known:
            phase()
        if not known.ok and (needed or not one.job.runs()):
            wanted, done = {*FIRST, *one.wanted}, {*dict(one.evaluate), *FIRST[:2], name}
            left = [other for other in (*FIRST, *PHASES) if other in wanted - done]
            one.course.undone.append(f"{one.course.name}: {', '.join(left)}: not done, since {name} wasn't")
            return


class _Known:
    ok = True


@contextmanager
def _told(course: Course, phase: str, *, quietly: bool = False) -> Iterator[_Known]:
    """Say how long it took; what can't be done is noted, and no exception."""
    known, began = _Known(), time.monotonic()
    try:
        yield known
    except (NotDone, DlroverLiteError, OSError, psutil.Error, TimeoutError) as error:
        known.ok = False
        course.undone.append(f"{course.name}: {phase}: {error}")
        say(course.undone[-1])
    if not quietly:
        say(f"{course.name}: {phase}: {time.monotonic() - began:.1f} s")


def _restore(one: _Run, restores: Collection[int]) -> None:
    """Each time with nothing of it in the page cache."""
    course = one.course
    if "cut" not in course.found:
        course.undone.append(f"{course.name}: restore: not done, since there is no checkpoint")
        return
    parts = one.job.parts(one.cut_number)
    numbers: Numbers = {}
    with _told(course, "reading the checkpoint plainly"):
        numbers |= _plain_rates(parts[0])
        numbers["memory_bytes_s"] = _memory_rate()
    for servers in restores:
        with _told(course, f"restore onto {servers}"):
            for part in parts:
                drop_from_cache(part)
            seconds = restore_seconds(one.job, one.cut_number, servers, 120 + 60 * course.gib)
            numbers[f"onto_{servers}_s"], numbers[f"onto_{servers}_bytes_s"] = seconds, one.cut_bytes / seconds
    course.found["restore"] = numbers


def _memory_rate(size: int = GIB) -> float:
    """Bytes/s at which one thread is given shared memory that nobody has touched: no server restores faster."""
    descriptor = os.memfd_create("bench-size", os.MFD_CLOEXEC)
    try:
        os.ftruncate(descriptor, size)
        with mmap.mmap(descriptor, size) as memory:
            began = time.perf_counter()
            for start in range(0, size, mmap.PAGESIZE):
                memory[start] = 1
            return size / (time.perf_counter() - began)
    finally:
        os.close(descriptor)


def _plain_rates(part: Path) -> Numbers:
    size = min(part.stat().st_size, READ_PLAINLY)
    rates: Numbers = {}
    for way, how in WAYS.items():
        try:
            rates[f"disk_{way}_bytes_s"] = size / read_plainly(part, size, *how)
        except OSError as error:  # not past the page cache here
            say(f"reading {way}: {os.strerror(error.errno or 0)}")
    return rates
