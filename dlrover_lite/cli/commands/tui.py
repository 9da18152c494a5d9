"""``tui``: jobs, and the decisions that are made for them, on a screen that stays up to date; or a recording of that."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dlrover_lite.cli.clips import ClipOptions, clip_options, write_clips
from dlrover_lite.cli.options import Number
from dlrover_lite.cli.output import note, terminal_width
from dlrover_lite.core.errors import JobError, UsageError

if TYPE_CHECKING:
    from dlrover_lite.brain.store.timeline import Timeline
    from dlrover_lite.tui.model import Explanation
    from dlrover_lite.tui.recordings.recorded import Explain, RecordedSource, Recording
    from dlrover_lite.tui.sources.live import LiveSource
    from dlrover_lite.tui.sources.source import Source
    from dlrover_lite.tui.themes import ThemeFiles

__all__ = ["job_found", "tui"]

_WIDTH = 160
"""Characters of a line where there is no terminal to ask."""
_PORT = 8000
_IN_BROWSER = "TEXTUAL_DRIVER"
"""Names, in the environment, what textual shows its screens on instead of a terminal; textual-serve sets it."""


@click.command(short_help="Watch jobs and decisions as they are made.")
@click.option("--job", metavar="JOB", help='Begin with this job: its id, the start of one, or "last".')
@click.option("--readonly", is_flag=True, help="Without the keys that change something.")
@click.option("--once", is_flag=True, help="Print one frame as plain text, and end; needs no terminal.")
@click.option("--record", metavar="FILE", help="Write what is shown to FILE, too. With --replay JOB: only that.")
@click.option(
    "--replay",
    metavar="FILE|JOB",
    help="Play a recording, or the history of a job. FILE, if there is one of that name.",
)
@click.option("--at", metavar="TIME", help="Begin the replay there: 12:30, 90s, 1h5m, start or end.")
@click.option("--speed", type=Number(0, 64), help="Play so many times as fast (default: 1); 0: stand still.")
@click.option(
    "--serve",
    is_flag=True,
    help="Show it in a browser, at an address that it prints; without --writable as --readonly.",
)
@click.option(
    "--port", type=click.IntRange(0, 65535), help=f"The port of --serve (default: {_PORT}); 0: any that is free."
)
@click.option("--writable", is_flag=True, help="With --serve: with the keys that change something.")
@clip_options
def tui(
    job: str | None,
    readonly: bool,
    once: bool,
    record: str | None,
    replay: str | None,
    at: str | None,
    speed: float | None,
    serve: bool,
    port: int | None,
    writable: bool,
    **clip: Any,
) -> None:
    """Watch all jobs of this machine and of the clusters that are known here, and one of them in detail: how fast it is, what its nodes
    use, which decisions were made and what they brought. ? lists the keys, q leaves.

    It needs textual: pip install 'dlrover-lite[tui]'. --once doesn't. With NO_COLOR set it has no colours.

    With --record FILE, what is shown is kept in a file, of the jobs that are opened in detail, with the explanations of their
    decisions. --replay FILE plays it, here or elsewhere; --replay JOB plays what the brain keeps of a job that runs
    or has ended. --replay JOB --record FILE makes a file of that, and ends. Recordings have no logs, and not where files are.
    With --once, a replay's frame is that of --at, or of its end.

    --svg, --html and --cast write a part of a replay, --from a time --to another, and end: of --job, or of all jobs as the overview;
    in half a minute, unless --speed is given.

    With --serve, the same screens are in a browser, for those who have the address that it prints, on this machine alone; it
    needs textual-serve: pip install 'dlrover-lite[web]'.

    Exit codes: 0 done; 1 no such job or recording; 2 no terminal, or no textual.
    """
    clips = ClipOptions(**clip)
    if clips != ClipOptions() and (serve or replay is None or once or record is not None or not clips.files):
        raise click.UsageError(
            "--svg, --html, --cast, --from, --to and --size are about a clip: --replay FILE --svg FILE."
        )
    if serve:
        if once or record is not None:
            raise click.UsageError("--serve goes with --job, --replay, --at and --speed, not with --once or --record.")
        chosen = {"--job": job, "--replay": replay, "--at": at, "--speed": speed}
        _serve(chosen, _PORT if port is None else port, writable=writable and not readonly)
        return
    if port is not None or writable:
        raise click.UsageError("--port and --writable are about a browser: give --serve, too.")
    if replay is not None:
        _replay(replay, job, once=once, record=record, at=at, speed=speed, clips=clips)
        return
    if at is not None or speed is not None:
        raise click.UsageError("--at and --speed are about a replay: give --replay, too.")
    if once and record is not None:
        raise click.UsageError("--once shows nothing that would be worth a recording: give one of --once and --record.")
    from dlrover_lite.tui.sources.live import LiveSource

    live = LiveSource()
    source: Source = live
    first = job_found(live, job) if job is not None else None
    if once:
        if first is None:
            live.whole()
        else:
            live.whole_job(first)
        from dlrover_lite.tui.pages.once import frame

        click.echo(frame(source, job=first, width=_width()), nl=False)
        source.close()
        return
    _check_screen()
    if record is not None:
        from dlrover_lite.tui.recordings.recorder import Recorder, create

        source = Recorder(source, create(Path(record)), hidden=_hidden())
    from dlrover_lite.tui.actions import Actions
    from dlrover_lite.tui.app import TuiApp

    actions = None if readonly else Actions(live.look_again)
    TuiApp(source, job=first, actions=actions, themes=_themes()).run()


def _themes() -> ThemeFiles:
    from dlrover_lite.core.files.paths import state_directory
    from dlrover_lite.tui.themes import ThemeFiles

    return ThemeFiles(state_directory() / "tui")


def _serve(chosen: Mapping[str, object], port: int, *, writable: bool) -> None:
    if find_spec("textual") is None or find_spec("textual_serve") is None:
        raise UsageError(
            "The TUI in a browser needs textual-serve, which isn't installed.",
            hint="Run: pip install 'dlrover-lite[web]'. One frame as text needs nothing: dlrover-lite tui --once",
        )
    from dlrover_lite.tui.web_server import serve, served_command

    options = [part for name, value in chosen.items() if value is not None for part in (name, str(value))]

    def tell(address: str) -> None:
        click.echo(address)
        who = "can act on your jobs" if writable else "can see your jobs, and change nothing"
        note(f"Open it in a browser. Whoever has this address {who}. Ctrl-C ends it.")

    serve(served_command(options, writable=writable), port, tell)


def job_found(source: LiveSource, reference: str) -> str:
    """Find a job's id; clusters are waited for where it isn't here. Raises JobError naming the nearest ids."""
    here = tuple(source.jobs().jobs)
    if reference in here:
        return reference
    return _named(reference, tuple(source.whole().jobs), "All: dlrover-lite tui --once")


def _named(reference: str, jobs: Sequence[str], hint: str) -> str:
    from dlrover_lite.tui.commands import job_named

    try:
        return job_named(reference, jobs)
    except UsageError as error:
        raise JobError(error.message, hint=hint) from error


def _width() -> int:
    return terminal_width() or _WIDTH


def _hidden() -> list[Path]:
    """List directories that aren't for others."""
    from dlrover_lite.core.files.paths import state_directory

    return [state_directory(), Path.home()]


def _check_screen() -> None:
    """Check that there is a screen. Raises UsageError where there is no terminal, or textual isn't installed."""
    _check_terminal()
    if find_spec("textual") is None:
        raise UsageError(
            "The TUI needs textual, which isn't installed.",
            hint="Run: pip install 'dlrover-lite[tui]'. One frame as text needs nothing: dlrover-lite tui --once",
        )


def _check_terminal() -> None:
    if _IN_BROWSER in os.environ:
        return
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("There is no terminal to show anything on", hint="One frame as text: dlrover-lite tui --once")


# --- replay -------------------------------------------------------------------------------------------------------------


def _replay(
    what: str,
    job: str | None,
    *,
    once: bool,
    record: str | None,
    at: str | None,
    speed: float | None,
    clips: ClipOptions,
) -> None:
    path, playing = Path(what), 1.0 if speed is None else speed
    if path.exists() and not path.is_dir():
        from dlrover_lite.tui.recordings.recorded import read

        if record is not None:
            raise click.UsageError(f"{what} is a file already: --record goes with the history of a job.")
        first: str | None = None
        source = _source(read(path), playing)
        if job is not None:
            first = _named(job, source.known(), f"All: dlrover-lite tui --once --replay {what}")
    else:
        from dlrover_lite.tui.recordings.history import recorded

        name, past, explain = _history(what)
        if record is not None:
            _write(name, past, explain, Path(record))
            return
        first, source = name, _source(recorded(past), playing, explain)
    if clips.files:
        write_clips(clips, source, first, speed)
        return
    if at is not None:
        source.player.go(source.player.time_of(at))
    if once:
        from dlrover_lite.tui.pages.once import frame

        source.player.stand(None if at is not None else source.player.end)
        click.echo(frame(source, job=first, width=_width(), replay=source.player), nl=False)
        return
    _check_screen()
    from dlrover_lite.tui.replay_app import ReplayApp

    ReplayApp(source, job=first, themes=_themes()).run()


def _source(recording: Recording, speed: float, explain: Explain | None = None) -> RecordedSource:
    from dlrover_lite.tui.recordings.recorded import RecordedSource

    return RecordedSource(recording, recording.player(speed=speed), explain=explain)


def _history(reference: str) -> tuple[str, Timeline, Explain]:
    """Return a job with its history. Raises JobError for what is neither a file nor a job that the brain knows."""
    from dlrover_lite.brain.store.queries import job_ids
    from dlrover_lite.brain.store.timeline import timeline
    from dlrover_lite.brain_server.files import BrainFiles
    from dlrover_lite.brain_server.history_client import BrainHistory
    from dlrover_lite.client.job_history import bring

    hint = "A job of: dlrover-lite history. Or a file, made by: dlrover-lite tui --record FILE"
    bring(reference, note)
    with BrainHistory(BrainFiles()) as history:
        job = _named(reference, job_ids(history), hint)
        past = timeline(history, job)
    if past is None:  # it was pruned just now
        raise JobError(f"There is no job {job!r} any more", hint=hint)

    def explain(job: str, number: int, at: float) -> Explanation | None:
        from dlrover_lite.tui.sources.live_explained import explanation

        with BrainHistory(BrainFiles()) as history:
            return explanation(history, job, number, until=at)

    return job, past, explain


def _write(job: str, past: Timeline, explain: Explain, path: Path) -> None:
    import io

    from dlrover_lite.core.units import format_bytes
    from dlrover_lite.tui.recordings.history import write
    from dlrover_lite.tui.recordings.recorder import create

    whole = io.BytesIO()
    write(past, whole, explain, hidden=_hidden())
    with closing(create(path)) as file:
        file.write(whole.getvalue())
    note(
        f"{path}: the history of {job}, {format_bytes(path.stat().st_size)}. Play it: dlrover-lite tui --replay {path}"
    )
