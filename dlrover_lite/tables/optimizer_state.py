"""How much state an optimizer keeps of each value, and whether another can go on with it. Without kernels: the master imports it."""

from __future__ import annotations

from dlrover_lite.recipe.schema import Optimizer

__all__ = ["COUNTING", "STATE_PARTS", "keeps_state"]

STATE_PARTS = {"sgd": 0, "adagrad": 1, "adam": 2, "ftrl": 2}
"""Number of state floats per value, by optimizer."""
COUNTING = {"adam"}
"""Optimizers that need to know how often a row was updated."""


def keeps_state(before: Optimizer, now: Optimizer) -> bool:
    """Say whether the state that one optimizer has left means the same to the other.

    Adam's means are by its betas. FTRL's sums stand for the weights only with the numbers that they were summed with.
    """
    if before.use != now.use:
        return False
    numbers = {"adam": ("beta1", "beta2"), "ftrl": ("learning_rate", "l1", "l2", "beta")}.get(now.use, ())
    return all(getattr(before, name) == getattr(now, name) for name in numbers)
