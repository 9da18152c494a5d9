"""``brain …``: the process that all jobs of a user share, and what it keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from dlrover_lite.cli.groups import CommandGroup
from dlrover_lite.cli.options import MOST_SECONDS, Number
from dlrover_lite.cli.output import emit_json, note, table
from dlrover_lite.core.words import at_time, cleaned, count, duration, plural

if TYPE_CHECKING:
    from dlrover_lite.protocol.brain_messages import BrainStatus

__all__ = ["brain"]

EXIT_NONE = 1


@click.group(cls=CommandGroup, short_help="Look after the process that advises all jobs.")
def brain() -> None:
    """Look after the brain: the process that all your jobs report to, that keeps their history, and advises them.

    The first job starts it, and it ends when there has been no job for a while. A job goes on without it. `run --no-daemon` has a
    brain in the job's own process instead; DLROVER_LITE_BRAIN=embedded in the environment does so for all jobs, and
    DLROVER_LITE_BRAIN=off does without, and without a history.
    """


@brain.command(short_help="Be the brain, in the foreground.")
@click.option("--idle-minutes", type=Number(0, MOST_SECONDS), help="End after so long without a job (default: never).")
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    help="Listen at this TCP port instead, for jobs of a cluster that name it; the key is in the file DLROVER_LITE_KEY_FILE.",
)
def serve(idle_minutes: float | None, port: int | None) -> int:
    """Be the brain, in the foreground, until ctrl-C or `brain stop`. An older one that runs hands over.

    With --port it serves the jobs of a cluster that share a brain (`k8s manifests --brain`), and none of this machine.
    """
    import os

    from dlrover_lite.brain_server import brain_process

    def ready(brain: brain_process.Brain) -> None:
        idle = "" if brain.idle_seconds is None else f", idle exit after {brain.idle_seconds / 60:g} min"
        note(f"the brain listens (pid {brain.pid}{idle})")

    idle_seconds = None if idle_minutes is None else idle_minutes * 60
    listen = "" if port is None else f"tcp://{os.environ.get('DLROVER_LITE_LISTEN') or '*'}:{port}"
    why = brain_process.serve(idle_seconds, listen=listen, ready=ready, say=note)
    note(f"the brain has ended: {why}")
    return 0


@brain.command(short_help="Show whether it runs, and for whom.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def status(as_json: bool) -> int:
    """Show whether the brain runs, which jobs are registered, and what it keeps.

    Exit codes: 0 it runs; 1 it doesn't.
    """
    from dlrover_lite.brain.store import preferences
    from dlrover_lite.brain.store.prune import sizes
    from dlrover_lite.brain_server.brain_process import ask_status
    from dlrover_lite.brain_server.files import BrainFiles

    now, files = ask_status(), BrainFiles()
    kept: dict[str, Any] = {"database": str(files.database), "bytes": 0, "kept_jobs": 0}
    liked = preferences.Preferences()
    if files.database.exists():
        with _store() as store:
            kept |= sizes(store)
            liked = preferences.read(store)
    if as_json:
        emit_json(
            {"running": now is not None, **_status_json(now), **kept, "preferences": liked, "log": str(files.log)}
        )
    else:
        _print_status(now, kept, str(files.log))
    return 0 if now is not None else EXIT_NONE


def _status_json(now: BrainStatus | None) -> dict[str, Any]:
    from dlrover_lite.protocol.questions import to_builtins

    names = ("version", "pid", "started_at", "jobs", "idle_exit_seconds", "problem", "hint")
    if now is None:
        return {**dict.fromkeys(names), "jobs": [], "problem": "", "hint": ""}
    known = to_builtins(now)
    return {name: known[name] for name in names}


def _print_status(now: BrainStatus | None, kept: dict[str, Any], log: str) -> None:
    from dlrover_lite.core.units import format_bytes

    lines = ["No brain runs. The next job starts one."]
    if now is not None:
        lines = [f"The brain runs: process {now.pid}, version {now.version}, since {at_time(now.started_at)}"]
        if now.idle_exit_seconds is not None:
            lines.append(f"{'idle':<10} no job is registered; it ends in {duration(now.idle_exit_seconds)}")
        if now.problem:
            lines += [f"{'problem':<10} {now.problem}", f"{'':<10} {now.hint}"]
    of_jobs = f"history of {plural(kept['kept_jobs'], 'job')}, {format_bytes(kept['bytes'])}"
    lines += [f"{'database':<10} {kept['database']} ({of_jobs})", f"{'log':<10} {log}"]
    click.echo("\n".join(map(cleaned, lines)))
    if now is not None and now.jobs:
        click.echo()
        rows = [(one.job, count(one.samples), duration(one.silent_seconds)) for one in now.jobs]
        table(("job", "samples", "last heard"), rows)


@brain.command(short_help="End it; jobs go on without.")
@click.option("--kill", is_flag=True, help="At once, if it doesn't answer. Nothing that is committed is lost.")
def stop(kill: bool) -> None:
    """End the brain. Jobs go on without its advice, and tell what happened meanwhile to the next one."""
    from dlrover_lite.brain_server import brain_process

    pid = brain_process.stop(kill=kill)
    click.echo(
        "No brain runs." if pid is None else f"The brain (process {pid}) has been {'killed' if kill else 'stopped'}."
    )


@brain.command("settings", short_help="Show or change how long it stays, and what it keeps.")
@click.argument("changes", metavar="[NAME=VALUE]...", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def settings_(changes: tuple[str, ...], as_json: bool) -> None:
    """Show or change the brain's settings, as in `brain settings keep-jobs=500`.

    idle-minutes: it ends after so long without a job. keep-jobs: so many that have ended stay in the history, the newest;
    keep-days: and for so long. profile-days: measurements of a job are kept for so long after its end.

    capacity-cores, capacity-gib: what all jobs together may have (0: all of the machine). decide-seconds: plans of jobs that
    run are looked at again no more often than this. policy: which one decides plans: lite, or paper, that of the DLRover-RM
    paper, to compare with.

    idle-minutes counts for the next one that is started, the others within the hour.
    """
    from dlrover_lite.brain.store import preferences

    wanted = preferences.parse_changes(list(changes))
    with _store() as store:
        liked = preferences.change(store, wanted) if wanted else preferences.read(store)
    if as_json:
        emit_json(liked)
    else:
        for name in liked.__struct_fields__:
            value = getattr(liked, name)
            click.echo(f"{name.replace('_', '-')}={value if isinstance(value, str) else f'{value:g}'}")


def _store() -> Any:
    from dlrover_lite.brain.store.database import ConfigStore
    from dlrover_lite.brain_server.files import BrainFiles

    files = BrainFiles()
    files.make()
    return ConfigStore(files.database)
