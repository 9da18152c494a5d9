"""When a job will have gone through its samples, as its master knows it: what the one estimate (``core.expected_end``) goes by."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from dlrover_lite.core.decoding import convert
from dlrover_lite.core.expected_end import (
    ExpectedEnd,
    PlanIntervals,
    PlanShape,
    PredictedRate,
    TrainedInterval,
    expected_end,
)
from dlrover_lite.jobs.profiles import Gap
from dlrover_lite.master.nodes.fleet import Fleet, WorkRole
from dlrover_lite.protocol.plans import Plan, RolePlan
from dlrover_lite.protocol.profiles import Profile

if TYPE_CHECKING:
    from dlrover_lite.master.generation_run import GenerationRun

__all__ = ["EvaluationPauses", "PlanRates", "job_end", "note_evaluations", "predicted_rate"]

_REMEMBERED_PAUSES = 4
"""Number of newest evaluations whose pauses are taken for those to come."""


class PlanRates:
    """Keeps what is measured, for the estimate."""

    def __init__(self) -> None:
        self._intervals = PlanIntervals()

    def keep(self, found: Profile | Gap) -> None:
        if isinstance(found, Profile):
            shape = PlanShape.of_nodes((use.cores for use in found.workers), (use.cores for use in found.ps))
            self._intervals.add(shape, TrainedInterval(found.seconds, found.samples))

    def since(self, shape: PlanShape) -> list[TrainedInterval]:
        return self._intervals.since(shape)


def shape_of_plan(plan: Plan) -> PlanShape:
    worker, ps = plan.worker, plan.ps
    return PlanShape.of_roles(worker.count, worker.each.cores, ps.count, ps.each.cores)


def shape_of_fleet(fleet: Fleet, leaving: Collection[str] = ()) -> PlanShape:
    """Return that of the nodes that stay, those that are being resized as they will be, and of those of the plan that are to come."""
    cores: dict[WorkRole, list[float]] = {}
    roles: tuple[tuple[WorkRole, RolePlan], ...] = (("worker", fleet.plan.worker), ("ps", fleet.plan.ps))
    for role, planned in roles:
        there = [(node.wanted or node.resources).cores for node in fleet.staying_of(role, leaving)]
        there += [pending.resources.cores for pending in fleet.coming_back(role, leaving)]
        cores[role] = there + [planned.each.cores] * (planned.count - len(there))
    return PlanShape.of_nodes(cores["worker"], cores["ps"])


class EvaluationPauses:
    """How much training loses to an evaluation beside it: the time that it took, less the time that what was trained meanwhile takes
    otherwise."""

    def __init__(self) -> None:
        self._lost: deque[float] = deque(maxlen=_REMEMBERED_PAUSES)
        self._began: tuple[float, int] | None = None
        """Time when the evaluation under way began, and number of samples trained on by then; None: there is none."""

    def turn(self, now: float, samples: int, rate_of: Callable[[], float], *, under_way: bool) -> None:
        """Take note of whether an evaluation is under way; ``now``: steady clock. ``rate_of`` is asked when one has ended for the samples/s
        without one, 0 while unknown."""
        if under_way and self._began is None:
            self._began = now, samples
        elif not under_way and self._began is not None:
            if (rate := rate_of()) > 0:
                self._lost.append(self._so_far(now, samples, rate))
            self._began = None

    def to_come(self, now: float, samples: int, rate: float, rounds: int) -> float:
        """Return the seconds that training will lose to ``rounds`` more, and to the rest of the one under way; 0 before one has been
        measured."""
        if not self._lost or rate <= 0:
            return 0.0
        each = sum(self._lost) / len(self._lost)
        rest = 0.0 if self._began is None else max(0.0, each - self._so_far(now, samples, rate))
        return each * rounds + rest

    def _so_far(self, now: float, samples: int, rate: float) -> float:
        assert self._began is not None
        began, before = self._began
        return max(0.0, now - began - (samples - before) / rate)


def job_end(run: GenerationRun, *, now: float) -> ExpectedEnd | None:
    """Estimate the end of training; ``now``: seconds since the epoch. None: nothing is left to train, or the job ends, or nothing is
    known to go by."""
    shards, state = run.shards, run.executor.state
    if run.outcome is not None or run.stopping or run.beginning is not None or shards.trained:
        return None
    left = shards.plan.samples * shards.plan.epochs - shards.consumed_samples
    goal = state.goal if state.goal is not None and state.goal.target is not None and not state.paused else None
    if goal is not None and goal.target is not None:
        shape, predicted = shape_of_plan(goal.target), goal.predicted
    else:
        shape, predicted = shape_of_fleet(run.fleet, run.servers.state.leaving), None
        if state.prediction is not None and shape_of_plan(state.prediction.plan) == shape:
            predicted = state.prediction.rate
    intervals = run.plan_rates.since(shape)
    recent = 0.0 if run.profiling.profiler.disturbed else run.progress.rate(now=run.now())
    return expected_end(now, left, intervals, predicted=predicted, recent=recent, pause_seconds=_pauses(run, intervals))


def note_evaluations(run: GenerationRun) -> None:
    """Take note, each turn, of whether an evaluation is beside training."""
    under_way = bool(run.rounds.open) and not run.shards.trained

    def rate() -> float:
        return _rate_of(run.plan_rates.since(shape_of_fleet(run.fleet, run.servers.state.leaving)))

    run.evaluation_pauses.turn(run.now(), run.shards.consumed_samples, rate, under_way=under_way)


def _pauses(run: GenerationRun, intervals: list[TrainedInterval]) -> float:
    """Return the seconds by which evaluations will hold training up; 0 if what is measured has them in it already."""
    plan, consumed = run.shards.plan, run.shards.consumed_samples
    if not plan.evaluate_every or not plan.eval_samples or run.profiling.usual.is_usual:
        return 0.0
    rounds = (plan.samples * plan.epochs - 1) // plan.evaluate_every - consumed // plan.evaluate_every
    return run.evaluation_pauses.to_come(run.now(), consumed, _rate_of(intervals), max(0, rounds))


def _rate_of(intervals: list[TrainedInterval]) -> float:
    """Return the samples/s over all intervals; 0 without any."""
    seconds = sum(one.seconds for one in intervals)
    return sum(one.samples for one in intervals) / seconds if seconds else 0.0


def predicted_rate(predicted: Mapping[str, Any] | None) -> PredictedRate | None:
    """Read the throughput that a decision predicts for its plan; None where it says nothing that can be understood."""
    try:
        band = predicted["throughput"] if isinstance(predicted, Mapping) else None
        found = None if band is None else PredictedRate(*convert(band, tuple[float, float, float]))
    except (KeyError, msgspec.ValidationError):
        return None
    return found if found is not None and found.expected > 0 else None
