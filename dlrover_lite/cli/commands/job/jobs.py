"""``jobs``, ``status`` and ``stop``: what there is, how it is, and an end to it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from dlrover_lite.cli.commands.job.slots import print_moves
from dlrover_lite.cli.options import job_argument
from dlrover_lite.cli.output import emit_json, note, table
from dlrover_lite.core.errors import DlroverLiteError
from dlrover_lite.core.words import at_time, cleaned, count, duration, metric, next_look, plural

if TYPE_CHECKING:
    from dlrover_lite.client.handle import JobHandle
    from dlrover_lite.client.job_sources import ListedJob
    from dlrover_lite.jobs.store import Result
    from dlrover_lite.protocol.questions import NodeStatus, Status

__all__ = ["jobs", "status", "stop"]

_LEAST_FIRST = ("peak", "throttled", "cores", "samples/s", "slots", "memory")
"""Columns of the table of nodes that give way on a narrow terminal."""


@click.command(short_help="List the jobs of this machine, and of clusters.")
@click.option("--context", metavar="NAME", help="Also those of this context of the kubeconfig, from now on.")
@click.option("--namespace", "-n", metavar="NAME", help="Also those of this namespace of it (default: the context's).")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def jobs(context: str | None, namespace: str | None, as_json: bool) -> None:
    """List all jobs, the newest last: those of this machine, and of the clusters that jobs were submitted to from here.

    With --context or --namespace, those of another cluster, too. All commands know it then, and find its jobs: they can be watched
    and ended by whoever has the rights, wherever they were submitted.
    """
    from dlrover_lite.client.handle import list_jobs
    from dlrover_lite.client.job_sources import listed, remember
    from dlrover_lite.jobs.store import short_id

    if context is not None or namespace is not None:
        remember(context or "", namespace or "")
    elsewhere = [_listed_json(one) for one in listed(note)]
    found = [_job_json(handle) for handle in list_jobs()]
    found = sorted([*found, *elsewhere], key=lambda job: (short_id(job["id"]), job["id"]))
    if as_json:
        emit_json({"jobs": found})
        return
    if not found:
        note("There are no jobs. Start one: dlrover-lite run recipe.yaml")
        return
    sources = bool(elsewhere)
    rows = [
        (
            job["id"],
            *([job["source"]] * sources),
            job["state"],
            None if job["started_at"] is None else at_time(job["started_at"]),
            duration(job["seconds"]),
            "-" if job["samples"] is None else count(job["samples"]),
            metric(job["auc"]),
        )
        for job in found
    ]
    columns = ("job", *(["source"] * sources), "state", "started", "duration", "samples", "auc")
    table(columns, rows, drop=("duration", "started", "auc", "samples"))


def _listed_json(one: ListedJob) -> dict[str, Any]:
    """Return the entry of a job of a cluster: what its list tells, without asking for each job."""
    summary, last = one.summary, (one.summary.result.status if one.summary.result else None) or {}
    began = summary.started_at or summary.created_at
    return {
        "id": summary.id,
        "source": one.backend.source,
        "state": summary.state,
        "started_at": began,
        "ended_at": summary.ended_at,
        "seconds": (summary.ended_at or time.time()) - began if summary.state != "lost" else None,
        "samples": last.get("samples"),
        "total_samples": last.get("total_samples"),
        "auc": summary.result.auc if summary.result else None,
        "directory": None,
    }


def _job_json(handle: JobHandle) -> dict[str, Any]:
    """Return one entry of ``jobs --json``. A job whose files can't be read is in the list too."""
    from dlrover_lite.jobs import final_status

    entry: dict[str, Any] = dict.fromkeys(
        ("id", "source", "state", "started_at", "ended_at", "seconds", "samples", "total_samples")
    )
    entry |= {
        "id": handle.id,
        "source": handle.source,
        "state": "unreadable",
        "auc": None,
        "directory": str(handle.directory),
    }
    try:
        known = handle.known()
        result, lost = known.result, known.state == "lost"
        entry |= {"state": known.state, "started_at": known.started_at or known.created_at}
        entry["ended_at"] = result.ended_at if result and not lost else known.ended_at
        # from files: nobody's checkpoints are looked at
        now = final_status.final(handle.job, result) if result else handle.status()
        seconds = (entry["ended_at"] or time.time()) - entry["started_at"]
        entry["seconds"] = (now.elapsed_seconds or None) if lost else seconds
        if now.state == "queued":
            entry["state"] = "queued"
        auc = now.evaluations[-1].auc if now.evaluations else now.auc
        entry |= {"samples": now.samples, "total_samples": now.total_samples, "auc": auc}
    except DlroverLiteError:
        pass  # what is known stays
    return entry


@click.command(short_help="Show how a job is doing.")
@job_argument
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def status(job: str, as_json: bool) -> None:
    """Show how JOB is doing, or how it ended. JOB is an id, the start of one, or "last", which is the default."""
    from dlrover_lite.client.handle import JobHandle
    from dlrover_lite.protocol.questions import to_builtins

    handle = JobHandle.find(job)
    now, result = handle.status(), handle.result()
    if as_json:
        ended = {"hint": result.hint if result else "", "export": result.export if result else None}
        limits = "; ".join(_limits(now))
        emit_json({**to_builtins(now), **ended, "directory": str(handle.directory), "limits": limits})
        return
    _print_status(handle, now, result)


def _print_status(handle: JobHandle, now: Status, result: Result | None) -> None:
    from dlrover_lite.cli.summary import summary_lines
    from dlrover_lite.client.progress_line import progress_text

    why = now.message.partition("\n")[0].rstrip(" :")
    lines = [f"{handle.id}: {now.state}{f' ({why})' if why else ''}"]
    if result is None:
        lines += ["", progress_text(now)] if now.total_samples else []
    else:
        lines += [part for part in result.message.splitlines()[1:] + result.hint.splitlines() if part]
    if now.total_samples:
        lines += ["", *summary_lines(result.export if result else None, now, None)]
    if now.nodes:
        lines += [f"{'' if i else 'limits':<10} {text}" for i, text in enumerate(_limits(now))]
    waiting = [f"{node.id} {node.waits_for}" for node in now.nodes if node.waits_for]
    lines += [f"{'' if i else 'resizing':<10} {text}" for i, text in enumerate(waiting)]
    if (look := now.next_look) is not None and result is None:
        lines.append(f"{'brain':<10} {next_look(look.at, look.why, time.time())}")
    lines += _working(now)
    if now.begun:
        lines.append(f"{'began':<10} {now.begun}")
    if now.master_restarts:
        lines.append(f"{'master':<10} killed and started again {plural(now.master_restarts, 'time')}; the job went on")
    click.echo("\n".join(map(cleaned, lines)))
    if now.nodes:
        click.echo()
        _print_nodes(now)
    print_moves(now.moves)
    if now.evaluations:
        click.echo()
        table(
            ("evaluated at", "samples", "auc", "loss"),
            [(count(e.at_samples), count(e.samples), metric(e.auc), metric(e.loss)) for e in now.evaluations],
            drop=("samples", "loss"),
        )


def _working(now: Status) -> list[str]:
    """Say how far a checkpoint that is restored is, or the model that is written, and since when."""
    lines = []
    for name, work in (("restoring", now.restoring), ("exporting", now.exporting)):
        if work is not None and work.text:
            since = "" if work.since is None else f", since {at_time(work.since)}"
            lines.append(f"{name:<10} {work.text}{since}")
    return lines


def _print_nodes(now: Status) -> None:
    """Print the nodes, with the slots of parameter servers where there are several to share them."""
    shared = sum(node.slots is not None for node in now.nodes) > 1
    rows = []
    for node in now.nodes:
        name, state, *rest = _node_row(node, now)
        slots = [None if node.slots is None else count(node.slots)] if shared else []
        rows.append((name, state, *slots, *rest))
    columns = ("node", "state", *(["slots"] * shared), "samples/s", "cores", "throttled", "memory", "peak")
    table(columns, rows, drop=[name for name in _LEAST_FIRST if name in columns])


def _limits(now: Status) -> list[str]:
    """Return how the nodes are kept within their resources, and what isn't: a phrase each."""
    together = ["one CPU limit for all nodes: what one doesn't use, others may"] if now.shared_cores else []
    return [now.enforcement or "not known", *together, *(f"not enforced: {what}" for what in now.not_enforced)]


def _node_row(node: NodeStatus, now: Status) -> tuple[object, ...]:
    """Return the row of a node, used of given. Throttled: ``Status.throttled_share``."""
    from dlrover_lite.core.units import format_bytes

    cores = node.cpu_seconds / now.elapsed_seconds if now.elapsed_seconds else 0.0
    rate = f"{node.samples_per_second:,.0f}" if node.samples_per_second and not node.state.startswith("ended") else None
    throttled = f"{share:.0%}" if (share := now.throttled_share(node)) else None
    memory = format_bytes(node.used_memory) if node.used_memory else "-"
    peak = format_bytes(node.peak_memory) if node.peak_memory else None
    shown = f"{cores:.2f}/{node.cores:g}", throttled, f"{memory}/{format_bytes(node.memory)}", peak
    return node.id, node.state, rate, *shown


@click.command(short_help="Stop a job.")
@job_argument
@click.option("--now", is_flag=True, help="Without a last checkpoint.")
@click.option("--kill", is_flag=True, help="End it at once, instead of after the minibatches under way.")
@click.option(
    "--purge", is_flag=True, help="Of a cluster's job: remove all that is left of it then, its storage with it."
)
def stop(job: str, now: bool, kill: bool, purge: bool) -> None:
    """Take a last checkpoint of JOB and stop it; wait until nothing of it runs any more. JOB is an id, the start of one, or
    "last" (default).

    The checkpoint takes a minute at most; if it can't be written, the job stops without, and says so.
    """
    from dlrover_lite.client.handle import JobHandle
    from dlrover_lite.client.job_history import merge
    from dlrover_lite.jobs.backend import LOCAL

    handle = JobHandle.find(job)
    if purge and handle.source == LOCAL:
        raise click.UsageError(
            "--purge is for jobs of clusters: a job of this machine is its directory, which is yours to delete."
        )
    if handle.known().over:
        click.echo(f"{handle.id} has ended already ({handle.state()}).")
    else:
        _stop(handle, now, kill)
    if handle.source != LOCAL:
        merge(handle, note)
    if purge:
        _purge(handle)


def _purge(handle: JobHandle) -> None:
    from dlrover_lite.backends.k8s.jobs.kube_jobs import KubeJobs

    assert isinstance(handle.backend, KubeJobs)
    handle.backend.purge(handle.id)
    click.echo(f"Nothing is left of {handle.id}.")


def _stop(handle: JobHandle, now: bool, kill: bool) -> None:
    from dlrover_lite.cli import waiting

    note(f"{'Killing' if kill else 'Stopping'} {handle.id}")
    result = waiting.ended(handle, lambda: handle.stop(kill=kill, now=now))
    if result.state in ("succeeded", "failed"):
        click.echo(f"{handle.id} has {result.state} meanwhile.")
    else:
        missing = result.message.partition(", ")[2]
        without = f", {missing}" if missing.startswith("without") else ""
        click.echo(f"{handle.id} has been {'killed' if kill else 'stopped'}{without}.")
        if result.hint:
            note(result.hint)
