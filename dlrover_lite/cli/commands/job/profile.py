"""``dlrover-lite profile``: what was measured of a job's nodes, interval by interval, and what holds it back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from dlrover_lite.cli.options import job_argument
from dlrover_lite.cli.output import emit_json, note, table
from dlrover_lite.core.errors import UsageError
from dlrover_lite.core.words import at_time, count, duration, plural

if TYPE_CHECKING:
    from dlrover_lite.brain.models.bottleneck import Bottleneck
    from dlrover_lite.protocol.profiles import Profile

__all__ = ["profile"]

_WORDS = {
    "workers": "the workers' cores",
    "ps": "the cores of the busiest parameter server",
    "pipeline": "the minibatches under way at once",
    "host": "the free cores of the machine",
    "cores": "the cores that all nodes share",
    "reading": "reading",
    "network": "the fullest network card",
}


@click.command(short_help="Show what nodes spend their time on.")
@job_argument
@click.option("--last", metavar="N", default="5", help="Show the last N intervals (default: 5).")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def profile(job: str, last: str, as_json: bool) -> None:
    """Show what was measured of JOB in intervals in which its plan didn't change: samples/s, CPU per minibatch, and what
    it is spent on; and which limit is the nearest. JOB is an id, the start of one, or "last" (default).

    CPU is in milliseconds per minibatch: on the worker that trains it, and on all parameter servers together. Reads is
    the share of the time in which a worker reads samples, though it has a core; waits, that in which it has nothing to
    compute. Busy is the share of the time in which a parameter server answers requests; queue, how long one waits for
    its turn. Others are the cores that the machine spends on anything but this job's workers and parameter servers.
    Nothing is measured while nodes start or end, slots move, or an evaluation or checkpoint is under way.
    """
    from dlrover_lite.brain.models.bottleneck import bottleneck
    from dlrover_lite.client.handle import JobHandle
    from dlrover_lite.protocol.profiles import Profile

    most = _number(last)
    handle = JobHandle.find(job)
    found = handle.profiles(on_damage=note)
    measured = [each for each in found if isinstance(each, Profile)]
    verdict = bottleneck(measured)
    if as_json:
        import msgspec

        shown = found[-most:]
        emit_json(
            {
                "job": handle.id,
                "intervals": [_json(each) for each in shown if isinstance(each, Profile)],
                "gaps": [msgspec.to_builtins(each) for each in shown if not isinstance(each, Profile)],
                "bottleneck": None if verdict is None else msgspec.to_builtins(verdict),
            }
        )
        return
    if not measured:
        note(f"{handle.id} has no interval of some seconds in which its plan didn't change so far.")
        return
    _print(handle.id, measured[-most:], verdict)
    for gap in found[-most:]:
        if not isinstance(gap, Profile):
            note(f"An interval is lost: {gap.why}.")


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 6 and int(text) > 0):
        raise UsageError(f"--last {text}: write a number of intervals, as in --last 20")
    return int(text)


def _json(measured: Profile) -> dict[str, Any]:
    import msgspec

    found = msgspec.to_builtins(measured)
    assert isinstance(found, dict)
    del found["job"]
    return {**found, "samples_per_second": measured.samples_per_second}


def _print(job_id: str, measured: Sequence[Profile], verdict: Bottleneck | None) -> None:
    newest = measured[-1]
    click.echo(f"{job_id}, measured until {at_time(newest.at)}; minibatches of {count(newest.batch_size)}")
    click.echo()
    _print_intervals(measured)
    click.echo()
    _print_workers(newest)
    click.echo()
    _print_servers(newest)
    if newest.shared_cores:
        click.echo()
        click.echo("They share the cores that they have together, and are throttled together: on each CPU by itself.")
    if verdict is not None:
        click.echo()
        click.echo(told(verdict))


def _print_intervals(measured: Sequence[Profile]) -> None:
    table(
        ("until", "for", "workers", "ps", "samples/s", "±", "worker CPU", "ps CPU", "others"),
        [
            (
                at_time(each.at).partition(" ")[2],
                duration(each.seconds),
                _sizes([worker.cores for worker in each.workers]),
                _sizes([server.cores for server in each.ps]),
                count(each.samples_per_second),
                f"{each.relative_sd:.0%}",
                _milliseconds(sum(worker.cpu_seconds for worker in each.workers), each.minibatches),
                _milliseconds(sum(server.cpu_seconds for server in each.ps), each.minibatches),
                f"{sum(host.other_cores for host in each.hosts):.2f}",
            )
            for each in measured
        ],
        drop=("for", "±", "others"),
    )


def _print_workers(newest: Profile) -> None:
    phases = ("read", "pull", "compute", "push")
    table(
        ("worker", "minibatches", "CPU", *phases, "rest", "cores used", "reads", "waits", "throttled"),
        [
            (
                worker.node,
                count(worker.minibatches),
                _milliseconds(worker.cpu_seconds, worker.minibatches),
                *(_milliseconds(worker.phase_cpu_seconds.get(phase, 0.0), worker.minibatches) for phase in phases),
                _milliseconds(worker.cpu_seconds - sum(worker.phase_cpu_seconds.values()), worker.minibatches),
                f"{worker.cpu_seconds / newest.seconds:.2f} of {worker.cores:g}",
                f"{max(0.0, worker.phase_seconds.get('read', 0.0) - worker.read_delay_seconds) / newest.seconds:.0%}",
                f"{worker.phase_seconds.get('wait', 0.0) / newest.seconds:.0%}",
                f"{worker.throttled_seconds / newest.seconds:.0%}",
            )
            for worker in newest.workers
        ],
        drop=("throttled", "minibatches", "rest"),
    )


def _print_servers(newest: Profile) -> None:
    from dlrover_lite.core.units import format_bytes

    table(
        ("ps", "busy", "queue", "CPU", "cores used", "throttled", "rows", "memory", "peak"),
        [
            (
                server.node,
                f"{server.busy_seconds / newest.seconds:.0%}",
                _milliseconds(server.queue_seconds, server.requests),
                _milliseconds(server.cpu_seconds, server.minibatches),
                f"{server.cpu_seconds / newest.seconds:.2f} of {server.cores:g}",
                f"{server.throttled_seconds / newest.seconds:.0%}",
                count(server.rows),
                format_bytes(server.used_bytes),
                format_bytes(server.peak_bytes),
            )
            for server in newest.ps
        ],
        drop=("throttled", "peak", "rows"),
    )


def told(verdict: Bottleneck) -> str:
    """Say in words which limit is the nearest, how far away the others are, and what that rests on."""
    nearest, *others = verdict.limits
    allows = "allow" if nearest.name in ("workers", "ps", "pipeline", "host", "cores") else "allows"
    first = f"{_WORDS[nearest.name]}, which alone {allows} {count(nearest.samples_per_second)} samples/s"
    first += ", whatever the plan" if nearest.whatever_plan else ""
    further = "; ".join(f"{_WORDS[each.name]} {count(each.samples_per_second)}" for each in others)
    if verdict.clear and nearest.whatever_plan:
        rate = count(nearest.samples_per_second)
        lines = [f"Reading is the limit: {rate} samples/s, whatever the plan. Further away: {further}."]
    elif verdict.clear:
        lines = [f"The bottleneck: {first}. Further away: {further}."]
    elif nearest.unmeasured:
        lines = [f"What holds it back can't be told yet. Perhaps {first}; {further}."]
    else:
        lines = [f"Several limits are about equally near: {first}; {further}."]
    lines.append(
        f"By the bottleneck model, fitted to {plural(verdict.profiles, 'interval')}"
        f" with an error of {verdict.relative_error:.0%}."
    )
    if nearest.unmeasured:
        lines.append(f"Nothing is known of {', '.join(nearest.unmeasured)}: other plans would tell.")
    elif verdict.merged:
        groups = "; ".join(" and ".join(names) for names in verdict.merged)
        lines.append(f"Not told apart, which matters for other plans only: {groups}.")
    return "\n".join(lines)


def _sizes(cores: Sequence[float]) -> str:
    """Write sizes as 2 x 0.5 where all have the same, else as 1 + 0.5."""
    if len(set(cores)) == 1:
        return f"{len(cores)} x {cores[0]:g}"
    return " + ".join(f"{each:g}" for each in cores) or "-"


def _milliseconds(seconds: float, by: float) -> str | None:
    return f"{1000 * seconds / by:.2f} ms" if by else None
