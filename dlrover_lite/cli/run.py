"""``dlrover-lite run``: start a job and stay with it, or not."""

from __future__ import annotations

import sys
from signal import SIGHUP
from typing import TYPE_CHECKING

import click

from dlrover_lite.cli.options import overrides, recipe_options
from dlrover_lite.errors import DlroverLiteError, JobError

if TYPE_CHECKING:
    from dlrover_lite.cli.follow import Signals
    from dlrover_lite.jobs.handle import JobHandle
    from dlrover_lite.jobs.store import Result
    from dlrover_lite.recipe.schema import Recipe

__all__ = ["run"]

EXIT_FAILED = 1


@click.command(short_help="Train a recipe.")
@recipe_options
@click.option("--detach", is_flag=True, help="Start the job, print its id and return.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
def run(recipe: str, settings: tuple[str, ...], data: tuple[str, ...], detach: bool, as_json: bool) -> int:
    """Train what the file RECIPE says, and show how it gets on until it ends.

    The job ends with this command: ctrl-C takes a last checkpoint and stops it, a second ctrl-C kills it. With --detach
    it goes on by itself.

    Exit codes: 0 trained; 1 the job failed, or was stopped by `dlrover-lite stop`; 2 the recipe can't be run;
    130 stopped by ctrl-C (143, 129: by SIGTERM, SIGHUP).
    """
    from dlrover_lite.cli.follow import Signals
    from dlrover_lite.cli.output import note
    from dlrover_lite.cli.summary import warnings, what_runs
    from dlrover_lite.jobs.handle import launch, this_machine
    from dlrover_lite.recipe.load import load_recipe, resolved_yaml

    loaded = load_recipe(recipe, overrides(settings, data), machine=this_machine())
    for warning in warnings(loaded):
        note(f"Warning: {warning}")
    note(what_runs(loaded, _prepare_data(loaded)))
    with Signals(sys.stderr) as signals:
        handle = launch(loaded, resolved_yaml(loaded), detach=detach)
        if detach:
            _say_detached(handle, as_json)
            return 0
        signals.hold(handle)
        result = _stay(handle, signals)
    if signals.first == SIGHUP:
        _forget_terminal()
    again = [recipe, *(word for path in data for word in ("--data", path))]
    again += [word for setting in settings for word in ("--set", setting)]
    return _report(handle, result, again, as_json, signals.first)


def _prepare_data(recipe: Recipe) -> int:
    """Index the files, if they aren't yet; the number of training samples."""
    from pathlib import Path

    from dlrover_lite.cli.indexing import indexing
    from dlrover_lite.data.open import open_data
    from dlrover_lite.recipe.schema import CensusData, SyntheticData

    if isinstance(recipe.data, SyntheticData | CensusData):
        return recipe.data.samples
    samples = 0
    with indexing() as progress:
        for part in ("train", "eval"):
            dataset = open_data(recipe.data, directory=Path(recipe.directory), part=part, progress=progress)
            if dataset is not None:
                samples = dataset.samples if part == "train" else samples
                dataset.close()
    return samples


def _say_detached(handle: JobHandle, as_json: bool) -> None:
    from dlrover_lite.cli.output import emit_json, note

    if as_json:
        emit_json({"job": handle.id, "directory": str(handle.directory)})
    else:
        click.echo(handle.id)
    commands = [f"  dlrover-lite {command} {handle.id}" for command in ("status", "logs -f", "stop")]
    note("\n".join(["It goes on by itself. To follow it:", *commands]))


def _forget_terminal() -> None:
    """It was closed: what is printed to it would be an error. A file or pipe is still written to."""
    import os
    import stat

    from dlrover_lite.cli.follow import silence

    for stream in (sys.stdout, sys.stderr):
        if stat.S_ISCHR(os.fstat(stream.fileno()).st_mode):
            silence(stream)


def _stay(handle: JobHandle, signals: Signals) -> Result:
    """Until the job has ended, also if nobody sees it any more: then it is stopped."""
    from dlrover_lite.cli.follow import follow, silence
    from dlrover_lite.cli.live import JobLine

    closed = False

    def on_closed() -> None:
        nonlocal closed
        closed = True
        silence(sys.stderr)
        if signals.first is None:  # a second word would kill
            handle.stop()

    line = JobLine(sys.stderr)
    try:
        line.say(f"job {handle.id}")
    except OSError:
        on_closed()
    result = follow(handle, line, on_closed=on_closed)
    if closed and signals.first is None:
        raise BrokenPipeError
    return result


def _report(handle: JobHandle, result: Result, again: list[str], as_json: bool, signal_number: int | None) -> int:
    from dlrover_lite.cli.output import cleaned, emit_json, terminal_width
    from dlrover_lite.cli.summary import best_auc, next_commands, run_json, summary_lines
    from dlrover_lite.cli.words import count

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
    if result.state == "stopped":
        done = f" after {count(status.samples)} of {count(status.total_samples)} samples" if status.samples else ""
        print(f"{handle.id}: {result.message or 'stopped'}{done}; no model was exported.", file=sys.stderr)
        if result.hint:
            print(result.hint, file=sys.stderr)
        return EXIT_FAILED if signal_number is None else 128 + signal_number
    raise job_error(handle, result)


def job_error(handle: JobHandle, result: Result) -> DlroverLiteError:
    """A failed job as an error, with the traceback of the person's own code."""
    hint = "\n".join(part for part in (result.hint, f"More: dlrover-lite logs {handle.id}") if part)
    error = JobError(result.message or f"{handle.id} has {result.state}.", hint=hint)
    if result.traceback:
        vars(error)["user_traceback"] = result.traceback.rstrip()
    return error
