"""Slots on their way from one simulated server to another, in batches, with all that was applied in them.

The rules are those of ``ps.migration``; counts take the place of rows, and are there at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dlrover_lite.protocol.messages import MoveOrder, ReadySlots
from dlrover_lite.protocol.ps_messages import Copied, CopyBegin, Copying, CopyNext, NotNow
from dlrover_lite.ps.journal.applied_minibatches import mask_of, to_bitmap
from dlrover_lite.simulation.nodes.memory import members_of
from dlrover_lite.simulation.nodes.messages import ServerReplies

if TYPE_CHECKING:
    from dlrover_lite.simulation.nodes.server import Server

__all__ = ["Incoming", "Outgoing"]

BATCH_SLOTS = 512
"""Number of slots of a batch, at most."""
_AGAIN_SECONDS = 0.02
"""Seconds until the copying begins anew after a refusal."""
_SILENCE_SECONDS = 3.0
"""Seconds without an answer after which the copying begins anew."""
_COPY_SECONDS = 0.05
"""Seconds that the rows of a batch take."""


def lowest(mask: int, most: int) -> int:
    """Return the lowest ``most`` slots of a set."""
    found = 0
    for _ in range(most):
        if not mask:
            break
        bit = mask & -mask
        found |= bit
        mask ^= bit
    return found


class Outgoing:
    """The source's side of a move. ``have``: slots that the target has all of already."""

    def __init__(self, server: Server, order: MoveOrder, session: int, have: int) -> None:
        self.move, self.session = order.move, session
        self.given = have & mask_of(order.slots)
        """Slots that have been given out completely: they are frozen until the master has spoken."""
        self._left = mask_of(order.slots) & ~have
        self._server, self._at_once = server, order.at_once
        self._next_number = self._batches = self._batch = 0

    @property
    def waits(self) -> bool:
        """The master's word is waited for."""
        return bool(self.given & self._server.frozen)

    def began(self) -> Copying:
        return Copying(self.session, [], None)

    def next(self, request: CopyNext) -> tuple[Any, list[Any]]:
        """Answer a request for more."""
        server = self._server
        if request.number != self._next_number:
            return NotNow(), []
        self._next_number += 1
        if not self._batch:
            if not self._left:
                return Copied(self.session, -1, 0, 1, 0, pause_seconds=_AGAIN_SECONDS), []
            self._batches += 1
            self._batch = lowest(server.frozen & self._left or self._left, BATCH_SLOTS)
            if self._at_once:
                server.freeze(self._batch)
            return Copied(self.session, 0, 1, 1, 0, batch=self._batches), []
        if request.freeze and request.batch == self._batches:
            server.freeze(self._batch)
        if self._batch & ~server.frozen:
            return Copied(self.session, -1, 0, 2, 0, batch=self._batches), []
        batch, self._batch = self._batch, 0
        self.given |= batch
        self._left &= ~batch
        counts = server.memory.counts
        content = None if counts is None else counts.counts[:, members_of(batch)].copy()
        last = Copied(self.session, -1, 0, 2, 0, complete=True, batch=self._batches, slots=to_bitmap(batch))
        return last, [server.applied.parcel(batch), content]


class Incoming:
    """The target's side of a move, with its line to the source."""

    def __init__(self, server: Server, order: MoveOrder, discard: Callable[[int], None]) -> None:
        self.order = order
        self.slots = mask_of(order.slots)
        self.complete = 0
        """Slots of which it has all there is."""
        self._server, self._discard, self._clock = server, discard, server.clock
        self._client = server.connector.client(order.source_endpoint, ServerReplies)
        self._session: int | None = None
        self._number = self._batch = 0
        self._asked: int | None = None
        """Number of the request that is under way."""
        self._heard_at = self._ask_at = self._clock()

    @property
    def ready(self) -> int:
        """Complete slots that the master hasn't committed yet, as far as is known here."""
        return self.complete & ~self._server.owned

    def reports(self) -> list[ReadySlots]:
        return [ReadySlots(self.order.move, to_bitmap(self.ready), 1, 64)] if self.ready else []

    @property
    def next_at(self) -> float:
        if not self.slots & ~self.complete:
            return math.inf
        return self._heard_at + _SILENCE_SECONDS if self._asked is not None else self._ask_at

    def work(self) -> None:
        """Take what has come, and ask for more."""
        while (reply := self._client.receive()) is not None:
            if reply.sequence == self._asked:
                self._asked, self._heard_at = None, self._clock()
                self._take(reply.body, reply.frames)
        if not self.slots & ~self.complete:
            return
        now = self._clock()
        if self._asked is not None and now >= self._heard_at + _SILENCE_SECONDS:
            self._anew(0.0)
        if self._asked is None and now >= self._ask_at:
            self._heard_at = now
            self._asked = self._client.send(self._request())

    def close(self) -> None:
        self._client.close()

    def _request(self) -> CopyBegin | CopyNext:
        if self._session is None:
            return CopyBegin(self.order.move, to_bitmap(self.complete))
        # no batch is frozen before the one before it is committed
        self._number += 1
        return CopyNext(self._session, self._number - 1, batch=self._batch, freeze=not self.ready)

    def _take(self, body: object, frames: list[Any]) -> None:
        match body:
            case Copying() as copying:
                self._session, self._number, self._batch = copying.session, 0, 0
            case Copied() as copied if copied.session == self._session:
                self._batch = copied.batch
                if copied.complete:
                    self._put(mask_of(copied.slots), *frames)
                else:
                    self._ask_at = self._clock() + (copied.pause_seconds or _COPY_SECONDS)
            case _:  # there is nothing to be had for now, or an answer was lost
                self._anew(_AGAIN_SECONDS)

    def _put(self, batch: int, parcel: bytes, content: Any) -> None:
        memory = self._server.memory
        self._server.applied.unpack(parcel)
        if memory.counts is not None:
            memory.counts.counts[:, members_of(batch)] = content
        self.complete |= batch

    def _anew(self, seconds: float) -> None:
        self._discard(self.slots & ~(self.complete | self._server.owned))
        self._session = self._asked = None
        self._heard_at = self._clock()
        self._ask_at = self._clock() + seconds
