"""What all messages are."""

from __future__ import annotations

import msgspec

__all__ = ["Message"]


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    pass
