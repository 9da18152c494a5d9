"""Notices: what the application tells in a line at the bottom, until its time has passed or it is dismissed; and all of the past ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from dlrover_lite.core.words import count, plural
from dlrover_lite.tui import formats
from dlrover_lite.tui.text import Line, Span, Tone, clean, length, line, padded, wrapped

__all__ = ["KEPT", "Notice", "Notices", "Severity", "notice_line", "notices_lines"]

Severity = Literal["information", "warning", "error"]
KEPT = 200
"""Maximum number of notices that are kept; those before them are counted."""
_SIGNS: dict[Severity, tuple[str, Tone]] = {
    "information": ("i note", "accent"),
    "warning": ("! warning", "warn"),
    "error": ("✗ error", "bad"),
}
"""Sign and word of each severity, and their tone."""
_LEAST_TEXT = 24
"""Fewest characters of a notice beside which its key is told."""


class _Stay(NamedTuple):
    number: int
    until: float | None


@dataclass(frozen=True)
class Notice:
    """Something that was told."""

    text: str
    severity: Severity
    at: float
    """Time of day at which it was told last."""
    times: int = 1
    """Number of times that it was told in a row."""


class Notices:
    """What was told, and what of it still stands in the line: errors until they are dismissed, all else for some time. Times until which
    they stand are of any clock that only goes forward."""

    def __init__(self) -> None:
        self._all: dict[int, Notice] = {}
        self._stay: list[_Stay] = []
        self._next = 0

    def add(self, notice: Notice, *, now: float, seconds: float) -> None:
        """Add the newest notice. One that says the same as another that stands replaces it."""
        same = [
            one.number
            for one in self._stay
            if (self._all[one.number].text, self._all[one.number].severity) == (notice.text, notice.severity)
        ]
        for number in same:
            notice = replace(notice, times=notice.times + self._all.pop(number).times)
        self._stay = [one for one in self._stay if one.number not in same]
        self._all[self._next] = notice
        self._stay.append(_Stay(self._next, None if notice.severity == "error" else now + seconds))
        self._next += 1
        self._forget()

    def _forget(self) -> None:
        """Forget the oldest, those that don't stand any more first."""
        standing = {one.number for one in self._stay}
        while len(self._all) > KEPT:
            gone = min(self._all, key=lambda number: (number in standing, number))
            del self._all[gone]
            self._stay = [one for one in self._stay if one.number != gone]

    def expire(self, now: float) -> None:
        """Let those go whose time has passed."""
        self._stay = [one for one in self._stay if one.until is None or now < one.until]

    def dismiss(self) -> None:
        """Let the newest go."""
        if self._stay:
            self._stay.pop()

    @property
    def shown(self) -> Sequence[Notice]:
        """Those that stand, the oldest first."""
        return [self._all[one.number] for one in self._stay]

    @property
    def past(self) -> Sequence[Notice]:
        """All that are kept, the oldest first."""
        return list(self._all.values())

    @property
    def forgotten(self) -> int:
        """Number of notices that aren't kept any more."""
        return self._next - sum(one.times for one in self._all.values())


def notice_line(shown: Sequence[Notice], width: int) -> Line:
    """Write the newest notice, how many more there are, and the key that dismisses it."""
    if not shown:
        return ()
    newest, others = shown[-1], shown[:-1]
    sign, tone = _SIGNS[newest.severity]
    more = [Span(f"  {_more(others)}", "bad" if _errors(others) else "dim")] if others else []
    keys = line(("  ^l", "accent"), " dismiss")
    head = line((f"{sign}: ", tone))
    text = " ".join(clean(newest.text).split())
    times = f" ({newest.times} times)" if newest.times > 1 else ""
    told = (*head, Span(text + times))
    ends = [(*more, *keys), (*more, *keys[:1]), (*more,), ()]
    least = min(length(told), length(head) + _LEAST_TEXT)
    end = next((end for end in ends[:2] if length(told) + length(end) <= width), None)
    end = end or next((end for end in ends[1:] if least + length(end) <= width), ())
    return (*padded(told, width - length(end)), *end)


def _errors(notices: Sequence[Notice]) -> int:
    return sum(one.severity == "error" for one in notices)


def _more(others: Sequence[Notice]) -> str:
    """Say how many more there are, and how many of them are errors."""
    errors = _errors(others)
    if errors == len(others):
        return f"+{plural(errors, 'error')}"
    return f"+{len(others)}" + (f" ({plural(errors, 'error')})" if errors else "")


def notices_lines(notices: Notices, width: int) -> list[Line]:
    """Write all that was told, the newest first, each in full."""
    found: list[Line] = []
    for one in reversed(notices.past):
        sign, tone = _SIGNS[one.severity]
        times = f"  {one.times} times" if one.times > 1 else ""
        found.append(line((f"{formats.clock(one.at, seconds=True)}  ", "dim"), (sign, tone), (times, "dim")))
        found += [line("  ", *part) for part in wrapped(clean(one.text), max(8, width - 2))]
    if not found:
        return [line(("Nothing has been told so far.", "dim"))]
    if notices.forgotten:
        found.append(line((f"{count(notices.forgotten)} earlier ones aren't kept any more", "dim")))
    return found
