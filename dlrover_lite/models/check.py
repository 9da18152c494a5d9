"""Checks that a torch module can be trained here, with errors that say what to change in it."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from dlrover_lite.core.errors import ModelError
from dlrover_lite.data.base import Schema
from dlrover_lite.models.fields import EmbeddingField
from dlrover_lite.models.options import did_you_mean
from dlrover_lite.models.user import user_code

__all__ = ["check_model", "check_samples", "fields_of_model", "loss_of"]

Loss = Callable[[Tensor, Tensor], Tensor]


def loss_of(module: nn.Module) -> Loss:
    """Return the module's ``loss(logits, labels)`` if it has one, else the mean binary cross-entropy with logits.

    Both get float32 [batch] tensors.
    """
    own = getattr(module, "loss", None)
    return own if callable(own) else nn.functional.binary_cross_entropy_with_logits


def fields_of_model(module: nn.Module) -> list[EmbeddingField]:
    """Return the module's ``embedding_fields``. Raises ModelError when it has none, or something else under that name."""
    name = type(module).__name__
    fields = getattr(module, "embedding_fields", None)
    example = 'self.embedding_fields = [EmbeddingField("C1", 16), ...]'
    if fields is None:
        raise ModelError(
            f"{name} doesn't say which embeddings it wants.",
            hint=f"Set {example} in its constructor (an empty list for a model without embeddings).",
        )
    if not isinstance(fields, (list, tuple)) or not all(isinstance(field, EmbeddingField) for field in fields):
        raise ModelError(
            f"{name}.embedding_fields is not a list of EmbeddingField.",
            hint=f"Write {example}, with EmbeddingField from dlrover_lite.models.fields.",
        )
    return list(fields)


def check_model(module: nn.Module, schema: Schema, *, directory: Path | None = None) -> None:
    """Raises ModelError unless ``module`` fits the data and trains: fields, parameters, buffers, then one dry step.

    The dry step is forward, loss and backward with two random samples; parameters, buffers, gradients and torch's
    random state are as before afterwards. Frames of code under ``directory`` count as the user's in tracebacks.
    """
    fields = fields_of_model(module)
    _check_fields(module, fields, schema)
    _check_parameters(module, fields)
    _check_buffers(module)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        dense = torch.randn(2, len(schema.dense))
    _dry_step(module, fields, dense, torch.tensor([0.0, 1.0]), "random samples", directory or Path.cwd())


def check_samples(module: nn.Module, dense: Tensor, labels: Tensor, *, directory: Path) -> None:
    """Raise ModelError unless one dry step with these samples works: dense float32 [n, columns], labels float32 [n]. As by ``check_model``,
    which goes before it, nothing is changed."""
    _dry_step(module, fields_of_model(module), dense, labels, "of the data's samples", directory)


def _check_fields(module: nn.Module, fields: list[EmbeddingField], schema: Schema) -> None:
    name = type(module).__name__
    tables: dict[str, EmbeddingField] = {}
    for field in fields:
        if field.column not in schema.categorical:
            hint = did_you_mean(field.column, schema.categorical) or "The data has no categorical columns."
            raise ModelError(f"{name} embeds the column {field.column!r}, which the data doesn't have.", hint=hint)
        if not isinstance(field.dim, int) or isinstance(field.dim, bool) or field.dim < 1:
            raise ModelError(
                f"{name}'s field {field.column!r} has dim {field.dim!r}.", hint="Make it a whole number of at least 1."
            )
        if not isinstance(field.init_scale, (int, float)) or not 0 <= field.init_scale < math.inf:
            raise ModelError(
                f"{name}'s field {field.column!r} has init_scale {field.init_scale!r}.",
                hint="Make it a number of at least 0.",
            )
        first = tables.setdefault(field.table_name, field)
        for what in ("dim", "init_scale"):
            mine, other = getattr(field, what), getattr(first, what)
            if mine != other:
                raise ModelError(
                    f"{name}'s fields {first.column!r} and {field.column!r} share the table {field.table_name!r} "
                    f"but differ in {what}: {other} and {mine}.",
                    hint=f"Give both the same {what}, or each a table of its own.",
                )


def _check_parameters(module: nn.Module, fields: list[EmbeddingField]) -> None:
    name = type(module).__name__
    for key, parameter in module.named_parameters():
        if is_lazy(parameter):
            raise ModelError(
                f"{name}.{key} belongs to a lazy module, whose size is unknown until it is used.",
                hint="Use the module without Lazy in its name, and give the number of inputs.",
            )
        if parameter.dtype != torch.float32:
            raise ModelError(
                f"{name}.{key} is {parameter.dtype}; only torch.float32 parameters can be trained.",
                hint="Create it as float32 (no .half(), .double() or .bfloat16()).",
            )
        if parameter.device.type != "cpu":
            raise ModelError(
                f"{name}.{key} is on the device {parameter.device}.",
                hint="Leave the module on the CPU: no .to(device).",
            )
    if not fields and not any(parameter.requires_grad for parameter in module.parameters()):
        raise ModelError(
            f"{name} has neither embedding fields nor parameters: there is nothing to train.",
            hint="Assign layers and nn.Parameter to attributes of self, so that torch finds them.",
        )


def _check_buffers(module: nn.Module) -> None:
    """Check the buffers. Non-persistent ones are constants, as torch itself sees them; ``_dry_step`` checks that they stay."""
    name = type(module).__name__
    averaged = bool(getattr(module, "averaged_buffers", False))
    persistent = module.state_dict(keep_vars=True).keys()
    for key, buffer in module.named_buffers():
        if key not in persistent:
            continue
        if not averaged:
            raise ModelError(
                f"{name} has the buffer {key!r}, state that the workers would each change on their own.",
                hint="Set averaged_buffers = True in the class to have it averaged over the workers, as for BatchNorm; "
                "for a constant, use register_buffer(..., persistent=False).",
            )
        # BatchNorm only counts its steps here, and reads the count in no computation with a momentum.
        if buffer.dtype != torch.float32 and not key.endswith("num_batches_tracked"):
            raise ModelError(
                f"{name}'s buffer {key!r} is {buffer.dtype}; only torch.float32 buffers can be averaged.",
                hint="Make it float32, or a constant: register_buffer(..., persistent=False).",
            )


def _dry_step(
    module: nn.Module, fields: list[EmbeddingField], dense: Tensor, labels: Tensor, which: str, directory: Path
) -> None:
    kept = {key: buffer.detach().clone() for key, buffer in module.named_buffers()}
    training = module.training
    module.train()
    try:
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.manual_seed(0)
            _forward_and_backward(module, fields, dense, labels, which, directory)
        persistent = module.state_dict(keep_vars=True).keys()
        for key, buffer in module.named_buffers():
            if key not in persistent and not torch.equal(buffer, kept[key]):
                raise ModelError(
                    f"{type(module).__name__}.forward changes the buffer {key!r}, which is registered as a constant.",
                    hint="Register it with persistent=True and set averaged_buffers = True, or leave it unchanged.",
                )
    finally:
        module.train(training)
        module.zero_grad(set_to_none=True)
        with torch.no_grad():
            for key, buffer in module.named_buffers():
                if key in kept and buffer.shape == kept[key].shape:
                    buffer.copy_(kept[key])


def _forward_and_backward(
    module: nn.Module, fields: list[EmbeddingField], dense: Tensor, labels: Tensor, which: str, directory: Path
) -> None:
    name = type(module).__name__
    width = sum(field.dim for field in fields)
    embedded = (torch.rand(2, width) * 0.1 - 0.05).requires_grad_(bool(width))
    shapes = f"dense [2, {dense.shape[1]}] and embedded [2, {width}]"
    with user_code(f"{name}.forward, tried with two samples ({shapes}),", directory):
        logits = module(dense, embedded)
    if not isinstance(logits, Tensor) or logits.shape not in ((2,), (2, 1)) or logits.dtype != torch.float32:
        got = f"{logits.dtype} {list(logits.shape)}" if isinstance(logits, Tensor) else type(logits).__name__
        raise ModelError(
            f"{name}.forward returned {got} for two samples.",
            hint="Return one float32 logit per sample, [batch] or [batch, 1].",
        )
    if not bool(torch.isfinite(logits).all()):
        raise ModelError(
            f"{name}.forward returned {logits.flatten().tolist()} for two {which}.",
            hint="Look for a division by zero, a logarithm of 0 or below, or uninitialised parameters.",
        )
    with user_code(f"{name}.loss, tried with two samples,", directory):
        loss = loss_of(module)(logits.reshape(2), labels)
    if not isinstance(loss, Tensor) or loss.numel() != 1 or not bool(torch.isfinite(loss).all()):
        raise ModelError(f"{name}.loss returned {loss!r}.", hint="Return one finite number: a tensor of shape [].")
    if not loss.requires_grad:
        raise ModelError(
            f"{name}'s loss depends on no parameter and no embedding.",
            hint="Look for detach(), no_grad() or numpy() between the inputs and the logits.",
        )
    with user_code(f"The backward of {name}, tried with two samples,", directory):
        loss.reshape(()).backward()  # type: ignore[no-untyped-call]
    if width and embedded.grad is None:
        raise ModelError(
            f"{name} has embedding fields, but its loss doesn't depend on them.",
            hint="Use the second argument of forward(dense, embedded), without detach().",
        )
