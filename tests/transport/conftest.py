from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from typing import Any

import pytest
import zmq


@pytest.fixture(scope="module")
def context() -> Iterator[zmq.Context[Any]]:
    context: zmq.Context[Any] = zmq.Context()
    yield context
    context.destroy(linger=0)


@pytest.fixture
def endpoint() -> Iterator[str]:
    directory = tempfile.mkdtemp(prefix="dlw-")
    yield f"ipc://{directory}/s"
    shutil.rmtree(directory, ignore_errors=True)  # ZeroMQ may be removing the socket's file just now
