"""Seeds of traces, apart from each other: whoever chooses numbers of a policy looks at the first, and what is told comes from the
second."""

from __future__ import annotations

__all__ = ["REPORTED_SEEDS", "TUNING_SEEDS"]

TUNING_SEEDS = tuple(range(1, 21))
"""Seeds by which policies may be chosen, and compared while they change."""
REPORTED_SEEDS = tuple(range(1001, 1021))
"""Seeds of the figures that are told. No number of a policy may be chosen by them."""
