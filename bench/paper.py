"""The comparison that DLRover-RM (VLDB 2024) makes, with the real brain and real masters on simulated machines.

Fixed before any reported seed was looked at:

*Worlds.* 24 jobs arrive within 0.6 hours on 8 machines of 16 cores and 64 GiB: an eighth of the usual cluster, with its load and its
faults. No job may have more than 24 cores, unless its user asks for more. Two jobs of five have run before, on other data, within the
same 0.6 hours. What jobs are drawn from is in ``_paper_runs.py``, and in
``simulation/traces/parameters.py``. Every policy meets the same jobs, failures and slow phases.

*Seeds.* The first 10 of the reported ones for the comparison of policies; the first 3 of them for ablations, and for the sweep of what
users ask for. With ``--tuning``, and with ``--quick``, tuning seeds are run instead: while anything is chosen or mended, no reported
one is.

*Statistics.* A policy is compared with another one seed by seed. Completion time is from a job's arrival to its end; the ratio of its
mean over the jobs that end well under both, the geometric mean of that over seeds. Completion rate, CPU use and memory use (used over
allocated, of all jobs and all of their time) are differences in percentage points, means over seeds. Intervals are of 95%, by the
bootstrap over seeds (2,000 draws). ``worst_well_asked`` is a maximum, and has none: of all jobs of the sweep whose users ask for what
suits them, the largest completion time over the one with the user's plan. A job that doesn't end well where it did under its user's
plan counts as infinitely slow.

*Targets.* Better than the upper of the paper's gains over what users ask for: its abstract has 31% of completion time, 6 points of
completion rate, 15 of CPU use and 20 of memory use, the page of its project 21.0 to 27.6 of CPU and 17.3 to 31.6 of memory. No slower
than ES, Optimus and well-tuned fixed plans. ``worst_well_asked``: 3% at most.

``--plots DIR`` draws all of it, ``--page`` writes docs/paper.md with these plots: four minutes on two cores.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parent))

from _paper_runs import ASKED_WELL, OURS, Runs, Size, cases_of, run_all
from common import Figure, arguments, emit

from dlrover_lite.simulation.outcomes.comparison import Comparison, Interval, compare
from dlrover_lite.simulation.outcomes.metrics import metrics_of
from dlrover_lite.simulation.outcomes.records import Run
from dlrover_lite.simulation.traces.seeds import REPORTED_SEEDS, TUNING_SEEDS

QUICK = Size(jobs=8, hours=0.2, machines=8, compared=2, ablated=1, swept=1)
MOST_WORSE = 1.03


class Worst(NamedTuple):
    """How much longer jobs take than with what their users ask for."""

    value: float
    """Ratio of the worst job's two times."""
    jobs: int
    slower: int
    """Number of jobs that take more than 3% longer."""


def gains(comparison: Comparison) -> list[Figure]:
    """Return the figures of a comparison with what users ask for."""
    its = comparison
    time = its.mean_time
    gain = None if time is None else Interval(100 * (1 - time.value), _less(time.upper), _less(time.lower))
    wanted = (
        ("jct_gain", gain, "%", ">= 31"),
        ("completion_gain_pp", its.completion, "pp", ">= 6"),
        ("cpu_gain_pp", its.cpu_use, "pp", ">= 27.6"),
        ("memory_gain_pp", its.memory_use, "pp", ">= 31.6"),
    )
    return [_figure(name, value, unit, target, its.seeds) for name, value, unit, target in wanted if value is not None]


def _less(ratio: float | None) -> float | None:
    return None if ratio is None else 100 * (1 - ratio)


def _figure(name: str, its: Interval, unit: str, target: str, seeds: int) -> Figure:
    detail = {"lower": its.lower, "upper": its.upper, "seeds": seeds}
    return Figure(f"paper.{name}", its.value, unit, target, detail=detail)


def worst_of(ours: list[Run], users: list[Run]) -> Worst:
    """Compare each job with itself under its user's plan."""
    theirs = {(run.seed, job.name): job.seconds for run in users for job in run.jobs}
    ratios = []
    for run in ours:
        for job in run.jobs:
            other = theirs[run.seed, job.name]
            if other is not None:
                ratios.append(math.inf if job.seconds is None else job.seconds / other)
    return Worst(max(ratios, default=math.nan), len(ratios), sum(ratio > MOST_WORSE for ratio in ratios))


def figures_of(runs: Runs) -> list[Figure]:
    figures = gains(compare(runs[OURS], runs["manual"]))
    for policy in ("es", "optimus", "tuned"):
        its = compare(runs[OURS], runs[policy])
        if its.mean_time is not None:
            figures.append(_figure(f"jct_vs_{policy}", its.mean_time, "x", "<= 1", its.seeds))
    if ASKED_WELL not in runs:
        return figures
    worst = worst_of(runs[ASKED_WELL], runs["manual, 1x"])
    detail = {"jobs": worst.jobs, "slower": worst.slower}
    figures.append(Figure("paper.worst_well_asked", worst.value, "x", f"<= {MOST_WORSE}", detail=detail))
    return figures


def tell(runs: Runs) -> None:
    """Print a line for each kind of run: means over its seeds."""
    print(
        f"{'RUN':36}  {'SEEDS':>5}  {'ENDED':>6}  {'MEAN S':>7}  {'CPU':>5}  {'MEMORY':>6}  {'WAITED S':>8}",
        file=sys.stderr,
    )
    for label, its in runs.items():
        found = [metrics_of(run) for run in its]
        means = [
            _mean([getattr(one, name) for one in found])
            for name in ("completion_rate", "mean_seconds", "cpu_use", "memory_use", "mean_waited_seconds")
        ]
        ended, seconds, cpu, memory, waited = means
        print(
            f"{label:36}  {len(its):5}  {ended:6.1%}  {seconds:7.0f}  {cpu:5.1%}  {memory:6.1%}  {waited:8.0f}",
            file=sys.stderr,
        )


def _mean(values: list[float | None]) -> float:
    present = [value for value in values if value is not None]
    return sum(present) / len(present) if present else math.nan


def extend(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tuning", action="store_true", help="run tuning seeds, as --quick does")
    parser.add_argument("--seeds", type=int, help="of the comparison of policies (default 10; 2 with --quick)")
    parser.add_argument("--compare-only", action="store_true", help="leave ablations and the sweep out")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="at a time (default: one a core)")
    parser.add_argument("--plots", type=Path, metavar="DIR", help="draw plots (PNG) there")
    parser.add_argument("--page", action="store_true", help="write docs/paper.md, with plots")


def main() -> None:
    options = arguments("DLRover-RM's comparison, on simulated machines.", extend)
    if options.page and (options.quick or options.tuning or options.compare_only):
        raise SystemExit(
            "--page tells all that reported seeds show: run it without --quick, --tuning and --compare-only."
        )
    if options.plots and options.compare_only:
        raise SystemExit("--plots draws ablations and the sweep, too: run it without --compare-only.")
    size = QUICK if options.quick else Size()
    if options.seeds:
        most = options.seeds
        size = replace(size, compared=most, ablated=min(most, size.ablated), swept=min(most, size.swept))
    if options.compare_only:
        size = replace(size, ablated=0, swept=0)
    seeds = TUNING_SEEDS if options.quick or options.tuning else REPORTED_SEEDS
    if size.compared > len(seeds):
        raise SystemExit(f"there are {len(seeds)} seeds; see simulation/traces/seeds.py")
    runs = run_all(cases_of(size, seeds), options.processes)
    tell(runs)
    figures = figures_of(runs)
    if options.plots or options.page:
        from _paper_page import draw, write_page

        if options.page:
            write_page(runs, figures)
        else:
            draw(options.plots, runs)
    emit(options, figures)


if __name__ == "__main__":
    main()
