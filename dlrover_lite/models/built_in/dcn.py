"""Deep & Cross Network, versions 2 and 1."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from dlrover_lite.data.base import Schema
from dlrover_lite.models.built_in.layers import fields_of, mlp, require_columns
from dlrover_lite.models.options import choice, non_negative_int, non_negative_number, positive_int, sizes

__all__ = ["DCN"]


class DCN(nn.Module):
    """DCN V2 (Wang et al., 2021, arXiv 2008.13535), cross and deep network in parallel.

    ``cross="matrix"`` is version 2: x' = x0 * (W x + b) + x, where ``low_rank`` above 0 makes W a product of two
    matrices of that rank. ``cross="vector"`` is version 1 (Wang et al., 2017, arXiv 1708.05123): x' = x0 (w·x) + b + x.
    """

    def __init__(
        self,
        schema: Schema,
        *,
        embedding_dim: int = 16,
        hidden: Sequence[int] = (256, 128),
        cross: str = "matrix",
        cross_layers: int = 3,
        low_rank: int = 0,
        init_scale: float = 0.05,
    ) -> None:
        super().__init__()
        require_columns(schema)
        dim = positive_int("embedding_dim", embedding_dim)
        scale = non_negative_number("init_scale", init_scale)
        kind = choice("cross", cross, ("matrix", "vector"))
        layers = positive_int("cross_layers", cross_layers)
        rank = non_negative_int("low_rank", low_rank)
        self.embedding_fields = fields_of(schema, dim, scale)
        inputs = len(schema.categorical) * dim + len(schema.dense)
        make = (lambda: _MatrixCross(inputs, rank)) if kind == "matrix" else (lambda: _VectorCross(inputs))
        self.cross = nn.ModuleList([make() for _ in range(layers)])
        self.cross_output = nn.Linear(inputs, 1)
        self.deep = mlp(inputs, sizes("hidden", hidden), outputs=1)

    def forward(self, dense: Tensor, embedded: Tensor) -> Tensor:
        """Logits, float32 [batch], of dense [batch, dense columns] and embedded [batch, fields * dim]."""
        start = torch.cat([embedded, dense], 1) if dense.shape[1] else embedded
        crossed = start
        for layer in self.cross:
            crossed = layer(start, crossed)
        logits: Tensor = self.cross_output(crossed) + self.deep(start)
        return logits.squeeze(1)


class _MatrixCross(nn.Module):
    def __init__(self, inputs: int, rank: int) -> None:
        super().__init__()
        if rank:
            self.product: nn.Module = nn.Sequential(nn.Linear(inputs, rank, bias=False), nn.Linear(rank, inputs))
        else:
            self.product = nn.Linear(inputs, inputs)

    def forward(self, start: Tensor, x: Tensor) -> Tensor:
        return torch.addcmul(x, start, self.product(x))


class _VectorCross(nn.Module):
    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.product = nn.Linear(inputs, 1, bias=False)
        self.bias = nn.Parameter(torch.zeros(inputs))

    def forward(self, start: Tensor, x: Tensor) -> Tensor:
        return torch.addcmul(x + self.bias, start, self.product(x))
