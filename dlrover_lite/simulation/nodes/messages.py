"""What simulated workers and parameter servers say to each other: gradients have no values here; all else is as in ``ps_messages``."""

from __future__ import annotations

from dlrover_lite.core.bounds import Count, SlotBits
from dlrover_lite.protocol.ps_messages import Copied, CopyBegin, Copying, CopyNext, Moved, NotNow, Pushed
from dlrover_lite.transport.message import Message

__all__ = ["PushGradients", "ServerReplies", "ServerRequests"]


class PushGradients(Message, frozen=True):
    """Gradients of minibatches [start, stop) of an epoch, each of which is named as in ``Push``. Answer Pushed, or Moved."""

    epoch: Count
    start: Count
    stop: Count
    slots: SlotBits
    """The slots that are covered (512 bytes)."""


ServerRequests = PushGradients | CopyBegin | CopyNext
ServerReplies = Pushed | Moved | Copying | Copied | NotNow
