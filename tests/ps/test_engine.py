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

from dlrover_lite.errors import UsageError
from dlrover_lite.ps.engine import Engine, group_tables
from dlrover_lite.ps.main import answer
from dlrover_lite.recipe.schema import Optimizer
from dlrover_lite.wire.client import Client
from dlrover_lite.wire.frames import Failure, Reply
from dlrover_lite.wire.messages import (
    Ack,
    Configure,
    DenseSpec,
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
from dlrover_lite.wire.server import Server

TABLES = [TableSpec("a", 2, 0.0), TableSpec("b", 3, 0.0), TableSpec("c", 2, 0.0)]
SGD = Optimizer(use="sgd", learning_rate=1.0)
DENSE = np.arange(6, dtype=np.float32)


def configuration(**changes: Any) -> Configure:
    fields = {
        "seed": 1,
        "tables": TABLES,
        "dense": DenseSpec(6, 4),
        "optimizer": SGD,
        "embedding_optimizer": SGD,
    }
    return Configure(**{**fields, **changes})


@pytest.fixture
def engine() -> Engine:
    engine = Engine()
    engine.configure(configuration(), DENSE)
    return engine


def u64(*keys: int) -> np.ndarray:
    return np.array(keys, np.uint64)


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def push(engine: Engine, epoch: int, k: int, keys: tuple[int, ...] = (7,)):
    of_a = (u64(*keys), [len(keys), 0], ones(len(keys), 2))
    return engine.push(epoch, k, 1.0, ones(6), [of_a, (u64(), [0], ones(0, 3))])


def state(engine: Engine) -> tuple[Any, ...]:
    scans = [group.scan(0, 1000) for group in engine.groups]
    return engine.version, engine.pull_dense().tolist(), [[array.tolist() for array in scan] for scan in scans]


def test_tables_are_grouped_by_dim_in_order() -> None:
    assert group_tables(TABLES) == [[TABLES[0], TABLES[2]], [TABLES[1]]]
    assert group_tables([]) == []


def test_a_push_is_applied_once_by_its_name(engine: Engine) -> None:
    assert push(engine, 0, 5) == (0, True)
    assert push(engine, 1, 5) == (1, True)
    after = state(engine)
    for epoch in (0, 1):
        version, applied = push(engine, epoch, 5, keys=(7, 8, 9))
        assert (version, applied) == (2, False)
    assert state(engine) == after
    assert engine.pull_rows(0, u64(7, 8), [2, 0]).tolist() == [[-2.0, -2.0], [0.0, 0.0]]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 12)), max_size=60))
def test_any_order_of_pushes_counts_each_name_once(names: list[tuple[int, int]]) -> None:
    engine = Engine()
    engine.configure(configuration(), np.zeros(6, np.float32))
    applied = [push(engine, epoch, k).applied for epoch, k in names]
    distinct = len(set(names))
    assert sum(applied) == distinct == engine.version
    assert engine.pull_dense().tolist() == [-float(distinct)] * 6
    assert engine.pull_rows(0, u64(7), [1, 0]).tolist() == [[-float(distinct)] * 2]


def test_the_first_configuration_counts_and_others_must_agree(engine: Engine) -> None:
    engine.configure(configuration(), DENSE + 100)  # another worker's initial values
    assert engine.pull_dense().tolist() == DENSE.tolist()
    for changes in (
        {"seed": 2},
        {"tables": TABLES[:2]},
        {"tables": TABLES[::-1]},
        {"dense": DenseSpec(6, 6)},
        {"optimizer": Optimizer(use="sgd", learning_rate=2.0)},
        {"embedding_optimizer": Optimizer()},
    ):
        with pytest.raises(UsageError, match="other tables, parameters or optimizers"):
            engine.configure(configuration(**changes), DENSE)
    assert push(engine, 0, 0).applied


@pytest.mark.parametrize(
    "changes",
    [
        {"dense": DenseSpec(7, 4)},
        {"dense": DenseSpec(6, 7)},
        {"dense": DenseSpec(6, -1)},
        {"tables": [TableSpec("a", 0, 0.0)]},
        {"tables": [TableSpec("a", -2, 0.0)]},
    ],
)
def test_configurations_that_make_no_sense_are_refused_and_leave_nothing(changes: dict[str, Any]) -> None:
    engine = Engine()
    with pytest.raises(UsageError):
        engine.configure(configuration(**changes), DENSE)
    assert engine.configuration is None
    engine.configure(configuration(), DENSE)
    assert push(engine, 0, 0).applied


def test_buffers_are_averaged_without_the_optimizer() -> None:
    engine = Engine()
    engine.configure(configuration(optimizer=Optimizer(use="adam", learning_rate=0.5)), DENSE)
    engine.push(
        0, 0, 0.1, np.array([1, 1, 1, 1, 0.25, -2], np.float32), [(u64(), [0, 0], ones(0, 2)), (u64(), [0], ones(0, 3))]
    )
    dense = engine.pull_dense()
    np.testing.assert_allclose(dense[:4], DENSE[:4] - 0.5 * 0.1, rtol=1e-5)
    assert dense[4:].tolist() == [4 - 0.25, 5 + 2]


@pytest.mark.parametrize("use", ["sgd", "adagrad", "adam"])
def test_dense_parameters_go_as_in_torch(use: str) -> None:
    random, engine = np.random.default_rng(0), Engine()
    start = random.normal(size=50).astype(np.float32)
    optimizer = Optimizer(use=use, learning_rate=0.1)  # type: ignore[arg-type]
    engine.configure(configuration(tables=[], dense=DenseSpec(50, 50), optimizer=optimizer), start)
    weight = torch.nn.Parameter(torch.from_numpy(start.copy()))
    theirs = {"sgd": torch.optim.SGD, "adagrad": torch.optim.Adagrad, "adam": torch.optim.Adam}[use]([weight], 0.1)
    for k in range(40):
        grad = random.normal(size=50).astype(np.float32)
        engine.push(0, k, 1.0, grad, [])
        weight.grad = torch.from_numpy(grad)
        theirs.step()
    np.testing.assert_allclose(engine.pull_dense(), weight.detach().numpy(), rtol=1e-4, atol=1e-5)


def bad_pushes() -> dict[str, tuple[np.ndarray, list[Any]]]:
    good, none = (u64(7), [1, 0], ones(1, 2)), (u64(), [0], ones(0, 3))
    return {
        "dense too short": (ones(5), [good, none]),
        "dense too long": (ones(7), [good, none]),
        "a group too few": (ones(6), [good]),
        "a group too many": (ones(6), [good, none, none]),
        "counts of the second group": (ones(6), [good, (u64(1), [2], ones(1, 3))]),
        "counts that cancel out": (ones(6), [(u64(7), [2, -1], ones(1, 2)), none]),
        "tables": (ones(6), [(u64(7), [1], ones(1, 2)), none]),
        "gradients of the second group": (ones(6), [good, (u64(1), [1], ones(1, 2))]),
    }


@pytest.mark.parametrize("what", bad_pushes())
def test_a_push_that_does_not_fit_changes_nothing(engine: Engine, what: str) -> None:
    before = state(engine)
    dense, groups = bad_pushes()[what]
    with pytest.raises(UsageError):
        engine.push(0, 0, 1.0, dense, groups)
    assert state(engine) == before
    assert push(engine, 0, 0).applied  # the name is free still


def test_nothing_can_be_pushed_before_the_configuration() -> None:
    with pytest.raises(UsageError, match="before the first configuration"):
        Engine().push(0, 0, 1.0, ones(0), [])


# --- over a socket ----------------------------------------------------------------------------------------------------


class Served:
    """An engine behind a socket; ``ask`` sends one request and has it answered, in this thread."""

    def __init__(self) -> None:
        self.context: zmq.Context[Any] = zmq.Context()
        self.engine = Engine()
        self.server = Server("inproc://ps", PsRequests, context=self.context)
        self.client = Client("inproc://ps", PsReplies, context=self.context)

    def ask(self, body: Any, *frames: Any) -> Reply:
        self.client.send(body, frames)
        (request,) = self.server.receive(20.0)
        answer(self.engine, self.server, request)
        reply = self.client.receive(20.0)
        assert reply is not None
        return reply


@pytest.fixture
def served() -> Iterator[Served]:
    served = Served()
    yield served
    served.client.close()
    served.server.close()
    served.context.destroy(linger=0)


def test_a_session_over_a_socket(served: Served) -> None:
    assert served.ask(configuration(), DENSE).body == Ack()
    pushed = served.ask(Push(0, 3, 1.0, [[1, 1], [0]]), ones(6), u64(7, 7), ones(2, 2), u64(), ones(0, 3))
    assert pushed.body == Pushed(0, True)
    assert served.ask(Push(0, 3, 1.0, [[0, 0], [0]]), ones(6), u64(), ones(0), u64(), ones(0)).body == Pushed(1, False)
    pulled = served.ask(Pull([[1, 1], [1]], True), u64(7, 8), u64(7))
    assert pulled.body == Pulled(1)
    arrays = [np.frombuffer(pulled.buffer(i), np.float32).tolist() for i in range(3)]
    assert arrays == [(DENSE - 1).tolist(), [-1, -1, 0, 0], [0, 0, 0]]
    assert len(served.ask(Pull([], True)).frames) == 1
    assert len(served.ask(Pull([[0, 0]], False), u64()).frames) == 1
    first = served.ask(Scan(0, 0, 1))
    assert first.body == Rows(1, 2)
    last = served.ask(Scan(0, 1, 1))
    assert last.body == Rows(None, 2)
    tables = [np.frombuffer(reply.buffer(1), np.uint16).tolist() for reply in (first, last)]
    assert sorted(tables) == [[0], [1]]
    assert np.frombuffer(first.buffer(0), np.uint64).tolist() == [7]
    assert served.ask(Scan(1, 0, 10)).body == Rows(None, 0)


BAD_REQUESTS = {
    "a push without frames": (Push(0, 0, 1.0, [[1, 0], [0]]),),
    "a push with half a float": (Push(0, 0, 1.0, [[1, 0], [0]]), b"abc", u64(7), ones(2), u64(), ones(0)),
    "a push with half an id": (Push(0, 0, 1.0, [[1, 0], [0]]), ones(6), b"1234", ones(2), u64(), ones(0)),
    "a push with too few gradients": (Push(0, 0, 1.0, [[1, 0], [0]]), ones(6), u64(7), ones(1), u64(), ones(0)),
    "a push to no groups": (Push(0, 0, 1.0, []), ones(6)),
    "a push to three groups": (Push(0, 0, 1.0, [[1, 0], [0], [0]]), ones(6), *[u64(7), ones(2)] * 3),
    "a push of huge counts": (Push(0, 0, 1.0, [[2**63, 0], [0]]), ones(6), u64(7), ones(2), u64(), ones(0)),
    "a push of negative counts": (Push(0, 0, 1.0, [[2, -1], [0]]), ones(6), u64(7), ones(2), u64(), ones(0)),
    "a pull without frames": (Pull([[1, 0]], False),),
    "a pull of three groups": (Pull([[0, 0], [0], [0]], False), u64(), u64(), u64()),
    "a pull of huge counts": (Pull([[2**63, 0]], False), u64(7)),
    "a pull of counts that overflow": (Pull([[2**62, 2**62]], False), u64(7)),
    "a pull of other tables": (Pull([[1]], False), u64(7)),
    "a scan of no group": (Scan(2, 0, 10),),
    "a scan from below": (Scan(0, -5, 10),),
    "a scan of less than nothing": (Scan(0, 0, -1),),
    "another configuration": (configuration(seed=9), DENSE),
    "a configuration without values": (configuration(),),
}


@pytest.mark.parametrize("configured", [True, False])
@pytest.mark.parametrize("what", BAD_REQUESTS)
def test_bad_requests_are_answered_and_the_server_lives_on(served: Served, what: str, configured: bool) -> None:
    if configured:
        served.ask(configuration(), DENSE)
    if configured or "configuration" not in what:
        body, *frames = BAD_REQUESTS[what]
        reply = served.ask(body, *frames)
        assert isinstance(reply.body, Failure), reply.body
        assert reply.body.code in ("refused", "bad-request")
        assert reply.body.message
    served.ask(configuration(), DENSE)
    good = served.ask(Push(0, 0, 1.0, [[1, 0], [0]]), ones(6), u64(7), ones(1, 2), u64(), ones(0, 3))
    assert good.body == Pushed(0, True)
    rows = served.ask(Pull([[1, 0], [0]], False), u64(7), u64())
    assert np.frombuffer(rows.buffer(0), np.float32).tolist() == [-1.0, -1.0]


@pytest.mark.parametrize("bytes_before", range(8))
def test_frames_may_lie_anywhere_in_memory(engine: Engine, bytes_before: int) -> None:
    """What ZeroMQ receives begins wherever the transport put it."""

    def shifted(array: np.ndarray) -> np.ndarray:
        raw = np.zeros(array.nbytes + 8, np.uint8)
        raw[bytes_before : bytes_before + array.nbytes] = np.frombuffer(array.tobytes(), np.uint8)
        return np.frombuffer(raw.tobytes(), array.dtype, array.size, bytes_before)

    keys = np.arange(1000, dtype=np.uint64)
    grads = np.repeat(keys.astype(np.float32), 2)
    groups = [(shifted(keys), [600, 400], shifted(grads).reshape(-1, 2)), (u64(), [0], ones(0, 3))]
    assert engine.push(0, 0, 1.0, shifted(ones(6)), groups).applied
    assert np.array_equal(engine.pull_rows(0, shifted(keys), [600, 400]), -grads.reshape(-1, 2))
