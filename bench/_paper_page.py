"""The page of ``bench/paper.py``, docs/paper.md, and its plots."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from _paper_runs import ASKED_WELL, BY_PAPER, FLUIDS, OURS, SWEEP, WITHIN, Runs
from common import Figure

from dlrover_lite.simulation.ablations import ABLATIONS
from dlrover_lite.simulation.outcomes.comparison import Comparison, Interval, compare
from dlrover_lite.simulation.outcomes.metrics import metrics_of
from dlrover_lite.simulation.outcomes.plots import check_plots, write_plots
from dlrover_lite.simulation.outcomes.records import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw", "page", "write_page"]

DOCS = Path(__file__).resolve().parent.parent / "docs"
PICTURES = DOCS / "pictures" / "paper"
SIZES = (("up to 4 cores", 4.0), ("up to 12 cores", 12.0), ("more cores", math.inf))
"""Classes of jobs by the cores that their users ask for."""
PAPER = {
    "paper.jct_gain": "31% (abstract)",
    "paper.completion_gain_pp": "6 pp (abstract); by job size from 67 to 93% up to 87 to 95% (project page)",
    "paper.cpu_gain_pp": "15 pp (abstract); 21.0 to 27.6 pp (project page)",
    "paper.memory_gain_pp": "20 pp (abstract); 17.3 to 31.6 pp (project page)",
    "paper.jct_vs_es": "below 1",
    "paper.jct_vs_optimus": "below 1",
    "paper.jct_vs_tuned": "about 1",
}
ASSUMED = {
    "paper.jct_gain": "How far users over-ask and under-ask, and that a job may have more cores than its user asks for while nobody else "
    "needs them; see the second and the fourth table.",
    "paper.completion_gain_pp": "8% of users ask for too little memory of their servers: no more than these jobs can be gained.",
    "paper.cpu_gain_pp": "48% of users ask for 2 to 4 times the cores that suit.",
    "paper.memory_gain_pp": "Users ask for 1.3 to 4 times the memory that is needed. Jobs are over within minutes once they have more "
    "cores; what they are given before they are measured, as room for what their tables may come to need, and for snapshots, which nobody "
    "takes here, isn't used. The policy `dlrover, no more cores than asked` has longer jobs.",
    "paper.jct_vs_es": "Sizes of nodes are the user's under ES.",
    "paper.jct_vs_optimus": "Likewise under Optimus.",
    "paper.jct_vs_tuned": "The oracle's plans are within the cores that users ask for, or a fair share of the cluster, and fixed.",
    "paper.worst_well_asked": "All users ask for what suits their jobs.",
}
HEAD = Path(__file__).resolve().parent / "paper_head.md"
"""What the page begins with; written by hand."""


def write_page(runs: Runs, figures: Sequence[Figure]) -> None:
    """Write the page, and its plots."""
    draw(PICTURES, runs)
    (DOCS / "paper.md").write_text(HEAD.read_text(encoding="utf-8") + "\n" + page(runs, figures), encoding="utf-8")


# --- text -----------------------------------------------------------------------------------------------------------------


def page(runs: Runs, figures: Sequence[Figure]) -> str:
    """Return the page without its head."""
    seeds = len(runs[OURS])
    parts = [
        f"## Figures\n\nOver {seeds} seeds; in brackets the 95% interval over seeds.\n\n{_figures(figures)}",
        f"## Policies\n\nMeans over seeds; beside them the comparison with `manual`.\n\n{_policies(runs)}",
        "By the cores that users ask for, jobs that ended well:\n\n" + _by_size(runs),
        "![Completion times](pictures/paper/completion.png)\n\nOver time, of the first seed:\n\n"
        "![CPU](pictures/paper/cpu.png)\n\n![Memory](pictures/paper/memory.png)",
        "## Without one part\n\n`dlrover` without a part, over `dlrover` with all of them, on the same seeds: above 1 it was faster with "
        "it.\n\n"
        f"{_ablations(runs)}\n\n![Ablations](pictures/paper/ablations.png)",
        "## Over-asking\n\nAll users ask for what suits their jobs, times a factor, which `dlrover` isn't told. It "
        "over `manual`, and the job that is the worst off.\n\n"
        f"{_sweep(runs)}\n\n![Over-asking](pictures/paper/over_asking.png)",
    ]
    return "\n\n".join(parts) + "\n"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _figures(figures: Sequence[Figure]) -> str:
    rows = []
    for one in figures:
        lower, upper = one.detail.get("lower"), one.detail.get("upper")
        within = "" if lower is None or upper is None else f" ({lower:.3g} to {upper:.3g})"
        met = "yes" if one.ok else "**no**"
        paper, assumed = PAPER.get(one.figure, ""), ASSUMED[one.figure]
        rows.append([f"`{one.figure}`", f"{one.value:.3g} {one.unit}{within}", one.target, met, paper, assumed])
    return _table(("figure", "measured", "target", "met", "paper", "what it depends on"), rows)


def _policies(runs: Runs) -> str:
    rows = []
    for label in (*FLUIDS, OURS, *BY_PAPER, WITHIN):
        its = runs[label]
        seeds = {run.seed for run in its}
        comparison = compare(its, [run for run in runs["manual"] if run.seed in seeds])
        rows.append([label, *_means(its), *_compared(comparison)])
    head = ("policy", "ended well", "mean time", "CPU used", "memory used", "time", "ended well", "CPU", "memory")
    return _table(head, rows)


def _means(runs: Sequence[Run]) -> list[str]:
    found = [metrics_of(run) for run in runs]
    ended, seconds, cpu, memory = (
        _mean([getattr(one, name) for one in found])
        for name in ("completion_rate", "mean_seconds", "cpu_use", "memory_use")
    )
    return [f"{ended:.1%}", f"{seconds:,.0f} s", f"{cpu:.1%}", f"{memory:.1%}"]


def _mean(values: Sequence[float | None]) -> float:
    present = [value for value in values if value is not None]
    return sum(present) / len(present) if present else math.nan


def _compared(its: Comparison) -> list[str]:
    points = (its.completion, its.cpu_use, its.memory_use)
    return [_said(its.mean_time, ".2f", "x"), *(_said(one, "+.1f", " pp") for one in points)]


def _said(its: Interval | None, form: str, unit: str) -> str:
    if its is None:
        return ""
    within = "" if its.lower is None or its.upper is None else f" ({its.lower:{form}} to {its.upper:{form}})"
    return f"{its.value:{form}}{unit}{within}"


def _by_size(runs: Runs) -> str:
    rows = []
    for label in (*FLUIDS, OURS):
        cells = []
        for at, (_, most) in enumerate(SIZES):
            least = SIZES[at - 1][1] if at else 0.0
            jobs = [job for run in runs[label] for job in run.jobs if least < job.asked_cores <= most]
            cells.append(
                f"{sum(job.end == 'succeeded' for job in jobs) / len(jobs):.1%} of {len(jobs)}" if jobs else ""
            )
        rows.append([label, *cells])
    return _table(("policy", *(name for name, _ in SIZES)), rows)


def _ablations(runs: Runs) -> str:
    rows = []
    for name, ablation in ABLATIONS.items():
        its = _ablated(runs, name)
        rows.append([name, ablation.meaning, *_compared(its)])
    return _table(("without", "what that means", "time", "ended well", "CPU", "memory"), rows)


def _ablated(runs: Runs, name: str) -> Comparison:
    its = runs[f"without {name}"]
    seeds = {run.seed for run in its}
    return compare(its, [run for run in runs[OURS] if run.seed in seeds])


def _sweep(runs: Runs) -> str:
    rows = []
    for factor in SWEEP:
        its = compare(runs[ASKED_WELL], runs[f"manual, {factor:g}x"])
        worst = "" if its.worst_time is None else f"{its.worst_time:.2f}x"
        rows.append([f"{factor:g}x", *_compared(its), worst])
    return _table(("asked for", "time", "ended well", "CPU", "memory", "worst job"), rows)


# --- plots ----------------------------------------------------------------------------------------------------------------


def draw(directory: Path, runs: Runs) -> list[Path]:
    """Draw all plots there, and return their files. Raises UsageError without matplotlib."""
    check_plots(directory)
    from matplotlib.figure import Figure as Drawing

    written = write_plots(directory, {label: runs[label] for label in (*FLUIDS, OURS)})
    for name, fill in (("ablations", _draw_ablations), ("over_asking", _draw_sweep)):
        drawing = Drawing(figsize=(8.0, 4.5), layout="constrained")
        fill(drawing.subplots(), runs)
        written.append(directory / f"{name}.png")
        drawing.savefig(written[-1], dpi=120, metadata={"Software": None})
    return written


def _draw_ablations(axes: Axes, runs: Runs) -> None:
    """Draw the completion time without each part over that with all."""
    found = [(name, its) for name in ABLATIONS if (its := _ablated(runs, name).mean_time) is not None]
    for at, (_, its) in enumerate(found):
        lower, upper = its.lower or its.value, its.upper or its.value
        axes.barh(at, its.value - 1.0, left=1.0, color="tab:blue")
        axes.plot([lower, upper], [at, at], color="black")
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.set_yticks(range(len(found)), [f"without {name}" for name, _ in found])
    axes.invert_yaxis()
    axes.set_xlabel("mean completion time over that with all parts")


def _draw_sweep(axes: Axes, runs: Runs) -> None:
    """Draw completion times over what users ask for."""
    for policy in ("manual", OURS):
        labels = [ASKED_WELL if policy == OURS else f"{policy}, {factor:g}x" for factor in SWEEP]
        means = [_mean([metrics_of(run).mean_seconds for run in runs[label]]) for label in labels]
        axes.plot(SWEEP, [seconds / 60.0 for seconds in means], marker="o", label=policy)
    axes.set_xscale("log", base=2)
    axes.set_xticks(SWEEP, [f"{factor:g}x" for factor in SWEEP])
    axes.set_xlabel("cores that users ask for, over those that suit their jobs")
    axes.set_ylabel("mean completion time in minutes")
    axes.set_ylim(bottom=0)
    axes.legend()
