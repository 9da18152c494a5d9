"""A parameter server's part in the checkpoints of its job: follows the master's orders with a snapshot and a persister, and says how far it
is."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from dlrover_lite.checkpoint.manifest import Layout, configuration_of
from dlrover_lite.core.errors import JobError
from dlrover_lite.core.failpoints import failpoint
from dlrover_lite.core.slot_sets import BITMAP_BYTES
from dlrover_lite.protocol.messages import SnapshotOrder, SnapshotReport
from dlrover_lite.ps.journal.applied_minibatches import to_bitmap
from dlrover_lite.ps.server.busy_meter import TrainingWatch
from dlrover_lite.ps.server.engine import Engine
from dlrover_lite.ps.snapshots.copy_on_write_log import CopyOnWriteLog, SpillMemory
from dlrover_lite.ps.snapshots.snapshot import Snapshot, prepare_spill
from dlrover_lite.ps.snapshots.snapshot_reader import Overflown
from dlrover_lite.ps.snapshots.writer_messages import Failed, FromPersister, Persist, Ready, Released, Writing, Written
from dlrover_lite.ps.snapshots.writer_pace import TRAINING_SECONDS
from dlrover_lite.ps.snapshots.writer_process import PersisterEnded, SnapshotWriterProcess

__all__ = ["SnapshotOrders"]

IDLE_SECONDS = 60.0
"""Seconds without work after which a persister is ended."""
RELEASE_SECONDS = 10.0
"""Seconds after which a persister is killed that was told to stop and doesn't, since a destination holds it up."""


class SnapshotOrders:
    """One server's part in checkpoints. ``ps``: the number of this server. ``start`` starts a persister, if there is none; ``persister``:
    the first one."""

    def __init__(
        self,
        ps: int,
        engine: Engine,
        clock: Callable[[], float],
        say: Callable[[str], None],
        start: Callable[[], SnapshotWriterProcess] = SnapshotWriterProcess,
        persister: SnapshotWriterProcess | None = None,
    ) -> None:
        self.report: SnapshotReport | None = None
        """Report on the newest checkpoint that it was ordered to take part in, as long as that order stands."""
        self._ps = ps
        self._engine = engine
        self._clock, self._say, self._start = clock, say, start
        self._newest = -1
        self._order: SnapshotOrder | None = None
        self._snapshot: Snapshot | None = None
        self._freeing: list[CopyOnWriteLog] = []
        self._prepared: SpillMemory | None = None
        """Memory for the snapshot that is to begin."""
        self._persister = persister
        self._ending: list[SnapshotWriterProcess] = []
        self._is_ready = False
        """The persister waits for an order."""
        self._training = TrainingWatch(0, TRAINING_SECONDS)
        self._idle_since = clock()
        self._released_at: float | None = None
        """Time when the persister was told to let go of a part, if it hasn't yet."""

    @property
    def active(self) -> bool:
        """Whether a snapshot is taken: rows must stay where they are."""
        return self._snapshot is not None

    @property
    def busy(self) -> bool:
        """Whether ``work`` has more to do, before a snapshot or after it."""
        return bool(self._freeing) or self._prepared is not None

    @property
    def state(self) -> tuple[int, str] | None:
        """Number and state of the newest checkpoint, of its part in it, as the master is to know soon."""
        return None if self.report is None else (self.report.cut, self.report.state)

    @property
    def waiting(self) -> bool:
        """Whether a snapshot is to begin."""
        return self._order is not None and self.report is None

    @property
    def sockets(self) -> list[int]:
        """Sockets that are readable when ``work`` has something to do."""
        return [] if self._persister is None else [self._persister.socket.fileno()]

    def follow(self, order: SnapshotOrder | None) -> None:
        """Follow the master's order. Each checkpoint is taken part in once, and none that is older than one before."""
        if self._order is not None and (order is None or order.cut != self._order.cut):
            if self.active:
                self._say(f"checkpoint {self._order.cut} is abandoned")
            self._end_snapshot()
            self._forget_prepared()
            self._order = self.report = None
        elif self._order is not None and order is not None and order.seconds < self._order.seconds:
            self._order = order
            self._hurry()
        if order is not None and order.cut > self._newest:
            self._newest = order.cut
            self._order = order
            if self._persister is None:
                self._start_persister()

    def give_up(self, why: str, hint: str = "") -> None:
        """Give up this server's part of the checkpoint under way."""
        assert self._order is not None
        self._end_snapshot()
        self.report = SnapshotReport(self._order.cut, "failed", why=why, hint=hint)
        self._say(f"checkpoint {self._order.cut} has failed: {why}")

    def work(self, *, may_begin: bool) -> None:
        """Hear what the persister says; begin with what was ordered, if rows may be expected to stay where they are."""
        self._hear()
        is_training = self._training.goes_on(self._engine.loads.answered, self._clock())
        if self._snapshot is not None:
            self._snapshot.note_training()
            if self._snapshot.overflown:
                error = Overflown(self._snapshot.spill_bytes)
                self.give_up(error.message, error.hint)
        elif self.waiting and may_begin and self._can_begin():
            self._prepare_or_begin(is_training)
        elif self._freeing and self._freeing[0].free_some():
            self._freeing.pop(0).close()
        self._look_after_persister()

    def spare_persister(self) -> None:
        """Let the persister go, which isn't needed for now."""
        if self._persister is not None:
            self._let_go(self._persister)

    def _let_go(self, persister: SnapshotWriterProcess, *, at_once: bool = False) -> None:
        persister.end(at_once=at_once)
        self._ending.append(persister)
        self._persister, self._is_ready, self._released_at = None, False, None

    def close(self) -> None:
        self._end_snapshot()
        self._forget_prepared()
        while self._freeing:
            self._freeing.pop().close()
        if self._persister is not None:
            self._ending.append(self._persister)
            self._persister = None
        for persister in self._ending:
            persister.close()

    # --- snapshots ------------------------------------------------------------------------------------------------------

    def _can_begin(self) -> bool:
        """Say whether a snapshot can begin. It is asked between two pushes; but one that a predecessor has left half done has to be
        repeated before, since only whole ones are noted. And there must be tables."""
        engine = self._engine
        return self._is_ready and engine.configuration is not None and not engine.applied_minibatches.interrupted

    def _prepare_or_begin(self, is_training: bool) -> None:
        """Prepare memory first, and then begin: training would wait for it while the snapshot is taken. Where nothing is trained, begin."""
        assert self._order is not None
        if not is_training:
            self._begin()
            return
        try:
            if self._prepared is None:
                self._prepared = prepare_spill(self._engine, self._order.spill_bytes)
        except JobError as error:
            self.give_up(error.message, error.hint)
            return
        if self._prepared.touch_some():
            self._begin()

    def _forget_prepared(self) -> None:
        if self._prepared is not None:
            self._prepared.close()
            self._prepared = None

    def _begin(self) -> None:
        order, persister = self._order, self._persister
        assert order is not None
        assert persister is not None
        try:
            snapshot = self._snapshot = Snapshot(self._engine, order.since, order.spill_bytes, self._prepared)
            failpoint("ps.snapshot.begun")
            message = Persist(
                cut=order.cut,
                job=order.job,
                url=order.url,
                ps=self._ps,
                owned=to_bitmap(snapshot.owned),
                whole=order.whole or bytes(BITMAP_BYTES),
                groups=snapshot.groups,
                spill_bytes=snapshot.spill_bytes,
                compress=order.compress,
                seconds=order.seconds,
            )
            self._is_ready = False
            snapshot.note_training()  # what has been answered until now isn't training beside it
            persister.persist(message, snapshot.files)
        except PersisterEnded as error:
            self._lost(error)
        except JobError as error:
            self.give_up(error.message, error.hint)
        else:
            self.report = SnapshotReport(order.cut, "taking")
        finally:
            self._forget_prepared()

    def _end_snapshot(self) -> None:
        """End the snapshot, whatever has become of it; the persister is to let go of it too."""
        if self._snapshot is None:
            return
        self._freeing.append(self._snapshot.end())
        self._snapshot = None
        if self._persister is not None and self._order is not None:
            try:
                self._persister.release(self._order.cut)
            except PersisterEnded:
                self._persister = None
            else:
                self._released_at = self._clock()

    def _hurry(self) -> None:
        """Hurry the persister: somebody waits for the checkpoint under way."""
        if self.active and self._persister is not None and self._order is not None:
            try:
                self._persister.hurry(self._order.cut)
            except PersisterEnded as error:
                self._lost(error)

    def _layout(self, snapshot: Snapshot) -> bytes:
        """Return the layout of the tables for the manifest, as JSON."""
        assert self._engine.configuration is not None
        shapes = [group.stored for group in snapshot.groups]
        return msgspec.json.encode(Layout(configuration_of(self._engine.configuration), shapes))

    # --- the persister --------------------------------------------------------------------------------------------------

    def _start_persister(self) -> None:
        try:
            self._persister = self._start()
        except JobError as error:
            self.give_up(error.message, error.hint)
        self._is_ready, self._released_at = False, None

    def _hear(self) -> None:
        try:
            while self._persister is not None and (message := self._persister.receive()) is not None:
                self._take(message)
        except PersisterEnded as error:
            self._lost(error)

    def _lost(self, error: PersisterEnded) -> None:
        self._persister, self._is_ready, self._released_at = None, False, None
        if self._order is not None and (self.active or self.waiting):
            self.give_up(error.message, error.hint)

    def _take(self, message: FromPersister) -> None:
        if isinstance(message, Ready | Released):
            self._is_ready, self._idle_since, self._released_at = True, self._clock(), None
            return
        if self._snapshot is None or self._order is None or message.cut != self._order.cut:
            return  # it was abandoned meanwhile
        match message:
            case Writing(cut, rows, size):
                self.report = SnapshotReport(cut, "taking", rows, size)
            case Written(cut, rows, size, part):
                entry = msgspec.json.encode(self._snapshot.entry(part))
                layout = self._layout(self._snapshot)
                self._end_snapshot()
                self.report = SnapshotReport(cut, "written", rows, size, entry, layout=layout)
            case Failed(_, why, hint):
                self.give_up(why, hint)

    def _look_after_persister(self) -> None:
        """Start a persister if one is needed; end it if none is needed for long, or it doesn't do what it was told."""
        self._ending = [persister for persister in self._ending if not persister.is_over]
        if self._persister is None:
            if self.waiting:
                self._start_persister()
            return
        now = self._clock()
        is_stuck = self._released_at is not None and now - self._released_at >= RELEASE_SECONDS
        is_idle = self._is_ready and self._order is None and now - self._idle_since >= IDLE_SECONDS
        is_idle = is_idle and not self._persister.stays
        if is_stuck or is_idle:
            self._let_go(self._persister, at_once=is_stuck)
