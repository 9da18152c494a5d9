"""Requests to all parameter servers at once, and the pieces of them that one PS each answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from dlrover_lite.core.rows import RowData
from dlrover_lite.core.slot_sets import SlotSet
from dlrover_lite.protocol.ps_messages import (
    Configure,
    Pull,
    Push,
    Scan,
)
from dlrover_lite.transport.frames import Reply
from dlrover_lite.worker.parameters.embedding import GroupKeys
from dlrover_lite.worker.parameters.slot_map import SlotMap

__all__ = ["ConfigureTicket", "MinibatchKeys", "Piece", "PullTicket", "PushTicket", "ScanTicket", "Ticket"]

T = TypeVar("T", bound=np.generic)


class MinibatchKeys(NamedTuple):
    """What a minibatch asks for, with the map that the keys are ordered by."""

    map: SlotMap
    embedding: list[GroupKeys]
    dense: list[GroupKeys]
    """Keys that are numbers of blocks: parameters, then buffers, if there are any."""

    @property
    def groups(self) -> list[GroupKeys]:
        """All keys, in the order of requests (``tables.layout.groups_of``)."""
        return self.embedding + self.dense


@dataclass(slots=True, eq=False)
class Piece:
    """What is asked of one PS: a part of a ticket."""

    ticket: Ticket
    part: int
    """Position among the pieces that the ticket began as; those that it was split into keep it."""
    ps: str
    version: int
    """Version of the map by which ``ps`` owns the piece's slots."""
    slots: SlotSet
    """All slots that the piece speaks for, with keys in this minibatch or without."""
    covers: bytes
    """The same slots as they travel."""
    keys: list[NDArray[np.uint64]]
    """Keys of each group, table after table."""
    counts: list[list[int]]
    """Number of keys: [group][table]."""
    values: list[NDArray[np.float32]]
    """A push's gradients, a configuration's values: [keys, dim] for each group."""
    positions: list[NDArray[np.int64]] | None = None
    """Positions of each group's keys among those of the piece this one was split from; None: it is whole."""
    detoured: bool = False
    """The piece was turned away, or lost with a PS that has left: when it was answered says nothing about what came before it."""
    first_sent_at: float = -1.0
    """Time in seconds when the piece was sent first; below 0: never."""
    sent_at: float = -1.0


class Ticket(ABC):
    """A request under way; done when nothing is ``missing``."""

    covering = False
    """A piece without keys means something too: that its slots have been reached."""

    def __init__(self, groups: Sequence[GroupKeys]) -> None:
        self.groups = groups
        self.missing = 0
        """Number of pieces without an answer."""
        self.began_at = 0.0
        self.seconds = 0.0
        """Seconds from when it was asked until the last answer was seen."""

    @abstractmethod
    def body(self, piece: Piece) -> msgspec.Struct: ...

    @abstractmethod
    def frames(self, piece: Piece) -> list[Any]: ...

    @abstractmethod
    def answered(self, piece: Piece, reply: Reply) -> None:
        """Take over what has come for a piece."""


class PullTicket(Ticket):
    """A pull under way."""

    def __init__(self, keys: MinibatchKeys, *, unknown: bool = False) -> None:
        """Ask for the rows of ``keys``. ``unknown``: it is to be known, too, which keys have no row yet."""
        super().__init__(keys.groups)
        self.keys = keys
        self.versions: dict[str, int] = {}
        """Number of pushes that each PS had applied before it gave its rows; only of PS that gave them at once."""
        self._rows: list[list[NDArray[np.float32]]] = [[] for _ in range(keys.map.parts)]
        self._with_unknown = unknown
        self._unknown: list[list[NDArray[np.uint8]]] = [[] for _ in range(keys.map.parts)]
        self._table_rows: dict[str, list[list[int]]] = {}
        """Number of rows of each group's tables by PS, as it has answered last."""

    def shares(self, group: int) -> list[NDArray[np.float32]]:
        """Return the group's rows of a finished pull: arrays [keys, dim], one after another in the order of its keys."""
        return [rows[group] for rows in self._rows]

    def rows(self, group: int) -> NDArray[np.float32]:
        """Return a group's rows [keys, dim] of a finished pull."""
        shares = self.shares(group)
        return shares[0] if len(shares) == 1 else np.concatenate(shares)

    def unknown(self, group: int) -> NDArray[np.uint8]:
        """Return uint8 [keys] of a group of embeddings, of a finished pull that was asked for it: 1 for a key that no push had touched."""
        return np.concatenate([flags[group] for flags in self._unknown])

    def table_rows(self, group: int) -> list[int]:
        """Return the number of rows of each table of a group of embeddings, of all PS together; of a pull as for ``unknown``."""
        return [sum(rows) for rows in zip(*(of_ps[group] for of_ps in self._table_rows.values()), strict=True)]

    def body(self, piece: Piece) -> Pull:
        return Pull(piece.counts, self._with_unknown)

    def frames(self, piece: Piece) -> list[Any]:
        return list(piece.keys)

    def answered(self, piece: Piece, reply: Reply) -> None:
        self.missing -= 1
        found = [
            np.frombuffer(reply.buffer(g), np.float32).reshape(-1, group.dim) for g, group in enumerate(self.groups)
        ]
        if not piece.detoured:
            self.versions[piece.ps] = reply.body.version
        self._put(self._rows, piece, found)
        if self._with_unknown:
            first = len(self.groups)
            self._table_rows[piece.ps] = reply.body.table_rows
            flags = [np.frombuffer(reply.buffer(first + g), np.uint8) for g in range(len(self.keys.embedding))]
            self._put(self._unknown, piece, flags)

    def _put(self, parts: list[list[NDArray[T]]], piece: Piece, found: list[NDArray[T]]) -> None:
        """Put what has come for a piece where it belongs in its part: an array [keys, ...] of each group."""
        if piece.positions is None:
            parts[piece.part] = found
            return
        if not parts[piece.part]:
            groups = self.groups[: len(found)]
            sizes = [int(group.bounds[piece.part + 1] - group.bounds[piece.part]) for group in groups]
            parts[piece.part] = [
                np.empty((size, *values.shape[1:]), values.dtype) for size, values in zip(sizes, found, strict=True)
            ]
        for whole, positions, values in zip(parts[piece.part], piece.positions, found, strict=False):
            whole[positions] = values


class _Covering(Ticket):
    """Says which slots it is for, then brings values for some keys of theirs."""

    covering = True

    def frames(self, piece: Piece) -> list[Any]:
        frames: list[Any] = [piece.covers]
        for keys, values in zip(piece.keys, piece.values, strict=True):
            frames += [keys, values]
        return frames


class PushTicket(_Covering):
    """A push under way; done when all 4,096 slots have been acknowledged."""

    def __init__(self, epoch: int, k: int, learning_rate_factor: float, pull: PullTicket) -> None:
        super().__init__(pull.groups)
        self.epoch = epoch
        self.k = k
        self.staleness = 0
        """Maximum over all PS of the number of pushes, this worker's own included, applied between this minibatch's pull and its push."""
        self._factor = learning_rate_factor
        self._pulled_versions = pull.versions

    def body(self, piece: Piece) -> Push:
        return Push(self.epoch, self.k, self._factor, piece.counts)

    def answered(self, piece: Piece, reply: Reply) -> None:
        self.missing -= 1
        pulled_version = self._pulled_versions.get(piece.ps)
        if pulled_version is not None and not piece.detoured:
            self.staleness = max(self.staleness, reply.body.version - pulled_version)


class ConfigureTicket(_Covering):
    """What each PS is to keep, with the first values of dense blocks."""

    def __init__(self, configuration: Configure, groups: Sequence[GroupKeys]) -> None:
        super().__init__(groups)
        self._configuration = configuration

    def body(self, piece: Piece) -> Configure:
        return self._configuration

    def answered(self, piece: Piece, reply: Reply) -> None:
        self.missing -= 1


class ScanTicket(Ticket):
    """A scan of some rows of one PS: of that one, wherever slots go."""

    def __init__(self, request: Scan) -> None:
        super().__init__(())
        self._request = request
        self.found: tuple[RowData, int | None] | None = None
        """Rows, with flat values, and counts and state if asked for; and the row number to go on from, None after the last row."""

    def body(self, piece: Piece) -> Scan:
        return self._request

    def frames(self, piece: Piece) -> list[Any]:
        return []

    def answered(self, piece: Piece, reply: Reply) -> None:
        self.missing -= 1
        keys, tables, values = (
            np.frombuffer(reply.buffer(i), kind) for i, kind in enumerate((np.uint64, np.uint16, np.float32))
        )
        state = self._request.state
        updates = np.frombuffer(reply.buffer(3), np.uint32) if state else np.empty(0, np.uint32)
        optimizer = np.frombuffer(reply.buffer(4), np.float32) if state else np.empty(0, np.float32)
        self.found = RowData(keys, tables, updates, values, optimizer), reply.body.next_start
