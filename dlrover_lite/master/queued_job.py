"""A job without nodes, which waits for a plan: who asks is answered, and it can be stopped."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from dlrover_lite.core.errors import DiskFull
from dlrover_lite.master.autoscale.next_decision import QUEUED
from dlrover_lite.master.events import EventLog
from dlrover_lite.master.phases import Outbox
from dlrover_lite.protocol.demands import Autoscale
from dlrover_lite.protocol.messages import Ack, Finished, Heartbeat, LeaseRequest, PsReport
from dlrover_lite.protocol.questions import (
    AutoscaleRequest,
    AutoscaleStatus,
    NodeStatus,
    Status,
    StatusRequest,
    StopRequest,
    StoryRequest,
)
from dlrover_lite.transport.frames import Failure, Request

__all__ = ["QueuedJob", "without_nodes"]

_HAS_NO_NODES = Failure("refused", "the job waits for a plan, and has no nodes", "See: dlrover-lite status")


@dataclass(eq=False)
class QueuedJob:
    """``status``: as it stands at first. ``stop``: whether the master is to end."""

    outbox: Outbox
    story: EventLog
    status: Status
    mode: Autoscale
    stop: Callable[[], bool]
    show: Callable[[Status], None] = lambda _: None

    def __post_init__(self) -> None:
        self.stop_request: StopRequest | None = None
        """Request to stop the job; None: nobody has asked for that."""

    def is_over(self) -> bool:
        return self.stop_request is not None or self.stop()

    def waits(self, why: str) -> None:
        """Say that the job is in the queue, for this reason."""
        if (self.status.state, self.status.message) != ("queued", why):
            self.status = msgspec.structs.replace(self.status, state="queued", message=why, next_look=QUEUED)
            self.story.node("master", why, "decision")
            with suppress(DiskFull):  # it is kept, and written later
                self.story.flush()
            self.show(self.status)

    def serve(self, requests: list[Request]) -> None:
        """Answer those who ask."""
        for request in requests:
            if (body := self._answer(request)) is not None:
                self.outbox.reply(request, body)

    def _answer(self, request: Request) -> msgspec.Struct | None:
        match request.body:
            case StatusRequest():
                return self.status
            case StoryRequest(subject):
                return self.story.answer(subject, [node.id for node in self.status.nodes])
            case AutoscaleRequest("status"):
                return AutoscaleStatus(self.mode)
            case StopRequest() as asked:
                self.stop_request = asked
                return Ack()
            case LeaseRequest():
                return Finished()
            case Heartbeat() | PsReport():
                return None
            case _:
                return _HAS_NO_NODES


def without_nodes(status: Status, why: str) -> Status:
    """Return the status of a job that has given way: all that ran has ended."""

    def ended(node: NodeStatus) -> NodeStatus:
        state = node.state if node.state.startswith("ended") else "ended (Succeeded)"
        return msgspec.structs.replace(node, state=state, samples_per_second=0.0)

    nodes = [ended(node) for node in status.nodes]
    return msgspec.structs.replace(
        status,
        state="queued",
        message=why,
        samples_per_second=0.0,
        nodes=nodes,
        moves=[],
        slots_settled=True,
        next_look=QUEUED,
        expected_end=None,
    )
