"""How jobs share the network cards of the machines that they are on together."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Generic, TypeVar

from dlrover_lite.backends.sim.physics.cpu_sharing import share_cores

__all__ = ["JobKey", "NetworkCards"]

_STEPS = 16
"""Steps of a card in which parts are told: each part of a job's cards has a rate of its own, which takes long to compute."""

JobKey = TypeVar("JobKey", bound=Hashable)


class NetworkCards(Generic[JobKey]):
    """What each job would have come to each machine, in bytes a second, were it alone there, and the part of the card that it has by that.

    A card that carries all that is wanted of it slows nobody. Of another one jobs get parts as connections of equal weight do: what some
    don't want goes evenly to the others. What a job wants is by its nodes alone, not by what it gets elsewhere, so that parts don't go back
    and forth.
    """

    def __init__(self) -> None:
        self._wanted: dict[JobKey, Mapping[int, float]] = {}
        self._parts: dict[JobKey, dict[int, float]] = {}

    def wants(self, job: JobKey, bytes_per_second: Mapping[int, float], cards: Mapping[int, float]) -> list[JobKey]:
        """Note what a job wants of machines, and what their ``cards`` carry, both in bytes a second; return the other jobs whose parts are
        others by that."""
        before = self._wanted.get(job, {})
        if bytes_per_second == before:
            return []
        if bytes_per_second:
            self._wanted[job] = dict(bytes_per_second)
        else:
            self._wanted.pop(job, None)
        changed: dict[JobKey, None] = {}
        for host in sorted(before.keys() | bytes_per_second.keys()):
            changed |= dict.fromkeys(self._divide(host, cards[host]))
        changed.pop(job, None)
        return list(changed)

    def parts(self, job: JobKey) -> Mapping[int, float]:
        """Return the part of a machine's card that a job has, by machine, where that is less than all."""
        return self._parts.get(job, {})

    @property
    def is_shared(self) -> bool:
        """More is wanted of some card than it carries."""
        return any(self._parts.values())

    def _divide(self, host: int, card: float) -> list[JobKey]:
        """Divide a machine's card anew; return those whose part is another one."""
        jobs = [job for job, wanted in self._wanted.items() if host in wanted]
        wanted = [self._wanted[job][host] for job in jobs]
        is_enough = sum(wanted) <= card
        found = {} if is_enough else dict(zip(jobs, share_cores(wanted, card), strict=True))
        changed = []
        for job in {**dict.fromkeys(jobs), **dict.fromkeys(job for job, of in self._parts.items() if host in of)}:
            part = max(1, round(found[job] / card * _STEPS)) / _STEPS if job in found else 1.0
            before = self._parts.get(job, {})
            if part != before.get(host, 1.0):
                changed.append(job)
                others = {at: of for at, of in before.items() if at != host}
                self._parts[job] = others if part == 1.0 else {**others, host: part}
        return changed
