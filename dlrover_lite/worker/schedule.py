"""Learning-rate schedules, by samples: a pure function of a minibatch's name, so that a retried minibatch gets the same rate."""

from __future__ import annotations

import math

from dlrover_lite.recipe.schema import Schedule

__all__ = ["learning_rate_factor"]


def learning_rate_factor(schedule: Schedule, samples_before: int, total_samples: int) -> float:
    """Return the factor on the learning rate for a minibatch that ``samples_before`` samples precede in the run's order.

    Warm-up rises linearly and never gives 0: its first minibatch gets the share of one sample more.
    """
    if samples_before < schedule.warmup_samples:
        return (samples_before + 1) / (schedule.warmup_samples + 1)
    if schedule.use == "constant":
        return 1.0
    end = schedule.decay_samples or total_samples
    span = max(1, end - schedule.warmup_samples)
    done = min(1.0, (samples_before - schedule.warmup_samples) / span)
    left = 1.0 - done if schedule.use == "linear" else (1.0 + math.cos(math.pi * done)) / 2
    return schedule.final_factor + (1.0 - schedule.final_factor) * left
