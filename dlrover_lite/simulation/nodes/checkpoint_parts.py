"""A simulated server's part in checkpoints: it writes real files, without rows, and takes from them what they say."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from dlrover_lite.checkpoint.layout import GroupShape
from dlrover_lite.checkpoint.manifest import Applied, AppliedAtSnapshot, Consumed, Layout, Manifest, configuration_of
from dlrover_lite.checkpoint.store import CheckpointStore
from dlrover_lite.core import slot_sets
from dlrover_lite.core.errors import CheckpointDamaged, CheckpointForeign, DlroverLiteError
from dlrover_lite.core.intervals import IntervalSet
from dlrover_lite.core.slot_sets import SlotSet
from dlrover_lite.protocol.messages import NodeFailed, RestoreOrder, SnapshotOrder, SnapshotReport
from dlrover_lite.protocol.ps_messages import Configure, DenseSpec, TableSpec
from dlrover_lite.ps.journal.applied_minibatches import AppliedMinibatches, mask_of, to_bitmap
from dlrover_lite.recipe.schema import Recipe
from dlrover_lite.simulation.nodes.memory import members_of
from dlrover_lite.tables.optimizer_state import STATE_PARTS

if TYPE_CHECKING:
    from dlrover_lite.simulation.nodes.server import Server

__all__ = ["Restore", "Snapshots"]

_WRITE_SECONDS = 0.4
"""Seconds from the beginning of a snapshot until its part is written."""
_RESTORE_SECONDS = 0.3
"""Seconds that it takes to read a checkpoint."""
_AGAIN_SECONDS = 2.0
"""Seconds until a checkpoint is tried again that couldn't be read."""


def _configuration(recipe: Recipe) -> Configure:
    training = recipe.training
    return Configure(
        seed=training.seed,
        tables=[TableSpec("C1", 1, 0.1)],
        dense=DenseSpec(0, 0),
        optimizer=training.optimizer,
        embedding_optimizer=training.embedding_optimizer or training.optimizer,
        counted=recipe.export.optimizer_state,
    )


def _layout(recipe: Recipe) -> Layout:
    configuration = _configuration(recipe)
    shape = GroupShape(1, STATE_PARTS[configuration.embedding_optimizer.use], salts=[1])
    return Layout(configuration_of(configuration), [shape])


class Snapshots:
    """The checkpoints that a server takes part in."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._newest = -1
        self._order: SnapshotOrder | None = None
        self._report: SnapshotReport | None = None
        self._told: SnapshotReport | None = None
        self._written_at = math.inf
        self._owned: SlotSet = slot_sets.none()
        self._applied = AppliedAtSnapshot()
        self._file = ""

    @property
    def active(self) -> bool:
        """A snapshot is taken."""
        return self._written_at < math.inf

    @property
    def has_news(self) -> bool:
        """There is something that the master hasn't been told."""
        return self._report is not None and self._report is not self._told

    @property
    def next_at(self) -> float:
        return self._written_at

    def take_report(self) -> SnapshotReport | None:
        """Return how far it is, which is told from now on."""
        self._told = self._report
        return self._report

    def follow(self, order: SnapshotOrder | None) -> None:
        """Follow the master's order; each checkpoint is taken part in once, and none that is older than one before."""
        if self._order is not None and (order is None or order.cut != self._order.cut):
            self._order = self._report = None
            self._written_at = math.inf
        if order is not None and order.cut > self._newest:
            self._newest, self._order = order.cut, order

    def give_up(self, why: str) -> None:
        """Give up its part of the checkpoint under way."""
        assert self._order is not None
        self._report = SnapshotReport(self._order.cut, "failed", why=why)
        self._written_at = math.inf

    def work(self, *, may_begin: bool) -> None:
        """Begin what was ordered; and write what was taken, once that has taken its time."""
        order = self._order
        if order is None:
            return
        if self._report is None and may_begin:
            self._begin(order)
        elif self._server.clock() >= self._written_at:
            self._written_at = math.inf
            self._write(order)

    def _begin(self, order: SnapshotOrder) -> None:
        """Take the snapshot: what is pushed from now on isn't in it."""
        server = self._server
        memory, owned = server.memory, server.owned
        self._owned = members_of(owned)
        below, ranges, applied = server.applied.noted(owned)
        named = [Applied(epoch, k, to_bitmap(slots)) for epoch, k, slots in applied]
        self._applied = AppliedAtSnapshot(Consumed(below, ranges), named)
        self._clock = memory.row_epoch
        memory.row_epoch += 1
        self._file = f"{server.id} {order.cut} {server.world.clock.now}"
        if memory.counts is not None:
            whole = slot_sets.unpack(order.whole) if order.whole else slot_sets.none()
            since = order.since[0] if order.since else None
            server.job.parts.put(self._file, memory.counts, self._owned, since, whole)
        self._report = SnapshotReport(order.cut, "taking")
        self._written_at = server.clock() + _WRITE_SECONDS

    def _write(self, order: SnapshotOrder) -> None:
        server, layout = self._server, _layout(self._server.job.spec.recipe)
        number = int(server.id.rpartition("-")[2])
        try:
            with CheckpointStore(order.url).join(order.cut).part(order.job, number, self._owned, layout.groups) as part:
                entry = part.finish()
        except DlroverLiteError as error:
            self.give_up(error.message)
            return
        server.job.parts.rename(self._file, entry.file)
        entry = msgspec.structs.replace(entry, clocks=[self._clock], applied_minibatches=self._applied)
        self._report = SnapshotReport(
            order.cut,
            "written",
            server.rows,
            entry.stored_bytes,
            msgspec.json.encode(entry),
            layout=msgspec.json.encode(layout),
        )


class Restore:
    """The checkpoint that a server is to begin with."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._due_at = math.inf
        self._for: RestoreOrder | None = None

    @property
    def is_due(self) -> bool:
        """There is one that it hasn't restored yet: nothing else is answered before."""
        order = self._server.orders.restore
        return order is not None and self._server.memory.restored < order.generation

    @property
    def next_at(self) -> float:
        return self._due_at if self._for is self._server.orders.restore else self._server.clock()

    def work(self) -> None:
        """Restore it, once that has taken its time."""
        server, now = self._server, self._server.clock()
        order = server.orders.restore
        assert order is not None
        if self._for is not order:
            self._for, self._due_at = order, now + _RESTORE_SECONDS
        if now < self._due_at:
            return
        try:
            chain = CheckpointStore(order.url).chain(order.cut)
        except (CheckpointDamaged, CheckpointForeign) as error:
            failed = NodeFailed(server.id, False, error.message, because="damaged")
            server.ask(failed, lambda _: server.process.end(1))
            self._due_at = math.inf
            return
        except DlroverLiteError:
            self._due_at = now + _AGAIN_SECONDS
            return
        if server.memory.counts is not None:
            server.job.parts.restore(chain, members_of(server.owned), server.memory.counts)
        if order.applied_minibatches:
            mark(chain[-1], server.owned, server.applied)
        server.memory.begun_empty = False
        server.memory.restored = order.generation


def mark(last: Manifest, owned: int, applied: AppliedMinibatches) -> None:
    """Note what each server had applied, in its own slots, when it took its part of the checkpoint."""
    known = {epoch: IntervalSet(ranges) for epoch, ranges in last.consumed.ranges}
    minibatches = last.facts["minibatches"]
    for part in last.parts:
        there = mask_of(part.slots) & owned
        if not there:
            continue
        for one in part.applied_minibatches.applied:
            if slots := mask_of(one.slots) & there:
                applied.add(one.epoch, one.k, slots)
        of_part = part.applied_minibatches.consumed
        found = {epoch: list(ranges) for epoch, ranges in of_part.ranges}
        found |= {epoch: [(0, minibatches)] for epoch in range(last.consumed.below, of_part.below)}
        for epoch, ranges in found.items():
            for start, stop in ranges if epoch >= last.consumed.below else ():
                for low, high in known.get(epoch, IntervalSet()).missing(start, stop):
                    for k in range(low, high):
                        applied.add(epoch, k, there)
    applied.consumed(last.consumed.below, last.consumed.ranges)
