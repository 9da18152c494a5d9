"""Slots that move between parameter servers while they are pushed to: one owner each, nothing lost, nothing twice, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dlrover_lite.core import slot_sets
from dlrover_lite.protocol.messages import PsOrders
from dlrover_lite.protocol.ps_messages import (
    Configure,
    Copied,
    CopyBegin,
    Copying,
    CopyNext,
    DenseSpec,
    NotNow,
    Pull,
    Shared,
    TableSpec,
)
from dlrover_lite.ps.journal.applied_minibatches import ALL_SLOTS, mask_of
from dlrover_lite.ps.migration import cleanup, convergence, migration_target
from dlrover_lite.ps.migration import migration as moving
from dlrover_lite.ps.migration.chunk_memory import ChunkMemory, NotShared
from dlrover_lite.ps.migration.cleanup import Cleanup
from dlrover_lite.ps.server.engine import Engine
from dlrover_lite.recipe.schema import Optimizer
from dlrover_lite.tables.layout import BLOCK
from tests.ps.rig import SGD, Rig, rows_of

LOWER = mask_of(slot_sets.pack(np.arange(slot_sets.SLOTS) < 2048))
OPTIMIZERS = [SGD, Optimizer(use="adagrad", learning_rate=0.1), Optimizer(use="adam"), Optimizer(use="ftrl")]


@contextmanager
def rig_of(servers: int, optimizer: Optimizer = SGD) -> Iterator[Rig]:
    rig = Rig(servers, optimizer)
    try:
        yield rig
    finally:
        rig.close()


@pytest.fixture(params=["memory", "wire"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """On which rows come: these servers are of one process, and could always take the first."""

    def not_here(_offer: Shared) -> ChunkMemory:
        raise NotShared("it is on another machine")

    if request.param == "wire":
        monkeypatch.setattr(migration_target, "open_memory", not_here)
    return str(request.param)


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one dense block, or some rows: so that things happen between them."""
    monkeypatch.setattr(moving, "CHUNK_BYTES", 600)
    monkeypatch.setattr(convergence, "FEW_BYTES", 100)


def gradients(rng: np.random.Generator, keys: int = 40) -> dict[str, dict[int, float]]:
    """Small whole numbers: float sums are exact in any order."""
    found = {
        table: {int(key): float(rng.integers(1, 4)) for key in rng.choice(200, keys, replace=False)}
        for table in ("a", "b", "c")
    }
    found["dense parameters"] = dict.fromkeys(range(3), 1.0)
    found["dense buffers"] = {0: 0.5}
    return found


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda optimizer: optimizer.use)
def test_rows_arrive_bit_for_bit(optimizer: Optimizer) -> None:
    with rig_of(2, optimizer) as rig:
        rig.configure_all(0.25)
        rng = np.random.default_rng(1)
        for k in range(5):
            rig.push_everywhere(0, k, gradients(rng))
        before = rows_of(rig.engine(0))
        rig.move(0, 1, LOWER)
        rig.settle()
        source, target = rows_of(rig.engine(0)), rows_of(rig.engine(1))
        assert {**source, **target} == before
        assert not source.keys() & target.keys()
        assert target
        assert rig.engine(0).owned == ALL_SLOTS & ~LOWER
        assert rig.engine(1).owned == LOWER
        assert sum(group.rows for group in rig.engine(0).groups) == len(source), (
            "the source keeps nothing of what has moved"
        )


def test_a_move_says_whether_its_rows_come_by_memory_or_wire(way: str) -> None:
    with rig_of(2) as rig:
        rig.configure_all()
        rig.move(0, 1)
        rig.settle()
        how = "through memory" if way == "memory" else "over the wire: it is on another machine"
        assert [line for line in rig.said if " come " in line] == [f"move 1: rows of ps-0 come {how}"]


@pytest.mark.usefixtures("small_chunks")
def test_chunks_arent_overwritten_while_the_target_takes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    with rig_of(2) as rig:
        rig.configure_all()
        for k in range(3):
            rig.push_everywhere(0, k, gradients(np.random.default_rng(k), 150))
        before = rows_of(rig.engine(0))
        take = moving.Incoming.take

        def take_late(self: moving.Incoming, *arguments: Any) -> Any:
            """When the source has answered all that it was asked."""
            for _ in range(2 * migration_target.WINDOW):
                rig.servers[0].socket.poll(1)
                rig.turn(0)
            return take(self, *arguments)

        monkeypatch.setattr(moving.Incoming, "take", take_late)
        rig.move(0, 1)
        rig.settle()
        assert rows_of(rig.engine(1)) == before


@pytest.mark.usefixtures("small_chunks")
def test_an_answer_that_is_lost_makes_the_target_begin_anew() -> None:
    with rig_of(2) as rig:
        rig.configure_all()
        rig.push_everywhere(0, 0, gradients(np.random.default_rng(5), 150))
        before = rows_of(rig.engine(0))
        rig.move(0, 1)
        rig.hear(0)
        rig.hear(1)
        lost = False
        while not lost:
            rig.turn(0)
            rig.turn(1)
            target = rig.services[1].copier
            assert target is not None
            assert not target.complete
            if target.rows > 50:
                rig.turn(0)
                reply = target._client.receive(1.0)
                lost = reply is not None and isinstance(reply.body, Copied)
        rig.settle()
        assert rows_of(rig.engine(1)) == before


def test_a_new_server_gets_its_configuration_with_its_first_slots() -> None:
    with rig_of(1) as rig:
        rig.configure_all(2.0)
        new = rig.add_server()
        rig.move(0, new)
        rig.settle()
        assert rig.engine(new).configuration == rig.configuration
        assert rig.value("dense parameters", 2) == 2.0
        assert rig.pull(0, "a", [1]) is None
        rig.push_everywhere(0, 0, {"a": {5: 1.0}})
        assert rig.value("a", 5) == -1.0


def test_slots_may_move_before_and_during_the_first_configuration() -> None:
    with rig_of(2) as rig:
        rig.move(0, 1, LOWER)
        rig.settle()
        assert rig.engine(1).configuration is None
        rig.configure_all(1.0)
        move = rig.move(1, 0)
        rig.settle()
        assert move not in rig.moves
        assert [rig.value("dense parameters", block) for block in range(3)] == [1.0] * 3
        rig.move(0, 1, LOWER)
        rig.hear(0)
        rig.configure_all(9.0)  # another worker, later
        rig.settle()
        assert [rig.value("dense parameters", block) for block in range(3)] == [1.0] * 3


@pytest.mark.usefixtures("small_chunks")
def test_pushes_during_a_move_are_kept_and_repeats_change_nothing() -> None:
    with rig_of(2) as rig:
        rig.configure_all()
        names: list[tuple[int, dict[str, dict[int, float]]]] = []
        rng = np.random.default_rng(2)
        move = rig.move(0, 1, LOWER)
        rounds = 0
        while move not in rig.ready:
            rounds += 1
            assert rounds < 10_000
            rig.turn(0)
            rig.turn(1)
            if not rig.engine(0).frozen and rounds < 60:
                names.append((len(names), gradients(rng, 6)))
                rig.push(0, 0, names[-1][0], ALL_SLOTS, names[-1][1])
            rig.hear(1)
            if rounds % 7 == 0:
                rig.hear(0)
        assert len(names) > 10
        rig.commit(move)
        rig.settle()
        for k, grads in names:  # as a worker would that never saw the answers
            rig.push_everywhere(0, k, grads)
        for table in ("a", "dense parameters", "dense buffers"):
            expected: dict[int, float] = {}
            for _, grads in names:
                for key, gradient in grads[table].items():
                    expected[key] = expected.get(key, 0.0) - gradient
            assert {key: rig.value(table, key) for key in expected} == expected


def test_a_frozen_slot_waits_for_the_masters_word_and_pulls_go_on() -> None:
    with rig_of(2) as rig:
        rig.configure_all()
        rig.push_everywhere(0, 0, {"a": {1: 1.0}})
        move = rig.move(0, 1)
        while move not in rig.ready:
            rig.turn(0)
            rig.turn(1)
            rig.hear(0)
            rig.hear(1)
        assert rig.push(0, 0, 1, ALL_SLOTS, {"a": {1: 1.0}}) is None
        rig.now += 1e6  # no time thaws it
        rig.turn(0)
        assert rig.push(0, 0, 1, ALL_SLOTS, {"a": {1: 1.0}}) is None
        rows = rig.pull(0, "a", [1])
        assert rows is not None
        assert rows.tolist() == [[-1.0, -1.0]]
        rig.cancel(move)
        rig.hear(0)
        assert not rig.engine(0).frozen
        assert rig.clients[0].receive(5.0) is not None, "what was held back is answered"
        assert rig.value("a", 1) == -2.0
        rig.settle()
        assert not any(group.rows for group in rig.engine(1).groups), "the target keeps nothing"
        assert rig.pull(1, "a", [1]) is None


@pytest.mark.usefixtures("small_chunks")
def test_workers_are_answered_before_copying_one_chunk_a_turn() -> None:
    with rig_of(2) as rig:
        rig.configure_all()
        rig.push_everywhere(0, 0, {"a": dict.fromkeys(range(200), 1.0)})
        rig.move(0, 1)
        rig.hear(0)
        copying = rig.ask(0, CopyBegin(1))
        assert copying is not None
        client = rig.clients[0]
        copies = [client.send(CopyNext(copying.body.session, number)) for number in range(3)]
        pull = client.send(Pull([[1, 0]]), [np.array([5], np.uint64)])
        rig.turn(0)
        answers = []
        for turns in range(3):
            while (reply := client.receive(0)) is not None:
                answers.append(reply.sequence)
            assert answers == [pull, *copies[: turns + 1]]
            assert rig.services[0].work() == 0.0 or turns == 2, "there is more to do"
            rig.turn(0)


def test_first_round_of_a_copy_keeps_its_pace_beside_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moving, "CHUNK_BYTES", 10_000)
    monkeypatch.setattr(migration_target, "PACE_BYTES", 100_000)
    took = {}
    for trained in (False, True):
        with rig_of(2) as rig:
            rig.configure_all()
            keys = dict.fromkeys(range(3000), 1.0)
            rig.push_everywhere(0, 0, {"a": keys, "b": keys})
            move = rig.move(0, 1)
            rig.hear(0)
            rig.hear(1)
            began = rig.now
            while move not in rig.ready:
                if trained:
                    assert rig.pull(0, "a", [1]) is not None
                rig.turn(0)
                rig.turn(1)
                rig.hear(1)
                assert rig.now < 100
            took[trained] = rig.now - began
    assert took[False] < 1.0, "with nobody to disturb it goes as fast as it can"
    wire_bytes = 3000 * ((8 + 2 + 4 + 4 + 2 * 4) + (8 + 2 + 4 + 4 + 3 * 4))
    assert took[True] > wire_bytes / 100_000 - 2 * migration_target.BEHIND_SECONDS


def test_outdated_orders_dont_thaw_slots() -> None:
    with rig_of(2) as rig:
        rig.configure_all()
        old = rig.orders(0)
        move = rig.move(0, 1)
        while move not in rig.ready:
            for i in (0, 1):
                rig.turn(i)
                rig.hear(i)
        rig.services[0].follow(old)
        rig.services[0].follow(PsOrders(0))
        assert rig.engine(0).frozen == ALL_SLOTS


def test_requests_of_unknown_copy_sessions_are_answered_not_now() -> None:
    with rig_of(2) as rig:
        rig.configure_all()
        reply = rig.ask(0, CopyBegin(1))
        assert reply is not None
        assert reply.body == NotNow()
        rig.move(0, 1)
        rig.hear(0)
        copying = rig.ask(0, CopyBegin(1))
        assert copying is not None
        assert isinstance(copying.body, Copying)
        session = copying.body.session
        for request in (CopyNext(session + 1, 0), CopyNext(session, 1)):
            reply = rig.ask(0, request)
            assert reply is not None
            assert reply.body == NotNow(), "a chunk may be missing"
        again = rig.ask(0, CopyBegin(1))
        assert again is not None
        assert again.body.session != session


def test_a_target_that_starts_over_gets_all_rows() -> None:
    with rig_of(2) as rig:
        rig.configure_all()
        rng = np.random.default_rng(3)
        rig.push_everywhere(0, 0, gradients(rng))
        before = rows_of(rig.engine(0))
        rig.move(0, 1)
        for i in (0, 1):
            rig.hear(i)
        for _ in range(3):
            rig.turn(1)
            rig.turn(0)
        rig.ask(0, CopyBegin(1))  # somebody else's, or a repeated one: the session is a new one
        rig.settle()
        assert rows_of(rig.engine(1)) == before


def test_received_rows_stay_when_the_source_hears_of_the_commit_first() -> None:
    """While a request for more, sent ahead, is on its way to it."""
    with rig_of(2) as rig:
        rig.configure_all()
        grads = gradients(np.random.default_rng(4))
        rig.push_everywhere(0, 0, grads)
        before = rows_of(rig.engine(0))
        move = rig.move(0, 1)
        for _ in range(200):
            if move in rig.ready:
                break
            rig.turn(0)
            rig.turn(1)
            rig.hear(0)
            rig.hear(1)
        rig.commit(move)
        rig.hear(0)
        rig.turn(0)
        for _ in range(3):
            rig.turn(1)
        rig.hear(1)
        rig.settle()
        assert rows_of(rig.engine(1)) == before
        rig.push_everywhere(0, 0, grads)
        assert rows_of(rig.engine(1)) == before


def test_much_memory_is_given_back_a_piece_at_a_time_after_tidying(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleanup, "AT_ONCE", 1)
    now = [10.0]
    engine = Engine(owned=ALL_SLOTS, clock=lambda: now[0])
    adagrad = Optimizer(use="adagrad")
    engine.configure(Configure(0, [TableSpec("a", 64, 0.0)], DenseSpec(0, 0), adagrad, adagrad), ALL_SLOTS)
    ids = np.arange(200_000, dtype=np.uint64)
    engine.push(0, 0, 1.0, ALL_SLOTS, [(ids, [len(ids)], np.ones((len(ids), 64), np.float32))])
    sizes = [engine.bytes]
    engine.own(0)
    tidying = Cleanup(engine)
    tidying.remove(ALL_SLOTS)
    assert tidying.give_back() is None
    while not tidying.done:
        assert not tidying.gives_back
        tidying.step(1 << 12)
    sizes.append(engine.bytes)
    while (seconds := tidying.give_back()) is not None:
        assert tidying.gives_back
        sizes.append(engine.bytes)
        assert tidying.give_back() == seconds == pytest.approx(cleanup.GIVE_BACK_SECONDS)
        assert engine.bytes == sizes[-1]
        now[0] += 1.0
    sizes.append(engine.bytes)
    assert not tidying.gives_back
    assert len(sizes) >= 4
    assert all(before - after <= 34 << 20 for before, after in pairwise(sizes))
    assert sizes[-1] < 3 << 20


def test_memory_of_moved_rows_is_given_back() -> None:
    with rig_of(2) as rig:
        rig.configure_all()
        keys = dict.fromkeys(range(20000), 1.0)
        rig.push_everywhere(0, 0, {"a": keys, "b": keys})
        before = rig.engine(0).bytes
        rig.move(0, 1)
        rig.settle()
        assert rig.engine(0).bytes < before / 10
        assert rig.engine(0).rows == 0
        rig.move(1, 0)
        rig.settle()
        assert rig.engine(0).rows == 40_000
        assert rig.value("a", 7) == -1.0


# --- anything may happen ----------------------------------------------------------------------------------------------

actions = st.one_of(
    st.tuples(st.just("push"), st.integers(0, 8), st.integers(0, 2**32)),
    st.tuples(st.just("push"), st.integers(0, 8), st.integers(0, 2**32)),
    st.tuples(st.just("turns"), st.integers(0, 3), st.integers(1, 6)),
    st.tuples(st.just("turns"), st.integers(0, 3), st.integers(1, 6)),
    st.tuples(st.just("hear"), st.integers(0, 3)),
    st.tuples(st.just("move"), st.integers(0, 3), st.integers(0, 3), st.integers(1, 7)),
    st.tuples(
        st.just("commit"),
    ),
    st.tuples(
        st.just("cancel"),
    ),
    st.tuples(
        st.just("consumed"),
    ),
)


class World:
    """Three or four servers, and minibatches whose pieces are pushed by whatever map somebody may have."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.maps = [rig.owners.copy()]
        self.left: dict[int, int] = {}
        self.grads: dict[int, dict[str, dict[int, float]]] = {}

    def push(self, k: int, seed: int) -> None:
        """One piece of minibatch k, perhaps by an old map, perhaps of slots that were acknowledged before."""
        rng = np.random.default_rng(seed)
        if k not in self.grads:
            self.grads[k] = gradients(np.random.default_rng(k), 8)
            self.left[k] = ALL_SLOTS
        owners = self.maps[int(rng.integers(max(0, len(self.maps) - 3), len(self.maps)))]
        i = int(rng.integers(len(self.rig.services)))
        covers = mask_of(slot_sets.pack(owners == i))
        if rng.random() < 0.7:
            covers &= self.left[k]
        if covers and self.rig.push(i, 0, k, covers, self.grads[k]):
            self.left[k] &= ~covers

    def move(self, source: int, target: int, part: int) -> None:
        slots = mask_of(slot_sets.pack(np.arange(slot_sets.SLOTS) % 8 < part)) & self.rig.owned(source)
        busy = {i for a, b, _ in self.rig.moves.values() for i in (a, b)}
        tidy = all(self.rig.is_tidy(i) for i in (source, target))
        if source != target and slots and not busy & {source, target} and tidy:
            self.rig.move(source, target, slots, at_once=part % 2 == 0)

    def step(self, action: tuple[Any, ...]) -> None:
        rig = self.rig
        match action:
            case ("push", k, seed):
                self.push(k, seed)
            case ("turns", i, times):
                for _ in range(times):
                    rig.turn(i)
            case ("hear", i):
                rig.hear(i)
            case ("move", source, target, part):
                self.move(source, target, part)
            case ("commit",):
                for move in list(rig.ready):
                    rig.commit(move)
                    self.maps.append(rig.owners.copy())
            case ("cancel",):
                for move in list(rig.moves)[:1]:
                    rig.cancel(move)
            case ("consumed",):
                done = sorted(k for k, left in self.left.items() if not left)
                rig.consumed = [(0, [(k, k + 1) for k in done])]

    def finish(self) -> None:
        """All pieces that are left are pushed, then everything once more."""
        self.rig.settle()
        for k, grads in self.grads.items():
            self.rig.push_everywhere(0, k, grads)

    def check(self) -> None:
        owned = [self.rig.engine(i).owned for i in range(len(self.rig.services))]
        assert sum(owned) == ALL_SLOTS, "one owner for each slot"
        expected: dict[tuple[str, int], tuple[float, int]] = {}
        for grads in self.grads.values():
            for table, keys in grads.items():
                for key, gradient in keys.items():
                    total, count = expected.get((table, key), (0.0, 0))
                    expected[table, key] = total + gradient, count + 1
        found = {name: row for i in range(len(owned)) for name, row in rows_of(self.rig.engine(i)).items()}
        assert sum(len(rows_of(self.rig.engine(i))) for i in range(len(owned))) == len(found)
        for (table, key), (total, count) in expected.items():
            values, _, updates = found[table, key]
            assert updates == count, (table, key)
            if table not in ("b", "c"):
                assert np.frombuffer(values, np.float32)[0] == -total, (table, key)
        assert len(np.frombuffer(found["dense parameters", 0][0], np.float32)) == BLOCK


@pytest.mark.usefixtures("small_chunks")
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(actions, min_size=10, max_size=120))
def test_any_history_of_moves_counts_each_minibatch_once_in_each_slot(todo: list[tuple[Any, ...]]) -> None:
    with rig_of(4) as rig:
        rig.configure_all()
        world = World(rig)
        for action in todo:
            world.step(action)
        world.finish()
        world.check()
