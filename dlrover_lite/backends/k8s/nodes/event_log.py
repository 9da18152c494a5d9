"""The log of a master's nodes, in its job's directory, for a master that comes after it: a line for each node that was launched, and for
each that has ended. Lines are only ever appended."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from dlrover_lite.core.decoding import json_decoder
from dlrover_lite.core.files.durable import open_private
from dlrover_lite.protocol.nodes import NodeSpec, Observed

__all__ = ["NodeEvent", "append_events", "read_events"]


class NodeEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line of the log: a node was launched, or has ended."""

    node: str
    pod: str = ""
    launched: NodeSpec | None = None
    ended: Observed | None = None


def read_events(path: Path) -> list[NodeEvent]:
    """Read what was written down; a last line that isn't whole was never acted on. Raises OSError."""
    decoder = json_decoder(NodeEvent)
    found = []
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    for line in lines:
        try:
            found.append(decoder.decode(line))
        except msgspec.DecodeError:
            continue  # cut short, with the machine or the disk's last byte: what follows it is whole
    return found


def append_events(path: Path, events: Sequence[NodeEvent]) -> None:
    """Write lines behind the others; they are durable when this returns. Raises OSError."""
    data = b"".join(b"\n" + msgspec.json.encode(event) for event in events) + b"\n"
    descriptor = open_private(path, os.O_WRONLY | os.O_APPEND)
    try:
        while data:
            data = data[os.write(descriptor, data) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
