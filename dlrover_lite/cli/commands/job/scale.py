"""``scale``, ``move``, ``drain``, ``kill`` and ``resize``: more, fewer, larger or smaller nodes for a job that runs, and slots that move
between its parameter servers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from dlrover_lite.cli.options import job_argument
from dlrover_lite.cli.output import emit_json
from dlrover_lite.core.errors import UsageError
from dlrover_lite.core.words import cleaned

if TYPE_CHECKING:
    from dlrover_lite.client.handle import JobHandle

__all__ = ["drain", "kill", "move", "resize", "scale"]

F = TypeVar("F", bound=Callable[..., Any])


def _ending(command: F) -> F:
    """Add ``--wait`` and ``--json``."""
    as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
    return click.option("--wait", is_flag=True, help="Return when it is done, and not when it has begun.")(
        as_json(command)
    )


@click.command(short_help="Give a running job more or fewer nodes.")
@job_argument
@click.option("--workers", metavar="N", help="Have N workers.")
@click.option("--ps", metavar="N", help="Have N parameter servers.")
@_ending
def scale(job: str, workers: str | None, ps: str | None, wait: bool, as_json: bool) -> None:
    """Give JOB another number of workers or parameter servers while it trains. JOB is an id, the start of one, or
    "last" (default).

    A worker too many finishes its minibatch, gives back the rest of its share, and leaves. A parameter server too many
    leaves when its slots have moved to others; a new one gets its part of them. Asking for what is there already
    changes nothing.

    Exit codes: 0 done; 1 the job has ended, or refuses; 2 numbers that can't be.
    """
    from dlrover_lite.cli import waiting
    from dlrover_lite.client import scaling
    from dlrover_lite.client.handle import JobHandle

    counts = _count("--workers", workers), _count("--ps", ps)
    scaling.check(*counts)
    handle = JobHandle.find(job)
    actions = handle.scale(workers=counts[0], ps=counts[1])
    if wait:
        waiting.until(handle, f"Scaling {handle.id}", waiting.has_nodes(*counts))
    answer = {"workers": counts[0], "ps": counts[1]}
    _tell(handle, answer, actions, as_json, f"{handle.id} has that many already.")


@click.command(short_help="Move slots to another parameter server.")
@job_argument
@click.option("--slots", metavar="LIST", help="Numbers and ranges from 0 to 4095, as in 0-99,200.")
@click.option("--from", "source", metavar="PS", help="All slots of this parameter server, instead of --slots.")
@click.option("--to", metavar="PS", help="Where they are to be, as in ps-1.")
@click.option("--cancel", is_flag=True, help="Cancel all moves under way and to come instead, and what they were for.")
@_ending
def move(
    job: str, slots: str | None, source: str | None, to: str | None, cancel: bool, wait: bool, as_json: bool
) -> None:
    """Move slots, with the parameters in them, to another parameter server of JOB while it trains. JOB is an id, the
    start of one, or "last" (default).

    --cancel stops what is not finished: slots stay where they are, and a parameter server that was to leave stays
    while it has any.

    Exit codes: 0 done; 1 the job has ended, or refuses; 2 slots or parameter servers that can't be.
    """
    from dlrover_lite.cli import waiting
    from dlrover_lite.client.handle import JobHandle

    _check_move(slots, source, to, cancel)
    handle = JobHandle.find(job)
    answer = {"slots": slots, "from": source, "to": to, "cancel": cancel}
    if cancel:
        actions = handle.cancel_moves()
        if wait:
            waiting.until(handle, f"Cancelling moves of {handle.id}", waiting.is_at_rest)
        _tell(handle, answer, actions, as_json, f"{handle.id} has no move under way.")
        return
    from dlrover_lite.client import scaling

    members = scaling.slot_set(slots) if slots is not None else scaling.slots_of(handle.slot_map(), source or "")
    actions = handle.move(members.nonzero()[0].tolist(), to or "")
    if wait:
        waiting.until(handle, f"Moving slots of {handle.id}", waiting.is_at_rest)
        waiting.check_moved(handle, members, to or "")
    _tell(handle, answer, actions, as_json, f"{to} has them already.")


@click.command(short_help="End a node in good order, without loss.")
@click.argument("node", metavar="NODE", default="")
@job_argument
@click.option("--replace", is_flag=True, help="Start another one first, which takes over.")
@_ending
def drain(node: str, job: str, replace: bool, wait: bool, as_json: bool) -> None:
    """End NODE of JOB in good order while training goes on. JOB is an id, the start of one, or "last" (default).

    A parameter server (ps-1) leaves when its slots have moved to the others; a worker (worker-2) when it has finished
    its minibatch. There is one node less from then on, unless it is replaced.

    Exit codes: 0 done; 1 the job has ended, or refuses; 2 a node that can't be drained.
    """
    from dlrover_lite.cli import waiting
    from dlrover_lite.client.handle import JobHandle

    _check_named(node, "drain ps-1")
    handle = JobHandle.find(job)
    actions = handle.drain(node, replace=replace)
    if wait:
        waiting.until(handle, f"Draining {node} of {handle.id}", waiting.has_left(node))
    _tell(handle, {"node": node, "replace": replace}, actions, as_json, f"{node} is about to leave already.")


@click.command(short_help="End a node at once; another takes its place.")
@click.argument("node", metavar="NODE", default="")
@job_argument
@_ending
def kill(node: str, job: str, wait: bool, as_json: bool) -> None:
    """End NODE of JOB at once, as when it hangs or is to be rid of. JOB is an id, the start of one, or "last" (default).

    Another one takes its place. No sample is lost by it, or counts twice: minibatches that a worker hasn't finished are
    done again by others, and what a parameter server (ps-1) holds is found in memory by the one that follows it.

    Exit codes: 0 done; 1 the job has ended, or refuses; 2 a node that can't be killed.
    """
    from dlrover_lite.cli import waiting
    from dlrover_lite.client.handle import JobHandle

    _check_named(node, "kill worker-1")
    handle = JobHandle.find(job)
    actions = handle.kill(node)
    if wait:
        waiting.until(handle, f"Killing {node} of {handle.id}", waiting.has_left(node))
    _tell(handle, {"node": node}, actions, as_json, f"{node} is being killed already.")


@click.command(short_help="Give a running node more or less.")
@click.argument("node", metavar="NODE", default="")
@job_argument
@click.option("--cores", metavar="X", help="Let it use X cores, as in 1.5.")
@click.option("--memory", metavar="SIZE", help="Let it use so much memory, as in 2GiB.")
@_ending
def resize(node: str, job: str, cores: str | None, memory: str | None, wait: bool, as_json: bool) -> None:
    """Change the limits of NODE (ps-0, worker-1) of JOB while it runs. JOB is an id, the start of one, or "last"
    (default).

    More is given at once, as far as there is memory beside the other nodes. Less memory is refused where more than 90%
    of it is in use; a parameter server is lowered when it has tidied up what moves of slots have left behind. A worker
    computes with one thread per whole core from its next lease on. A node that takes its place later is as large as
    the plan says.

    Exit codes: 0 done; 1 the job has ended, or refuses; 2 a node or limits that can't be.
    """
    from dlrover_lite.cli import waiting
    from dlrover_lite.client import scaling
    from dlrover_lite.client.handle import JobHandle

    _check_named(node, "resize ps-1 --memory 2GiB")
    limits = scaling.limits(_cores(cores), memory)
    handle = JobHandle.find(job)
    actions = handle.resize(node, cores=limits[0], memory=limits[1])
    if wait:
        waiting.until(handle, f"Resizing {node} of {handle.id}", waiting.has_limits(node, *limits))
    answer = {"node": node, "cores": limits[0], "memory": limits[1]}
    _tell(handle, answer, actions, as_json, f"{node} has that already.")


def _check_named(node: str, example: str) -> None:
    if not node:
        raise UsageError(f"Which node? Write its id: dlrover-lite {example}", hint="dlrover-lite status lists them.")


def _cores(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"--cores {text}: write a number of cores, as in --cores 1.5") from None


def _check_move(slots: str | None, source: str | None, to: str | None, cancel: bool) -> None:
    """Check the options of a move. Raises UsageError for options that don't go together."""
    if cancel:
        if slots is not None or source is not None or to is not None:
            raise UsageError("--cancel is for all moves: write it without --slots, --from and --to")
        return
    if (slots is None) == (source is None):
        what = "Which slots?" if slots is None else "--slots and --from don't go together:"
        raise UsageError(f"{what} Write either --slots 0-99,200 or --from PS")
    if not to:
        raise UsageError("Where to? Write --to PS, as in --to ps-1")
    if source == to:
        raise UsageError(f"--from {source} --to {to}: these are the same parameter server")
    if slots is not None:
        from dlrover_lite.core.slot_sets import parse

        parse(slots)


def _tell(handle: JobHandle, answer: dict[str, Any], actions: list[str], as_json: bool, nothing: str) -> None:
    if as_json:
        emit_json({"job": handle.id, **answer, "actions": actions})
        return
    for line in actions or [nothing]:
        click.echo(cleaned(line))


def _count(option: str, text: str | None) -> int | None:
    """Read here, not by click: its message is four lines long."""
    if text is None:
        return None
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= 18):
        raise UsageError(f"{option} {text}: write a whole number of nodes to have, as in {option} 3")
    return int(text)
