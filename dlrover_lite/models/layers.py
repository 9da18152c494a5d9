"""Layers that the built-in models share.

Training runs one process per core, so what counts is time on one CPU thread. There a copy of all embeddings of a
batch costs as much as a tenth of the largest matrix product; the layers below read them in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from dlrover_lite.data.base import Schema
from dlrover_lite.errors import ModelError
from dlrover_lite.models.fields import EmbeddingField

__all__ = ["LinearAndFirstLayer", "fields_of", "mlp", "require_columns"]


def fields_of(schema: Schema, dim: int, init_scale: float) -> list[EmbeddingField]:
    """One field, with a table of its own, for each categorical column."""
    return [EmbeddingField(column, dim, init_scale=init_scale) for column in schema.categorical]


def require_columns(schema: Schema) -> None:
    """Raises ModelError for data without any feature."""
    if not schema.dense and not schema.categorical:
        raise ModelError(
            "The data has neither dense nor categorical columns to learn from.",
            hint="Name some under data.dense or data.categorical.",
        )


def mlp(inputs: int, hidden: Sequence[int], *, outputs: int | None = None) -> nn.Sequential:
    """Linear layers of the ``hidden`` sizes, each with a ReLU behind it; then a plain one to ``outputs``, if given."""
    layers: list[nn.Module] = []
    for size in hidden:
        layers += [nn.Linear(inputs, size), nn.ReLU(inplace=True)]
        inputs = size
    if outputs is not None:
        layers.append(nn.Linear(inputs, outputs))
    return nn.Sequential(*layers)


class LinearAndFirstLayer(nn.Module):
    """Reads vectors of ``1 + dim`` values per field: column 0 is the id's linear weight, the others its embedding.

    ``forward(dense, embedded)`` returns (linear, hidden): the sum of the linear weights and the weighted dense
    columns, float32 [batch]; and relu(W @ [embeddings, dense] + b), float32 [batch, ``hidden``].
    """

    def __init__(self, *, fields: int, dim: int, dense: int, hidden: int) -> None:
        super().__init__()
        self.fields, self.dim = fields, dim
        self.first = nn.Linear(fields * dim + dense, hidden)
        self.linear_dense = nn.Parameter(torch.zeros(dense))

    def forward(self, dense: Tensor, embedded: Tensor) -> tuple[Tensor, Tensor]:
        arguments = (dense, embedded, self.first.weight, self.first.bias, self.fields, self.dim)
        if torch.is_grad_enabled():
            linear, hidden = _SplitFirstLayer.apply(*arguments)
        else:
            linear, hidden, _ = _split_forward(*arguments)
        return (linear + dense @ self.linear_dense if self.linear_dense.numel() else linear), hidden


def _split_forward(
    dense: Tensor, embedded: Tensor, weight: Tensor, bias: Tensor, fields: int, dim: int
) -> tuple[Tensor, Tensor, Tensor]:
    """(linear, hidden, weights with a zero where a linear weight is).

    Zeros in the weights, copied once per batch, stand in for a copy of all embeddings without their column 0.
    """
    embeddings = weight[:, : fields * dim].unflatten(1, (fields, dim))
    padded = nn.functional.pad(embeddings, (1, 0)).view(len(weight), fields * (dim + 1))
    hidden = torch.addmm(bias, embedded, padded.t())
    if dense.shape[1]:
        hidden.addmm_(dense, weight[:, fields * dim :].t())
    linear = embedded.view(len(embedded), fields, dim + 1)[:, :, 0].sum(1)
    return linear, hidden.relu_(), padded


class _SplitFirstLayer(torch.autograd.Function):
    """``_split_forward`` with a backward that writes both parts of the embeddings' gradient into one tensor."""

    @staticmethod
    def forward(
        ctx: Any, dense: Tensor, embedded: Tensor, weight: Tensor, bias: Tensor, fields: int, dim: int
    ) -> tuple[Tensor, Tensor]:
        linear, hidden, padded = _split_forward(dense, embedded, weight, bias, fields, dim)
        ctx.save_for_backward(dense, embedded, weight, padded, hidden)
        ctx.fields, ctx.dim = fields, dim
        return linear, hidden

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_linear: Tensor, grad_hidden: Tensor) -> tuple[Tensor | None, ...]:
        dense, embedded, weight, padded, hidden = ctx.saved_tensors
        fields, dim = ctx.fields, ctx.dim
        grad = torch.ops.aten.threshold_backward(grad_hidden, hidden, 0.0)
        grad_embedded = grad @ padded
        grad_embedded.view(len(embedded), fields, dim + 1)[:, :, 0] = grad_linear.unsqueeze(1)
        grad_weight = torch.empty_like(weight)
        grad_padded = (grad.t() @ embedded).view(len(weight), fields, dim + 1)
        grad_weight[:, : fields * dim].unflatten(1, (fields, dim)).copy_(grad_padded[:, :, 1:])
        if dense.shape[1]:
            torch.mm(grad.t(), dense, out=grad_weight[:, fields * dim :])
        grad_dense = grad @ weight[:, fields * dim :] if ctx.needs_input_grad[0] else None
        return grad_dense, grad_embedded, grad_weight, grad.sum(0), None, None
