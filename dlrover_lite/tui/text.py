"""Pieces of text with what they mean. What is shown is made of these alone: a theme, a terminal without colours, or a plain file
each show a tone in their own way, and none needs it to be understood.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, NamedTuple

__all__ = [
    "ANSI",
    "EMPTY",
    "Line",
    "Span",
    "Tone",
    "Write",
    "clean",
    "cut",
    "folded",
    "for_terminal",
    "joined",
    "length",
    "line",
    "marked",
    "padded",
    "plain",
    "side_by_side",
    "stripped",
    "wrapped",
]

Tone = Literal["plain", "dim", "good", "warn", "bad", "accent", "title", "one", "two", "three", "found", "here"]
"""What a piece of text means. ``one`` to ``three`` tell several of a kind apart, beside their names; ``found`` is what a search has found,
and ``here`` that in the line that was gone to: these two are no colours."""


class Span(NamedTuple):
    text: str
    tone: Tone = "plain"


ANSI: dict[Tone, str] = {
    "plain": "",
    "dim": "2",
    "good": "32",
    "warn": "33",
    "bad": "1;31",
    "accent": "36",
    "title": "1",
    "one": "34",
    "two": "35",
    "three": "36",
    "found": "4",
    "here": "1;7",
}
"""Codes of tones for a terminal; empty: none."""
Line = tuple[Span, ...]
Write = Callable[[int, int], Sequence[Line]]
"""Writes lines for a width, and a height in which they are seen without scrolling."""
EMPTY: Line = ()


def line(*parts: Span | str | tuple[str, Tone]) -> Line:
    """Make a line of its parts: ``line("a job ", ("failed", "bad"))``."""
    return tuple(Span(part) if isinstance(part, str) else Span(*part) for part in parts)


def plain(spans: Iterable[Span]) -> str:
    return "".join(span.text for span in spans)


def clean(text: str) -> str:
    """Remove what would move a cursor: messages may quote anything."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one == "\n" else " " for one in text.expandtabs())


def _half_blocks() -> dict[int, str]:
    """Map each braille character to the block that has dots where it has some: in the upper half, the lower one, or both."""
    found = {}
    for bits in range(256):
        upper, lower = bool(bits & 0b0001_1011), bool(bits & 0b1110_0100)
        found[0x2800 + bits] = " ▀▄█"[upper + 2 * lower]
    return found


_CONSOLE = _half_blocks() | str.maketrans("▁▂▃▅▆▇▉▊▋▍▎▏▕╎┃━┄‖◉✗…▸", "▄▄▄██████▌▌││:│═-║*x~>")
"""What stands for symbols that the fonts of Linux's console haven't got."""


def for_terminal(text: str, terminal: str) -> str:
    """Write a text with the symbols that a terminal of this kind (TERM) has."""
    return text.translate(_CONSOLE) if terminal == "linux" else text


def width_of(text: str) -> int:
    """Return the number of cells that a text takes: ids and paths may have any characters."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def length(spans: Iterable[Span]) -> int:
    return sum(width_of(span.text) for span in spans)


def cut(text: str, width: int) -> str:
    """Cut a text to at most ``width`` cells, with … where something is missing."""
    if width_of(text) <= width:
        return text
    if width <= 0:
        return ""
    if text.isascii():
        return text[: width - 1] + "…"
    from rich.cells import set_cell_size

    return set_cell_size(text, width - 1) + "…"


def padded(spans: Sequence[Span], width: int, *, right: bool = False) -> Line:
    """Make a line of exactly ``width`` cells: cut, or filled with spaces, which ``right`` puts before."""
    room = width - length(spans)
    if room >= 0:
        space = (Span(" " * room),) if room else ()
        return (*space, *spans) if right else (*spans, *space)
    kept: list[Span] = []
    left = width
    for at, span in enumerate(spans):
        size = width_of(span.text)
        more = any(later.text for later in spans[at + 1 :])
        if size < left or (size == left and not more):
            kept.append(span)
            left -= size
        else:
            text = cut(span.text if size > left else span.text + " ", left)
            kept.append(Span(text, span.tone))
            left -= width_of(text)
            break
    return (*kept, Span(" " * left)) if left else tuple(kept)


def joined(spans: Iterable[Span]) -> Line:
    """Join neighbours of the same tone."""
    found: list[Span] = []
    for span in spans:
        if found and found[-1].tone == span.tone:
            found[-1] = Span(found[-1].text + span.text, span.tone)
        else:
            found.append(span)
    return tuple(found)


def stripped(spans: Sequence[Span]) -> Line:
    """Return a line without the spaces at its end: they needn't be seen."""
    kept = list(spans)
    while kept and not kept[-1].text.strip(" "):
        kept.pop()
    if kept and kept[-1].text.endswith(" "):
        kept[-1] = kept[-1]._replace(text=kept[-1].text.rstrip(" "))
    return tuple(kept)


def marked(spans: Iterable[Span], pattern: re.Pattern[str], tone: Tone) -> Line:
    """Give all that matches a pattern, in any of the pieces, another tone."""
    found: list[Span] = []
    for span in spans:
        at = 0
        for match in pattern.finditer(span.text):
            found += [Span(span.text[at : match.start()], span.tone), Span(match.group(), tone)]
            at = match.end()
        found.append(Span(span.text[at:], span.tone))
    return tuple(span for span in found if span.text)


def folded(spans: Sequence[Span], width: int) -> list[Line]:
    """Break a line after each ``width`` cells, wherever that is; at least one line."""
    found: list[Line] = []
    parts: list[Span] = []
    left = width
    for text, tone in spans:
        begun = 0
        for at, character in enumerate(text):
            size = width_of(character)
            if size > left and left < width:
                parts.append(Span(text[begun:at], tone))
                found.append(tuple(part for part in parts if part.text))
                parts, begun, left = [], at, width
            left -= size
        parts.append(Span(text[begun:], tone))
    return [*found, tuple(part for part in parts if part.text)]


def side_by_side(columns: Sequence[tuple[int, Sequence[Line]]], gap: str = "  ") -> list[Line]:
    """Put blocks of lines, each with its width, beside each other: as many lines as the longest has."""
    found = []
    for at in range(max((len(lines) for _, lines in columns), default=0)):
        parts: list[Span] = []
        for number, (width, lines) in enumerate(columns):
            parts += [Span(gap)] if number else []
            parts += padded(lines[at] if at < len(lines) else EMPTY, width)
        found.append(tuple(parts))
    return found


def wrapped(text: str, width: int, tone: Tone = "plain", *, indent: str = "") -> list[Line]:
    """Fold paragraphs at spaces; lines after the first one of each begin with ``indent``."""
    import textwrap

    found: list[Line] = []
    for paragraph in text.splitlines():
        parts = textwrap.wrap(paragraph, max(8, width), subsequent_indent=indent) or [""]
        found += [line((part, tone)) for part in parts]
    return found
