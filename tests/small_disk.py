"""A disk of its own for a directory, small enough to be filled up: ``with small_disk(directory) as disk: disk.fill()``."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_BALLAST = "ballast"
_BLOCK_BYTES = 4096


class SmallDisk:
    """What is in ``directory`` is on it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def fill(self) -> None:
        """Leave no block free."""
        with (self.directory / _BALLAST).open("wb", buffering=0) as file, pytest.raises(OSError, match="No space left"):
            while True:
                file.write(bytes(_BLOCK_BYTES))

    def free(self) -> None:
        (self.directory / _BALLAST).unlink()


@contextmanager
def small_disk(directory: Path, size: str = "1m") -> Iterator[SmallDisk]:
    """Mount one; the test is skipped where that isn't allowed."""
    directory.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "tmpfs", str(directory)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no command mount")
    if done.returncode:
        pytest.skip(f"user {os.geteuid()} can't mount a small disk: {done.stderr.strip()}")
    try:
        yield SmallDisk(directory)
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)  # files may still be open
