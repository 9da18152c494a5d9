"""Whether a parameter server has what it is to own: not where it found nothing of the memory that it was to take up."""

from __future__ import annotations

from typing import Literal, Protocol

from dlrover_lite.core.errors import JobError
from dlrover_lite.protocol.messages import PsOrders

__all__ = ["ParametersLost", "check_memory"]


class ParametersLost(JobError):
    """The parameters are lost: nobody has them any more."""

    because: Literal["lost"] = "lost"

    def __init__(self, follows: str, why: str, hint: str = "") -> None:
        super().__init__(f"the parameters of {follows} are lost: {why}", hint=hint)


class _Memory(Protocol):
    """What outlives a server's process, as ``server_state.State`` keeps it."""

    begun_empty: bool


def check_memory(orders: PsOrders, memory: _Memory, follows: str) -> None:
    """Check that what these orders say it owns is there. Raises ParametersLost when its memory was begun with nothing, though it
    ``follows`` another one: that stays so, whoever takes it up, until it has a checkpoint, or is told that it owns nothing."""
    if not memory.begun_empty or not orders.version:
        return
    if not any(orders.owned):
        memory.begun_empty = False
    elif orders.restore is None:  # else nothing was to be found yet that isn't in the checkpoint
        raise ParametersLost(follows, "nothing of its memory is left")
