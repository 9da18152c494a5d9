"""What is asked of the file system, in its order: whether what was written whole would be whole after a loss of power, too."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

__all__ = ["Call", "FileCalls", "recorded"]


class Call(NamedTuple):
    what: str
    """``sync`` or ``name``."""
    path: str
    """What was synced, or the name that was given."""
    source: str = ""
    """What had it before: a file, or a directory."""
    bytes: int = 0
    """Its size then."""


class FileCalls:
    def __init__(self) -> None:
        self.calls: list[Call] = []

    def names(self) -> list[str]:
        """That were given, the first one first."""
        return [call.path for call in self.calls if call.what == "name"]

    def check_durable(self, path: Path) -> None:
        """The file or directory at ``path`` was synced with all that is in it before it got that name, and the name was synced after."""
        given = [at for at, call in enumerate(self.calls) if call.what == "name" and call.path == str(path)]
        assert given, f"{path} was never given its name: {self.names()}"
        at = given[-1]
        source = Path(self.calls[at].source)
        for entry in [path, *(sorted(path.rglob("*")) if path.is_dir() else [])]:
            if entry.is_dir() and not any(entry.iterdir()):
                continue
            before = str(source / entry.relative_to(path)) if entry != path else str(source)
            assert self._was_synced(before, entry, at), f"{entry} had its name before it was synced"
        behind = [call.path for call in self.calls[at:] if call.what == "sync"]
        assert str(path.parent) in behind, f"the name of {path} was never synced"

    def _was_synced(self, name: str, entry: Path, until: int) -> bool:
        """As it is now."""
        size = entry.stat().st_size
        for call in self.calls[:until]:
            if call.what == "sync" and call.path == name and (entry.is_dir() or call.bytes == size):
                return True
        # what was moved into the directory under its own name
        moved = [call for call in self.calls[:until] if call.what == "name" and call.path == name]
        return bool(moved) and name != moved[-1].source and self._was_synced(moved[-1].source, entry, until)


@contextmanager
def recorded() -> Iterator[FileCalls]:
    """All syncs and all names given by this process meanwhile."""
    found = FileCalls()
    real: dict[str, Any] = {name: getattr(os, name) for name in ("fsync", "replace", "rename", "link")}

    def sync(descriptor: int) -> None:
        real["fsync"](descriptor)
        path = str(Path(f"/proc/self/fd/{descriptor}").readlink())
        found.calls.append(Call("sync", path, bytes=os.fstat(descriptor).st_size))

    def naming(name: str) -> Any:
        def call(source: Any, target: Any, **more: Any) -> Any:
            size = Path(source).stat().st_size
            at = os.fspath(source)
            if at.startswith("/proc/self/fd/"):
                at = str(Path(at).readlink())
            done = real[name](source, target, **more)
            found.calls.append(Call("name", os.fspath(target), at, size))
            return done

        return call

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", sync)
        for name in ("replace", "rename", "link"):
            patch.setattr(os, name, naming(name))
        yield found
