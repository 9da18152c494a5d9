"""Checks of model options: each error names the option, says what it accepts, and what it got."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Any

from dlrover_lite.core.errors import ModelError
from dlrover_lite.recipe.model_options import (
    NON_NEGATIVE_INT,
    NON_NEGATIVE_NUMBER,
    POSITIVE_INT,
    SIZES,
    Rule,
    one_of,
)

__all__ = ["choice", "did_you_mean", "non_negative_int", "non_negative_number", "positive_int", "sizes"]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a hint for a name that isn't known: the nearest known one, or all of them. Empty when nothing is known."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1)
    if close:
        return f"Did you mean {close[0]!r}?"
    return f"Known are: {', '.join(names)}." if names else ""


def _checked(option: str, value: Any, rule: Rule) -> Any:
    if not rule.fits(value):
        raise ModelError(f"Model option {option!r} must be {rule.accepts}, not {value!r}.")
    return value


def positive_int(option: str, value: Any) -> int:
    """Return ``value``. Raises ModelError unless it is a whole number of at least 1."""
    return int(_checked(option, value, POSITIVE_INT))


def non_negative_int(option: str, value: Any) -> int:
    """Return ``value``. Raises ModelError unless it is a whole number of at least 0."""
    return int(_checked(option, value, NON_NEGATIVE_INT))


def non_negative_number(option: str, value: Any) -> float:
    """Return ``value``. Raises ModelError unless it is a finite number of at least 0."""
    return float(_checked(option, value, NON_NEGATIVE_NUMBER))


def sizes(option: str, value: Any) -> tuple[int, ...]:
    """Return layer sizes. Raises ModelError unless ``value`` is a non-empty list of whole numbers of at least 1."""
    return tuple(_checked(option, value, SIZES))


def choice(option: str, value: Any, known: Sequence[str]) -> str:
    """Return ``value``. Raises ModelError unless it is one of the ``known`` words."""
    try:
        return str(_checked(option, value, one_of(*known)))
    except ModelError as error:
        error.hint = did_you_mean(value, known) if isinstance(value, str) else ""
        raise
