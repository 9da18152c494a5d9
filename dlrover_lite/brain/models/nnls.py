"""Least squares with coefficients that are not negative, for a handful of them (why not scipy's: docs/decisions/0005-own-nnls.md)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["nnls"]

_TOLERANCE = 1e-10


def nnls(normal: NDArray[np.float64], right: NDArray[np.float64]) -> NDArray[np.float64]:
    """Find the x >= 0 [k] that makes |Ax - b| least, given ``normal`` = A'A [k, k], positive definite, and ``right`` = A'b [k].

    Lawson and Hanson, Solving Least Squares Problems (1974), chapter 23, on the normal equations: for few columns, of which none is nearly
    a combination of others (a prior sees to that), they are as good as the QR factors, and all that callers have.
    """
    k = len(right)
    x = np.asarray(np.linalg.solve(normal, right), np.float64)
    passive = x > 0
    # a good start: what the unbounded solution has above 0, less what then falls below
    while not passive.all():
        free = np.flatnonzero(passive)
        solved = np.linalg.solve(normal[free][:, free], right[free])
        x = np.zeros(k)
        x[free] = solved
        if (solved > 0).all():
            break
        passive = x > 0
    # each round frees a coefficient and lowers the sum of squares; the bound is for rounding errors only
    for _ in range(3 * k):
        gradient = right - normal @ x
        gradient[passive] = -np.inf
        enters = int(gradient.argmax())
        if gradient[enters] <= _TOLERANCE * (abs(right[enters]) + 1e-300):
            break
        passive[enters] = True
        x = _feasible(normal, right, x, passive)
    return x


def _feasible(
    normal: NDArray[np.float64], right: NDArray[np.float64], x: NDArray[np.float64], passive: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Go from the feasible ``x`` to the least squares over ``passive`` columns; those that would fall below 0 stop there, not passive."""
    while passive.any():
        free = np.flatnonzero(passive)
        solved = np.linalg.solve(normal[free][:, free], right[free])
        if (solved > 0).all():
            x = np.zeros(len(right))
            x[free] = solved
            return x
        now, falling = x[free], solved <= 0
        parts = np.where(falling, now / np.maximum(now - solved, 1e-300), np.inf)
        now = now + parts.min() * (solved - now)
        # at least the first to reach 0 stays there, rounding errors or not
        dropped = falling & ((now <= _TOLERANCE * now.max()) | (parts == parts.min()))
        now[dropped] = 0.0
        x = np.zeros(len(right))
        x[free] = now
        passive[free[dropped]] = False
    return np.zeros(len(right))
