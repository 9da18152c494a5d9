"""A snapshot is what a server had at one moment, bit for bit, whatever is pushed to it while it is read."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from dlrover_lite.checkpoint.layout import BLOCK_BYTES
from dlrover_lite.checkpoint.manifest import AppliedAtSnapshot, PartEntry
from dlrover_lite.checkpoint.store import CheckpointStore
from dlrover_lite.core import slot_sets
from dlrover_lite.core.errors import JobError
from dlrover_lite.core.failpoints import Died, armed
from dlrover_lite.core.records import EPOCHS_MOST, TABLE_EPOCH
from dlrover_lite.ps.journal.applied_minibatches import Part, mask_of, to_bitmap
from dlrover_lite.ps.memory.state_memory import PrivateMemory
from dlrover_lite.ps.server.engine import Engine
from dlrover_lite.ps.snapshots import copy_on_write_log, snapshot_kernels, snapshot_reader
from dlrover_lite.ps.snapshots.snapshot import Snapshot
from dlrover_lite.ps.snapshots.snapshot_reader import Overflown
from dlrover_lite.ps.tables import table_kernels
from dlrover_lite.ps.tables.row_arrays import EPOCH
from dlrover_lite.tables.layout import BLOCK
from tests.ps.models import read
from tests.ps.snapshots import Nowhere, commit, epochs_now, part_of, read_checkpoint, reader_of, snapshot_of, state_of
from tests.ps.survival import (
    FOREIGN,
    OPTIMIZERS,
    OWNED,
    Push,
    Receive,
    Step,
    Tidy,
    check,
    configuration,
    configure,
    contents,
    do,
    open_engine,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="snapshots are taken on Linux")

MOST_PUSHES = 25
"""During one cut."""


class World:
    """An engine, pushes to it, and cuts of it."""

    def __init__(self, seed: int, use: str, directory: Path, *, keys: int, epoch: int = 1) -> None:
        self.random = np.random.default_rng(seed)
        self.keys = keys
        self.engine = open_engine(None)
        configure(self.engine, use)
        for group in self.engine.groups:
            group._book.numbers[EPOCH] = epoch
        self.pushes = 0
        self.store = CheckpointStore(str(directory))
        self.store.create()
        self.cuts: list[PartEntry] = []
        self.read: list[set[Any]] = []

    def push(self) -> None:
        do(self.engine, Push(self.pushes, int(self.random.integers(3))), self.keys)
        self.pushes += 1

    def _perhaps_push(self, part_of_pushes: float, most: int) -> None:
        if self.pushes < most and self.random.random() < part_of_pushes:
            self.push()

    def leave_holes(self) -> None:
        """Free row numbers among the others."""
        do(self.engine, Receive(int(self.random.integers(100))), self.keys)
        for group in self.engine.groups[:2]:
            group.drop(slot_sets.unpack(to_bitmap(FOREIGN)), 0, scan_limit=group.used)

    def cut(
        self,
        whole: slot_sets.SlotSet,
        *,
        base: bool,
        part_of_pushes: float,
        kernels: bool,
        block_bytes: int = BLOCK_BYTES,
    ) -> None:
        """Taken while pushes come between any two accesses to memory, and in their midst a late worker."""
        number, most = len(self.cuts) + 1, self.pushes + MOST_PUSHES
        since = [] if base else self.cuts[-1].clocks
        before, marks = state_of(self.engine), marks_of(self.engine)
        with (
            snapshot_of(self.engine, since, 1 << 30) as snapshot,
            reader_of(snapshot, whole, kernels=kernels) as reader,
        ):
            writer = self.store.begin(number)
            with (
                part_of(snapshot, writer, block_bytes=block_bytes) as part,
                interrupted(lambda: self._perhaps_push(part_of_pushes, most)),
            ):
                for _ in reader.steps(part):
                    if self.random.random() < 0.02:
                        configure(self.engine, use_of(self.engine))
                entry = part.finish()
            entry = snapshot.entry(msgspec.json.encode(entry).decode())
        assert entry.applied_minibatches == marks
        commit(self.store, self.engine, number, entry, None if base else number - 1)
        self.cuts.append(entry)
        assert read_checkpoint(self.store, number) == before
        changed = {key: row for key, row in before.items() if base or row.epoch > since[key[0]] or whole[row.slot]}
        assert sum(entry.rows) == len(changed), "as few as need be"


def use_of(engine: Engine) -> str:
    assert engine.configuration is not None
    return engine.configuration.optimizer.use


def marks_of(engine: Engine) -> AppliedAtSnapshot:
    """By what the engine says of each minibatch."""
    with snapshot_of(engine) as snapshot:
        marks = snapshot._applied_minibatches
    for one in marks.applied:
        assert mask_of(one.slots) == engine.applied_minibatches.applied(one.epoch, one.k) & OWNED
    return marks


class interrupted:  # noqa: N801 - a context
    """Something happens whenever the reader is about to touch what it shares with the server."""

    def __init__(self, happens: Callable[[], object]) -> None:
        self._happens = happens

    def __enter__(self) -> None:
        self._patch = pytest.MonkeyPatch()
        self._patch.setattr(snapshot_reader.RecordSource, "read", self._torn(snapshot_reader.RecordSource.read))
        for module in (snapshot_reader, copy_on_write_log):
            self._patch.setattr(module, "barrier", self._happens)

    def _torn(self, read: Callable[..., Any]) -> Callable[..., Any]:
        """Of what changes while it is copied, some words are from before, some from after."""
        random = np.random.default_rng(0)

        def torn(*arguments: Any) -> Any:
            self._happens()
            before = read(*arguments).copy()
            self._happens()
            found = read(*arguments)
            found[:] = np.where(random.random(found.shape) < 0.5, before, found)
            return found

        return torn

    def __exit__(self, *_: object) -> None:
        self._patch.undo()


@settings(max_examples=40, deadline=None, phases=[Phase.explicit, Phase.generate])  # a smaller seed isn't simpler
@given(
    seed=st.integers(0, 2**32),
    use=st.sampled_from(sorted(OPTIMIZERS)),
    keys=st.integers(3, 40),
    pieces=st.sampled_from([300, 1000, 4000]),
    part_of_pushes=st.sampled_from([0.0, 0.02, 0.1, 0.5]),
    epoch=st.sampled_from([1, EPOCHS_MOST - 10]),
    kernels=st.booleans(),
)
def test_a_cut_has_the_rows_of_its_beginning_despite_pushes(
    seed: int, use: str, keys: int, pieces: int, part_of_pushes: float, epoch: int, kernels: bool
) -> None:
    directory = Path(tempfile.mkdtemp())
    patch = pytest.MonkeyPatch()
    try:
        patch.setattr(snapshot_reader, "PIECE_BYTES", pieces)
        patch.setattr(copy_on_write_log, "SEGMENT_BYTES", pieces // 2)
        world = World(seed, use, directory, keys=keys, epoch=epoch)
        none, some = slot_sets.none(), world.random.random(slot_sets.SLOTS) < 0.2
        for number, whole in enumerate((none, none, some)):
            for _ in range(world.random.integers(4)):
                world.push()
            if world.random.random() < 0.5:
                world.leave_holes()
            world.cut(whole, base=number == 0, part_of_pushes=part_of_pushes, kernels=kernels, block_bytes=2 * pieces)
        check(world.engine)
    finally:
        patch.undo()
        shutil.rmtree(directory)


@pytest.mark.parametrize("kernels", [False, True])
@pytest.mark.parametrize("use", OPTIMIZERS)
def test_a_cut_has_the_rows_of_every_optimizer(use: str, kernels: bool, tmp_path: Path) -> None:
    world = World(5, use, tmp_path, keys=200)
    for _ in range(3):
        world.push()
    world.cut(slot_sets.none(), base=True, part_of_pushes=0.3, kernels=kernels)
    world.cut(slot_sets.none(), base=False, part_of_pushes=0.3, kernels=kernels)
    assert min(sum(entry.rows) for entry in world.cuts) > 200


def test_blocks_configured_during_a_snapshot_are_in_the_next(tmp_path: Path) -> None:
    world = World(6, "adagrad", tmp_path, keys=20)
    dense = [g for g, group in enumerate(world.engine.groups) if group.complete]
    for g in dense:  # they have come from elsewhere, and left a hole each
        group = world.engine.groups[g]
        group.drop(np.ones(slot_sets.SLOTS, np.bool_), 0, scan_limit=1)
    with snapshot_of(world.engine) as snapshot, reader_of(snapshot) as reader:
        before = state_of(world.engine)
        configure(world.engine, "adagrad")
        assert len(state_of(world.engine)) > len(before)
        rows = Nowhere(snapshot)
        for _ in reader.steps(rows):
            pass
        assert rows.count == len(before)
        epochs = [group.epoch for group in snapshot.groups]
    check(world.engine)
    with snapshot_of(world.engine, epochs) as snapshot, reader_of(snapshot) as reader:
        rows = Nowhere(snapshot)
        for _ in reader.steps(rows):
            pass
        assert rows.count == len(state_of(world.engine)) - len(before) > 0


# --- what it doesn't survive ------------------------------------------------------------------------------------------


def test_a_full_spill_is_reported(tmp_path: Path) -> None:
    world = World(7, "adam", tmp_path, keys=400)
    for _ in range(3):
        world.push()
    with snapshot_of(world.engine, spill_bytes=3000) as snapshot, reader_of(snapshot) as reader:
        steps = reader.steps(Nowhere(snapshot))
        world.push()
        assert snapshot.overflown
        expected = state_of(world.engine)
        world.push()
        assert len(expected) <= len(state_of(world.engine)), "training goes on"
        with pytest.raises(Overflown):
            list(steps)
    with snapshot_of(world.engine) as snapshot:
        assert not snapshot.overflown


def test_spill_has_room_for_all_dense_blocks(tmp_path: Path) -> None:
    world = World(8, "adagrad", tmp_path, keys=1)
    with snapshot_of(world.engine, spill_bytes=1) as snapshot:
        world.push()
        assert not snapshot.overflown
        assert sum(snapshot.spill._bytes()) > 2 * 4 * BLOCK


def test_a_row_missing_or_twice_in_the_spill_raises_an_error(tmp_path: Path) -> None:
    world = World(9, "sgd", tmp_path, keys=30)
    for _ in range(3):
        world.push()
    for harm in ("missing", "twice"):
        with snapshot_of(world.engine) as snapshot, reader_of(snapshot) as reader:
            for _ in range(3):
                world.push()
            words, entries = snapshot.spill.areas[0]
            assert words[copy_on_write_log.COUNT] >= 2
            cut = snapshot.groups[0]
            first, second = entries[cut.table_words :][: 2 * cut.entry_words].reshape(2, -1)
            if harm == "missing":
                second[:2] = (1 << 31) - 1  # a row that is none
            else:
                second[:] = first
            with pytest.raises(JobError, match="This is a bug of dlrover-lite"):
                list(reader.steps(Nowhere(snapshot)))


def test_rows_cannot_be_rearranged_during_a_snapshot(tmp_path: Path) -> None:
    world = World(10, "sgd", tmp_path, keys=30)
    world.push()
    group = world.engine.groups[0]
    some = read(group, np.arange(3, dtype=np.uint64))
    acts = [lambda: group.write(some), lambda: group.drop(slot_sets.none(), 0, scan_limit=9), lambda: group.compact(9)]
    with snapshot_of(world.engine):
        for act in acts:
            with pytest.raises(JobError, match="while a snapshot is taken"):
                act()
    for act in acts:
        act()


def test_changes_since_a_cut_of_other_groups_are_refused(tmp_path: Path) -> None:
    world = World(11, "sgd", tmp_path, keys=3)
    with pytest.raises(JobError, match="a checkpoint of 2 groups"):
        Snapshot(world.engine, [1, 2])
    assert epochs_now(world.engine) == [group.epoch for group in Snapshot(world.engine, [9] * 4).groups]


def test_more_snapshots_than_epochs_are_refused(tmp_path: Path) -> None:
    world = World(11, "sgd", tmp_path, keys=3, epoch=EPOCHS_MOST - 1)
    with snapshot_of(world.engine):
        world.push()
    with pytest.raises(JobError, match=r"1,048,575 checkpoints have been taken without a pause") as caught:
        Snapshot(world.engine)
    assert "--resume" in caught.value.hint
    world.push()


def test_an_update_is_compiled_once_for_with_and_without(tmp_path: Path) -> None:
    world = World(12, "sgd", tmp_path, keys=3)
    world.push()
    variants = len(table_kernels.update.signatures)
    with snapshot_of(world.engine):
        world.push()
    world.push()
    assert len(table_kernels.update.signatures) == variants


def test_snapshot_kernels_are_compiled_beforehand(tmp_path: Path) -> None:
    """Where it is needed, nothing is compiled."""
    kernels = (snapshot_kernels._scatter,)
    snapshot_kernels.compile_kernels()
    before = [len(kernel.signatures) for kernel in kernels]
    for use in ("sgd", "adam"):
        world = World(13, use, tmp_path / use, keys=30)
        world.push()
        for base in (True, False):
            world.push()
            world.cut(slot_sets.none(), base=base, part_of_pushes=0.2, kernels=True)
    assert [len(kernel.signatures) for kernel in kernels] == before


def test_a_row_of_an_unknown_table_is_damage(tmp_path: Path) -> None:
    for kernels in (False, True):
        world = World(14, "sgd", tmp_path / str(kernels), keys=30)
        world.push()
        with snapshot_of(world.engine) as snapshot, reader_of(snapshot, kernels=kernels) as reader:
            world.engine.groups[0]._store.records[TABLE_EPOCH] = 99 << 20
            with pytest.raises(JobError, match="is of table 99"):
                list(reader.steps(Nowhere(snapshot)))


def test_marks_know_interrupted_pushes() -> None:
    engine = open_engine(None)
    engine.configure(configuration("sgd"), OWNED)
    assert not engine.applied_minibatches.interrupted
    engine.applied_minibatches.add_part(Part(0, 1, to_bitmap(OWNED), 1))
    assert engine.applied_minibatches.interrupted
    engine.applied_minibatches.add(0, 1, OWNED)
    assert not engine.applied_minibatches.interrupted


# --- a server that dies amid one --------------------------------------------------------------------------------------

HISTORY: list[Step] = [Push(0), Receive(1), Push(1, 1), Tidy(), Push(2), Push(1), Push(3, 2)]


def _live(memory: PrivateMemory, done: list[Step]) -> Engine:
    """Takes over and does what is left of HISTORY, and the last thing that was done once more, with a snapshot for each push."""
    engine = open_engine(memory)
    configure(engine, "adagrad")
    for step in HISTORY[max(0, len(done) - 1) :]:
        with snapshot_of(engine) if isinstance(step, Push) else nullcontext():
            do(engine, step, 20)
        if step not in done:
            done.append(step)
    return engine


def _dies(failpoint: str, expected: dict[Any, Any]) -> bool:
    """Whether it did there; if so, in the end all is as if it hadn't."""
    done: list[Step] = []
    with PrivateMemory() as memory:
        try:
            with armed(failpoint):
                _live(memory, done)
        except Died:
            with memory.hand_over() as left:
                engine = _live(left, done)
                check(engine)
                assert contents(engine, range(5)) == expected, failpoint
                return True
    return False


@pytest.mark.parametrize(("failpoint", "stride"), [("ps.chunk.spilled", 2), ("ps.chunk.stamped", 3), ("ps.step", 9)])
def test_a_server_survives_a_death_during_a_snapshot(failpoint: str, stride: int) -> None:
    with PrivateMemory() as memory:
        expected = contents(_live(memory, []), range(5))
    number = 1
    while _dies(f"{failpoint}=raise:{number}", expected):
        number += stride
    assert number > 4 * stride
