"""Checks of model options: each error names the option, says what it accepts, and what it got."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Sequence
from typing import Any

from dlrover_lite.errors import ModelError

__all__ = ["choice", "did_you_mean", "non_negative_int", "non_negative_number", "positive_int", "sizes"]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A hint for a name that isn't known: the nearest known one, or all of them. Empty when nothing is known."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1)
    if close:
        return f"Did you mean {close[0]!r}?"
    return f"Known are: {', '.join(names)}." if names else ""


def _refuse(option: str, accepts: str, value: object) -> ModelError:
    return ModelError(f"Model option {option!r} must be {accepts}, not {value!r}.")


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def positive_int(option: str, value: Any) -> int:
    """Raises ModelError unless ``value`` is a whole number of at least 1."""
    if not _is_int(value) or value < 1:
        raise _refuse(option, "a whole number of at least 1", value)
    return int(value)


def non_negative_int(option: str, value: Any) -> int:
    """Raises ModelError unless ``value`` is a whole number of at least 0."""
    if not _is_int(value) or value < 0:
        raise _refuse(option, "a whole number of at least 0", value)
    return int(value)


def non_negative_number(option: str, value: Any) -> float:
    """Raises ModelError unless ``value`` is a finite number of at least 0."""
    if not (_is_int(value) or isinstance(value, float)) or not math.isfinite(value) or value < 0:
        raise _refuse(option, "a number of at least 0", value)
    return float(value)


def sizes(option: str, value: Any) -> tuple[int, ...]:
    """Layer sizes. Raises ModelError unless ``value`` is a non-empty list of whole numbers of at least 1."""
    if not isinstance(value, (list, tuple)) or not value or not all(_is_int(size) and size >= 1 for size in value):
        raise _refuse(option, "a list of layer sizes of at least 1, such as [256, 128]", value)
    return tuple(value)


def choice(option: str, value: Any, known: Sequence[str]) -> str:
    """Raises ModelError unless ``value`` is one of the ``known`` words."""
    if not isinstance(value, str) or value not in known:
        error = _refuse(option, f"one of {', '.join(known)}", value)
        error.hint = did_you_mean(value, known) if isinstance(value, str) else ""
        raise error
    return value
