"""``dlrover-lite run``: start a job and stay with it, or not."""

from __future__ import annotations

import sys
from collections.abc import Callable
from signal import SIGHUP
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from dlrover_lite.cli.options import MOST_NUMBER, overrides, recipe_changes
from dlrover_lite.cli.output import TerminalDisplay, emit_json, note, terminal_width
from dlrover_lite.core.errors import DlroverLiteError, JobError
from dlrover_lite.core.words import at_time, cleaned, count, plural

if TYPE_CHECKING:
    from dlrover_lite.cli.follow import Signals
    from dlrover_lite.client.handle import JobHandle
    from dlrover_lite.client.resuming import Chosen
    from dlrover_lite.jobs.backend import RunOptions
    from dlrover_lite.jobs.store import Result
    from dlrover_lite.recipe.schema import Recipe
    from dlrover_lite.transport.endpoints import TransportKind

__all__ = ["prepare_data", "run"]

EXIT_FAILED = 1


@click.command(short_help="Train a recipe.")
@click.argument("recipe", metavar="[RECIPE|JOB]", required=False)
@recipe_changes
@click.option("--resume", is_flag=True, help="Go on with JOB, from its newest checkpoint.")
@click.option(
    "--from",
    "origin",
    metavar="CHECKPOINT",
    help="Begin a new job with the parameters and the progress of a checkpoint.",
)
@click.option(
    "--cut", type=click.IntRange(0, MOST_NUMBER), help="With --resume or --from: this checkpoint, not the newest."
)
@click.option("--only-parameters", is_flag=True, help="With --from: begin at epoch 0; data and training may be others.")
@click.option(
    "--autoscale",
    type=click.Choice(["off", "suggest", "on"]),
    help="Whether the brain changes the job's plan while it runs (default: on where the recipe fixes no resources).",
)
@click.option("--check-index", metavar="INDEX", help="Refuse if `plan` would show another plan by now than that one.")
@click.option("--no-daemon", is_flag=True, help="Have the brain in the job's own process, not in one for all jobs.")
@click.option(
    "--transport",
    type=click.Choice(["unix", "tcp"]),
    default="unix",
    help="How the job's processes reach each other: unix sockets, or TCP on this machine, encrypted with a key of the job's own.",
)
@click.option(
    "--backend",
    type=click.Choice(["local", "k8s"]),
    help="Where the job runs: on this machine, or in the cluster of the kubeconfig (default: as the recipe says).",
)
@click.option("--image", metavar="REF", help="Image of the job's pods, in a cluster (backend.k8s.image).")
@click.option(
    "--dry-run", is_flag=True, help="In a cluster: print every object that the job would be made of, and return."
)
@click.option("--detach", is_flag=True, help="Start the job, print its id and return.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
def run(
    recipe: str | None,
    settings: tuple[str, ...],
    data: tuple[str, ...],
    resume: bool,
    origin: str | None,
    cut: int | None,
    only_parameters: bool,
    autoscale: str | None,
    check_index: str | None,
    no_daemon: bool,
    transport: TransportKind,
    backend: str | None,
    image: str | None,
    dry_run: bool,
    detach: bool,
    as_json: bool,
) -> int:
    """Train what the file RECIPE says, and show how it gets on until it ends.

    The job ends with this command: ctrl-C takes a last checkpoint and stops it, a second ctrl-C kills it. With --detach
    it goes on by itself.

    With --resume, go on with a JOB (its id, the start of one, or "last", which is the default) that was stopped, has failed
    or was lost, where its newest checkpoint left it. With --from, begin a new job with a CHECKPOINT: that of a job, by id, or
    the path or URL of checkpoints, with ":12" at its end for one that isn't the newest. Its recipe is the checkpoint's unless
    RECIPE is given, which may have other numbers of nodes and epochs.

    Where the recipe fixes no resources the brain chooses the plan, and changes it while the job runs (`plan` shows it
    beforehand, `explain` what was decided, `autoscale pause` holds it). With --autoscale suggest it asks first, with off it
    keeps out.

    What happens is told to the brain, which keeps the history of all jobs. If none runs it is started, and ends when there has
    been no job for a while.

    Exit codes: 0 trained; 1 the job failed, or was stopped by `dlrover-lite stop`; 2 the recipe can't be run;
    130 stopped by ctrl-C (143, 129: by SIGTERM, SIGHUP).
    """
    from dlrover_lite.cli.follow import Signals
    from dlrover_lite.cli.summary import what_runs
    from dlrover_lite.client.validation import warnings
    from dlrover_lite.jobs.backend import RunOptions
    from dlrover_lite.protocol.brain_mode import brain_mode

    for key, value in (("autoscale", autoscale), ("backend", backend), ("backend.k8s.image", image)):
        if value is not None:
            settings = (*settings, f"{key}={value}")
    _refuse_if(
        (
            check_index is not None and (resume or origin is not None or recipe is None),
            "--check-index is for a RECIPE, without --resume and --from.",
        ),
        (resume and origin is not None, "--resume goes on with a job, --from begins a new one: choose one of them."),
        (
            resume and bool(settings or data),
            "A job goes on with the recipe it has: with --resume nothing can be changed. A new job with changes: --from JOB",
        ),
        (cut is not None and not resume and origin is None, "--cut needs --resume or --from."),
        (only_parameters and origin is None, "--only-parameters needs --from."),
        (recipe is None and not resume and origin is None, "Missing argument 'RECIPE'."),
    )
    options = RunOptions(brain_mode("embedded" if no_daemon else None), transport)
    if resume:
        start = _to_resume(recipe or "last", cut, options)
    elif origin is not None:
        start = _to_begin_with(origin, cut, recipe, overrides(settings, data), only_parameters, options)
    else:
        start = _to_run(recipe or "", overrides(settings, data), options)
    if dry_run:
        return _print_objects(start.recipe, options)
    for warning in warnings(start.recipe):
        note(f"Warning: {warning}")
    for line in start.said:
        note(line)
    samples = prepare_data(start.recipe) if _is_here(start.recipe) else None
    if check_index is not None and samples is not None:
        _check_index(start.recipe, samples, check_index)
    note(what_runs(start.recipe, samples))
    with Signals(sys.stderr) as signals:
        handle = start.go(detach)
        if detach:
            say_detached(handle, as_json)
            return 0
        signals.hold(handle)
        result = _stay(handle, signals)
    if signals.first == SIGHUP:
        _forget_terminal()
    again = [recipe] if recipe and not resume else [str(handle.directory / "recipe.yaml")]
    again += [word for path in data for word in ("--data", path)]
    again += [word for setting in settings for word in ("--set", setting)]
    return _report(handle, result, again, as_json, signals.first)


def _is_here(recipe: Recipe) -> bool:
    """Return whether the samples can be counted on this machine."""
    return recipe.kubernetes is None or recipe.data.__struct_config__.tag in ("synthetic", "census")


def _print_objects(recipe: Recipe, options: RunOptions) -> int:
    """Print what a job in a cluster would be made of, as `kubectl apply` takes it. Raises click.UsageError for one of this machine."""
    if recipe.kubernetes is None:
        raise click.UsageError("--dry-run shows what a job in a cluster is made of: add --backend k8s.")
    from dlrover_lite.backends.k8s.objects.manifests import as_yaml
    from dlrover_lite.client.job_sources import cluster_jobs

    click.echo(as_yaml(cluster_jobs(recipe.kubernetes).objects(recipe, options)), nl=False)
    return 0


class _Start(NamedTuple):
    """A job about to be started. ``go(detach)`` does it."""

    recipe: Recipe
    said: list[str]
    go: Callable[[bool], JobHandle]


def _refuse_if(*rules: tuple[bool, str]) -> None:
    """Check which options are given. Raises click.UsageError with the text of the first rule that holds: they don't go together."""
    for holds, why in rules:
        if holds:
            raise click.UsageError(why)


def _to_run(recipe: str, changes: dict[str, Any], options: RunOptions) -> _Start:
    from dlrover_lite.client.handle import launch, resolve

    loaded = resolve(recipe, changes)
    return _Start(loaded, [], lambda detach: launch(loaded, detach=detach, options=options, say=note))


def _to_resume(reference: str, cut: int | None, options: RunOptions) -> _Start:
    """Choose what a job goes on from. Raises JobError when it can't go on."""
    from dlrover_lite.client import resuming
    from dlrover_lite.client.handle import JobHandle, go_on

    found = JobHandle.find(reference)
    job, backend = found.job, found.backend
    chosen = resuming.chosen_for(job, cut)
    said = _said(chosen, f"{job.id} goes on from")
    return _Start(
        job.recipe, said, lambda detach: go_on(job, chosen, detach=detach, options=options, backend=backend, say=note)
    )


def _to_begin_with(
    origin: str,
    cut: int | None,
    recipe: str | None,
    changes: dict[str, Any],
    only_parameters: bool,
    options: RunOptions,
) -> _Start:
    """Choose what a new job begins with. Raises JobError when the recipe doesn't fit."""
    from dlrover_lite.client import resuming
    from dlrover_lite.client.handle import launch, resolve
    from dlrover_lite.client.job_sources import files_of
    from dlrover_lite.jobs.checkpoint_location import locate

    located = locate(origin, files_of)
    chosen = resuming.choose(located, cut)
    resuming.check_reachable(chosen, located.job)
    if recipe is None:
        known = resuming.recipe_of(located, chosen)
        loaded = resuming.fitting_recipe(known, changes)
    else:
        loaded = resolve(recipe, changes)
    resuming.check_fits(chosen, loaded, only_parameters=only_parameters)
    beginning = resuming.beginning_of(chosen, only_parameters=only_parameters)

    def go(detach: bool) -> JobHandle:
        return launch(loaded, detach=detach, beginning=beginning, options=options, say=note)

    said = _said(chosen, f"Begins with {'the parameters of ' if only_parameters else ''}")
    said += [f"  {line}" for line in resuming.changes_of(chosen, loaded)]
    return _Start(loaded, said, go)


def _said(chosen: Chosen, what: str) -> list[str]:
    manifest = chosen.manifest
    taken = f"taken at {at_time(manifest.at)} after {plural(manifest.samples, 'sample')}"
    said = [f"Warning: passed over {line}" for line in chosen.passed_over]
    return [*said, f"{what.rstrip()} checkpoint {manifest.cut} of {manifest.job}, {taken}"]


def prepare_data(recipe: Recipe) -> int:
    """Index the files, if they aren't yet, with a progress bar; return the number of training samples."""
    from pathlib import Path

    from dlrover_lite.data.open import index_data

    with TerminalDisplay().steps() as progress:
        return index_data(recipe.data, Path(recipe.directory), progress)


def _check_index(recipe: Recipe, samples: int, index: str) -> None:
    """Check that the plan is still the one with this index. Raises JobError when the world has moved."""
    from dlrover_lite.client.dry_run import foresee

    now = foresee(recipe, samples).decision
    if now.index != index:
        raise JobError(
            f"The world has moved since plan {index}: it is {now.index} by now ({now.reason})",
            hint="Look at it again: dlrover-lite plan RECIPE",
        )


def say_detached(handle: JobHandle, as_json: bool) -> None:
    if as_json:
        emit_json({"job": handle.id, "directory": str(handle.directory)})
    else:
        click.echo(handle.id)
    commands = [f"  dlrover-lite {command} {handle.id}" for command in ("status", "logs -f", "stop")]
    note("\n".join(["It goes on by itself. To follow it:", *commands]))


def _forget_terminal() -> None:
    """Print nothing more to a terminal that was closed: that would be an error. A file or pipe is still written to."""
    import os
    import stat

    from dlrover_lite.cli.follow import silence

    for stream in (sys.stdout, sys.stderr):
        if stat.S_ISCHR(os.fstat(stream.fileno()).st_mode):
            silence(stream)


def _stay(handle: JobHandle, signals: Signals) -> Result:
    """Stay until the job has ended, also if nobody sees it any more: then it is stopped."""
    from dlrover_lite.cli.follow import silence
    from dlrover_lite.client.progress_line import ProgressLine, follow

    closed = False

    def on_closed() -> None:
        nonlocal closed
        closed = True
        silence(sys.stderr)
        if signals.first is None:  # else it has been told
            handle.stop()

    line = ProgressLine(sys.stderr)
    try:
        line.say(f"job {handle.id}")
    except OSError:
        on_closed()
    result = follow(handle, line, on_closed=on_closed)
    if closed and signals.first is None:
        raise BrokenPipeError
    return result


def _report(handle: JobHandle, result: Result, again: list[str], as_json: bool, signal_number: int | None) -> int:
    from dlrover_lite.cli.summary import next_commands, run_json, summary_lines
    from dlrover_lite.client.job_history import merge
    from dlrover_lite.client.trained_models import best_auc

    merge(handle, note)
    status = handle.status()
    best = best_auc(handle.job.recipe.data) if result.ok else None
    if as_json:
        emit_json(run_json(handle.job, result, status, best))
    elif result.ok:
        lines = [f"{handle.id} succeeded", *summary_lines(result.export, status, best), ""]
        lines += next_commands(handle.job, result, again, terminal_width())
        click.echo("\n".join(map(cleaned, lines)))
    if result.ok:
        return 0
    if result.state in ("stopped", "suspended"):
        done = f" after {count(status.samples)} of {count(status.total_samples)} samples" if status.samples else ""
        print(f"{handle.id}: {result.message or 'stopped'}{done}; no model was exported.", file=sys.stderr)
        if result.hint:
            print(result.hint, file=sys.stderr)
        return EXIT_FAILED if signal_number is None else 128 + signal_number
    raise job_error(handle, result)


def job_error(handle: JobHandle, result: Result) -> DlroverLiteError:
    """Return a failed job as an error, with the traceback of the person's own code."""
    hint = "\n".join(part for part in (result.hint, f"More: dlrover-lite logs {handle.id}") if part)
    error = JobError(result.message or f"{handle.id} has {result.state}.", hint=hint)
    if result.traceback:
        vars(error)["user_traceback"] = result.traceback.rstrip()
    return error
