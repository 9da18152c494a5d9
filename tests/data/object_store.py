"""An object store that runs as a process of its own, with a proxy before it that does to answers what busy stores and networks do."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import os
import random
import socket
import socketserver
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any, Literal

import s3fs

__all__ = ["CREDENTIALS", "FaultyProxy", "ObjectStore", "Trouble", "store_process"]

CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "reader",
    "AWS_SECRET_ACCESS_KEY": "hidden-secret",
    "AWS_DEFAULT_REGION": "us-east-1",
}
Trouble = Literal["busy", "too many", "cut", "short", "refused"]

_SLOW_DOWN = b"""<?xml version="1.0" encoding="UTF-8"?>
<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"""
_SERVER = """
import logging, os, sys
from werkzeug.serving import make_server
from moto.server import DomainDispatcherApplication, create_backend_app
logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = make_server("127.0.0.1", 0, DomainDispatcherApplication(create_backend_app), threaded=True)
print(server.port, flush=True)
server.serve_forever()
"""


class ObjectStore:
    def __init__(self, port: int) -> None:
        self.port = port
        self.bucket = "clicks"
        self._system = s3fs.S3FileSystem(
            key="writer", secret="x", endpoint_url=f"http://127.0.0.1:{port}", skip_instance_cache=True
        )
        self._system.mkdir(self.bucket)

    def put(self, key: str, data: bytes, *, public: bool = False) -> str:
        """Store an object, for everybody if it is ``public``; return its URL."""
        self._system.pipe_file(f"{self.bucket}/{key}", data, **({"ACL": "public-read"} if public else {}))
        return f"s3://{self.bucket}/{key}"


@contextlib.contextmanager
def store_process() -> Iterator[ObjectStore]:
    """Run the store."""
    environment = {**os.environ, **CREDENTIALS}
    with subprocess.Popen(
        [sys.executable, "-c", _SERVER], stdout=subprocess.PIPE, env=environment, text=True
    ) as process:
        try:
            assert process.stdout is not None
            yield ObjectStore(int(process.stdout.readline()))
        finally:
            process.kill()


MOST_SPARED = 5
"""Number of requests in a row, at most, that meet no trouble where some are to."""


class FaultyProxy:
    """Passes requests on to a store; of those for bytes of objects, a ``share`` meets a trouble instead, drawn by ``seed``."""

    def __init__(self, port: int, seed: int = 0) -> None:
        """``port``: that of the store, on this machine."""
        self.troubles: list[Trouble] = []
        self.share = 0.0
        self.met: Counter[str] = Counter()
        """Number of requests by the trouble that they have met; those that met none under "none"."""
        self._port = port
        self._draw = random.Random(seed)
        self._spared = 0
        """Number of requests since the last one that met a trouble."""
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), _handler_of(self))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def drawn(self) -> Trouble | None:
        """Draw what happens to a request."""
        with self._lock:
            # no seed spares so many in a row that a few requests would meet nothing at all
            hit = self._draw.random() < self.share or (self.share > 0 and self._spared >= MOST_SPARED)
            trouble = self._draw.choice(self.troubles) if hit else None
            self._spared = 0 if hit else self._spared + 1
            self.met[trouble or "none"] += 1
            return trouble

    def ask(self, handler: http.server.BaseHTTPRequestHandler) -> tuple[int, list[tuple[str, str]], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=20)
        with contextlib.closing(connection):
            connection.request(handler.command, handler.path, headers=dict(handler.headers.items()))
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()


class _Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # who hangs up while it is answered has been cut off before


def _handler_of(proxy: FaultyProxy) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            match proxy.drawn():
                case "busy":
                    return self._send(503, [], _SLOW_DOWN)
                case "too many":
                    return self._send(429, [], _SLOW_DOWN.replace(b"SlowDown", b"TooManyRequests"))
                case "refused":
                    return self._send(403, [], _SLOW_DOWN.replace(b"SlowDown", b"AccessDenied"))
                case "cut":
                    return self._hang_up()
                case "short":
                    status, headers, body = proxy.ask(self)
                    self._send(status, headers, body, cut_at=len(body) // 2)
                    return self._hang_up()
            return self._send(*proxy.ask(self))

        do_GET = do_HEAD = _answer  # noqa: N815

        def _send(self, status: int, headers: list[tuple[str, str]], body: bytes, *, cut_at: int | None = None) -> None:
            self.send_response_only(status)
            kept = {"connection", "transfer-encoding", "content-length"}
            lengths = [value for name, value in headers if name.lower() == "content-length"]
            for name, value in headers:
                if name.lower() not in kept:
                    self.send_header(name, value)
            length = lengths[0] if lengths and self.command == "HEAD" else str(len(body))
            self.send_header("Content-Length", length)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body[:cut_at])

        def _hang_up(self) -> None:
            self.close_connection = True
            self.wfile.flush()
            with contextlib.suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Handler
