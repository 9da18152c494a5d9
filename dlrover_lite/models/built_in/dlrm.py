"""DLRM."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from dlrover_lite.data.base import Schema
from dlrover_lite.models.built_in.layers import fields_of, mlp, require_columns
from dlrover_lite.models.options import non_negative_number, positive_int, sizes

__all__ = ["DLRM"]


class DLRM(nn.Module):
    """Deep Learning Recommendation Model (Naumov et al., 2019, arXiv 1906.00091).

    A bottom MLP (hidden sizes ``bottom``) turns the dense columns into one more vector of ``embedding_dim`` values;
    the dot products of all pairs of vectors, and that vector, go through a top MLP (hidden sizes ``top``).
    """

    def __init__(
        self,
        schema: Schema,
        *,
        embedding_dim: int = 16,
        bottom: Sequence[int] = (128, 64),
        top: Sequence[int] = (256, 128),
        init_scale: float = 0.05,
    ) -> None:
        super().__init__()
        require_columns(schema)
        self.dim = positive_int("embedding_dim", embedding_dim)
        scale = non_negative_number("init_scale", init_scale)
        self.embedding_fields = fields_of(schema, self.dim, scale)
        bottom_sizes, dense = sizes("bottom", bottom), len(schema.dense)
        self.bottom = mlp(dense, (*bottom_sizes, self.dim)) if dense else None
        vectors = len(schema.categorical) + (1 if dense else 0)
        inputs = vectors * (vectors - 1) // 2 + (self.dim if dense else 0)
        # One field and nothing else has no pairs: its vector itself is then the input.
        self.pairs_only = bool(inputs)
        self.top = mlp(inputs or self.dim, sizes("top", top), outputs=1)
        pair, mirror = _pair_positions(vectors)
        self.register_buffer("pair", pair, persistent=False)
        self.register_buffer("mirror", mirror, persistent=False)

    def forward(self, dense: Tensor, embedded: Tensor) -> Tensor:
        """Logits, float32 [batch], of dense [batch, dense columns] and embedded [batch, fields * dim]."""
        if not self.pairs_only:
            return self.top(embedded).squeeze(1)  # type: ignore[no-any-return]
        if self.bottom is None:
            return self.top(self._dots(embedded)).squeeze(1)  # type: ignore[no-any-return]
        bottom = self.bottom(dense)
        dots = self._dots(torch.cat([bottom, embedded], 1))
        return self.top(torch.cat([bottom, dots], 1)).squeeze(1)  # type: ignore[no-any-return]

    def _dots(self, vectors: Tensor) -> Tensor:
        stacked = vectors.view(len(vectors), -1, self.dim)
        if torch.is_grad_enabled():
            return _PairwiseDots.apply(stacked, self.pair, self.mirror)  # type: ignore[no-any-return,no-untyped-call]
        return _pairwise_dots(stacked, self.pair)  # type: ignore[arg-type]


def _pair_positions(vectors: int) -> tuple[Tensor, Tensor]:
    """Return where the pairs (row > column) are in a flattened [vectors, vectors]; and, for each place of such a matrix, which pair it
    belongs to, plus 1 (0 on the diagonal)."""
    rows, columns = torch.tril_indices(vectors, vectors, -1)
    mirror = torch.zeros(vectors, vectors, dtype=torch.int64)
    mirror[rows, columns] = mirror[columns, rows] = torch.arange(1, len(rows) + 1)
    return rows * vectors + columns, mirror.flatten()


def _pairwise_dots(stacked: Tensor, pair: Tensor) -> Tensor:
    return torch.bmm(stacked, stacked.transpose(1, 2)).flatten(1).index_select(1, pair)


class _PairwiseDots(torch.autograd.Function):
    """Dot products of all pairs, [batch, vectors, dim] -> [batch, pairs].

    The backward gathers the gradients into a symmetric matrix and multiplies once; autograd would scatter them and
    multiply twice, which takes three times as long.
    """

    @staticmethod
    def forward(ctx: Any, stacked: Tensor, pair: Tensor, mirror: Tensor) -> Tensor:
        ctx.save_for_backward(stacked, mirror)
        return _pairwise_dots(stacked, pair)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        stacked, mirror = ctx.saved_tensors
        vectors = stacked.shape[1]
        symmetric = nn.functional.pad(grad, (1, 0)).index_select(1, mirror).view(-1, vectors, vectors)
        return torch.bmm(symmetric, stacked), None, None
