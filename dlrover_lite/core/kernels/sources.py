"""The state of the sources that a kernel is compiled from: its own file, and all of this package that it imports.

numba makes constants of what a kernel takes from other modules, and inlines the kernels it calls. Its index only looks at the kernel's own
file, and there at size and modification time, which a package manager may set to the same for every version.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

__all__ = ["digest"]

_PACKAGE = Path(__file__).parents[2]
_IMPORT = re.compile(
    rb"^[ \t]*(?:from|import)[ \t]+%s((?:\.\w+)*)(?:[ \t]+import[ \t]+(?:\(([^)]*)\)|(.*)))?" % _PACKAGE.name.encode(),
    re.M,
)
"""Pattern of a module's path below the package, and the names taken from there, which may be modules too. Looked for without parsing: 1 ms
for a kernel's sources instead of 20; what only looks like an import is one file more."""


class _Source(NamedTuple):
    digest: bytes
    imported: frozenset[Path]


def digest(paths: Iterable[Path]) -> str:
    """Compute a digest of the contents of these files and of all files of this package that they import, or that those do. Raises
    OSError."""
    found: dict[Path, bytes] = {}
    left = [path.absolute() for path in paths]
    while left:
        path = left.pop()
        if path not in found:
            source = _read(path)
            found[path] = source.digest
            left += source.imported
    total = hashlib.blake2b(digest_size=16)
    for path in sorted(found):
        total.update(found[path])
    return total.hexdigest()


@cache
def _read(path: Path) -> _Source:
    """Read a source file once by a process: it runs what it has imported, whatever becomes of the file."""
    text = path.read_bytes()
    return _Source(hashlib.blake2b(text, digest_size=16).digest(), frozenset(_imported(text)))


def _imported(text: bytes) -> Iterator[Path]:
    for match in _IMPORT.finditer(text):
        module = str(_PACKAGE) + match[1].decode().replace(".", "/")
        if _is_there(f"{module}.py"):
            yield Path(f"{module}.py")
            continue
        names = (name.split()[0].decode() for name in (match[2] or match[3] or b"").split(b",") if name.strip())
        for file in (f"{module}/__init__.py", *(f"{module}/{name}.py" for name in names)):
            if _is_there(file):
                yield Path(file)


@cache
def _is_there(file: str) -> bool:
    return os.path.isfile(file)  # noqa: PTH113 - a Path takes longer to make than the system takes to answer
