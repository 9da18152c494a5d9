"""Moving slots from one parameter server to another, without their sockets: what the source gives out, and what the target takes in.

Slots go in batches. Round 1 of a batch are all its rows; each further one are those changed since the one before began. When few are left,
the source freezes the batch's slots, and the rest follows with the applied minibatches; then comes the next batch, while the master commits
this one.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dlrover_lite.core import slot_sets
from dlrover_lite.core.errors import UsageError
from dlrover_lite.core.failpoints import failpoint
from dlrover_lite.protocol.messages import MoveOrder, ReadySlots
from dlrover_lite.protocol.ps_messages import Copied, Copying, CopyNext
from dlrover_lite.ps.journal.applied_minibatches import mask_of, to_bitmap
from dlrover_lite.ps.migration import batches
from dlrover_lite.ps.migration.batches import Batch, Listing
from dlrover_lite.ps.migration.chunk_memory import ChunkMemory, offered_memory
from dlrover_lite.ps.migration.convergence import Convergence
from dlrover_lite.ps.migration.copy_pace import KeptSpeed
from dlrover_lite.ps.server.busy_meter import TrainingWatch
from dlrover_lite.ps.server.engine import Engine
from dlrover_lite.ps.tables.table import TableGroup

__all__ = ["BUSY_SECONDS", "Incoming", "Outgoing"]

CHUNK_BYTES = 2 << 20
"""Bytes of rows in a reply: a millisecond of work for the source, two for the target. Smaller ones take more CPU for the same rows."""
PLACES = 3
"""Number of places for chunks in memory that both sides map: two that are asked for ahead, and the one that is taken from. Few, so that
they stay in a cache."""
IDLE_SECONDS = 0.005
"""Seconds until the target asks a source again that has something else to do."""
SLOWED_SECONDS = 1.0
"""Seconds for which pushes are held back after the target has last asked for it: it may be gone."""
PERIOD_SECONDS = 0.04
"""Seconds of a period; pushes are held back for a share of each."""

BUSY_SECONDS = 0.5
"""Seconds after a pull or a push for which training is taken to go on: several chunks may be copied between two requests."""


class Outgoing:
    """The source's side of a move, from ``CopyBegin`` until the master has spoken. ``have``: slots that the target has all of already."""

    def __init__(self, engine: Engine, order: MoveOrder, session: int, *, have: int = 0) -> None:
        self.move = order.move
        self.session = session
        self.given = have & mask_of(order.slots)
        """Slots that have been given out completely: they are frozen until the master has spoken."""
        self._engine = engine
        self._order = order
        self._left = mask_of(order.slots) & ~have
        self._next_number = 0
        self._listing: Listing | None = None
        self._upcoming: deque[int] = deque()
        """Positions in the listing of the batches that are still to come."""
        self._batch: Batch | None = None
        self._batches = 0
        self._most_bytes = batches.BATCH_BYTES
        """Maximum bytes of a batch that is cut from now on: less when one had to be halved."""
        self._told_configuration = engine.configuration is not None
        self._slowed, self._slowed_until = 0.0, 0.0
        self._training = TrainingWatch(engine.loads.answered, BUSY_SECONDS)
        self._kept_speed = KeptSpeed(engine.loads.requests_per_second, engine.loads.answered, engine.clock())
        self._memory = offered_memory(PLACES, CHUNK_BYTES)
        engine.track(0)  # a session before this one may have left a log

    def began(self) -> Copying:
        members = slot_sets.unpack(to_bitmap(self._left))
        rows = [int(group.slot_rows[members].sum()) for group in self._engine.groups]
        offer = self._memory.offer if self._memory is not None else None
        return Copying(self.session, rows, self._engine.configuration, offer)

    @property
    def waits(self) -> bool:
        """Whether the master's word is waited for: slots are frozen that have been given out completely."""
        return bool(self.given & self._engine.frozen)

    @property
    def may_tidy(self) -> bool:
        """Whether rows may be moved: no row number is known here, nor about to be, as when an earlier session has left slots frozen, which
        aren't to wait."""
        return self._batch is None and self._listing is None and not self._engine.frozen & self._left

    @property
    def heard(self) -> bool:
        """Whether the master has committed all that was given."""
        return not self.given & self._engine.owned

    @property
    def slowed(self) -> float:
        """Share of the time for which pushes for the batch's slots are held back."""
        return self._slowed if self._batch is not None and self._engine.clock() < self._slowed_until else 0.0

    def closed_seconds(self, covers: int) -> float:
        """Return for how many seconds a push for these slots is to be held back."""
        batch = self._batch
        if batch is None or not batch.mask & covers or not (slowed := self.slowed):
            return 0.0
        return max(0.0, slowed * PERIOD_SECONDS - self._engine.clock() % PERIOD_SECONDS)

    def end(self) -> None:
        """End the move: the master has committed or cancelled it."""
        self.close()
        self._engine.track(0)
        self._engine.frozen = 0
        failpoint("ps.source.ended")

    def close(self) -> None:
        """Close the memory of this session. The engine stays as it is."""
        if self._memory is not None:
            self._memory.close()

    def next(self, request: CopyNext, *, tidy: bool) -> tuple[Copied, list[Any]] | None:
        """Return some more rows, with the frames of ``Copied``; None when this isn't the request for the chunk that follows the last one.
        ``tidy``: nothing is to be removed or moved. Raises ValueError for a place that there is none of."""
        if request.number != self._next_number:
            return None
        self._next_number += 1
        began = self._engine.clock()
        batch = self._batch or self._next_batch(tidy)
        if batch is None:
            return self._copied(-1, 0, pause_seconds=IDLE_SECONDS if self._listing is None else 0.0), []
        if request.batch == batch.number:
            batch = self._heed(request, batch)
        found = self._rows(batch)
        if found is None and any(group.logged() for group in self._engine.groups):
            self._begin_round(batch)
            found = self._rows(batch)
        if found is None:
            return self._all_given(batch) if not batch.mask & ~self._engine.frozen else (self._copied(-1, 0), [])
        g, rows = found
        if not len(rows):
            return self._copied(-1, 0, looking=True), []
        if request.place >= 0 and self._place(g, rows, request.place):
            seconds = self._engine.clock() - began
            failpoint("ps.source.placed")
            return self._copied(g, len(rows), seconds=seconds, place=request.place), []
        records = self._engine.groups[g].read_records(rows)
        return self._copied(g, len(rows), seconds=self._engine.clock() - began), [records]

    # --- batches ----------------------------------------------------------------------------------------------------------

    def _next_batch(self, tidy: bool) -> Batch | None:
        """Begin the next batch; None while its rows have to be found, or there is none."""
        listing = self._listing
        if listing is not None and not listing.complete:
            listing.step()
            return None
        if listing is not None and self._upcoming:
            return self._begin_batch(listing, self._upcoming.popleft())
        self._listing = None
        # what was given is tidied up before rows are looked for again, unless training waits for them
        if self._left and ((tidy and self.heard) or self._engine.frozen & self._left):
            self._listing = self._list()
            self._upcoming.extend(range(len(self._listing.batches)))
        return None

    def _list(self) -> Listing:
        """List the rows of the slots that are left. Those that an earlier session has left frozen go first: training waits for them."""
        engine = self._engine
        size = engine.slot_bytes()
        rows = np.sum([np.zeros(slot_sets.SLOTS, np.int64), *(group.slot_rows for group in engine.groups)], axis=0)
        members = slot_sets.unpack(to_bitmap(engine.frozen & self._left or self._left))
        order = batches.in_order(members, engine.loads.busy, coldest_first=self._order.coldest_first)
        limits = {"most_bytes": self._most_bytes, "most_rows": batches.most_listed(int(rows.sum()))}
        return Listing(engine.groups, batches.cut_batches(order, size, rows, **limits))

    def _begin_batch(self, listing: Listing, i: int) -> Batch:
        self._batches += 1
        groups, slots = self._engine.groups, listing.batches[i]
        self._engine.track(mask_of(slot_sets.pack(slot_sets.of(slots.tolist()))))
        self._batch = Batch(self._batches, slots, groups, listing.rows(i), listing.stops)
        if self._order.at_once:
            self._freeze(self._batch)
        return self._batch

    def _heed(self, request: CopyNext, batch: Batch) -> Batch:
        """Do what the target asks for; returns the batch that there is then."""
        self._slowed, self._slowed_until = request.slowed, self._engine.clock() + SLOWED_SECONDS
        if request.freeze:
            self._freeze(batch)
        elif request.split and len(batch.slots) > 1 and not batch.mask & self._engine.frozen:
            return self._split(batch)
        return batch

    def _freeze(self, batch: Batch) -> None:
        self._engine.frozen |= batch.mask
        failpoint("ps.source.frozen")

    def _split(self, batch: Batch) -> Batch:
        """Go on with one half of the batch. The other half is left for another listing."""
        groups = self._engine.groups
        batch.to_send.extend((g, group.take_log()) for g, group in enumerate(groups) if group.logged())
        self._batches += 1
        self._batch = batch.half(self._batches, groups)
        self._engine.track(self._batch.mask)
        self._most_bytes = max(1, int(self._engine.slot_bytes()[self._batch.members].sum()))
        return self._batch

    def _all_given(self, batch: Batch) -> tuple[Copied, list[Any]]:
        """End the batch: return its last reply, with its applied minibatches."""
        minibatches = self._engine.applied_minibatches.parcel(batch.mask)
        reply = self._copied(-1, 0, complete=True)
        self.given |= batch.mask
        self._left &= ~batch.mask
        self._batch, self._slowed = None, 0.0
        self._engine.track(0)
        failpoint("ps.source.complete")
        return reply, [minibatches]

    # --- rows ---------------------------------------------------------------------------------------------------------------

    def _rows(self, batch: Batch) -> tuple[int, NDArray[np.uint64]] | None:
        """Return some rows that are to be sent in this round; none: there are no more; empty: more has to be looked at to find some."""
        if not batch.to_send:
            if batch.round > 1 or (found := batch.first()) is None:
                return None
            batch.to_send.append(found)  # none, perhaps
        g, rows = batch.to_send.popleft()
        limit = max(1, CHUNK_BYTES // self._engine.groups[g].row_bytes)
        if len(rows) > limit:
            batch.to_send.appendleft((g, rows[limit:]))
        return g, rows[:limit]

    def _place(self, g: int, rows: NDArray[np.uint64], place: int) -> bool:
        """Put these rows into the place; False if they don't find room."""
        if self._memory is None:
            raise ValueError("a place in memory that was not offered")
        group = self._engine.groups[g]
        into = self._memory.records(place, len(rows), group.shape.words)
        if into is None:
            return False
        group.read_records(rows, into)
        return True

    def _begin_round(self, batch: Batch) -> None:
        batch.round += 1
        failpoint("ps.source.round")
        for g, group in enumerate(self._engine.groups):
            if group.logged():
                batch.to_send.append((g, group.take_log()))

    def _left_bytes(self) -> int:
        groups = self._engine.groups
        to_send = self._batch.to_send if self._batch is not None else ()
        waiting = sum(len(rows) * groups[g].row_bytes for g, rows in to_send)
        return waiting + sum(group.logged() * group.row_bytes for group in groups)

    def _copied(
        self,
        group: int,
        rows: int,
        *,
        complete: bool = False,
        seconds: float = 0.0,
        place: int = -1,
        pause_seconds: float = 0.0,
        looking: bool = False,
    ) -> Copied:
        """Make a reply. ``looking``: rows of the batch are being looked for."""
        news, batch = None, None if looking else self._batch
        if not self._told_configuration and self._engine.configuration is not None:
            self._told_configuration = True
            news = self._engine.configuration
        return Copied(
            self.session,
            group,
            rows,
            batch.round if batch is not None else 1,
            self._left_bytes(),
            complete,
            batch.number if batch is not None else 0,
            to_bitmap(batch.mask) if batch is not None and complete else b"",
            pause_seconds,
            news,
            seconds,
            self._training.goes_on(self._engine.loads.answered, self._engine.clock()),
            place,
            self._kept_speed.look(self._engine.loads.answered, self._engine.clock()),
        )


class Incoming:
    """The target's side of a session. ``memory``: what the source has offered, where it can be had."""

    def __init__(self, engine: Engine, move: int, copying: Copying, memory: ChunkMemory | None = None) -> None:
        self.move = move
        self.session = copying.session
        self.rows = 0
        """Number of rows received of the present batch, some perhaps several times."""
        self.convergence = Convergence()
        self._engine = engine
        self._memory = memory
        if copying.configuration is not None:
            engine.configure(copying.configuration)
            for group, rows in zip(engine.groups, copying.rows, strict=False):
                group.reserve(rows)

    def take(self, copied: Copied, frames: list[memoryview]) -> tuple[int, ReadySlots | None]:
        """Store the rows, wherever they are; nothing of ``frames`` is needed then. Returns how many bytes they were, and a batch that is
        complete with them. Raises ValueError or UsageError for what doesn't fit."""
        received = 0
        if copied.configuration is not None:
            self._engine.configure(copied.configuration)
        if copied.complete:
            return 0, self._complete(copied, frames)
        if copied.rows:
            if not 0 <= copied.group < len(self._engine.groups):
                raise UsageError(f"rows of group {copied.group} where there are {len(self._engine.groups)}")
            group = self._engine.groups[copied.group]
            if copied.place >= 0:
                records = self._placed(copied, group)
            else:
                records = np.frombuffer(frames[0], np.uint32).reshape(-1, group.shape.words)
            group.write_records(records)
            self.rows += copied.rows
            received = records.nbytes
            failpoint("ps.target.written")
        if copied.batch and (copied.round > 1 or not copied.rows):
            self.convergence.look(copied.batch, copied.round, copied.left)
        return received, None

    def _complete(self, copied: Copied, frames: list[memoryview]) -> ReadySlots:
        members = slot_sets.unpack(copied.slots)
        self._engine.applied_minibatches.unpack(frames[0])
        self.convergence.done()
        self.rows = 0
        rows = sum(int(group.slot_rows[members].sum()) for group in self._engine.groups)
        size = int(self._engine.slot_bytes()[members].sum())
        failpoint("ps.target.complete")
        return ReadySlots(self.move, copied.slots, rows, size)

    def _placed(self, copied: Copied, group: TableGroup) -> NDArray[np.uint32]:
        """Return the records in memory that the source has put there. Raises ValueError where they can't be."""
        records = None
        if self._memory is not None:
            records = self._memory.records(copied.place, copied.rows, group.shape.words)
        if records is None:
            raise ValueError(f"{copied.rows} rows in place {copied.place}, where they can't be")
        return records
