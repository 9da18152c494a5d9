"""What the keeper is told: by its callers over the wire, and what it exchanges with its template over a socket pair."""

from __future__ import annotations

import socket
import sys
from contextlib import suppress
from typing import Any, Generic, TypeVar

import msgspec

from dlrover_lite.backends.limits.base import Enter
from dlrover_lite.core.bounds import Blob, Bytes, Count, ExitCode, Items, Name, Pid, Seconds, SignalNumber, Text, Url
from dlrover_lite.core.decoding import json_decoder
from dlrover_lite.core.units import Resources
from dlrover_lite.protocol.hosts import Host
from dlrover_lite.protocol.nodes import Enforcement, NodeSpec, Observation, Readings
from dlrover_lite.transport.frames import UNREADABLE
from dlrover_lite.transport.message import Message

# --- caller and keeper, over the wire -------------------------------------------------------------------------------


class Launch(Message, frozen=True):
    spec: NodeSpec


class Resize(Message, frozen=True):
    node: Name
    resources: Resources


class Terminate(Message, frozen=True):
    node: Name
    grace_seconds: Seconds
    keep_memory: bool = False


class Observe(Message, frozen=True):
    after: Count | None
    timeout_seconds: Seconds = 0.0
    """Always 0: keepers of older versions wait so long for a change."""


class ReadAll(Message, frozen=True):
    pass


class ReadCapacity(Message, frozen=True):
    pass


class ReadEnforcement(Message, frozen=True):
    pass


class ReadLog(Message, frozen=True):
    """Asks for a part of what a process has printed, whether it runs or has ended."""

    process: Name
    """Name of a node, or ``template``; of a keeper with a master, ``master`` and ``keeper`` too."""
    offset: Count
    """Number of bytes before the part."""
    most_bytes: Count


class Leave(Message, frozen=True):
    """Asks a keeper without a master to end when its nodes have ended. It launches no more."""


class Acknowledged(Message, frozen=True, tag="Done"):
    """What was asked for has been done, or begun. On the wire it is called as in older versions."""


class ObserveAnswer(Message, frozen=True):
    observation: Observation | None


class AllAnswer(Message, frozen=True):
    readings: Readings


class CapacityAnswer(Message, frozen=True):
    hosts: Items[Host]


class EnforcementAnswer(Message, frozen=True):
    enforcement: Enforcement


class LogAnswer(Message, frozen=True):
    data: Blob
    """Bytes from the offset on: at most as many as were asked for, and none beyond the end."""
    size: Bytes
    """Size of the log now."""


KeeperRequests = Launch | Resize | Terminate | Observe | ReadAll | ReadCapacity | ReadEnforcement | ReadLog | Leave
KeeperReplies = Acknowledged | ObserveAnswer | AllAnswer | CapacityAnswer | EnforcementAnswer | LogAnswer


# --- keeper and template, over a socket pair -------------------------------------------------------------------------


class TemplateOptions(msgspec.Struct, frozen=True):
    channel: Count
    """Descriptor of the template's end of the socket pair."""
    job_directory: Url
    imports: Items[Name]


class Fork(Message, frozen=True):
    spec: NodeSpec
    entry: Name
    """Entry of the node, ``module:function``."""
    enter: Enter = Enter()
    """How the node gets within its limits."""
    memory: Url = ""
    """Place where the node's memory is kept: ``ps.memory.node_memory_client``."""


class Signal(Message, frozen=True):
    node: Name
    number: SignalNumber


class Ready(Message, frozen=True):
    """Everything that the template was to import is imported."""


class Forked(Message, frozen=True):
    node: Name
    pid: Pid


class Exited(Message, frozen=True, tag="Ended"):
    """On the wire it is called as in older versions."""

    node: Name
    exit_code: ExitCode | None
    """Minus the signal's number if a signal ended it; None if it could not be started (``detail`` says why)."""
    detail: Text = ""


ToTemplate = Fork | Signal
FromTemplate = Ready | Forked | Exited

M = TypeVar("M")


class Channel(Generic[M]):
    """One end of the socket pair: a message a line. A stream, as macOS has no sequenced packets."""

    def __init__(self, end: socket.socket, incoming: Any) -> None:
        self.socket = end
        self._decoder: msgspec.json.Decoder[M] = json_decoder(incoming)
        self._buffer = b""
        self.open = True

    def send(self, message: msgspec.Struct) -> None:
        """Send a message. A peer that has ended is noticed when receiving: what it has said before counts."""
        with suppress(BrokenPipeError, ConnectionResetError):
            self.socket.sendall(msgspec.json.encode(message) + b"\n")

    def receive(self) -> list[M]:
        """Return the whole messages that are here; call it when the socket is readable. ``open`` turns False at the peer's end."""
        try:
            data = self.socket.recv(1 << 16)
        except ConnectionResetError:
            data = b""
        if not data:
            self.open = False
            return []
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        found = []
        for line in lines:
            try:
                found.append(self._decoder.decode(line))
            except UNREADABLE as error:
                print(
                    f"a message of {len(line)} bytes makes no sense, and is dropped: {error}",
                    file=sys.stderr,
                    flush=True,
                )
        return found
