"""Files of the volumes of pods that run as processes."""

from __future__ import annotations

import os
import shutil
from base64 import b64decode
from pathlib import Path
from typing import Any

from dlrover_lite.core.files.paths import cache_directory


def write_files(place: Path, files: dict[str, bytes], volume: dict[str, Any]) -> None:
    items = {one["key"]: one["path"] for one in volume.get("items", [])} or {name: name for name in files}
    for name, data in files.items():
        if name in items:
            file = place / items[name]
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
            file.chmod(volume.get("defaultMode", 0o644))


def decoded(data: dict[str, str]) -> dict[str, bytes]:
    return {name: b64decode(text) for name, text in data.items()}


def with_compiled_kernels(scratch: Path) -> None:
    """Have kernels compiled already, as an image has: those of this process."""
    kept = os.environ.get("NUMBA_CACHE_DIR", "")
    for directory in [Path(kept)] if kept else (cache_directory() / "kernels").glob("*"):
        if directory.is_dir():
            shutil.copytree(directory, scratch / "numba", dirs_exist_ok=True)
