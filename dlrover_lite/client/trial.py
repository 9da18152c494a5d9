"""Trying a recipe before it is run: its first lines, and its model on two samples, in a process that may hang, exit or die."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from dlrover_lite.core.decoding import from_json
from dlrover_lite.core.errors import RecipeError
from dlrover_lite.core.files.paths import python_environment
from dlrover_lite.core.problems import Problem
from dlrover_lite.core.units import Resources, format_bytes
from dlrover_lite.core.words import plural
from dlrover_lite.models.trial import Found, TrialError
from dlrover_lite.recipe.load import place_of
from dlrover_lite.recipe.schema import Recipe

__all__ = ["DEADLINE_SECONDS", "problems_of", "try_recipe", "warnings_of"]

DEADLINE_SECONDS = 60.0
"""Seconds for a model and a thousand lines a file; most of the few seconds that it usually takes go into importing torch."""
_MOSTLY_BAD = 0.5
"""Share of bad lines among those read, from which on the files are not what the recipe says."""
_MOST_OUTPUT_BYTES = 4096
_KEYS = {"data": "data.train", "model": "model.use"}


def try_recipe(recipe: Recipe, machine: Resources, *, deadline_seconds: float = DEADLINE_SECONDS) -> Found:
    """Read the first lines of the data, and compute one step of the model with two samples. What the model's code prints is dropped."""
    command = [sys.executable, "-P", "-m", "dlrover_lite.models.trial"]
    with tempfile.TemporaryFile() as told, tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as output:
        told.write(msgspec.json.encode(recipe))
        told.seek(0)
        process = subprocess.Popen(
            [*command, str(said.fileno()), str(machine.memory)],
            stdin=told,
            stdout=output,
            stderr=output,
            pass_fds=[said.fileno()],
            start_new_session=True,
            cwd=recipe.directory if Path(recipe.directory).is_dir() else None,
            env={**python_environment(), "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
        )
        try:
            code: int | None = process.wait(deadline_seconds)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # also what it has started
            process.wait()
        said.seek(0)
        if answer := said.read():
            with suppress(msgspec.MsgspecError):
                return from_json(answer, Found)
        output.seek(max(0, output.seek(0, os.SEEK_END) - _MOST_OUTPUT_BYTES))
        return Found(error=_silent(code, deadline_seconds, output.read().decode(errors="replace"), machine))


def _silent(code: int | None, deadline_seconds: float, output: str, machine: Resources) -> TrialError:
    """Explain a trial that has ended without a word."""
    if code is None:
        return TrialError(
            "model",
            f"the model, tried on two samples, has not come to an end within {deadline_seconds:g} s",
            "Look for an endless loop, or for something that it waits for, at its import, in its constructor or in forward.",
            output,
        )
    if "MemoryError" in output or code == -signal.SIGKILL:
        return TrialError(
            "model",
            f"trying the model on two samples takes more memory than the {format_bytes(machine.memory)} that this machine has",
            "Make it smaller.",
            output,
        )
    how = f"died of {signal.Signals(-code).name}" if code < 0 else f"ended the process with exit code {code}"
    return TrialError(
        "model",
        f"the model, tried on two samples, has {how}",
        "Its code, or a native library that it uses, has most likely ended the process, as os._exit does.",
        output,
    )


def problems_of(
    found: Found, recipe: Recipe, path: str | Path | None, overrides: Mapping[str, Any]
) -> RecipeError | None:
    """Return why the recipe can't be run, with the lines of its keys; None if nothing was found."""
    error = found.error
    if error is None and _mostly_bad(found, recipe):
        hint = "Mend the data, check data.format and the columns, or allow more with data.max_bad_share."
        error = TrialError("data", _bad(found, recipe), hint)
    if error is None or error.what == "here":
        return None
    key = _KEYS[error.what]
    problem = Problem(place_of(path, overrides, key), key, error.message)
    return RecipeError(
        str(problem), hint=error.hint, problems=(problem,), user_traceback=error.user_traceback.rstrip("\n")
    )


def warnings_of(found: Found, recipe: Recipe) -> list[str]:
    """Return what may go wrong by what was found, a phrase each."""
    warnings = []
    if found.error is not None and found.error.what == "here":
        warnings.append(f"the model was not tried: {found.error.message}. {found.error.hint}")
    if found.bad_lines > _allowed(found, recipe) and not _mostly_bad(found, recipe):
        warnings.append(f"{_bad(found, recipe)}: a job fails where it finds more than that")
    return warnings


def _allowed(found: Found, recipe: Recipe) -> float:
    return float(getattr(recipe.data, "max_bad_share", 0.0)) * found.lines


def _mostly_bad(found: Found, recipe: Recipe) -> bool:
    """Return whether a job would fail for certain, or almost, because of bad lines."""
    too_many = found.bad_lines > _allowed(found, recipe)
    return too_many and (found.whole or found.bad_lines >= _MOSTLY_BAD * found.lines)


def _bad(found: Found, recipe: Recipe) -> str:
    share = getattr(recipe.data, "max_bad_share", 0.0)
    examples = "; ".join(found.bad_examples)
    return (
        f"{found.bad_lines:,} of the {plural(found.lines, 'line')} read can't be used, and data.max_bad_share allows "
        f"{share:.3g} of them ({examples})"
    )
