"""How much of the chaos is run: a little by `make test`, for as long as you like by `make chaos`."""

from __future__ import annotations

import os
import random

__all__ = ["LONG", "OPTIMIZERS", "SECONDS", "SEEDS"]

LONG = os.environ.get("CHAOS") == "long"
_FIRST = os.environ.get("CHAOS_SEED", "")
_COUNT = int(os.environ.get("CHAOS_SEEDS", "10" if LONG else "1"))

SECONDS = float(os.environ.get("CHAOS_SECONDS", "20" if LONG else "4"))
"""For which a job is disturbed."""


def _first() -> int:
    """Another one with each run; the same in all processes of a run, which must collect the same tests."""
    return int(_FIRST) if _FIRST else random.Random(os.environ.get("PYTEST_XDIST_TESTRUNUID")).randrange(1_000_000)


SEEDS = [_first() + i for i in range(_COUNT)]
"""CHAOS_SEED and the CHAOS_SEEDS - 1 that follow it; drawn at random if it isn't given."""

OPTIMIZERS = ["adagrad", "sgd", "adam", "ftrl"]
