"""The users' plans: what each job's user asks for, from its beginning to its end. It is what DLRover-RM (VLDB 2024) calls manual."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dlrover_lite.protocol.plans import Plan
from dlrover_lite.simulation.policies.policy import HostReport, JobReport

__all__ = ["Static"]


class Static:
    """Waits for room for the request, and changes nothing."""

    def first(self, job: JobReport, hosts: Sequence[HostReport]) -> Plan | None:
        return job.request

    def plans(self, now: float, jobs: Sequence[JobReport], hosts: Sequence[HostReport]) -> Mapping[str, Plan]:
        return {}
