"""What the keeper is told: by its callers over the wire, and what it exchanges with its template over a socket pair."""

from __future__ import annotations

import socket
from contextlib import suppress
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from dlrover_lite.backends.base import Enforcement, NodeEvent, NodeSpec, Readings, Usage
from dlrover_lite.backends.local.limits.base import Enter
from dlrover_lite.errors import BackendError
from dlrover_lite.files import UnsafeName, checked_name
from dlrover_lite.units import Resources

# --- caller and keeper, over the wire -------------------------------------------------------------------------------


class _Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    pass


class Launch(_Message, frozen=True):
    spec: NodeSpec


class Resize(_Message, frozen=True):
    node: str
    resources: Resources


class Terminate(_Message, frozen=True):
    node: str
    grace_seconds: float
    keep_memory: bool = False


class ReadEvents(_Message, frozen=True):
    after: int
    timeout_seconds: float


class ReadUsage(_Message, frozen=True):
    node: str


class ReadAll(_Message, frozen=True):
    pass


class ReadLogs(_Message, frozen=True):
    node: str


class ReadCapacity(_Message, frozen=True):
    pass


class ReadEnforcement(_Message, frozen=True):
    pass


class Done(_Message, frozen=True):
    pass


class EventList(_Message, frozen=True):
    events: list[NodeEvent]


class UsageAnswer(_Message, frozen=True):
    usage: Usage | None


class AllAnswer(_Message, frozen=True):
    readings: Readings


class LogsAnswer(_Message, frozen=True):
    path: str


class CapacityAnswer(_Message, frozen=True):
    resources: Resources


class EnforcementAnswer(_Message, frozen=True):
    enforcement: Enforcement


KeeperRequests = (
    Launch | Resize | Terminate | ReadEvents | ReadUsage | ReadAll | ReadLogs | ReadCapacity | ReadEnforcement
)
KeeperReplies = Done | EventList | UsageAnswer | AllAnswer | LogsAnswer | CapacityAnswer | EnforcementAnswer


# --- keeper and template, over a socket pair -------------------------------------------------------------------------


class TemplateOptions(msgspec.Struct, frozen=True):
    channel: int
    """Descriptor of the template's end of the socket pair."""
    job_directory: str
    imports: list[str]


class Fork(_Message, frozen=True):
    spec: NodeSpec
    entry: str
    """``module:function``."""
    enter: Enter = Enter()
    """How the node gets within its limits."""
    memory: str = ""
    """Where its memory is kept: ``ps.kept_memory``."""


class Signal(_Message, frozen=True):
    node: str
    number: int


class Ready(_Message, frozen=True):
    """Everything is imported."""


class Forked(_Message, frozen=True):
    node: str
    pid: int


class Ended(_Message, frozen=True):
    """``exit_code``: minus the signal's number if a signal ended it; None if it could not be started (``detail`` says why)."""

    node: str
    exit_code: int | None
    detail: str = ""


ToTemplate = Fork | Signal
FromTemplate = Ready | Forked | Ended

M = TypeVar("M")


class Channel(Generic[M]):
    """One end of the socket pair: a message a line. A stream, as macOS has no sequenced packets."""

    def __init__(self, end: socket.socket, incoming: Any) -> None:
        self.socket = end
        self._decoder: msgspec.json.Decoder[M] = msgspec.json.Decoder(incoming)
        self._buffer = b""
        self.open = True

    def send(self, message: msgspec.Struct) -> None:
        """A peer that has ended is noticed when receiving: what it has said before counts."""
        with suppress(BrokenPipeError, ConnectionResetError):
            self.socket.sendall(msgspec.json.encode(message) + b"\n")

    def receive(self) -> list[M]:
        """Whole messages that are here; call it when the socket is readable. ``open`` turns False at the peer's end."""
        try:
            data = self.socket.recv(1 << 16)
        except ConnectionResetError:
            data = b""
        if not data:
            self.open = False
            return []
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        return [self._decoder.decode(line) for line in lines]


def node_log(job_directory: Path, node: str) -> Path:
    """Where the node's output goes. Raises BackendError for a node that can't be called so."""
    try:
        return job_directory / "logs" / checked_name(f"{node}.log")
    except UnsafeName as error:
        raise BackendError(f"A node can't be called {node!r}: {error}") from error
