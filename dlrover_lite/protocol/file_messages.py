"""What is said to whoever keeps a job's files for processes that don't see its file system (``checkpoint.file_service``).

Names are relative to the directory that is served; ``root`` is a directory in it. Bytes go as a frame beside the message.
"""

from __future__ import annotations

from dlrover_lite.core.bounds import ByKey, Bytes, IdBits, Items, Name, Timestamp, Url
from dlrover_lite.transport.message import Message

__all__ = [
    "MOST_PIECE_BYTES",
    "AbandonFile",
    "BeginFile",
    "CreateDirectory",
    "DirectoryExists",
    "Done",
    "FileEntry",
    "FileReplies",
    "FileRequests",
    "FinishFile",
    "ListFiles",
    "ListTree",
    "Listing",
    "MakeDirectory",
    "Part",
    "PutFile",
    "ReadPart",
    "RemoveDirectory",
    "Tree",
    "Whether",
    "WriteFile",
]

MOST_PIECE_BYTES = 4 << 20
"""The most bytes of a file that go with one message."""


class CreateDirectory(Message, frozen=True):
    """Make the directory ``root`` itself, if need be."""

    root: Url


class DirectoryExists(Message, frozen=True):
    root: Url


class ListFiles(Message, frozen=True):
    root: Url


class MakeDirectory(Message, frozen=True):
    root: Url
    directory: Name


class BeginFile(Message, frozen=True):
    """Begin a file, which is invisible until it is finished."""

    root: Url
    name: Url
    token: IdBits
    """Random number that names the file under way; a repeated request has the same."""


class WriteFile(Message, frozen=True):
    """Append the frame to a file under way. What is there already, as the request is a repeated one, is left."""

    token: IdBits
    offset: Bytes


class FinishFile(Message, frozen=True):
    token: IdBits


class AbandonFile(Message, frozen=True):
    token: IdBits


class PutFile(Message, frozen=True):
    """Write the frame as a small file, whole and durable, or not at all."""

    root: Url
    name: Url


class ListTree(Message, frozen=True):
    """Asks for all files that may be read, however deep."""

    below: Url = ""
    """Directory that they are in; empty: all."""


class ReadPart(Message, frozen=True):
    """Asks for a part of a file, which may grow meanwhile, or not be there."""

    path: Url
    offset: Bytes
    most_bytes: Bytes


class RemoveDirectory(Message, frozen=True):
    root: Url
    directory: Name
    first: Name = ""
    """File that is removed before all others."""


class Done(Message, frozen=True):
    pass


class Whether(Message, frozen=True):
    is_so: bool


class Listing(Message, frozen=True):
    directories: ByKey[Name, ByKey[Name, Bytes]]


class FileEntry(Message, frozen=True):
    path: Url
    size: Bytes
    changed_at: Timestamp
    """When it was last written to, in seconds since the epoch."""


class Tree(Message, frozen=True):
    files: Items[FileEntry]


class Part(Message, frozen=True):
    """The frame has bytes from the offset on: at most as many as were asked for, and none beyond the end."""

    size: Bytes
    """Size of the file now; 0 of one that isn't there."""
    is_there: bool = True


FileRequests = (
    CreateDirectory
    | DirectoryExists
    | ListFiles
    | MakeDirectory
    | BeginFile
    | WriteFile
    | FinishFile
    | AbandonFile
    | PutFile
    | ListTree
    | ReadPart
    | RemoveDirectory
)
FileReplies = Done | Whether | Listing | Tree | Part
