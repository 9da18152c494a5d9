"""Whether the machine was quiet while something was measured: figures of wall time mean nothing beside other busy processes.

::

    with Quiet() as quiet:
        rounds = [quiet.measure("oracle", run_oracle) for _ in range(3)]
    figures = [figure for figure in [of_rounds("autoscale.oracle", rounds, "s", heed=not options.disturbed)] if figure]

A round is disturbed if others took 3% or more of the machine's CPU meanwhile, or if a fixed piece of work, the calibration run before
and after it (nothing of ours runs then), took longer or shorter than it usually does: than the median of those so far, since a machine
may get slower, or faster, for good. Such a round is told, and isn't averaged in: a figure without any other round is left out. A run of
minutes that is one of several in a round may be measured again (``attempts``): what decides is the machine, not what came out.

Others are all but this process and what it has started: CPU seconds of the whole machine less those of our own control group (version 1,
``cpuacct``: what we start is below it, and what has ended stays counted). Where none can be made, those of our process tree. The whole
machine's are those of the root group, where that is the machine's, with interrupts and stolen time of /proc/stat: this has the seconds of
processes by what runs when the clock ticks, which is 2 to 8% of a machine too many where limits let processes run with the ticks.
"""

from __future__ import annotations

import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
import psutil
from numpy.typing import NDArray

if TYPE_CHECKING:
    from common import Figure

__all__ = ["Moment", "Quiet", "Round", "machine_seconds", "of_rounds", "share_of_others", "spread", "verdict"]

MOST_OTHERS = 0.03
MOST_OFF = 0.15
"""Of a calibration run from the usual one."""
_SORTED, _SORTS = 400_000, 400
"""Numbers that are sorted, and how often by each core: more than a second of work, since for moments a quiet machine is half as fast again
as in others."""
_WARM_SORTS = 40
"""Before it is timed, in memory that is there already: after minutes without them, pages take a while to come."""
_FIRST = 3
_MOST_OF_ALL = 0.7
"""Of the seconds that /proc/stat has counted since the machine was booted, those of a group that has all processes, at least."""

T = TypeVar("T")


@dataclass(frozen=True)
class Moment:
    """CPU seconds up to a moment, since some beginning."""

    at: float
    """On the monotonic clock."""
    machine: float
    own: float


@dataclass(frozen=True)
class Round(Generic[T]):
    """What was measured, and how quiet it was meanwhile."""

    value: T
    seconds: float
    others: float
    """Share of the machine's CPU that others took."""
    off: float
    """Of the calibration runs beside it, the one further from the usual one: over that, less 1; negative where it was shorter."""
    why: str = ""
    """It shouldn't count; empty: it should."""


def share_of_others(before: Moment, after: Moment, cores: int) -> float:
    """Of all the CPU time that there was between two moments."""
    taken = (after.machine - before.machine) - (after.own - before.own)
    return max(0.0, taken) / max(1e-9, (after.at - before.at) * cores)


def machine_seconds(times: Any, of_all: float | None) -> float:
    """Of CPU since it was booted, by psutil's ``times``; ``of_all``: those of all processes, where they are known exactly."""
    processes = sum(times[:3]) if of_all is None else of_all  # user (a guest's time is in it), nice, system
    return float(processes + sum(getattr(times, kind, 0.0) for kind in ("irq", "softirq", "steal")))


def verdict(others: float, off: float) -> str:
    """Why a round shouldn't count; empty: it should."""
    if others >= MOST_OTHERS:
        return f"others took {others:.0%} of the CPU"
    if abs(off) > MOST_OFF:
        return f"a calibration run took {abs(off):.0%} {'longer' if off > 0 else 'less'} than usual"
    return ""


def spread(values: Sequence[float]) -> dict[str, float]:
    """Of at least one value; ``relative`` is from the least to the most, over the median."""
    middle, least, most = statistics.median(values), min(values), max(values)
    return {"median": middle, "least": least, "most": most, "relative": (most - least) / middle if middle else 0.0}


def of_rounds(
    name: str,
    rounds: Sequence[Round[float]],
    unit: str,
    target: str = "",
    *,
    heed: bool = True,
    baseline: float | None = None,
    detail: Mapping[str, Any] | None = None,
) -> Figure | None:
    """The median of the rounds that count, with their spread; None, which is told, if there are none. Without ``heed`` disturbed ones count
    too, and the detail says so; what is no number never does."""
    from common import Figure

    counted = [each.value for each in rounds if math.isfinite(each.value) and not (heed and each.why)]
    if not counted:
        say(
            f"{name} is left out: no round counts ({'; '.join(sorted({each.why for each in rounds})) or 'there was none'})"
        )
        return None
    about: dict[str, Any] = {
        "rounds": counted,
        "spread": spread(counted),
        "disturbed_rounds": sum(bool(each.why) for each in rounds),
    }
    if not heed:
        about["disturbed_rounds_count"] = True
    return Figure(name, statistics.median(counted), unit, target, baseline, {**about, **(detail or {})})


def say(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


class Quiet:
    """Measures rounds, while its block lasts."""

    def __init__(self) -> None:
        self._cores = os.cpu_count() or 1
        self._group: Path | None = None
        self._root: Path | None = None
        self._calibrations: list[float] = []
        self._work = np.random.default_rng(0).random(_SORTED)
        self._sorted = [np.empty_like(self._work) for _ in range(self._cores)]

    def __enter__(self) -> Quiet:
        self._group = _make_group()
        self._root = _root_of(self._group) if self._group is not None else None
        if self._group is None:
            say("CPU seconds of others are a rough guess: no control group can be made here to count our own")
        for _ in range(_FIRST):
            self.calibrate()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._group is not None:
            _leave(self._group)

    def now(self) -> Moment:
        return Moment(time.monotonic(), machine_seconds(psutil.cpu_times(), self._of_all()), self._own())

    def since(self, before: Moment) -> float:
        """The share that others have taken since then."""
        return share_of_others(before, self.now(), self._cores)

    def calibrate(self) -> float:
        """How much longer than usual a fixed piece of work takes now; negative where it takes less."""
        self._sort(_WARM_SORTS)
        seconds = _timed(lambda: self._sort(_SORTS))
        self._calibrations.append(seconds)
        return seconds / statistics.median(self._calibrations) - 1

    def _sort(self, count: int) -> None:
        """On all cores: one of them alone may be faster."""

        def sort(to: NDArray[np.float64]) -> None:
            for _ in range(count):
                np.copyto(to, self._work)
                to.sort()

        with ThreadPoolExecutor(self._cores) as pool:
            list(pool.map(sort, self._sorted))

    def measure(self, name: str, subject: Callable[[], T]) -> Round[T]:
        off, before = self.calibrate(), self.now()
        value = subject()
        after = self.now()
        return self.judged(name, value, before, after, max(off, self.calibrate(), key=abs))

    def attempts(self, name: str, subject: Callable[[], T], *, again: int) -> Iterator[Round[T]]:
        """One that isn't disturbed, or, after so many more, one that is: the last one counts, those before it are to be told."""
        for _ in range(1 + again):
            one = self.measure(name, subject)
            yield one
            if not one.why:
                break

    def judged(self, name: str, value: T, before: Moment, after: Moment, off: float) -> Round[T]:
        """A round that was measured between these moments."""
        others = share_of_others(before, after, self._cores)
        why = verdict(others, off)
        if why:
            say(f"{name}: disturbed, {why}")
        return Round(value, after.at - before.at, others, off, why)

    def _of_all(self) -> float | None:
        return _usage(self._root) if self._root is not None else None

    def _own(self) -> float:
        if self._group is not None:
            return _usage(self._group)
        process = psutil.Process()
        return sum(map(_cpu_seconds, [process, *process.children(recursive=True)]))


def _cpu_seconds(process: psutil.Process) -> float:
    """Of a process and those of its children that it has waited for."""
    with suppress(psutil.Error):
        times = process.cpu_times()
        return float(times.user + times.system + times.children_user + times.children_system)
    return 0.0


def _timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


# --- our own control group ------------------------------------------------------------------------------------------------


def _make_group() -> Path | None:
    """A group below our own, with this process in it; None where there can't be one."""
    from dlrover_lite.backends.host.mounts import hierarchies, with_controller

    hierarchy = with_controller(hierarchies(), "cpuacct")
    if hierarchy is None:
        return None
    group = hierarchy.own / f"dlrover-lite-bench-{os.getpid()}"
    try:
        group.mkdir()
        if (
            group / "cpu.shares"
        ).exists():  # mounted together: as one group we would get as much as one process beside us
            (group / "cpu.shares").write_text(str(1024 * (os.cpu_count() or 1)))
        (group / "cgroup.procs").write_text(str(os.getpid()))
    except OSError:
        with suppress(OSError):
            group.rmdir()
        return None
    return group


def _root_of(group: Path) -> Path | None:
    """The group of all processes, above ``group``; None where only a part of them can be seen, as in a container."""
    root = group.parent
    while (root.parent / "cpuacct.usage").exists():
        root = root.parent
    times = psutil.cpu_times()
    return root if _usage(root) >= _MOST_OF_ALL * sum(times[:3]) else None


def _usage(group: Path) -> float:
    """CPU seconds of all that is or was in it or below it."""
    return int((group / "cpuacct.usage").read_text()) / 1e9


def _leave(group: Path) -> None:
    """Back to where we came from, with whatever of ours still ends."""
    from dlrover_lite.backends.host import cgroups

    for pid in cgroups.members(group):
        with suppress(OSError):
            (group.parent / "cgroup.procs").write_text(str(pid))
    cgroups.remove(group)
