"""A proxy before an API server, which does to its answers what networks and busy servers do."""

from __future__ import annotations

import contextlib
import http.server
import json
import socketserver
import threading
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import urllib3
from kubernetes import client

from dlrover_lite.backends.k8s.api.connection import Connection
from tests.k8s.cluster import ApiServer


class Fault(NamedTuple):
    """What becomes of a request."""

    method: str
    path: str
    """Part of the path, with its query."""
    status: int = 0
    """Answer by this status instead, without asking the server; 0: don't."""
    reason: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    loses_answer: bool = False
    """Ask the server, and close the connection instead of answering."""


class Proxy:
    """Listens without TLS, and asks as a user of the API server."""

    def __init__(self, server: ApiServer, user: str = "admin") -> None:
        self.server, self.user = server, user
        self.faults: deque[Fault] = deque()
        """Each is for the first request that it fits, in order."""
        self.requests: list[str] = []
        self._streams: list[urllib3.BaseHTTPResponse] = []
        self._lock = threading.Lock()
        authority = str(server.directory / "certificates" / "apiserver.crt")
        self._pool = urllib3.PoolManager(ca_certs=authority, retries=False, maxsize=16)
        self._http = _Server(("127.0.0.1", 0), _handler_of(self))
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,))
        self._thread.start()

    def connection(self, namespace: str = "default") -> Connection:
        configuration = client.Configuration()
        configuration.host = f"http://127.0.0.1:{self._http.server_address[1]}"
        configuration.retries = False
        return Connection(client.ApiClient(configuration), configuration.host, namespace, "test")

    def cut_watches(self) -> int:
        """Drop the connections of all watches; return how many there were."""
        with self._lock:
            streams, self._streams = self._streams, []
        for stream in streams:
            with contextlib.suppress(ValueError, RuntimeError, OSError):  # it has ended
                stream.shutdown()
        return len(streams)

    def stop(self) -> None:
        self.cut_watches()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()
        self._pool.clear()

    # --- of its handlers ------------------------------------------------------------------------------------------------

    def fault_of(self, method: str, path: str) -> Fault | None:
        with self._lock:
            self.requests.append(f"{method} {path}")
            for fault in self.faults:
                if fault.method == method and fault.path in path:
                    self.faults.remove(fault)
                    return fault
        return None

    def ask(self, method: str, path: str, body: bytes, content_type: str, *, stream: bool) -> urllib3.BaseHTTPResponse:
        headers = {"Authorization": f"Bearer {self.server.tokens[self.user]}", "Accept": "application/json"}
        if content_type:
            headers["Content-Type"] = content_type
        answer = self._pool.request(
            method, self.server.url + path, body=body or None, headers=headers, preload_content=not stream
        )
        if stream:
            with self._lock:
                self._streams.append(answer)
        return answer


class _Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = False
    block_on_close = True


def _handler_of(proxy: Proxy) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def _do(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            fault = proxy.fault_of(self.command, self.path)
            if fault is not None and fault.status:
                self._refuse(fault)
                return
            stream = "watch=true" in self.path
            answer = proxy.ask(self.command, self.path, body, self.headers.get("Content-Type", ""), stream=stream)
            if fault is not None and fault.loses_answer:
                self.close_connection = True
                return
            self.send_response(answer.status)
            self.send_header("Content-Type", "application/json")
            if not stream:
                self.send_header("Content-Length", str(len(answer.data)))
                self.end_headers()
                self.wfile.write(answer.data)
                return
            self.end_headers()
            self.close_connection = True
            self._pass_on(lambda: answer.read1(1 << 16))

        def _pass_on(self, read: Callable[[], bytes]) -> None:
            try:
                while chunk := read():
                    self.wfile.write(chunk)
                    self.wfile.flush()
            except (urllib3.exceptions.HTTPError, OSError, ValueError, AttributeError):
                pass  # cut, on one side or the other

        def _refuse(self, fault: Fault) -> None:
            told = {
                "kind": "Status",
                "code": fault.status,
                "reason": fault.reason,
                "message": f"the test says {fault.reason}",
            }
            text = json.dumps(told).encode()
            self.send_response(fault.status)
            for name, value in fault.headers:
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = do_PATCH = do_DELETE = _do  # noqa: N815 - as the library calls them

    return Handler
