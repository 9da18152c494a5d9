"""What nodes print, once more on the output of the process that looks after them, as ``kubectl logs`` shows it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress

from dlrover_lite.backends.host.linux import free_beginning
from dlrover_lite.backends.keeper.nodes import Node
from dlrover_lite.core.errors import JobError
from dlrover_lite.jobs.store import Job

__all__ = ["COPY_SECONDS", "FREED_BYTES", "NodeOutput"]

COPY_SECONDS = 0.5
"""Seconds between two looks for new lines."""
FREED_BYTES = 8 << 20
"""Bytes of a log that is copied before their room is given back: the directory is a small one, and a node may run for weeks."""
_MOST_BYTES = 1 << 20
"""Most bytes of a node that are copied at once: who copies them has more to do."""
_LONGEST_LINE_BYTES = 1 << 16


class _Copied:
    def __init__(self) -> None:
        self.position = 0
        self.freed = 0
        """Bytes at the beginning of the log whose room was given back."""
        self.rest = b""
        self.whole = False
        """The node has ended, and all that it has printed is copied."""


class NodeOutput:
    """Copies whole lines from the logs of nodes. They carry the node's id where there has been more than one node."""

    def __init__(self, job: Job, write: Callable[[bytes], object]) -> None:
        self._job = job
        self._write = write
        self._copied: dict[str, _Copied] = {}

    def copy(self, nodes: Iterable[Node]) -> None:
        """Copy what is new."""
        every = list(nodes)
        for node in every:
            copied = self._copied.setdefault(node.spec.id, _Copied())
            if not copied.whole:
                prefix = f"{node.spec.id}: ".encode() if len(every) > 1 else b""
                self._copy(node, copied, prefix)

    def _copy(self, node: Node, copied: _Copied, prefix: bytes) -> None:
        ended = node.phase == "ended"
        data = b""
        with suppress(OSError, JobError), self._job.log(node.spec.id).open("rb") as file:
            file.seek(copied.position)
            data = file.read(_MOST_BYTES)
        copied.position += len(data)
        copied.whole = ended and len(data) < _MOST_BYTES
        *lines, copied.rest = (copied.rest + data).split(b"\n")
        if copied.rest and (copied.whole or len(copied.rest) > _LONGEST_LINE_BYTES):
            lines.append(copied.rest)
            copied.rest = b""
        if lines:
            self._write(b"".join(prefix + line + b"\n" for line in lines))

    def has_read(self, node: str, offset: int) -> None:
        """Give the room of a node's log back that nobody needs any more: the job's master, too, has all before the offset."""
        copied = self._copied.get(node)
        if copied is None:
            return
        length = min(offset, copied.position)
        if length - copied.freed >= FREED_BYTES:
            with suppress(OSError, JobError), self._job.log(node).open("r+b") as file:
                free_beginning(file.fileno(), length)
            copied.freed = length

    def has_more(self, nodes: Iterable[Node]) -> bool:
        """Return whether there may be new lines: of a node that runs, or that has ended and isn't copied whole."""
        return any(not (known := self._copied.get(node.spec.id)) or not known.whole for node in nodes)
