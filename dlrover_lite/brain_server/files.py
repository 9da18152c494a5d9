"""Where the brain is: its directory, what its daemon writes there for those who look for it, and the locks that make it the only one.

::

    <state directory>/brain/
        brain.sqlite   the config database (``brain.store``)
        daemon.json    the daemon that runs, or ran last: its process, and where it listens
        daemon.lock    locked for as long as a daemon lives: whatever else is there, this says whether one does
        start.lock     locked by who starts one, until it answers
        brain.log      what daemons have said

All of it is its owner's alone (``files``).
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path

import msgspec

from dlrover_lite.core.decoding import from_json
from dlrover_lite.core.errors import BrainError
from dlrover_lite.core.files.durable import close_to_others, make_private, write_whole
from dlrover_lite.core.files.locks import Lock, held_by
from dlrover_lite.core.files.paths import brain_database, make_state, state_directory
from dlrover_lite.core.processes.identity import ProcessIdentity, identify

__all__ = ["BrainFiles", "BrainRecord", "running_brain"]


def running_brain() -> int | None:
    """Return the process id of the user's brain; None where none runs, or what runs under that id now is another process."""
    record = BrainFiles().record()
    return None if record is None or identify(record.process.pid) != record.process else record.process.pid


class BrainRecord(msgspec.Struct, frozen=True):
    """What ``daemon.json`` holds."""

    process: ProcessIdentity
    version: str
    endpoint: str
    runtime_directory: str
    started_at: float
    """Seconds since the epoch."""
    history: str = ""
    """Endpoint at which questions about the history are answered; empty: they aren't, by an older version."""


class BrainFiles:
    """Files of the brain. Nothing is made before it is needed."""

    def __init__(self, directory: Path | None = None) -> None:
        self.directory = brain_database().parent if directory is None else directory
        self.database = self.directory / brain_database().name
        self.log = self.directory / "brain.log"
        self._record = self.directory / "daemon.json"

    def make(self) -> None:
        """Make the directory. It, and what is in it, is closed to other users. Raises BrainError where that can't be."""
        try:
            if self.directory.parent == state_directory():
                make_state()
            make_private(self.directory)
            for path in self.directory.iterdir():
                close_to_others(path)
        except OSError as error:
            raise self._unusable(error) from error

    def record(self) -> BrainRecord | None:
        """Read the record of the daemon that runs, or of one that had no time to remove it; None where there is none that can be read."""
        try:
            return from_json(self._record.read_bytes(), BrainRecord)
        except (OSError, msgspec.MsgspecError):
            return None

    def write_record(self, record: BrainRecord) -> None:
        """Write the record of a daemon. Raises BrainError when it can't be written."""
        try:
            write_whole(self._record, msgspec.json.encode(record) + b"\n")
        except OSError as error:
            raise self._unusable(error) from error

    def remove_record(self) -> None:
        with suppress(OSError):
            self._record.unlink()

    def lives(self) -> bool:
        """Say whether a daemon runs. Its lock goes with it, however it ends."""
        try:
            descriptor = os.open(self.directory / "daemon.lock", os.O_RDONLY)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(descriptor)
        return False

    def daemon_lock(self) -> Lock:
        """Open the lock that the living daemon holds. Raises BrainError."""
        return self._lock("daemon.lock")

    def start_lock(self) -> Lock:
        """Open the lock that whoever starts a brain holds. Raises BrainError."""
        return self._lock("start.lock")

    def _lock(self, name: str) -> Lock:
        try:
            return Lock(self.directory / name)
        except OSError as error:
            raise self._unusable(error) from error

    def locked(self, lock: Lock) -> str:
        """Say which lock can't be had, and who holds it where that can be told."""
        by = held_by(lock.path)
        return f"{lock.path} is locked{f', {by}' if by else ''}"

    def _unusable(self, error: OSError) -> BrainError:
        return BrainError(
            f"The brain's directory {self.directory} can't be used: {error.strerror}",
            hint="Make it writable, or point DLROVER_LITE_HOME to a directory that is.",
        )
