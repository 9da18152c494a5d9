"""The nodes of ``bench/limits.py``. What they note is in files named by the spec's ``master_endpoint``: ``WHAT:PATH``."""

from __future__ import annotations

import mmap
import signal
import struct
import time
from pathlib import Path

from dlrover_lite.protocol.nodes import NodeSpec

STEP = 1 << 20
NOTE = struct.Struct("<d")
NOTE_SECONDS = 0.0005


def main(spec: NodeSpec, _job_directory: Path) -> int:
    what, _, path = spec.master_endpoint.partition(":")
    if what == "busy":
        _busy(Path(path))
    else:
        _allocate(Path(path))
    return 0


def _busy(path: Path) -> None:
    """Use the CPU, and note how much of it has been had by when (monotonic seconds, CPU seconds); written at SIGTERM."""
    ended = False

    def end(_number: int, _frame: object) -> None:
        nonlocal ended
        ended = True

    signal.signal(signal.SIGTERM, end)
    notes: list[tuple[float, float]] = []
    due = 0.0
    while not ended:
        now = time.monotonic()
        if now >= due:
            notes.append((now, time.process_time()))
            due = now + NOTE_SECONDS
    path.write_text("\n".join(f"{at!r} {cpu!r}" for at, cpu in notes))


def _allocate(path: Path) -> None:
    """Take memory until the kernel ends it; the file holds when the last step began (monotonic seconds)."""
    path.write_bytes(bytes(NOTE.size))
    with path.open("r+b") as file:
        note = mmap.mmap(file.fileno(), NOTE.size)
    held = []
    while True:
        NOTE.pack_into(note, 0, time.monotonic())
        held.append(bytearray(STEP))
        held[-1][::4096] = b"x" * (STEP // 4096)
