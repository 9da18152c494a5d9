"""Applied minibatches against a plain model: what has been applied where."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlrover_lite.core import slot_sets
from dlrover_lite.ps.journal.applied_minibatches import ALL_SLOTS, mask_of, to_bitmap
from tests.ps.models import nothing_applied

SOME = [0, 1, 7, 8, 2047, 4094, 4095]
masks = st.sets(st.sampled_from(SOME)).map(lambda slots: sum(1 << slot for slot in slots))
names = st.tuples(st.integers(0, 3), st.integers(0, 6))


def test_masks_are_the_sets_of_the_wire() -> None:
    for slots in ([], [0], [4095], SOME, range(4096)):
        bitmap = slot_sets.pack(slot_sets.of(slots))
        assert mask_of(bitmap) == sum(1 << slot for slot in slots)
        assert to_bitmap(mask_of(bitmap)) == bitmap
    assert mask_of(slot_sets.pack(~slot_sets.none())) == ALL_SLOTS
    with pytest.raises(ValueError, match="511 bytes"):
        mask_of(bytes(511))


class Model:
    """(epoch, k, slot) -> applied; consumed ones are applied everywhere."""

    def __init__(self) -> None:
        self.applied: set[tuple[int, int, int]] = set()
        self.consumed: set[tuple[int, int]] = set()
        self.below = 0

    def mask(self, epoch: int, k: int) -> int:
        if epoch < self.below or (epoch, k) in self.consumed:
            return ALL_SLOTS
        return sum(1 << slot for e, m, slot in self.applied if (e, m) == (epoch, k))


steps = st.one_of(
    st.tuples(st.just("add"), names, masks),
    st.tuples(st.just("consumed"), st.integers(0, 2), names),
    st.tuples(st.just("forget"), masks),
    st.tuples(st.just("move"), masks),
)


@settings(max_examples=100, deadline=None)
@given(st.lists(steps, max_size=40))
def test_minibatches_are_those_added_consumed_or_received(todo: list[tuple]) -> None:
    minibatches, model = nothing_applied(), Model()
    for step in todo:
        match step:
            case ("add", (epoch, k), mask):
                if model.mask(epoch, k) != ALL_SLOTS:  # a push for a consumed one is never applied
                    minibatches.add(epoch, k, mask)
                    model.applied |= {(epoch, k, slot) for slot in SOME if mask >> slot & 1}
            case ("consumed", below, (epoch, k)):
                minibatches.consumed(below, [(epoch, [(k, k + 1)])])
                model.below = max(model.below, below)
                model.consumed.add((epoch, k))
            case ("forget", mask):
                minibatches.forget(mask)
                model.applied = {(e, k, slot) for e, k, slot in model.applied if not mask >> slot & 1}
            case ("move", mask):
                target = nothing_applied()
                target.unpack(minibatches.parcel(mask))
                for epoch, k in {(e, k) for e in range(4) for k in range(7)}:
                    there = model.mask(epoch, k)
                    assert target.applied(epoch, k) == (there if there == ALL_SLOTS else there & mask)
        for epoch in range(4):
            for k in range(7):
                assert minibatches.applied(epoch, k) == model.mask(epoch, k)


def test_consumed_minibatches_take_no_memory() -> None:
    minibatches = nothing_applied()
    for k in range(1000):
        minibatches.add(0, k, 1)
        minibatches.add(1, k, 2)
    minibatches.consumed(0, [(0, [(0, 1000)])])
    assert len(minibatches._applied) == 1000
    minibatches.consumed(1, [(1, [(0, 998)])])
    assert len(minibatches._applied) == 2
    minibatches.consumed(2, [])
    assert len(minibatches._applied) == 0
    assert minibatches.applied(1, 999) == ALL_SLOTS


@pytest.mark.parametrize("parcel", [b"", b"\xc1", b"\x93\x00\x90\x91\x93\x00\x00\xc4\x01x"])
def test_senseless_minibatches_are_refused(parcel: bytes) -> None:
    minibatches = nothing_applied()
    with pytest.raises(ValueError, match=r"make no sense|a set of slots"):
        minibatches.unpack(parcel)
    assert len(minibatches._applied) == 0
