"""Copies a user's model file, and the neighbours it imports, so that an export can be loaded without the original."""

from __future__ import annotations

import ast
import shutil
from pathlib import Path

from dlrover_lite.core.errors import ModelError
from dlrover_lite.core.files.regular import MOST_SOURCE_BYTES, read_file

__all__ = ["copy_sources"]


def copy_sources(use: str, directory: Path, target: Path) -> str:
    """Copies the file of ``use`` (``file.py:Class``) and the modules beside it that it imports into ``target``.

    Returns ``use`` with the file's name alone, which is what it is relative to ``target``.
    Raises ModelError when the file isn't there or can't be parsed any more, and OSError.
    """
    file, _, name = use.rpartition(":")
    path = (directory / file).resolve()
    if not path.exists():
        raise ModelError(f"The model file {path} doesn't exist any more.", hint="Put it back, then export again.")
    for source in _local_sources(path):
        copy = target / source.relative_to(path.parent)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, copy)
    return f"{path.name}:{name}"


def _local_sources(path: Path) -> list[Path]:
    """Return ``path`` and the modules and packages of its directory that it imports, themselves or through each other."""
    found, waiting = {path}, [path]
    while waiting:
        for name in _imported_names(waiting.pop()):
            package = path.parent / name
            files = [package.with_suffix(".py")] if package.with_suffix(".py").is_file() else []
            if (package / "__init__.py").is_file():
                files = sorted(package.rglob("*.py"))
            waiting += [file for file in files if file not in found]
            found.update(files)
    return sorted(found)


def _imported_names(path: Path) -> set[str]:
    """Return the first parts of the modules that the file imports, wherever in it."""
    try:
        tree = ast.parse(read_file(path, MOST_SOURCE_BYTES), str(path))
    except OSError as error:
        raise ModelError(f"{path} can't be read as Python: {error.strerror}") from error
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ModelError(f"{path} is not valid Python any more: {error}", hint="Fix it, then export again.") from error
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.split(".")[0])
    return names
