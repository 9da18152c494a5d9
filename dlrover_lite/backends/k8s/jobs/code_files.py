"""What travels to a job's pods as a ConfigMap: the recipe, options, and the file of the person's model with those beside it."""

from __future__ import annotations

from pathlib import Path

import msgspec

from dlrover_lite.backends.k8s.objects.node_pod import JOB_FILES
from dlrover_lite.core.files.regular import MOST_SOURCE_BYTES, read_file
from dlrover_lite.core.problems import Place, Problems
from dlrover_lite.core.units import format_bytes
from dlrover_lite.recipe.load import resolved_yaml
from dlrover_lite.recipe.schema import Recipe

__all__ = ["HISTORY", "files_of", "recipe_in_pod"]

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
    """Return the files by their names in the pod. Raises RecipeError where they are too large, or can't be read."""
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
    """Read the model's file, and the modules beside it that it may import."""
    found = {}
    try:
        for one in sorted({path, *path.parent.glob("*.py")}):
            found[one.name] = read_file(one, MOST_SOURCE_BYTES)
    except OSError as error:
        _refuse(f"{error.filename or path} can't be sent to the job's pods: {error.strerror or error}")
    return found


def _refuse(message: str) -> None:
    problems = Problems()
    problems.add(Place("recipe"), "model.use", message)
    problems.raise_if_any()
