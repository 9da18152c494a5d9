"""Builds the model that a recipe names, a built-in or the user's own, and checks that it can be trained."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dlrover_lite.core.errors import ModelError
from dlrover_lite.data.base import Schema
from dlrover_lite.models.check import check_model, loss_of
from dlrover_lite.models.options import did_you_mean
from dlrover_lite.models.user import load_user_class, split_use, user_code
from dlrover_lite.recipe.schema import Model

__all__ = ["BUILT_IN", "build_model", "check_model", "loss_of"]

BUILT_IN = {
    "wide_deep": ("dlrover_lite.models.built_in.wide_deep", "WideDeep"),
    "dcn": ("dlrover_lite.models.built_in.dcn", "DCN"),
    "xdeepfm": ("dlrover_lite.models.built_in.xdeepfm", "XDeepFM"),
    "dlrm": ("dlrover_lite.models.built_in.dlrm", "DLRM"),
    "census": ("dlrover_lite.models.built_in.census", "Census"),
}
"""Module and class of each built-in model."""


def build_model(model: Model, schema: Schema, *, directory: Path, seed: int) -> nn.Module:
    """The module that ``model.use`` names, with ``model.options``, checked by ``check_model``.

    The same arguments give the same parameters: torch is seeded with ``seed`` (and its random state put back after).
    A user's class is called with ``schema=schema`` if it has a parameter of that name, and with the options.
    Raises ModelError; where the user's own code failed, with its ``user_traceback``.
    """
    make, code_directory = _find(model.use, directory)
    arguments = _arguments(make, model, schema)
    with torch.random.fork_rng(devices=[]), user_code(f"Building the model {model.use}", code_directory):
        torch.manual_seed(seed)
        module = make(**arguments)
    if not isinstance(module, nn.Module):
        raise ModelError(
            f"{model.use} makes a {type(module).__name__}, not a torch.nn.Module.",
            hint="Name a class that derives from torch.nn.Module.",
        )
    check_model(module, schema, directory=code_directory)
    return module


def _find(use: str, directory: Path) -> tuple[Any, Path]:
    """Return what makes the module, and the directory of its code."""
    named = split_use(use)
    if named is not None:
        return load_user_class(use, directory), (directory / named[0]).resolve().parent
    if use not in BUILT_IN:
        hint = f"Write {use}:YourClass." if use.endswith(".py") else did_you_mean(use, BUILT_IN)
        raise ModelError(f"There is no built-in model {use!r}.", hint=hint)
    module, name = BUILT_IN[use]
    return getattr(importlib.import_module(module), name), Path(__file__).parent


def _arguments(make: Any, model: Model, schema: Schema) -> dict[str, Any]:
    try:
        parameters = inspect.signature(make).parameters
    except (TypeError, ValueError) as error:
        raise ModelError(
            f"{model.use} can't be called to make a model.", hint="Name a class that derives from torch.nn.Module."
        ) from error
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    known = {name: parameter for name, parameter in parameters.items() if parameter.kind in named}
    takes_any = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
    for option in model.options:
        if option == "schema" or not (option in known or takes_any):
            raise ModelError(
                f"The model {model.use} has no option {option!r}.", hint=did_you_mean(option, known.keys() - {"schema"})
            )
    arguments = {**({"schema": schema} if "schema" in known else {}), **model.options}
    for name, parameter in known.items():
        if parameter.default is inspect.Parameter.empty and name not in arguments:
            raise ModelError(f"The model {model.use} needs the option {name!r}.", hint="Give it under model.options.")
    return arguments
