"""What jobs can have, kept from round to round until what it follows from changes: of a thousand jobs few have told anything new."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeVar

import msgspec

from dlrover_lite.brain.planning.job_view import JobView, ModelData, Policy
from dlrover_lite.brain.planning.pareto import ThroughputModel
from dlrover_lite.brain.planning.plan_values import Found, Options
from dlrover_lite.brain.planning.rules import rules_of
from dlrover_lite.core.units import Resources
from dlrover_lite.protocol.hosts import Host

__all__ = ["KeptOptions"]

T = TypeVar("T")
Load = Callable[[ModelData], ThroughputModel]


class _Kept:
    """What one job can have, and what that was found from."""

    def __init__(self) -> None:
        self.data: ModelData | None = None
        self.model: ThroughputModel | None = None
        self.found: Found = {}
        """What was searched with the model: the front, and predictions of plans."""
        self.follows_from: tuple[object, ...] | None = None
        self.options: Options | None = None
        self.made: dict[int, Any] = {}
        """What decisions are stored with, made of these options, by position of the choice."""


class KeptOptions:
    """Options of jobs, by job; the same as ``options_of`` of the policy gives anew."""

    def __init__(self) -> None:
        self._of: dict[str, _Kept] = {}

    def keep(self, jobs: Collection[str]) -> None:
        """Forget all jobs but these."""
        for job in self._of.keys() - set(jobs):
            del self._of[job]

    def made(self, job: str, at: int, make: Callable[[], T]) -> T:
        """Return what is made of a job's options for the choice at a position; it is made once."""
        its = self._of[job].made
        if at not in its:
            its[at] = make()
        found: T = its[at]
        return found

    def model_of(self, job: str) -> ThroughputModel | None:
        """Return the model that a job's options follow from."""
        return self._of[job].model

    def of(
        self, view: JobView, load: Load, capacity: Resources, policy: Policy, hosts: Sequence[Host]
    ) -> Options | None:
        rules, kept = rules_of(policy.name), self._of.setdefault(view.job, _Kept())
        data = rules.model_of(view)
        if kept.model is None or kept.data != data:
            kept.data, kept.model, kept.found = data, load(data), {}
        # how long a job runs or waits says nothing of its plans
        follows_from = _timeless(view), capacity, policy, hosts
        if kept.follows_from != follows_from:
            kept.options = rules.options_of(view, kept.model, capacity, policy, hosts, found=kept.found)
            kept.follows_from, kept.made = follows_from, {}
        if kept.options is None:
            return None
        times = {"ran_seconds": view.ran_seconds, "waited_seconds": view.waited_seconds}
        return kept.options._replace(view=msgspec.structs.replace(kept.options.view, **times))


def _timeless(view: JobView) -> JobView:
    return msgspec.structs.replace(view, ran_seconds=0.0, waited_seconds=0.0)
