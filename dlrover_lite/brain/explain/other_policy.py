"""What the other policy would have decided, from what a stored decision was made from: the same jobs, profiles, limits and memory needs."""

from __future__ import annotations

import math
from contextlib import suppress

import msgspec

from dlrover_lite.brain.job_history import past_jobs
from dlrover_lite.brain.models.fitted_model import load_model, with_fit
from dlrover_lite.brain.models.similarity import neighbours
from dlrover_lite.brain.planning.decision import Decision, decide
from dlrover_lite.brain.planning.job_view import JobView, Policy, RoundInputs
from dlrover_lite.brain.planning.observed_job import additive_fit
from dlrover_lite.brain.planning.plan_grid import Candidate
from dlrover_lite.brain.planning.prescale import similar_plans
from dlrover_lite.brain.store import queries
from dlrover_lite.brain.store.history import Rows
from dlrover_lite.brain.store.records import StoredDecision
from dlrover_lite.core.decoding import convert
from dlrover_lite.core.errors import HistoryError
from dlrover_lite.protocol.acts import PolicyName
from dlrover_lite.protocol.features import JobFeatures

__all__ = ["decided_by"]

_PROFILES = 512
"""The most profiles of a job that are looked at."""


def decided_by(history: Rows, stored: StoredDecision, name: PolicyName) -> tuple[Decision, Policy]:
    """Decide the stored decision's round by the policy of that name. Raises HistoryError where what it was made from isn't kept any more,
    or the decision is about a node, which is the same for all policies."""
    if stored.decision.stage == "heal":
        raise HistoryError(
            f"Decision {stored.number} for {stored.decision.job} is about a node, and no policy decides on those",
            hint="Choose one about the job's plan.",
        )
    inputs = queries.inputs_of(history, stored)
    assert isinstance(inputs, RoundInputs)
    policy = msgspec.structs.replace(inputs.policy, name=name)
    jobs = inputs.jobs
    if name == "paper" and inputs.policy.name != "paper":
        jobs = tuple(_fed(history, view, inputs.at) for view in jobs)
    other = decide(msgspec.structs.replace(inputs, policy=policy, jobs=jobs)).of(stored.decision.job)
    return other, policy


def _fed(history: Rows, view: JobView, at: float) -> JobView:
    """Return the view with what the paper's policy goes by."""
    fitted = load_model(view.model).fit
    if not fitted.observations:
        return view if view.now is not None else msgspec.structs.replace(view, similar=_similar(history, view.job, at))
    until = math.nextafter(at, 0.0)  # an interval is told after its end
    profiles = queries.readable_profiles(history, view.job, until=until, newest=_PROFILES)
    found = additive_fit(profiles)
    if found is None:
        raise HistoryError(
            f"What was measured of {view.job} until then isn't kept any more, and the paper's policy goes by that",
            hint="dlrover-lite brain settings profile-days=90 keeps it for longer.",
        )
    return msgspec.structs.replace(view, additive=with_fit(view.model, found))


def _similar(history: Rows, job: str, at: float) -> tuple[Candidate, ...]:
    """List the plans of past jobs like this one, as they were by then."""
    entries = queries.jobs(history, queries.JobsQuestion(id=job))
    with suppress(msgspec.ValidationError, IndexError):
        own = convert(entries[0].features, JobFeatures)
        past = past_jobs(history, at=at, without=job, by_then=True)
        return similar_plans(past, neighbours(own, [(one.job, one.features, one.fit) for one in past]))
    return ()
