"""Requests cut into pieces by one map after another."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlrover_lite.core import slot_sets
from dlrover_lite.core.errors import JobError
from dlrover_lite.protocol.messages import Topology
from dlrover_lite.tables.layout import slots_of
from dlrover_lite.worker.parameters.dense import DensePlacement
from dlrover_lite.worker.parameters.requests import MinibatchKeys, PullTicket, PushTicket
from dlrover_lite.worker.parameters.routing import cut, split
from dlrover_lite.worker.parameters.slot_map import SlotMap
from tests.worker.scripted import DENSE, LAYOUT, SPECS


def test_a_senseless_slot_map_is_refused() -> None:
    for owners in (np.zeros(3, np.uint16), np.full(slot_sets.SLOTS, 2, np.uint16)):
        with pytest.raises(JobError, match="slot map 7 has"):
            SlotMap.of(Topology(7, [("a", "x"), ("b", "y")], owners.tobytes()))


def a_map(version: int, parts: int, seed: int) -> SlotMap:
    owners = np.random.default_rng(seed).integers(0, parts, slot_sets.SLOTS).astype(np.uint16)
    return SlotMap(version, tuple(f"ps-{i}" for i in range(parts)), ("",) * parts, owners)


@settings(max_examples=40, deadline=None)
@given(
    parts=st.lists(st.integers(1, 4), min_size=2, max_size=4),
    samples=st.integers(0, 30),
    seed=st.integers(0, 2**32),
    pushed=st.booleans(),
)
def test_pieces_hold_every_slot_and_key_exactly_once(parts: list[int], samples: int, seed: int, pushed: bool) -> None:
    maps = [a_map(version, n, seed + version) for version, n in enumerate(parts)]
    random = np.random.default_rng(seed)
    ids = random.integers(0, 50, (3, samples), np.uint64)
    keys = MinibatchKeys(maps[0], LAYOUT.keys(ids, maps[0].owners, maps[0].parts), DensePlacement(DENSE).keys(maps[0]))
    pull = PullTicket(keys)
    grads = [random.normal(size=(len(group.keys), 2)).astype(np.float32) for group in keys.groups]
    ticket = PushTicket(0, 0, 1.0, pull) if pushed else pull
    pieces = cut(ticket, maps[0], grads if pushed else ())
    for newer in maps[1:]:
        pieces = [one for piece in pieces for one in (split(piece, newer) if random.random() < 0.8 else [piece])]
    if pushed:
        assert (np.sum([piece.slots for piece in pieces], axis=0) == 1).all()
    for g, group in enumerate(keys.groups):
        seen = np.zeros(len(group.keys), int)
        for piece in pieces:
            assert piece.covers == slot_sets.pack(piece.slots)
            owners = maps[piece.version].owners
            assert {f"ps-{owner}" for owner in owners[piece.slots]} <= {piece.ps}
            runs = np.split(piece.keys[g], np.cumsum(piece.counts[g])[:-1])
            for table, run in zip(SPECS[g], runs, strict=True):
                assert piece.slots[slots_of(table.name, run)].all()
            first = group.bounds[piece.part]
            at = first + (np.arange(len(piece.keys[g])) if piece.positions is None else piece.positions[g])
            at = at.astype(int)
            seen[at] += 1
            assert np.array_equal(group.keys[at], piece.keys[g])
            assert not pushed or np.array_equal(grads[g][at], piece.values[g])
        assert (seen == 1).all()


def test_a_piece_whose_slots_stay_together_is_sent_unchanged() -> None:
    old = a_map(1, 2, 0)
    worker_keys = MinibatchKeys(old, LAYOUT.keys(np.ones((3, 4), np.uint64), old.owners, 2), [])
    pieces = cut(PullTicket(worker_keys), old)
    swapped = SlotMap(2, ("ps-9", "ps-0"), ("", ""), (1 - old.owners).astype(np.uint16))
    assert [split(piece, swapped) for piece in pieces] == [[pieces[0]], [pieces[1]]]
    assert [piece.ps for piece in pieces] == ["ps-0", "ps-9"]
    assert all(piece.positions is None for piece in pieces)
