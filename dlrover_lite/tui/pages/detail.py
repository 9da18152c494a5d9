"""What a master answers, as a job's screen has it. No clock, no files."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from dlrover_lite.core.decoding import convert
from dlrover_lite.core.units import format_bytes
from dlrover_lite.core.unknown_ids import unknown_text, warnings_of
from dlrover_lite.tui.model import Checkpoint, Checkpoints, Evaluated, NodeRow, PsStrip, Shards
from dlrover_lite.tui.view_state import LocalStatus

if TYPE_CHECKING:
    from dlrover_lite.protocol.messages import Topology
    from dlrover_lite.protocol.news import NodeNews
    from dlrover_lite.protocol.questions import NodeStatus, SlotsReport, Status

__all__ = ["NodesFold", "checkpoints_of", "evaluated_of", "moves_end_in", "shards_of", "status_of_master", "strips_of"]

_RANGES = 128
"""Maximum number of ranges of slots that a strip shows."""
_MOST_COLUMNS = 3
"""Maximum number of columns that are named with their share of unknown ids."""
_STEPS = 8
"""Number of steps of heat: more than there are shades, which lie between them."""
_IDLE = 0.02
"""Heat of a range with idle slots of its own, as a share of that of the busiest slot."""


def status_of_master(status: Status) -> LocalStatus:
    return convert(status, LocalStatus, from_attributes=True)


class NodesFold:
    """Rows of a job's nodes. One that hasn't changed stays the same object."""

    def __init__(self) -> None:
        self._hosts = False
        self.rows: tuple[NodeRow, ...] = ()
        self._by_id: dict[str, NodeRow] = {}
        self._before: dict[str, tuple[float, float]] = {}
        """Elapsed seconds of the job and CPU seconds of each node when they differed last."""
        self._used: dict[str, float] = {}
        self._follows: dict[str, str] = {}

    def happened(self, news: Iterable[NodeNews]) -> None:
        for one in news:
            if one.follows:
                self._follows[one.node] = one.follows

    def put(self, status: Status, *, hosts: bool = False) -> None:
        """Take what a master says. ``hosts``: rows say which host each node is on."""
        self._hosts = hosts
        total = sum(node.samples_per_second for node in status.nodes if not node.state.startswith("ended"))
        made = [self._row(node, status, total) for node in status.nodes]
        rows = [self._same(row) for row in made]
        rows.sort(key=lambda row: (not row.alive, row.role != "ps"))
        self._by_id = {row.id: row for row in rows}
        if len(rows) != len(self.rows) or any(one is not other for one, other in zip(rows, self.rows, strict=True)):
            self.rows = tuple(rows)

    def _same(self, row: NodeRow) -> NodeRow:
        before = self._by_id.get(row.id)
        return before if before == row else row

    def _row(self, node: NodeStatus, status: Status, total: float) -> NodeRow:
        alive = not node.state.startswith("ended")
        worker = node.role == "worker"
        throttled = status.throttled_share(node)
        leased = status.shards.workers.get(node.id, 0) if status.shards is not None and worker and alive else None
        state, note = _phase(node)
        return NodeRow(
            id=node.id,
            role=node.role,
            state=state,
            cores=node.cores,
            used_cores=self._cores(node, status.elapsed_seconds) if alive else None,
            memory=node.memory,
            used_memory=node.used_memory if alive else 0,
            peak_memory=node.peak_memory,
            rate=round(node.samples_per_second, 1),
            share=round(node.samples_per_second / total, 3) if worker and alive and total else None,
            leased=leased,
            slots=node.slots if alive else None,
            throttled=None if throttled is None else round(throttled, 3),
            shared_cores=status.shared_cores,
            restarts=self._restarts(node.id),
            note=note,
            host=node.host if self._hosts else "",
        )

    def _cores(self, node: NodeStatus, elapsed: float) -> float | None:
        """Return the cores that a node has used since the last time that its CPU seconds were another number: they are counted every second
        or so."""
        before = self._before.get(node.id)
        if before is None:
            self._before[node.id] = (elapsed, node.cpu_seconds)
        elif node.cpu_seconds != before[1] and elapsed > before[0]:
            self._used[node.id] = round(max(0.0, node.cpu_seconds - before[1]) / (elapsed - before[0]), 2)
            self._before[node.id] = (elapsed, node.cpu_seconds)
        return self._used.get(node.id)

    def _restarts(self, node: str) -> int:
        """Return how many nodes have gone before it in the same place."""
        seen = {node}
        while (node := self._follows.get(node, "")) and node not in seen:
            seen.add(node)
        return len(seen) - 1


def _phase(node: NodeStatus) -> tuple[str, str]:
    """Return a node's state, and what it waits for: of one that hasn't begun, how far its start is (``launched (pulling: image …)``)."""
    start, why = node.state.partition(" (")[::2]
    if start != "launched" or not why:
        return node.state, node.waits_for
    phase, _, what = why.removesuffix(")").partition(": ")
    return (phase, what) if " " not in phase else (start, why.removesuffix(")"))


def shards_of(status: Status | None) -> Shards | None:
    if status is None or status.shards is None:
        return None
    return convert(status.shards, Shards, from_attributes=True)


def evaluated_of(status: Status | None) -> Evaluated | None:
    if status is None or not status.evaluations:
        return None
    last = status.evaluations[-1]
    return Evaluated(
        at_samples=last.at_samples,
        auc=last.auc,
        loss=last.loss,
        unknown=unknown_text(last.unknown_ids, _MOST_COLUMNS),
        warnings=tuple(warnings_of(last.unknown_ids, last.unusual_ids)),
    )


def checkpoints_of(status: Status | None) -> Checkpoints | None:
    """Return a job's checkpoints; None for a job that takes none."""
    if status is None or (known := status.checkpoints) is None:
        return None
    newest, now, problem = known.newest, known.under_way, known.problem
    doing = ""
    if now is not None:
        amount = f", {format_bytes(now.bytes)} written" if now.bytes else ""
        doing = f"checkpoint {now.number} {now.state}{amount}"
    trouble = ""
    if problem is not None and (newest is None or problem.number > newest.number):
        trouble = f"checkpoint {problem.number}: {problem.why}"
    complete = None
    if newest is not None:
        stalls = newest.stall_seconds, newest.usual_stall_seconds
        complete = Checkpoint(newest.number, newest.at, newest.seconds, newest.rows, newest.bytes, *stalls)
    return Checkpoints(newest=complete, under_way=doing, problem=trouble)


def moves_end_in(status: Status) -> float | None:
    """Return the seconds until all slots are where they are to be; None: not known, or none moves."""
    left = [move.seconds_left for move in status.moves if move.left]
    known = [seconds for seconds in left if seconds is not None]
    return max(known) if known and len(known) == len(left) else None


def strips_of(report: SlotsReport, topology: Topology) -> tuple[PsStrip, ...]:
    """Find where the slots of each parameter server are, and how busy. Of a slot that is just moving either may be said."""
    import array

    owners = array.array("H", topology.slots)
    names = [name for name, _ in topology.ps]
    if not owners or not names:
        return ()
    ranges = min(_RANGES, len(owners))
    heat = {name: [0.0] * ranges for name in names}
    for slot, owner in enumerate(owners):
        at = slot * ranges // len(owners)
        line = heat[names[owner]]
        line[at] = max(line[at], _IDLE)
    most = max((one.busy for one in report.hottest), default=0.0)
    for hot in report.hottest:
        if most > 0 and hot.node in heat:
            at = hot.slot * ranges // len(owners)
            heat[hot.node][at] = max(heat[hot.node][at], math.ceil(hot.busy / most * _STEPS) / _STEPS)
    busy = {one.node: one for one in report.servers}
    return tuple(
        PsStrip(name, busy[name].slots, _rounded(busy[name].busy), tuple(heat[name])) for name in names if name in busy
    )


def _rounded(busy: float | None) -> float | None:
    return None if busy is None else round(busy, 2)
