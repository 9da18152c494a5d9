"""The plans that a job can have as the paper sees them: the front that NSGA-II finds, by the additive model, and what each weighs.

    TG(A') = Psi(A') / Psi(A) - 1,  over what is left of the job, T_scale included
    WG(A') = priority x TG(A') / T(A) ** rho

with T the remaining time and A the present plan (of a job that begins: its smallest). The throughput gain is relative, or jobs with other
samples couldn't be compared; the paper's exact terms aren't known here. A job that begins gets the smoothed plan (``warm_start``), or with
nothing to smooth the only plan that its bounds leave.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from dlrover_lite.brain.planning.job_view import JobView, ModelData, Policy
from dlrover_lite.brain.planning.paper.nsga2 import nsga2_front
from dlrover_lite.brain.planning.paper.warm_start import nearest_plan
from dlrover_lite.brain.planning.pareto import Points, ThroughputModel
from dlrover_lite.brain.planning.plan_values import Found, Options, Search, points_within, spread_of
from dlrover_lite.core.units import Resources
from dlrover_lite.protocol.hosts import Host

__all__ = ["model_of", "weighed_options"]


def model_of(view: JobView) -> ModelData:
    """Return the model that the paper's policy goes by: the additive one, as soon as anything was measured."""
    return view.model if view.additive is None else view.additive


def weighed_options(
    view: JobView,
    model: ThroughputModel,
    capacity: Resources,
    policy: Policy,
    hosts: Sequence[Host] = (),
    *,
    found: Found | None = None,
) -> Options | None:
    """Find the plans that a job can have, and weigh them; None, and ``found``, as of ``plan_values.options_of``. ``value`` is WG; bands are
    the model's, and nothing goes by them."""
    search = Search("paper", nsga2_front)
    if view.now is None and view.additive is None and view.similar:
        search = Search(view.similar, partial(nearest_plan, similar=view.similar))
    within = points_within(view, model, capacity, hosts, search=search, found=found)
    return None if within is None else _weighed(*within, policy)


def _weighed(view: JobView, points: Points, minimum: int, policy: Policy) -> Options:
    now = None if view.now is None else points.find(view.now)
    base = minimum if now is None else now
    calibration = 1.0
    if now is not None and view.measured is not None and view.measured.expected > 0:
        calibration = view.measured.expected / float(points.throughput[now])
    points = points._replace(
        throughput=points.throughput * calibration,
        lower=points.lower * calibration,
        upper=points.upper * calibration,
    )
    rate = float(points.throughput[base])
    stay = policy.horizon_seconds if view.remaining_samples is None else view.remaining_samples / rate
    scale = np.full(len(points.milli), view.scale_seconds if now is not None else 0.0)
    together = np.exp(np.hypot(spread_of(points), spread_of(points)[base]))
    if now is not None:
        scale[now], together[now] = 0.0, 1.0
    left = stay * rate / points.throughput
    relative_gain = stay / np.maximum(left + scale, 1e-9) - 1
    return Options(
        view=view,
        points=points,
        memory=points.memory(view.need),
        value=view.priority * relative_gain / max(stay, 1e-9) ** policy.rho,
        gain=stay - left - scale,
        least_gain=stay - left * together - scale,
        most_gain=stay - left / together - scale,
        minimum=minimum,
        now=now,
        stay_seconds=stay,
        calibration=calibration,
    )
