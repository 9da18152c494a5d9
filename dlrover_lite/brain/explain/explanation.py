"""What a decision rests on, made of what is stored: inputs in words, the fitted model beside what was measured, nodes beside their peers,
memory as it was foreseen, past jobs that a first plan was made from.

::

    shown = explained(decision, inputs, profiles=known)     # pure
    shown, policy = read(history, stored)                   # with all that is still kept of it
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import msgspec

from dlrover_lite.brain.explain.explanation_data import Explained, Like, MemoryCurve, Used
from dlrover_lite.brain.explain.inputs_text import facts_of_round, facts_of_treatment
from dlrover_lite.brain.explain.memory_outlook import curves_of, forecast_for, nearest
from dlrover_lite.brain.explain.model_fit import model_shown
from dlrover_lite.brain.explain.peers import peers_of
from dlrover_lite.brain.healing.memory_relief import forecast_of
from dlrover_lite.brain.healing.mitigation import HealInputs
from dlrover_lite.brain.job_history import past_jobs
from dlrover_lite.brain.models.fitted_model import load_model
from dlrover_lite.brain.models.similarity import neighbours, weights_of
from dlrover_lite.brain.planning.decision import Decision
from dlrover_lite.brain.planning.job_view import JobView, Policy, RoundInputs
from dlrover_lite.brain.store import queries
from dlrover_lite.brain.store.history import Rows
from dlrover_lite.brain.store.records import StoredDecision, demand_in
from dlrover_lite.core.decoding import convert
from dlrover_lite.core.errors import HistoryError
from dlrover_lite.protocol.acts import MEMORY_CAUSES, Resize
from dlrover_lite.protocol.demands import Demand
from dlrover_lite.protocol.features import JobFeatures
from dlrover_lite.protocol.profiles import Level, Profile

__all__ = ["explained", "limits_of", "read"]

_KEPT = 256
"""The most profiles before a decision that are looked at."""
_NO_INPUTS = "What it was decided from isn't kept any more, or can't be read by this version."
_NO_PROFILES = "What was measured until then isn't kept any more: the model is shown without it."
_NO_PAST = "The past jobs that it was made from aren't kept any more."


def explained(
    decision: Decision,
    inputs: RoundInputs | HealInputs | None,
    *,
    profiles: Sequence[Profile] = (),
    limits: dict[str, tuple[Used, ...]] | None = None,
    like: Sequence[Like] = (),
    demand: Demand | None = None,
) -> Explained:
    """Explain a decision. ``inputs``: what it was decided from; None: that isn't there any more. ``profiles`` and ``limits`` (of each
    parameter server): those of the job that were known when it was decided, by time. ``like``: past jobs, for a first plan. ``demand``:
    what the job asks for."""
    if isinstance(inputs, HealInputs):
        return _of_treatment(decision, inputs, limits or {})
    view = next((one for one in inputs.jobs if one.job == decision.job), None) if inputs is not None else None
    if inputs is None or view is None:
        return Explained(missing=(_NO_INPUTS,))
    shown = _of_round(decision, inputs, view, profiles, like)
    if decision.stage == "initial":
        return shown
    return msgspec.structs.replace(shown, memory=_memory_of_round(view, profiles, limits or {}, demand))


def _of_round(
    decision: Decision,
    inputs: RoundInputs,
    view: JobView,
    profiles: Sequence[Profile],
    like: Sequence[Like],
) -> Explained:
    missing: list[str] = []
    model = None
    try:
        fitted = load_model(view.model)
    except HistoryError as error:
        missing.append(f"{error.message}.".replace("..", "."))
    else:
        model = model_shown(fitted, decision.choice or view.now, profiles)
        if fitted.fit.observations and not model.points:
            missing.append(_NO_PROFILES)
    is_first = decision.stage == "initial"
    if is_first and decision.reason.startswith("warm") and not like:
        missing.append(_NO_PAST)
    return Explained(
        facts=facts_of_round(inputs, view, profiles[-1] if profiles else None),
        model=model,
        like=tuple(like) if is_first else (),
        missing=tuple(missing),
        room_cores=None if decision.room is None else decision.room.cores,
    )


def _memory_of_round(
    view: JobView, profiles: Sequence[Profile], limits: dict[str, tuple[Used, ...]], demand: Demand | None
) -> tuple[MemoryCurve, ...]:
    """Make the memory curve of the parameter server nearest to its limit, as it was foreseen by what was measured until then."""
    levels = [Level.of(profile) for profile in profiles if profile.ps]
    found = forecast_for(levels, demand) if levels else None
    if found is None:
        return ()
    total = None if view.remaining_samples is None else levels[-1].samples_so_far + view.remaining_samples
    return curves_of(found, levels, nearest(levels, limits), limits, total_samples=total)[:1]


def _of_treatment(decision: Decision, inputs: HealInputs, limits: dict[str, tuple[Used, ...]]) -> Explained:
    treatment = decision.treatment
    if treatment is None:
        return Explained(facts=facts_of_treatment(inputs, decision))
    memory: tuple[MemoryCurve, ...] = ()
    if treatment.cause in MEMORY_CAUSES and inputs.held:
        memory = _memory_of_treatment(decision, inputs, limits)
    return Explained(
        facts=facts_of_treatment(inputs, decision),
        memory=memory,
        peers=peers_of(inputs, treatment),
        cause=treatment.cause,
    )


def _memory_of_treatment(
    decision: Decision, inputs: HealInputs, limits: dict[str, tuple[Used, ...]]
) -> tuple[MemoryCurve, ...]:
    """Make the memory curve of the node, or, where the treatment is about all of them, of the one nearest to its limit. The new limit is
    among the limits."""
    treatment, held = decision.treatment, inputs.held
    assert treatment is not None
    servers = [node for node in inputs.nodes if node.role == "ps"]
    given: dict[str, int] = {}
    if isinstance(treatment.act, Resize):
        given = {treatment.node: treatment.act.resources.memory}
        given |= {name: each.memory for name, each in treatment.act.others.items()}
    steps = {
        node.node: (
            *(limits.get(node.node) or (Used(held[0].at, node.resources.memory),)),
            *((Used(inputs.at, given[node.node]),) if node.node in given else ()),
        )
        for node in servers
    }
    alone = any(node.node == treatment.node for node in servers)
    about = [treatment.node] if alone else nearest(held, steps)
    curves = curves_of(forecast_of(inputs), held, about, steps, total_samples=inputs.total_samples)
    return curves[:1]


# --- from the history ----------------------------------------------------------------------------------------------


def read(history: Rows, stored: StoredDecision) -> tuple[Explained, Policy | None]:
    """Read what is still kept of a decision, and what was weighed how, where that is known. Raises HistoryError when it can't be
    read."""
    decision = stored.decision
    inputs: RoundInputs | HealInputs | None = None
    with suppress(HistoryError):  # pruned, or of another version
        inputs = queries.inputs_of(history, stored)
    profiles: list[Profile] = []
    if not isinstance(inputs, HealInputs):  # an interval is told after its end
        before = math.nextafter(decision.at, 0.0)
        profiles = queries.readable_profiles(history, decision.job, until=before, newest=_KEPT)
    entries = queries.jobs(history, queries.JobsQuestion(id=decision.job))
    features = entries[0].features if entries else {}
    shown = explained(
        decision,
        inputs,
        profiles=profiles,
        limits=limits_of(history, decision.job, until=decision.at),
        like=_like(history, decision, features) if decision.stage == "initial" else (),
        demand=demand_in(features),
    )
    return shown, inputs.policy if isinstance(inputs, RoundInputs) else None


def limits_of(history: Rows, job: str, *, until: float = math.inf) -> dict[str, tuple[Used, ...]]:
    """Return the memory limits of a job's nodes, each with the time from which it holds. Raises HistoryError."""
    found: dict[str, list[Used]] = {}
    for event in queries.node_events(history, job):
        memory = event.data.get("memory")
        if event.at <= until and isinstance(memory, int):
            found.setdefault(event.node, []).append(Used(event.at, memory))
    return {node: tuple(steps) for node, steps in found.items()}


def _like(history: Rows, decision: Decision, features: dict[str, Any]) -> tuple[Like, ...]:
    """List the past jobs that are like this one, as they were by then."""
    try:
        own = convert(features, JobFeatures)
    except msgspec.ValidationError:  # stored by another version, or not known
        return ()
    past = past_jobs(history, at=decision.at, without=decision.job, by_then=True)
    near = neighbours(own, [(one.job, one.features, one.fit) for one in past])
    return tuple(
        Like(one.job, one.distance, weight, one.fit.observations)
        for one, weight in zip(near, weights_of(near), strict=True)
    )
