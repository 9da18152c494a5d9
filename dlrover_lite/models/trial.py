"""Trying a recipe's model on a few samples of its data, in a process of its own: ``python -m dlrover_lite.models.trial FD``.

The recipe comes as JSON on stdin, what was found goes as JSON to the descriptor FD. The person's code may hang, exit or die: whoever
started the process finds nothing there then, and says so (``client.trial``). Nothing heavy is imported before that process runs.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Literal

import msgspec

from dlrover_lite.core.decoding import from_json
from dlrover_lite.core.errors import DataError, DlroverLiteError, ModelError
from dlrover_lite.recipe.schema import CriteoData, CsvData, ParquetData, Recipe

__all__ = ["Found", "TrialError", "main", "try_recipe"]

_MOST_EXAMPLES = 3


class TrialError(msgspec.Struct, frozen=True):
    """What was wrong, with ``what``; "here": nothing with the recipe, but it can't be tried on this machine."""

    what: Literal["data", "model", "here"]
    message: str
    hint: str = ""
    user_traceback: str = ""


class Found(msgspec.Struct, kw_only=True):
    """``lines`` were read, ``bad_lines`` of them can't be used; 0 for generated data."""

    lines: int = 0
    bad_lines: int = 0
    bad_examples: list[str] = []
    """A few bad lines, as ``file:line: why``."""
    whole: bool = False
    """Whether these are all lines that there are."""
    samples: int | None = None
    """Number of samples to train on in an epoch; None: the data can't be read."""
    estimated: bool = False
    """Whether ``samples`` follows from the files' sizes and the lines read, since they have not been indexed yet."""
    dense_parameters: int | None = None
    """Number of values in the model's own parameters; None: it could not be built."""
    embedding_values: int = 0
    """Number of values that are looked up for a sample."""
    error: TrialError | None = None


def try_recipe(recipe: Recipe) -> Found:
    """Read the first lines of the data's files, build the model, and compute one step with two samples."""
    found = Found()
    try:
        _try(recipe, found)
    except DataError as error:
        found.error = TrialError("data", error.message, error.hint)
    except ModelError as error:
        found.error = TrialError("model", error.message, error.hint, error.user_traceback)
    except ImportError as error:  # of ours: one of the model's is a ModelError
        found.error = TrialError("here", str(error), "dlrover-lite doctor says what is missing.")
    except DlroverLiteError as error:
        found.error = TrialError("here", error.message, error.hint)
    return found


def _try(recipe: Recipe, found: Found) -> None:
    import torch

    from dlrover_lite.data.open import describe, estimate_samples, read_heads
    from dlrover_lite.models.check import check_samples, fields_of_model
    from dlrover_lite.models.registry import build_model
    from dlrover_lite.models.user import exits_as_errors, split_use

    directory = Path(recipe.directory)
    first, heads = None, []
    if isinstance(recipe.data, CriteoData | CsvData | ParquetData):
        heads = read_heads(recipe.data, directory)
        bad = [line for head in heads for line in head.batch.bad]
        found.lines, found.bad_lines = sum(head.lines for head in heads), len(bad)
        found.bad_examples = [f"{line.file}:{line.line}: {line.why}" for line in bad[:_MOST_EXAMPLES]]
        found.whole = all(head.whole for head in heads)
        first = heads[0].batch
    description = describe(recipe.data, directory)
    schema, found.samples = description.schema, description.train_samples
    if found.samples is None and isinstance(recipe.data, CriteoData | CsvData):
        found.samples, found.estimated = estimate_samples(recipe.data, directory, heads), True
    named = split_use(recipe.model.use)
    code_directory = (directory / named[0]).resolve().parent if named else Path(__file__).parent
    with exits_as_errors(lambda: "the trial of the model", code_directory):
        module = build_model(recipe.model, schema, directory=directory, seed=recipe.training.seed)
        if first is not None and len(first.labels) > 1:
            dense, labels = (torch.from_numpy(array[:2].copy()) for array in (first.dense, first.labels))
            check_samples(module, dense, labels, directory=code_directory)
    found.dense_parameters = sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)
    found.embedding_values = sum(field.dim for field in fields_of_model(module))


def main(arguments: list[str]) -> None:
    """Try a recipe. ``arguments``: the descriptor for what was found, and how many bytes of memory may be taken."""
    _limit_memory(int(arguments[1]))
    found = try_recipe(from_json(sys.stdin.buffer.read(), Recipe))
    with os.fdopen(int(arguments[0]), "wb") as said:
        said.write(msgspec.json.encode(found))
    os._exit(0)  # whatever threads the model has left


def _limit_memory(most_bytes: int) -> None:
    """Limit the process's memory, so that a model that is too large fails here, and no other process is killed for it."""
    import resource

    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    soft = most_bytes if hard == resource.RLIM_INFINITY else min(most_bytes, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


if __name__ == "__main__":
    main(sys.argv[1:])
