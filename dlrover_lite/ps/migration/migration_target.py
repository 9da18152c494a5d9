"""The target's side of a move, with its socket to the source: asks for rows, a few requests ahead, until it has all there are."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from dlrover_lite.core.errors import DlroverLiteError
from dlrover_lite.core.failpoints import failpoint
from dlrover_lite.protocol.messages import MoveOrder, ReadySlots
from dlrover_lite.protocol.ps_messages import Copied, CopyBegin, Copying, CopyNext
from dlrover_lite.ps.journal.applied_minibatches import mask_of, to_bitmap
from dlrover_lite.ps.migration.chunk_memory import ChunkMemory, NotShared, open_memory
from dlrover_lite.ps.migration.convergence import Asked
from dlrover_lite.ps.migration.copy_pace import REST_LEAST, CopyPace
from dlrover_lite.ps.migration.migration import BUSY_SECONDS, Incoming
from dlrover_lite.ps.server.busy_meter import TrainingWatch
from dlrover_lite.ps.server.engine import Engine
from dlrover_lite.transport.client import Client
from dlrover_lite.transport.frames import Reply
from dlrover_lite.transport.polling import Source

__all__ = ["MigrationTarget"]

WINDOW = 2
"""Number of requests under way: one is served while the answer to the other is put away."""
SILENCE_SECONDS = 10.0
"""Seconds without an answer after which the copying begins anew."""
AGAIN_SECONDS = 0.02
"""Seconds until the copying begins anew after a refusal: the source may not have its orders yet."""
PACE_BYTES = 256 << 20
"""Maximum bytes per second in the first round of a batch beside training: a GiB takes seconds, which workers hardly notice. Later rounds
don't wait for it, since the longer they take the more rows change."""
BEHIND_SECONDS = 0.1
"""Seconds that the target may be behind its pace, because chunks took long, and still catch up."""
NOTHING_SECONDS = 0.001
"""Seconds until a source that had no rows is asked again, while the batch can't be frozen yet."""


class _Asked(NamedTuple):
    sequence: int
    place: int
    """Place where the source may put the rows; -1: nowhere."""


class MigrationTarget:
    """The target's side of one move. ``connect`` makes a client of the source."""

    def __init__(
        self,
        engine: Engine,
        order: MoveOrder,
        connect: Callable[[str, str], Client],
        discard: Callable[[int], None],
        clock: Callable[[], float],
        say: Callable[[str], None],
    ) -> None:
        """``discard`` is told of slots whose rows, received so far, are worth nothing."""
        self.order = order
        self.slots = mask_of(order.slots)
        self.complete = 0
        """Slots that have been received completely: they are frozen at the source, and the master may commit them."""
        self._ready: list[ReadySlots] = []
        self._engine = engine
        self._discard = discard
        self._clock = clock
        self._say = say
        self._said = ""
        self._client = connect(order.source_endpoint, order.source)
        self._incoming: Incoming | None = None
        self._number = 0
        self._asked: deque[_Asked] = deque()
        """Requests for rows under way."""
        self._places: list[int] = []
        """Free places in memory that the source shares: nothing is there, and nobody is to put anything there."""
        self._begin_sent = False
        self._heard_at = clock()
        self._begin_at = self._next_at = clock()
        self._training = TrainingWatch(engine.loads.answered, BUSY_SECONDS)
        self._pace = CopyPace()

    @property
    def socket(self) -> Source:
        socket: Source = self._client.socket
        return socket

    @property
    def ready(self) -> list[ReadySlots]:
        """Complete slots that the master hasn't committed yet, as far as is known here."""
        self._ready = [one for one in self._ready if mask_of(one.slots) & ~self._engine.owned]
        return self._ready

    @property
    def rows(self) -> int:
        """Rows received of the present batch."""
        return self._incoming.rows if self._incoming is not None else 0

    def work(self, *, may_begin: bool) -> float | None:
        """Take the answers that are here and ask for more. Returns how many seconds from now there is something to do again without any
        answer; None: nothing. ``may_begin``: nothing is left of what was received before."""
        if (reply := self._client.receive(0)) is not None:
            self._take(reply)
            return 0.0  # who else is waiting comes first
        now = self._clock()
        if self._has_all:
            return None
        if self._incoming is None:
            return self._begin(now, may_begin)
        if (pause := self._ask(self._incoming)) is not None:
            return pause
        if now - self._heard_at > SILENCE_SECONDS:
            self._anew(now)
        return SILENCE_SECONDS

    def close(self) -> None:
        self._client.close()

    @property
    def _has_all(self) -> bool:
        return not self.slots & ~self.complete

    def _wants(self, incoming: Incoming) -> Asked:
        """Return what to ask for the present batch. It isn't frozen before the one before it is committed: while the master can't be heard,
        training is held up for one batch only."""
        asked = incoming.convergence.asked
        return asked._replace(freeze=asked.freeze and not self.ready)

    def _ask(self, incoming: Incoming) -> float | None:
        """Ask for as many chunks as may be under way; or return how many seconds to wait with it."""
        now, asked = self._clock(), self._wants(incoming)
        if now < self._next_at and not asked.freeze:
            return self._next_at - now
        while len(self._asked) < WINDOW:
            place = self._places.pop() if self._places else -1
            request = CopyNext(incoming.session, self._number, place, *asked)
            self._asked.append(_Asked(self._client.send(request), place))
            self._number += 1
        return None

    def _begin(self, now: float, may_begin: bool) -> float | None:
        if now < self._begin_at:
            return self._begin_at - now
        if not may_begin:
            return None  # the caller has something to do before, and comes back
        if not self._begin_sent or now - self._heard_at > SILENCE_SECONDS:
            self._client.send(CopyBegin(self.order.move, to_bitmap(self.complete)))
            self._begin_sent, self._heard_at = True, now
        return SILENCE_SECONDS

    def _take(self, reply: Reply) -> None:
        self._heard_at = self._clock()
        if self._has_all:
            return  # asked for ahead; the source may have heard of the commit, and have nothing to say any more
        match reply.body:
            case Copying() as copying:
                if self._incoming is None:
                    memory = self._open(copying)
                    self._incoming = Incoming(self._engine, self.order.move, copying, memory)
                    self._number = 0
                    self._asked.clear()
                    self._places = list(range(memory.places)) if memory is not None else []
                    failpoint("ps.target.begun")
            case Copied() as copied:
                if self._incoming is not None and copied.session == self._incoming.session:
                    self._take_rows(self._incoming, copied, reply)
            case _:  # NotNow, or a failure: what there is may not fit together any more
                self._anew(self._heard_at + AGAIN_SECONDS)

    def _open(self, copying: Copying) -> ChunkMemory | None:
        """Open the memory that the source offers for this session, if there is any and it can be had."""
        memory, how = None, "over the wire: it offers no memory"
        if copying.memory is not None:
            try:
                memory, how = open_memory(copying.memory), "through memory"
            except NotShared as error:
                how = f"over the wire: {error.message}"
        if how != self._said:
            self._said = how
            self._say(f"move {self.order.move}: rows of {self.order.source} come {how}")
        return memory

    def _take_rows(self, incoming: Incoming, copied: Copied, reply: Reply) -> None:
        if not self._asked or self._asked[0].sequence != reply.sequence:
            self._anew(self._heard_at)  # an answer was lost, with the rows in it
            return
        place = self._asked.popleft().place
        if copied.pause_seconds or not (copied.rows or copied.complete or self._wants(incoming).freeze):
            self._next_at = max(self._next_at, self._heard_at + (copied.pause_seconds or NOTHING_SECONDS))
        self._ask(incoming)  # so that the source has something to do meanwhile
        self._put_away(incoming, copied, reply)
        if place >= 0:
            self._places.append(place)

    def _put_away(self, incoming: Incoming, copied: Copied, reply: Reply) -> None:
        began = self._clock()
        try:
            received, ready = incoming.take(copied, [reply.buffer(i) for i in range(len(reply.frames))])
        except (ValueError, IndexError) as error:
            raise DlroverLiteError(f"{self.order.source} sends rows that make no sense: {error}") from error
        now = self._clock()
        seconds = now - began + copied.seconds
        incoming.convergence.took(received, seconds)
        if ready is not None:
            self._ready.append(ready)
            self.complete |= mask_of(ready.slots)
        if self._training.goes_on(self._engine.loads.answered, now) or copied.busy:
            self._pace.look(copied.kept_speed)
            first = copied.round == 1
            rest = (self._pace.rest if first else REST_LEAST) * seconds
            paced = received / PACE_BYTES if first else 0.0
            self._next_at = max(now + rest, max(self._next_at, began - BEHIND_SECONDS) + paced)

    def _anew(self, at: float) -> None:
        if self._incoming is not None:
            self._discard(self.slots & ~(self.complete | self._engine.owned))
        self._incoming = None
        self._begin_sent = False
        self._begin_at = at
