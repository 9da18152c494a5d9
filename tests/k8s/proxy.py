"""A proxy before an API server, which does to its answers what networks and busy servers do."""

from __future__ import annotations

import contextlib
import http.server
import json
import random
import socket
import socketserver
import ssl
import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

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
    in_stream: bool = False
    """Tell the status as a watch's event."""


class RandomFaults:
    """Draws what becomes of requests: of each with a probability, and each kind of fault where a server may have it."""

    def __init__(self, rng: random.Random, probability: float) -> None:
        self._rng, self._probability = rng, probability
        self.done: Counter[str] = Counter()
        """Number of faults, by kind."""

    def __call__(self, method: str, path: str) -> Fault | None:
        if self._rng.random() >= self._probability:
            return None
        kinds = {
            "429": Fault(method, path, 429, "TooManyRequests", (("Retry-After", "1"),)),
            "500": Fault(method, path, 500, "InternalError"),
            "lost answer": Fault(method, path, loses_answer=True),
        }
        if "watch=true" in path:
            expired = Fault(method, path, 410, "Expired", in_stream=self._rng.random() < 0.5)
            kinds = {**kinds, "410": expired}
        elif method != "GET":
            kinds = {**kinds, "409": Fault(method, path, 409, "Conflict")}
        kind = self._rng.choice(sorted(kinds))
        self.done[f"{kind} to {method}"] += 1
        return kinds[kind]


class Proxy:
    """Asks as whoever asks it, or else as a user of the API server. Listens without TLS, or with the server's own certificate, as pods
    need it."""

    def __init__(self, server: ApiServer, user: str = "admin", *, tls: bool = False) -> None:
        self.server, self.user = server, user
        self.faults: deque[Fault] = deque()
        """Each is for the first request that it fits, in order."""
        self.draw: Callable[[str, str], Fault | None] = lambda method, path: None
        """Return what becomes of a request that none of these fits, by its method and path."""
        self.requests: list[str] = []
        self._streams: list[urllib3.BaseHTTPResponse] = []
        self._lock = threading.Lock()
        certificate = server.directory / "certificates" / "apiserver.crt"
        self._pool = urllib3.PoolManager(ca_certs=str(certificate), retries=False, maxsize=16)
        self._http = _Server(("127.0.0.1", 0), _handler_of(self))
        if tls:
            self._http.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            self._http.context.load_cert_chain(certificate, certificate.with_suffix(".key"))
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,))
        self._thread.start()

    @property
    def url(self) -> str:
        return f"{'http' if self._http.context is None else 'https'}://127.0.0.1:{self._http.server_address[1]}"

    def connection(self, namespace: str = "default") -> Connection:
        configuration = client.Configuration()
        configuration.host = self.url
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
            return self.draw(method, path)

    def ask(
        self, method: str, path: str, body: bytes, given: Mapping[str, str], *, stream: bool
    ) -> urllib3.BaseHTTPResponse:
        headers = {"Authorization": f"Bearer {self.server.tokens[self.user]}", "Accept": "application/json"}
        headers |= {name: given[name] for name in ("Authorization", "Content-Type") if given.get(name)}
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
    context: ssl.SSLContext | None = None

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        if self.context is not None:  # whoever reads first shakes hands
            connection = self.context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        return connection, address


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
            answer = proxy.ask(self.command, self.path, body, self.headers, stream=stream)
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
            told: dict[str, object] = {
                "kind": "Status",
                "code": fault.status,
                "reason": fault.reason,
                "message": f"the test says {fault.reason}",
            }
            if fault.in_stream:
                told = {"type": "ERROR", "object": told}
            text = json.dumps(told).encode() + b"\n"
            self.send_response(200 if fault.in_stream else fault.status)
            for name, value in fault.headers:
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = do_PATCH = do_DELETE = _do  # noqa: N815 - as the library calls them

    return Handler
