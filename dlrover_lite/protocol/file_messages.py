"""What is said to whoever keeps a job's files for processes that don't see its file system (``checkpoint.file_service``).

Names are relative to the directory that is served. Bytes go as a frame beside the message.
"""

from __future__ import annotations

from dlrover_lite.core.bounds import ByKey, Bytes, Count, IdBits, Name, Url
from dlrover_lite.transport.message import Message

__all__ = [
    "MOST_PIECE_BYTES",
    "AbandonFile",
    "BeginFile",
    "CreateDirectory",
    "DirectoryExists",
    "Done",
    "FileReplies",
    "FileRequests",
    "FileSize",
    "FinishFile",
    "ListFiles",
    "Listing",
    "MakeDirectory",
    "Piece",
    "PutFile",
    "ReadFile",
    "RemoveDirectory",
    "StatFile",
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


class StatFile(Message, frozen=True):
    root: Url
    name: Url


class ReadFile(Message, frozen=True):
    root: Url
    name: Url
    offset: Bytes
    length: Bytes


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


class FileSize(Message, frozen=True):
    size: Bytes


class Piece(Message, frozen=True):
    """The bytes asked for are in the frame."""

    length: Count


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
    | StatFile
    | ReadFile
    | RemoveDirectory
)
FileReplies = Done | Whether | Listing | FileSize | Piece
