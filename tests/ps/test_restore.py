"""Parameter servers that take what they own from a cut."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from dlrover_lite.checkpoint.manifest import Consumed
from dlrover_lite.checkpoint.store import CheckpointStore
from dlrover_lite.core import slot_sets
from dlrover_lite.core.errors import CheckpointDamaged, UsageError
from dlrover_lite.core.failpoints import Died, armed
from dlrover_lite.protocol.messages import RestoreOrder, TrainingSettings
from dlrover_lite.protocol.ps_messages import Shared
from dlrover_lite.ps.journal.applied_minibatches import ALL_SLOTS, mask_of
from dlrover_lite.ps.memory.state_memory import PrivateMemory
from dlrover_lite.ps.migration import migration as moving
from dlrover_lite.ps.migration import migration_target
from dlrover_lite.ps.migration.chunk_memory import ChunkMemory, NotShared
from dlrover_lite.ps.server.engine import Engine
from dlrover_lite.ps.server.service import Unrestorable
from dlrover_lite.ps.snapshots import restore as restore_module
from dlrover_lite.ps.snapshots.restore import Restoring
from dlrover_lite.recipe.schema import Optimizer
from tests.ps.engine_checkpoints import write_checkpoint
from tests.ps.models import start, step
from tests.ps.rig import Rig, configuration, rows_of

ADAM = Optimizer(use="adam", learning_rate=0.5)
PATIENCE_SECONDS = 100.0
"""With the thread that reads."""
LOW = mask_of(slot_sets.pack(np.arange(slot_sets.SLOTS) < 2048))
QUARTER = mask_of(slot_sets.pack(np.arange(slot_sets.SLOTS) < 1024))


def owners(servers: int) -> np.ndarray:
    return np.arange(slot_sets.SLOTS) * servers // slot_sets.SLOTS


def gradients(k: int, keys: int = 60) -> dict[str, dict[int, float]]:
    chosen = np.random.default_rng(k).choice(200, keys, replace=False).tolist()
    return {"a": dict.fromkeys(chosen, 0.5), "b": dict.fromkeys(chosen, 0.25), "c": {7: 1.0}}


@pytest.fixture
def rigs() -> Iterator[Callable[..., Rig]]:
    made: list[Rig] = []

    def make(servers: int, *, fresh: bool = True, optimizer: Optimizer = ADAM) -> Rig:
        made.append(Rig(servers, optimizer, owners=owners(servers)))
        if fresh:
            made[-1].configure_all(1.0)
        return made[-1]

    yield make
    for rig in made:
        rig.close()


def train(rig: Rig, pushes: range) -> None:
    for k in pushes:
        rig.push_everywhere(0, k, gradients(k))


def everything(rig: Rig) -> dict[Any, Any]:
    return {name: row for i in range(len(rig.services)) for name, row in rows_of(rig.engine(i)).items()}


def engines(rig: Rig) -> list[Engine]:
    return [rig.engine(i) for i in range(len(rig.services))]


def restore(
    rig: Rig, store: CheckpointStore, cut: int, *, minibatches: bool = True, training: TrainingSettings | None = None
) -> None:
    rig.restore = RestoreOrder(store.url, cut, generation=1, applied_minibatches=minibatches, training=training)
    rig.version += 1
    for i in range(len(rig.services)):
        rig.hear(i)
    end = time.monotonic() + PATIENCE_SECONDS
    while not all(rig.hear(i).restored == 1 for i in range(len(rig.services))):
        assert time.monotonic() < end, "it isn't restored"
        for i in range(len(rig.services)):
            rig.turn(i)


@pytest.mark.parametrize(
    ("before", "after", "url"), [(1, 3, "{}"), (3, 1, "{}"), (2, 2, "{}"), (2, 3, "memory://bucket{}")]
)
def test_a_cut_is_restored_onto_another_number_of_servers(
    rigs: Callable[..., Rig], tmp_path: Path, before: int, after: int, url: str
) -> None:
    store = CheckpointStore(url.format(tmp_path))
    old = rigs(before)
    train(old, range(5))
    base = write_checkpoint(store, 1, engines(old))
    train(old, range(5, 9))
    middle = write_checkpoint(store, 2, engines(old), builds_on=base)
    train(old, range(9, 12))
    write_checkpoint(store, 3, engines(old), builds_on=middle)
    new = rigs(after, fresh=False)
    restore(new, store, 3)
    assert everything(new) == everything(old)
    # what follows is the same too: optimizers go on where they were
    train(old, range(12, 15))
    train(new, range(12, 15))
    assert everything(new) == everything(old)


OPTIMIZERS = {
    "sgd": Optimizer(use="sgd", learning_rate=0.25),
    "adagrad": Optimizer(use="adagrad", learning_rate=0.5),
    "faster adagrad": Optimizer(use="adagrad", learning_rate=0.75),
    "adam": ADAM,
    "slower adam": Optimizer(use="adam", learning_rate=0.125),
    "other adam": Optimizer(use="adam", learning_rate=0.5, beta1=0.5),
    "ftrl": Optimizer(use="ftrl", learning_rate=0.5, l1=0.01, l2=0.1),
    "slower ftrl": Optimizer(use="ftrl", learning_rate=0.125, l1=0.01, l2=0.1),
}
SAME_STATE = ("sgd", "sgd"), ("adagrad", "faster adagrad"), ("adam", "slower adam"), ("ftrl", "ftrl")


@pytest.mark.parametrize("now", OPTIMIZERS)
@pytest.mark.parametrize("then", ["sgd", "adagrad", "adam", "ftrl"])
def test_restored_values_are_exact_under_any_new_optimizer(
    rigs: Callable[..., Rig], tmp_path: Path, then: str, now: str
) -> None:
    """And state where it fits: what doesn't is as if these values had just been put there."""
    store, before, after = CheckpointStore(str(tmp_path)), OPTIMIZERS[then], OPTIMIZERS[now]
    old = rigs(2, optimizer=before)
    train(old, range(5))
    base = write_checkpoint(store, 1, engines(old))
    train(old, range(5, 9))
    write_checkpoint(store, 2, engines(old), builds_on=base)
    new = rigs(3, fresh=False, optimizer=after)
    restore(new, store, 2, minibatches=False, training=TrainingSettings(7, after, after, counted=True))
    new.configuration = msgspec.structs.replace(new.configuration, seed=7)
    new.configure_all(1.0)  # as workers do
    kept, found = everything(old), everything(new)
    assert {name: row[0] for name, row in found.items()} == {name: row[0] for name, row in kept.items()}
    if then == now or (then, now) in SAME_STATE:
        assert found == kept
        return
    assert {count for (table, _), (_, _, count) in found.items() if table != "dense buffers"} == {0}
    keys = [key for table, key in kept if table == "a"]
    new.push_everywhere(0, 100, {"a": dict.fromkeys(keys, 0.5)})
    trained = everything(new)
    for key in keys:
        row = start(after, np.frombuffer(kept["a", key][0], np.float32).astype(float))
        step(after, row, np.full(2, 0.5), 1.0)
        assert np.frombuffer(trained["a", key][0], np.float32) == pytest.approx(row["w"], rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("counted", [False, True])
def test_update_counts_begin_at_0_or_are_dropped_as_configured(
    rigs: Callable[..., Rig], tmp_path: Path, counted: bool
) -> None:
    store, use = CheckpointStore(str(tmp_path)), OPTIMIZERS["adagrad"]
    old, new = rigs(1, fresh=False, optimizer=use), rigs(2, fresh=False, optimizer=use)
    old.configuration = msgspec.structs.replace(old.configuration, counted=not counted)
    old.configure_all(1.0)
    train(old, range(5))
    write_checkpoint(store, 1, engines(old))
    new.configuration = msgspec.structs.replace(new.configuration, counted=counted)
    restore(new, store, 1, training=TrainingSettings(1, use, use, counted=counted))
    new.configure_all(1.0)
    kept, found = everything(old), everything(new)
    assert {name: row[:2] for name, row in found.items()} == {name: row[:2] for name, row in kept.items()}
    assert {count for *_, count in found.values()} == {0}
    assert any(count for *_, count in kept.values()) is not counted
    train(new, range(5, 6))
    assert any(count for *_, count in everything(new).values()) is counted


@pytest.mark.parametrize(("way", "at_once"), [("memory", False), ("memory", True), ("wire", False)])
@pytest.mark.parametrize(("then", "now"), [("adam", "adagrad"), ("sgd", "ftrl"), ("ftrl", "sgd"), ("adagrad", "adam")])
def test_slots_move_exactly_after_a_change_of_optimizer(
    rigs: Callable[..., Rig],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    then: str,
    now: str,
    way: str,
    at_once: bool,
) -> None:
    """Rows have the values of the cut and the new optimizer's state wherever they are, and are trained meanwhile as where nothing moves,
    bit for bit; and so has a cut of them."""

    def not_here(_offer: Shared) -> ChunkMemory:
        raise NotShared("it is on another machine")

    monkeypatch.setattr(moving, "CHUNK_BYTES", 600)
    if way == "wire":
        monkeypatch.setattr(migration_target, "open_memory", not_here)
    store, after = CheckpointStore(str(tmp_path)), OPTIMIZERS[now]
    old = rigs(2, optimizer=OPTIMIZERS[then])
    train(old, range(9))
    write_checkpoint(store, 1, engines(old))
    stays, moves = (rigs(servers, fresh=False, optimizer=after) for servers in (1, 2))
    for rig in (stays, moves):
        restore(rig, store, 1, minibatches=False, training=TrainingSettings(1, after, after, counted=True))
        rig.configure_all(1.0)
    assert everything(moves) == everything(stays)
    names = iter(range(100, 200))

    def train_both() -> None:
        k = next(names)
        for rig in (stays, moves):
            rig.push_everywhere(1, k, gradients(k))

    for source, slots in (
        (0, QUARTER),
        (1, ALL_SLOTS),
        (0, LOW),
    ):  # rows that nobody has trained yet, and later those that were
        moves.move(source, 1 - source, slots, at_once=at_once)
        for _ in range(0 if at_once else 3):  # where they are frozen at once, pushes wait
            for i in range(2):
                moves.turn(i)
                moves.hear(i)
            train_both()
        moves.settle()
        assert everything(moves) == everything(stays)
        for _ in range(2):
            train_both()
        assert everything(moves) == everything(stays)
        assert all(rows_of(moves.engine(i)) for i in range(2) if moves.owned(i))
    again = CheckpointStore(str(tmp_path / "again"))
    write_checkpoint(again, 1, engines(moves))
    third = rigs(1, fresh=False, optimizer=after)
    restore(third, again, 1)
    assert everything(third) == everything(stays)


def test_restored_servers_apply_each_minibatch_once_in_each_slot(rigs: Callable[..., Rig], tmp_path: Path) -> None:
    """The ledger was noted before 2 to 4 were consumed, and the two snapshots began at different pushes."""
    store = CheckpointStore(str(tmp_path))
    old = rigs(2)
    train(old, range(4))
    old.push(1, 0, 4, old.owned(1), gradients(4))
    known = [Consumed(0, [(0, [(0, 2)])]), Consumed(0, [(0, [(0, 4)])])]
    names = [(0, k) for k in range(5)]
    write_checkpoint(store, 1, engines(old), ledger=Consumed(0, [(0, [(0, 2)])]), known=known, names=names)
    old.push(0, 0, 4, old.owned(0), gradients(4))
    new = rigs(3, fresh=False)
    restore(new, store, 1)
    for k in range(5):  # all that the ledger doesn't know, and what it does
        for i in range(3):
            new.push(i, 0, k, new.owned(i), gradients(k))
    assert everything(new) == everything(old)


def test_minibatches_count_once_if_an_epoch_ended_before_a_snapshot(rigs: Callable[..., Rig], tmp_path: Path) -> None:
    store = CheckpointStore(str(tmp_path))
    old = rigs(1)
    train(old, range(4))
    old.push_everywhere(1, 0, gradients(9))
    ledger, known = Consumed(0, [(0, [(0, 2)])]), [Consumed(1, [(1, [(0, 1)])])]
    write_checkpoint(store, 1, engines(old), ledger=ledger, known=known, facts={"minibatches": 4})
    new = rigs(2, fresh=False)
    restore(new, store, 1)
    for epoch, k, of in [(0, 2, 2), (0, 3, 3), (1, 0, 9)]:
        for i in range(2):
            new.push(i, epoch, k, new.owned(i), gradients(of))
    assert everything(new) == everything(old)


def test_restoring_only_parameters_keeps_no_applied_minibatches(rigs: Callable[..., Rig], tmp_path: Path) -> None:
    store = CheckpointStore(str(tmp_path))
    old = rigs(1)
    train(old, range(3))
    write_checkpoint(store, 1, engines(old), ledger=Consumed(0, [(0, [(0, 2)])]), names=[(0, 2)])
    new = rigs(1, fresh=False)
    restore(new, store, 1, minibatches=False)
    assert everything(new) == everything(old)
    train(old, range(5, 6))
    new.push_everywhere(0, 2, gradients(5))
    assert everything(new) == everything(old)


def test_no_request_is_answered_before_the_restore_is_complete(rigs: Callable[..., Rig], tmp_path: Path) -> None:
    store = CheckpointStore(str(tmp_path))
    old = rigs(1)
    train(old, range(2))
    write_checkpoint(store, 1, engines(old))
    new = rigs(1, fresh=False)
    new.restore = RestoreOrder(str(tmp_path / "later"), 1, generation=1)
    new.version += 1
    new.hear(0)
    assert new.pull(0, "a", [1]) is None
    assert new.push(0, 0, 5, new.owned(0), gradients(5)) is False
    assert new.hear(0).restored == 0
    while new.services[0].restoring is not None:  # there is no such place yet; it is looked for again
        new.turn(0)
    assert new.hear(0).restored == 0
    tmp_path.rename(tmp_path.parent / "moved")
    tmp_path.mkdir()
    (tmp_path.parent / "moved").rename(tmp_path / "later")
    new.now += 10
    restore(new, CheckpointStore(str(tmp_path / "later")), 1)
    assert everything(new) == everything(old)


def test_progress_of_a_restore_is_reported(
    rigs: Callable[..., Rig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the beginning to all there is, also after the end, until the order is gone; of increments every row counts once more."""
    step = Restoring.step

    def one_block(self: Restoring, _seconds: float) -> bool:
        """As if a block took as long as there is between two reports."""
        clock = iter([0.0, 0.0, 1.0])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(restore_module, "time", SimpleNamespace(perf_counter=lambda: next(clock, 1.0)))
            return step(self, 0.5)

    monkeypatch.setattr(Restoring, "step", one_block)
    store = CheckpointStore(str(tmp_path))
    old = rigs(1)
    train(old, range(5))
    base = write_checkpoint(store, 1, engines(old))
    train(old, range(5, 9))
    cut = write_checkpoint(store, 2, engines(old), builds_on=base)
    size = sum(
        rows * shape.record.bytes
        for one in (base, cut)
        for rows, shape in zip(one.parts[0].rows, one.groups, strict=True)
    )
    new = rigs(1, fresh=False)
    assert new.hear(0).restoring is None
    new.restore = RestoreOrder(store.url, 2, generation=3)
    new.version += 1
    new.hear(0)
    reports = [new.hear(0)]
    until = time.monotonic() + PATIENCE_SECONDS
    while not reports[-1].restored:
        assert time.monotonic() < until
        new.turn(0)
        reports.append(new.hear(0))
    told = [report.restoring for report in reports if report.restoring is not None]
    rows = base.rows + cut.rows
    assert {(one.generation, one.total_rows, one.total_bytes) for one in told} == {(3, rows, size)}
    amounts = [(one.rows, one.bytes) for one in told]
    assert amounts == sorted(amounts) and amounts[-1] == (rows, size)
    assert any(0 < done < rows for done, _ in amounts)
    assert all(one.seconds >= 0 for one in told)
    end = new.hear(0).restoring
    assert end is not None and end == new.hear(0).restoring, "the time it took stays what it was"
    new.restore = None
    new.version += 1
    new.hear(0)
    assert new.hear(0).restoring is None


def test_servers_that_share_a_cut_report_shares_of_it(rigs: Callable[..., Rig], tmp_path: Path) -> None:
    store = CheckpointStore(str(tmp_path))
    old = rigs(2)
    train(old, range(5))
    cut = write_checkpoint(store, 1, engines(old))
    new = rigs(3, fresh=False)
    restore(new, store, 1)
    told = [new.hear(i).restoring for i in range(3)]
    assert all(one is not None and one.rows == one.total_rows > 0 for one in told)
    assert sum(one.rows for one in told if one is not None) == cut.rows


def test_only_a_few_blocks_are_read_ahead(
    rigs: Callable[..., Rig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside the rows that are put away, memory is for those."""
    monkeypatch.setattr("dlrover_lite.ps.snapshots.restore.BLOCKS_AHEAD", 3)
    store = CheckpointStore(str(tmp_path))
    old = rigs(1)
    train(old, range(12))
    write_checkpoint(store, 1, engines(old))
    read: list[Any] = []
    ahead: list[int] = []
    rows = CheckpointStore.rows

    def counted(self: CheckpointStore, *rest: Any) -> Iterator[Any]:
        for block in rows(self, *rest):
            read.append(block)
            yield block

    monkeypatch.setattr(CheckpointStore, "rows", counted)
    put_away = Restoring._put_away

    def noted(self: Restoring, block: Any) -> None:
        ahead.append(len(read) - len(ahead))
        put_away(self, block)

    monkeypatch.setattr(Restoring, "_put_away", noted)
    with closing(Restoring(Engine(owned=ALL_SLOTS), RestoreOrder(store.url, 1, 1), ALL_SLOTS)) as restoring:
        run(restoring)
    assert len(ahead) > 8
    assert max(ahead) <= 3 + 2, "in the queue, the one to be handed over, the one that is put away"


def test_a_damaged_block_is_named(rigs: Callable[..., Rig], tmp_path: Path) -> None:
    store = CheckpointStore(str(tmp_path))
    old = rigs(1)
    train(old, range(4))
    write_checkpoint(store, 1, engines(old))
    (part,) = tmp_path.glob("*/*.part")
    data = bytearray(part.read_bytes())
    data[len(data) // 2] ^= 4
    part.write_bytes(data)
    new = rigs(1, fresh=False)
    with pytest.raises(Unrestorable, match=part.name) as raised:
        restore(new, store, 1)
    assert raised.value.because == "damaged"
    assert new.hear(0).restored == 0


def test_a_cut_with_other_tables_is_refused(rigs: Callable[..., Rig], tmp_path: Path) -> None:
    store = CheckpointStore(str(tmp_path))
    old = rigs(1)
    write_checkpoint(store, 1, engines(old))
    engine = Engine(owned=ALL_SLOTS)
    engine.configure(configuration())
    with closing(Restoring(engine, RestoreOrder(store.url, 1, 1), ALL_SLOTS)) as restoring, pytest.raises(UsageError):
        run(restoring)


def run(restoring: Restoring) -> None:
    while not restoring.step(1.0):
        pass


POINTS = [("ps.restore.begun", 1), *(("ps.restore.rows", n) for n in (1, 3, 6)), ("ps.restore.marked", 1)]


@pytest.mark.parametrize(("point", "number"), POINTS)
def test_a_follower_of_a_restoring_server_restores_anew(
    rigs: Callable[..., Rig], tmp_path: Path, point: str, number: int
) -> None:
    store = CheckpointStore(str(tmp_path))
    old = rigs(1)
    train(old, range(6))
    write_checkpoint(store, 1, engines(old), ledger=Consumed(0, [(0, [(0, 4)])]), names=[(0, 4), (0, 5)])
    memory = PrivateMemory()
    order = RestoreOrder(store.url, 1, generation=1)
    first = Engine(memory=memory)
    first.own(LOW)
    with closing(Restoring(first, order, LOW)) as restoring, armed(f"{point}=raise:{number}"), pytest.raises(Died):
        run(restoring)
    assert first.state.restored == 0
    memory = memory.hand_over()
    second = Engine(memory=memory)
    second.own(LOW)
    with closing(Restoring(second, order, LOW)) as restoring:
        run(restoring)
    members = slot_sets.unpack(slot_sets.pack(np.arange(slot_sets.SLOTS) < 2048))
    assert rows_of(second) == rows_of(old.engine(0), members)
    assert [second.applied_minibatches.applied(0, k) for k in range(7)] == [ALL_SLOTS] * 4 + [LOW] * 2 + [0]
    memory = memory.hand_over()
    third = Engine(memory=memory)
    third.own(LOW)
    assert third.state.restored == 1
    assert rows_of(third) == rows_of(second)
    memory.close()


def test_a_missing_part_is_damage(rigs: Callable[..., Rig], tmp_path: Path) -> None:
    store = CheckpointStore(str(tmp_path))
    old = rigs(1)
    write_checkpoint(store, 1, engines(old))
    next(tmp_path.glob("*/*.part")).unlink()
    engine = Engine(owned=ALL_SLOTS)
    with (
        closing(Restoring(engine, RestoreOrder(store.url, 1, 1), ALL_SLOTS)) as restoring,
        pytest.raises(CheckpointDamaged, match="missing"),
    ):
        run(restoring)
