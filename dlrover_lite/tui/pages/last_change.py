"""What was changed about a job, and why, in a line: ``▲ +2 workers 06:41: workers were the limit; 41 k → 58 k/s predicted``"""

from __future__ import annotations

from collections.abc import Iterable

from dlrover_lite.brain.store.decision_news import CHANGING
from dlrover_lite.core.words import compact
from dlrover_lite.protocol.news import Chosen
from dlrover_lite.tui import formats
from dlrover_lite.tui.model import JobDetail, JobRow
from dlrover_lite.tui.text import Line, Span, Tone, cut, length, line, padded, wrapped

__all__ = [
    "cause_of",
    "change_of_job",
    "change_of_jobs",
    "changes",
    "difference_of",
    "in_list",
    "is_made",
    "mark_of",
    "told_in_full",
    "tone_of_miss",
]

_NOT_MADE = ("rejected", "superseded")
_AT_ONCE_SECONDS = 15.0
"""Longest time between two changes of which one follows from the other: a job gives way, another one has its nodes."""
_HOLLOW = {"▲": "△", "▼": "▽", "◆": "◇", "●": "○", "‖": "¦", "?": "¿"}
_SAME: dict[str, tuple[str, Tone]] = {
    "stay": ("=", "dim"),
    "queue": ("…", "warn"),
    "refuse": ("✗", "bad"),
    "tell": ("!", "warn"),
}
"""Symbol and tone of actions that change nothing."""
_LEAST_CAUSE = 24
"""Fewest characters of a cause for which what is changed is told in full."""


# --- decisions as symbols and words -----------------------------------------------------------------------------------


def mark_of(decision: Chosen, *, is_made: bool = True) -> tuple[str, Tone]:
    """Return what stands for a decision: ▲ more, ▼ less, ◆ a node is treated, ? a try, ‖ it gives way, ● it starts, = it stays as it is.
    Those that aren't carried out, as a person is to be asked first or said no, are hollow."""
    symbol, tone = _made(decision)
    return (symbol, tone) if is_made or symbol not in _HOLLOW else (_HOLLOW[symbol], "warn")


def _made(decision: Chosen) -> tuple[str, Tone]:
    if decision.action in _SAME:
        return _SAME[decision.action]
    if decision.action == "heal":
        return "◆", "warn"
    if decision.action == "explore":
        return "?", "accent"
    if decision.action == "preempt":
        return "‖", "bad"
    if decision.action == "start" or not decision.before:
        return "●", "accent"
    return ("▲", "accent") if decision.grows else ("▼", "accent")


def tone_of_miss(error: float) -> Tone:
    """Return the tone of a prediction that missed by this share."""
    off = abs(error)
    return "bad" if off > 0.25 else "warn" if off > 0.15 else "good"


def difference_of(one: Chosen) -> str:
    """Say what a decision changes; of recordings of earlier versions what was chosen."""
    return one.difference or f"{one.action} {one.choice}".rstrip()


def cause_of(one: Chosen) -> str:
    """Say what a decision follows from, in as few words as are known."""
    return one.cause or one.reason


def is_made(one: Chosen, detail: JobDetail) -> bool:
    """Say whether a decision was, or is being, carried out: it may wait for a person's word, or not be wanted."""
    now = detail.autoscaling
    return one.done not in _NOT_MADE and not (now is not None and now.suggests and now.decision == one.number)


def changes(detail: JobDetail) -> list[Chosen]:
    """Return the decisions that changed something, the oldest first."""
    return [one for one in detail.decisions if one.action in CHANGING and is_made(one, detail)]


def told_in_full(one: Chosen, width: int, *, is_made: bool, when: str = "", waits: str = "") -> list[Line]:
    """Write what was decided, ``when``, what it ``waits`` for, and below that what it follows from and why."""
    symbol, tone = mark_of(one, is_made=is_made)
    first, *more = wrapped(f"{difference_of(one)} {when}".rstrip(), width - 2, "title")
    found = [line((f"{symbol} ", tone), *first), *(line("  ", *rest) for rest in more)]
    if waits and length(found[-1]) + 2 + len(waits) <= width:
        found[-1] = (*found[-1], Span(f"  {waits}", "warn"))
    elif waits:
        found.append(line((f"  {waits}", "warn")))
    cause = wrapped(one.cause, width) if one.cause and one.cause not in one.reason else []
    return [*found, *cause, *wrapped(one.reason, width)]


# --- the line ---------------------------------------------------------------------------------------------------------


def change_of_job(detail: JobDetail, width: int) -> Line:
    """Write what waits for a person's word, or what changed last, and why; or that nothing has."""
    now = detail.autoscaling
    if now is not None and now.suggests:
        one = next((one for one in detail.decisions if one.number == now.decision), None)
        waits = line(("suggested, waits for accept or reject ", "warn"))
        return padded(
            (*waits, *(Span(now.what),)) if one is None else (*waits, *_change(one, width - length(waits), made=False)),
            width,
        )
    made = changes(detail)
    last = made[-1] if made else detail.row.change
    if last is not None:
        return padded(_change(last, width), width)
    return padded(_nothing(detail.row), width)


def change_of_jobs(rows: Iterable[JobRow], width: int) -> Line:
    """Write what changed last about any job that runs (of any, where none does), and why. Where one gives way to another that begins, why
    it does tells both."""
    known = [(row, row.change) for row in rows if row.change is not None]
    if not known:
        return ()
    running = [(row, one) for row, one in known if not row.over] or known
    newest = max(one.at for _, one in running)
    row, change = max(
        ((row, one) for row, one in running if newest - one.at <= _AT_ONCE_SECONDS),
        key=lambda found: (found[1].action == "preempt", found[1].at),
    )
    head = line((row.id, "title"), "  ")
    rate = row.rate if row.state == "training" and row.is_changed else None
    return padded((*head, *_change(change, width - length(head), made=row.is_changed, rate=rate)), width)


def in_list(row: JobRow) -> Line:
    """Write the last change of a job among others: when, what, why."""
    if (one := row.change) is None:
        if row.decision is None:
            return formats.DASH
        return line((f"{formats.clock(row.decision.at)} {row.decision.action}: ", "accent"), row.decision.reason)
    symbol, tone = mark_of(one, is_made=row.is_changed)
    waits = "" if row.is_changed else " (not carried out yet)"
    return line(
        (f"{symbol} ", tone), (f"{formats.clock(one.at)} {difference_of(one)}{waits}: ", "accent"), cause_of(one)
    )


def _nothing(row: JobRow) -> Line:
    if row.message and not row.over:
        return line(("… ", "warn"), row.message.partition("\n")[0])
    return line(("nothing has been changed", "dim"), ("" if row.over else " so far", "dim"))


def _change(one: Chosen, width: int, *, made: bool = True, rate: float | None = None) -> Line:
    """Write a change. Where there isn't room for all, what is changed is told shorter, and then the end is missing."""
    symbol, tone = mark_of(one, is_made=made)
    cause = cause_of(one)
    clock = formats.clock(one.at)
    whole = difference_of(one)
    short = whole.partition(",")[0]
    short += "" if short == whole else " …"
    for what, word in ((whole, " predicted"), (whole, ""), (short, " predicted"), (short, "")):
        head = line((f"{symbol} ", tone), (what, "title"), (f" {clock}", "dim"), ": ")
        brought = _brought(one, rate, word)
        found = (*head, Span(cause), *brought)
        if length(found) <= width:
            return found
    room = width - length(head) - length(brought)
    if brought and room >= _LEAST_CAUSE:  # what it brought says more than the end of a long cause
        return (*head, Span(cut(cause, room)), *brought)
    return padded((*head, Span(cause), *brought), width)


def _brought(one: Chosen, rate: float | None, word: str) -> Line:
    """Write ``; 41 k → 58 k/s predicted, 61 k measured``. ``word``: what that of a prediction is called, where there is room for it;
    ``rate``: the samples/s now, where what was measured isn't known here."""
    parts: list[Span] = []
    if one.predicted is not None:
        before = f"{compact(one.rate_before)} → " if one.rate_before else ""
        parts.append(Span(f"; {before}{compact(one.predicted)}/s{word if before else ' predicted'}", "dim"))
    if one.measured is not None:
        tone: Tone = "plain" if one.error is None else tone_of_miss(one.error)
        parts += [Span(", ", "dim") if parts else Span("; ", "dim"), Span(f"{compact(one.measured)} measured", tone)]
    elif rate is not None and parts:
        parts.append(Span(f", {compact(rate)} now", "dim"))
    return tuple(parts)
