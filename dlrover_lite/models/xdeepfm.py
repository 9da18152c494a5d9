"""xDeepFM."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn

from dlrover_lite.data.base import Schema
from dlrover_lite.errors import ModelError
from dlrover_lite.models.layers import LinearAndDeep, fields_of
from dlrover_lite.models.options import non_negative_number, positive_int, sizes

__all__ = ["XDeepFM"]


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
        for layer, output in zip(self.cin, self.cin_outputs, strict=True):
            products = maps.unsqueeze(2) * start.unsqueeze(1)
            maps = layer(products.flatten(1))
            total = total + output(maps.view(batch, self.dim, -1).sum(1))
        return total.squeeze(1)
