"""What a parameter server and its persister say to each other, over a pair of sockets that keep messages apart."""

from __future__ import annotations

import socket
from collections.abc import Sequence

import msgspec

from dlrover_lite.core.bounds import Bytes, Count, Items, Name, Seconds, SlotBits, Text, Url
from dlrover_lite.ps.snapshots.copy_on_write_log import GroupSnapshot

__all__ = [
    "FILES_AT_ONCE",
    "MESSAGE_BYTES",
    "Failed",
    "Files",
    "FromPersister",
    "Hurry",
    "Persist",
    "Ready",
    "Release",
    "Released",
    "ToPersister",
    "Writing",
    "Written",
    "send",
]

FILES_AT_ONCE = 64
"""Descriptors in one message: the kernel passes at most 253."""
MESSAGE_BYTES = 1 << 20
"""Room for any message."""


class Files(msgspec.Struct, frozen=True, tag=True):
    """Comes with descriptors of what the next ``Persist`` is about: the records of each group, then the spill."""


class Persist(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Write the part. Answers: Writing now and then; Written or Failed, unless it is released before."""

    cut: Count
    job: Name
    url: Url
    ps: Count
    owned: SlotBits
    whole: SlotBits
    groups: Items[GroupSnapshot]
    spill_bytes: Bytes
    """Maximum bytes that may be in the spill, not counting groups that may have all their rows there."""
    compress: bool
    seconds: Seconds = 0.0
    """Seconds that the part may take, as in SnapshotOrder."""


class Hurry(msgspec.Struct, frozen=True, tag=True):
    """Write this part as soon as may be. No answer."""

    cut: Count


class Release(msgspec.Struct, frozen=True, tag=True):
    """Done with the part of this cut: if it is still written, stop and leave nothing there; give back the memory of its spill. Answer
    Released."""

    cut: Count


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The persister has started."""


class Writing(msgspec.Struct, frozen=True, tag=True):
    cut: Count
    rows: Count
    bytes: Bytes


class Written(msgspec.Struct, frozen=True, tag=True):
    """The part is written. ``part``: a ``PartEntry``, as JSON, without clocks and applied minibatches."""

    cut: Count
    rows: Count
    bytes: Bytes
    part: Text


class Failed(msgspec.Struct, frozen=True, tag=True):
    cut: Count
    why: Text
    hint: Text


class Released(msgspec.Struct, frozen=True, tag=True):
    """Nothing is left of ``Persist``: the next one may come."""

    cut: Count


ToPersister = Files | Persist | Hurry | Release
FromPersister = Ready | Writing | Written | Failed | Released


def send(channel: socket.socket, message: ToPersister | FromPersister, fds: Sequence[int] = ()) -> None:
    """Send a message, with descriptors if there are any. Raises OSError when the other end is gone."""
    data = msgspec.msgpack.encode(message)
    if fds:
        socket.send_fds(channel, [data], fds)
    else:
        channel.sendall(data)
