"""``whatif``: what other plans would bring a job, by the model that was fitted to what was measured of it."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from dlrover_lite.cli.options import Number
from dlrover_lite.cli.output import emit_json, fields, note, table, terminal_width
from dlrover_lite.core.errors import DlroverLiteError, JobError, UsageError
from dlrover_lite.core.words import cleaned

if TYPE_CHECKING:
    from dlrover_lite.brain.explain.what_if import Asked
    from dlrover_lite.brain.explain.what_if_data import PlanForecast, WhatIf
    from dlrover_lite.brain.planning.pareto import Band
    from dlrover_lite.brain.planning.plan_grid import Candidate
    from dlrover_lite.brain.store.records import JobEntry

__all__ = ["whatif"]

N = TypeVar("N", int, float)

_MOST_PLANS = 64
"""The most plans of a call: more is no table to be read."""
_MOST_PRICE = 1e9


@click.command(short_help="Foresee what other plans would bring a job.")
@click.argument("job", metavar="[JOB]", default="last")
@click.option("--workers", metavar="LIST", help="Numbers of workers, as in 8 or 2,4,8.")
@click.option("--ps", metavar="LIST", help="Numbers of parameter servers.")
@click.option("--worker-cores", metavar="LIST", help="Cores of each worker, as in 0.5 or 1,2.")
@click.option("--ps-cores", metavar="LIST", help="Cores of each parameter server.")
@click.option(
    "--plan",
    "plans",
    multiple=True,
    metavar="PLAN",
    help="A whole plan, as in 8x1+4x0.5: workers x cores + parameter servers x cores, or 8+4. May be repeated.",
)
@click.option("--worker-memory", metavar="SIZE", help="Memory of each worker, as in 2GiB (default: what it needs).")
@click.option("--ps-memory", metavar="SIZE", help="Memory of each parameter server (default: what it needs).")
@click.option(
    "--samples",
    default="",
    metavar="N|left|all",
    help="Time and cost of so many samples, of what is left (default while it runs), or of the whole job (default after its end).",
)
@click.option("--price-core", type=Number(0, _MOST_PRICE), default=0.0, help="Price of a core for an hour.")
@click.option("--price-gib", type=Number(0, _MOST_PRICE), default=0.0, help="Price of a GiB of memory for an hour.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def whatif(
    job: str,
    workers: str | None,
    ps: str | None,
    worker_cores: str | None,
    ps_cores: str | None,
    plans: tuple[str, ...],
    worker_memory: str | None,
    ps_memory: str | None,
    samples: str,
    price_core: float,
    price_gib: float,
    as_json: bool,
) -> None:
    """Foresee what other plans would bring JOB (an id, the start of one, or "last"), which runs or has ended: throughput, time to
    its end, cost and memory, each with a band that holds 80%, beside the same for the plan that it has, or had; what limits
    each plan, and what wasn't measured of it. By the job's own model, and nothing changes.

    Lists are combined: `--workers 2,4,8 --ps 1,2` are six plans. What isn't given is as in the plan that the job has.

    Exit codes: 0 foreseen; 1 the brain knows no such job, or nothing was measured of it; 2 plans that can't be.
    """
    from dlrover_lite.brain.explain.what_if import foresee, known_job
    from dlrover_lite.brain.explain.what_if_data import Prices
    from dlrover_lite.cli.commands.brain.history import find_entry, open_history
    from dlrover_lite.client.job_history import bring

    lists = (
        _list("--workers", workers, _count),
        _list("--ps", ps, _count),
        _list("--worker-cores", worker_cores, _cores),
        _list("--ps-cores", ps_cores, _cores),
    )
    whole = [_plan(text) for text in plans]
    if not (any(lists) or whole):
        raise UsageError("No plan is asked about", hint="Say one: --workers 8, --ps 4, or --plan 8x1+4x0.5")
    memory = _memory("--worker-memory", worker_memory), _memory("--ps-memory", ps_memory)
    number, of_all = _samples(samples)
    bring(job, note)
    opened = open_history()
    if opened is None:
        raise JobError("There is no history yet.", hint="The brain keeps it: see dlrover-lite brain status")
    with opened:
        entry = find_entry(opened, job)
        peak = _worker_peak(entry)
        known = known_job(opened, entry, at=time.time(), samples=number, whole=of_all, worker_peak=peak)
    asked = _asked(known.present.plan, lists, whole, memory)
    found = foresee(known, asked, Prices(price_core, price_gib))
    if as_json:
        emit_json(_as_object(found))
    else:
        _print(found)


def _worker_peak(entry: JobEntry) -> int:
    """Return the most memory that a worker of a job that runs has used, as its master says; 0 where it doesn't."""
    from dlrover_lite.client.handle import JobHandle
    from dlrover_lite.protocol.outcomes import outcome_of
    from dlrover_lite.protocol.questions import to_builtins

    if entry.ended_at is not None:
        return 0
    try:
        status = JobHandle.find(entry.id).status()
    except DlroverLiteError:
        return 0
    return outcome_of(to_builtins(status)).peak_memory.get("worker", 0)


# --- what is asked --------------------------------------------------------------------------------------------------------------


def _list(option: str, text: str | None, parse: Callable[[str, str], N]) -> list[N]:
    """Parse a list of numbers; empty where there is none. Raises UsageError for what makes no sense."""
    return [] if text is None else [parse(option, part.strip()) for part in text.split(",")]


def _count(option: str, text: str) -> int:
    from dlrover_lite.recipe.schema import MOST_NODES

    if not (text.isascii() and text.isdecimal() and 1 <= int(text[:9]) <= MOST_NODES and len(text) <= len("4096")):
        raise UsageError(
            f"{option}: {text[:20]!r} is no number of nodes",
            hint=f"Write a number from 1 to {MOST_NODES:,}, or a list, as in 2,4,8",
        )
    return int(text)


def _cores(option: str, text: str) -> float:
    from dlrover_lite.core.units import LEAST_CORES, MOST_CORES

    try:
        cores = float(text)
    except ValueError:
        cores = float("nan")
    if not LEAST_CORES <= cores <= MOST_CORES:
        raise UsageError(
            f"{option}: {text[:20]!r} is no number of cores of a node",
            hint=f"Write one from {LEAST_CORES:g} to {MOST_CORES:,.0f}, or a list, as in 0.5,1",
        )
    return cores


def _memory(option: str, text: str | None) -> int | None:
    from dlrover_lite.core.units import LEAST_MEMORY, MOST_MEMORY, format_bytes, parse_memory

    if text is None:
        return None
    try:
        size = parse_memory(text)
    except (ValueError, OverflowError) as error:
        raise UsageError(f"{option}: {error}", hint=f"As in {option} 2GiB") from error
    if not LEAST_MEMORY <= size <= MOST_MEMORY:
        bounds = f"from {format_bytes(LEAST_MEMORY)} to {format_bytes(MOST_MEMORY)}"
        raise UsageError(f"{option} {text}: a node can have {bounds}", hint=f"As in {option} 2GiB")
    return size


def _plan(text: str) -> tuple[int, float | None, int, float | None]:
    """Parse ``8x1+4x0.5`` or ``8+4``: workers, their cores, parameter servers, their cores. None: as the job has them."""
    parts = text.replace(" ", "").split("+")
    if len(parts) != 2:
        raise UsageError(
            f"--plan: {text[:40]!r} is no plan",
            hint="Write workers x cores + parameter servers x cores, as in 8x1+4x0.5",
        )
    (workers, worker_cores), (servers, ps_cores) = (_role(part) for part in parts)
    return workers, worker_cores, servers, ps_cores


def _role(text: str) -> tuple[int, float | None]:
    number, sign, cores = text.partition("x")
    return _count("--plan", number), _cores("--plan", cores) if sign else None


def _samples(text: str) -> tuple[float | None, bool | None]:
    """Return a number of samples, and whether they are the whole job's; None: as the job is."""
    if text in ("", "left", "all"):
        return None, None if not text else text == "all"
    plain = text.replace(",", "").replace("_", "")
    if not (plain.isascii() and plain.isdecimal() and len(plain) <= 15 and int(plain)):
        raise UsageError(
            f"--samples: {text[:20]!r} is no number of samples",
            hint="Write a number, as in --samples 1000000, or left, or all",
        )
    return float(plain), None


def _asked(
    present: Candidate,
    lists: tuple[Sequence[int], Sequence[int], Sequence[float], Sequence[float]],
    whole: Sequence[tuple[int, float | None, int, float | None]],
    memory: tuple[int | None, int | None],
) -> list[Asked]:
    """List the plans that are asked about: all combinations of the lists, then whole plans, each once. Raises UsageError for too many."""
    from dlrover_lite.brain.explain.what_if import Asked
    from dlrover_lite.brain.planning.plan_grid import Candidate

    workers, servers, worker_cores, ps_cores = lists
    now = present.workers, present.servers, present.worker_cores, present.ps_cores
    axes = [list(given) or [own] for given, own in zip((workers, servers, worker_cores, ps_cores), now, strict=True)]
    found: dict[Candidate, None] = {}
    if any(lists):
        number = len(axes[0]) * len(axes[1]) * len(axes[2]) * len(axes[3])
        if number > _MOST_PLANS:
            raise UsageError(
                f"These lists make {number:,} plans", hint=f"Ask about {_MOST_PLANS} at most: shorten them."
            )
        for w, p, of_worker, of_ps in itertools.product(*axes):
            found[Candidate(int(w), int(p), of_worker, of_ps)] = None
    for count, cores, ps_count, cores_of_ps in whole:
        of_worker = present.worker_cores if cores is None else cores
        of_ps = present.ps_cores if cores_of_ps is None else cores_of_ps
        found[Candidate(count, ps_count, of_worker, of_ps)] = None
    if len(found) > _MOST_PLANS:
        raise UsageError(f"These are {len(found):,} plans", hint=f"Ask about {_MOST_PLANS} at most.")
    return [Asked(plan, *memory) for plan in found]


# --- what is printed ------------------------------------------------------------------------------------------------------------


def _print(found: WhatIf) -> None:
    from dlrover_lite.brain.explain.what_if_text import LEAST_FIRST, basis, cells, columns, head, notes

    click.echo(cleaned(f"{head(found)}."))
    click.echo(f"{basis(found)}\n")
    names, rows = columns(found), cells(found)
    for name in LEAST_FIRST:  # what is shown isn't cut: half a band says nothing
        if _fits(names, rows):
            break
        names, rows = _without(names, rows, name)
    table(names, rows, key=1)
    click.echo("\n" + "\n".join(cleaned(line) for line in notes(found)))


def _fits(names: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """Say whether there is room for a table on this terminal; there always is in a pipe."""
    width = terminal_width()
    widths = [max(len(row[at]) for row in (names, *rows)) for at in range(len(names))]
    return width is None or sum(widths) + 2 * (len(names) - 1) <= width


def _without(
    names: tuple[str, ...], rows: list[tuple[str, ...]], name: str
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    at = names.index(name)
    return (*names[:at], *names[at + 1 :]), [(*row[:at], *row[at + 1 :]) for row in rows]


def _as_object(found: WhatIf) -> dict[str, Any]:
    """Return the object of ``--json``; its keys are documented and stay."""
    return {
        **fields(found, "job", "runs", "samples", "whole", "change_seconds", "measured"),
        "present": _plan_object(found.present),
        "plans": [_plan_object(one) for one in found.plans],
    }


def _plan_object(one: PlanForecast) -> dict[str, Any]:
    from dlrover_lite.brain.explain.what_if_text import of_plan

    return {
        **fields(one, "plan", "cores", "memory", "measured"),
        **{name: _band(getattr(one, name)) for name in ("samples_per_second", "seconds", "saves_seconds")},
        **{name: _band(getattr(one, name)) for name in ("core_hours", "gib_hours", "money")},
        **fields(one, "worker_memory", "ps_memory", "limits", "beyond", "refused"),
        "notes": list(of_plan(one)),
    }


def _band(band: Band | None) -> dict[str, float] | None:
    return None if band is None else band._asdict()
