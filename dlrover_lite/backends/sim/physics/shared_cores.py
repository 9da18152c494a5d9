"""Nodes that share the cores which they have together on a machine, as a job's do on a workstation: in a cluster each has its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dlrover_lite.backends.sim.physics.machines import Machine
from dlrover_lite.backends.sim.physics.queues import Node

__all__ = ["share_cores"]


def share_cores(
    workers: Sequence[Node], servers: Sequence[Node], machines: Sequence[Machine]
) -> tuple[list[Node], list[Node], list[Machine]]:
    """Return nodes and machines as they are to each other where a job's nodes share their cores: each has its threads, one at the least,
    and a machine no more cores for them than they have there together."""
    together = [sum(node.cores for node in [*workers, *servers] if node.host == at) for at in range(len(machines))]
    return (
        [replace(worker, cores=max(1.0, worker.cores)) for worker in workers],
        [replace(server, cores=1.0) for server in servers],
        [
            replace(machine, cores=min(machine.cores, cores)) if cores else machine
            for machine, cores in zip(machines, together, strict=True)
        ],
    )
