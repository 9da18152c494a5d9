"""A job's throughput over all its time, with the decisions that changed something: what each did to it, and what was foreseen."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import median_low
from typing import NamedTuple

from dlrover_lite.core.words import compact
from dlrover_lite.protocol.news import Chosen
from dlrover_lite.tui import formats
from dlrover_lite.tui.model import JobDetail, Rate
from dlrover_lite.tui.pages.canvas import LABEL
from dlrover_lite.tui.pages.charts import Band, Mark, Measured, curve
from dlrover_lite.tui.pages.last_change import changes, mark_of, tone_of_miss
from dlrover_lite.tui.text import Line, Span, Tone, length, line, padded, wrapped

__all__ = ["Effect", "acting", "chart", "effect", "is_drawn", "nearest", "step"]

_NOT_HERE = "What was measured of it isn't known here."
_MEANINGS = {"●": "start", "▲": "more", "▼": "less", "◆": "node treated", "?": "a try", "‖": "gives way"}


class Effect(NamedTuple):
    """What a decision did to the throughput, in samples/s. None: it isn't known, or not yet."""

    before: Measured | None
    """Mean from the decision before it on; where that was just before, the last that was measured until then."""
    after: Measured | None
    """Throughput until the next decision: as it was judged by, or, before that is known, the mean."""
    foreseen: Band | None


def is_drawn(detail: JobDetail) -> bool:
    """Say whether there is anything to be drawn."""
    return bool(detail.rates)


def chart(detail: JobDetail, width: int, height: int, chosen: int | None = None) -> list[Line]:
    """Draw samples/s over all of the job's time. The decisions that changed something are lines in it. Of one of them, by its number the
    ``chosen`` one or else the newest that had an effect, it is drawn and told what came before and after, and what was foreseen."""
    measured = _measured(detail.rates)
    decisions = acting(detail)
    if not measured:
        waits = "Nothing is measured yet: the first interval takes about ten seconds of training."
        over = "Nothing was measured of it, or that is no longer kept."
        waits = waits if detail.heard else "asking…"
        why = _NOT_HERE if detail.missing and detail.row.rates else over if detail.row.over else waits
        return [line(("samples/s", "title")), *wrapped(why, width, "dim")]
    low, high = _span(detail, measured, decisions)
    at = _shown(decisions, chosen)
    shown = None if at is None else effect(decisions, at, measured, high)
    marks = [Mark(one.at, *mark_of(one), chosen=number == at) for number, one in enumerate(decisions)]
    head = [Span("samples/s", "title")]
    if at is not None and shown is not None:
        head += [Span("  "), *_told(decisions[at], shown, width - 11, chosen=chosen is not None)]
    drawn = curve(
        measured,
        width,
        height - 1,
        marks=marks,
        span=(low, high),
        ends=formats.span(low, high),
        means=[one for one in (shown.before, shown.after) if one is not None] if shown else (),
        band=shown.foreseen if shown else None,
        legend=_legend(decisions),
    )
    return [padded(head, width), *drawn]


def _span(detail: JobDetail, measured: Sequence[Measured], decisions: Sequence[Chosen]) -> tuple[float, float]:
    """Return the times at the ends of the chart."""
    low = min(measured[0].start, detail.row.started_at or measured[0].start)
    return low, max(measured[-1].stop, max((one.at for one in decisions), default=0.0), low + 1)


def nearest(detail: JobDetail, width: int, column: int) -> int | None:
    """Return the number of the decision whose line is nearest to a column of the chart; None: there is none, or no curve."""
    measured, decisions = _measured(detail.rates), acting(detail)
    plot = width - LABEL - 1
    if not measured or not decisions or plot < 1:
        return None
    low, high = _span(detail, measured, decisions)
    at = low + (column - LABEL - 0.5) / plot * (high - low)
    return min(decisions, key=lambda one: abs(one.at - at)).number


def acting(detail: JobDetail) -> list[Chosen]:
    """Return the decisions that changed something, the oldest first."""
    return sorted(changes(detail), key=lambda one: (one.at, one.number))


def step(detail: JobDetail, chosen: int | None, steps: int) -> int | None:
    """Return the number of the decision that is so many after the ``chosen`` one; the first and the last stay. Where none is chosen, that
    of the one that the chart tells of. None: there is none."""
    decisions = acting(detail)
    numbers = [one.number for one in decisions]
    if chosen not in numbers:
        at = _shown(decisions, None)
        return None if at is None else numbers[at]
    return numbers[max(0, min(len(numbers) - 1, numbers.index(chosen) + steps))]


def _shown(decisions: Sequence[Chosen], chosen: int | None) -> int | None:
    """Return the position of the decision that is told of: the chosen one; else the newest whose effect was measured, or the newest."""
    for at, one in enumerate(decisions):
        if one.number == chosen:
            return at
    judged = [at for at, one in enumerate(decisions) if one.measured is not None]
    return judged[-1] if judged else len(decisions) - 1 if decisions else None


def effect(decisions: Sequence[Chosen], at: int, measured: Sequence[Measured], until: float) -> Effect:
    """Return what the decision at a position did, by the intervals between it and its neighbours."""
    one = decisions[at]
    since = decisions[at - 1].at if at else measured[0].start if measured else one.at
    stop = decisions[at + 1].at if at + 1 < len(decisions) else until
    before, after = _mean(measured, since, one.at), _mean(measured, one.at, stop)
    if before is None:  # it came too soon after the one before
        before = next((last for last in reversed(measured) if last.stop <= one.at), None)
    if one.measured is not None:
        after = Measured(one.at, stop, one.measured)
    foreseen = None
    if one.predicted is not None:
        lower, upper = (one.predicted if end is None else end for end in (one.lower, one.upper))
        foreseen = Band(one.at, stop, one.predicted, lower, upper)
    return Effect(before, after, foreseen)


def _mean(measured: Sequence[Measured], start: float, stop: float) -> Measured | None:
    """Return the mean of the intervals that lie between two times, each by its length; None: there is none."""
    there = [one for one in measured if start <= one.start and one.stop <= stop and one.stop > one.start]
    seconds = sum(one.stop - one.start for one in there)
    if not seconds:
        return None
    return Measured(start, stop, sum(one.value * (one.stop - one.start) for one in there) / seconds)


def _told(one: Chosen, its: Effect, width: int, *, chosen: bool) -> Line:
    """Write what a decision did: ``▲ 3 13:56: 30.1 k → 52.3 k/s, foreseen 54.6 k (41.1 k to 72.6 k)``, as much as fits."""
    symbol, tone = mark_of(one)
    name: Tone = "title" if chosen else "plain"
    parts = [Span(f"{symbol} ", tone), Span(f"{one.number} {formats.clock(one.at)}: ", name)]
    after = "?" if its.after is None else compact(its.after.value)
    said = f"{compact(its.before.value)} → {after}/s" if its.before is not None else f"{after}/s"
    parts.append(Span(said, "accent"))
    if one.error is not None:
        parts.append(Span(f" ({one.error:+.0%})", tone_of_miss(one.error)))
    more: list[str] = []
    if its.foreseen is not None:
        band = f" ({compact(its.foreseen.lower)} to {compact(its.foreseen.upper)})"
        more = [f", foreseen {compact(its.foreseen.value)}{band}", f", foreseen {compact(its.foreseen.value)}"]
    text = next((text for text in more if length(parts) + len(text) <= width), "")
    return (*parts, Span(text, "dim"))


def _measured(rates: Sequence[Rate]) -> list[Measured]:
    """Place each interval from its beginning to its end. One whose length isn't known lasts from the end of the one before, but no longer
    than most do."""
    usual = median_low([after.at - before.at for before, after in pairwise(rates)] or [0.0])
    found: list[Measured] = []
    for rate in rates:
        start = rate.at - (usual if rate.seconds is None else rate.seconds)
        if found:
            start = max(start, found[-1].stop)
        found.append(Measured(min(start, rate.at), rate.at, rate.value))
    return found


def _legend(decisions: Sequence[Chosen]) -> Line:
    there = {mark_of(one) for one in decisions}
    parts: list[Span] = []
    for symbol, meaning in _MEANINGS.items():
        tone = next((tone for known, tone in there if known == symbol), None)
        if tone is not None:
            parts += [Span(f"{symbol} ", tone), Span(f"{meaning} ", "dim")]
    return tuple(parts)
