"""A port-forward whose pod ends: who reads sees a closed connection, and nothing is printed."""

from __future__ import annotations

import socket
import ssl
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from websocket import WebSocketException

from dlrover_lite.backends.k8s.api.port_forward import Forward


class EndedWebSocket:
    """A connection to the API server that takes nothing any more."""

    connected = True

    def __init__(self, error: Exception) -> None:
        self._near, self._far = socket.socketpair()
        self._error = error
        self.sock = SimpleNamespace(send=self._send)

    def fileno(self) -> int:
        return self._near.fileno()

    def _send(self, _data: bytes) -> int:
        raise self._error

    def close(self) -> None:
        self._near.close()
        self._far.close()


@pytest.mark.parametrize("error", [ssl.SSLEOFError(8, "EOF"), ConnectionResetError(), WebSocketException("closed")])
def test_the_end_of_a_pod_ends_its_forward_without_a_word(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    unhandled: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", unhandled.append)
    forward = Forward(EndedWebSocket(error), [7070])
    end = forward.socket(7070)
    end.sendall(b"x")
    end.settimeout(10)
    assert end.recv(1) == b""
    assert not unhandled
    forward.close()
