"""What other plans would bring a job, as data to be shown; ``what_if`` makes it.

Times are seconds, memory is in bytes, bands hold 80%.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from dlrover_lite.brain.explain.explanation_data import Limit
from dlrover_lite.brain.planning.pareto import Band
from dlrover_lite.brain.planning.plan_grid import MemoryBand
from dlrover_lite.protocol.plans import Plan

__all__ = ["Axis", "Beyond", "Measured", "PlanForecast", "Prices", "WhatIf"]

Axis = Literal["workers", "ps", "worker_cores", "ps_cores"]


class Prices(msgspec.Struct, frozen=True):
    """Prices in whatever money."""

    core_hour: float = 0.0
    gib_hour: float = 0.0


class Beyond(msgspec.Struct, frozen=True):
    """An axis on which a plan lies outside of what was measured with the job."""

    axis: Axis
    asked: float
    least: float
    """Least that was measured."""
    most: float


class Measured(msgspec.Struct, frozen=True):
    """What the forecasts rest on."""

    intervals: int
    """Number of intervals that the model was fitted to."""
    plans: int
    """Number of plans that these were measured with."""
    error: float
    """Median relative error of the model over the intervals."""
    held_out: int = 0
    """Number of plans that were predicted from the others alone, to see how good such predictions are."""
    held_out_error: float = 0.0
    """Median relative error of these predictions."""


class PlanForecast(msgspec.Struct, frozen=True, kw_only=True):
    """What a plan brings, or would bring. None: it isn't known."""

    plan: Plan
    cores: float
    """Cores of all nodes together."""
    memory: int
    """Memory limits of all nodes together."""
    measured: bool
    """The plan was measured with the job; else its throughput is what the model says."""
    samples_per_second: Band
    seconds: Band | None
    """Seconds until the work is done, the change to the plan included."""
    saves_seconds: Band | None
    """Seconds by which it is done sooner than with the present plan."""
    core_hours: Band | None
    gib_hours: Band | None
    money: Band | None
    worker_memory: MemoryBand | None
    """Memory that each worker needs at its peak."""
    ps_memory: MemoryBand | None
    """The same of each parameter server."""
    limits: tuple[Limit, ...]
    """Limits of the throughput, the nearest first."""
    beyond: tuple[Beyond, ...] = ()
    idle_ps_cores: bool = False
    """A parameter server has more cores than its thread can use."""
    refused: str = ""
    """Why the job can't have the plan; empty: it can."""


class WhatIf(msgspec.Struct, frozen=True, kw_only=True):
    """What plans would bring a job, beside the one that it has, or had."""

    job: str
    runs: bool
    """The job hasn't ended: ``present`` is the plan that it has; else the last one that it had."""
    samples: float | None
    """Number of samples that times and costs are of; None: it isn't known how much there is to train."""
    whole: bool
    """These are all of the job's samples, not what is left of it."""
    change_seconds: float
    """Seconds that a change of the plan is taken to cost."""
    measured: Measured
    present: PlanForecast
    plans: tuple[PlanForecast, ...]
    prices: Prices = Prices()
