"""What a person may do to jobs from the screens, and why it can't be done just now."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal, NamedTuple

from dlrover_lite.core.errors import JobError
from dlrover_lite.core.processes.this_process import user_name
from dlrover_lite.core.units import Resources
from dlrover_lite.tui.model import Autoscaling, JobDetail, JobRow, NodeRow, RoleNow, Room

if TYPE_CHECKING:
    from dlrover_lite.client.handle import JobHandle
    from dlrover_lite.protocol.questions import NodeStatus

__all__ = ["Actions", "Aim", "Wanted", "why_not"]

Wanted = Literal["pause", "resume", "accept", "reject"]
_ROLES = {"ps": "parameter server", "worker": "worker"}
_LEAVING = ("draining", "ending")


class Aim(NamedTuple):
    """What an action is about, as far as that is known just now."""

    row: JobRow | None
    detail: JobDetail | None = None
    node: NodeRow | None = None


# --- why not ----------------------------------------------------------------------------------------------------------


def why_not(action: str, aim: Aim, *, user: str = "") -> str:
    """Say why it can't be done; empty: it can, as far as is known here. It is asked for each key with each look, so it knows no more than
    what is shown; the rest is for the master to say when it is tried. ``user``: who acts."""
    row = aim.row
    if row is None:
        return "No job is chosen"
    if row.over:
        return f"{row.id} has ended"
    if not row.directory and not row.source:
        return f"{row.id} isn't on this machine"
    if user and row.owner and row.owner != user and not row.source:  # in a cluster its roles say who may
        return f"The master of {row.id} belongs to another user, {row.owner}"
    if action == "stop":
        return ""
    if row.state == "queued":
        return f"{row.id} waits for a plan, and has no nodes so far"
    if action == "checkpoint":
        off = aim.detail is not None and bool(aim.detail.nodes) and aim.detail.checkpoints is None
        return f"{row.id} takes no checkpoints: its recipe says so" if off else ""
    if action == "scale":
        return ""
    if aim.detail is None:
        return f"Open {row.id} first"
    if action in ("hold", "accept", "reject"):
        return _why_not_autoscaling(action, row, aim.detail.autoscaling)
    return _why_not_node(action, aim.node, aim.detail)


def _why_not_autoscaling(action: str, row: JobRow, now: Autoscaling | None) -> str:
    if now is None:
        return f"How autoscaling of {row.id} stands isn't known yet"
    if now.mode == "off":
        return f"Autoscaling is off for {row.id}: its recipe says so"
    if action == "reject" and now.decision is None:
        return f"Nothing is suggested or under way for {row.id} just now"
    if action != "accept":
        return ""
    if now.suggests:
        held = f"Autoscaling of {row.id} is paused: let it go on first (p), then accept what it suggests"
        return held if now.paused else ""
    if now.under_way:
        return f"Decision {now.decision} for {row.id} is under way already"
    if now.mode == "on":
        return f"The brain doesn't ask: {row.id} runs with autoscaling on"
    return f"Nothing is suggested for {row.id} just now"


def _why_not_node(action: str, node: NodeRow | None, detail: JobDetail) -> str:
    if node is None:
        return "No node is chosen"
    if not node.alive:
        return f"{node.id} has ended"
    if action == "kill":
        return f"{node.id} is being killed already" if node.state == "ending" else ""
    if node.state in _LEAVING:
        return f"{node.id} is about to leave{' already' if action == 'drain' else ''}"
    stay = [other for other in detail.nodes if other.role == node.role and other.alive and other.state not in _LEAVING]
    if action == "drain" and len(stay) <= 1:
        return f"{node.id} can't be drained: it is the only {_ROLES.get(node.role, node.role)}"
    return ""


# --- how --------------------------------------------------------------------------------------------------------------


class Actions:
    """What is done to jobs, on threads that may wait. Each returns what follows from it, in words, and raises
    DlroverLiteError for what can't be done. ``changed`` is called when something was done."""

    def __init__(self, changed: Callable[[], None] = lambda: None) -> None:
        self.user = "" if os.geteuid() == 0 else user_name()
        """Name of the user who acts; empty: root, who may do it all."""
        self._changed = changed

    def stop(self, row: JobRow) -> str:
        """Ask the job to stop."""
        with self._handle(row) as handle:
            handle.stop()
        return f"{row.id} takes a last checkpoint, if it takes any, and stops"

    def checkpoint(self, row: JobRow) -> str:
        """Have a checkpoint taken now."""
        with self._handle(row) as handle:
            number = handle.checkpoint(wait=False)
        return f"Checkpoint {number} of {row.id} is being taken; training goes on meanwhile"

    def autoscale(self, row: JobRow, wanted: Wanted, now: Autoscaling) -> str:
        """Hold the brain's changes, let them go on, accept or reject what it decided; ``now``: as the person has seen it."""
        with self._handle(row) as handle:
            after = handle.autoscale(wanted, decision=now.decision if wanted in ("accept", "reject") else None)
        match wanted:
            case "pause":
                held = f"; decision {after.decision} is held" if after.decision is not None and after.under_way else ""
                return f"Autoscaling of {row.id} is paused: the brain leaves its plan as it is{held}"
            case "resume":
                return f"Autoscaling of {row.id} goes on"
            case "accept":
                when = " when autoscaling goes on, which is paused" if after.paused else ""
                return f"Decision {after.decision} for {row.id} is carried out{when}: {after.what}"
            case "reject":
                rest = "what was changed already stays" if now.under_way else "it isn't suggested again for ten minutes"
                return f"Decision {now.decision} for {row.id} is dropped: {rest}"

    def room(self, row: JobRow) -> Room:
        """Return what the job's nodes have, and what they may have."""
        from dlrover_lite.protocol.hosts import total_of

        with self._handle(row) as handle:
            nodes, total = handle.status().nodes, handle.job.recipe.resources.total
            there = total_of(handle.backend.capacity())
        if row.source:  # a cluster says what others, and this job, leave
            alive = [node for node in nodes if not node.state.startswith("ended")]
            there = Resources(
                there.cores + sum(node.cores for node in alive), there.memory + sum(node.memory for node in alive)
            )
        return Room(
            _of("worker", nodes),
            _of("ps", nodes),
            min(there.memory, total.memory) if total is not None else there.memory,
            there.cores,
            total.cores if total is not None else None,
            place=row.source or "this machine",
        )

    def scale(self, row: JobRow, workers: int | None, servers: int | None) -> str:
        """Have so many nodes; None leaves a role as it is."""
        with self._handle(row) as handle:
            return _told(handle.scale(workers=workers, ps=servers), f"{row.id} has that many already")

    def resize(self, row: JobRow, node: str, cores: float | None, memory: int | None) -> str:
        """Give a node that many cores, and that many bytes; None leaves either as it is."""
        with self._handle(row) as handle:
            return _told(handle.resize(node, cores=cores, memory=memory), f"{node} has that already")

    def drain(self, row: JobRow, node: str, *, replace: bool) -> str:
        """Let a node leave in good order."""
        with self._handle(row) as handle:
            return _told(handle.drain(node, replace=replace), f"{node} is about to leave already")

    def kill(self, row: JobRow, node: str) -> str:
        """End a node at once; another one takes its place."""
        with self._handle(row) as handle:
            return _told(handle.kill(node), f"{node} is being killed already")

    @contextmanager
    def _handle(self, row: JobRow) -> Iterator[JobHandle]:
        """Give the handle of a job. Raises JobError for what only somebody else may do."""
        from dlrover_lite.client.handle import JobHandle
        from dlrover_lite.client.job_sources import backend_at

        try:
            yield JobHandle(row.id, backend_at(row.source))
        except PermissionError as error:
            raise JobError(f"{row.id} belongs to another user", hint=f"{error}. Ask whoever started it.") from error
        self._changed()


def _told(actions: Sequence[str], nothing: str) -> str:
    return "\n".join(actions) or nothing


def _of(role: str, nodes: Sequence[NodeStatus]) -> RoleNow:
    """Count the nodes of a role that stay, and find what most of them have."""
    there = [
        node
        for node in nodes
        if node.role == role and not node.state.startswith("ended") and node.state not in _LEAVING
    ]
    sizes = Counter((node.cores, node.memory) for node in there)
    cores, memory = sizes.most_common(1)[0][0] if sizes else (0.0, 0)
    return RoleNow(len(there), cores, memory)
