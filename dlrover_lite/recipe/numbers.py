"""Dense features as text: what is a number, and why something isn't. Without numpy, so that ``validate`` is quick."""

from __future__ import annotations

import re

__all__ = ["FLOAT32_LIMIT", "OUT_OF_RANGE", "dense_problem", "number"]

FLOAT32_LIMIT = 3.4028235677973366e38
"""Magnitude from which on a float64 becomes an infinite float32."""

OUT_OF_RANGE = "out of range: a float32 holds up to 3.4e38"

_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_WORD = re.compile(r"[+-]?(?:nan|inf|infinity)", re.IGNORECASE)


def number(text: str) -> float | None:
    """Parse the integer, decimal, exponent number, NaN or infinity in ``text``; None where there is none."""
    text = text.strip(" ")
    return float(text) if _NUMBER.fullmatch(text) or _WORD.fullmatch(text) else None


def dense_problem(text: str) -> str:
    """Say why ``text`` can't be a dense feature; "" where it can. An empty field and NaN stand for a missing value."""
    value = number(text)
    if value is None:
        return "expected a number" if text.strip(" ") else ""
    return OUT_OF_RANGE if abs(value) >= FLOAT32_LIMIT else ""
