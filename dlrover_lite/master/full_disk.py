"""A job whose disk is full waits, with its parameters in memory, until there is room, or it is to end.

What has to be durable is done through ``FullDisk.insist``, which is over when it is: so nothing is granted, acknowledged or launched
meanwhile that would follow from it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import msgspec

from dlrover_lite.core.errors import DiskFull, DlroverLiteError
from dlrover_lite.core.units import format_bytes
from dlrover_lite.core.words import duration
from dlrover_lite.master.phases import Outbox, Phase
from dlrover_lite.protocol.messages import (
    Ack,
    Exported,
    ExportFailed,
    Heartbeat,
    Hello,
    IndexRequest,
    LeaseRequest,
    NodeFailed,
    PsOrders,
    PsReport,
    TopologyRequest,
)
from dlrover_lite.protocol.questions import SlotsRequest, StatusRequest, StopRequest, StoryRequest
from dlrover_lite.transport.frames import LATER, Failure, Later, Request

__all__ = ["FullDisk", "answer_meanwhile", "delay_seconds", "serve_meanwhile", "tellable"]

FIRST_DELAY_SECONDS = 0.25
LONGEST_DELAY_SECONDS = 10.0
_TURN_SECONDS = 0.1
AGAIN_SECONDS = 60.0
"""Seconds within which a disk that is full again is tried as seldom as before."""


def delay_seconds(tries: int) -> float:
    """Return the seconds to wait before the next try, after ``tries`` that have failed."""
    return min(LONGEST_DELAY_SECONDS, FIRST_DELAY_SECONDS * 2.0 ** min(tries, 32))


class FullDisk:
    """``tell`` is given what has happened, in words; ``free`` how many bytes there are left for a directory."""

    def __init__(self, *, clock: Callable[[], float], free: Callable[[Path], int], tell: Callable[[str], None]) -> None:
        self.waits = ""
        """What training waits for, in words; empty: it doesn't."""
        self.interrupted = False
        """Training has waited since this was last reset: what was measured means nothing."""
        self.given_up = False
        """The job ends: nothing that isn't durable is insisted on any more."""
        self.free = free
        self._clock = clock
        self._tell = tell
        self._tries = 0
        self._ended_at = -math.inf

    def insist(self, action: Callable[[], object], serve: Callable[[list[Request]], bool]) -> Phase[bool]:
        """Do it; as long as the disk is full, again and again. ``serve`` answers who asks meanwhile, and says whether the job is to end:
        from then on it is tried once, and may come to nothing. Return whether it is done."""
        began: float | None = None
        while True:
            try:
                action()
                done = True
                break
            except DiskFull as error:
                if self.given_up:
                    print(error.message, flush=True)
                    done = False
                    break
                if began is None:
                    began = self._begin(error)
                self.waits = self._words(error)
                yield from self._wait(serve)
        if began is not None:
            self._end(self._clock() - began)
        return done

    def _begin(self, error: DiskFull) -> float:
        now = self._clock()
        if now - self._ended_at > AGAIN_SECONDS:
            self._tries = 0
        self._tell(f"{error.message}: training waits until there is room, with all parameters in memory")
        return now

    def _words(self, error: DiskFull) -> str:
        return f"the disk of {error.directory} is full ({format_bytes(self.free(error.directory))} free): training waits for room there"

    def _wait(self, serve: Callable[[list[Request]], bool]) -> Phase[None]:
        until = self._clock() + delay_seconds(self._tries)
        self._tries += 1
        while (now := self._clock()) < until and not self.given_up:
            self.given_up = serve((yield min(until, now + _TURN_SECONDS)))

    def _end(self, seconds: float) -> None:
        self.waits, self._ended_at, self.interrupted = "", self._clock(), True
        if self.given_up:
            self._tell(f"the job is to end: the full disk isn't waited for any longer, after {duration(seconds)}")
        else:
            self._tell(f"there is room on the disk again, after {duration(seconds)}: training goes on")


def serve_meanwhile(
    requests: list[Request], outbox: Outbox, answer: Callable[[Request], msgspec.Struct | None], waits: str
) -> StopRequest | None:
    """Answer these while the disk is full; return who has asked for the job's end."""
    stop = None
    for request in requests:
        try:
            body = answer_meanwhile(request, answer, waits)
        except DlroverLiteError as error:
            # of a question that can't be answered; whoever waits here has nothing to do with it
            body = Failure("refused", error.message, error.hint)
        if isinstance(request.body, StopRequest):
            stop = request.body
        if body is not None:
            outbox.reply(request, body)
    return stop


def answer_meanwhile(
    request: Request, answer: Callable[[Request], msgspec.Struct | None], waits: str
) -> msgspec.Struct | Failure | Later | None:
    """Answer while the disk is full: questions by ``answer``; nodes ask again until there is room; people are told why not."""
    match request.body:
        case StatusRequest() | StoryRequest() | SlotsRequest() | Heartbeat():
            return answer(request)
        case PsReport():
            return None  # it reports again
        case StopRequest():
            return Ack()
        case LeaseRequest() | IndexRequest() | Hello() | NodeFailed() | Exported() | ExportFailed():
            return LATER
        case TopologyRequest() if request.body.node:  # people ask for it without a name
            return LATER
        case _:
            return Failure("refused", waits, "Make room there, then ask again.")


def tellable(
    request: Request,
    body: msgspec.Struct | None,
    as_written: Callable[[PsOrders], PsOrders],
    map_is_written: bool,
) -> msgspec.Struct | None:
    """Return what may be told of an answer though nothing could be written: the job is to end on a full disk, and its last checkpoint needs
    the answers to servers; but a master that follows this one knows nothing of what nodes have said, and of slots that have moved.
    ``as_written`` says no more than is durable of what is consumed."""
    match request.body:
        case LeaseRequest() | Hello() | NodeFailed() | Exported() | ExportFailed():
            return LATER
        case PsReport() | TopologyRequest() if not map_is_written:
            return None  # it asks again
        case PsReport() if isinstance(body, PsOrders):
            return as_written(body)
        case _:
            return body
