"""What a job came to: as text for people, and as one object for programs (docs/json.md)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlrover_lite.cli.output import fields
from dlrover_lite.client.checkpoint_words import checkpoint_lines
from dlrover_lite.core.unknown_ids import unknown_text, warnings_of
from dlrover_lite.core.words import compact, count, duration, metric, plural

if TYPE_CHECKING:
    from dlrover_lite.jobs.store import Job, Result
    from dlrover_lite.protocol.hosts import Host
    from dlrover_lite.protocol.questions import EvaluationResult, Status
    from dlrover_lite.recipe.schema import Recipe

__all__ = ["next_commands", "run_json", "summary_lines", "what_runs"]

_TEXT_WIDTH = 80 - 11
"""Width in characters beside the subject of a line, on a terminal of the usual width."""


def run_json(job: Job, result: Result, status: Status, best: float | None) -> dict[str, Any]:
    """Return the object that ``run --json`` prints; its keys are documented and stay."""
    from dlrover_lite.protocol.questions import to_builtins

    last = status.evaluations[-1] if status.evaluations else None
    return {
        "job": job.id,
        **fields(result, "state", "ok", "message", "hint", "export"),
        "directory": str(job.directory),
        **fields(status, "samples", "total_samples", "epochs", "rows", "quarantined", "bad_lines", "bad_examples"),
        **fields(status, "staleness_p99", "staleness_max"),
        "seconds": status.elapsed_seconds,
        "samples_per_second": _average(status),
        "auc": last.auc if last else None,
        "loss": last.loss if last else None,
        "best_auc": best,
        "train_auc": status.auc,
        "train_loss": status.loss,
        "evaluations": to_builtins(status)["evaluations"],
    }


def _average(status: Status) -> float:
    return status.samples / status.elapsed_seconds if status.elapsed_seconds > 0 else 0.0


def summary_lines(export: str | None, status: Status, best: float | None) -> list[str]:
    """Return a line for each thing that is known of an ended job."""
    return [f"{name:<10} {text}" for name, text in _known(export, status, best)]


def _known(export: str | None, status: Status, best: float | None) -> list[tuple[str, str]]:
    span = (
        "from start to end"
        if status.state in ("succeeded", "failed", "stopped", "suspended", "lost")
        else "since the start"
    )
    lines = [
        ("samples", f"{count(status.samples)} of {count(status.total_samples)} ({plural(status.epochs, 'epoch')})"),
        ("time", f"{duration(status.elapsed_seconds)}, {count(_average(status))} samples/s {span}"),
    ]
    if status.evaluations:
        lines.append(("quality", _quality(status.evaluations[-1], status.samples)))
        shares = status.evaluations[-1].unknown_ids
        if shares:
            lines.append(("unknown", f"{unknown_text(shares, 3)} (ids evaluated)"))
        lines += [("warning", text) for text in warnings_of(shares, status.evaluations[-1].unusual_ids)]
    if status.loss is not None:
        lines.append(
            ("training", f"AUC {metric(status.auc)}, loss {metric(status.loss)} on the latest training samples")
        )
    if best is not None and len(lines) > 2:
        lines.insert(3, ("", f"best reachable AUC {metric(best)}"))
    if status.staleness_max is not None:
        text = f"99% of minibatches at most {status.staleness_p99}, largest {status.staleness_max}"
        lines.append(("staleness", f"{text} (pushes in between)"))
    if status.bad_lines:
        lines.append(("bad lines", f"{count(status.bad_lines)}, left out"))
        lines += [("", example) for example in status.bad_examples]
    if status.quarantined:
        lines.append(
            (
                "skipped",
                f"{plural(status.quarantined, 'minibatch')[:-1]}es" if status.quarantined > 1 else "1 minibatch",
            )
        )
    lines += [("" if i else "checkpoint", text) for i, text in enumerate(checkpoint_lines(status))]
    if export:
        lines.append(("model", export))
    return lines


def _quality(last: EvaluationResult, samples: int) -> str:
    def text(number: Callable[[float], str]) -> str:
        at = "" if last.at_samples >= samples else f", after {number(last.at_samples)}"
        where = f"on {number(last.samples)} evaluation samples{at}"
        return f"AUC {metric(last.auc)}, loss {metric(last.loss)} {where}"

    return text(count) if len(text(count)) <= _TEXT_WIDTH else text(compact)


def next_commands(job: Job, result: Result, again: Sequence[str], width: int | None = None) -> list[str]:
    """Return what is useful now, with everything filled in. ``again``: the arguments that ``run`` was given.

    In lines longer than ``width`` the explanation is left out.
    """
    import shlex

    rows = []
    if result.export:
        if job.recipe.model.use == "census":
            rows.append((f"census check {job.id}", "was each sample applied exactly once?"))
        else:
            rows.append((f"evaluate {job.id}", "also on other files: --data FILE"))
        rows.append((f"export {job.id} --to DIR", "or with --format parquet"))
    rows.append((f"status {job.id}", "nodes, evaluations, staleness"))
    rows.append((f"logs {job.id}", "what its processes wrote"))
    wide = max(len(command) for command, _ in rows)
    lines = ["Next:"]
    for command, what in rows:
        line = f"  dlrover-lite {command:<{wide}}  {what}"
        lines.append(line if width is None or len(line) <= width else f"  dlrover-lite {command}")
    longer = [*_without_epochs(again), "--set", f"training.epochs={2 * job.recipe.training.epochs}"]
    return [*lines, f"  dlrover-lite run {shlex.join(longer)}"]


def _without_epochs(again: Sequence[str]) -> list[str]:
    kept: list[str] = []
    for word in again:
        if kept[-1:] == ["--set"] and word.partition("=")[0].strip() == "training.epochs":
            kept.pop()
        else:
            kept.append(word)
    return kept


def what_runs(recipe: Recipe, samples: int | None) -> str:
    """Say in one line what a job that is about to start runs. ``samples``: None: not known here."""
    from dlrover_lite.client.handle import these_hosts
    from dlrover_lite.protocol.demands import autoscale_of
    from dlrover_lite.protocol.plans import initial_plan

    hosts = these_hosts() if recipe.kubernetes is None else _boundless()
    plan, limits = initial_plan(recipe.resources, hosts), recipe.resources
    servers = f"{plan.ps.count} PS x {plan.ps.each.cores:g}"
    workers = f"{plural(plan.worker.count, 'worker')} x {plan.worker.each.cores:g} cores"
    if autoscale_of(recipe) == "off" or (limits.ps and limits.worker):
        nodes = f"{servers}, {workers}"
    elif limits.ps or limits.worker:
        known, other = (f"{servers} cores", "workers") if limits.ps else (workers, "parameter servers")
        nodes = f"{known}, and the brain chooses the {other}"
    else:
        nodes = "the brain chooses the plan"
    model = recipe.model.use if ":" not in recipe.model.use else Path(recipe.model.use).name
    data = "samples of a volume" if samples is None else plural(samples, "sample")
    return f"{model} on {data}, {plural(recipe.training.epochs, 'epoch')}; {nodes}"


def _boundless() -> list[Host]:
    """Return a host with room for anything: what a cluster has isn't asked for a line of text."""
    from dlrover_lite.core.units import MOST_CORES, MOST_MEMORY, Resources
    from dlrover_lite.protocol.hosts import Host

    return [Host("cluster", Resources(MOST_CORES, MOST_MEMORY))]
