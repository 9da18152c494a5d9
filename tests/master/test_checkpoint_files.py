"""What a cut builds on, and what its servers are to write then."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from dlrover_lite.checkpoint.layout import GroupShape
from dlrover_lite.checkpoint.manifest import Consumed, Manifest, PartEntry
from dlrover_lite.core import slot_sets
from dlrover_lite.master.checkpoints.checkpoint_files import Basis, Owner, basis_for, part_order
from dlrover_lite.protocol.messages import SnapshotOrder

ALL = ~slot_sets.none()
LOWER = np.arange(slot_sets.SLOTS) < 1000


def manifest(**fields: Any) -> Manifest:
    part = PartEntry(
        file="ps-0.part", ps=0, slots=slot_sets.pack(ALL), rows=[5], stored_bytes=9, blocks=1, index_crc32=0, clocks=[7]
    )
    base = Manifest(
        job="job-1",
        cut=4,
        at=0.0,
        generation=2,
        map_version=1,
        consumed=Consumed(),
        configuration={},
        groups=[GroupShape(4, 4)],
        parts=[part],
    )
    return msgspec.structs.replace(base, **fields)


def builds(found: Basis | None, *, job: str = "job-1", generation: int = 2, full_every: int = 8, ps: int = 0) -> bool:
    return basis_for(found, job, generation, full_every, [Owner(ALL, [ps])]) is not None


def test_a_cut_builds_on_the_newest_of_the_same_servers() -> None:
    newest = Basis(manifest(), increments=2)
    assert builds(newest)
    assert not builds(None)


@pytest.mark.parametrize("generation", [0, 1, 3])
def test_a_cut_never_builds_on_one_of_another_generation(generation: int) -> None:
    """Its servers may have the same numbers, and their clocks have begun anew: what has changed since can't be told."""
    assert not builds(Basis(manifest(), increments=0), generation=generation)
    assert not builds(Basis(manifest(generation=generation), increments=0))


def test_a_cut_never_builds_on_one_of_another_job() -> None:
    assert not builds(Basis(manifest(job="job-2"), increments=0))


def test_a_base_is_written_every_so_many_cuts() -> None:
    assert builds(Basis(manifest(), increments=6)) and not builds(Basis(manifest(), increments=7))
    assert not builds(Basis(manifest(), increments=0), full_every=1)


def test_a_new_server_writes_all_of_its_rows() -> None:
    newest = Basis(manifest(), increments=0)
    assert not builds(newest, ps=3)
    assert (
        basis_for(newest, "job-1", 2, 8, [Owner(LOWER, [3]), Owner(~LOWER, [4, 0])]) is newest
    )  # 4 has taken over 0's memory
    order = SnapshotOrder(5, "job-1", "/checkpoints")
    new, old = (
        part_order(order, newest, owner, slot_sets.none()) for owner in (Owner(LOWER, [3]), Owner(~LOWER, [4, 0]))
    )
    assert (new.since, slot_sets.unpack(new.whole).tolist()) == ([], LOWER.tolist())
    assert (old.since, slot_sets.unpack(old.whole).any()) == ([7], False)
    assert part_order(order, None, Owner(ALL, [0]), slot_sets.none()) == order


def test_slots_that_came_since_the_last_cut_are_written_whole() -> None:
    order = SnapshotOrder(5, "job-1", "/checkpoints")
    found = part_order(order, Basis(manifest(), 0), Owner(ALL, [0]), LOWER)
    assert found.since == [7] and slot_sets.unpack(found.whole).tolist() == LOWER.tolist()
    fewer = msgspec.structs.replace(manifest().parts[0], slots=slot_sets.pack(~LOWER))
    found = part_order(order, Basis(manifest(parts=[fewer]), 0), Owner(ALL, [0]), slot_sets.none())
    assert slot_sets.unpack(found.whole).tolist() == LOWER.tolist()
