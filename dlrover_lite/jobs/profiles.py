"""What was measured of a job, interval by interval: kept as ``profiles.jsonl`` in its directory, a line for each.

The master appends, and anyone reads, whether or not the job runs. When there are many, every second one of the older half is dropped:
curves over the whole job need few points.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from dlrover_lite.core.errors import JobError
from dlrover_lite.core.files.durable import open_private, write_whole
from dlrover_lite.jobs.store import unwritable
from dlrover_lite.protocol.profiles import Profile

__all__ = ["FILE", "Gap", "ProfileLog", "read"]

FILE = "profiles.jsonl"
KEPT = 4096
"""Number of lines that are kept; a profile of a job with 26 tables takes 3 KB."""


class Gap(msgspec.Struct, frozen=True, tag_field="kind", tag="gap"):
    """An interval that is lost."""

    at: float
    """Seconds since the epoch at its end."""
    seconds: float | None
    """Length of the gap in seconds, where that is known."""
    why: str


class _Measured(msgspec.Struct, frozen=True, tag_field="kind", tag="profile"):
    profile: Profile


_decoder = msgspec.json.Decoder(_Measured | Gap)


class ProfileLog:
    """The writing end. One at a time: the master of the job."""

    def __init__(self, job_directory: Path, *, kept: int = KEPT) -> None:
        self._path = job_directory / FILE
        self._kept = kept
        self._lines: int | None = None

    def keep(self, found: Profile | Gap) -> None:
        """Append it. Raises JobError when it can't be written."""
        line = msgspec.json.encode(_Measured(found) if isinstance(found, Profile) else found)
        try:
            if self._lines is None:
                self._lines = self._count_and_mend()
            if self._lines >= self._kept:
                self._lines = self._thin_out()
            with os.fdopen(open_private(self._path, os.O_WRONLY | os.O_APPEND), "ab") as file:
                file.write(line + b"\n")
            self._lines += 1
        except OSError as error:
            self._lines = None  # half a line may be there
            raise unwritable(self._path, error) from error

    def _count_and_mend(self) -> int:
        """Count the lines that there are; one that its writer could not end is ended."""
        with suppress(FileNotFoundError):
            data = self._path.read_bytes()
            if data and not data.endswith(b"\n"):
                with self._path.open("ab") as file:
                    file.write(b"\n")
            return len(data.splitlines())
        return 0

    def _thin_out(self) -> int:
        lines = self._path.read_bytes().splitlines(keepends=True)
        half = len(lines) // 2
        lines = lines[:half:2] + lines[half:]
        write_whole(self._path, lines)
        return len(lines)


def read(job_directory: Path, on_damage: Callable[[str], None] = lambda _: None) -> Sequence[Profile | Gap]:
    """Read all profiles that are kept, the oldest first; none for a job of which nothing was measured. Lines that can't be understood are
    left out, and ``on_damage`` is told once. Raises JobError when the file can't be read."""
    path = job_directory / FILE
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise JobError(f"Can't read {path}: {error.strerror}") from error
    found: list[Profile | Gap] = []
    damaged = 0
    for line in lines:
        try:
            entry = _decoder.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            damaged += 1
            continue
        found.append(entry.profile if isinstance(entry, _Measured) else entry)
    if damaged:
        on_damage(f"Left out of {path}, since they can't be understood: {damaged} of {len(lines)} lines")
    return found
