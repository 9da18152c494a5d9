"""What a decision rests on in words and rows of words, as commands and screens write them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dlrover_lite.brain.explain.explanation_data import Explained, Like, MemoryCurve, ModelShown, Peer
from dlrover_lite.core.units import format_bytes
from dlrover_lite.core.words import at_time, count, plural

__all__ = ["Rows", "costs", "likes", "limits", "measured", "memory", "model", "peers", "peers_title", "text_of"]

_DASH = "-"


class Rows(NamedTuple):
    """A small table: all columns but the first and those in ``left`` are numbers."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: tuple[int, ...] = (0,)

    def lines(self) -> list[str]:
        table = [self.head, *self.rows]
        widths = [max(len(row[at]) for row in table) for at in range(len(self.head))]
        return [
            "  ".join(
                text.ljust(width) if at in self.left else text.rjust(width)
                for at, (text, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in table
        ]


# --- the model ------------------------------------------------------------------------------------------------------


def model(one: ModelShown) -> list[str]:
    """Say how good the model is, in sentences."""
    if not one.intervals:
        return [one.identifiable]
    how = "half of them are" if one.intervals > 1 else "it is"
    off = f"Fitted to {plural(one.intervals, 'interval')}; {how} within {one.error:.1%} of the model"
    if one.points:
        inside = sum(point.inside for point in one.points)
        off += f", {inside} of {len(one.points)} within its 80% band"
    return [f"{off}.", one.identifiable]


def measured(one: ModelShown) -> Rows:
    """List each plan that was measured, and what the model says of it."""
    return Rows(
        ("MEASURED PLAN", "INTERVALS", "SAMPLES/S", "BY THE MODEL", "80% BAND", "OFF"),
        tuple(
            (
                plan.plan,
                str(plan.intervals),
                count(plan.measured),
                count(plan.predicted),
                f"{count(plan.lower)} to {count(plan.upper)}",
                f"{plan.error:+.1%}",
            )
            for plan in one.plans
        ),
    )


def limits(one: ModelShown) -> Rows:
    """List what limits the plan, the nearest first."""
    return Rows(
        ("LIMIT", "SAMPLES/S", "OF"),
        tuple((limit.name, count(limit.samples_per_second), limit.meaning) for limit in one.limits),
        (0, 2),
    )


def costs(one: ModelShown) -> Rows:
    """List the model's coefficients."""
    return Rows(
        ("COST", "", "KNOWN BY", "OF"),
        tuple((each.name, _small(each.seconds), each.known, each.meaning) for each in one.coefficients),
        (0, 2, 3),
    )


def _small(seconds: float) -> str:
    """Write a short time: 4.2 ms, 310 us, 0.8 ns."""
    if seconds >= 1:
        return f"{seconds:.3g} s"
    if seconds >= 1e-3:
        return f"{seconds * 1e3:.3g} ms"
    if 0 < seconds < 1e-8:
        return f"{seconds * 1e9:.3g} ns"
    return f"{seconds * 1e6:.3g} us" if seconds else "0"


# --- memory ---------------------------------------------------------------------------------------------------------


def memory(one: MemoryCurve, *, short: bool = False) -> str:
    """Write a memory curve in words: ``ps-1: 310 MiB now, 480 MiB (±40) at the end, limit 512 MiB``; ``short``: ``ps-1: 310 of 512 MiB,
    480 (±40) at the end``."""
    whole = one.limit if short and one.limit else None
    parts = [f"{format_bytes(one.now)} now"]
    if (most := one.most) is not None:
        half = max(most.upper - most.expected, most.expected - most.lower)
        when = "at the end" if one.to_the_end else "in an hour"
        expected = format_bytes(most.expected) if whole is None else _in_unit_of(whole, most.expected)
        parts.append(f"{expected} (±{_in_unit_of(whole or most.expected, half)}) {when}")
    if whole is not None:
        parts[0] = f"{_in_unit_of(whole, one.now)} of {format_bytes(whole)}"
    elif one.limit:
        parts.append(f"limit {format_bytes(one.limit)}")
    if one.full_at is not None:
        parts.append(f"full at {at_time(one.full_at).partition(' ')[2]}")
    return f"{one.node}: {', '.join(parts)}"


def _in_unit_of(size: int, other: int) -> str:
    """Write ``other`` in the unit that ``size`` is written in."""
    scale = size / float(format_bytes(size).partition(" ")[0]) if size else 1.0
    value = other / scale
    return f"{value:.0f}" if value >= 9.5 or value < 0.05 else f"{value:.2g}"


# --- nodes and jobs -------------------------------------------------------------------------------------------------


def peers_title(shown: Explained) -> str:
    return {"slow worker": "Workers beside each other", "hot ps": "Parameter servers beside each other"}.get(
        shown.cause, "Memory of the nodes"
    )


def peers(shown: Explained) -> Rows:
    """List nodes beside each other, by what they are compared for; ``*`` is the one that is treated."""
    if shown.cause == "slow worker":
        head: tuple[str, ...] = ("NODE", "CORES", "MINIBATCHES/S", "OF WHAT PEERS LET EXPECT", "HELD BACK")
        return Rows(
            head, tuple((*_name(one), _number(one.rate), _share(one.expected), _share(one.held)) for one in shown.peers)
        )
    if shown.cause == "hot ps":
        head = ("NODE", "CORES", "BUSY", "WAITING", "FOR A MINIBATCH", "HELD BACK")
        return Rows(head, tuple(_hot(one) for one in shown.peers))
    head = ("NODE", "CORES", "USED", "LIMIT", "FULL")
    return Rows(head, tuple(_full(one) for one in shown.peers))


def _name(one: Peer) -> tuple[str, str]:
    return f"{'*' if one.treated else ' '} {one.node}", f"{one.cores:g}"


def _hot(one: Peer) -> tuple[str, ...]:
    takes = _DASH if one.minibatch_seconds is None else _small(one.minibatch_seconds)
    return (*_name(one), _share(one.busy), _number(one.waiting), takes, _share(one.held))


def _full(one: Peer) -> tuple[str, ...]:
    used = _DASH if one.used is None else format_bytes(one.used)
    limit = _DASH if one.limit is None else format_bytes(one.limit)
    return (*_name(one), used, limit, _share(one.used / one.limit if one.used and one.limit else None))


def _number(value: float | None) -> str:
    return _DASH if value is None else f"{value:.3g}"


def _share(value: float | None) -> str:
    return _DASH if value is None else f"{value:.0%}"


def likes(like: Sequence[Like]) -> Rows:
    """List the past jobs that a first plan was made from."""
    return Rows(
        ("PAST JOB", "DISTANCE", "WEIGHT", "INTERVALS"),
        tuple((one.job, f"{one.distance:.2f}", f"{one.weight:.0%}", str(one.intervals)) for one in like),
    )


# --- all of it ------------------------------------------------------------------------------------------------------


def text_of(shown: Explained) -> list[str]:
    """Write lines of plain text, in sections; empty where nothing is known."""
    found: list[str] = []

    def section(title: str, lines: Sequence[str]) -> None:
        found.extend(["", title, *(f"  {line}".rstrip() for line in lines)])

    if shown.facts:
        width = max(len(fact.name) for fact in shown.facts)
        section("What was known:", [f"{fact.name:<{width}}  {fact.text}" for fact in shown.facts])
    if shown.like:
        section("Past jobs like it (distance 0: the same, 1: different in everything):", likes(shown.like).lines())
    if shown.peers:
        section(f"{peers_title(shown)}:", peers(shown).lines())
    if shown.memory:
        section("Memory, as it was foreseen:", [memory(one) for one in shown.memory])
    if (one := shown.model) is not None:
        section("The model:", [one.formula + ".", *model(one)])
        if one.plans:
            section("The model against what was measured:", measured(one).lines())
        if one.limits:
            section(f"What limits {one.plan}:", limits(one).lines())
        section("Costs:", costs(one).lines())
    if shown.missing:
        found += ["", *shown.missing]
    return found
