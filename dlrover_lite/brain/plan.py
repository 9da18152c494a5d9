"""Plans: how many nodes of each role a job gets, and how large each is; and the one it starts with when nothing is known yet."""

from __future__ import annotations

import math

import msgspec

from dlrover_lite.bounds import Count
from dlrover_lite.recipe.schema import ResourceLimits, RoleResources
from dlrover_lite.units import Resources, format_bytes

__all__ = ["Plan", "RolePlan", "initial_plan", "more_than_there_is"]

_WORKERS_PER_PS = 8
_PS_SHARE_OF_CORES = 0.25
_PS_SHARE_OF_MEMORY = 0.5
_WORKER_SHARE_OF_MEMORY = 0.25


class RolePlan(msgspec.Struct, frozen=True):
    """``count`` nodes of ``each``."""

    count: Count
    each: Resources


class Plan(msgspec.Struct, frozen=True):
    ps: RolePlan
    worker: RolePlan

    def describe(self) -> str:
        def role(name: str, plan: RolePlan) -> str:
            return f"{plan.count} {name} x {plan.each.cores:g} cores"

        return f"{role('ps', self.ps)}, {role('worker', self.worker)}"


def initial_plan(limits: ResourceLimits, capacity: Resources) -> Plan:
    """What the recipe fixes, and for a role left to ``auto`` a rule of thumb within the ceiling: as many workers as cores, one PS for
    every eight of them, a quarter of the cores and half of the memory for the PS."""
    cores = min(limits.total.cores, capacity.cores) if limits.total else capacity.cores
    memory = min(limits.total.memory, capacity.memory) if limits.total else capacity.memory
    workers = limits.worker.count if limits.worker else max(1, math.floor(cores))
    servers = limits.ps.count if limits.ps else max(1, workers // _WORKERS_PER_PS)
    ps_cores = _cores(limits.ps) or cores * _PS_SHARE_OF_CORES
    worker_cores = _cores(limits.worker) or max(cores - ps_cores, cores * (1 - _PS_SHARE_OF_CORES))
    return Plan(
        ps=_fixed(limits.ps) or RolePlan(servers, _each(servers, ps_cores, memory * _PS_SHARE_OF_MEMORY)),
        worker=_fixed(limits.worker)
        or RolePlan(workers, _each(workers, worker_cores, memory * _WORKER_SHARE_OF_MEMORY)),
    )


def more_than_there_is(limits: ResourceLimits, machine: Resources) -> list[str]:
    """What a recipe fixes and this machine can't give, though it can be tried: a phrase each. What it leaves open is made to fit."""
    found = []
    roles = [(name, role) for name, role in (("parameter server", limits.ps), ("worker", limits.worker)) if role]
    for name, role in roles:
        if role.cores > machine.cores:
            found.append(f"a {name} is to have {role.cores:g} cores, and this machine has {machine.cores:g}")
    memory = sum(role.count * role.memory for _, role in roles)
    if memory > machine.memory:
        who = " and ".join(f"{role.count} {name}{'s' * (role.count != 1)}" for name, role in roles)
        found.append(
            f"{who} may take {format_bytes(memory)} of memory together, and this machine has {format_bytes(machine.memory)}: "
            "the job fails if they use it"
        )
    return found


def _cores(role: RoleResources | None) -> float | None:
    return role.count * role.cores if role else None


def _fixed(role: RoleResources | None) -> RolePlan | None:
    return RolePlan(role.count, Resources(role.cores, role.memory)) if role else None


def _each(count: int, cores: float, memory: float) -> Resources:
    return Resources(round(cores / count, 2), int(memory / count))
