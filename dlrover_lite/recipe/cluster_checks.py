"""What a recipe may not name when its job runs in a cluster: files of this machine, which no pod has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

from dlrover_lite.recipe.kubernetes import Kubernetes
from dlrover_lite.recipe.schema import Checkpoint, CriteoData, CsvData, ParquetData, Recipe
from dlrover_lite.recipe.source import Scalar, Section

__all__ = ["choose_cluster", "cluster_problems", "has_cluster"]

_MOUNT = "mount the volume that has it, by backend.k8s.volumes and volume_mounts, and write its path there"


def has_cluster(root: Section) -> bool:
    """Return whether the job is to run in a cluster, as far as can be told from what was written."""
    written = root.entries.get("backend")
    return isinstance(written, Section) or (isinstance(written, Scalar) and written.value == "k8s")


def choose_cluster(root: Section, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Write ``backend: k8s`` as a section, so that single settings can be put on top; return the overrides that are left. Settings that
    were written stay where a cluster is chosen by its name alone."""
    left, written = dict(overrides), root.entries.get("backend")
    name = left.get("backend", written.value if isinstance(written, Scalar) else None)
    if name != "k8s":
        return left
    left.pop("backend", None)
    if not isinstance(written, Section) or "k8s" not in written.entries:
        place = root.place if written is None else written.place
        root.entries["backend"] = Section(place, {"k8s": Section(place, {})})
    return left


def cluster_problems(recipe: Recipe, settings: Kubernetes) -> Iterator[tuple[str, str]]:
    """Find what pods couldn't find: the key, and what to do."""
    if not settings.image:
        yield (
            "backend.k8s.image",
            "missing; write the image of the job's pods, one that has this release of dlrover-lite (or: run --image)",
        )
    data = recipe.data
    if isinstance(data, CriteoData | CsvData | ParquetData):
        for field in ("train", "eval"):
            for path in getattr(data, field):
                if not _is_url(path) and not _mounted(path, settings):
                    yield (
                        f"data.{field}",
                        f"{path} is a file of this machine, which pods don't have: write a URL, or {_MOUNT}",
                    )
    if isinstance(recipe.checkpoint, Checkpoint):
        where = recipe.checkpoint.directory
        if where and not _is_url(where) and not _mounted(where.removeprefix("file://"), settings):
            message = f"{where} is a directory of this machine, which pods don't have: write a URL, or {_MOUNT}"
            yield "checkpoint.directory", message


def _is_url(path: str) -> bool:
    return "://" in path and not path.startswith("file://")


def _mounted(path: str, settings: Kubernetes) -> bool:
    """Return whether a path is on a volume that the job's pods mount."""
    written = PurePosixPath(path)
    places = [one["mountPath"] for one in settings.volume_mounts if isinstance(one.get("mountPath"), str)]
    return written.is_absolute() and any(written.is_relative_to(place) for place in places)
