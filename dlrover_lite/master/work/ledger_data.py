"""What the ledger holds, as plain data: the same small structs are its saved form and its changes.

A pass is known by its number everywhere below: twice its index, plus one for evaluation.
"""

from __future__ import annotations

from typing import Literal

import msgspec

__all__ = [
    "Change",
    "Failure",
    "FailureGone",
    "Fenced",
    "FencedGone",
    "LedgerData",
    "Pass",
    "Span",
    "SpanGone",
    "TokensReserved",
]

Kind = Literal["train", "eval"]


class Pass(msgspec.Struct, frozen=True):
    """Minibatches 0 … ``minibatches`` - 1, each to be done once. ``index`` is the epoch (train) or the evaluation round (eval)."""

    kind: Kind
    index: int
    minibatches: int

    @property
    def number(self) -> int:
        return pass_number(self.kind, self.index)

    def __str__(self) -> str:
        return f"epoch {self.index}" if self.kind == "train" else f"evaluation {self.index}"


def pass_number(kind: Kind, index: int) -> int:
    return 2 * index + (kind == "eval")


class Span(msgspec.Struct, frozen=True, gc=False):
    """Minibatches [start, stop) of a pass are done (``token`` 0), or leased under ``token`` to ``worker``.

    No two spans of a pass overlap, so (pass, start) names one. What is in no span and has not failed is to do.
    """

    pass_number: int
    start: int
    stop: int
    token: int = 0
    worker: str = ""


class SpanGone(msgspec.Struct, frozen=True, gc=False):
    pass_number: int
    start: int


class Failure(msgspec.Struct, frozen=True, gc=False):
    """Minibatch ``k`` raised ``error`` on ``worker``. With a second failure it is quarantined: never leased again."""

    pass_number: int
    k: int
    worker: str
    error: str
    second_worker: str | None = None
    second_error: str = ""

    @property
    def quarantined(self) -> bool:
        return self.second_worker is not None


class FailureGone(msgspec.Struct, frozen=True, gc=False):
    pass_number: int
    k: int


class Fenced(msgspec.Struct, frozen=True, gc=False):
    """A training lease that was taken away, of which [start, stop) was open: late reports are still believed that far."""

    token: int
    pass_number: int
    start: int
    stop: int


class FencedGone(msgspec.Struct, frozen=True, gc=False):
    """All fenced leases of a pass are forgotten: it is finished."""

    pass_number: int


class TokensReserved(msgspec.Struct, frozen=True, gc=False):
    """Tokens below ``limit`` may have been given out; whoever loads the ledger starts there."""

    limit: int


Change = Pass | Span | SpanGone | Failure | FailureGone | Fenced | FencedGone | TokensReserved


class LedgerData(msgspec.Struct):
    """A whole ledger. Lists are sorted by their leading fields, ``passes`` by number."""

    passes: list[Pass] = []
    spans: list[Span] = []
    failures: list[Failure] = []
    fenced: list[Fenced] = []
    tokens_reserved: int = 1
