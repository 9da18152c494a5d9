"""Evaluation rounds that aren't through."""

from __future__ import annotations

from collections.abc import Callable

from dlrover_lite.core.unknown_ids import warnings_of
from dlrover_lite.master.work.ledger_data import Pass
from dlrover_lite.master.work.progress import Evaluations
from dlrover_lite.master.work.shards import ShardService

__all__ = ["OpenRounds"]


class OpenRounds:
    def __init__(self, shards: ShardService, evaluations: Evaluations, *, say: Callable[[str], None]) -> None:
        """Begin without open rounds. ``say`` is told of what is odd about a round that is through."""
        self.open: list[Pass] = []
        """Open rounds in their order."""
        self._shards = shards
        self._evaluations = evaluations
        self._say = say

    def opened(self, index: int) -> None:
        """Note that work of a round is given out. May be said again."""
        if all(of.index != index for of in self.open):
            found = [of for of in self._shards.ledger.passes() if of.kind == "eval" and of.index == index]
            self.open += found

    def close(self) -> None:
        """Close the rounds that are through, in their order: the final one may be through before the one in front of it."""
        while self.open and self._shards.ledger.finished(self.open[0]):
            of = self.open.pop(0)
            result = self._evaluations.close(of.index, at_samples=self._shards.round_began_at(of.index))
            for warning in warnings_of(result.unknown_ids, result.unusual_ids):
                self._say(f"evaluation at {result.at_samples:,} samples: {warning}")
