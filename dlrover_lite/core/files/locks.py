"""Locks on files, each with a deadline, and who holds them where the system tells.

``flock`` is granted on any file that may be opened for reading: whoever may do that can keep all others waiting. So files that are
locked are their owner's alone (``files``), and nobody waits for a lock without limit.
"""

from __future__ import annotations

import fcntl
import os
import pwd
import select
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from dlrover_lite.core.files.durable import open_private

__all__ = ["Holder", "Lock", "held_by", "holders"]

_LOOK_AGAIN_MILLISECONDS = 50
_LOCKS = Path("/proc/locks")
_MOST_NAMED = 3


class Lock:
    """An exclusive lock on a file that stays. A process that inherits the descriptor holds it too: it is free when all have closed it."""

    def __init__(self, path: Path) -> None:
        """Open ``path``, or make it, for its owner alone. Raises OSError."""
        self.path = path
        self.descriptor = open_private(path, os.O_RDWR)

    def take(self, timeout_seconds: float, *, clock: Callable[[], float] = time.monotonic) -> bool:
        """Try to take the lock; return whether we have it in the end. (There is no other way to wait for such a lock for a limited
        time.)"""
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
        """Say whether the file is still where it was: who comes next locks the same one."""
        try:
            there = self.path.stat()
        except OSError:
            return False
        ours = os.fstat(self.descriptor)
        return (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino)

    def close(self) -> None:
        """Let go of the lock, unless another process holds it too. May be called twice."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Holder(NamedTuple):
    """A process that holds a lock."""

    pid: int
    """Id of the process; 0: the system doesn't tell, as of a process in another container."""
    command: str = ""
    user: str = ""

    def __str__(self) -> str:
        if not self.pid:
            return "a process that can't be seen from here"
        what = ", ".join(part for part in (self.command, self.user and f"user {self.user}") if part)
        return f"process {self.pid}{f' ({what})' if what else ''}"


def holders(path: Path, *, table: Path = _LOCKS) -> list[Holder]:
    """List the processes that hold a lock of any kind on ``path``, each once; none where the system doesn't tell (/proc/locks)."""
    try:
        status = path.stat()
        lines = table.read_text().splitlines()
    except OSError:
        return []
    place = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    pids: list[int] = []
    for line in lines:
        fields = line.split()
        # 1: FLOCK ADVISORY WRITE 123 08:01:456 0 EOF; a process that waits has "->" behind the number
        if len(fields) >= 6 and fields[1] != "->" and fields[5] == place and fields[4].lstrip("-").isdigit():
            pids.append(max(0, int(fields[4])))
    return [_holder(pid) for pid in dict.fromkeys(pids)]


def _holder(pid: int) -> Holder:
    if not pid:
        return Holder(0)
    command = user = ""
    with suppress(OSError):
        command = Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
        number = Path(f"/proc/{pid}").stat().st_uid
        try:
            user = pwd.getpwuid(number).pw_name
        except KeyError:  # one without a name here, as of a container
            user = str(number)
    return Holder(pid, command, user)


def held_by(*paths: Path) -> str:
    """Say who holds a lock on any of these: "held by process 12 (sleep, user joe)"; empty where that can't be told."""
    found = list(dict.fromkeys(holder for path in paths for holder in holders(path)))
    named = ", ".join(map(str, found[:_MOST_NAMED])) + (", …" if len(found) > _MOST_NAMED else "")
    return f"held by {named}" if found else ""
