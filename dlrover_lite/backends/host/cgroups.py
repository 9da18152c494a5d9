"""Control groups as directories: their files, ending what runs in them, removing them. Which limits they carry is the backend's business.

Linux only; nothing here is called where there are none.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from pathlib import Path

__all__ = ["direct_members", "end", "kill", "members", "read_fields", "read_number", "remove", "write"]

_ROUNDS = 20
_ROUND_SECONDS = 0.25


def members(group: Path) -> list[int]:
    """List the pids of the processes in ``group`` and the groups below it; none for one that is gone."""
    pids = [pid for directory in _tree(group) for pid in direct_members(directory)]
    return [pid for pid in pids if pid > 0]  # 0 stands for a process of another container


def direct_members(group: Path) -> list[int]:
    """List the pids of the processes in ``group`` itself, 0 for one of another container; none for a group that is gone."""
    try:
        return [int(pid) for pid in (group / "cgroup.procs").read_text().split()]
    except OSError:
        return []


def kill(group: Path) -> None:
    """Send SIGKILL to everything in ``group``. What is forked at this moment may be missed by version 1: do it until there is nothing."""
    try:
        write(group / "cgroup.kill", 1)
    except OSError:  # version 1, or a kernel before 5.14
        with ExitStack() as stack:
            _kill_each(group, stack)


def _kill_each(group: Path, stack: ExitStack) -> list[int]:
    """Kill the members one by one; returns descriptors, open as long as ``stack``, that are readable once they have ended."""
    pidfds: dict[int, int] = {}
    for pid in members(group):
        with suppress(ProcessLookupError):
            pidfds[pid] = os.pidfd_open(pid)
            stack.callback(os.close, pidfds[pid])
    still_there = set(members(group))  # or a pid could have been given to another process before we held on to it
    for pid, pidfd in pidfds.items():
        if pid in still_there:
            with suppress(ProcessLookupError, PermissionError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    return [pidfd for pid, pidfd in pidfds.items() if pid in still_there]


def remove(group: Path) -> bool:
    """Remove ``group`` and the groups below it; False while something is in them."""
    for directory in reversed(_tree(group)):
        try:
            directory.rmdir()
        except FileNotFoundError:
            continue
        except OSError:
            return False
    return True


def end(groups: Iterable[Path]) -> bool:
    """Kill everything in the groups, wait for its end and remove them; False if that took too long."""
    left = list(groups)
    for _ in range(_ROUNDS):
        with ExitStack() as stack:
            poller = select.poll()
            for group in left:
                for pidfd in _kill_each(group, stack):
                    poller.register(pidfd, select.POLLIN)
            until = time.monotonic() + _ROUND_SECONDS
            left = [group for group in left if not remove(group)]
            while left and (remaining := until - time.monotonic()) > 0:
                # Without anything to wait for, this is a pause: version 1 doesn't tell when a group is ready to be removed.
                for pidfd, _event in poller.poll(min(remaining * 1000, 10)):
                    poller.unregister(pidfd)
                left = [group for group in left if not remove(group)]
        if not left:
            return True
    return False


def _tree(group: Path) -> list[Path]:
    """List ``group`` and those below it, parents first."""
    found = [group]
    for directory in found:
        with suppress(OSError), os.scandir(directory) as entries:
            found += [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
    return found


def write(path: Path, value: object) -> None:
    """Write a control file that is there: outside of a cgroup file system there is nothing to write to. Raises OSError with its path."""
    descriptor = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)  # its error has the path
    try:
        os.write(descriptor, str(value).encode())
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        os.close(descriptor)


def read_number(path: Path, missing: int | None = None) -> int:
    """Read a number from a control file; ``missing`` where it can't be read. Raises OSError if that is None. "max" is the largest number
    there is."""
    try:
        text = path.read_text().strip()
    except OSError:
        if missing is None:
            raise
        return missing
    return (1 << 63) - 1 if text == "max" else int(text)


def read_fields(path: Path) -> dict[str, int]:
    """Return a file with a name and a number on each line; empty if there is none. Other lines are passed over."""
    fields = {}
    with suppress(FileNotFoundError):
        for line in path.read_text().splitlines():
            name, _, value = line.partition(" ")
            if value.isdigit():
                fields[name] = int(value)
    return fields
