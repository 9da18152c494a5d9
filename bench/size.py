"""What holds at one gigabyte, at several: real jobs whose tables have so many GiB of values and Adagrad state, uniform and Zipf ids.

Each job has one PS (1 core) and one worker: 26 tables of dim 16, Wide & Deep, minibatches of 1,024. A single worker: its steps alone say
how long anything holds training up, and beside it two cores have none left for another (what both roles take is said). Ids come
from all rows: uniform, or Zipf 1.2 over ranks that are scattered over them. Figures are the worst of the jobs that have them:

``size.stall_ms``, ``size.growth_stall_ms``, ``size.resize_stall_ms``: longest step of the worker over the usual step while a full
checkpoint is written, while tables and index grow from half of the size to all of it (over the usual step of growing), while the
PS's memory limit is raised in place, nearly doubled; the baseline is the longest without. ``size.kept``: samples/s over a minute that
begins with a checkpoint (over all of its time, if that is longer) over those of the minutes before and after.
``size.move_stall_ms``, ``size.move_kept``: the same while half of the slots move to a second PS, the first one also while both tidy up;
``size.move_rate``: GiB/s of that at the largest size over that at the smallest. ``size.recover_s``: from kill -9 of the PS to the next
step that needs rows of it. ``size.restore_ratio``: bytes/s at which the checkpoint is restored onto 1, 2 and 3 PS over the disk's rate
by the fastest plain way, with nothing in the page cache; how fast a thread is given fresh memory is told beside it.
``size.bytes_per_row``: growth of the PS's memory from nearly empty to full, by row, over values and state. ``size.train_ratio``:
samples/s at the largest size over those at the smallest, over the same of a bare ``embedding_bag`` and an Adagrad update on such
tables, in processes of their own that run when no job does.

So that all of it takes less than 25 minutes: the checkpoint of the largest size only is restored, and of one kind of ids, since they make
no difference to it; minutes before, with and after a checkpoint are for the largest size, thirds of them for others; sizes in between
are tried with one kind of ids, and without a move. With one size there are no ratios of two (``--quick``: 0.25 GiB, uniform; a minute
is derived from what a checkpoint took away). What can't be done is said at the end, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parent))

import psutil
from _size_ids import KINDS
from _size_jobs import GIB, ROW_BYTES, rows_of
from _size_phases import Course, Numbers, Pace, run, say
from common import Figure, arguments, emit

from dlrover_lite.core.files.paths import state_directory

MINUTE = 60.0
RESTORES = (1, 2, 3)
NEEDS: dict[str, set[str]] = {
    "stall_ms": {"quiet", "cut"},
    "growth_stall_ms": {"quiet"},
    "resize_stall_ms": set(),
    "kept": {"quiet", "cut", "after"},
    "move_stall_ms": {"quiet", "move"},
    "move_kept": {"quiet", "move"},
    "move_rate": {"quiet", "move"},
    "recover_s": {"quiet", "recover"},
    "restore_ratio": {"quiet", "cut"},
    "bytes_per_row": {"quiet"},
    "train_ratio": {"quiet"},
}
"""Phases, beside the first ones, of a job that a figure comes from."""


class Part(NamedTuple):
    """What is done with one size and kind of ids."""

    gib: float
    kind: str
    phases: set[str]
    minutes: bool
    """Whether there is a minute before, with and after a checkpoint."""
    restores: tuple[int, ...]


def parts_of(sizes: Sequence[float], kinds: Sequence[str], figures: Iterable[str]) -> list[Part]:
    """Choose what each job does: see above."""
    wanted = set(figures)
    phases = set().union(*(NEEDS[figure] for figure in wanted))
    least, most, first = min(sizes), max(sizes), kinds[0]
    parts = []
    for gib in sorted(set(sizes)):
        for kind in kinds:
            if kind != first and least < gib < most:
                continue
            mine = set(phases)
            if least < gib < most:
                mine -= {"move"}
            restores = RESTORES if (gib, kind) == (most, first) and "restore_ratio" in wanted else ()
            if not (wanted & {"stall_ms", "kept"} or restores):
                mine -= {"cut"}
            parts.append(Part(gib, kind, mine, gib == most and "kept" in wanted, restores))
    return parts


# --- figures ----------------------------------------------------------------------------------------------------------


def _worst(
    name: str,
    courses: Sequence[Course],
    phase: str,
    key: str,
    unit: str,
    target: str,
    *,
    baseline: str = "",
    worst: Callable[[Iterable[float]], float] = max,
) -> list[Figure]:
    """One figure of all jobs that have been through this phase; none of none."""
    found = {course.name: course.found[phase] for course in courses if key in course.found.get(phase, {})}
    if not found:
        return []
    value = worst(numbers[key] for numbers in found.values())
    of = next(job for job, numbers in found.items() if numbers[key] == value)
    beside = found[of].get(baseline)
    return [Figure(f"size.{name}", value, unit, target, beside, {"worst": of, **found})]


def figures_of(courses: Sequence[Course], plain: dict[tuple[float, str], float]) -> list[Figure]:
    """Make the figures that the jobs allow."""
    of = courses
    minutes = [course for course in courses if "kept_a_minute" in course.found.get("cut", {})]
    return [
        *_worst("stall_ms", of, "cut", "stall_ms", "ms", "<= 20", baseline="without_ms"),
        *_worst("growth_stall_ms", of, "growth", "stall_ms", "ms", "<= 50", baseline="without_ms"),
        *_worst("resize_stall_ms", of, "resize", "stall_ms", "ms", "<= 50", baseline="without_ms"),
        *_worst("kept", minutes, "cut", "kept_a_minute", "x", ">= 0.9", worst=min),
        *_worst("move_stall_ms", of, "move", "stall_ms", "ms", "<= 100", baseline="without_ms"),
        *_worst("move_kept", of, "move", "kept", "x", ">= 0.8", worst=min),
        *_ratio("move_rate", courses, "move", "gib_s", ">= 0.7", {}),
        *_worst("recover_s", of, "recover", "recover_s", "s", "<= 3"),
        *_restore_ratio(courses),
        *_worst("bytes_per_row", of, "quiet", "bytes_ratio", "x", "<= 1.15"),
        *_ratio("train_ratio", courses, "quiet", "samples_s", "", plain),
    ]


def _ratio(
    name: str, courses: Sequence[Course], phase: str, key: str, target: str, plain: dict[tuple[float, str], float]
) -> list[Figure]:
    """What the largest size has over the smallest, the worst of the kinds of ids; over the same of plain processes, if there are any."""
    over_plain = name == "train_ratio"
    detail: dict[str, object] = {}
    ratios: dict[str, tuple[float, float | None]] = {}
    for kind in KINDS:
        of_size = {c.gib: c.found[phase][key] for c in courses if c.kind == kind and key in c.found.get(phase, {})}
        if len(of_size) < 2:
            continue
        least, most = min(of_size), max(of_size)
        ratio = of_size[most] / of_size[least]
        detail[kind] = {f"{gib:g} GiB": value for gib, value in of_size.items()}
        if not over_plain:
            ratios[kind] = ratio, of_size[least]
        elif (least, kind) in plain and (most, kind) in plain:
            bare = plain[most, kind] / plain[least, kind]
            detail[f"{kind}, job"], detail[f"{kind}, plain"] = ratio, bare
            ratios[kind] = ratio / bare, bare
    if not ratios:
        return []
    worst = min(ratios, key=lambda kind: ratios[kind][0])
    return [Figure(f"size.{name}", ratios[worst][0], "x", target, ratios[worst][1], {"worst": worst, **detail})]


def _restore_ratio(courses: Sequence[Course]) -> list[Figure]:
    for course in courses:
        numbers = course.found.get("restore", {})
        disk = [value for name, value in numbers.items() if name.startswith("disk_")]
        restored = [value for name, value in numbers.items() if name.startswith("onto_") and name.endswith("_bytes_s")]
        if disk and restored:
            limit = max(disk)
            return [Figure("size.restore_ratio", min(restored) / limit, "x", ">= 0.5", limit, {course.name: numbers})]
    return []


def complete(course: Course, full_minute: bool) -> None:
    """Add to the numbers of a job what follows from them."""
    quiet, cut = course.found.get("quiet"), course.found.get("cut")
    if quiet is not None:
        quiet["bytes_ratio"] = quiet["row_bytes"] / ROW_BYTES
    if cut is not None and full_minute and "after" in course.found:
        lost = (1 - cut["kept"]) * cut["minute_s"]
        cut["kept_a_minute"] = 1 - lost / max(MINUTE, cut["minute_s"])


# --- bare tables ------------------------------------------------------------------------------------------------------


def plain_rate(gib: float, kind: str, seconds: float, undone: list[str]) -> float | None:
    """Minibatches/s of look-ups and updates alone, in a process of its own; None, which is noted, where that can't be."""
    began, name = time.monotonic(), f"{gib:g} GiB {kind}: bare tables"
    needed, available = int((gib + 1.5) * GIB), psutil.virtual_memory().available
    script = str(Path(__file__).with_name("_size_plain.py"))
    command = [sys.executable, script, str(rows_of(gib)), kind, str(seconds)]
    why = f"they take {needed / GIB:.1f} GiB of memory, and {available / GIB:.1f} are available"
    if available >= needed:
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120 + 60 * gib)
            say(f"{name}: {time.monotonic() - began:.1f} s")
            return float(json.loads(done.stdout)["minibatches_per_second"])
        except subprocess.TimeoutExpired as error:
            why = f"not within {error.timeout:.0f} s"
        except subprocess.CalledProcessError as error:
            why = f"exit code {error.returncode}: {error.stderr[-500:]}"
    undone.append(f"{name}: {why}")
    return None


def plain_rates(parts: Sequence[Part], seconds: float, undone: list[str]) -> dict[tuple[float, str], float]:
    """Measure plain training at the smallest and the largest size, one process after the other."""
    sizes = [part.gib for part in parts]
    rates = {}
    for gib, kind in [(part.gib, part.kind) for part in parts if part.gib in (min(sizes), max(sizes))]:
        if (rate := plain_rate(gib, kind, seconds, undone)) is not None:
            rates[gib, kind] = rate
    return rates


# --- all of it --------------------------------------------------------------------------------------------------------


def _extend(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--gib", type=_gib, nargs="+", help="sizes (default 1 4 8; 0.25 with --quick)")
    parser.add_argument("--ids", choices=list(KINDS), nargs="+", help="default: all; uniform with --quick")
    parser.add_argument("--only", choices=list(NEEDS), nargs="+", metavar="FIGURE", help=", ".join(NEEDS))
    parser.add_argument("--directory", type=Path, default=state_directory(), help="on the disk to measure")


def _gib(text: str) -> float:
    value = float(text)
    if not (math.isfinite(value) and value >= 0.05):
        raise argparse.ArgumentTypeError(f"{text} is not a size of at least 0.05 GiB")
    return value


def _measure(options: argparse.Namespace, home: Path) -> tuple[list[Figure], list[str]]:
    sizes = options.gib or ([0.25] if options.quick else [1, 4, 8])
    kinds = options.ids or (["uniform"] if options.quick else list(KINDS))
    wanted = options.only or list(NEEDS)
    parts = parts_of(sizes, kinds, wanted)
    minute, some = (10.0, 10.0) if options.quick else (MINUTE, 20.0)
    courses: list[Course] = []
    undone: list[str] = []
    for part in parts:
        course, pace = (
            Course(part.gib, part.kind),
            Pace(minute if part.minutes else some, 3.0 if options.quick else 6.0),
        )
        courses.append(course)
        run(home / f"{part.gib:g}-{part.kind}", course, part.phases, pace, part.restores)
        complete(course, part.minutes)
        _say_numbers(course.name, course.found)
        undone += course.undone
        shutil.rmtree(state_directory(), ignore_errors=True)  # of jobs, which have ended
    rates = {}
    if "train_ratio" in wanted and len(set(sizes)) > 1:
        rates = plain_rates(parts, 5.0 if options.quick else 10.0, undone)
    figures = figures_of(courses, rates)
    return [figure for figure in figures if figure.figure.partition(".")[2] in wanted], undone


def _say_numbers(name: str, found: dict[str, Numbers]) -> None:
    for phase, numbers in found.items():
        say(f"{name}: {phase}: " + ", ".join(f"{key} {value:,.4g}" for key, value in numbers.items()))


def main() -> int:
    options = arguments(__doc__ or "", _extend)
    paths = [str(Path(__file__).parent), str(Path(__file__).resolve().parent.parent)]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [*paths, os.environ.get("PYTHONPATH", "")]))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # jobs are ended, and their files deleted
    options.directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-size-", dir=options.directory) as home:
        os.environ["DLROVER_LITE_HOME"] = home  # compiled kernels are kept from one job to the next
        figures, undone = _measure(options, Path(home))
    emit(options, figures)
    for what in undone:
        say(f"not done: {what}")
    return 1 if undone else 0


if __name__ == "__main__":
    sys.exit(main())
