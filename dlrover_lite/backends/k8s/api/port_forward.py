"""How a port of a pod is reached from outside of the cluster: through the API server, by a listener on this machine."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

from kubernetes.stream import ws_client
from websocket import WebSocketException

from dlrover_lite.backends.k8s.api.connection import Connection
from dlrover_lite.backends.k8s.api.websocket import open_websocket

__all__ = ["PortForward"]

_CHUNK_BYTES = 1 << 16


class PortForward:
    """Listens on loopback; each connection is carried on to the pod's port. It lives until it is closed."""

    def __init__(self, connection: Connection, pod: str, port: int) -> None:
        self._connection, self._pod, self._port = connection, pod, port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open = True
        self._ends: set[socket.socket] = set()
        self._lock = threading.Lock()
        self.why = ""
        """Why the last connection came to nothing; empty: it didn't."""
        threading.Thread(target=self._accept, name=f"forward-{pod}", daemon=True).start()

    @property
    def endpoint(self) -> str:
        return f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"

    def close(self) -> None:
        self._open = False
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            ends = list(self._ends)
        for end in ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while self._open:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._carry, args=(near,), name=f"forward-{self._pod}", daemon=True).start()

    def _carry(self, near: socket.socket) -> None:
        """Carry one connection to its end."""
        try:
            forward = self._forward()
            far = forward.socket(self._port)
        except Exception as error:  # noqa: BLE001 - whatever the client raises: who connected sees a closed connection, and asks why
            self.why = str(error)
            near.close()
            return
        self.why = ""
        with self._lock:
            self._ends |= {near, far}
        back = threading.Thread(target=_pump, args=(far, near), name=f"forward-{self._pod}", daemon=True)
        back.start()
        _pump(near, far)
        back.join()
        with self._lock:
            self._ends -= {near, far}
        near.close()
        far.close()

    def _forward(self) -> Forward:
        query = [("ports", str(self._port))]
        return Forward(open_websocket(self._connection, self._pod, "portforward", query), [self._port])


class Forward(ws_client.PortForward):  # type: ignore[misc]
    """The client's own, whose thread ends when the pod does: else it prints a traceback, and leaves who reads waiting for ever."""

    def _proxy(self) -> None:
        with suppress(OSError, RuntimeError, WebSocketException):
            super()._proxy()
        for port in self.local_ports.values():
            port.python.close()
        with suppress(OSError, WebSocketException):
            self.websocket.close()


def _pump(source: socket.socket, target: socket.socket) -> None:
    """Carry bytes until one side ends."""
    with suppress(OSError):
        while data := source.recv(_CHUNK_BYTES):
            target.sendall(data)
    for end in (source, target):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
