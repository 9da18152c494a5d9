"""Plans: how many nodes of each role a job gets, and how large each is; and the one it starts with when nothing is known yet."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from dlrover_lite.core.bounds import Count
from dlrover_lite.core.units import Resources, format_bytes
from dlrover_lite.protocol.hosts import Host, largest_of, total_of
from dlrover_lite.recipe.schema import ResourceLimits, RoleResources

_WHAT = {"worker": "workers", "ps": "parameter servers"}
_ROUNDING = 1e-9
_WORKERS_PER_PS = 8
_PS_SHARE_OF_CORES = 0.25
_PS_SHARE_OF_MEMORY = 0.5
_WORKER_SHARE_OF_MEMORY = 0.25


class RolePlan(msgspec.Struct, frozen=True):
    """A role's nodes: ``count`` nodes of ``each``."""

    count: Count
    each: Resources

    def with_memory(self, least: int) -> RolePlan:
        """Return the plan with no less memory for each node than ``least`` bytes."""
        return RolePlan(self.count, Resources(self.each.cores, max(self.each.memory, least)))


class Plan(msgspec.Struct, frozen=True):
    ps: RolePlan
    worker: RolePlan

    def describe(self) -> str:
        def role(name: str, plan: RolePlan) -> str:
            return f"{plan.count} {name} x {plan.each.cores:g} cores"

        return f"{role('ps', self.ps)}, {role('worker', self.worker)}"


def initial_plan(limits: ResourceLimits, hosts: Sequence[Host]) -> Plan:
    """Plan what the recipe fixes, and for a role left to ``auto`` go by a rule of thumb within the ceiling: as many workers as cores, one
    PS for every eight of them, a quarter of the cores and half of the memory for the PS; no node larger than the largest host."""
    capacity, most = total_of(hosts), largest_of(hosts)
    cores = min(limits.total.cores, capacity.cores) if limits.total else capacity.cores
    memory = min(limits.total.memory, capacity.memory) if limits.total else capacity.memory
    workers = limits.worker.count if limits.worker else max(1, math.floor(cores))
    servers = limits.ps.count if limits.ps else max(1, workers // _WORKERS_PER_PS)
    ps_cores = _cores(limits.ps) or cores * _PS_SHARE_OF_CORES
    worker_cores = _cores(limits.worker) or max(cores - ps_cores, cores * (1 - _PS_SHARE_OF_CORES))
    return Plan(
        ps=fixed(limits.ps) or RolePlan(servers, _each(servers, ps_cores, memory * _PS_SHARE_OF_MEMORY).within(most)),
        worker=fixed(limits.worker)
        or RolePlan(workers, _each(workers, worker_cores, memory * _WORKER_SHARE_OF_MEMORY).within(most)),
    )


class ScalingRefusal(NamedTuple):
    """Why a job can't have so many nodes, and what to ask for instead."""

    why: str
    hint: str


def scaling_refusal(
    plan: Plan,
    workers: int,
    servers: int,
    *,
    memory: int,
    cores: float | None,
    allows: str = "resources.total allows",
    no_cores: str = "Raise resources.total.",
    more_memory: int = 0,
) -> ScalingRefusal | None:
    """Judge whether a job with ``plan`` can have so many nodes of its sizes; None: it can, as it always can have fewer.

    ``memory``: bytes that all nodes may have together. ``cores``: the same (None: as many as it likes), which ``allows`` says in words;
    ``no_cores``: what to do where there are none for even one. ``more_memory``: bytes that nodes have on top of the plan's.
    """
    counts = {"worker": workers, "ps": servers}
    for role, other in (("worker", "ps"), ("ps", "worker")):
        now, beside = (plan.worker, plan.ps) if role == "worker" else (plan.ps, plan.worker)
        count, each, others = counts[role], now.each, counts[other] * beside.each.memory + more_memory
        if count <= now.count:
            continue
        other_cores = counts[other] * beside.each.cores
        most = (memory - others) // each.memory
        if cores is not None:
            most = min(most, math.floor((cores - other_cores) / each.cores + _ROUNDING))
        if count <= most:
            continue
        if (needed := count * each.memory + others) > memory:
            why = f"{_WHAT[role]} of {format_bytes(each.memory)} beside the {_WHAT[other]} need {format_bytes(needed)}"
            there, otherwise = (
                f"there are {format_bytes(memory)}",
                f"Give each of the {_WHAT[role]} less memory in the recipe.",
            )
        else:
            why = f"{_WHAT[role]} need {count * each.cores + other_cores:g} cores with the {_WHAT[other]}"
            there, otherwise = f"{allows} {cores:g}", no_cores
        return ScalingRefusal(
            f"{count} {why}; {there}", f"Ask for at most {most}." if most >= max(1, now.count) else otherwise
        )
    return None


def more_than_there_is(limits: ResourceLimits, machine: Resources) -> list[str]:
    """List what a recipe fixes and this machine can't give, though it can be tried: a phrase each. What the recipe leaves open is made to
    fit."""
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


def fixed(role: RoleResources | None) -> RolePlan | None:
    """Return what the recipe fixes for a role; None: nothing."""
    return None if role is None else RolePlan(role.count, Resources(role.cores, role.memory))


def _each(count: int, cores: float, memory: float) -> Resources:
    return Resources(round(cores / count, 2), int(memory / count))
