"""A parameter server without its sockets, then over them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import zmq
from hypothesis import given, settings
from hypothesis import strategies as st

from dlrover_lite.core.errors import DlroverLiteError, UsageError
from dlrover_lite.protocol.messages import Ack, PsOrders
from dlrover_lite.protocol.ps_messages import (
    Configure,
    DenseSpec,
    Moved,
    PsReplies,
    PsRequests,
    Pull,
    Pulled,
    Push,
    Pushed,
    Rows,
    Scan,
    TableSpec,
)
from dlrover_lite.ps.journal.applied_minibatches import ALL_SLOTS, to_bitmap
from dlrover_lite.ps.server.engine import Engine, Frozen, NotOwned
from dlrover_lite.ps.server.service import PsService
from dlrover_lite.recipe.schema import Optimizer
from dlrover_lite.tables.layout import BLOCK, group_tables, groups_of, slots_of
from dlrover_lite.transport.client import Client
from dlrover_lite.transport.frames import NOT_UNDERSTOOD, Failure, Reply
from dlrover_lite.transport.server import Server
from tests.ps.rig import Rig

TABLES = [TableSpec("a", 2, 0.0), TableSpec("b", 3, 0.0), TableSpec("c", 2, 0.0)]
SGD = Optimizer(use="sgd", learning_rate=1.0)
ALL = to_bitmap(ALL_SLOTS)
NUMBERS = [np.arange(2, dtype=np.uint64), np.arange(1, dtype=np.uint64)]
"""Of the blocks: two of parameters, one of buffers."""
DENSE = [
    np.arange(2 * BLOCK, dtype=np.float32).reshape(2, BLOCK) % 100,
    np.arange(BLOCK, dtype=np.float32).reshape(1, BLOCK) % 10,
]


def configuration(**changes: Any) -> Configure:
    fields = {
        "seed": 1,
        "tables": TABLES,
        "dense": DenseSpec(2, 1),
        "optimizer": SGD,
        "embedding_optimizer": SGD,
        "counted": True,
    }
    return Configure(**{**fields, **changes})


def blocks(more: float = 0.0) -> list[tuple[np.ndarray, np.ndarray]]:
    return [(numbers, values + more) for numbers, values in zip(NUMBERS, DENSE, strict=True)]


def configured(**changes: Any) -> Engine:
    engine = Engine(owned=ALL_SLOTS)
    engine.configure(configuration(**changes), ALL_SLOTS, blocks())
    return engine


@pytest.fixture
def engine() -> Engine:
    return configured()


def u64(*keys: int) -> np.ndarray:
    return np.array(keys, np.uint64)


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def no_rows() -> list[Any]:
    return [(u64(), [0, 0], ones(0, 2)), (u64(), [0], ones(0, 3))]


def dense_ones() -> list[Any]:
    return [(NUMBERS[0], [2], ones(2, BLOCK)), (NUMBERS[1], [1], ones(1, BLOCK))]


def push(engine: Engine, epoch: int, k: int, keys: tuple[int, ...] = (7,), covers: int = ALL_SLOTS):
    of_a = (u64(*keys), [len(keys), 0], ones(len(keys), 2))
    return engine.push(epoch, k, 1.0, covers, [of_a, no_rows()[1], *dense_ones()])


def pull_dense(engine: Engine) -> list[np.ndarray]:
    none = [(u64(), [0, 0]), (u64(), [0])]
    return engine.pull([*none, (NUMBERS[0], [2]), (NUMBERS[1], [1])])[2:]


def pull_a(engine: Engine, *keys: int) -> list[list[float]]:
    return engine.pull([(u64(*keys), [len(keys), 0])])[0].tolist()


def state(engine: Engine) -> tuple[Any, ...]:
    scans = [group.scan(0, 1000)[0] for group in engine.groups]
    return engine.version, [[array.tolist() for array in scan] for scan in scans]


def test_tables_are_grouped_by_dim_in_order() -> None:
    assert group_tables(TABLES) == [[TABLES[0], TABLES[2]], [TABLES[1]]]
    assert group_tables([]) == []
    assert [group.dim for group in groups_of(configuration())] == [2, 3, BLOCK, BLOCK]
    assert [group.dim for group in groups_of(configuration(dense=DenseSpec(1, 0)))] == [2, 3, BLOCK]


def test_a_push_of_the_same_minibatch_is_applied_once(engine: Engine) -> None:
    assert push(engine, 0, 5) == (0, True)
    assert push(engine, 1, 5) == (1, True)
    after = state(engine)
    for epoch in (0, 1):
        version, applied = push(engine, epoch, 5, keys=(7, 8, 9))
        assert (version, applied) == (2, False)
    assert state(engine) == after
    assert pull_a(engine, 7, 8) == [[-2.0, -2.0], [0.0, 0.0]]


def test_a_push_is_applied_only_in_slots_that_lack_it(engine: Engine) -> None:
    keys = tuple(range(50))
    slots = slots_of("a", u64(*keys))
    first = sum(1 << int(slot) for slot in set(slots[:20].tolist()))
    before = [key for key, slot in zip(keys, slots, strict=True) if first >> int(slot) & 1]
    dense_before = [block.copy() for block in pull_dense(engine)]
    only_a = (u64(*before), [len(before), 0], ones(len(before), 2))
    nothing = [(u64(), [0], ones(0, BLOCK))] * 2
    assert engine.push(0, 0, 1.0, first, [only_a, no_rows()[1], *nothing]).applied
    assert push(engine, 0, 0, keys).applied
    assert pull_a(engine, *keys) == [[-1.0, -1.0]] * 50
    for was, now, numbers, table in zip(
        dense_before, pull_dense(engine), NUMBERS, ("dense parameters", "dense buffers"), strict=True
    ):
        unmarked = [not first >> int(slot) & 1 for slot in slots_of(table, numbers)]
        np.testing.assert_array_equal(now, was - np.array(unmarked, np.float32)[:, None])
    assert not push(engine, 0, 0, keys).applied


def test_requests_for_slots_not_owned_are_refused_and_change_nothing(engine: Engine) -> None:
    slot = int(slots_of("a", u64(7))[0])
    engine.own(ALL_SLOTS & ~(1 << slot))
    before = engine.version
    with pytest.raises(NotOwned):
        push(engine, 0, 0, (8,))
    with pytest.raises(NotOwned):
        pull_a(engine, 8, 7)
    with pytest.raises(NotOwned):
        engine.configure(configuration(), ALL_SLOTS, blocks())
    assert engine.version == before
    with pytest.raises(UsageError, match="outside the slots"):
        push(engine, 0, 0, (7,), covers=engine.owned)
    assert pull_a(engine, 8) == [[0.0, 0.0]]


def test_frozen_slots_refuse_pushes_and_answer_pulls(engine: Engine) -> None:
    engine.frozen = 1 << int(slots_of("a", u64(7))[0])
    with pytest.raises(Frozen):
        push(engine, 0, 0)
    with pytest.raises(Frozen):
        engine.configure(configuration(), ALL_SLOTS, blocks())
    assert pull_a(engine, 7) == [[0.0, 0.0]]
    engine.frozen = 0
    assert push(engine, 0, 0).applied


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 12)), max_size=60))
def test_any_order_of_pushes_counts_each_minibatch_once(names: list[tuple[int, int]]) -> None:
    engine = configured()
    applied = [push(engine, epoch, k).applied for epoch, k in names]
    distinct = len(set(names))
    assert sum(applied) == distinct == engine.version
    for was, now in zip(DENSE, pull_dense(engine), strict=True):
        np.testing.assert_array_equal(now, was - distinct)
    assert pull_a(engine, 7) == [[-float(distinct)] * 2]


def test_the_first_configuration_counts_and_later_ones_must_agree(engine: Engine) -> None:
    engine.configure(configuration(), ALL_SLOTS, blocks(100.0))  # another worker's initial values
    for was, now in zip(DENSE, pull_dense(engine), strict=True):
        np.testing.assert_array_equal(now, was)
    for changes in (
        {"seed": 2},
        {"tables": TABLES[:2]},
        {"tables": TABLES[::-1]},
        {"dense": DenseSpec(2, 0)},
        {"optimizer": Optimizer(use="sgd", learning_rate=2.0)},
        {"embedding_optimizer": Optimizer()},
    ):
        with pytest.raises(UsageError, match="other tables, parameters or optimizers"):
            engine.configure(configuration(**changes), ALL_SLOTS, blocks())
    assert push(engine, 0, 0).applied


@pytest.mark.parametrize(
    "changes",
    [
        {"dense": DenseSpec(1, 1)},
        {"dense": DenseSpec(2, 0)},
        {"dense": DenseSpec(2, -1)},
        {"tables": [TableSpec("a", 0, 0.0)]},
        {"tables": [TableSpec("a", -2, 0.0)]},
    ],
)
def test_senseless_configurations_are_refused_and_leave_nothing(changes: dict[str, Any]) -> None:
    engine = Engine(owned=ALL_SLOTS)
    with pytest.raises(UsageError):
        engine.configure(configuration(**changes), ALL_SLOTS, blocks())
    assert engine.configuration is None
    engine.configure(configuration(), ALL_SLOTS, blocks())
    assert push(engine, 0, 0).applied


def test_dense_blocks_without_values_are_an_error_not_zeros() -> None:
    engine = Engine(owned=ALL_SLOTS)
    engine.configure(configuration())
    with pytest.raises(DlroverLiteError, match="dense parameters"):
        pull_dense(engine)


def test_buffers_are_averaged_without_the_optimizer() -> None:
    engine = configured(optimizer=Optimizer(use="adam", learning_rate=0.5))
    buffers = np.where(np.arange(BLOCK) % 2, 0.25, -2).astype(np.float32).reshape(1, BLOCK)
    engine.push(0, 0, 0.1, ALL_SLOTS, [*no_rows(), dense_ones()[0], (NUMBERS[1], [1], buffers)])
    parameters, averaged = pull_dense(engine)
    np.testing.assert_allclose(parameters, DENSE[0] - 0.5 * 0.1, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(averaged, DENSE[1] - buffers)


@pytest.mark.parametrize("use", ["sgd", "adagrad", "adam"])
def test_dense_parameters_are_updated_as_in_torch(use: str) -> None:
    random, engine = np.random.default_rng(0), Engine(owned=ALL_SLOTS)
    start = random.normal(size=BLOCK).astype(np.float32)
    optimizer = Optimizer(use=use, learning_rate=0.1)  # type: ignore[arg-type]
    one = u64(0)
    spec = configuration(tables=[], dense=DenseSpec(1, 0), optimizer=optimizer)
    engine.configure(spec, ALL_SLOTS, [(one, start)])
    weight = torch.nn.Parameter(torch.from_numpy(start.copy()))
    theirs = {"sgd": torch.optim.SGD, "adagrad": torch.optim.Adagrad, "adam": torch.optim.Adam}[use]([weight], 0.1)
    for k in range(40):
        grad = random.normal(size=BLOCK).astype(np.float32)
        engine.push(0, k, 1.0, ALL_SLOTS, [(one, [1], grad.reshape(1, -1))])
        weight.grad = torch.from_numpy(grad)
        theirs.step()
    np.testing.assert_allclose(engine.pull([(one, [1])])[0][0], weight.detach().numpy(), rtol=1e-4, atol=1e-5)


def bad_pushes() -> dict[str, list[Any]]:
    good, none = (u64(7), [1, 0], ones(1, 2)), no_rows()[1]
    return {
        "a block too small": [good, none, (NUMBERS[0], [2], ones(2, BLOCK - 1)), dense_ones()[1]],
        "a block too few": [good, none, (NUMBERS[0], [2], ones(1, BLOCK)), dense_ones()[1]],
        "a group too few": [good, none, dense_ones()[0]],
        "a group too many": [good, none, *dense_ones(), none],
        "counts of the second group": [good, (u64(1), [2], ones(1, 3)), *dense_ones()],
        "counts that cancel out": [(u64(7), [2, -1], ones(1, 2)), none, *dense_ones()],
        "tables": [(u64(7), [1], ones(1, 2)), none, *dense_ones()],
        "gradients of the second group": [good, (u64(1), [1], ones(1, 2)), *dense_ones()],
    }


@pytest.mark.parametrize("what", bad_pushes())
def test_a_malformed_push_is_refused_and_changes_nothing(engine: Engine, what: str) -> None:
    before = state(engine)
    with pytest.raises(UsageError):
        engine.push(0, 0, 1.0, ALL_SLOTS, bad_pushes()[what])
    assert state(engine) == before
    assert push(engine, 0, 0).applied  # the name is free still


def test_a_push_before_the_configuration_is_refused() -> None:
    with pytest.raises(UsageError, match="before the first configuration"):
        Engine(owned=ALL_SLOTS).push(0, 0, 1.0, ALL_SLOTS, [])


def test_loads_tell_hot_slots_from_cold_slots() -> None:
    now = [0.0]
    engine = Engine(owned=ALL_SLOTS, clock=lambda: now[0])
    engine.configure(configuration(tables=TABLES[:1], dense=DenseSpec(0, 0)), ALL_SLOTS)
    hot = int(slots_of("a", u64(7))[0])
    for k in range(10):
        now[0] += 0.1
        engine.push(0, k, 1.0, ALL_SLOTS, [(u64(7, k + 100), [2], ones(2, 2))])
        engine.pull([(u64(7), [1])])
        engine.loads.requested()
        engine.loads.requested()
    rates = engine.loads.window(engine.groups)
    assert engine.loads.requests_per_second == pytest.approx(20.0)
    requests, rows, busy = rates[:, hot]
    assert requests == pytest.approx(20.0)
    assert rows == pytest.approx(20.0)
    assert rates[1].sum() == pytest.approx(30.0)
    assert 0 <= busy <= 1
    assert engine.slot_bytes()[hot] == engine.groups[0].row_bytes
    now[0] += 1.0
    assert engine.loads.window(engine.groups)[0, hot] == pytest.approx(10.0), "smoothed"
    assert engine.loads.requests_per_second == pytest.approx(10.0)


# --- over a socket ----------------------------------------------------------------------------------------------------


class Served:
    """A parameter server behind a socket; ``ask`` sends one request and has it answered, in this thread."""

    def __init__(self) -> None:
        self.context: zmq.Context[Any] = zmq.Context()
        self.engine = Engine()
        self.server = Server("inproc://ps", PsRequests, context=self.context)
        self.client = Client("inproc://ps", PsReplies, context=self.context)
        self.service = PsService("ps-0", self.engine, self.server, lambda endpoint, peer: self.client)
        self.service.follow(PsOrders(1, ALL))

    def ask(self, body: Any, *frames: Any) -> Reply:
        self.client.send(body, frames)
        for request in self.server.receive(20.0):  # none for one that is refused as it comes
            self.service.answer(request)
        reply = self.client.receive(20.0)
        assert reply is not None
        return reply

    def configure(self) -> Reply:
        return self.ask(configuration(), *configuring())


def configuring() -> list[Any]:
    return [ALL, NUMBERS[0], DENSE[0], NUMBERS[1], DENSE[1]]


def dense_frames() -> list[Any]:
    return [NUMBERS[0], ones(2, BLOCK), NUMBERS[1], ones(1, BLOCK)]


COUNTS = [[1, 1], [0], [2], [1]]
NO_ROWS = [[0, 0], [0], [2], [1]]


@pytest.fixture
def served() -> Iterator[Served]:
    served = Served()
    yield served
    served.client.close()
    served.server.close()
    served.context.destroy(linger=0)


def test_server_answers_a_training_session_over_a_socket(served: Served) -> None:
    assert served.configure().body == Ack()
    pushed = served.ask(Push(0, 3, 1.0, COUNTS), ALL, u64(7, 7), ones(2, 2), u64(), ones(0, 3), *dense_frames())
    assert pushed.body == Pushed(0, True, map_version=1)
    again = served.ask(Push(0, 3, 1.0, NO_ROWS), ALL, u64(), ones(0), u64(), ones(0), *dense_frames())
    assert again.body == Pushed(1, False, map_version=1)
    pulled = served.ask(Pull([[1, 1], [1], [2]]), u64(7, 8), u64(7), NUMBERS[0])
    assert pulled.body == Pulled(1, map_version=1)
    arrays = [np.frombuffer(pulled.buffer(i), np.float32).tolist() for i in range(3)]
    assert arrays == [[-1, -1, 0, 0], [0, 0, 0], (DENSE[0] - 1).reshape(-1).tolist()]
    unknown = served.ask(Pull([[3, 1], [1], [2]], unknown=True), u64(7, 8, 9, 7), u64(7), NUMBERS[0])
    assert unknown.body == Pulled(1, [[1, 1], [0]], map_version=1)
    assert len(unknown.frames) == 5
    assert [list(bytes(unknown.buffer(i))) for i in (3, 4)] == [[0, 1, 1, 0], [1]]
    assert len(served.ask(Pull([])).frames) == 0
    assert len(served.ask(Pull([[0, 0]]), u64()).frames) == 1
    first = served.ask(Scan(0, 0, 1))
    assert first.body == Rows(1, 2)
    last = served.ask(Scan(0, 1, 1, state=True))
    assert last.body == Rows(None, 2)
    assert np.frombuffer(last.buffer(3), np.uint32).tolist() == [1]
    tables = [np.frombuffer(reply.buffer(1), np.uint16).tolist() for reply in (first, last)]
    assert sorted(tables) == [[0], [1]]
    assert np.frombuffer(first.buffer(0), np.uint64).tolist() == [7]
    assert served.ask(Scan(1, 0, 10)).body == Rows(None, 0)


def test_a_scan_gives_optimizer_state_if_asked(served: Served) -> None:
    adagrad = Optimizer(use="adagrad", learning_rate=1.0)
    served.ask(configuration(embedding_optimizer=adagrad), *configuring())
    counts = [[2, 0], *COUNTS[1:]]
    served.ask(Push(0, 0, 1.0, counts), ALL, u64(7, 8), 3 * ones(2, 2), u64(), ones(0, 3), *dense_frames())
    found = served.ask(Scan(0, 0, 10, state=True))
    assert np.frombuffer(found.buffer(3), np.uint32).tolist() == [1, 1]
    assert np.frombuffer(found.buffer(4), np.float32).tolist() == [9.0] * 4
    assert len(served.ask(Scan(0, 0, 10)).frames) == 3


def test_slots_that_are_not_owned_are_answered_by_the_version_of_the_map(served: Served) -> None:
    served.configure()
    served.service.follow(PsOrders(5, to_bitmap(1)))
    assert served.ask(Push(0, 3, 1.0, NO_ROWS), ALL, u64(), ones(0), u64(), ones(0), *dense_frames()).body == Moved(5)
    assert served.ask(Pull([[1, 0]]), u64(7)).body == Moved(5)
    served.service.follow(PsOrders(4, ALL))
    assert served.ask(Pull([[1, 0]]), u64(7)).body == Moved(5), "older orders are ignored"


BAD_REQUESTS = {
    "a push without frames": (Push(0, 0, 1.0, COUNTS),),
    "a push of too few slots": (Push(0, 0, 1.0, NO_ROWS), ALL[1:], u64(), ones(0), u64(), ones(0), *dense_frames()),
    "a push with half a float": (Push(0, 0, 1.0, COUNTS), ALL, u64(7, 7), b"abc", u64(), ones(0), *dense_frames()),
    "a push with half an id": (Push(0, 0, 1.0, COUNTS), ALL, b"1234", ones(2), u64(), ones(0), *dense_frames()),
    "a push with too few gradients": (
        Push(0, 0, 1.0, COUNTS),
        ALL,
        u64(7, 7),
        ones(1),
        u64(),
        ones(0),
        *dense_frames(),
    ),
    "a push to no groups": (Push(0, 0, 1.0, []), ALL),
    "a push to five groups": (Push(0, 0, 1.0, [[1, 0], [0], [0], [0], [0]]), ALL, *[u64(7), ones(2)] * 5),
    "a push of huge counts": (
        Push(0, 0, 1.0, [[2**63, 0], *COUNTS[1:]]),
        ALL,
        u64(7),
        ones(2),
        u64(),
        ones(0),
        *dense_frames(),
    ),
    "a push of negative counts": (
        Push(0, 0, 1.0, [[2, -1], *COUNTS[1:]]),
        ALL,
        u64(7),
        ones(2),
        u64(),
        ones(0),
        *dense_frames(),
    ),
    "a pull without frames": (Pull([[1, 0]]),),
    "a pull of five groups": (Pull([[0, 0], [0], [0], [0], [0]]), *[u64()] * 5),
    "a pull of huge counts": (Pull([[2**63, 0]]), u64(7)),
    "a pull of counts that overflow": (Pull([[2**62, 2**62]]), u64(7)),
    "a pull of other tables": (Pull([[1]]), u64(7)),
    "a pull of other tables with unknown keys": (Pull([[1]], unknown=True), u64(7)),
    "a pull of five groups with unknown keys": (Pull([[0, 0], [0], [0], [0], [0]], unknown=True), *[u64()] * 5),
    "a scan of no group": (Scan(4, 0, 10),),
    "a scan from below": (Scan(0, -5, 10),),
    "a scan of less than nothing": (Scan(0, 0, -1),),
    "another configuration": (configuration(seed=9), *configuring()),
    "a configuration without values": (configuration(),),
}


@pytest.mark.parametrize("is_configured", [True, False])
@pytest.mark.parametrize("what", BAD_REQUESTS)
def test_bad_requests_are_answered_and_the_server_lives_on(served: Served, what: str, is_configured: bool) -> None:
    if is_configured:
        served.configure()
    if is_configured or "configuration" not in what:
        body, *frames = BAD_REQUESTS[what]
        reply = served.ask(body, *frames)
        assert isinstance(reply.body, Failure), reply.body
        assert reply.body.code in ("refused", "bad-request", NOT_UNDERSTOOD)
        assert reply.body.message
    served.configure()
    good = served.ask(
        Push(0, 0, 1.0, [[1, 0], *COUNTS[1:]]), ALL, u64(7), ones(1, 2), u64(), ones(0, 3), *dense_frames()
    )
    assert good.body == Pushed(0, True, map_version=1)
    rows = served.ask(Pull([[1, 0], [0]]), u64(7), u64())
    assert np.frombuffer(rows.buffer(0), np.float32).tolist() == [-1.0, -1.0]


def test_a_server_without_orders_and_memory_refuses_and_is_asked_again() -> None:
    """Workers may know a server that follows another, whose memory is lost, before it hears what it is to own."""
    rig = Rig(1, SGD)
    try:
        rig.services[0].orders = PsOrders(0)
        assert rig.push(0, 0, 0, rig.owned(0), {"a": {1: 1.0}}) is False
        assert rig.pull(0, "a", [1]) is None
    finally:
        rig.close()


@pytest.mark.parametrize("bytes_before", range(8))
def test_frames_may_lie_anywhere_in_memory(bytes_before: int) -> None:
    """What ZeroMQ receives begins wherever the transport put it."""

    def shifted(array: np.ndarray) -> np.ndarray:
        raw = np.zeros(array.nbytes + 8, np.uint8)
        raw[bytes_before : bytes_before + array.nbytes] = np.frombuffer(array.tobytes(), np.uint8)
        return np.frombuffer(raw.tobytes(), array.dtype, array.size, bytes_before)

    engine = Engine(owned=ALL_SLOTS)
    engine.configure(configuration(), ALL_SLOTS, [(shifted(n), shifted(v)) for n, v in blocks()])
    keys = np.arange(1000, dtype=np.uint64)
    grads = np.repeat(keys.astype(np.float32), 2)
    groups = [(shifted(keys), [600, 400], shifted(grads).reshape(-1, 2)), (u64(), [0], ones(0, 3)), *dense_ones()]
    assert engine.push(0, 0, 1.0, ALL_SLOTS, groups).applied
    assert np.array_equal(engine.pull([(shifted(keys), [600, 400])])[0], -grads.reshape(-1, 2))
