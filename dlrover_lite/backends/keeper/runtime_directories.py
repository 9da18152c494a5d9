"""Where a job's sockets are: a private directory, short enough for socket paths, that its keeper owns and removes."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import string
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from dlrover_lite.backends.host import cgroups
from dlrover_lite.core.decoding import from_json
from dlrover_lite.core.errors import JobError
from dlrover_lite.core.processes.identity import ProcessIdentity, is_alive, is_foreign, kill_processes_of

__all__ = [
    "MAX_SOCKET_NAME_BYTES",
    "MAX_SOCKET_PATH_BYTES",
    "create_runtime_directory",
    "record_cgroups",
    "remove_runtime_directory",
    "stale_runtime_directories",
    "sweep_runtime",
]

MAX_SOCKET_PATH_BYTES = 103
"""Longest path of a socket in bytes, on macOS; Linux takes 107."""
MAX_SOCKET_NAME_BYTES = 32
_OWNER = "owner.json"
_CGROUPS = "cgroups.json"
_UNFINISHED_SECONDS = 60.0
"""Age in seconds from which on a directory without an owner is left over: it is one that is being made, and its maker must have died."""


class Owner(msgspec.Struct, frozen=True):
    job: str
    process: ProcessIdentity


def create_runtime_directory(job_directory: Path, short_id: str, owner: ProcessIdentity) -> Path:
    """Create a new directory that only this user can enter, with ``owner`` written in it from the moment it is there.

    Raises JobError when no place for it is usable.
    """
    refusals = []
    for base in _bases():
        longest = base / f"{short_id}x"
        try:
            if len(os.fsencode(longest)) + 1 + MAX_SOCKET_NAME_BYTES > MAX_SOCKET_PATH_BYTES:
                raise JobError(f"{base} is too long a path for sockets")
            return _create_in(base, short_id, Owner(str(job_directory), owner))
        except JobError as refusal:
            refusals.append(refusal.message)
        except OSError as error:
            refusals.append(f"{base}: {error.strerror}")
    raise JobError(
        "There is no usable directory for the job's sockets: " + "; ".join(dict.fromkeys(refusals)),
        hint="Set XDG_RUNTIME_DIR or TMPDIR to a short path of your own with mode 0700.",
    )


def _bases() -> Iterator[Path]:
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if runtime.startswith("/"):
        try:
            _check_private(Path(runtime))
        except (JobError, OSError):
            pass  # not usable, as with an environment taken over from another user
        else:
            yield Path(runtime) / "dlrover-lite"
    for root in dict.fromkeys((tempfile.gettempdir(), "/tmp")):
        yield Path(root) / f"dlrover-lite-{os.geteuid()}"


def _check_private(directory: Path) -> None:
    """Check that a directory is ours, closed to others, and no link: anyone may create names in the temp directory. Raises JobError."""
    status = directory.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise JobError(f"{directory} is not a directory")
    if status.st_uid != os.geteuid():
        raise JobError(f"{directory} belongs to another user")
    if status.st_mode & 0o077:
        raise JobError(f"{directory} is open to other users (mode {stat.S_IMODE(status.st_mode):o}, not 700)")


def _create_in(base: Path, short_id: str, owner: Owner) -> Path:
    while True:
        base.mkdir(mode=0o700, exist_ok=True)
        _check_private(base)
        try:
            made = Path(tempfile.mkdtemp(prefix=".new-", dir=base))  # mode 0700
            break
        except FileNotFoundError:
            continue  # another job has ended meanwhile, and removed it
    try:
        (made / _OWNER).write_bytes(msgspec.json.encode(owner))
        for ending in ("", *string.ascii_lowercase):
            try:
                return made.rename(base / f"{short_id}{ending}")
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
        raise JobError(f"{base} already holds directories named {short_id}")
    except BaseException:
        remove_runtime_directory(made)
        raise


def record_cgroups(directory: Path, groups: list[Path]) -> None:
    """Note which control groups are the job's, in place of those noted before: they go when the directory does."""
    path = directory / _CGROUPS
    written = path.with_suffix(".new")
    written.write_bytes(msgspec.json.encode([str(group) for group in groups]))
    written.replace(path)


def remove_runtime_directory(directory: Path) -> None:
    """Remove a runtime directory with the control groups noted in it, whose processes are killed. Whatever can't be removed now is left to
    the next sweep."""
    try:
        noted = from_json((directory / _CGROUPS).read_bytes(), list[str])
    except (OSError, msgspec.MsgspecError):
        noted = []
    if noted and not cgroups.end(map(Path, noted)):
        return
    shutil.rmtree(directory, ignore_errors=True)
    with suppress(OSError):  # other jobs are in it
        directory.parent.rmdir()


def sweep_runtime(clock: Callable[[], float] = time.time) -> list[Path]:
    """Remove the runtime directories whose keeper is gone, and end what such a job's nodes had started; returns the directories."""
    swept = stale_runtime_directories(clock)
    for entry in swept:
        if (owner := _owner(entry)) is not None:
            kill_processes_of(owner.job)
        remove_runtime_directory(entry)
    return swept


def stale_runtime_directories(clock: Callable[[], float] = time.time) -> list[Path]:
    """List the runtime directories that ``sweep_runtime`` would remove."""
    stale = []
    for base in _bases():
        try:
            _check_private(base)
            entries = list(base.iterdir())
        except (JobError, OSError):
            continue
        stale += [entry for entry in entries if _is_stale(entry, clock())]
    return stale


def _owner(directory: Path) -> Owner | None:
    try:
        return from_json((directory / _OWNER).read_bytes(), Owner)
    except (OSError, msgspec.MsgspecError):
        return None


def _is_stale(directory: Path, now: float) -> bool:
    owner = _owner(directory)
    if owner is None:
        try:
            return now - directory.lstat().st_mtime > _UNFINISHED_SECONDS
        except FileNotFoundError:
            return False
    return not is_alive(owner.process) and not is_foreign(owner.process)
