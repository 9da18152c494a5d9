"""The parameter servers as a worker sees them: pulls and pushes of whole minibatches, several under way at once, while slots move.

Keys are ordered by the map that is current when a minibatch is read. Whatever is turned away by a PS that no longer owns it, or was
asked of one that has left, is asked again by the newest map; what the other PS have answered stays. Nobody waits for the master: the
map is asked for beside everything else.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from dlrover_lite.core import slot_sets
from dlrover_lite.core.errors import DeadlineExceeded, JobError
from dlrover_lite.core.failpoints import failpoint
from dlrover_lite.core.rows import RowData
from dlrover_lite.protocol.messages import Topology
from dlrover_lite.protocol.nodes import UNANSWERED_SECONDS
from dlrover_lite.protocol.ps_messages import (
    Configure,
    Moved,
    PsReplies,
    Pulled,
    Pushed,
    Scan,
)
from dlrover_lite.transport.client import RETRY_SECONDS, Client
from dlrover_lite.transport.connector import Connector
from dlrover_lite.transport.frames import Failure
from dlrover_lite.transport.polling import Poller, Source
from dlrover_lite.worker.parameters.requests import (
    ConfigureTicket,
    MinibatchKeys,
    Piece,
    PullTicket,
    PushTicket,
    ScanTicket,
    Ticket,
)
from dlrover_lite.worker.parameters.routing import cut, split
from dlrover_lite.worker.parameters.slot_map import SlotMap
from dlrover_lite.worker.parameters.topology import MapAsker

__all__ = ["PsClient"]

MOVED_SECONDS = 0.005
"""Seconds between attempts when a PS turns something away that by the newest map is its own: it has yet to hear of that map."""
_NO_MAP = -1
CHECK_SECONDS = 0.1
"""Seconds between looks for what has had no answer; the map is asked for when that was so for one: the PS may be another by now. The master
holds its answer back until whoever takes the place of one that has ended can be reached."""


class _Link:
    """One PS, and what it has been asked."""

    def __init__(self, name: str, endpoint: str, client: Client) -> None:
        self.name, self.endpoint, self.client = name, endpoint, client
        self.unanswered: dict[int, Piece] = {}


class PsClient:
    """All PS of a job. Not for several threads. Every wait raises DeadlineExceeded when a PS or the master stays silent for ten
    minutes, JobError when one refuses."""

    def __init__(
        self,
        topology: Topology,
        *,
        node: str,
        master_endpoint: str,
        connector: Connector,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Connect to all PS of ``topology``. Newer maps are asked of the master, in the name of ``node``."""
        self.map = SlotMap.of(topology)
        """The newest slot map known."""
        self._connector = connector
        self._clock = clock
        self._links: dict[str, _Link] = {}
        self._link_of: dict[Source, _Link] = {}
        self._homeless: list[Piece] = []
        """Pieces turned away by a PS that knows a newer map."""
        self._later: deque[tuple[float, Piece]] = deque()
        """Pieces to be sent again, with the time to do so."""
        self._asker = MapAsker(node, master_endpoint, connector=connector, clock=clock)
        self._poller = Poller()
        self._poller.register(self._asker.socket)
        self._next_check = clock() + CHECK_SECONDS
        self._connect()

    # --- requests -------------------------------------------------------------------------------------------------------

    def configure(self, configuration: Configure, keys: MinibatchKeys, values: Sequence[NDArray[np.float32]]) -> None:
        """Tell each PS what it keeps, with the first values [blocks, 4096] of each dense group; waits. The first worker's word counts,
        later ones must agree. ``keys`` has dense groups only."""
        ticket = ConfigureTicket(configuration, keys.groups)
        self._begin(ticket, keys.map, values)
        self.finish(ticket)

    def pull(self, keys: MinibatchKeys, *, unknown: bool = False) -> PullTicket:
        """Ask for the rows of ``keys``; the answers arrive in ``wait``. ``unknown``: ask, too, which keys have no row yet."""
        ticket = PullTicket(keys, unknown=unknown)
        self._begin(ticket, keys.map)
        return ticket

    def push(
        self,
        epoch: int,
        k: int,
        learning_rate_factor: float,
        pull: PullTicket,
        grads: Sequence[NDArray[np.float32]],
    ) -> PushTicket:
        """Send the gradients of minibatch (epoch, k): [keys, dim] for each group of what was pulled. They must not change any more."""
        ticket = PushTicket(epoch, k, learning_rate_factor, pull)
        self._begin(ticket, pull.keys.map, grads)
        return ticket

    def scan(
        self, members: slot_sets.SlotSet, group: int, start: int, limit: int, *, state: bool = False
    ) -> tuple[RowData, int | None]:
        """Return some rows of a group, of the PS that owns all these slots, and where to go on (None: they were the last); waits.
        Whoever takes its place has the rows in the same order.
        Raises JobError when these slots are no longer one's own."""
        ticket = ScanTicket(Scan(group, start, limit, state))
        ticket.missing = 1
        self._dispatch(Piece(ticket, 0, "", _NO_MAP, members, slot_sets.pack(members), [], [], []))
        self.finish(ticket)
        assert ticket.found is not None
        return ticket.found

    def refresh(self) -> None:
        """Learn the map as it is now; waits."""
        self._asker.ask(anew=True)
        end = self._clock() + UNANSWERED_SECONDS
        while self._asker.waiting:
            if self._clock() > end:
                raise DeadlineExceeded(f"the master did not answer TopologyRequest within {UNANSWERED_SECONDS:g} s")
            self.wait()

    def finish(self, ticket: Ticket) -> None:
        """Wait until all of it is answered."""
        while ticket.missing:
            self.wait()

    # --- waiting --------------------------------------------------------------------------------------------------------

    def wait(self, timeout_seconds: float = RETRY_SECONDS) -> None:
        """Handle the replies that are here, after waiting for the first one or until something is to be sent again."""
        for socket in self._poller.poll(self._poll_milliseconds(timeout_seconds)):
            if socket is self._asker.socket:
                self._hear_master()
            elif (link := self._link_of.get(socket)) is not None:  # else something that the caller watches
                self._hear(link)
        now = self._clock()
        while self._later and self._later[0][0] <= now:
            _, piece = self._later.popleft()
            self._dispatch(piece)
        if now >= self._next_check:
            self._next_check = now + CHECK_SECONDS
            self._check(now)

    @contextmanager
    def watching(self, other: Source) -> Iterator[None]:
        """Have ``wait`` return too, within the context, when this file descriptor or socket is readable."""
        self._poller.register(other)
        try:
            yield
        finally:
            self._poller.unregister(other)

    def close(self) -> None:
        self._asker.close()
        for link in self._links.values():
            link.client.close()

    def _poll_milliseconds(self, timeout_seconds: float) -> int:
        now = self._clock()
        until = min(now + timeout_seconds, self._next_check, self._later[0][0] if self._later else math.inf)
        return max(0, math.ceil((until - now) * 1000))

    # --- sending --------------------------------------------------------------------------------------------------------

    def _begin(self, ticket: Ticket, slot_map: SlotMap, values: Sequence[NDArray[np.float32]] = ()) -> None:
        pieces = cut(ticket, slot_map, values)
        ticket.missing = len(pieces)
        ticket.began_at = self._clock()
        for piece in pieces:
            self._dispatch(piece)
            if isinstance(ticket, PushTicket) and piece is not pieces[-1]:
                failpoint("worker.push.sent_to_one")

    def _dispatch(self, piece: Piece) -> None:
        """Send the piece, or what becomes of it by the current map."""
        if piece.version == self.map.version:
            self._send(piece)
            return
        pieces = split(piece, self.map)
        if isinstance(piece.ticket, ScanTicket) and np.ptp(self.map.owners[piece.slots]):
            raise JobError(
                "slots have moved while the model was written",
                hint="Nothing should move then: please report this with the job's directory.",
            )
        piece.ticket.missing += len(pieces) - 1
        for one in pieces:
            self._send(one)

    def _send(self, piece: Piece) -> None:
        link = self._links[piece.ps]
        sequence = link.client.send(piece.ticket.body(piece), piece.ticket.frames(piece))
        link.unanswered[sequence] = piece
        piece.sent_at = self._clock()
        if piece.first_sent_at < 0:
            piece.first_sent_at = piece.sent_at

    # --- hearing --------------------------------------------------------------------------------------------------------

    def _hear(self, link: _Link) -> None:
        while (reply := link.client.receive(0)) is not None:
            piece = link.unanswered.pop(reply.sequence, None)
            if piece is None:
                continue  # the answer to a request that was repeated and answered before
            if isinstance(reply.body, Failure):
                raise JobError(f"{link.name}: {reply.body.message}", hint=reply.body.hint)
            if isinstance(reply.body, Moved):
                self._turned_away(piece, reply.body.version)
            else:
                piece.ticket.answered(piece, reply)
                if isinstance(reply.body, Pulled | Pushed) and reply.body.map_version > self.map.version:
                    self._asker.ask()  # rather than be turned away
                if not piece.ticket.missing:
                    piece.ticket.seconds = self._clock() - piece.ticket.began_at
                if isinstance(piece.ticket, PushTicket) and piece.ticket.missing:
                    failpoint("worker.push.acknowledged_by_one")

    def _turned_away(self, piece: Piece, version: int) -> None:
        """Send a piece elsewhere or later, as a PS that follows this version doesn't own all of it. Nothing was done."""
        piece.detoured = True
        if version > self.map.version:
            self._homeless.append(piece)
            self._asker.ask()
        elif piece.version < self.map.version:
            self._dispatch(piece)
        else:
            self._send_later(piece)

    def _send_later(self, piece: Piece) -> None:
        self._later.append((self._clock() + MOVED_SECONDS, piece))

    def _hear_master(self) -> None:
        topology = self._asker.receive()
        if topology is None:
            return
        if topology.version > self.map.version:
            self._follow(SlotMap.of(topology))
            return
        # It had no newer one when it was asked, which may have been before a PS spoke of one.
        homeless, self._homeless = self._homeless, []
        for piece in homeless:
            self._send_later(piece)

    def _follow(self, newer: SlotMap) -> None:
        """Take over a map: those who have left it get nothing any more, and what they haven't answered goes where it belongs now.

        They may have done it: pushes are named, so that whoever has the slots knows, and anything else may be done twice.
        """
        self.map = newer
        homeless, self._homeless = self._homeless, []
        present = dict(zip(newer.names, newer.endpoints, strict=True))
        for link in list(self._links.values()):
            if present.get(link.name) != link.endpoint:
                homeless += link.unanswered.values()
                self._disconnect(link)
        self._connect()
        for piece in homeless:
            piece.detoured = True
            piece.first_sent_at = -1.0  # somebody else is asked now, with as much patience
            self._dispatch(piece)

    def _connect(self) -> None:
        for name, endpoint in zip(self.map.names, self.map.endpoints, strict=True):
            if name not in self._links:
                client = self._connector.client(endpoint, PsReplies, peer=name, clock=self._clock)
                link = self._links[name] = self._link_of[client.socket] = _Link(name, endpoint, client)
                self._poller.register(link.client.socket)

    def _disconnect(self, link: _Link) -> None:
        self._poller.unregister(link.client.socket)
        del self._links[link.name], self._link_of[link.client.socket]
        link.client.close()

    def _check(self, now: float) -> None:
        """Repeat what has had no answer for too long; give up on what has waited longer than anything may."""
        for link in self._links.values():
            for sequence, piece in link.unanswered.items():
                _check_deadline(piece, now, piece.ps)
                if now - piece.first_sent_at >= CHECK_SECONDS:
                    self._asker.ask()
                if now - piece.sent_at > RETRY_SECONDS:
                    link.client.send(piece.ticket.body(piece), piece.ticket.frames(piece), sequence=sequence)
                    piece.sent_at = now
        for piece in self._homeless:
            _check_deadline(piece, now, f"the master gave no newer slot map, and {piece.ps}")
        for _, piece in self._later:
            _check_deadline(piece, now, piece.ps)
        self._asker.repeat()


def _check_deadline(piece: Piece, now: float, who: str) -> None:
    if now - piece.first_sent_at > UNANSWERED_SECONDS:
        raise DeadlineExceeded(f"{who} did not answer {_request(piece)} within {UNANSWERED_SECONDS:g} s")


def _request(piece: Piece) -> str:
    return type(piece.ticket.body(piece)).__name__
