"""What a master writes down of its pods, in its job's directory, for a master that comes after it: a line for each node that was launched,
and for each that has ended."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from dlrover_lite.backends.k8s.nodes.entries import Record
from dlrover_lite.core.decoding import json_decoder
from dlrover_lite.core.files.durable import open_private

__all__ = ["read_records", "write_records"]


def read_records(path: Path) -> list[Record]:
    """Read what was written down; a last line that isn't whole was never acted on. Raises OSError."""
    decoder = json_decoder(Record)
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


def write_records(path: Path, records: Sequence[Record]) -> None:
    """Write lines behind the others; they are durable when this returns. Raises OSError."""
    data = b"".join(b"\n" + msgspec.json.encode(record) for record in records) + b"\n"
    descriptor = open_private(path, os.O_WRONLY | os.O_APPEND)
    try:
        while data:
            data = data[os.write(descriptor, data) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
