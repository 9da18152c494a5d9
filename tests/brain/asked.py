"""The history by both ways: out of its files, and asked of a brain, which here is the thread alone that answers for one."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from unittest.mock import patch

import msgspec

from dlrover_lite.brain.store.history import FileHistory, History
from dlrover_lite.brain_server import history_client
from dlrover_lite.brain_server.files import BrainFiles, BrainRecord
from dlrover_lite.brain_server.history_client import BrainHistory
from dlrover_lite.brain_server.history_thread import HistoryThread
from dlrover_lite.core.processes.identity import identify
from dlrover_lite.transport.connector import Connector

WAYS = ("files", "brain")
PATIENCE = 20.0


def never(path: Path) -> History:
    raise AssertionError(f"{path} was read")


@contextmanager
def opened(way: str, path: Path, read: Callable[[Path], History] = never) -> Iterator[History]:
    """The history at ``path`` by this way. ``read``: how files are read where the brain doesn't answer."""
    if way == "files":
        with closing(FileHistory(path)) as history:
            yield history
    else:
        files = BrainFiles(path.parent)
        with answering(files), BrainHistory(files, read=read) as history:
            yield history


@contextmanager
def answering(files: BrainFiles) -> Iterator[None]:
    """A brain of these files answers for as long as this lasts."""
    with tempfile.TemporaryDirectory() as directory, Connector() as connector:
        thread = HistoryThread(connector, f"ipc://{directory}/s", files.database)
        thread.start()
        with closing(thread), living(files, thread.endpoint), patient():
            yield


def patient() -> AbstractContextManager[object]:
    """A machine that is busy is no brain that doesn't answer."""
    return patch.object(history_client, "ANSWER_SECONDS", PATIENCE)


@contextmanager
def living(files: BrainFiles, endpoint: str) -> Iterator[None]:
    """A brain of these files seems to live, and to listen there."""
    process = identify(os.getpid())
    assert process is not None
    with files.daemon_lock() as lock:
        assert lock.take(0.0)
        files.write_record(BrainRecord(process, "1.0", "ipc:///nowhere", "/nowhere", time.time(), history=endpoint))
        yield
        files.remove_record()


def encoded(answer: object) -> bytes:
    return msgspec.json.encode(answer)
