"""The two policies that decide which plan each job gets: ``lite``, ours, and ``paper``, that of DLRover-RM (VLDB 2024), to compare with.

Both are given the same rounds, and share who is let in, who gives way, the capacity of every host, and stage 3.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from dlrover_lite.brain.planning.change_policy import Settled, may_wait, settle
from dlrover_lite.brain.planning.job_view import JobView, ModelData
from dlrover_lite.brain.planning.paper.plan_weights import model_of, weighed_options
from dlrover_lite.brain.planning.paper.weighted_greedy import share
from dlrover_lite.brain.planning.plan_values import Options, options_of
from dlrover_lite.protocol.acts import PolicyName

__all__ = ["Rules", "rules_of"]


class Rules(NamedTuple):
    model_of: Callable[[JobView], ModelData]
    """Chooses the throughput model of a job."""
    options_of: Callable[..., Options | None]
    """Finds the plans that a job can have, and what each is worth (``plan_values.options_of``)."""
    may_wait: Callable[..., dict[str, float]]
    """Finds the jobs that may be told to wait though there is room for them (``change_policy.may_wait``)."""
    settle: Callable[..., Settled]
    """Chooses among the plans of all jobs (``change_policy.settle``)."""
    named: str
    """What every reason begins with, so that nobody takes the decisions of one policy for the other's."""


def _nobody(*_: object) -> dict[str, float]:
    return {}


_RULES: dict[PolicyName, Rules] = {
    "lite": Rules(lambda view: view.model, options_of, may_wait, settle, ""),
    "paper": Rules(model_of, weighed_options, _nobody, share, "by the paper's policy: "),
}


def rules_of(name: PolicyName) -> Rules:
    return _RULES[name]
