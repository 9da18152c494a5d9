"""What screens say before something is done to a job: questions with what follows, and forms with what is possible."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from dlrover_lite.core.errors import UsageError
from dlrover_lite.core.units import Resources, format_bytes, parse_memory
from dlrover_lite.core.words import compact, plural
from dlrover_lite.protocol.plans import Plan, RolePlan, scaling_refusal
from dlrover_lite.tui import formats
from dlrover_lite.tui.model import Autoscaling, Checkpoint, JobDetail, JobRow, NodeRow, RoleNow, Room

__all__ = [
    "SCALE_FIELDS",
    "Field",
    "Question",
    "drain",
    "kill",
    "most_nodes",
    "reject",
    "resize_asked",
    "resize_facts",
    "resize_fields",
    "scale_asked",
    "scale_facts",
    "scale_fields",
    "stop",
]


class Question(NamedTuple):
    text: str
    consequence: str
    instead: str = ""
    """Answer that r gives, beside yes and no; empty: there is none."""


class Field(NamedTuple):
    """A field of a form."""

    name: str
    label: str
    value: str
    note: str
    """Note beside the field."""


# --- questions --------------------------------------------------------------------------------------------------------


def stop(row: JobRow, detail: JobDetail | None) -> Question:
    learned = f"what it has learned from {compact(row.samples)} samples" if row.samples else "what it has learned"
    if detail is None or not detail.nodes or not detail.heard:
        consequence = (
            "It takes a last checkpoint, if it takes any, and ends. It can be resumed from that. If it takes none, "
            f"{learned} is lost."
        )
    elif detail.checkpoints is None:
        consequence = f"It ends. It takes no checkpoints, so {learned} is lost."
    else:
        newest = detail.checkpoints.newest
        instead = (
            f"{learned} would be lost" if newest is None else f"what it did after {_named(newest)} would be done again"
        )
        consequence = (
            f"It takes a last checkpoint and ends. It can be resumed from that. Should that one fail, {instead}."
        )
    return Question(f"Stop {row.id}?", consequence)


def _named(one: Checkpoint) -> str:
    return f"checkpoint {one.number} of {formats.clock(one.at)}"


def reject(row: JobRow, now: Autoscaling) -> Question:
    """Ask whether to reject what is under way."""
    return Question(
        f"Drop decision {now.decision} for {row.id}?",
        f"The brain is carrying it out: {now.what}. What was changed already stays, the rest isn't done.",
    )


def drain(row: JobRow, detail: JobDetail, node: NodeRow) -> Question:
    peers = sum(other.alive and other.role == node.role for other in detail.nodes) - 1
    if node.role == "ps":
        slots = plural(node.slots or 0, "slot")
        how = f"Its {slots} move to others while training goes on, then it leaves."
        there = plural(peers, "parameter server")
    else:
        how = "It finishes its minibatch, gives back the rest of its share, and leaves."
        there = plural(peers, "worker")
    stays = "stays" if peers == 1 else "stay"
    return Question(
        f"Drain {node.id} of {row.id}?",
        f"{how} {there} {stays}, unless another one is to take its place. No sample is done again.",
        "replace it by another one",
    )


def kill(row: JobRow, detail: JobDetail, node: NodeRow) -> Question:
    if node.role == "ps":
        text = (
            "It ends at once, and another one takes its place, which finds its rows in memory. Workers wait for that, "
            f"mostly less than a second; no sample is done again. {_if_memory_is_lost(detail)}"
        )
    else:
        leased = f" (it has {node.leased:,})" if node.leased else ""
        text = (
            f"It ends at once, and another one takes its place. Others do the minibatches that it had still to do{leased}; those it was "
            "at are done again. No sample is lost, and none counts twice."
        )
    return Question(f"Kill {node.id} of {row.id}?", text)


def _if_memory_is_lost(detail: JobDetail) -> str:
    if detail.checkpoints is None:
        return "Should its memory be damaged, the job fails: it takes no checkpoints."
    newest = detail.checkpoints.newest
    if newest is None:
        return "Should its memory be damaged, the job begins again at its start: it has no checkpoint yet."
    return f"Should its memory be damaged, the job goes back to {_named(newest)}."


# --- forms ------------------------------------------------------------------------------------------------------------


def most_nodes(room: Room, role: RoleNow, other: RoleNow) -> int | None:
    """Return how many of a role there could be beside those of the other one, by what most of them have; None: that isn't known."""
    if not role.memory or not role.cores or not room.is_known:
        return None
    most = (room.memory - other.count * other.memory) // role.memory
    most = min(most, math.floor((_cores_of(room) - other.count * other.cores) / role.cores + 1e-9))
    return max(role.count, most)


def _cores_of(room: Room) -> float:
    """Return the number of cores that all nodes may have together."""
    return room.machine_cores if room.cores is None else min(room.machine_cores, room.cores)


SCALE_FIELDS = (Field("workers", "workers", "", ""), Field("servers", "PS", "", ""))
"""Fields of the form before it is known what there is."""


def scale_fields(room: Room) -> tuple[Field, ...]:
    return (
        Field("workers", "workers", str(room.workers.count), _each(room, room.workers, room.servers)),
        Field("servers", "PS", str(room.servers.count), _each(room, room.servers, room.workers)),
    )


def _each(room: Room, role: RoleNow, other: RoleNow) -> str:
    most = most_nodes(room, role, other)
    if most is None:
        return ""
    return f"at most {most:,}; each {role.cores:g} cores, {format_bytes(role.memory)}"


def scale_facts(room: Room) -> str:
    there = f"All together may have {_cores_of(room):g} cores and {format_bytes(room.memory)}."
    if not room.is_known:
        there = f"How much there is room for shows in {room.place} itself: nodes wait until it has some."
    return f"{there} Training goes on meanwhile; autoscaling is paused by it. z on a node gives that one more or less."


def scale_asked(room: Room, values: Mapping[str, str]) -> tuple[int | None, int | None]:
    """Return the numbers of workers and PS that are asked for; None where that stays as it is. Raises UsageError, naming the field."""
    workers = _count("workers", values["workers"], room.workers.count)
    servers = _count("PS", values["servers"], room.servers.count)
    if workers is None and servers is None:
        raise UsageError("That is what it has: write another number, or leave with esc")
    _check_room(room, workers, servers)
    return workers, servers


_SHARED = "From a shell, dlrover-lite scale takes more than there are cores: nodes share them."


def _check_room(room: Room, workers: int | None, servers: int | None) -> None:
    """Raise UsageError for more than there is room for, in the words of a master that refuses it."""
    worker, ps = room.workers, room.servers
    if most_nodes(room, worker, ps) is None or most_nodes(room, ps, worker) is None:
        return  # their sizes aren't known: the master will say
    plan = Plan(
        ps=RolePlan(ps.count, Resources(ps.cores, ps.memory)),
        worker=RolePlan(worker.count, Resources(worker.cores, worker.memory)),
    )
    by_recipe = room.cores is not None and room.cores < room.machine_cores
    refused = scaling_refusal(
        plan,
        worker.count if workers is None else workers,
        ps.count if servers is None else servers,
        memory=room.memory,
        cores=_cores_of(room),
        allows="resources.total allows" if by_recipe else f"{room.place} has",
        no_cores="Raise resources.total." if by_recipe else _SHARED,
    )
    if refused is not None:
        raise UsageError(refused.why, hint=refused.hint)


def _count(label: str, text: str, now: int) -> int | None:
    text = text.strip()
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= 6):
        raise UsageError(f"{label}: {text} is no number of nodes; write one from 1 on")
    if (count := int(text)) < 1:
        raise UsageError(f"{label}: a job needs one at least; ^d on it stops it")
    return None if count == now else count


def resize_fields(node: NodeRow) -> tuple[Field, ...]:
    used = f"{node.used_cores:.2g} used now" if node.used_cores is not None else ""
    memory = f"{format_bytes(node.used_memory)} used now" if node.used_memory else ""
    if node.peak_memory:
        memory += f"{', ' if memory else ''}{format_bytes(node.peak_memory)} at its peak"
    return (
        Field("cores", "cores", f"{node.cores:g}", used),
        Field("memory", "memory", _written(node.memory), memory),
    )


def resize_facts(node: NodeRow, room: Room | None = None) -> str:
    """Say what follows from another size. ``room``: what there is; None: it isn't known so far."""
    when = " when it has tidied up" if node.role == "ps" else ""
    return (
        f"{_there_for(node, room)}More is given at once, where there is room. Less memory is taken{when}, if less than 90% of that is "
        "in use. The node that takes its place later is as large as the plan says. Autoscaling is paused by it."
    )


def _there_for(node: NodeRow, room: Room | None) -> str:
    """Say how much a node may have beside the others of its job."""
    if room is None or not room.is_known:
        return ""
    roles = (room.workers, room.servers)
    cores = _cores_of(room) - sum(role.count * role.cores for role in roles) + node.cores
    memory = room.memory - sum(role.count * role.memory for role in roles) + node.memory
    return (
        f"All together may have {_cores_of(room):g} cores and {format_bytes(room.memory)}: beside the others, {node.id} up to "
        f"{max(cores, node.cores):g} cores and {format_bytes(max(memory, node.memory))}. "
    )


def resize_asked(node: NodeRow, values: Mapping[str, str]) -> tuple[float | None, int | None]:
    """Return the cores and bytes that are asked for; None where that stays as it is. Raises UsageError, naming the field."""
    cores, memory = _cores(values["cores"], node.cores), _memory(values["memory"], node.memory)
    if cores is None and memory is None:
        raise UsageError("That is what it has: write something else, or leave with esc")
    return cores, memory


def _cores(text: str, now: float) -> float | None:
    text = text.strip()
    if text in ("", f"{now:g}"):
        return None
    try:
        cores = float(text)
    except ValueError:
        cores = math.nan
    if not 0 < cores < math.inf:
        raise UsageError(f"cores: {text} is no number of cores; write it as in 1.5")
    return cores


def _memory(text: str, now: int) -> int | None:
    text = text.strip()
    if text in ("", _written(now)):
        return None
    try:
        memory = parse_memory(text)
    except ValueError as error:
        raise UsageError(f"memory: {error}") from error
    if not 0 < memory < 1 << 63:
        raise UsageError(f"memory: no node can have {text}; write it as in 2GiB")
    return memory


def _written(memory: int) -> str:
    """Write an amount of memory so that it can be read again."""
    return format_bytes(memory).replace(" ", "")
