"""Machines that fail and slow phases of them, on the clock: the same times for the same seed, whoever runs on the machines."""

from __future__ import annotations

import math
from collections.abc import Callable

from dlrover_lite.backends.sim.clock import EventClock, source_of_chance
from dlrover_lite.backends.sim.physics.machines import Disturbances

__all__ = ["schedule_faults"]


def schedule_faults(
    clock: EventClock,
    seed: int,
    machine: int,
    its: Disturbances,
    *,
    set_works: Callable[[bool], None],
    set_speed: Callable[[float], None],
) -> None:
    """Have a machine, by its number, fail and work again, and be slow and as usual again. ``set_speed`` is given its speed over its
    usual one."""
    failures = source_of_chance(seed, f"failures of machine {machine}")
    phases = source_of_chance(seed, f"slow phases of machine {machine}")

    def fails() -> None:
        set_works(False)
        clock.after(failures.expovariate(1 / its.repair_seconds), works)

    def works() -> None:
        set_works(True)
        clock.after(failures.expovariate(1 / its.failing_seconds), fails)

    def slows() -> None:
        set_speed(its.slow_speed)
        clock.after(phases.expovariate(1 / its.slow_seconds), recovers)

    def recovers() -> None:
        set_speed(1.0)
        clock.after(phases.expovariate(1 / its.slowing_seconds), slows)

    if math.isfinite(its.failing_seconds):
        clock.after(failures.expovariate(1 / its.failing_seconds), fails)
    if math.isfinite(its.slowing_seconds):
        clock.after(phases.expovariate(1 / its.slowing_seconds), slows)
