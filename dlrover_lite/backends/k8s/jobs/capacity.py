"""What a namespace may have: as much as its quotas say, on the nodes that may be seen."""

from __future__ import annotations

from typing import Any

from dlrover_lite.backends.k8s.api.calls import Calls
from dlrover_lite.backends.k8s.api.problems import ApiProblem
from dlrover_lite.backends.k8s.objects.quantities import read_quantity
from dlrover_lite.core.units import MOST_CORES, MOST_MEMORY, Resources
from dlrover_lite.protocol.hosts import Host

__all__ = ["capacity_of"]

_CPU, _MEMORY = ("requests.cpu", "cpu", "limits.cpu"), ("requests.memory", "memory", "limits.memory")


def capacity_of(calls: Calls, name: str) -> list[Host]:
    """Return the nodes as hosts, where they may be listed; else a single host, called ``name``, with what the quotas leave. Raises
    BackendError."""
    try:
        nodes = calls.list("Node")["items"]
    except ApiProblem as problem:
        if problem.status != 403:
            raise
        nodes = []
    hosts = [_host(one) for one in nodes if not one.get("spec", {}).get("unschedulable")]
    left = _left(calls)
    if hosts:
        return [Host(host.name, host.resources.within(left)) for host in hosts]
    return [Host(name, left)]


def _host(node: dict[str, Any]) -> Host:
    sizes = node.get("status", {}).get("allocatable", {})
    return Host(
        node["metadata"]["name"], Resources(read_quantity(sizes.get("cpu", "0")), _bytes(sizes.get("memory", "0")))
    )


def _left(calls: Calls) -> Resources:
    """Return what the namespace's quotas leave; all that a job can ask for where there is none, or it may not be known."""
    cores, memory = float(MOST_CORES), MOST_MEMORY
    try:
        quotas = calls.list("ResourceQuota")["items"]
    except ApiProblem as problem:
        if problem.status != 403:
            raise
        quotas = []
    for quota in quotas:
        status = quota.get("status", {})
        hard, used = status.get("hard", {}), status.get("used", {})
        for key in hard:
            if key in _CPU:
                cores = min(cores, max(0.0, read_quantity(hard[key]) - read_quantity(used.get(key, "0"))))
            elif key in _MEMORY:
                memory = min(memory, max(0, _bytes(hard[key]) - _bytes(used.get(key, "0"))))
    return Resources(cores, memory)


def _bytes(quantity: str) -> int:
    return int(read_quantity(quantity))
