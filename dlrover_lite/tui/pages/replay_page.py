"""The line that says where a replay is: its position, how fast it plays, and a bar with the decisions on it."""

from __future__ import annotations

from collections.abc import Sequence

from dlrover_lite.tui import formats
from dlrover_lite.tui.recordings.player import Mark, Now, span_of
from dlrover_lite.tui.text import Line, Span, Tone, joined, length, line

__all__ = ["at_column", "replay_line"]

_LEAST_BAR = 8
_TONES: dict[str, Tone] = {"◆": "warn", "‖": "bad"}


def replay_line(now: Now, marks: Sequence[Mark], width: int) -> Line:
    """Write ``▸ plays 4x  1:05 of 6:00  14:32:05  ━━●━━━┃───▲──``; a narrow line has no time of day."""
    head, room = _parts(now, width)
    return head if room < _LEAST_BAR else (*head, *_bar(now, marks, room))


def at_column(now: Now, width: int, column: int) -> float | None:
    """Return the time that is at a column of the line; None: there is no bar."""
    head, room = _parts(now, width)
    at = column - length(head)
    if room < _LEAST_BAR or not 0 <= at < room:
        return None
    return now.begin + (now.end - now.begin) * at / max(1, room - 1)


def _parts(now: Now, width: int) -> tuple[Line, int]:
    """Return what is before the bar, and the columns that are left for it. Words have their width whatever they say: the bar stays put."""
    word = "▸ plays" if now.playing else "■ ended" if now.over else "■ stands"
    state = Span(f"{word:<8} {f'{now.speed:g}x':<5} ", "good" if now.playing else "warn")
    whole = span_of(now.end - now.begin)
    place = Span(f"{span_of(now.at - now.begin):>{len(whole)}} of {whole}  ", "title")
    head = line(state, place, Span(f"{formats.clock(now.at, seconds=True)}  ", "dim"))
    if width - length(head) < _LEAST_BAR:
        head = line(state, place)
    return head, width - length(head)


def _bar(now: Now, marks: Sequence[Mark], room: int) -> Line:
    """Draw the bar. What has been played is heavy; decisions stand for themselves, also those that are still to come."""
    seconds = now.end - now.begin

    def column(at: float) -> int:
        return round((at - now.begin) / seconds * (room - 1)) if seconds > 0 else 0

    here = column(now.at)
    cells = [Span("━", "accent") if at < here else Span("─", "dim") for at in range(room)]
    for mark in marks:
        cells[column(mark.at)] = Span(mark.symbol, _TONES.get(mark.symbol, "accent"))
    cells[here] = Span("┃", "title")
    return joined(cells)
