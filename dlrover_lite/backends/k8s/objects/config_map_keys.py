"""The keys of a ConfigMap by which the files of a job travel. A key can't have ``/``: that of a file in a package has ``..`` instead, which
no module's path has. Pure: data in, data out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

__all__ = ["config_volume", "key_of", "path_of"]


def key_of(path: str) -> str:
    """Return the key of the file with this path."""
    return path.replace("/", "..")


def path_of(key: str) -> str:
    """Return the path of the file with this key: relative, and never up."""
    parts = key.split("..")
    return "/".join(parts) if all(part and not part.startswith(".") for part in parts) else key


def config_volume(job: str, paths: Iterable[str]) -> dict[str, Any]:
    """Make the source of the volume that has a job's files at their ``paths``. Only where one is in a directory they are listed."""
    found = sorted(paths)
    if not any("/" in path for path in found):
        return {"configMap": {"name": job}}
    return {"configMap": {"name": job, "items": [{"key": key_of(path), "path": path} for path in found]}}
