"""Options of ``tui --replay`` that write a part of a recording as a file for others to look at."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from dlrover_lite.cli.output import note
from dlrover_lite.core.errors import HistoryError, UsageError

if TYPE_CHECKING:
    from dlrover_lite.tui.recordings.recorded import RecordedSource

__all__ = ["ClipOptions", "clip_options", "write_clips"]

F = TypeVar("F", bound=Callable[..., Any])
_SIZE = re.compile(r"(\d{1,3})x(\d{1,3})\Z")
_LEAST_WIDTH, _LEAST_HEIGHT = 60, 12


class ClipOptions(NamedTuple):
    svg: str | None = None
    html: str | None = None
    cast: str | None = None
    start: str | None = None
    stop: str | None = None
    size: str = "100x30"

    @property
    def files(self) -> dict[str, str]:
        """Paths of the files to write, by their kinds."""
        there = {"svg": self.svg, "html": self.html, "cast": self.cast}
        return {kind: path for kind, path in there.items() if path is not None}


def clip_options(command: F) -> F:
    """Add the options to a command, which is handed them by the names that ``ClipOptions`` has for them."""
    for option in (
        click.option(
            "--size",
            metavar="WxH",
            default="100x30",
            show_default=True,
            help="Columns and lines of --svg, --html, --cast.",
        ),
        click.option("--to", "stop", metavar="TIME", help="End the clip there (default: at the recording's end)."),
        click.option(
            "--from", "start", metavar="TIME", help="Begin the clip there, as --at (default: at its beginning)."
        ),
        click.option("--cast", metavar="FILE", help="Write a clip as asciinema plays it."),
        click.option("--html", metavar="FILE", help="Write a clip as a page with a slider."),
        click.option("--svg", metavar="FILE", help="Write a clip as a moving picture."),
    ):
        command = option(command)
    return command


def write_clips(options: ClipOptions, source: RecordedSource, job: str | None, speed: float | None) -> None:
    """Write the clip of a job, or of the overview where that is None. Raises UsageError for times and sizes that can't be, and HistoryError
    for a file that is there already or can't be written."""
    from dlrover_lite.core.units import format_bytes
    from dlrover_lite.tui.recordings import clip_files
    from dlrover_lite.tui.recordings.clip import film

    player = source.player
    start = player.begin if options.start is None else player.time_of(options.start)
    stop = player.end if options.stop is None else player.time_of(options.stop)
    if stop < start:
        raise UsageError(
            "The clip would end before it begins", hint="--from and --to are times, the earlier one first."
        )
    size = _size_of(options.size)
    for path in options.files.values():
        if Path(path).exists():
            raise HistoryError(f"{path} is there already", hint="Write to another file, or remove it.")
    clip = film(source, job, start=start, stop=stop, speed=speed, size=size)
    written = {"svg": clip_files.picture, "html": clip_files.page, "cast": clip_files.cast}
    for kind, path in options.files.items():
        text = written[kind](clip)
        try:
            with Path(path).open("x", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            raise HistoryError(f"{path} can't be written: {error.strerror}") from error
        note(f"{path}: {clip.seconds:.0f} s of {job or 'all jobs'}, {format_bytes(len(text.encode()))}")


def _size_of(text: str) -> tuple[int, int]:
    match = _SIZE.match(text)
    if match is None or int(match[1]) < _LEAST_WIDTH or int(match[2]) < _LEAST_HEIGHT:
        raise UsageError(
            f"{text!r} is no size for a clip", hint="Columns x lines, from 60x12 to 999x999, such as 100x30."
        )
    return int(match[1]), int(match[2])
