"""What plan a job would start with, if it were started now: nothing runs, and nothing is stored."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from dlrover_lite.brain.advisor import Advisor, Arrival, arrival_of, running_jobs
from dlrover_lite.brain.explain.decision_text import explain
from dlrover_lite.brain.planning.decision import Decision
from dlrover_lite.brain.planning.job_view import Policy, RoundInputs
from dlrover_lite.brain.policies import Policies
from dlrover_lite.brain.store.database import ConfigStore
from dlrover_lite.brain_server.daemon import look_at
from dlrover_lite.brain_server.files import BrainFiles
from dlrover_lite.client.handle import JobHandle, Recipes, job_backend, resolve, these_hosts
from dlrover_lite.core.errors import DlroverLiteError
from dlrover_lite.core.processes.this_process import user_name
from dlrover_lite.core.words import at_time, cleaned
from dlrover_lite.data.open import index_data
from dlrover_lite.protocol.acts import PolicyName
from dlrover_lite.protocol.demands import Standing, autoscale_of, demand_of
from dlrover_lite.protocol.features import features_of
from dlrover_lite.protocol.plans import Plan, fixed, initial_plan
from dlrover_lite.recipe.schema import Recipe

__all__ = ["FirstPlan", "Foreseen", "first_plan", "foresee", "plan"]


class FirstPlan(NamedTuple):
    """The nodes that a job would begin with, and who chooses them."""

    plan: Plan
    by_brain: bool
    why: str = ""
    """Why the brain, which would have chosen the nodes, has no plan; empty: it has chosen them, or isn't asked."""


class Foreseen(NamedTuple):
    """What a job would start with. As text, what ``dlrover-lite plan`` prints: ``print(dlrover_lite.plan("job.yaml"))``."""

    decision: Decision
    """The decision that the brain would make, with its index."""
    inputs: RoundInputs
    """Inputs that the decision would be made from."""

    @property
    def plan(self) -> Plan | None:
        """The nodes that the job would start with; None when it would have to wait, or can't have what it needs."""
        return self.decision.plan

    def text(self, at: float, most: int | None = 12) -> str:
        """Explain the decision in several lines; ``at``: now, in seconds since the epoch; at most ``most`` candidates, None: all."""
        lines = explain(self.decision, policy=self.inputs.policy, most=most).splitlines()
        if (predicted := self.decision.predicted) is not None:
            lines.insert(2, f"It would end at {at_time(at + predicted.seconds)}.")
        return "\n".join(map(cleaned, lines))

    def __str__(self) -> str:
        return self.text(time.time())

    def __repr__(self) -> str:
        return f"<{self.decision.action}: {self.decision.reason}>"


def plan(recipe: Recipes, *, policy: PolicyName | None = None, **overrides: Any) -> Foreseen:
    """Decide what a job of ``recipe`` would start with now, without starting anything; see ``run`` for the arguments. ``policy``: which one
    decides; None: the one that the brain goes by.

    Raises RecipeError for a recipe that can't be run, DataError for data that can't be read, HistoryError when the history can't be.
    """
    resolved = resolve(recipe, overrides)
    return foresee(resolved, index_data(resolved.data, Path(resolved.directory)), policy)


def first_plan(recipe: Recipe, samples: int | None) -> FirstPlan:
    """Find the first plan as a job's master does (``master.autoscale.first_plan``): by the brain where the recipe leaves that open, as
    `plan` shows; else by the recipe, with a rule of thumb. ``samples``: of one epoch; None: not known, so that there is nothing to
    decide by."""
    ours = initial_plan(recipe.resources, these_hosts())
    if autoscale_of(recipe) == "off":
        return FirstPlan(ours, False)
    if samples is None:
        return FirstPlan(ours, False, "the number of samples isn't known yet")
    try:
        decision = foresee(recipe, samples).decision
    except DlroverLiteError as error:
        return FirstPlan(ours, False, error.message)
    if decision.plan is None:
        return FirstPlan(ours, False, decision.reason)
    return FirstPlan(decision.plan, True)


def foresee(recipe: Recipe, samples: int, policy: PolicyName | None = None) -> Foreseen:
    """Foresee what the brain would decide for a job. ``samples``: of one epoch; ``policy``: as of ``plan``. Raises HistoryError when the
    history can't be read."""
    at, files = time.time(), BrainFiles()
    files.make()
    shares_cores = recipe.kubernetes is None and job_backend().shares_cores()
    with ConfigStore(files.database) as store:
        adviser = Advisor(store, policies=Policies(planning=Policy(name=policy) if policy is not None else None))
        for row in running_jobs(store):
            other = arrival_of(store, row)
            if other is not None and other.plan is not None and look_at(row.directory) is None:
                adviser.arrived(other, at)
                standing = _standing(other.job, other.plan)
                adviser.reported(other.job, samples=other.samples, profiles=(), standing=standing, done=())
        name = recipe.name
        while name in adviser.jobs:  # a job's id may be another's name
            name += "'"
        adviser.arrived(
            Arrival(
                job=name,
                features=msgspec.to_builtins(features_of(recipe, rows=samples, owner=user_name())),
                demand=demand_of(recipe, these_hosts(), samples=samples, shared_cores=shares_cores),
                priority=recipe.priority,
                began=at,
            ),
            at,
        )
        decision, inputs = adviser.first(name, at)
        if decision.plan is not None:  # it counts thousandths of cores; what the recipe fixes is as the recipe says
            limits, found = recipe.resources, decision.plan
            as_fixed = Plan(ps=fixed(limits.ps) or found.ps, worker=fixed(limits.worker) or found.worker)
            decision = msgspec.structs.replace(decision, plan=as_fixed)
        return Foreseen(decision, inputs)


def _standing(job: str, plan: Plan) -> Standing | None:
    """Return the standing of a job that could shrink for another; None for one whose plan isn't to be changed now, or that doesn't say
    so."""
    try:
        told = JobHandle(job).autoscale()
    except DlroverLiteError:
        return None
    return None if told.paused or told.decision is not None else Standing(plan=plan)
