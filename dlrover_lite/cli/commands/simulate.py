"""``simulate``: jobs of a trace on simulated machines, under policies that are compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from dlrover_lite.cli.options import Number
from dlrover_lite.cli.output import emit_json, note, progress, table
from dlrover_lite.core.words import compact, count, duration

if TYPE_CHECKING:
    from dlrover_lite.simulation.outcomes.comparison import Comparison, Interval
    from dlrover_lite.simulation.outcomes.metrics import Metrics
    from dlrover_lite.simulation.outcomes.records import Run
    from dlrover_lite.simulation.traces.cluster import ClusterFile
    from dlrover_lite.tui.recordings.recorder import Output

__all__ = ["simulate"]

POLICIES = "manual", "es", "optimus", "tuned", "dlrover"
"""``simulation.policies.choose.POLICIES``, which takes numpy to import, and the real brain."""
_SEEDS = click.IntRange(0, 2**63 - 1)
_SPARK_WIDTH = 48
_STEP_SECONDS = 30.0
"""Simulated seconds between two moments of a recording."""


@click.command(short_help="Run a trace of jobs on simulated machines.")
@click.argument("trace", metavar="[TRACE]", required=False)
@click.option(
    "--policy",
    "policies",
    multiple=True,
    type=click.Choice(POLICIES),
    help="Who decides plans: the users (manual), elastic scaling (es), Optimus, an oracle's fixed plans (tuned), or this "
    "project's brain, with a real master for each job (dlrover; by far the slowest). May be repeated: each is compared with the first.",
)
@click.option("--cluster", metavar="FILE", help="Machines (default: 64 of 16 cores and 64 GiB).")
@click.option(
    "--seed",
    "seeds",
    multiple=True,
    type=_SEEDS,
    help="Decides all chance (default: 0). May be repeated, for intervals.",
)
@click.option(
    "--costs",
    type=click.Choice(("mechanisms", "papers")),
    default="mechanisms",
    show_default=True,
    help="What a change of plan costs: by this project's mechanisms, or by those of each policy's paper.",
)
@click.option(
    "--hours", type=Number(0.01, 1e6), help="End after so many simulated hours (default: when all jobs have)."
)
@click.option("--generate", type=_SEEDS, metavar="SEED", help="Print a generated trace, and run nothing.")
@click.option("--plots", metavar="DIR", help="Write plots (PNG) to this directory; needs the extra `plots`.")
@click.option(
    "--record", metavar="FILE", help="Write what happened to FILE, for: tui --replay FILE. With --policy dlrover alone."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def simulate(
    trace: str | None,
    policies: tuple[str, ...],
    cluster: str | None,
    seeds: tuple[int, ...],
    costs: Literal["mechanisms", "papers"],
    hours: float | None,
    generate: int | None,
    plots: str | None,
    record: str | None,
    as_json: bool,
) -> None:
    """Run the jobs of TRACE (a CSV file) on simulated machines, on a virtual clock, and tell how soon they end and what they use
    of what they are given. The same files, options and seeds give the same answer.

    A trace to begin with: dlrover-lite simulate --generate 1 > trace.csv
    """
    if generate is not None:
        if trace is not None or policies or as_json:
            raise click.UsageError("--generate prints a trace, and runs none: run that with a command of its own.")
        from dlrover_lite.simulation.traces.files import write_trace
        from dlrover_lite.simulation.traces.generator import generate as generated

        click.echo(write_trace(generated(generate)), nl=False)
        return
    if trace is None:
        raise click.UsageError("Missing argument 'TRACE'. `--generate 1 > trace.csv` writes one.")
    chosen = tuple(dict.fromkeys(policies)) or ("manual",)
    if plots is not None:
        from dlrover_lite.simulation.outcomes.plots import check_plots

        check_plots(Path(plots))
    different = tuple(dict.fromkeys(seeds)) or (0,)
    if record is not None and (chosen != ("dlrover",) or len(different) > 1):
        raise click.UsageError("--record is for one run with the real brain: --policy dlrover, and at most one --seed.")
    runs = _run(trace, cluster, chosen, different, costs, hours, record)
    _tell(runs, as_json)
    if plots is not None:
        from dlrover_lite.simulation.outcomes.plots import write_plots

        for path in write_plots(Path(plots), runs):
            note(f"wrote {path}")


def _run(
    trace: str,
    cluster: str | None,
    policies: Sequence[str],
    seeds: Sequence[int],
    costs: Literal["mechanisms", "papers"],
    hours: float | None,
    record: str | None,
) -> dict[str, list[Run]]:
    """Run the trace under each policy with each seed; write a recording, where that is wanted."""
    from dlrover_lite.backends.sim.physics.rates import Rates
    from dlrover_lite.simulation.brain_runs import simulate_with_brain
    from dlrover_lite.simulation.fluid_runs import simulate as run
    from dlrover_lite.simulation.traces.cluster import USUAL_CLUSTER, read_cluster
    from dlrover_lite.simulation.traces.files import read_trace

    machines = USUAL_CLUSTER if cluster is None else read_cluster(cluster)
    runs: dict[str, list[Run]] = {policy: [] for policy in policies}
    with _keeping(record, machines) as keep, progress("Simulating", len(seeds) * len(policies)) as report:
        for seed in seeds:
            jobs, rates = read_trace(trace, seed=seed), Rates(seed)
            for policy in policies:
                report(sum(map(len, runs.values())), f"{policy}, seed {seed}")
                if policy == "dlrover":
                    run_ = simulate_with_brain(jobs, machines, seed=seed, hours=hours, rates=rates, keep=keep)
                    runs[policy].append(run_)
                else:
                    runs[policy].append(run(jobs, machines, policy, seed=seed, costs=costs, hours=hours, rates=rates))
        report(sum(map(len, runs.values())), "")
    return runs


@contextmanager
def _keeping(record: str | None, machines: ClusterFile) -> Iterator[Callable[[Path], None] | None]:
    """Give what writes a recording of the database that a run leaves; None: none is wanted. A run that breaks off leaves no file. Raises
    HistoryError for a file that can't be written."""
    if record is None:
        yield None
        return
    from dlrover_lite.tui.recordings.recorder import create

    with closing(create(Path(record))) as file:
        try:
            yield partial(_write, record, file, machines)
        except BaseException:
            Path(record).unlink(missing_ok=True)
            raise


def _write(record: str, file: Output, machines: ClusterFile, database: Path) -> None:
    from dlrover_lite.brain.store.database import ConfigStore
    from dlrover_lite.brain.store.queries import job_ids
    from dlrover_lite.brain.store.timeline import timeline
    from dlrover_lite.tui.model import Explanation, HostRow
    from dlrover_lite.tui.recordings.history import write_all
    from dlrover_lite.tui.sources.live_explained import explanation

    there = HostRow("", "", sum(one.cores for one in machines.fixed), sum(one.memory for one in machines.fixed))
    with ConfigStore(database) as store:
        pasts = [past for job in job_ids(store) if (past := timeline(store, job)) is not None]

        def explain(job: str, number: int, at: float) -> Explanation | None:
            return explanation(store, job, number, until=at)

        write_all(pasts, file, explain, brain="simulated", hosts=(there,), step_seconds=_STEP_SECONDS)
    note(f"wrote {record}; to play it: dlrover-lite tui --replay {record} --speed 64")


def _tell(runs: dict[str, list[Run]], as_json: bool) -> None:
    from dlrover_lite.simulation.outcomes.comparison import compare
    from dlrover_lite.simulation.outcomes.metrics import metrics_of

    metrics = {policy: [metrics_of(run) for run in of_policy] for policy, of_policy in runs.items()}
    base, *others = runs
    comparisons = [compare(runs[policy], runs[base]) for policy in others]
    if as_json:
        found = [
            {"policy": run.policy, "seed": run.seed, "hours": run.until / 3600.0, "metrics": its}
            for policy, of_policy in runs.items()
            for run, its in zip(of_policy, metrics[policy], strict=True)
        ]
        emit_json({"runs": found, "comparisons": comparisons})
        return
    _print_metrics(metrics)
    if comparisons:
        click.echo()
        _print_comparisons(comparisons, base)
    click.echo()
    _print_over_time(runs)


def _print_metrics(metrics: dict[str, list[Metrics]]) -> None:
    """Print a line for each policy: means over seeds."""
    columns = ("policy", "ended well", "mean", "median", "p90", "p99", "waited", "cpu used", "memory used", "cost")
    rows = []
    for policy, its in metrics.items():
        rows.append(
            (
                policy,
                _percent(_mean([one.completion_rate for one in its])),
                *(
                    duration(_mean([getattr(one, name) for one in its]))
                    for name in ("mean_seconds", "median_seconds", "p90_seconds", "p99_seconds", "mean_waited_seconds")
                ),
                _percent(_mean([one.cpu_use for one in its])),
                _percent(_mean([one.memory_use for one in its])),
                _dollars(_mean([one.cost for one in its])),
            )
        )
    table(columns, rows, drop=("p99", "waited", "cost", "p90"))
    jobs = next(iter(metrics.values()))
    left = {policy: sum(one.unfinished for one in its) for policy, its in metrics.items()}
    for policy, number in left.items():
        if number:
            note(f"{policy}: {count(number)} of {count(sum(one.jobs for one in jobs))} jobs hadn't ended by then")


def _print_comparisons(comparisons: Sequence[Comparison], base: str) -> None:
    columns = (f"over {base}", "mean time", "median time", "p90 time", "ended well", "cpu used", "memory used", "cost")
    rows = [
        (
            one.policy,
            *(_times(its) for its in (one.mean_time, one.median_time, one.p90_time)),
            *(_points(its) for its in (one.completion, one.cpu_use, one.memory_use)),
            _times(one.cost),
        )
        for one in comparisons
    ]
    table(columns, rows, drop=("p90 time", "median time"))


def _print_over_time(runs: dict[str, list[Run]]) -> None:
    """Draw the cores that were given and used, of the first seed, all with the same scale."""
    from dlrover_lite.simulation.outcomes.metrics import over_time
    from dlrover_lite.tui.pages.charts import sparkline

    firsts = {policy: of_policy[0] for policy, of_policy in runs.items()}
    until = max((use.stop for run in firsts.values() for job in run.jobs for use in job.usage), default=0.0)
    over = {policy: over_time(run, _SPARK_WIDTH, until=until) for policy, run in firsts.items()} if until else {}
    most = max((max(its.given_cores) for its in over.values()), default=0.0)
    width = max(len(policy) for policy in firsts)
    for policy, its in over.items():
        for what, values in (("given", its.given_cores), ("used ", its.used_cores)):
            line = sparkline([*values, most], _SPARK_WIDTH + 1)[:_SPARK_WIDTH]
            click.echo(f"{policy:{width}}  cores {what}  {line}  up to {compact(max(values))}, over {duration(until)}")


def _mean(values: Sequence[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return sum(present) / len(present) if present else None


def _dollars(value: float | None) -> str | None:
    return None if value is None else f"${value:,.2f}" if value < 100.0 else f"${count(value)}"


def _percent(value: float | None) -> str | None:
    return None if value is None else f"{100 * value:.1f}%"


def _times(its: Interval | None) -> str | None:
    return _written(its, "{:.2f}", "x")


def _points(its: Interval | None) -> str | None:
    return _written(its, "{:+.1f}", " pp")


def _written(its: Interval | None, form: str, unit: str) -> str | None:
    """Write a value with its interval: 0.71x (0.66 to 0.77)."""
    if its is None:
        return None
    if its.lower is None or its.upper is None:
        return form.format(its.value) + unit
    return f"{form.format(its.value)}{unit} ({form.format(its.lower)} to {form.format(its.upper)})"
