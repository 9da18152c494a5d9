"""What the persister does: takes orders, and writes a part step by step, looking after each whether it still should."""

from __future__ import annotations

import os
import select
import socket
import time
from pathlib import Path

import msgspec

from dlrover_lite.checkpoint.layout import Codec
from dlrover_lite.checkpoint.manifest import PartEntry
from dlrover_lite.checkpoint.part_writer import PartWriter
from dlrover_lite.checkpoint.store import CheckpointStore
from dlrover_lite.core import slot_sets
from dlrover_lite.core.decoding import from_msgpack
from dlrover_lite.core.errors import DlroverLiteError
from dlrover_lite.core.failpoints import failpoint
from dlrover_lite.ps.server.busy_meter import TrainingWatch
from dlrover_lite.ps.snapshots.copy_on_write_log import ANSWERED, CopyOnWriteLog
from dlrover_lite.ps.snapshots.snapshot_reader import Overflown, SnapshotReader
from dlrover_lite.ps.snapshots.writer_messages import (
    FILES_AT_ONCE,
    MESSAGE_BYTES,
    Failed,
    Files,
    FromPersister,
    Hurry,
    Persist,
    Ready,
    Release,
    Released,
    ToPersister,
    Writing,
    Written,
    send,
)
from dlrover_lite.ps.snapshots.writer_pace import TRAINING_SECONDS, Leftover, Pace

__all__ = ["Persisting", "waits_of_this_process"]


def waits_of_this_process(path: Path = Path("/proc/self/schedstat")) -> tuple[float, float] | None:
    """Return the seconds for which this process's first thread has worked, and for which it could have and had no CPU; None where the
    kernel doesn't count."""
    try:
        worked, waited, _ = path.read_text(encoding="ascii").split()
        return int(worked) / 1e9, int(waited) / 1e9
    except (OSError, ValueError):
        return None


class _Released(Exception):
    """The server doesn't want the part any more."""


class Persisting:
    """The persister's loop. ``leftover``: how long it sleeps for each second of work, beside training. ``kernels``: as in
    ``SnapshotReader``.

    Ends by SystemExit when the other end is gone.
    """

    def __init__(
        self, channel: socket.socket, *, leftover: Leftover, report_seconds: float, kernels: bool = False
    ) -> None:
        self._channel = channel
        self._poll = select.poll()  # the number of a descriptor that was passed on may be too high for select
        self._poll.register(channel, select.POLLIN)
        self._leftover, self._report_seconds = leftover, report_seconds
        self._kernels = kernels
        self._pace = Pace(0.0, 0, 0.0, leftover)
        self._files: list[int] = []
        self._spill: CopyOnWriteLog | None = None
        """The spill, kept until it is released: who lets go of it last has the work of freeing it."""

    def serve(self) -> None:
        """Serve until the other end is gone."""
        self._tell(Ready())
        while True:
            match self._hear(None):
                case Persist() as order:
                    try:
                        self._tell(self._persist(order))
                    except _Released:
                        self._release(order.cut)
                case Release(cut):
                    self._release(cut)

    def _persist(self, order: Persist) -> FromPersister:
        files, self._files = self._files, []
        try:
            spill = self._spill = CopyOnWriteLog(order.groups, files.pop())
            owned, whole = slot_sets.unpack(order.owned), slot_sets.unpack(order.whole)
            reader = SnapshotReader(order.groups, files, spill, owned, whole, kernels=self._kernels)
            shapes = [group.stored for group in order.groups]
            store = CheckpointStore(order.url).join(order.cut)
            codec: Codec = "zlib" if order.compress else "none"
            with store.part(order.job, order.ps, owned, shapes, codec=codec) as part:
                self._write(order, reader, part, spill)
                failpoint("persister.finish")
                entry: PartEntry = part.finish()
        except DlroverLiteError as error:
            if isinstance(error, Overflown):
                error = Overflown(order.spill_bytes)
            return Failed(order.cut, error.message, error.hint)
        finally:
            for fd in files:
                os.close(fd)
        return Written(order.cut, reader.rows, entry.stored_bytes, msgspec.json.encode(entry).decode())

    def _write(self, order: Persist, reader: SnapshotReader, part: PartWriter, spill: CopyOnWriteLog) -> None:
        total = sum(group.used * group.row_bytes for group in order.groups)
        pace = self._pace = Pace(order.seconds, total, time.monotonic(), self._leftover)
        training = TrainingWatch(int(spill.header[ANSWERED]), TRAINING_SECONDS)
        worked, reported_at = time.process_time(), time.monotonic()
        for step in reader.steps(part):
            _reached(step)
            if (seen := waits_of_this_process()) is not None:
                self._leftover.look(*seen)
            rest = time.process_time() - worked
            rest = pace.rest(rest) if self._may_rest(order, spill, training) else 0.0
            while True:
                self._obey(rest)
                if spill.overflown:
                    raise Overflown
                now = time.monotonic()
                if now - reported_at >= self._report_seconds:
                    reported_at = now
                    self._tell(Writing(order.cut, reader.rows, part.bytes_written))
                rest = pace.wait(now, reader.part_read)
                if not rest or not self._may_rest(order, spill, training):
                    break
                for _ in reader.drain(part):
                    _reached("spill")
            worked = time.process_time()

    def _may_rest(self, order: Persist, spill: CopyOnWriteLog, training: TrainingWatch) -> bool:
        """Say whether something is trained beside it, and the spill doesn't fill."""
        goes_on = training.goes_on(int(spill.header[ANSWERED]), time.monotonic())
        return goes_on and 2 * spill.waiting_bytes <= order.spill_bytes

    def _obey(self, seconds: float) -> None:
        """Sleep, unless there is something to hear. Raises _Released."""
        message = self._hear(seconds)
        if isinstance(message, Release):
            raise _Released
        if isinstance(message, Hurry):
            self._pace.hurry()

    def _release(self, cut: int) -> None:
        if self._spill is not None:
            self._spill.close()
            self._spill = None
        self._tell(Released(cut))

    def _hear(self, timeout_seconds: float | None) -> ToPersister | None:
        """Return the next message; None when there is none within the time, or it was about files only."""
        if not self._poll.poll(None if timeout_seconds is None else 1000 * timeout_seconds):
            return None
        try:
            data, fds, _, _ = socket.recv_fds(self._channel, MESSAGE_BYTES, FILES_AT_ONCE, socket.MSG_CMSG_CLOEXEC)
        except ConnectionResetError:
            data, fds = b"", []
        self._files += fds
        if not data:
            raise SystemExit(0)
        message: ToPersister = from_msgpack(data, ToPersister)
        return None if isinstance(message, Files) else message

    def _tell(self, message: FromPersister) -> None:
        try:
            send(self._channel, message)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise SystemExit(0) from error


def _reached(step: str) -> None:
    """Run the failpoint of a step, which is named as in ``SnapshotReader.steps``."""
    if step == "block":
        failpoint("persister.block")
    else:
        failpoint("persister.spill")
