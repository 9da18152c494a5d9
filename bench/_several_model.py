"""The model of the job of ``bench/several.py`` that fails in mid-run: a Wide & Deep of a person's own, with an error in it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from dlrover_lite.data.base import Schema
from dlrover_lite.models.built_in.wide_deep import WideDeep

__all__ = ["WithError"]


class WithError(WideDeep):
    """``once``: the path of a file; once it is there every minibatch fails with this ``error``."""

    def __init__(
        self, schema: Schema, *, once: str, error: str, embedding_dim: int = 16, hidden: Sequence[int] = (256, 128)
    ) -> None:
        super().__init__(schema, embedding_dim=embedding_dim, hidden=hidden)
        self._once, self._error = Path(once), error

    def forward(self, dense: Tensor, embedded: Tensor) -> Tensor:
        if self._once.exists():
            raise RuntimeError(self._error)
        return super().forward(dense, embedded)
