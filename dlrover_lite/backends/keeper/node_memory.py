"""What the keeper holds of its nodes' memory: descriptors of files without a name. A follower finds what its predecessor has left;
when the keeper ends, however it does, the kernel frees it all.

What is charged where: a page of such a file counts for the control group of whoever touches it first, and goes on counting there until
nobody holds the file any more, whichever process has ended. On a machine that is the node's own group, which is kept for its follower. In a
pod it is the container's, one for the keeper, the template and all nodes: what a node has left still counts while nothing runs, and a
follower needs no memory for it but the limit that it was written under. Address space is reserved as large as the machine's memory, and
costs nothing: raising the container's limit in place is all that an arena needs to grow. (A volume in memory wouldn't do: it keeps the size
that the pod's limit was at its start.) Without room, the kernel kills the node, which asks for that (``Enter.killed_first``), rather than
the template or the keeper; with cgroup v2 it may kill the container as a whole, as the kubelet has it by default, and the memory is lost.
"""

from __future__ import annotations

import os
import select
import socket
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from dlrover_lite.backends.keeper.nodes import Nodes
from dlrover_lite.core.decoding import from_json
from dlrover_lite.ps.memory.node_memory_client import FILES_AT_ONCE, Fetch, Keep, KeeperRequest, Kept, Left, Refused
from dlrover_lite.transport.frames import UNREADABLE

__all__ = ["MEMORY_SOCKET", "NodeMemory"]

MEMORY_SOCKET = "memory.sock"
_LONGEST_REQUEST = 1 << 12


@dataclass
class _File:
    fd: int
    inherited: bool = False
    """The file was left by the node that its present one follows."""


class NodeMemory:
    """Methods never block. Who is to be believed: the socket is in a directory that only this user can enter."""

    def __init__(self, runtime: Path, nodes: Nodes) -> None:
        self._nodes = nodes
        self._files: dict[str, dict[str, _File]] = {}
        self._connections: dict[int, socket.socket] = {}
        self._listener: socket.socket | None = None
        self.address = ""
        """Address that nodes are told; empty where descriptors without a name can't be had."""
        if sys.platform == "linux":
            path = runtime / MEMORY_SOCKET
            self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
            self._listener.bind(str(path))
            self._listener.listen(64)
            self._poll = select.epoll()
            self._poll.register(self._listener.fileno(), select.EPOLLIN)
            self.address = f"keeper:{path}"

    def fileno(self) -> int | None:
        """Return a descriptor that is readable when ``serve`` has something to do."""
        return self._poll.fileno() if self._listener is not None else None

    def files(self, node: str) -> list[str]:
        """List the names of what is held for a node."""
        return sorted(self._files.get(node, ()))

    # --- what becomes of it ---------------------------------------------------------------------------------------------

    def take_over(self, follower: str, follows: str) -> None:
        """Give what one node has left to the other from now on; also if that ends before it has fetched it."""
        if left := self._files.pop(follows, None):
            self._files[follower] = left
            for file in left.values():
                file.inherited = True

    def release(self, node: str) -> None:
        """Let go of a node's memory: nobody is going to follow it."""
        for file in self._files.pop(node, {}).values():
            os.close(file.fd)

    def close(self) -> None:
        for node in list(self._files):
            self.release(node)
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        if self._listener is not None:
            self._poll.close()
            self._listener.close()
            self._listener = None

    # --- requests -------------------------------------------------------------------------------------------------------

    def serve(self) -> None:
        """Answer all that is here."""
        if self._listener is None:
            return
        while events := self._poll.poll(0):
            for fd, _ in events:
                if fd == self._listener.fileno():
                    self._accept(self._listener)
                else:
                    self._hear(self._connections[fd])

    def _accept(self, listener: socket.socket) -> None:
        with suppress(BlockingIOError, ConnectionAbortedError):
            connection, _ = listener.accept()
            connection.setblocking(False)
            self._connections[connection.fileno()] = connection
            self._poll.register(connection.fileno(), select.EPOLLIN)

    def _hear(self, connection: socket.socket) -> None:
        """Answer one request; a peer that has left, or makes no sense, is let go."""
        fds: list[int] = []
        try:
            data, fds, flags, _ = socket.recv_fds(connection, _LONGEST_REQUEST, 1, socket.MSG_CMSG_CLOEXEC)
            if not data:
                self._drop(connection)
                return
            body = from_json(data, KeeperRequest)
            self._answer(connection, body, fds, lost=bool(flags & socket.MSG_CTRUNC))
        except (OSError, *UNREADABLE):
            self._drop(connection)
        finally:
            for fd in fds:  # what is kept has been taken out
                os.close(fd)

    def _answer(self, connection: socket.socket, body: KeeperRequest, fds: list[int], *, lost: bool) -> None:
        node = self._nodes.by_id.get(body.node)
        if node is None or node.phase == "ended":
            _send(connection, Refused(f"there is no running node {body.node!r}"))
        elif isinstance(body, Fetch):
            self._hand_out(connection, body.node)
        elif len(fds) != 1:
            why = "the keeper has no descriptors left (ulimit -n)" if lost else "a file without a descriptor"
            _send(connection, Refused(why))
        else:
            self._keep(body, fds.pop())
            _send(connection, Kept())

    def _keep(self, body: Keep, fd: int) -> None:
        files = self._files.setdefault(body.node, {})
        if (before := files.get(body.name)) is not None:
            os.close(before.fd)
        files[body.name] = _File(fd)

    def _hand_out(self, connection: socket.socket, node: str) -> None:
        files = [(name, file.fd) for name, file in self._files.get(node, {}).items() if file.inherited]
        while True:
            some, files = files[:FILES_AT_ONCE], files[FILES_AT_ONCE:]
            _send(connection, Left([name for name, _ in some], bool(files)), [fd for _, fd in some])
            if not files:
                return

    def _drop(self, connection: socket.socket) -> None:
        self._poll.unregister(connection.fileno())
        del self._connections[connection.fileno()]
        connection.close()


def _send(connection: socket.socket, message: msgspec.Struct, fds: list[int] | None = None) -> None:
    """Send a message. Raises OSError for a peer that is gone, or reads nothing."""
    socket.send_fds(connection, [msgspec.json.encode(message)], fds or [])
