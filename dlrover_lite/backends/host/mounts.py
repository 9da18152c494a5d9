"""Where the control groups of this process are, from what the kernel says in /proc/self."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

__all__ = ["Hierarchy", "hierarchies", "unified", "with_controller"]

_PROC = Path("/proc/self")


@dataclass(frozen=True)
class Hierarchy:
    """One tree of control groups. ``own`` is the group this process is in, at or below ``mount``."""

    version: int
    controllers: frozenset[str]
    """Controllers of the hierarchy. Version 1: those mounted here. Version 2: those that ``own`` may use."""
    mount: Path
    own: Path

    def up(self) -> list[Path]:
        """List ``own`` and the groups above it, as far as they can be seen from here; the nearest first."""
        parents = self.own.parents
        return [self.own, *(path for path in parents if path == self.mount or self.mount in path.parents)]


def hierarchies(proc: Path = _PROC) -> list[Hierarchy]:
    """List all hierarchies that are mounted and hold this process; empty where there are none."""
    try:
        mounts, groups = (proc / "mountinfo").read_text(), (proc / "cgroup").read_text()
    except OSError:
        return []
    own_paths: dict[str, str] = {}
    for line in groups.splitlines():
        _, controllers, path = line.split(":", 2)
        own_paths.update(dict.fromkeys(controllers.split(","), path))  # version 2 has the empty name
    found: dict[tuple[int, frozenset[str]], Hierarchy] = {}
    for line in mounts.splitlines():
        hierarchy = _hierarchy(line, own_paths)
        if hierarchy is not None:
            found.setdefault((hierarchy.version, hierarchy.controllers), hierarchy)
    return list(found.values())


def _hierarchy(line: str, own_paths: dict[str, str]) -> Hierarchy | None:
    before, _, after = line.partition(" - ")
    kind, _, options = after.split(" ", 2)
    if kind not in ("cgroup", "cgroup2"):
        return None
    root, mount = (_unescape(field) for field in before.split(" ")[3:5])
    names = frozenset(own_paths.keys() & options.split(",")) if kind == "cgroup" else frozenset([""])
    if not names:
        return None
    own = _below(Path(mount), root, own_paths.get(min(names), "/.."))
    if own is None or not own.is_dir():
        return None
    if kind == "cgroup":
        return Hierarchy(1, names, Path(mount), own)
    try:
        return Hierarchy(2, frozenset((own / "cgroup.controllers").read_text().split()), Path(mount), own)
    except OSError:
        return None


def _below(mount: Path, root: str, path: str) -> Path | None:
    """Return where the group ``path`` is when the group ``root`` is what is mounted; None if it can't be seen from there."""
    if ".." in PurePosixPath(path).parts or not PurePosixPath(path).is_relative_to(root):
        return None
    return mount / PurePosixPath(path).relative_to(root)


def _unescape(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def with_controller(found: list[Hierarchy], controller: str) -> Hierarchy | None:
    """Return the version 1 hierarchy of this controller."""
    return next((h for h in found if h.version == 1 and controller in h.controllers), None)


def unified(found: list[Hierarchy]) -> Hierarchy | None:
    """Return the version 2 hierarchy."""
    return next((h for h in found if h.version == 2), None)
