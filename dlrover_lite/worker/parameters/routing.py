"""Cutting requests into one piece for each parameter server, and pieces again when slots have moved.

Pure: nothing is sent here. However often a ticket's pieces are split, each slot and each key stays in exactly one of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dlrover_lite.core import slot_sets
from dlrover_lite.worker.parameters.embedding import order_by_owner
from dlrover_lite.worker.parameters.requests import Piece, Ticket
from dlrover_lite.worker.parameters.slot_map import SlotMap

__all__ = ["cut", "split"]


def cut(ticket: Ticket, slot_map: SlotMap, values: Sequence[NDArray[np.float32]] = ()) -> list[Piece]:
    """Return a piece for each PS of the map that the ticket's keys are ordered by. ``values``: [keys, dim] for each group, or nothing."""
    pieces = []
    for part, name in enumerate(slot_map.names):
        spans = [slice(group.bounds[part], group.bounds[part + 1]) for group in ticket.groups]
        piece = Piece(
            ticket,
            part,
            name,
            slot_map.version,
            slot_map.members(part),
            slot_map.covers(part),
            keys=[group.keys[span] for group, span in zip(ticket.groups, spans, strict=True)],
            counts=[group.counts[part].tolist() for group in ticket.groups],
            values=[array[span] for array, span in zip(values, spans, strict=False)],
        )
        pieces.append(piece)
    return pieces


def split(piece: Piece, slot_map: SlotMap) -> list[Piece]:
    """Cut a piece by another map: the piece itself where one PS owns all its slots, else new ones.

    Keys keep their order within a table; ``positions`` say where rows belong among those of the piece the ticket began with.
    """
    parts = np.flatnonzero(np.bincount(slot_map.owners[piece.slots], minlength=slot_map.parts)).tolist()
    if len(parts) == 1:
        piece.ps, piece.version = slot_map.names[parts[0]], slot_map.version
        return [piece]
    sources, counts = _sources(piece, slot_map)
    found = []
    for part in parts:
        mine = [source[part] for source in sources]
        of_part = piece.slots & slot_map.members(part)
        before = piece.positions
        found.append(
            Piece(
                piece.ticket,
                piece.part,
                slot_map.names[part],
                slot_map.version,
                of_part,
                slot_sets.pack(of_part),
                keys=[keys[at] for keys, at in zip(piece.keys, mine, strict=True)],
                counts=[group[part].tolist() for group in counts],
                values=[values[at] for values, at in zip(piece.values, mine, strict=False)],
                positions=mine if before is None else [earlier[at] for earlier, at in zip(before, mine, strict=True)],
                detoured=True,
                first_sent_at=piece.first_sent_at,
            )
        )
    if (
        not piece.ticket.covering
    ):  # there is nothing to ask where there are no keys; but something must say that all is done
        found = [one for one in found if any(len(keys) for keys in one.keys)] or found[:1]
    return found


def _sources(piece: Piece, slot_map: SlotMap) -> tuple[list[list[NDArray[np.int64]]], list[NDArray[np.int64]]]:
    """Return by group the positions in ``piece.keys`` of each part's keys, table after table; and counts [parts, tables]."""
    sources, counts = [], []
    for keys, of_tables, group in zip(piece.keys, piece.counts, piece.ticket.groups, strict=True):
        order, by_part = order_by_owner(
            keys, np.array(of_tables, np.int64), group.salts, slot_map.owners, slot_map.parts
        )
        source = np.empty(len(keys), np.int64)
        source[order] = np.arange(len(keys))
        sources.append(np.split(source, np.cumsum(by_part.sum(axis=1))[:-1]))
        counts.append(by_part)
    return sources, counts
