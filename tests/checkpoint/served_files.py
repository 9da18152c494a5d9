"""A directory of this machine, served over TCP with a key by a thread of the test."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dlrover_lite.checkpoint.file_service.server import serve
from dlrover_lite.checkpoint.file_service.service import FileService
from dlrover_lite.protocol.file_messages import FileRequests
from dlrover_lite.transport.connector import KEY_FILE_VARIABLE, Connector
from dlrover_lite.transport.curve import JobKey


class Served:
    def __init__(self, root: Path, endpoint: str) -> None:
        self.root, self.url = root, endpoint.replace("tcp://", "dlrover-lite://")
        self.now = 0.0


@contextmanager
def served(root: Path, patch: pytest.MonkeyPatch) -> Iterator[Served]:
    """Serve ``root`` to this process, which has the key as its environment says."""
    root.mkdir(parents=True, exist_ok=True)
    key = JobKey.generate()
    file = root.parent / "key"
    file.write_text(key.text())
    patch.setenv(KEY_FILE_VARIABLE, str(file))
    stopped = threading.Event()
    with Connector(key) as connector:
        server = connector.server("tcp://127.0.0.1:*", FileRequests)
        found = Served(root, server.endpoint)
        service = FileService(str(root), writable=["checkpoints", "export"], clock=lambda: found.now)

        def run() -> None:
            while not stopped.is_set():
                serve(server, service, timeout_seconds=0.02)
                service.give_up_idle()

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield found
        finally:
            stopped.set()
            thread.join(10)
            service.close()
            server.close()
