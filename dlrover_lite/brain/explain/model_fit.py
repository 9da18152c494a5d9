"""A fitted throughput model beside what it was fitted to: what it says of each interval, what it is made of, and how sure that is."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dlrover_lite.brain.explain.explanation_data import Coefficient, FitPoint, Limit, ModelShown, PlanFit
from dlrover_lite.brain.models.bottleneck import LimitTime, limit_times
from dlrover_lite.brain.models.fitted_model import FittedModel
from dlrover_lite.brain.models.throughput import Fit, predict
from dlrover_lite.brain.models.throughput_forms import BOTTLENECK, Setting
from dlrover_lite.brain.planning.observed_job import candidate_of, chosen_windows, trained_windows
from dlrover_lite.brain.planning.plan_grid import Candidate
from dlrover_lite.core.words import count
from dlrover_lite.protocol.profiles import Observation, Profile, observe

__all__ = ["limits_of_plan", "model_shown"]

_MOST_PLANS = 12

_MEANINGS = {
    "worker_sample": "a worker's CPU, by sample",
    "worker_minibatch": "a worker's CPU, by minibatch",
    "worker_request": "a worker's CPU, by server asked",
    "ps_sample": "all servers' CPU, by sample",
    "ps_request": "each server's CPU, by minibatch",
    "latency": "from pull to push, beside CPU",
    "reader_sample": "a worker's reading, by sample",
    "source_sample": "what all workers read from, by sample",
    "network_byte": "a network card, by byte",
    "gradient": "a worker's CPU, by sample",
    "update": "a server's CPU, by minibatch",
    "synchronise": "exchange of dense parameters",
    "embed": "exchange of embedding rows",
    "constant": "whatever is done, for each minibatch",
}
_LIMITS = {
    "workers": "cores of all workers",
    "ps": "cores of the busiest server",
    "pipeline": "minibatches under way at once",
    "host": "free cores of the machine",
    "cores": "cores that all nodes share",
    "network": "the fullest network card",
}
_EVERY_JOBS = ("workers", "parameter servers", "pipeline")
_FORMULA = (
    "samples/s = batch size / time of a minibatch; that is as long as the slowest of {limits} lets it be, and a little longer where two "
    "are alike (p-norm with p = {exponent:g})"
)
_THROTTLED = (
    "; a worker that its limit holds back gets {cores:.2f} cores less than its limit, as it is stopped all the time"
)
_THROTTLED_TOGETHER = (
    "; where the cores that all nodes share hold them back, {cores:.2f} of these are lost for each worker, as it is stopped all "
    "the time"
)

_ADDITIVE = "samples/s = batch size / time of a minibatch, in which the phases add up"


def model_shown(model: FittedModel, plan: Candidate | None, profiles: Sequence[Profile]) -> ModelShown:
    """Show a fitted model. ``plan``: the plan that the limits are told of. ``profiles``: those of the job that were known, by time; none:
    they aren't kept."""
    fitted = model.fit
    known = trained_windows(profiles)
    chosen = chosen_windows(known).profiles
    seen = [(profile, one) for profile in chosen if (one := observe(profile, known.speeds)) is not None]
    points = _points(fitted, [one for _, one in seen])
    return ModelShown(
        form=fitted.form,
        formula=_formula(fitted, shared_cores=model.shared_cores),
        exponent=fitted.exponent,
        intervals=fitted.observations,
        error=fitted.relative_error,
        noise=fitted.noise,
        coefficients=tuple(
            Coefficient(name, seconds, _MEANINGS.get(name, ""), _known(fitted, name))
            for name, seconds in fitted.coefficients.items()
        ),
        identifiable=_identifiable(fitted),
        plan=plan.describe() if plan is not None else "",
        limits=limits_of_plan(model, plan) if plan is not None else (),
        points=points,
        plans=_by_plan([profile for profile, _ in seen], points),
    )


def _formula(fitted: Fit, *, shared_cores: bool) -> str:
    if fitted.form != BOTTLENECK.name:
        return _ADDITIVE
    limits = [*_EVERY_JOBS, "cores that all share" if shared_cores else "host"]
    limits += ["reading"] if {"reader_sample", "source_sample"} & fitted.coefficients.keys() else []
    limits += ["network"] if "network_byte" in fitted.coefficients else []
    formula = _FORMULA.format(limits=f"{', '.join(limits[:-1])} and {limits[-1]}", exponent=fitted.exponent)
    lost = fitted.engine.throttle_cores
    throttled = _THROTTLED_TOGETHER if shared_cores else _THROTTLED
    return formula + (throttled.format(cores=lost) if lost >= 0.005 else "")


def _points(fitted: Fit, observations: Sequence[Observation]) -> tuple[FitPoint, ...]:
    if not observations:
        return ()
    found = predict(fitted, Setting.of(observations))
    return tuple(
        FitPoint(one.samples_per_second, *(float(value) for value in values))
        for one, *values in zip(observations, found.samples_per_second, found.low, found.high, strict=True)
    )


def _by_plan(profiles: Sequence[Profile], points: Sequence[FitPoint]) -> tuple[PlanFit, ...]:
    groups: dict[Candidate, list[FitPoint]] = {}
    for profile, point in zip(profiles, points, strict=True):
        plan = candidate_of(profile)
        assert plan is not None  # others have been left out
        groups.setdefault(plan, []).append(point)
    newest = list(groups.items())[-_MOST_PLANS:]

    def fitted(plan: Candidate, of: Sequence[FitPoint]) -> PlanFit:
        mean = np.array([[one.measured, one.predicted, one.lower, one.upper] for one in of]).mean(axis=0).tolist()
        return PlanFit(plan.describe(), len(of), *mean)

    return tuple(sorted((fitted(plan, of) for plan, of in newest), key=lambda one: one.measured))


def limits_of_plan(model: FittedModel, plan: Candidate, setting: Setting | None = None) -> tuple[Limit, ...]:
    """List what limits the throughput of a plan, the nearest first; nothing where the model has no limits. ``setting``: that of the plan
    where its nodes are; None: they are spread evenly."""
    if model.fit.form != BOTTLENECK.name:
        return ()
    found = []
    for one in limit_times(model.fit, setting or model.setting(*plan.parts())):
        rate = model.batch_size / max(one.seconds, 1e-12)
        found.append(Limit(one.name, _meaning(one, rate / plan.workers), rate))
    return tuple(found)


def _meaning(limit: LimitTime, each: float) -> str:
    """Say what a limit is one of. ``each``: samples/s that it allows each worker."""
    if limit.name != "reading":
        return _LIMITS[limit.name]
    return "what all workers read from, whatever the plan" if limit.whatever_plan else f"{count(each)} by each worker"


def _known(fitted: Fit, name: str) -> str:
    """Say how a coefficient is known. In a job that nothing was measured of, all are from past jobs, or a guess."""
    if name in fitted.unseen:
        return "not measured"
    return "in a sum" if any(name in group for group in fitted.merged) else "measured"


def _identifiable(fitted: Fit) -> str:
    """Say in words what is sure of the coefficients."""
    if not fitted.observations:
        return "Nothing of this job was measured by then: all costs are those of past jobs like it, or a guess."
    parts = []
    if fitted.merged:
        groups = "; ".join(" + ".join(group) for group in fitted.merged)
        parts.append(f"only sums of these were measured, since no plan told them apart: {groups}")
    if fitted.unseen:
        parts.append(f"nothing measured says anything of {', '.join(fitted.unseen)}")
    if not parts:
        return "All costs could be told apart by what was measured."
    text = "; ".join(parts)
    return (
        f"{text[0].upper()}{text[1:]}. Plans near those measured are predicted well all the same, others less surely."
    )
