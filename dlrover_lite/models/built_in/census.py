"""The census model: a test instrument that learns nothing, and counts what has been applied.

Whatever the parameters are, a minibatch's gradient is exactly 1 in each value of its samples' own rows, exactly the batch size in the
row that all samples share, and exactly 1 in each dense value. So the optimizer's kernel alone says what every value and its state must
be after E epochs, bit for bit: ``census_check`` compares.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dlrover_lite.data.census import EVERYONE, SAMPLE
from dlrover_lite.models.fields import EmbeddingField
from dlrover_lite.models.options import positive_int

__all__ = ["Census"]

_STEPS = 64


class Census(nn.Module):
    """Rows of ``embedding_dim`` values for each sample and for everyone, and ``dense_values`` dense ones, in one tensor.

    All of a minibatch's sums are of whole numbers, or of a power of two of equal shares, so that none is rounded (for batches of a power
    of two, up to 2^24).
    """

    def __init__(self, *, embedding_dim: int = 4, dense_values: int = 40_000) -> None:
        super().__init__()
        dim = positive_int("embedding_dim", embedding_dim)
        values = positive_int("dense_values", dense_values)
        self.embedding_fields = [EmbeddingField(SAMPLE, dim), EmbeddingField(EVERYONE, dim)]
        # In [-1, 1), of few kinds: equal ones stay equal, so that a check computes each kind once.
        self.values = nn.Parameter(torch.randint(-_STEPS, _STEPS, (values,)) / _STEPS)

    def forward(self, dense: Tensor, embedded: Tensor) -> Tensor:
        """Return the sum of all values that a sample has a share in, float32 [batch]; ``embedded`` is [batch, 2 * dim]."""
        share: Tensor = self.values.sum() / max(1, len(embedded))
        return embedded.sum(1) + share

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        return logits.sum()
