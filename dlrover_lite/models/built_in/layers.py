"""Layers that the built-in models share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from dlrover_lite.core.errors import ModelError
from dlrover_lite.data.base import Schema
from dlrover_lite.models.fields import EmbeddingField

__all__ = ["LinearAndDeep", "fields_of", "mlp", "require_columns"]


def fields_of(schema: Schema, dim: int, init_scale: float) -> list[EmbeddingField]:
    """Return one field, with a table of its own, for each categorical column."""
    return [EmbeddingField(column, dim, init_scale=init_scale) for column in schema.categorical]


def require_columns(schema: Schema) -> None:
    """Raise ModelError for data without any feature."""
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


class LinearAndDeep(nn.Module):
    """The sum of a linear model and an MLP, over vectors of ``1 + dim`` values per field.

    Value 0 of each vector is the id's weight in the linear model, the others are its embedding, an input of the MLP.
    The dense columns go to both. ``forward(dense, embedded)`` returns logits, float32 [batch]. It computes this,
    in less time: without copies of all embeddings, and with one node of the autograd graph.

    ::

        vectors = embedded.view(batch, fields, 1 + dim)
        x = torch.cat([vectors[:, :, 1:].flatten(1), dense], 1)
        return deep(x).squeeze(1) + vectors[:, :, 0].sum(1) + dense @ linear_dense
    """

    def __init__(self, *, fields: int, dim: int, dense: int, hidden: Sequence[int]) -> None:
        super().__init__()
        self.fields, self.dim = fields, dim
        self.deep = mlp(fields * dim + dense, hidden, outputs=1)
        self.linear_dense = nn.Parameter(torch.zeros(dense))
        is_linear = torch.zeros(fields, 1 + dim)
        is_linear[:, 0] = 1.0
        self.register_buffer("is_linear", is_linear.flatten(), persistent=False)

    def forward(self, dense: Tensor, embedded: Tensor) -> Tensor:
        layers = [parameter for layer in self.deep if isinstance(layer, nn.Linear) for parameter in layer.parameters()]
        arguments = (dense, embedded, self.is_linear, self.fields, self.dim, self.linear_dense, *layers)
        if torch.is_grad_enabled():
            return _LinearAndDeep.apply(*arguments)  # type: ignore[no-any-return,no-untyped-call]
        return _forward(*arguments)[0]  # type: ignore[arg-type]


def _forward(
    dense: Tensor, embedded: Tensor, is_linear: Tensor, fields: int, dim: int, linear_dense: Tensor, *layers: Tensor
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return logits, and what the backward needs: padded weights, dense columns with a column of ones, hidden layers."""
    first, bias = layers[:2]
    # A zero in the weights for each linear weight in ``embedded``: multiplying by zeros is cheaper than copying all
    # embeddings of a batch without their value 0.
    padded = nn.functional.pad(first[:, : fields * dim].view(len(first), fields, dim), (1, 0)).flatten(1)
    # A column of ones makes the bias a weight: a pass less over the hidden layer, here and in the backward.
    dense_and_one = torch.cat([dense, dense.new_ones(len(dense), 1)], 1)
    rest = torch.cat([first[:, fields * dim :], bias.unsqueeze(1)], 1)
    x = torch.mm(embedded, padded.t()).addmm_(dense_and_one, rest.t()).relu_()
    hidden = [x]
    for weight, bias in zip(layers[2:-2:2], layers[3:-2:2], strict=True):
        x = torch.addmm(bias, x, weight.t()).relu_()
        hidden.append(x)
    logits = torch.addmm(layers[-1], x, layers[-2].t()).squeeze(1).addmv_(embedded, is_linear)
    if dense.shape[1]:
        logits.addmv_(dense, linear_dense)
    return logits, (padded, dense_and_one, *hidden)


class _LinearAndDeep(torch.autograd.Function):
    """All of ``LinearAndDeep`` as one node of the graph, so that its backward can work in place."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        logits, saved = _forward(*arguments)
        _, embedded, _, ctx.fields, ctx.dim, linear_dense, *layers = arguments
        ctx.layers = len(layers)
        ctx.save_for_backward(embedded, linear_dense, *layers, *saved)
        return logits

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_logits: Tensor) -> tuple[Tensor | None, ...]:
        embedded, linear_dense, *others = ctx.saved_tensors
        layers, (padded, dense_and_one, *hidden) = others[: ctx.layers], others[ctx.layers :]
        grad, grads = grad_logits.unsqueeze(1), []
        for weight, x in zip(layers[-2:0:-2], reversed(hidden), strict=True):
            grads += [grad.sum(0), grad.t() @ x]
            grad = grad @ weight
            torch.ops.aten.threshold_backward.grad_input(grad, x, 0.0, grad_input=grad)
        columns, size = len(linear_dense), ctx.fields * ctx.dim
        of_rest = grad.t() @ dense_and_one
        of_padded = (grad.t() @ embedded).view(len(padded), ctx.fields, ctx.dim + 1)
        of_first = torch.cat([of_padded[:, :, 1:].flatten(1), of_rest[:, :columns]], 1)
        of_dense = None
        if ctx.needs_input_grad[0]:
            of_dense = grad @ layers[0][:, size:] + torch.outer(grad_logits, linear_dense)
        of_embedded = None
        if ctx.needs_input_grad[1]:
            of_embedded = grad @ padded
            of_embedded.view(len(grad), ctx.fields, ctx.dim + 1)[:, :, 0] = grad_logits.unsqueeze(1)
        of_linear = (grad_logits @ dense_and_one)[:columns]
        of_layers = (of_first, of_rest[:, columns], *reversed(grads))
        return of_dense, of_embedded, None, None, None, of_linear, *of_layers
