"""What plan a job would start with, if it were started now: nothing runs, and nothing is stored."""

from __future__ import annotations

import os
import pwd
import time
from pathlib import Path
from typing import NamedTuple

import msgspec

from dlrover_lite.brain.adviser import Adviser, Arrival, readable
from dlrover_lite.brain.daemon import look_at
from dlrover_lite.brain.decision import Decision
from dlrover_lite.brain.demand import Standing, demand_of
from dlrover_lite.brain.features import features_of
from dlrover_lite.brain.job_view import RoundInputs
from dlrover_lite.brain.plan import Plan
from dlrover_lite.brain.store.database import ConfigStore
from dlrover_lite.errors import DlroverLiteError
from dlrover_lite.jobs.brain_files import BrainFiles
from dlrover_lite.jobs.handle import JobHandle, this_machine
from dlrover_lite.jobs.store import Job
from dlrover_lite.recipe.schema import Recipe

__all__ = ["Foreseen", "foresee"]


class Foreseen(NamedTuple):
    decision: Decision
    """With its index."""
    inputs: RoundInputs


def foresee(recipe: Recipe, samples: int) -> Foreseen:
    """``samples``: of one epoch. Raises HistoryError when the history can't be read."""
    at, files = time.time(), BrainFiles()
    files.make()
    with ConfigStore(files.database) as store:
        adviser = Adviser(store)
        for directory, other in readable(store):
            if other.plan is not None and look_at(directory) is None:
                adviser.arrived(other, at)
                standing = _standing(Path(directory), other.plan)
                adviser.reported(other.job, samples=other.samples, profiles=(), standing=standing, done=())
        name = recipe.name
        while name in adviser.jobs:  # a job's id may be another's name
            name += "'"
        adviser.arrived(
            Arrival(
                job=name,
                features=msgspec.to_builtins(features_of(recipe, rows=samples, owner=_user())),
                demand=demand_of(recipe, this_machine(), samples=samples),
                priority=recipe.priority,
                began=at,
            ),
            at,
        )
        return Foreseen(*adviser.first(name, at))


def _standing(directory: Path, plan: Plan) -> Standing | None:
    """Of a job that could shrink for another; None for one whose plan isn't to be changed now, or that doesn't say so."""
    try:
        told = JobHandle(Job(directory)).autoscale()
    except DlroverLiteError:
        return None
    return None if told.paused or told.decision is not None else Standing(plan=plan)


def _user() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:  # as in a container that runs with any number
        return str(os.geteuid())
