"""The users' plans, manual ones in DLRover-RM (VLDB 2024): what each job's user asks for, from its beginning to its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dlrover_lite.protocol.plans import Plan
from dlrover_lite.simulation.policies.policy import HostReport, JobReport

__all__ = ["Manual"]


class Manual:
    """Waits for room for the request, and changes nothing."""

    def first(self, job: JobReport, hosts: Sequence[HostReport]) -> Plan | None:
        return job.request

    def plans(self, now: float, jobs: Sequence[JobReport], hosts: Sequence[HostReport]) -> Mapping[str, Plan]:
        return {}
