"""Nodes beside their peers, over the intervals that a treatment rests on."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from dlrover_lite.brain.explain.explanation_data import Peer
from dlrover_lite.brain.healing.mitigation import HealInputs, NodeNow, Treatment
from dlrover_lite.brain.healing.slow_nodes import against_peers
from dlrover_lite.protocol.acts import MEMORY_CAUSES
from dlrover_lite.protocol.profiles import Profile, PsUse, WorkerUse

__all__ = ["peers_of"]


def peers_of(inputs: HealInputs, treatment: Treatment) -> tuple[Peer, ...]:
    """List the nodes of the role of the node that is treated, that node first; () where nothing was measured of them."""
    if treatment.cause in MEMORY_CAUSES:
        return _by_memory(inputs, treatment)
    windows = _windows(inputs)
    if not windows:
        return ()
    if treatment.cause == "slow worker":
        names = _ordered(treatment.node, [use.node for use in windows[-1].workers])
        return tuple(_worker(name, windows, treatment.node) for name in names)
    if treatment.cause == "hot ps":
        names = _ordered(treatment.node, [use.node for use in windows[-1].ps])
        return tuple(_server(name, windows, treatment.node) for name in names)
    return ()


def _ordered(first: str, names: Sequence[str]) -> list[str]:
    return sorted(names, key=lambda name: (name != first, names.index(name)))


def _windows(inputs: HealInputs) -> Sequence[Profile]:
    """Return the newest profiles with the same nodes as the last one, as many as trouble has to be seen in."""
    found: list[Profile] = []
    for profile in reversed(inputs.profiles):
        if found and _nodes(profile) != _nodes(found[0]):
            break
        found.append(profile)
        if len(found) == inputs.policy.windows:
            break
    return found[::-1]


def _nodes(profile: Profile) -> set[str]:
    return {use.node for use in profile.workers} | {use.node for use in profile.ps}


def _worker(name: str, windows: Sequence[Profile], treated: str) -> Peer:
    uses = [use for profile in windows for use in profile.workers if use.node == name]
    seconds = sum(profile.seconds for profile in windows)
    shares = [share for profile in windows if (share := against_peers(profile, name)) is not None]
    return Peer(
        node=name,
        treated=name == treated,
        cores=uses[-1].cores,
        rate=sum(use.minibatches for use in uses) / seconds,
        expected=median(shares) if shares else None,
        held=_held(uses, windows),
    )


def _server(name: str, windows: Sequence[Profile], treated: str) -> Peer:
    uses = [use for profile in windows for use in profile.ps if use.node == name]
    seconds = sum(profile.seconds for profile in windows)
    busy, minibatches = sum(use.busy_seconds for use in uses), sum(use.minibatches for use in uses)
    return Peer(
        node=name,
        treated=name == treated,
        cores=uses[-1].cores,
        busy=busy / seconds,
        waiting=sum(use.queue_seconds for use in uses) / seconds,
        minibatch_seconds=busy / minibatches if minibatches else None,
        held=_held(uses, windows),
    )


def _held(uses: Sequence[WorkerUse] | Sequence[PsUse], windows: Sequence[Profile]) -> float | None:
    """Return the share of the time in which its own limit held a node back; None where nodes share their cores: they are stopped
    together."""
    if windows[-1].shared_cores:
        return None
    return sum(use.throttled_seconds for use in uses) / sum(profile.seconds for profile in windows)


def _by_memory(inputs: HealInputs, treatment: Treatment) -> tuple[Peer, ...]:
    """Show what nodes held, beside their limits."""
    known = {node.node: node for node in inputs.nodes}
    treated = known.get(treatment.node)
    role = treated.role if treated is not None else "ps"
    held = {one.node: one.used_bytes for one in inputs.held[-1].ps} if inputs.held else {}
    nodes = [node for node in inputs.nodes if node.role == role]

    def peer(node: NodeNow) -> Peer:
        return Peer(
            node=node.node,
            treated=node.node == treatment.node,
            cores=node.resources.cores,
            used=held.get(node.node) or node.used_bytes or None,
            limit=node.resources.memory,
        )

    return tuple(peer(known[name]) for name in _ordered(treatment.node, [node.node for node in nodes]))
