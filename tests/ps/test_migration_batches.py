"""Moves in batches: each batch with its own rounds, freeze and commit; nothing is lost between them, and a fault costs one of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from dlrover_lite.core import slot_sets
from dlrover_lite.core.failpoints import Died, armed
from dlrover_lite.protocol.ps_messages import Moved
from dlrover_lite.ps.journal.applied_minibatches import ALL_SLOTS, mask_of
from dlrover_lite.ps.migration import batches, convergence
from dlrover_lite.ps.migration import migration as moving
from dlrover_lite.ps.migration.batches import cut_batches, in_order
from dlrover_lite.ps.server.service import PsService
from dlrover_lite.ps.tables.table import TableGroup
from dlrover_lite.tables.layout import slots_of
from tests.ps.rig import SGD, Rig, rows_of, within

KEYS = 300
DENSE = {"dense parameters": dict.fromkeys(range(3), 1.0), "dense buffers": {0: 0.5}}


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few dozen rows each, and two listings at least."""
    monkeypatch.setattr(moving, "CHUNK_BYTES", 300)
    monkeypatch.setattr(convergence, "FEW_BYTES", 100)
    monkeypatch.setattr(batches, "BATCH_BYTES", 3000)
    monkeypatch.setattr(batches, "LEAST_LISTED_ROWS", 250)
    monkeypatch.setattr(batches, "LISTED_SHARE", 1 << 30)
    monkeypatch.setattr(batches, "SCAN_ROWS", 64)


@pytest.fixture
def rig() -> Iterator[Rig]:
    found = Rig(2, SGD)
    try:
        found.configure_all()
        yield found
    finally:
        found.close()


def filled(rig: Rig, keys: int = KEYS) -> None:
    grads = {table: dict.fromkeys(range(keys), 1.0) for table in ("a", "b", "c")}
    rig.push_everywhere(0, 0, grads | DENSE)


def until_ready(rig: Rig, move: int) -> None:
    for _ in range(5000):
        if move in rig.ready:
            return
        for i in range(len(rig.services)):
            rig.turn(i)
            rig.hear(i)
    raise AssertionError("no batch gets ready")


def everything(rig: Rig) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for i in range(len(rig.services)):
        of_one = rows_of(rig.engine(i))
        assert not found.keys() & of_one.keys()
        found |= of_one
    return found


def test_batches_are_committed_one_by_one_bit_for_bit(rig: Rig) -> None:
    filled(rig)
    before = rows_of(rig.engine(0))
    move = rig.move(0, 1)
    committed = []
    while move in rig.moves:
        until_ready(rig, move)
        committed.append(rig.ready[move])
        rig.commit(move)
    assert len(committed) > 10 and sum(committed) == ALL_SLOTS
    rig.settle()
    assert rows_of(rig.engine(1)) == before
    assert sum(group.rows for group in rig.engine(0).groups) == 0


def test_updates_to_slots_waiting_for_their_batch_come_along(rig: Rig) -> None:
    """Rows are made in slots that were listed and aren't tracked yet, and row numbers are used again after a tidying amid the move."""
    filled(rig)
    rng = np.random.default_rng(5)
    move, k = rig.move(0, 1), 0
    expected = dict.fromkeys(range(KEYS), -1.0)
    freed = False
    while move in rig.moves:
        until_ready(rig, move)
        rig.commit(move)
        for i in (0, 1):
            rig.turn(i)
            rig.hear(i)
        k += 1
        new = {int(key): 1.0 for key in rng.choice(4 * KEYS, 25, replace=False)}
        rig.push_everywhere(0, k, {"a": new} | DENSE)
        for key, gradient in new.items():
            expected[key] = expected.get(key, 0.0) - gradient
        freed |= any(group.used < KEYS for group in rig.engine(0).groups[:1])
    rig.settle()
    assert k > 10 and freed, "rows were moved together amid the move"
    assert {key: rig.value("a", key) for key in expected} == expected
    assert len([name for name in everything(rig) if name[0] == "a"]) == len(expected)


def test_moved_rows_are_removed_in_one_pass(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "LEAST_LISTED_ROWS", 1 << 20)
    passes = []
    drop = TableGroup.drop

    def told(group: TableGroup, slots: slot_sets.SlotSet, start: int, *, scan_limit: int) -> int:
        if not start:
            passes.append(group.dim)
        return drop(group, slots, start, scan_limit=scan_limit)

    monkeypatch.setattr(TableGroup, "drop", told)
    filled(rig)
    move = rig.move(0, 1)
    while move in rig.moves:
        until_ready(rig, move)
        for _ in range(20):  # the source has nothing else to do until the master has spoken
            rig.turn(0)
        rig.commit(move)
    rig.settle()
    assert passes == [group.dim for group in rig.engine(0).groups]


def test_committed_batches_stay_when_the_rest_is_cancelled(rig: Rig) -> None:
    filled(rig)
    before = rows_of(rig.engine(0))
    move = rig.move(0, 1)
    for _ in range(3):
        until_ready(rig, move)
        rig.commit(move)
    until_ready(rig, move)  # one more is frozen, and never committed
    rig.cancel(move)
    rig.settle()
    assert everything(rig) == before
    owned = rig.engine(1).owned
    assert 0 < owned.bit_count() < slot_sets.SLOTS and rig.engine(0).owned == ALL_SLOTS & ~owned
    assert rig.engine(0).frozen == 0
    assert rows_of(rig.engine(1)).keys() == {
        name for name in before if within(name[0], np.array([name[1]], np.uint64), owned).all()
    }
    assert sum(group.rows for group in rig.engine(1).groups) == len(rows_of(rig.engine(1))), "nothing else is kept"
    (line,) = (line for line in rig.said if "cancelled" in line)
    assert line == f"move {move} from ps-0 was cancelled, {owned.bit_count():,} slots have come and stay"


def test_one_batch_is_frozen_at_a_time_while_the_master_is_away(rig: Rig) -> None:
    """Training isn't held up for more of it than was going to be."""
    filled(rig)
    move = rig.move(0, 1)
    until_ready(rig, move)
    frozen = rig.engine(0).frozen
    assert frozen == rig.ready[move] != ALL_SLOTS
    for _ in range(300):
        rig.turn(0)
        rig.turn(1)
    copier = rig.services[1].copier
    assert copier is not None and copier.rows, "the next batch is copied all the same"
    assert rig.engine(0).frozen == frozen


def test_pushes_to_other_batches_go_on_while_one_is_frozen(rig: Rig) -> None:
    filled(rig)
    move = rig.move(0, 1)
    until_ready(rig, move)
    free = ALL_SLOTS & ~rig.engine(0).frozen
    assert rig.push(0, 0, 1, free, {"a": dict.fromkeys(range(KEYS), 1.0)})
    assert rig.push(0, 0, 2, ALL_SLOTS, {"a": {1: 1.0}}) is None
    rig.commit(move)
    rig.settle()


@pytest.mark.parametrize("coldest", [False, True])
def test_hottest_slots_move_first_or_coldest_off_a_server_being_emptied(coldest: bool) -> None:
    """On a clock of which each reading takes a millisecond: a pause of the machine would count as time in which nothing was asked for."""
    readings = itertools.count()
    rig = Rig(2, SGD, engine_clock=lambda: next(readings) / 1000)
    try:
        rig.configure_all()
        filled(rig)
        rig.engine(0).loads.window(rig.engine(0).groups)
        hot = 17
        for k in range(1, 40):
            rig.push_everywhere(0, k, {"a": {hot: 1.0}})
        rig.engine(0).loads.window(rig.engine(0).groups)
        rig.coldest_first = coldest
        move, rounds = rig.move(0, 1), 0
        slot = int(slots_of("a", np.array([hot], np.uint64))[0])
        while rig.engine(0).owned >> slot & 1:
            until_ready(rig, move)
            rig.commit(move)
            rig.hear(0)
            rounds += 1
        assert rounds > 10 if coldest else rounds == 1
        rig.settle()
    finally:
        rig.close()


def test_batches_are_cut_by_bytes_with_a_large_slot_alone() -> None:
    size, rows = np.zeros(slot_sets.SLOTS), np.zeros(slot_sets.SLOTS, np.int64)
    size[[1, 2, 3, 4, 5]], rows[[1, 2, 3, 4, 5]] = [40, 50, 500, 30, 30], [4, 5, 50, 3, 3]
    busy = np.zeros(slot_sets.SLOTS)
    busy[[1, 2, 3, 4, 5]] = [5, 4, 3, 2, 1]
    order = in_order(slot_sets.of([1, 2, 3, 4, 5]), busy, coldest_first=False)
    assert order.tolist() == [1, 2, 3, 4, 5]
    assert in_order(slot_sets.of([1, 2, 3]), busy, coldest_first=True).tolist() == [3, 2, 1]

    def cut(most_rows: int) -> list[list[int]]:
        return [one.tolist() for one in cut_batches(order, size, rows, most_bytes=100, most_rows=most_rows)]

    assert cut(1000) == [[1, 2], [3], [4, 5]]
    assert cut(59) == [[1, 2], [3]], "no more rows are listed than may be"
    assert cut(2) == [[1]], "but one slot at least"
    nothing = cut_batches(
        np.arange(100), np.zeros(slot_sets.SLOTS), np.zeros(slot_sets.SLOTS, np.int64), most_bytes=1, most_rows=1
    )
    assert [len(one) for one in nothing] == [100], "slots without rows go together"


def test_a_new_session_keeps_complete_batches_and_finishes_frozen_ones(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(rig)
    before = rows_of(rig.engine(0))
    move = rig.move(0, 1)
    until_ready(rig, move)
    complete = rig.ready[move]
    rig.commit(move)
    target = rig.services[1]
    for _ in range(4000):  # until the source has frozen the next batch and the target hasn't got all of it
        rig.turn(0)
        copier = target.copier
        assert copier is not None
        if rig.engine(0).frozen & ~complete and not copier.ready:
            break
        rig.turn(1)
        rig.hear(0)
        rig.hear(1)
    frozen = rig.engine(0).frozen
    assert frozen
    last_first = lambda members, _busy, coldest_first: np.flatnonzero(members)[::-1]  # noqa: E731
    monkeypatch.setattr(batches, "in_order", last_first)  # other slots would go first
    copier._anew(0.0)
    until_ready(rig, move)
    assert rig.ready[move] == frozen, "training waits for it: it goes first"
    rig.settle()
    assert rows_of(rig.engine(1)) == before


POINTS = [
    "source.begun",
    "source.frozen",
    "source.complete",
    "source.round",
    "target.begun",
    "target.written",
    "target.complete",
]


@pytest.mark.parametrize("point", POINTS)
def test_a_death_at_any_step_of_a_move_costs_one_batch(rig: Rig, point: str) -> None:
    """The master does as it would: the source's end calls the move off and its follower goes on with the rest; without its target the rest
    stays."""
    for number in (1, 2, 7):
        other = Rig(2, SGD)
        try:
            _dies(other, point, number)
        finally:
            other.close()


def _dies(rig: Rig, point: str, number: int) -> None:
    rig.configure_all()
    filled(rig, 120)
    before = rows_of(rig.engine(0))
    move = rig.move(0, 1)
    try:
        with armed(f"ps.{point}=raise:{number}"):
            for k in range(3000):
                for i in (0, 1):
                    rig.turn(i)
                    rig.hear(i)
                if move in rig.ready:
                    rig.commit(move)
                if move not in rig.moves:
                    return  # it isn't passed so often
                if k % 9 == 0 and not rig.engine(0).frozen:
                    rig.push_everywhere(0, 1 + k, {"b": {1: 0.0}})
    except Died:
        pass
    moved = rig.owned(1)
    rig.cancel(move)
    dead = 0 if point.startswith("source") else 1
    kept = rows_of(rig.engine(0), slot_sets.unpack((rig.owned(0)).to_bytes(512, "little")))
    engine = rig.engine(dead)
    if dead == 0:
        engine.track(0)
        engine.frozen = 0  # as one that follows begins
    service = rig.services[dead]
    service.close()
    rig.services[dead] = PsService(
        f"ps-{dead}", engine, rig.servers[dead], rig._connect, clock=lambda: rig.now, say=rig.said.append
    )
    if dead:
        rig.services[1]._discard(ALL_SLOTS & ~moved)
    rig.settle()
    assert rig.owned(1) == moved
    after = everything(rig)
    assert after.keys() == before.keys()
    assert rows_of(rig.engine(0)) == kept
    rig.move(0, 1)
    rig.settle()
    assert rows_of(rig.engine(1)).keys() == before.keys()


def test_pushes_are_slowed_where_rows_change_faster_than_copied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a clock that only turns move: a round of a whole batch takes longer than pushes may be held back for, and each push changes all of
    its rows."""
    monkeypatch.setattr(batches, "BATCH_BYTES", 1 << 20)
    monkeypatch.setattr(moving, "CHUNK_BYTES", 160)  # five rows a turn
    rig = Rig(2, SGD, virtual=True)
    try:
        rig.configure_all()
        keys = dict.fromkeys(range(300), 1.0)
        rig.push_everywhere(0, 0, {"a": keys})
        move, k, waits = rig.move(0, 1), 1, 0
        slowed, longest, frozen_since, commits, held_back = set(), 0.0, None, 0, 0
        while move in rig.moves:
            assert rig.now < 60
            rig.consumed = [(0, [(0, k)])]
            if not waits:
                waits = rig.send_push(0, 0, k, rig.owned(0), {"a": keys})
            for i in (0, 1):
                rig.turn(i)
                slowed.add(rig.hear(i).slowed)
            while (reply := rig.clients[0].receive(0)) is not None:
                waits = 0
                if not isinstance(reply.body, Moved):
                    assert not rig.owned(1) or rig.push(1, 0, k, rig.owned(1), {"a": keys})
                    k += 1
            if rig.engine(0).frozen & rig.owned(0):
                frozen_since = rig.now if frozen_since is None else frozen_since
                longest = max(longest, rig.now - frozen_since)
            held_back += bool(rig.services[0]._slowed)
            if move in rig.ready:
                rig.commit(move)
                commits += 1
                frozen_since = None
        assert commits > 4, "batches were halved"
        assert {0.25, 0.5} <= slowed <= {0.0, 0.25, 0.5, 0.75, 0.9}
        assert held_back and longest < 0.05
        rig.settle()
        rig.push_everywhere(0, k, {"a": keys})
        assert {rig.value("a", key) for key in keys} == {-float(k + 1)}
    finally:
        rig.close()


LOWER = mask_of(slot_sets.pack(np.arange(slot_sets.SLOTS) < 2048))


def test_slots_that_do_not_move_are_not_touched(rig: Rig) -> None:
    filled(rig)
    before = rows_of(rig.engine(0))
    rig.move(0, 1, LOWER)
    rig.settle()
    assert everything(rig) == before
    assert rig.engine(1).owned == LOWER


def test_a_new_session_keeps_complete_batches_and_waits_for_the_master(rig: Rig) -> None:
    filled(rig)
    before = rows_of(rig.engine(0))
    move = rig.move(0, 1)
    until_ready(rig, move)
    ready, copier = rig.ready[move], rig.services[1].copier
    assert copier is not None
    copier._anew(0.0)
    for _ in range(100):
        for i in (0, 1):
            rig.turn(i)
            rig.hear(i)
    assert rig.ready[move] == ready == rig.engine(0).frozen, "it is neither taken back nor copied again"
    rig.commit(move)
    rig.settle()
    assert rows_of(rig.engine(1)) == before
