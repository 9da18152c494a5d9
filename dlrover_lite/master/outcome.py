"""How a job ends, and what is answered once its nodes have to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec

from dlrover_lite.protocol.messages import Ack, Finished, Heartbeat, Hello, LeaseRequest, NodeFailed, PsReport
from dlrover_lite.protocol.questions import CheckpointRequest, SlotsRequest, StatusRequest, StoryRequest, Wish
from dlrover_lite.transport.frames import LATER, Failure, Request

__all__ = ["Outcome", "answer_in_between", "answer_late", "failed_by", "stopped_amid"]


class Outcome(msgspec.Struct, frozen=True):
    """How the job ended."""

    state: Literal["succeeded", "failed", "stopped"]
    message: str = ""
    hint: str = ""
    traceback: str = ""


def failed_by(failed: NodeFailed, job: str) -> Outcome:
    """Return the outcome of a job that can't go on because a node can't."""
    message, _, hint = failed.message.partition("\n")
    if failed.user_error:
        return Outcome("failed", message, hint, failed.traceback)
    hint = hint or f"Its log: dlrover-lite logs {job} --node {failed.node}"
    return Outcome("failed", f"{failed.node}: {message}", hint)


def stopped_amid(failed: NodeFailed, why: str) -> Outcome:
    """Return the outcome of a job that has lost parameters while it took its last checkpoint."""
    message, _, hint = failed.message.partition("\n")
    return Outcome("stopped", f"{why}, without a last checkpoint: {message}", hint)


def answer_in_between(
    request: Request, answer: Callable[[Request], msgspec.Struct | None]
) -> msgspec.Struct | Failure | None:
    """Answer a request while all nodes of a generation end: nothing of them counts any more, and nothing can be wished for. ``answer`` is
    for questions."""
    match request.body:
        case StatusRequest() | StoryRequest() | SlotsRequest():
            return answer(request) or Ack()
        case CheckpointRequest():
            return _NOT_NOW
        case LeaseRequest():
            return Finished()
        case Heartbeat() | PsReport():
            return None
        case body:
            return _NOT_NOW if isinstance(body, Wish) else Ack()


def answer_late(request: Request, answer: Callable[[Request], msgspec.Struct | None]) -> msgspec.Struct | None:
    """Answer a request after the job's end: only reports and questions still count. What ``answer`` takes is to be committed first."""
    match request.body:
        case StatusRequest() | SlotsRequest() | StoryRequest() | CheckpointRequest():
            return answer(request) or Ack()
        case LeaseRequest():
            answer(request)
            return Finished()
        case Heartbeat():
            return None
        case Hello():
            return LATER  # it is about to be ended; welcomed, it would never say so to a master that knows nothing of the end
        case body:
            return (answer(request) if isinstance(body, Wish) else None) or Ack()


_NOT_NOW = Failure("refused", "the job goes back to a checkpoint", "Try again in a moment.")
