"""Loads a user's model class from their file, and turns what their code raises into a ModelError."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from dlrover_lite.core.errors import ModelError
from dlrover_lite.core.files.regular import MOST_SOURCE_BYTES, check_regular
from dlrover_lite.models.options import did_you_mean

__all__ = ["exit_error", "exits_as_errors", "load_user_class", "split_use", "user_code", "user_traceback"]


def split_use(use: str) -> tuple[str, str] | None:
    """Split ``file.py:Class`` into ("file.py", "Class"); None for the name of a built-in model."""
    file, colon, name = use.rpartition(":")
    return (file, name) if colon else None


def user_traceback(error: BaseException, directory: Path) -> str:
    """Return the traceback with only the frames of files under ``directory``, those of an environment in it left out."""
    report = traceback.TracebackException.from_exception(error)
    mine = [
        frame
        for frame in report.stack
        if Path(frame.filename).is_relative_to(directory.resolve()) and "site-packages" not in frame.filename
    ]
    if not mine:
        return "".join(report.format_exception_only())
    report.stack = traceback.StackSummary.from_list(mine)
    return "".join(report.format(chain=False))


@contextmanager
def user_code(doing: str, directory: Path, *, hint: str = "") -> Iterator[None]:
    """Turn anything raised inside into a ModelError with ``user_traceback``; ``doing`` starts its message."""
    try:
        yield
    except ModelError as error:
        error.user_traceback = error.user_traceback or user_traceback(error, directory)
        raise
    except (Exception, SystemExit) as error:  # the user's code may raise anything
        text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise ModelError(
            f"{doing} failed: {text}", hint=hint, user_traceback=user_traceback(error, directory)
        ) from error


def exit_error(error: BaseException, doing: str, directory: Path) -> ModelError:
    """Make a ModelError of what is no ``Exception`` (SystemExit, KeyboardInterrupt) and was raised by the user's code during ``doing``."""
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return ModelError(
        f"the model's code has asked for the end of the process ({text}) in {doing}",
        hint="Remove sys.exit() and the like from the model, or raise an ordinary exception such as ValueError.",
        user_traceback=user_traceback(error, directory),
    )


@contextmanager
def exits_as_errors(doing: Callable[[], str], directory: Path) -> Iterator[None]:
    """Turn SystemExit and KeyboardInterrupt out of the user's code into a ModelError, as ``exit_error`` does. For processes in which
    nothing else raises them."""
    try:
        yield
    except (SystemExit, KeyboardInterrupt) as error:
        raise exit_error(error, doing(), directory) from error


def load_user_class(use: str, directory: Path) -> Any:
    """Return the class (or function) that ``use``, ``file.py:Class``, names. Relative files are taken from ``directory``.

    The file's directory stays on ``sys.path``, as for a script, so that the model may import its neighbours. Raises ModelError.
    """
    file, name = split_use(use) or ("", "")
    path = (directory / file).resolve()
    if not file or not name or path.suffix != ".py":
        raise ModelError(f"Model {use!r} doesn't name a class in a Python file.", hint="Write my_model.py:MyModel.")
    if not path.exists():
        near = did_you_mean(path.name, (other.name for other in path.parent.glob("*.py")))
        raise ModelError(f"The model file {path} doesn't exist.", hint=near)
    try:
        check_regular(path, MOST_SOURCE_BYTES)
    except OSError as error:
        raise ModelError(f"The model file {path} can't be read: {error.strerror}") from None
    module = _load_module(path)
    if hasattr(module, name):
        return getattr(module, name)
    classes = [
        key for key, value in vars(module).items() if isinstance(value, type) and value.__module__ == module.__name__
    ]
    raise ModelError(f"{path} has no {name!r}.", hint=did_you_mean(name, classes))


def _load_module(path: Path) -> ModuleType:
    digest = hashlib.blake2b(str(path).encode(), digest_size=4).hexdigest()
    name = f"{path.stem}_{digest}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ModelError(f"The model file {path} can't be imported.", hint="It must be a plain Python file.")
    module = importlib.util.module_from_spec(spec)
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    sys.modules[name] = module
    try:
        with user_code(f"Importing {path}", path.parent, hint="Fix the model file, then run again."):
            spec.loader.exec_module(module)
    except ModelError:
        del sys.modules[name]
        raise
    return module
