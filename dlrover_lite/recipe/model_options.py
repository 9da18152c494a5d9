"""What the options of the built-in models accept. The models check with the same rules; no torch is needed to know them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

__all__ = ["BUILT_IN_OPTIONS", "NON_NEGATIVE_INT", "NON_NEGATIVE_NUMBER", "POSITIVE_INT", "SIZES", "Rule", "one_of"]


class Rule(NamedTuple):
    """What an option accepts. ``accepts`` says in words what ``fits`` is true for."""

    accepts: str
    fits: Callable[[Any], bool]


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_finite(value: Any) -> bool:
    return (_is_int(value) or isinstance(value, float)) and math.isfinite(value)


def one_of(*words: str) -> Rule:
    """Make the rule that accepts one of these words."""
    return Rule(f"one of {', '.join(words)}", lambda value: isinstance(value, str) and value in words)


def _are_sizes(value: Any) -> bool:
    return isinstance(value, Sequence) and bool(value) and all(_is_int(size) and 1 <= size <= MOST for size in value)


MOST = 1_000_000
"""The largest size or number of anything in a model: what is larger takes more memory than any machine has."""
POSITIVE_INT = Rule(f"a whole number from 1 to {MOST:,}", lambda value: _is_int(value) and 1 <= value <= MOST)
NON_NEGATIVE_INT = Rule(f"a whole number from 0 to {MOST:,}", lambda value: _is_int(value) and 0 <= value <= MOST)
NON_NEGATIVE_NUMBER = Rule(f"a number from 0 to {MOST:,}", lambda value: _is_finite(value) and 0 <= value <= MOST)
SIZES = Rule(f"a list of layer sizes from 1 to {MOST:,}, such as [256, 128]", _are_sizes)

_COMMON = {"embedding_dim": POSITIVE_INT, "init_scale": NON_NEGATIVE_NUMBER}

BUILT_IN_OPTIONS: dict[str, dict[str, Rule]] = {
    "wide_deep": {**_COMMON, "hidden": SIZES},
    "dcn": {
        **_COMMON,
        "hidden": SIZES,
        "cross": one_of("matrix", "vector"),
        "cross_layers": POSITIVE_INT,
        "low_rank": NON_NEGATIVE_INT,
    },
    "xdeepfm": {**_COMMON, "hidden": SIZES, "cin_sizes": SIZES},
    "dlrm": {**_COMMON, "bottom": SIZES, "top": SIZES},
    "census": {"embedding_dim": POSITIVE_INT, "dense_values": POSITIVE_INT},
}
"""Options of each built-in model: the keyword arguments of its constructor, ``schema`` aside."""
