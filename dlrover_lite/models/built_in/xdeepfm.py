"""xDeepFM."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from dlrover_lite.core.errors import ModelError
from dlrover_lite.data.base import Schema
from dlrover_lite.models.built_in.layers import LinearAndDeep, fields_of
from dlrover_lite.models.options import non_negative_number, positive_int, sizes

__all__ = ["XDeepFM"]

_CHUNK_VALUES = 1 << 19


class XDeepFM(nn.Module):
    """xDeepFM (Lian et al., 2018, arXiv 1803.05170): compressed interaction network (CIN) + MLP + linear model.

    Each field's vector has ``embedding_dim + 1`` values: value 0 is the id's weight in the linear model, the others
    are its embedding. The CIN's layers have ``cin_sizes`` feature maps and no activation, as the paper found best;
    the paper's sizes (200 a layer) are for GPUs.
    """

    def __init__(
        self,
        schema: Schema,
        *,
        embedding_dim: int = 16,
        hidden: Sequence[int] = (256, 128),
        cin_sizes: Sequence[int] = (32, 32),
        init_scale: float = 0.05,
    ) -> None:
        super().__init__()
        if not schema.categorical:
            raise ModelError(
                "xdeepfm crosses categorical columns, and the data has none.",
                hint="Name some under data.categorical, or use the model wide_deep.",
            )
        dim = positive_int("embedding_dim", embedding_dim)
        layers = sizes("hidden", hidden)
        scale = non_negative_number("init_scale", init_scale)
        self.fields, self.dim = len(schema.categorical), dim
        self.embedding_fields = fields_of(schema, dim + 1, scale)
        self.tower = LinearAndDeep(fields=self.fields, dim=dim, dense=len(schema.dense), hidden=layers)
        maps = (self.fields, *sizes("cin_sizes", cin_sizes))
        self.cin = nn.ModuleList(
            [nn.Linear(before * self.fields, after, bias=False) for before, after in pairwise(maps)]
        )
        self.cin_outputs = nn.ModuleList([nn.Linear(size, 1, bias=False) for size in maps[1:]])

    def forward(self, dense: Tensor, embedded: Tensor) -> Tensor:
        """Logits, float32 [batch], of dense [batch, dense columns] and embedded [batch, fields * (1 + dim)]."""
        logits: Tensor = self.tower(dense, embedded)
        return logits + self._interactions(embedded)

    def _interactions(self, embedded: Tensor) -> Tensor:
        batch = len(embedded)
        embeddings = embedded.view(batch, self.fields, self.dim + 1)[:, :, 1:]
        start = embeddings.transpose(1, 2).reshape(batch * self.dim, self.fields)
        maps, total = start, embedded.new_zeros(batch, 1)
        products = _CompressedProducts.apply if torch.is_grad_enabled() else _compressed_products
        for layer, output in zip(self.cin, self.cin_outputs, strict=True):
            weight: Tensor = layer.weight  # type: ignore[assignment]
            maps = products(maps, start, weight.view(-1, maps.shape[1], self.fields))
            total = total + output(maps.view(batch, self.dim, -1).sum(1))
        return total.squeeze(1)


def _chunks(rows: int, weight: Tensor) -> Iterator[slice]:
    """Yield ranges of rows whose products fit into a core's cache."""
    after, before, fields = weight.shape
    step = max(1, _CHUNK_VALUES // (max(after, before) * fields))
    return (slice(start, start + step) for start in range(0, rows, step))


def _compressed_products(maps: Tensor, start: Tensor, weight: Tensor) -> Tensor:
    """Compute out[n, h] = sum over i, j of weight[h, i, j] * maps[n, i] * start[n, j]."""
    after, before, fields = weight.shape
    by_map = weight.permute(1, 2, 0).reshape(before, fields * after)
    out = maps.new_empty(len(maps), after)
    for rows in _chunks(len(maps), weight):
        projected = torch.mm(maps[rows], by_map).view(-1, fields, after)
        torch.bmm(start[rows].unsqueeze(1), projected, out=out[rows].unsqueeze(1))
    return out


class _CompressedProducts(torch.autograd.Function):
    """``_compressed_products`` chunk by chunk, forward and backward.

    All products of a batch would be 50 MB a layer, written and read several times: a third of the speed.
    """

    @staticmethod
    def forward(ctx: Any, maps: Tensor, start: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(maps, start, weight)
        return _compressed_products(maps, start, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        maps, start, weight = ctx.saved_tensors
        after, before, fields = weight.shape
        flat = weight.reshape(after, before * fields)
        of_maps, of_start, of_flat = torch.empty_like(maps), torch.empty_like(start), torch.zeros_like(flat)
        for rows in _chunks(len(maps), weight):
            x, s, g = maps[rows], start[rows], grad[rows]
            of_flat.addmm_(g.t(), (x.unsqueeze(2) * s.unsqueeze(1)).flatten(1))
            of_products = torch.mm(g, flat).view(-1, before, fields)
            torch.bmm(of_products, s.unsqueeze(2), out=of_maps[rows].unsqueeze(2))
            torch.bmm(x.unsqueeze(1), of_products, out=of_start[rows].unsqueeze(1))
        return of_maps, of_start, of_flat.view_as(weight)
