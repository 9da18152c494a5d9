"""A node's port at which commands are run in its pods' containers: the kubelet's, to which the API server passes what users ask of it."""

from __future__ import annotations

import base64
import hashlib
import json
import ssl
import struct
import subprocess
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

PROTOCOL = "v4.channel.k8s.io"
STDOUT, STDERR, STATUS = b"\x01", b"\x02", b"\x03"
_WEBSOCKET = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class ExecServer:
    """``process_of``: returns the process id that a pod runs under as seen from here; None where it doesn't run."""

    def __init__(self, directory: Path, process_of: Callable[[str], int | None]) -> None:
        certificate, key = directory / "kubelet.crt", directory / "kubelet.key"
        command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=kubelet"]
        subprocess.run([*command, "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        self.commands: list[list[str]] = []
        """Commands that were run."""
        known = {"process_of": staticmethod(process_of), "commands": self.commands}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), known))
        self._server.daemon_threads = True
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    @property
    def port(self) -> int:
        return self._server.server_address[1]

    def stop(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    process_of: Callable[[str], int | None]
    commands: list[list[str]]

    def do_GET(self) -> None:
        asked = urlsplit(self.path)
        what, _, pod, _ = asked.path.strip("/").split("/")
        process = self.process_of(pod) if what == "exec" else None
        if process is None:
            self.send_error(404, f"no container of {pod} runs")
            return
        self.close_connection = True
        self._shake_hands()
        inside = ["nsenter", "--target", str(process), "--mount", "--pid", "--root", "--wd", "--"]
        command = parse_qs(asked.query)["command"]
        self.commands.append(command)
        ended = subprocess.run([*inside, *command], capture_output=True, check=False)
        self._send(2, STDOUT + ended.stdout)
        self._send(2, STDERR + ended.stderr)
        message = f"command terminated with exit code {ended.returncode}"
        status = {"status": "Failure", "message": message} if ended.returncode else {"status": "Success"}
        self._send(2, STATUS + json.dumps(status).encode())
        self._send(8, struct.pack(">H", 1000))

    def _shake_hands(self) -> None:
        assert PROTOCOL in self.headers["Sec-WebSocket-Protocol"]
        key = self.headers["Sec-WebSocket-Key"].encode() + _WEBSOCKET
        self.send_response(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        self.send_header("Sec-WebSocket-Accept", base64.b64encode(hashlib.sha1(key).digest()).decode())
        self.send_header("Sec-WebSocket-Protocol", PROTOCOL)
        self.end_headers()

    def _send(self, code: int, data: bytes) -> None:
        """Send a message as one frame; a server's aren't masked."""
        size = struct.pack(">BH", 126, len(data)) if len(data) > 125 else struct.pack(">B", len(data))
        self.wfile.write(bytes([0x80 | code]) + size + data)

    def log_message(self, *_: object) -> None:
        pass
