"""Taking the rows and applied minibatches of some slots from a checkpoint, a little at a time between two reports.

A thread reads and checks ahead while the rows that are there are put away. Nothing of it counts before all of it is done: a process that is
killed meanwhile is followed by one that begins anew, over the same rows.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import msgspec
import numpy as np

from dlrover_lite.checkpoint.destination import damaged
from dlrover_lite.checkpoint.layout import Block
from dlrover_lite.checkpoint.manifest import Consumed, Manifest, configure, damaged_manifest
from dlrover_lite.checkpoint.store import CheckpointStore
from dlrover_lite.core import slot_sets
from dlrover_lite.core.errors import CheckpointDamaged, CheckpointForeign, JobError
from dlrover_lite.core.failpoints import failpoint
from dlrover_lite.core.intervals import IntervalSet
from dlrover_lite.protocol.messages import RestoreOrder, RestoreReport, TrainingSettings
from dlrover_lite.protocol.ps_messages import Configure
from dlrover_lite.ps.journal.applied_minibatches import mask_of, to_bitmap
from dlrover_lite.ps.server.engine import Engine
from dlrover_lite.recipe.schema import Optimizer
from dlrover_lite.tables.layout import groups_of
from dlrover_lite.tables.optimizer_state import STATE_PARTS, keeps_state
from dlrover_lite.tables.optimizers import first_state

__all__ = ["Restoring", "Unreachable"]

BLOCKS_AHEAD = 24
"""Maximum number of blocks, of a mebibyte at most, that are read and not yet put away."""
WAIT_SECONDS = 0.005
"""Maximum seconds to wait for the reader before the caller may do something else."""
MINIBATCHES = "minibatches"
"""Name of the fact in a manifest that says how many minibatches an epoch has."""


class Unreachable(JobError):
    """The checkpoint can't be read now; nothing is known to be wrong with it."""


class Restoring:
    """Restores the rows and applied minibatches of ``slots`` into ``engine``. To be closed."""

    def __init__(self, engine: Engine, order: RestoreOrder, slots: int) -> None:
        self.order = order
        self.slots = slots
        self.rows = self._bytes = 0
        self.done = False
        self._engine = engine
        self._began = time.perf_counter()
        self._ended: float | None = None
        self._chain: list[Manifest] = []
        self._expected: list[Sequence[int]] = []
        """Number of rows in these slots, approximately, of each checkpoint of the chain and each group."""
        self._anew: dict[int, Optimizer] = {}
        """Groups whose optimizer state begins anew, with the new optimizer."""
        self._ahead: queue.Queue[list[Manifest] | Block] = queue.Queue(BLOCKS_AHEAD)
        self._closed = False
        self._pool = ThreadPoolExecutor(1, "restoring")
        self._reader: Future[None] = self._pool.submit(self._read)

    def step(self, seconds: float) -> bool:
        """Work for about so long, or until there is nothing to do for a moment; True when all is there and it counts.

        Raises CheckpointDamaged, CheckpointForeign, UsageError for tables that are others here, JobError when there is no room for the
        rows, and Unreachable when the checkpoint can't be read for now: another ``Restoring`` may.
        """
        end = time.perf_counter() + seconds
        while not self.done and time.perf_counter() < end:
            try:
                found = self._ahead.get(timeout=WAIT_SECONDS)
            except queue.Empty:
                if not self._reader.done():
                    break
                self._check_reader()
                if self._ahead.empty():
                    self._end()
                continue
            if isinstance(found, Block):
                self._put_away(found)
            else:
                self._begin(found)
        return self.done

    def _check_reader(self) -> None:
        """Raise what the reader has raised; Unreachable where nothing is known to be wrong with the checkpoint."""
        try:
            self._reader.result()
        except (CheckpointDamaged, CheckpointForeign):
            raise
        except JobError as error:
            raise Unreachable(error.message, hint=error.hint) from error

    @property
    def seconds(self) -> float:
        """Seconds for which it has been restoring, or was."""
        return (time.perf_counter() if self._ended is None else self._ended) - self._began

    @property
    def progress(self) -> RestoreReport | None:
        """How far it is; None before it is known how much there is."""
        if not self._chain:
            return None
        row_bytes = [shape.record.bytes for shape in self._chain[-1].groups]
        rows = sum(sum(of_cut) for of_cut in self._expected)
        size = sum(count * row_bytes[g] for of_cut in self._expected for g, count in enumerate(of_cut))
        if self.done:
            rows, size = self.rows, self._bytes
        done = min(self.rows, rows), min(self._bytes, size)
        return RestoreReport(self.order.generation, done[0], rows, done[1], size, max(0.0, self.seconds))

    def close(self) -> None:
        self._closed = True
        while not self._ahead.empty():
            self._ahead.get_nowait()
        self._pool.shutdown(cancel_futures=True)

    # --- the reader -----------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        if not self.slots:
            return
        store = CheckpointStore(self.order.url)
        self._hand_over(store.chain(self.order.cut))
        for block in store.rows(self.order.cut, slot_sets.unpack(to_bitmap(self.slots))):
            if self._closed:
                return
            self._hand_over(block)

    def _hand_over(self, found: list[Manifest] | Block) -> None:
        while not self._closed:
            try:
                self._ahead.put(found, timeout=0.1)
            except queue.Full:
                continue
            return

    # --- what becomes of it ---------------------------------------------------------------------------------------------

    def _begin(self, chain: list[Manifest]) -> None:
        """Begin with the checkpoints of a chain, the oldest first."""
        engine, last = self._engine, chain[-1]
        self._chain = chain
        before = configure(last)
        specs = groups_of(before)
        shapes = [(shape.dim, shape.state) for shape in last.groups]
        if shapes != [(spec.dim, spec.dim * STATE_PARTS[spec.optimizer.use]) for spec in specs]:
            raise damaged_manifest(last, f"its groups {shapes} aren't those of its configuration")
        now = configured(before, self.order.training)
        engine.configure(now)
        self._anew = {
            g: spec.optimizer
            for g, (then, spec) in enumerate(zip(specs, groups_of(now), strict=True))
            if not keeps_state(then.optimizer, spec.optimizer)
        }
        self._expected = [_rows_of(manifest, self.slots) for manifest in chain]
        for group, rows in zip(engine.groups, self._expected[0], strict=True):
            group.reserve(max(0, rows - group.rows))
        failpoint("ps.restore.begun")

    def _put_away(self, block: Block) -> None:
        group = self._engine.groups[block.group]
        try:
            if (optimizer := self._anew.get(block.group)) is not None:
                rows = block.rows
                # counts too: Adam corrects its means by how often a row was updated with them
                group.write(rows._replace(state=first_state(optimizer, rows.values), counts=np.zeros_like(rows.counts)))
            elif (records := block.records) is not None and records.shape == group.shape:
                group.write_records(records.words)
            else:
                group.write(block.rows)
        except ValueError as error:
            raise damaged(f"checkpoint {block.cut}", str(error)) from error
        self.rows += len(block.slots)
        self._bytes += len(block.slots) * self._chain[-1].groups[block.group].record.bytes
        failpoint("ps.restore.rows")

    def _end(self) -> None:
        if self._chain and self.order.applied_minibatches:
            self._mark(self._chain[-1])
        failpoint("ps.restore.marked")
        self._engine.state.begun_empty = False
        self._engine.state.restored = self.order.generation
        failpoint("ps.restore.done")
        self._ended = time.perf_counter()
        self.done = True

    def _mark(self, last: Manifest) -> None:
        """Mark what each server had applied beyond the ledger's word, each in its own slots: in those, and in no others, it isn't to be
        applied again. Only what the last checkpoint says describes the state."""
        minibatches = self._engine.applied_minibatches
        for part in last.parts:
            there = mask_of(part.slots) & self.slots
            if not there:
                continue
            for one in part.applied_minibatches.applied:
                if applied := mask_of(one.slots) & there:
                    minibatches.add(one.epoch, one.k, applied)
            for epoch, k in _beyond(part.applied_minibatches.consumed, last):
                minibatches.add(epoch, k, there)
        minibatches.consumed(last.consumed.below, last.consumed.ranges)


def configured(before: Configure, training: TrainingSettings | None) -> Configure:
    """Return the configuration of a checkpoint, with what the job that begins with it trains with."""
    if training is None:
        return before
    return msgspec.structs.replace(
        before,
        seed=training.seed,
        optimizer=training.optimizer,
        embedding_optimizer=training.embedding_optimizer,
        counted=training.counted,
    )


def _rows_of(manifest: Manifest, slots: int) -> Sequence[int]:
    """Estimate how many rows of each group are in these slots."""
    found = [0] * len(manifest.groups)
    for part in manifest.parts:
        there = mask_of(part.slots)
        share = (there & slots).bit_count() / max(1, there.bit_count())
        for g, rows in enumerate(part.rows[: len(found)]):
            found[g] += round(rows * share)
    return found


def _beyond(consumed: Consumed, manifest: Manifest) -> Iterator[tuple[int, int]]:
    """Yield the minibatches that one server knew as consumed when its snapshot began, and the ledger did not when the cut did."""
    ledger = manifest.consumed
    known = {epoch: IntervalSet(ranges) for epoch, ranges in ledger.ranges}
    found = {epoch: list(ranges) for epoch, ranges in consumed.ranges}
    for epoch in range(ledger.below, consumed.below):
        minibatches = manifest.facts.get(MINIBATCHES)
        if not isinstance(minibatches, int):
            raise damaged_manifest(manifest, "it doesn't say how many minibatches an epoch has")
        found[epoch] = [(0, minibatches)]
    for epoch, ranges in found.items():
        if epoch < ledger.below:
            continue
        done = known.get(epoch, IntervalSet())
        for start, stop in ranges:
            for low, high in done.missing(start, stop):
                yield from ((epoch, k) for k in range(low, high))
