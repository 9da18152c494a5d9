"""What was measured of a job, interval by interval: kept as ``profiles.jsonl`` in its directory, a line for each.

The master appends, and anyone reads, whether or not the job runs. When there are many, every second one of the older half is dropped:
curves over the whole job need few points.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from dlrover_lite.core.decoding import json_decoder
from dlrover_lite.core.files.durable import write_whole
from dlrover_lite.jobs import json_lines
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


_decoder = json_decoder(_Measured | Gap)


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
                self._lines = self._path.read_bytes().count(b"\n") if self._path.exists() else 0
            if self._lines >= self._kept:
                self._lines = self._thin_out()
        except OSError as error:
            raise unwritable(self._path, error) from error
        json_lines.append(self._path, [line])
        self._lines += 1

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
    found = json_lines.read(path, _decoder)
    if found.damaged:
        lines = len(found.entries) + len(found.damaged)
        on_damage(f"Left out of {path}, since they can't be understood: {len(found.damaged)} of {lines} lines")
    return [entry.profile if isinstance(entry, _Measured) else entry for entry in found.entries]
