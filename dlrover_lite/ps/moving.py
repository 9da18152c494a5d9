"""Moving slots from one parameter server to another, without their sockets: what the source gives out, and what the target takes in.

Round 1 is a scan of all rows; each further one are the rows changed since the one before began. When few are left, the source freezes the
slots, and the rest follows with the marks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dlrover_lite import slots as slot_sets
from dlrover_lite.errors import UsageError
from dlrover_lite.failpoints import failpoint
from dlrover_lite.ps.chunk_memory import ChunkMemory, offered_memory
from dlrover_lite.ps.engine import Engine
from dlrover_lite.ps.marks import to_bitmap
from dlrover_lite.ps.rows import RowData
from dlrover_lite.ps.table import TableGroup
from dlrover_lite.wire.ps_messages import Copied, Copying

__all__ = ["Incoming", "Outgoing", "Tidying", "Training"]

CHUNK_BYTES = 2 << 20
"""Rows a reply: a millisecond of work for the source, two for the target. Smaller ones take more CPU for the same rows."""
PLACES = 3
"""For chunks, in memory that both sides map: two that are asked for ahead, and the one that is taken from. Few, so that they stay in a
cache."""
_SCAN_ROWS = 1 << 16
"""Looked at for one reply."""

FEW_BYTES = 4 << 20
"""So much may be left for the time in which the slots are frozen at most,"""
FREEZE_SECONDS = 0.01
"""and no more than takes so long at the speed of late."""
MOST_ROUNDS = 12

_TELLING_BYTES = 1 << 16
"""Smaller chunks say nothing of the speed."""
_NEWS = 0.2
"""Of the newest chunk in the speed of late."""


BUSY_SECONDS = 0.5
"""So long after a pull or a push training is taken to go on: several chunks may be copied between two requests."""


class Training:
    """Whether workers ask this server for anything."""

    def __init__(self, engine: Engine, clock: Callable[[], float]) -> None:
        self._engine = engine
        self._clock = clock
        self._answered = engine.loads.answered
        self._until = clock()

    def goes_on(self) -> bool:
        """A pull or a push was answered since the last call, or not long before it."""
        now, answered = self._clock(), self._engine.loads.answered
        if answered != self._answered:
            self._answered, self._until = answered, now + BUSY_SECONDS
        return now < self._until


class Outgoing:
    """The source's side of a move, from ``CopyBegin`` until the master has spoken."""

    def __init__(self, engine: Engine, move: int, slots: int, session: int) -> None:
        self.move = move
        self.slots = slots
        self.session = session
        self._engine = engine
        self._members = slot_sets.unpack(to_bitmap(slots))
        self._next_number = 0
        self._round = 1
        self._cursors: list[int] = []
        self._to_send: deque[tuple[int, NDArray[np.uint64]]] = deque()
        self._told_configuration = engine.configuration is not None
        self.complete = False
        """All there is has been given out."""
        self._training = Training(engine, engine.clock)
        self._memory = offered_memory(PLACES, CHUNK_BYTES)
        engine.track(0)  # a session before this one may have left a log
        engine.track(slots)

    def began(self) -> Copying:
        rows = [int(group.slot_rows[self._members].sum()) for group in self._engine.groups]
        offer = self._memory.offer if self._memory is not None else None
        return Copying(self.session, rows, self._engine.configuration, offer)

    def end(self) -> None:
        """Committed or cancelled: the master has spoken."""
        self.close()
        self._engine.track(0)
        self._engine.frozen = 0
        failpoint("ps.source.ended")

    def close(self) -> None:
        """The memory of this session. The engine stays as it is."""
        if self._memory is not None:
            self._memory.close()

    def next(self, number: int, *, freeze: bool, place: int = -1) -> tuple[Copied, list[Any]] | None:
        """Some more rows, with the frames of ``Copied``; None when this isn't the chunk that follows the last one. Raises ValueError for a
        place that there is none of."""
        if number != self._next_number:
            return None
        self._next_number += 1
        began = self._engine.clock()
        if freeze:
            self._engine.frozen = self.slots
            failpoint("ps.source.frozen")
        found = self._scan() or self._changed()
        if found is None and not self._log_is_empty():
            self._begin_round()
            found = self._changed()
        if found is None and self._engine.frozen:
            marks = self._engine.marks.parcel(self.slots)
            self.complete = True
            failpoint("ps.source.complete")
            return self._copied(-1, 0, complete=True), [marks]
        if found is None:
            return self._copied(-1, 0), []
        g, rows = found
        data = self._place(g, rows, place) if place >= 0 else None
        if data is not None:
            seconds = self._engine.clock() - began
            failpoint("ps.source.placed")
            return self._copied(g, len(rows), seconds=seconds, place=place), []
        frames = list(self._engine.groups[g].read(rows))
        return self._copied(g, len(rows), seconds=self._engine.clock() - began), frames

    def _place(self, g: int, rows: NDArray[np.uint64], place: int) -> RowData | None:
        """Put these rows there; None if they don't find room."""
        if self._memory is None:
            raise ValueError("a place in memory that was not offered")
        group = self._engine.groups[g]
        into = self._memory.rows(place, len(rows), group.dim, group.dim * group.parts)
        return group.read(rows, into) if into is not None else None

    def _scan(self) -> tuple[int, NDArray[np.uint64]] | None:
        """Of round 1."""
        if self._round > 1:
            return None
        groups = self._engine.groups
        self._cursors += [0] * (len(groups) - len(self._cursors))  # a worker has configured the source meanwhile
        for g, group in enumerate(groups):
            while self._cursors[g] < group.used:
                limit = _rows_a_chunk(group.row_bytes)
                rows, self._cursors[g] = group.find(
                    self._members, self._cursors[g], scan_limit=_SCAN_ROWS, row_limit=limit
                )
                if len(rows):
                    return g, rows
        return None

    def _changed(self) -> tuple[int, NDArray[np.uint64]] | None:
        if not self._to_send:
            return None
        g, rows = self._to_send.popleft()
        limit = _rows_a_chunk(self._engine.groups[g].row_bytes)
        if len(rows) > limit:
            self._to_send.appendleft((g, rows[limit:]))
        return g, rows[:limit]

    def _log_is_empty(self) -> bool:
        return not any(group.logged() for group in self._engine.groups)

    def _begin_round(self) -> None:
        self._round += 1
        failpoint("ps.source.round")
        for g, group in enumerate(self._engine.groups):
            if group.logged():
                self._to_send.append((g, group.take_log()))

    def _left_bytes(self) -> int:
        groups = self._engine.groups
        waiting = sum(len(rows) * groups[g].row_bytes for g, rows in self._to_send)
        return waiting + sum(group.logged() * group.row_bytes for group in groups)

    def _copied(
        self, group: int, rows: int, *, complete: bool = False, seconds: float = 0.0, place: int = -1
    ) -> Copied:
        news = None
        if not self._told_configuration and self._engine.configuration is not None:
            self._told_configuration = True
            news = self._engine.configuration
        busy = self._training.goes_on()
        left = self._left_bytes()
        return Copied(self.session, group, rows, self._round, left, complete, news, seconds, busy, place)


class Incoming:
    """The target's side of a move. ``memory``: what the source has offered, where it can be had."""

    def __init__(
        self, engine: Engine, move: int, slots: int, copying: Copying, memory: ChunkMemory | None = None
    ) -> None:
        self.move = move
        self.slots = slots
        self.session = copying.session
        self.rows = 0
        self.complete = False
        self._engine = engine
        self._memory = memory
        self._round = 1
        self._left_at_round = 0
        self._few_bytes: float = FEW_BYTES
        self.freeze = False
        """Little enough is left: the source may freeze."""
        if copying.configuration is not None:
            engine.configure(copying.configuration)
            for group, rows in zip(engine.groups, copying.rows, strict=False):
                group.reserve(rows)

    def take(self, copied: Copied, frames: list[memoryview]) -> int:
        """Put the rows away, wherever they are; nothing of it is needed then. Returns how many bytes they were. Raises ValueError or
        UsageError for what doesn't fit."""
        received = 0
        if copied.configuration is not None:
            self._engine.configure(copied.configuration)
        if copied.complete:
            self._engine.marks.unpack(frames[0])
            self.complete = True
            failpoint("ps.target.complete")
        elif copied.rows:
            if not 0 <= copied.group < len(self._engine.groups):
                raise UsageError(f"rows of group {copied.group} where there are {len(self._engine.groups)}")
            group = self._engine.groups[copied.group]
            data = self._placed(copied, group) if copied.place >= 0 else _row_data(frames, group.dim, group.parts)
            group.write(data)
            self.rows += copied.rows
            received = sum(column.nbytes for column in data)
            failpoint("ps.target.written")
        self._judge(copied)
        return received

    def _placed(self, copied: Copied, group: TableGroup) -> RowData:
        """The rows in memory that the source has put there."""
        data = None
        if self._memory is not None:
            data = self._memory.rows(copied.place, copied.rows, group.dim, group.dim * group.parts)
        if data is None:
            raise ValueError(f"{copied.rows} rows in place {copied.place}, where they can't be")
        return data

    def took(self, received: int, seconds: float) -> None:
        """A chunk of so many bytes has taken both sides so long."""
        if received >= _TELLING_BYTES and seconds > 0:
            few = max(CHUNK_BYTES, min(FEW_BYTES, FREEZE_SECONDS * received / seconds))
            self._few_bytes += _NEWS * (few - self._few_bytes)

    def _judge(self, copied: Copied) -> None:
        """Whether another round would pay: it wouldn't if little is left, or not less than a round ago."""
        if copied.round == 1 and copied.rows:
            return
        begins = copied.round > self._round
        shrinks = copied.left < 0.8 * self._left_at_round or copied.round <= 2
        if copied.left <= min(FEW_BYTES, self._few_bytes) or (begins and not shrinks) or copied.round > MOST_ROUNDS:
            self.freeze = True
        if begins:
            self._round, self._left_at_round = copied.round, copied.left


class Tidying:
    """Removes rows of slots that are another's, then moves rows together and gives memory back; a little at each ``step``."""

    def __init__(self, engine: Engine) -> None:
        self.unwanted = 0
        """Slots whose rows are to go."""
        self._engine = engine
        self._group = 0
        self._cursor = 0
        self.done = True

    def remove(self, slots: int) -> None:
        self.unwanted |= slots
        self._group = self._cursor = 0
        self.done = False

    def keep(self, slots: int) -> None:
        """These have come back."""
        self.unwanted &= ~slots

    def step(self, rows: int) -> None:
        """Look at about so many rows."""
        groups = self._engine.groups
        if self._group < len(groups):
            group = groups[self._group]
            if self.unwanted and self._cursor < group.used:
                members = slot_sets.unpack(to_bitmap(self.unwanted))
                self._cursor = group.drop(members, self._cursor, scan_limit=rows)
            elif group.compact(rows // 8):
                self._group, self._cursor = self._group + 1, 0
            return
        self.unwanted = 0
        self.done = True


def _rows_a_chunk(row_bytes: int) -> int:
    return max(1, CHUNK_BYTES // row_bytes)


def _row_data(frames: list[memoryview], dim: int, parts: int) -> RowData:
    ids, tables, counts, ages, values, state = frames
    keys = np.frombuffer(ids, np.uint64)
    return RowData(
        keys,
        np.frombuffer(tables, np.uint16),
        np.frombuffer(counts, np.uint32),
        np.frombuffer(ages, np.uint32),
        np.frombuffer(values, np.float32).reshape(len(keys), dim),
        np.frombuffer(state, np.float32).reshape(len(keys), dim * parts),
    )
