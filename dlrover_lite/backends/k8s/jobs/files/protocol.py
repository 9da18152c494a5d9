"""What is asked of a job's files: by those who can't see its volume, over the wire with the job's key."""

from __future__ import annotations

from dlrover_lite.core.bounds import Blob, Bytes, Count, Items, Timestamp, Url
from dlrover_lite.transport.message import Message

__all__ = [
    "MOST_PART_BYTES",
    "DirectoryListing",
    "DirectoryReplies",
    "DirectoryRequests",
    "FileEntry",
    "ListDirectory",
    "Part",
    "ReadPart",
]

MOST_PART_BYTES = 4 << 20
"""The most bytes of a file that are sent in one answer."""


class ListDirectory(Message, frozen=True):
    """Asks which files there are, and whether there is a master."""

    below: Url = ""
    """Directory within the job's; empty: all."""


class ReadPart(Message, frozen=True):
    """Asks for a part of a file, which may grow meanwhile."""

    path: Url
    """Path within the job's directory."""
    offset: Count
    most_bytes: Count


class FileEntry(Message, frozen=True):
    path: Url
    size: Bytes
    changed_at: Timestamp
    """When it was last written to, in seconds since the epoch."""


class DirectoryListing(Message, frozen=True):
    files: Items[FileEntry]
    has_master: bool
    """Whether a master of the job listens."""


class Part(Message, frozen=True):
    data: Blob
    """Bytes from the offset on: at most as many as were asked for, and none beyond the end."""
    size: Bytes
    """Size of the file now; 0 of one that isn't there."""
    is_there: bool = True


DirectoryRequests = ListDirectory | ReadPart
DirectoryReplies = DirectoryListing | Part
