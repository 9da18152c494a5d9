"""The parameter servers as a worker sees them: pulls and pushes of whole minibatches, several under way at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import numpy as np
import zmq
from numpy.typing import NDArray

from dlrover_lite.errors import DeadlineExceeded, JobError
from dlrover_lite.wire.client import RETRY_SECONDS, Client
from dlrover_lite.wire.frames import Failure, Reply
from dlrover_lite.wire.messages import Configure, PsReplies, Pull, Push, Rows, Scan, Topology
from dlrover_lite.worker.dense import DensePlacement
from dlrover_lite.worker.embedding import GroupKeys

__all__ = ["PsClient", "PullTicket", "PushTicket"]

DEADLINE_SECONDS = 120.0


class PullTicket:
    """A pull under way."""

    def __init__(self, groups: Sequence[GroupKeys], own_pushes: list[int]) -> None:
        self.groups = groups
        self.own_pushes = own_pushes
        """Pushes this worker had sent to each PS before this pull."""
        self.replies: list[Reply | None] = [None] * len(own_pushes)
        self.missing = len(own_pushes)


class PushTicket:
    """A push under way; done when every PS has acknowledged it."""

    def __init__(self, epoch: int, k: int, pull: PullTicket, own_pushes: list[int]) -> None:
        self.epoch = epoch
        self.k = k
        self.pulled_versions = [reply.body.version if reply else 0 for reply in pull.replies]
        self.own_between = [now - then for now, then in zip(own_pushes, pull.own_pushes, strict=True)]
        self.missing = len(own_pushes)
        self.staleness = 0
        """Pushes of other workers, at most over all PS, applied between this minibatch's pull and its push."""


class _Sent:
    __slots__ = ("at", "body", "frames", "on_reply")

    def __init__(self, body: msgspec.Struct, frames: list[Any], at: float, on_reply: Callable[[Reply], None]) -> None:
        self.body, self.frames, self.at, self.on_reply = body, frames, at, on_reply


class PsClient:
    """All PS of a job. Not for several threads. Every wait raises DeadlineExceeded when a PS stays silent for two minutes, JobError
    when one refuses."""

    def __init__(
        self, topology: Topology, *, context: zmq.Context[Any], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.names = [name for name, _ in topology.ps]
        self.owners: NDArray[np.uint16] = np.frombuffer(topology.slots, np.uint16)
        self._clock = clock
        self._clients = [
            Client(endpoint, PsReplies, context=context, peer=name, clock=clock) for name, endpoint in topology.ps
        ]
        self._sent: list[dict[int, _Sent]] = [{} for _ in self._clients]
        self._own_pushes = [0] * len(self._clients)
        self._poller = zmq.Poller()
        for client in self._clients:
            self._poller.register(client.socket, zmq.POLLIN)
        self._part_of = {client.socket: part for part, client in enumerate(self._clients)}
        self._next_check = clock() + RETRY_SECONDS

    @property
    def parts(self) -> int:
        return len(self._clients)

    def place_dense(self, length: int) -> DensePlacement:
        return DensePlacement(length, self.owners, self.parts)

    def configure(self, messages: Sequence[tuple[Configure, NDArray[np.float32]]]) -> None:
        """Tell each PS what it keeps; the first worker's word counts, later ones must agree."""
        left = [len(messages)]

        def done(_: Reply) -> None:
            left[0] -= 1

        for part, (message, dense) in enumerate(messages):
            self._send(part, message, [dense], done)
        while left[0]:
            self.wait()

    # --- minibatches ----------------------------------------------------------------------------------------------------

    def pull(self, groups: Sequence[GroupKeys], *, dense: bool = True) -> PullTicket:
        """Ask for dense parameters and the rows of ``groups``; the answers arrive in ``wait``."""
        ticket = PullTicket(groups, list(self._own_pushes))
        for part in range(self.parts):
            counts = [group.counts[part].tolist() for group in groups]
            frames = [group.keys[group.bounds[part] : group.bounds[part + 1]] for group in groups]
            self._send(part, Pull(counts, dense), frames, _fill(ticket, part))
        return ticket

    def dense(self, ticket: PullTicket, placement: DensePlacement, flat: NDArray[np.float32]) -> None:
        """Write the dense parameters of a finished pull into ``flat``."""
        for part, reply in enumerate(ticket.replies):
            if reply is not None:
                placement.put(part, np.frombuffer(reply.buffer(0), np.float32), flat)

    def rows(self, ticket: PullTicket, *, dense: bool = True) -> list[NDArray[np.float32]]:
        """Rows [keys, dim] of each group of a finished pull."""
        found = []
        for g, group in enumerate(ticket.groups):
            pieces = [
                np.frombuffer(reply.buffer(g + dense), np.float32) for reply in ticket.replies if reply is not None
            ]
            flat = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
            found.append(flat.reshape(-1, group.dim))
        return found

    def push(
        self,
        epoch: int,
        k: int,
        learning_rate_factor: float,
        pull: PullTicket,
        dense: Sequence[NDArray[np.float32]],
        grads: Sequence[NDArray[np.float32]],
    ) -> PushTicket:
        """Send the gradients of minibatch (epoch, k): each PS's share of ``dense``, and [keys, dim] for each group."""
        ticket = PushTicket(epoch, k, pull, list(self._own_pushes))
        for part in range(self.parts):
            counts = [group.counts[part].tolist() for group in pull.groups]
            frames: list[Any] = [dense[part]]
            for group, gradient in zip(pull.groups, grads, strict=True):
                span = slice(group.bounds[part], group.bounds[part + 1])
                frames += [group.keys[span], gradient[span]]
            self._send(part, Push(epoch, k, learning_rate_factor, counts), frames, _acknowledge(ticket, part))
            self._own_pushes[part] += 1
        return ticket

    def scan(self, part: int, group: int, start: int, limit: int) -> tuple[Rows, list[NDArray[Any]]]:
        """Some rows of a table group: ids, table positions, flat values."""
        found: list[Reply] = []
        self._send(part, Scan(group, start, limit), [], found.append)
        while not found:
            self.wait()
        kinds = (np.uint64, np.uint16, np.float32)
        return found[0].body, [np.frombuffer(found[0].buffer(i), kind) for i, kind in enumerate(kinds)]

    def wait(self, timeout_seconds: float = RETRY_SECONDS) -> None:
        """Handle the replies that are here, after waiting for the first one; repeat requests that have had none for too long."""
        for socket, _ in self._poller.poll(int(timeout_seconds * 1000)):
            part = self._part_of.get(socket)
            if part is None:
                continue  # something else that the caller watches
            while (reply := self._clients[part].receive(0)) is not None:
                sent = self._sent[part].pop(reply.sequence, None)
                if sent is None:
                    continue  # the answer to a request that was repeated and answered before
                if isinstance(reply.body, Failure):
                    raise JobError(f"{self.names[part]}: {reply.body.message}", hint=reply.body.hint)
                sent.on_reply(reply)
        if self._clock() >= self._next_check:
            self._repeat_unanswered()

    @contextmanager
    def watching(self, other: int | zmq.Socket[Any]) -> Iterator[None]:
        """Within, ``wait`` returns too when this file descriptor or socket is readable."""
        self._poller.register(other, zmq.POLLIN)
        try:
            yield
        finally:
            self._poller.unregister(other)

    def close(self) -> None:
        for client in self._clients:
            client.close()

    # --- how ------------------------------------------------------------------------------------------------------------

    def _send(self, part: int, body: msgspec.Struct, frames: list[Any], on_reply: Callable[[Reply], None]) -> None:
        sequence = self._clients[part].send(body, frames)
        self._sent[part][sequence] = _Sent(body, frames, self._clock(), on_reply)

    def _repeat_unanswered(self) -> None:
        now = self._clock()
        self._next_check = now + RETRY_SECONDS
        for part, unanswered in enumerate(self._sent):
            for sequence, sent in unanswered.items():
                if now - sent.at > DEADLINE_SECONDS:
                    raise DeadlineExceeded(
                        f"{self.names[part]} did not answer {type(sent.body).__name__} within {DEADLINE_SECONDS:g} s"
                    )
                if now - sent.at > RETRY_SECONDS:
                    self._clients[part].send(sent.body, sent.frames, sequence=sequence)


def _fill(ticket: PullTicket, part: int) -> Callable[[Reply], None]:
    def on_reply(reply: Reply) -> None:
        ticket.replies[part] = reply
        ticket.missing -= 1

    return on_reply


def _acknowledge(ticket: PushTicket, part: int) -> Callable[[Reply], None]:
    def on_reply(reply: Reply) -> None:
        others = reply.body.version - ticket.pulled_versions[part] - ticket.own_between[part]
        ticket.staleness = max(ticket.staleness, others)
        ticket.missing -= 1

    return on_reply
