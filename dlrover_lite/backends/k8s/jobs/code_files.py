"""What travels to a job's pods as a ConfigMap: recipe, options, and the file of the person's model with modules and packages beside it."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from dlrover_lite.backends.k8s.objects.node_pod import JOB_FILES
from dlrover_lite.core.files.regular import MOST_SOURCE_BYTES, read_file
from dlrover_lite.core.problems import Place, Problems
from dlrover_lite.core.units import format_bytes
from dlrover_lite.recipe.load import resolved_yaml
from dlrover_lite.recipe.schema import Recipe

__all__ = ["HISTORY", "files_of", "mounted_files", "recipe_in_pod"]

HISTORY = "history.json"
"""What whoever submits a job knows of jobs like it, for a brain of its own to begin with."""
MOST_BYTES = 900 << 10
"""The most bytes of all files: the API takes objects of a MiB and a half, and a ConfigMap of one."""


def recipe_in_pod(recipe: Recipe) -> Recipe:
    """Return the recipe as its pods read it: the model's file lies beside it."""
    file, colon, name = recipe.model.use.rpartition(":")
    use = f"{Path(file).name}:{name}" if colon else recipe.model.use
    return msgspec.structs.replace(recipe, directory=JOB_FILES, model=msgspec.structs.replace(recipe.model, use=use))


def files_of(recipe: Recipe, options: bytes) -> dict[str, bytes]:
    """Return the files by their paths in the pod. Raises RecipeError where they are too large, or can't be read."""
    inside = recipe_in_pod(recipe)
    files = {
        "recipe.json": msgspec.json.encode(inside),
        "recipe.yaml": resolved_yaml(inside).encode(),
        "options.json": options,
    }
    file, colon, _ = recipe.model.use.rpartition(":")
    if colon:
        path = Path(recipe.directory, file)
        files |= _code_beside(path)
    size = sum(map(len, files.values()))
    if size > MOST_BYTES:
        _refuse(
            f"{format_bytes(size)} of code and recipe are more than the {format_bytes(MOST_BYTES)} that can be sent along: put the "
            "code into the image, or on a volume, and name its directory in backend.k8s.python_path"
        )
    return files


def _code_beside(path: Path) -> dict[str, bytes]:
    """Read the model's file, and the modules and packages beside it that it may import."""
    found: dict[str, bytes] = {}
    try:
        found[path.name] = read_file(path, MOST_SOURCE_BYTES)
        _read_modules(path.parent, "", found, set())
    except OSError as error:
        _refuse(f"{error.filename or path} can't be sent to the job's pods: {error.strerror or error}")
    return found


def _read_modules(directory: Path, prefix: str, found: dict[str, bytes], above: set[Path]) -> None:
    """Add the modules of a directory, and those of packages in it, which have an ``__init__.py``. ``above``: directories that it is in; a
    link to one of those leads nowhere new."""
    if (real := directory.resolve()) in above:
        return
    for one in sorted(directory.iterdir()):
        if sum(map(len, found.values())) > MOST_BYTES:
            return  # it is refused anyway
        if one.suffix == ".py" and (prefix == "" or one.stem.isidentifier()) and not one.is_dir():
            found[prefix + one.name] = read_file(one, MOST_SOURCE_BYTES)
        elif one.name.isidentifier() and (one / "__init__.py").is_file():
            _read_modules(one, f"{prefix}{one.name}/", found, above | {real})


def mounted_files(root: Path) -> tuple[str, ...]:
    """Return the paths of all files of a mounted ConfigMap. What begins with a dot are the kubelet's own, which the others are links to."""
    found: list[str] = []
    for path, directories, names in os.walk(root, followlinks=True):
        directories[:] = [name for name in directories if not name.startswith(".")]
        found += [Path(path, name).relative_to(root).as_posix() for name in names if not name.startswith(".")]
    return tuple(sorted(found))


def _refuse(message: str) -> None:
    problems = Problems()
    problems.add(Place("recipe"), "model.use", message)
    problems.raise_if_any()
