"""What other plans would bring a job, in words and cells of a table."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from dlrover_lite.brain.explain.what_if_data import Axis, Beyond, PlanForecast, WhatIf
from dlrover_lite.brain.planning.pareto import Band
from dlrover_lite.brain.planning.plan_grid import MemoryBand
from dlrover_lite.core.units import format_bytes
from dlrover_lite.core.words import count, duration, plural, remaining
from dlrover_lite.protocol.plans import Plan

__all__ = ["LEAST_FIRST", "basis", "cells", "columns", "describe", "head", "notes", "of_plan"]

_COLUMNS = ("", "plan", "samples/s", "to go", "sooner", "core-hours", "GiB-hours", "worker memory", "ps memory")
LEAST_FIRST = ("worker memory", "GiB-hours", "ps memory", "core-hours", "sooner")
"""Columns that give way on a narrow terminal."""
_WIDE = 2.0
"""Factor beyond what was measured from which on it is told in words how far a plan is from that."""
_TIMES = {2: "twice", 3: "three times", 4: "four times"}
_NODES: dict[Axis, str] = {"workers": "worker", "ps": "parameter server"}
_SIZES: dict[Axis, str] = {"worker_cores": "a worker", "ps_cores": "a parameter server"}


def describe(plan: Plan) -> str:
    """Write a plan without its memory: ``8x1+4x0.5``, workers first."""
    return f"{plan.worker.count}x{plan.worker.each.cores:g}+{plan.ps.count}x{plan.ps.each.cores:g}"


def head(found: WhatIf) -> str:
    """Say in a line which job it is about, and how much there is to train."""
    has = f"{found.job} {'runs' if found.runs else 'ran last'} with {describe(found.present.plan)} (workers x cores + ps x cores)"
    if found.samples is None:
        return f"{has}; it isn't known how much there is to train: with --samples N, times and costs are told"
    of = f"{count(found.samples)} samples"
    return f"{has}; times and costs are those of {of if found.whole else f'the {of} that are left'}"


def basis(found: WhatIf) -> str:
    """Say in a line what the forecasts rest on."""
    known = found.measured
    text = (
        f"By the job's own costs, from {plural(known.intervals, 'interval')} of {plural(known.plans, 'plan')}, "
        f"which the model is within {known.error:.1%} of"
    )
    if known.held_out:
        text += f"; each plan predicted from the others alone: within {known.held_out_error:.1%}"
    return f"{text}. Bands hold 80%."


def columns(found: WhatIf) -> tuple[str, ...]:
    """List the columns of ``cells``: what a plan costs is the last, where prices are known."""
    return _COLUMNS if found.present.money is None else (*_COLUMNS, "money")


def cells(found: WhatIf) -> list[tuple[str, ...]]:
    """Write a row for each plan, the present one first."""
    rows = [_cells("=", found.present)]
    rows += [_cells("=" if one.plan == found.present.plan else "", one) for one in found.plans]
    return rows


def _cells(mark: str, one: PlanForecast) -> tuple[str, ...]:
    row = (
        mark,
        describe(one.plan),
        _band(one.samples_per_second, count),
        _band(one.seconds, remaining),
        _saved(one.saves_seconds),
        _band(one.core_hours, _hours),
        _band(one.gib_hours, _hours),
        _memory(one.worker_memory, one.plan.worker.each.memory),
        _memory(one.ps_memory, one.plan.ps.each.memory),
    )
    return row if one.money is None else (*row, _band(one.money, _hours))


def _band(band: Band | None, write: Callable[[float], str]) -> str:
    return "-" if band is None else f"{write(band.expected)} ({write(band.lower)}-{write(band.upper)})"


def _hours(value: float) -> str:
    return f"{value:.3g}" if value < 999.5 else count(value)


def _saved(band: Band | None) -> str:
    if band is None:
        return "-"
    return f"{_signed(band.expected)} ({_signed(band.lower)} to {_signed(band.upper)})"


def _signed(seconds: float) -> str:
    return f"{'-' if seconds < 0 else '+'}{remaining(abs(seconds))}"


def _memory(band: MemoryBand | None, limit: int) -> str:
    if band is None:
        return f"limit {format_bytes(limit)}"
    return f"{format_bytes(band.expected)} ({format_bytes(band.lower)}-{format_bytes(band.upper)}), limit {format_bytes(limit)}"


# --- what limits a plan, and what isn't known of it -----------------------------------------------------------------


def notes(found: WhatIf) -> list[str]:
    """Say of each plan, in a line, what limits it, what wasn't measured, and why the job can't have it."""
    named = {describe(one.plan): one for one in (*found.plans[::-1], found.present)}
    lines = [f"{plan}: {'; '.join(of_plan(one))}." for plan, one in reversed(named.items())]
    if found.runs and found.samples is not None and found.change_seconds > 0:
        lines.append(f"{duration(found.change_seconds)} are counted for a change of the plan.")
    return lines


def of_plan(one: PlanForecast) -> Iterator[str]:
    """Say what limits a plan, what wasn't measured of it, and what is in its way."""
    if one.refused:
        yield f"the job can't have it: {one.refused}"
    if one.limits:
        nearest = one.limits[0]
        text = f"limited by {nearest.name} ({nearest.meaning}: {count(nearest.samples_per_second)} samples/s)"
        if len(one.limits) > 1:
            text += f", then by {one.limits[1].name} ({count(one.limits[1].samples_per_second)})"
        yield text
    yield "it was measured" if one.measured else "it wasn't measured: its throughput is what the model says"
    if one.beyond:
        wide = any(_factor(each) >= _WIDE for each in one.beyond)
        yield f"{', '.join(map(_beyond, one.beyond))}{': the band is wide for that' if wide else ''}"
    if one.idle_ps_cores:
        yield "one thread does a parameter server's work on rows: more than a core of each is idle"
    yield from _too_little("a worker", one.worker_memory)
    yield from _too_little("a parameter server", one.ps_memory)


def _beyond(one: Beyond) -> str:
    """Say how far a plan is from what was measured: ``16 workers are four times the most that was measured (4)``"""
    more = one.asked > one.most
    known = one.most if more else one.least
    if (size := _SIZES.get(one.axis)) is not None:
        what, bound = f"{_cores(one.asked)} for {size}", _cores(known)
    else:
        what, bound = plural(round(one.asked), _NODES[one.axis]), count(known)
    factor = _factor(one)
    if factor < _WIDE:
        far = "more than the most" if more else "less than the least"
    else:
        far = f"{_times(factor)} the most" if more else f"{_part(factor)} of the least"
    return f"{what} is {far} that was measured ({bound})"


def _factor(one: Beyond) -> float:
    return one.asked / one.most if one.asked > one.most else one.least / one.asked


def _times(factor: float) -> str:
    whole = round(factor)
    return _TIMES.get(whole, f"{whole} times") if abs(factor - whole) < 0.05 else f"{factor:.1f} times"


def _part(factor: float) -> str:
    names = {2: "half", 3: "a third", 4: "a quarter", 5: "a fifth"}
    return names.get(round(factor), f"a {round(factor)}th")


def _cores(cores: float) -> str:
    return "1 core" if abs(cores - 1) < 5e-4 else f"{cores:g} cores"


def _too_little(whose: str, memory: MemoryBand | None) -> Iterator[str]:
    if memory is not None and memory.expected > memory.limit:
        needs, limit = format_bytes(memory.expected), format_bytes(memory.limit)
        yield f"{whose} is likely to need {needs}, more than its limit of {limit}: it would have to get more on the way"
