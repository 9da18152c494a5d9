"""``dlrover-lite slots``: how busy parameter servers and their slots are, and which slots are the busiest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from dlrover_lite.cli.options import job_argument
from dlrover_lite.cli.output import emit_json, table
from dlrover_lite.core.errors import UsageError
from dlrover_lite.core.words import count, duration

if TYPE_CHECKING:
    from dlrover_lite.protocol.questions import HotSlot, MoveStatus, PsSlots, SlotsReport

__all__ = ["print_moves", "slots"]

_MOST = 4096


@click.command(short_help="Show which slots keep parameter servers busy.")
@job_argument
@click.option("--hottest", metavar="N", default="10", help="Show the N busiest slots (default: 10).")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def slots(job: str, hottest: str, as_json: bool) -> None:
    """Show what the parameter servers of JOB hold and how busy they are, and the slots that keep them the busiest. JOB
    is an id, the start of one, or "last" (default).

    Of a parameter server, requests are pulls and pushes; of a slot, those with a row in it. Rows are those looked up
    and updated. Busy is the share of one core that the work on them takes. All are of the last seconds. A slot that is
    too busy can be moved: dlrover-lite move --slots 17 --to ps-1.

    Exit codes: 0 done; 1 the job has ended, or has no slots yet.
    """
    from dlrover_lite.client.handle import JobHandle
    from dlrover_lite.protocol.questions import to_builtins

    handle = JobHandle.find(job)
    report = handle.slots(_number(hottest))
    if as_json:
        emit_json({"job": handle.id, **to_builtins(report)})
        return
    _print(handle.id, report)


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 4 and int(text) <= _MOST):
        raise UsageError(f"--hottest {text}: write a number of slots up to {_MOST:,}, as in --hottest 20")
    return int(text)


def _print(job_id: str, report: SlotsReport) -> None:
    total = sum(server.slots for server in report.servers)
    click.echo(f"{job_id}: {count(total)} slots, map {report.slot_map_version}; {_measured(report.servers)}")
    click.echo()
    _print_servers(report.servers)
    if report.hottest:
        click.echo()
        _print_hottest(report.hottest)
    print_moves(report.moves)


def _measured(servers: Sequence[PsSlots]) -> str:
    """Say how old the oldest of what is shown is: ``measured 1.5 s ago``."""
    ages = [server.measured_seconds_ago for server in servers if server.slots]
    known = [age for age in ages if age is not None]
    if not known:
        return "nothing is measured yet"
    missing = "" if len(known) == len(ages) else ", not everywhere yet"
    return f"measured {duration(max(known))} ago{missing}"


def _print_servers(servers: Sequence[PsSlots]) -> None:
    rows = [(server.node, count(server.slots), *_load(server)) for server in servers]
    table(("ps", "slots", *_LOAD), rows, drop=("requests/s", "memory"))


def _print_hottest(hottest: Sequence[HotSlot]) -> None:
    rows = [(str(slot.slot), slot.node, *_load(slot)) for slot in hottest]
    table(("slot", "ps", *_LOAD), rows, drop=("requests/s", "memory"))


_LOAD = ("busy", "requests/s", "rows/s", "memory")


def _load(one: PsSlots | HotSlot) -> tuple[str | None, ...]:
    """Return what is measured of a parameter server or a slot, in the columns ``_LOAD``."""
    return _share(one.busy), _rate(one.requests_per_second), _rate(one.rows_per_second), _bytes(one.bytes)


def print_moves(moves: Sequence[MoveStatus]) -> None:
    """Print moves after an empty line; nothing where there are none."""
    from dlrover_lite.core.units import format_bytes

    if not moves:
        return
    click.echo()
    table(
        ("move", "from", "to", "slots", "state", "moved", "rate", "left", "rows"),
        [
            (
                str(m.id),
                m.source,
                m.target,
                f"{count(m.moved_slots)}/{count(m.slots)}" if m.moved_slots else count(m.slots),
                m.state,
                f"{format_bytes(m.moved_bytes)} of {format_bytes(m.bytes)}" if m.moved_slots else None,
                f"{format_bytes(m.bytes_per_second)}/s" if m.bytes_per_second else None,
                duration(m.seconds_left) if m.seconds_left is not None else None,
                count(m.rows),
            )
            for m in moves
        ],
        drop=("rows", "rate"),
    )


def _share(busy: float | None) -> str | None:
    """Write a share as a percentage: 37.5%, 0.012%."""
    if busy is None:
        return None
    return f"{busy:.1%}" if busy >= 0.01 else f"{busy:.3%}"


def _rate(per_second: float | None) -> str | None:
    if per_second is None:
        return None
    return f"{per_second:,.0f}" if per_second >= 10 else f"{per_second:.1f}"


def _bytes(size: int | None) -> str | None:
    from dlrover_lite.core.units import format_bytes

    return None if size is None else format_bytes(size)
