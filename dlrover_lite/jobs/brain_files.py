"""Where the brain is: its directory, what its daemon writes there for those who look for it, and the locks that make it the only one.

::

    <state directory>/brain/
        brain.sqlite   the config database (``brain.store``)
        daemon.json    the daemon that runs, or ran last: its process, and where it listens
        daemon.lock    locked for as long as a daemon lives: whatever else is there, this says whether one does
        start.lock     locked by who starts one, until it answers
        brain.log      what daemons have said
"""

from __future__ import annotations

import fcntl
import os
import select
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Literal, get_args

import msgspec

from dlrover_lite.errors import BrainError, UsageError
from dlrover_lite.jobs.paths import state_directory
from dlrover_lite.jobs.processes import ProcessIdentity

__all__ = ["BRAIN_VARIABLE", "BrainFiles", "BrainMode", "BrainRecord", "Lock", "brain_mode"]

BRAIN_VARIABLE = "DLROVER_LITE_BRAIN"
BrainMode = Literal["daemon", "embedded", "off"]
"""One for all of the user's jobs; one in each job's master; none, which keeps no history either."""
_LOOK_AGAIN_MILLISECONDS = 50


class BrainRecord(msgspec.Struct, frozen=True):
    """``daemon.json``."""

    process: ProcessIdentity
    version: str
    endpoint: str
    runtime_directory: str
    started_at: float
    """Seconds since the epoch."""


class BrainFiles:
    """Nothing is made before it is needed."""

    def __init__(self, directory: Path | None = None) -> None:
        self.directory = state_directory() / "brain" if directory is None else directory
        self.database = self.directory / "brain.sqlite"
        self.log = self.directory / "brain.log"
        self._record = self.directory / "daemon.json"

    def make(self) -> None:
        """Raises BrainError where that can't be."""
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._unusable(error) from error

    def record(self) -> BrainRecord | None:
        """Of the daemon that runs, or of one that had no time to remove it; None where there is none that can be read."""
        try:
            return msgspec.json.decode(self._record.read_bytes(), type=BrainRecord)
        except (OSError, msgspec.MsgspecError):
            return None

    def write_record(self, record: BrainRecord) -> None:
        """Raises BrainError when it can't be written."""
        try:
            descriptor, name = tempfile.mkstemp(prefix=".daemon.", dir=self.directory)
            with os.fdopen(descriptor, "wb") as file:
                file.write(msgspec.json.encode(record) + b"\n")
            Path(name).replace(self._record)
        except OSError as error:
            raise self._unusable(error) from error

    def remove_record(self) -> None:
        with suppress(OSError):
            self._record.unlink()

    def lives(self) -> bool:
        """Whether a daemon runs. Its lock goes with it, however it ends."""
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
        return Lock(self.directory / "daemon.lock", self._unusable)

    def start_lock(self) -> Lock:
        return Lock(self.directory / "start.lock", self._unusable)

    def _unusable(self, error: OSError) -> BrainError:
        return BrainError(
            f"The brain's directory {self.directory} can't be used: {error.strerror}",
            hint="Make it writable, or point DLROVER_LITE_HOME to a directory that is.",
        )


class Lock:
    """On a file that stays. A process that inherits the descriptor holds it too: it is free when all have closed it."""

    def __init__(self, path: Path, unusable: Callable[[OSError], BrainError]) -> None:
        self._path = path
        try:
            self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise unusable(error) from error

    def take(self, timeout_seconds: float, *, clock: Callable[[], float] = time.monotonic) -> bool:
        """Whether we have it, in the end. (There is no other way to wait for such a lock for a limited time.)"""
        end = clock() + timeout_seconds
        while True:
            try:
                fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if clock() >= end:
                    return False
                select.poll().poll(_LOOK_AGAIN_MILLISECONDS)
            else:
                return True

    def is_in_place(self) -> bool:
        """Whether the file is still where it was: who comes next locks the same one."""
        try:
            there = self._path.stat()
        except OSError:
            return False
        ours = os.fstat(self.descriptor)
        return (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino)

    def close(self) -> None:
        """Let go of it, unless another process holds it too. May be called twice."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def brain_mode(chosen: BrainMode | None = None) -> BrainMode:
    """What was chosen, or else the environment's DLROVER_LITE_BRAIN, or else the daemon. Raises UsageError for another word there."""
    if chosen is not None:
        return chosen
    word = os.environ.get(BRAIN_VARIABLE, "") or "daemon"
    for mode in get_args(BrainMode):
        if word == mode:
            return mode  # type: ignore[no-any-return]
    raise UsageError(f"{BRAIN_VARIABLE} is {word!r}", hint=f"It may be {', '.join(get_args(BrainMode))}, or not set.")
