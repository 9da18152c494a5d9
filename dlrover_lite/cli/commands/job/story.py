"""``dlrover-lite story``: what has happened to a node or to minibatches, as a timeline."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from dlrover_lite.cli.options import job_argument
from dlrover_lite.cli.output import emit_json, hanging, note, terminal_width
from dlrover_lite.core.errors import UsageError
from dlrover_lite.core.words import at_time, cleaned

if TYPE_CHECKING:
    from dlrover_lite.protocol.questions import Story, StoryEntry

__all__ = ["story", "timeline"]

GAP = "  "


@click.command(short_help="Tell what has happened to a node or minibatch.")
@click.argument("subject", metavar="[SUBJECT]", default="")
@job_argument
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def story(subject: str, job: str, as_json: bool) -> None:
    """Tell what has happened to SUBJECT in JOB, the oldest first; without SUBJECT, everything that is kept.

    SUBJECT is a node's id (worker-1, ps-0, master), minibatches as EPOCH/NUMBER or EPOCH/FIRST-LAST (0/17, 0/100-200),
    or those of an evaluation as eval:ROUND/NUMBER (eval:0/5). Of minibatches that went well only the
    newest are kept. JOB is an id, the start of one, or "last" (default).
    """
    from dlrover_lite.client.handle import JobHandle, list_jobs
    from dlrover_lite.jobs.events import parse_subject
    from dlrover_lite.protocol.questions import to_builtins

    if subject == "eval" and "/" in job:  # two words, as the story itself names them
        raise UsageError(f"Write it as one word: dlrover-lite story eval:{job}")
    if subject == "last" or any(subject == known.id for known in list_jobs()):  # a job alone: no node is called so
        subject, job = "", subject
    wanted = str(parse_subject(subject))
    handle = JobHandle.find(job)
    found = handle.story(wanted, on_damage=note)
    known = handle.known()
    began = known.started_at or known.created_at
    if as_json:
        emit_json({"job": handle.id, "subject": wanted, "started_at": began, **to_builtins(found)})
        return
    _print(handle.id, wanted, found, began)


def _print(job_id: str, wanted: str, found: Story, began: float) -> None:
    if not found.entries:
        note(f"{job_id} has kept nothing{f' of {wanted}' if wanted else ''} so far.")
        return
    click.echo(f"{job_id}{f', {wanted}' if wanted else ''}; the job began {at_time(began)}")
    if found.forgotten:
        click.echo(f"({found.forgotten:,} older ones are no longer kept)")
    for line in timeline(found.entries, began, terminal_width()):
        click.echo(line)


def timeline(entries: list[StoryEntry], began: float, width: int | None) -> Iterator[str]:
    """Yield lines of time since ``began``, time of day, subject and text. Texts are broken at ``width``; their own lines stay."""
    heads = [(_since(entry.at - began), _time_of_day(entry.at, began), cleaned(entry.subject)) for entry in entries]
    columns = [max(len(head[at]) for head in heads) for at in range(3)]
    for (since, clock, subject), entry in zip(heads, entries, strict=True):
        head = GAP.join((since.rjust(columns[0]), clock.rjust(columns[1]), subject.ljust(columns[2]))) + GAP
        named = not entry.node or entry.node in entry.text
        yield from hanging(head, entry.text if named else f"{entry.node}: {entry.text}", width)


def _since(seconds: float) -> str:
    """Write a time since the beginning: +0:02.31, +1:20:00.00."""
    hundredths = round(abs(seconds) * 100)
    minutes, rest = divmod(hundredths, 6000)
    hours, minutes = divmod(minutes, 60)
    clock = f"{hours}:{minutes:02}" if hours else f"{minutes}"
    return f"{'-' if seconds < 0 and hundredths else '+'}{clock}:{rest / 100:05.2f}"


def _time_of_day(at: float, began: float) -> str:
    """Write a time of day, with the date on other days than the first."""
    then = time.localtime(at)
    same_day = then[:3] == time.localtime(began)[:3]
    return time.strftime("%H:%M:%S" if same_day else "%m-%d %H:%M:%S", then)
