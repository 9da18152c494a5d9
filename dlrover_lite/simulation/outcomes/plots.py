"""Outcomes as pictures: files by matplotlib, which is an extra, and lines of characters for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlrover_lite.core.errors import UsageError
from dlrover_lite.core.units import GIB
from dlrover_lite.simulation.outcomes.metrics import OverTime, over_time
from dlrover_lite.simulation.outcomes.records import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["check_plots", "write_plots"]

_INTERVALS = 200


def check_plots(directory: Path) -> None:
    """Check that plots can be written there, before anything takes time. Raises UsageError."""
    if find_spec("matplotlib") is None:
        raise UsageError(
            "plots are drawn by matplotlib, which isn't installed", hint="pip install 'dlrover-lite[plots]'"
        )
    if directory.exists() and not directory.is_dir():
        raise UsageError(f"{directory} is a file; plots go to a directory")


def write_plots(directory: Path, runs: Mapping[str, Sequence[Run]]) -> list[Path]:
    """Write the plots of runs by their policies, and return their files. Of several seeds, what happens over time is that of the first."""
    from matplotlib.figure import Figure

    directory.mkdir(parents=True, exist_ok=True)
    firsts = {policy: of_policy[0] for policy, of_policy in runs.items()}
    until = max((use.stop for run in firsts.values() for job in run.jobs for use in job.usage), default=1.0)
    over = {policy: over_time(run, _INTERVALS, until=until) for policy, run in firsts.items()}
    written = []
    for name, draw, data in (
        ("completion", _completion, runs),
        ("cpu", _cpu, over),
        ("memory", _memory, over),
    ):
        figure = Figure(figsize=(8.0, 4.5), layout="constrained")
        draw(figure.subplots(), data)
        path = directory / f"{name}.png"
        figure.savefig(path, dpi=120, metadata={"Software": None})
        written.append(path)
    return written


def _completion(axes: Axes, runs: Any) -> None:
    """Draw which share of all jobs has ended well by which time after its arrival."""
    for policy, of_policy in runs.items():
        jobs = [job for run in of_policy for job in run.jobs]
        hours = sorted(job.seconds / 3600.0 for job in jobs if job.seconds is not None)
        shares = [100.0 * (at + 1) / len(jobs) for at in range(len(hours))]
        axes.step(hours, shares, where="post", label=policy)
    axes.set_xscale("log")
    axes.set_xlabel("hours from arrival to end")
    axes.set_ylabel("% of jobs that have ended well")
    axes.set_ylim(0, 100)
    axes.legend()


def _cpu(axes: Axes, over: Any) -> None:
    _over_time(axes, {policy: (one, one.used_cores, one.given_cores) for policy, one in over.items()}, 1.0, "cores")


def _memory(axes: Axes, over: Any) -> None:
    series = {policy: (one, one.used_bytes, one.given_bytes) for policy, one in over.items()}
    _over_time(axes, series, float(GIB), "GiB")


def _over_time(
    axes: Axes, series: Mapping[str, tuple[OverTime, Sequence[float], Sequence[float]]], unit: float, label: str
) -> None:
    for policy, (its, used, given) in series.items():
        hours = [(at + 0.5) * its.seconds / 3600.0 for at in range(len(used))]
        (line,) = axes.plot(hours, [value / unit for value in used], label=f"{policy}: used")
        axes.plot(
            hours,
            [value / unit for value in given],
            linestyle="--",
            color=line.get_color(),
            label=f"{policy}: given",
        )
    axes.set_xlabel("hours")
    axes.set_ylabel(label)
    axes.set_ylim(bottom=0)
    axes.legend()
