"""The keys at the bottom of a screen as text: as many as there is room for, each at its place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dlrover_lite.tui.keys import Key
from dlrover_lite.tui.text import Line, Span, padded, width_of

__all__ = ["KeyShown", "PlacedKey", "line_of", "place"]


class KeyShown(NamedTuple):
    key: Key
    label: str
    why_not: str = ""
    """Reason why the key can do nothing just now; empty: it can."""


class PlacedKey(NamedTuple):
    x: int
    width: int
    shown: KeyShown


def place(keys: Sequence[KeyShown], width: int) -> list[PlacedKey]:
    """Place the keys that fit, in their order; where some don't, help is called More. Whether a key works changes nothing about places."""
    left, kept = width, set[int]()
    for at in sorted(range(len(keys)), key=lambda at: (keys[at].key.rank, at)):
        if (size := _width(keys[at])) <= left:
            kept.add(at)
            left -= size
    found: list[PlacedKey] = []
    x = 0
    for at in sorted(kept):
        shown = keys[at]
        if shown.key.action == "keys" and len(kept) < len(keys):
            shown = shown._replace(label="More")
        found.append(PlacedKey(x, _width(shown), shown))
        x += found[-1].width
    return found


def line_of(placed: Sequence[PlacedKey], width: int) -> Line:
    """Write the keys; what can't be done is in parentheses: a colour alone says nothing."""
    parts: list[Span] = []
    for one in placed:
        key, label, why_not = one.shown
        if why_not:
            parts.append(Span(f"({key.label} {label.rstrip()})".ljust(one.width), "dim"))
        else:
            parts += [Span(f" {key.label}", "accent"), Span(f" {label} ")]
    return padded(parts, width)


def _width(shown: KeyShown) -> int:
    """Return the width of a key, with a space, or a parenthesis, on either side."""
    return width_of(shown.key.label) + width_of(shown.label) + 3
