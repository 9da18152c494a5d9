"""Wide & Deep."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from dlrover_lite.data.base import Schema
from dlrover_lite.models.built_in.layers import LinearAndDeep, fields_of, require_columns
from dlrover_lite.models.options import non_negative_number, positive_int, sizes

__all__ = ["WideDeep"]


class WideDeep(nn.Module):
    """Wide & Deep Learning for Recommender Systems (Cheng et al., 2016, arXiv 1606.07792).

    A linear model over ids and dense columns plus an MLP over embeddings and dense columns. Each field's vector has
    ``embedding_dim + 1`` values: value 0 is the id's weight in the linear model, the others are its embedding.
    The paper's hand-made crossed columns are columns of the data here, if wanted.
    """

    def __init__(
        self,
        schema: Schema,
        *,
        embedding_dim: int = 16,
        hidden: Sequence[int] = (256, 128),
        init_scale: float = 0.05,
    ) -> None:
        super().__init__()
        require_columns(schema)
        dim = positive_int("embedding_dim", embedding_dim)
        layers = sizes("hidden", hidden)
        self.embedding_fields = fields_of(schema, dim + 1, non_negative_number("init_scale", init_scale))
        self.tower = LinearAndDeep(fields=len(schema.categorical), dim=dim, dense=len(schema.dense), hidden=layers)

    def forward(self, dense: Tensor, embedded: Tensor) -> Tensor:
        """Logits, float32 [batch], of dense [batch, dense columns] and embedded [batch, fields * (1 + dim)]."""
        logits: Tensor = self.tower(dense, embedded)
        return logits
