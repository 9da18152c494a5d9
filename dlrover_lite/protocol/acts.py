"""What is done about the nodes of a job that runs: one vocabulary, from the brain's decision to the steps of its master."""

from __future__ import annotations

from typing import Literal

import msgspec

from dlrover_lite.core.bounds import ByKey, Name, Rate
from dlrover_lite.core.units import Resources

PolicyName = Literal["lite", "paper"]
"""Policies that decide plans: ours, and that of the DLRover-RM paper, to compare with. Databases keep their position: add others behind."""
WorkRole = Literal["ps", "worker"]
Cause = Literal["slow worker", "hot ps", "memory ahead", "memory to spare", "ceiling"]
MEMORY_CAUSES: tuple[Cause, ...] = ("memory ahead", "memory to spare", "ceiling")
"""Causes of treatments that are about memory."""


class SmallerShards(msgspec.Struct, frozen=True, tag="smaller shards"):
    """Lease a worker ``factor`` times as many minibatches at once as its peers get."""

    factor: Rate


class Replace(msgspec.Struct, frozen=True, tag="replace"):
    """Start another node, and let this one go when that is there (a PS: when its slots have moved)."""

    resources: Resources
    host: Name = ""
    """Host where the other node is to start; "": wherever there is room."""


class Resize(msgspec.Struct, frozen=True, tag="resize"):
    """Change a node's limits in place, while it runs."""

    resources: Resources
    others: ByKey[Name, Resources] = {}
    """Nodes that are resized with it: parameter servers grow alike, and run out of memory together."""


class MoveSlots(msgspec.Struct, frozen=True, tag="move slots"):
    """Move slots with ``share`` of a PS's load, the hottest first, to the PS named in ``to``: each gets its part of them (they add up to
    1)."""

    share: Rate
    to: ByKey[Name, Rate]


class AddPs(msgspec.Struct, frozen=True, tag="add ps"):
    """Start a PS, and move slots with ``share`` of the memory of this one's rows there."""

    resources: Resources
    share: Rate
    host: Name = ""
    """Host where it is to start; "": wherever there is room."""


class Tell(msgspec.Struct, frozen=True, tag="tell"):
    """Nothing can be done but to say so."""


Act = SmallerShards | Replace | Resize | MoveSlots | AddPs | Tell
