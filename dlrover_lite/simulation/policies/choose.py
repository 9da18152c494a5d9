"""Policies by their names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dlrover_lite.backends.sim.fluid.job import JobRequest
from dlrover_lite.backends.sim.physics.machines import Machine
from dlrover_lite.backends.sim.physics.rates import Rates
from dlrover_lite.simulation.policies.policy import Policy

__all__ = ["POLICIES", "policy_named"]

POLICIES = ("manual", "es", "optimus", "tuned")


def policy_named(name: str, truth: Iterable[JobRequest], machines: Sequence[Machine], rates: Rates) -> Policy:
    """Make a policy. ``truth``, ``machines`` and ``rates`` are for the oracle: no other is told them."""
    match name:
        case "manual":
            from dlrover_lite.simulation.policies.manual import Manual

            return Manual()
        case "es":
            from dlrover_lite.simulation.policies.es import ElasticScaling

            return ElasticScaling()
        case "optimus":
            from dlrover_lite.simulation.policies.optimus import Optimus

            return Optimus()
        case "tuned":
            from dlrover_lite.simulation.policies.tuned import Tuned

            return Tuned(truth, machines, rates)
    raise ValueError(f"no policy is called {name}")
