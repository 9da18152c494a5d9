"""How a model says which embeddings it wants."""

from __future__ import annotations

import msgspec

__all__ = ["EmbeddingField"]


class EmbeddingField(msgspec.Struct, frozen=True):
    """One categorical column, looked up in one embedding table.

    A model lists its fields in ``embedding_fields``; its ``forward(dense, embedded)`` gets

    - ``dense``: float32 [batch, dense columns],
    - ``embedded``: float32 [batch, sum of the fields' dims], the fields' vectors side by side in the order listed,

    and returns logits, [batch] or [batch, 1].
    """

    column: str
    """The categorical column of the data that holds the ids."""
    dim: int
    """Length of the embedding vector."""
    table: str = ""
    """Table name; fields that name the same table share it (their dims must agree). Default: the column's name."""
    init_scale: float = 0.05
    """A new row starts with values uniform in [-init_scale, init_scale), a function of (job seed, table, id, position)."""

    @property
    def table_name(self) -> str:
        return self.table or self.column
