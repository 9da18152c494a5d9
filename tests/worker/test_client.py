"""The worker's view of its parameter servers: real engines, behind sockets that are slow, forgetful or talkative."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import zmq
from torch import nn

from dlrover_lite.data.base import Batch, Schema
from dlrover_lite.errors import DeadlineExceeded, JobError, ModelError
from dlrover_lite.models.fields import EmbeddingField
from dlrover_lite.ps.engine import Engine
from dlrover_lite.ps.hashing import SLOTS
from dlrover_lite.ps.main import answer
from dlrover_lite.recipe.schema import Optimizer
from dlrover_lite.wire.frames import Request
from dlrover_lite.wire.messages import Configure, DenseSpec, PsRequests, Topology
from dlrover_lite.wire.server import Server
from dlrover_lite.worker.client import PsClient
from dlrover_lite.worker.embedding import EmbeddingLayout
from dlrover_lite.worker.trainer import Trainer, minibatch_seed

SCHEMA = Schema(dense=("x",), categorical=("A", "B", "C"))
SGD = Optimizer(use="sgd", learning_rate=0.1)
_names = itertools.count()


class Model(nn.Module):
    """Two table groups, a shared table, and dense parameters over several blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding_fields = [EmbeddingField("A", 3, "t"), EmbeddingField("B", 3, "t"), EmbeddingField("C", 5)]
        self.layers = nn.Sequential(nn.Linear(12, 1000), nn.ReLU(), nn.Linear(1000, 1))

    def forward(self, dense: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
        return self.layers(torch.cat([dense, embedded], 1)).squeeze(1)


class Servers:
    """Parameter servers that answer when they are told to, in this thread."""

    def __init__(self, count: int, optimizer: Optimizer = SGD) -> None:
        self.context: zmq.Context[Any] = zmq.Context()
        self.engines = [Engine() for _ in range(count)]
        self.servers = [Server(f"inproc://ps-{next(_names)}", PsRequests, context=self.context) for _ in self.engines]
        owners = (np.arange(SLOTS) * count // SLOTS).astype(np.uint16).tobytes()
        self.topology = Topology(1, [(f"ps-{i}", s.endpoint) for i, s in enumerate(self.servers)], owners)
        self.now = 0.0
        self.optimizer = optimizer
        self.clients: list[PsClient] = []

    def received(self, part: int) -> list[Request]:
        return self.servers[part].receive(0.0)

    def answer_all(self) -> None:
        for part, server in enumerate(self.servers):
            for request in self.received(part):
                answer(self.engines[part], server, request)

    def client(self) -> PsClient:
        client = PsClient(self.topology, context=self.context, clock=lambda: self.now)
        self.clients.append(client)
        return client

    def trainer(self, module: nn.Module) -> Trainer:
        ps = self.client()
        trainer = Trainer(module, EmbeddingLayout(module.embedding_fields, SCHEMA), ps)  # type: ignore[arg-type]
        for part, length in enumerate(trainer.placement.lengths):
            spec = DenseSpec(length, trainer.placement.before(part, trainer.flat.averaged_from))
            message = Configure(1, trainer.layout.tables, spec, self.optimizer, self.optimizer)
            self.engines[part].configure(message, trainer.placement.take(part, trainer.flat.values))
        return trainer

    def finish(self, trainer: Trainer, ticket: Any) -> None:
        while ticket.missing:
            self.answer_all()
            trainer.ps.wait(0.01)

    def step(self, trainer: Trainer, batch: Batch, k: int, factor: float = 1.0) -> Any:
        prepared = trainer.prepare(batch)
        self.finish(trainer, prepared.ticket)
        _, ticket = trainer.train(prepared, epoch=0, k=k, seed=minibatch_seed(0, 0, k), factor=factor)
        self.finish(trainer, ticket)
        return ticket

    def close(self) -> None:
        for thing in (*self.clients, *self.servers):
            thing.close()
        self.context.destroy(linger=0)


@pytest.fixture(params=[1, 3])
def servers(request: pytest.FixtureRequest) -> Iterator[Servers]:
    servers = Servers(request.param)
    yield servers
    servers.close()


def batch(seed: int, samples: int = 32) -> Batch:
    random = np.random.default_rng(seed)
    labels = random.integers(0, 2, samples).astype(np.float32)
    ids = random.integers(0, 20, (3, samples), np.uint64)
    return Batch(labels, random.normal(size=(samples, 1)).astype(np.float32), ids, [])


def plain_steps(batches: list[Batch], start: Model, learning_rate: float) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """The same in torch alone: embeddings of 20 ids from their initial values, SGD on everything."""
    from dlrover_lite.ps.hashing import initial_rows

    ids = np.arange(20, dtype=np.uint64)
    tables = {
        name: torch.from_numpy(initial_rows(ids, table=name, seed=1, dim=dim, scale=0.05)).requires_grad_()
        for name, dim in (("t", 3), ("C", 5))
    }
    parameters = [*start.parameters(), *tables.values()]
    for one in batches:
        parts = [
            tables[f.table_name][torch.from_numpy(row.astype(np.int64))]
            for f, row in zip(start.embedding_fields, one.ids, strict=True)
        ]
        logits = start(torch.from_numpy(one.dense), torch.cat(parts, 1))
        loss = nn.functional.binary_cross_entropy_with_logits(logits, torch.from_numpy(one.labels))
        for parameter, grad in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            parameter.data -= learning_rate * grad
    return start, tables


def test_training_step_by_step_is_training_in_torch(servers: Servers) -> None:
    torch.manual_seed(0)
    module, plain = Model(), Model()
    plain.load_state_dict(module.state_dict())
    trainer = servers.trainer(module)
    batches = [batch(seed) for seed in range(12)]
    for k, one in enumerate(batches):
        assert servers.step(trainer, one, k).staleness == 0
    plain, tables = plain_steps(batches, plain, 0.1)
    expected = torch.cat([parameter.flatten() for parameter in plain.parameters()]).detach().numpy()

    ticket = trainer.ps.pull([])
    servers.finish(trainer, ticket)
    trainer.ps.dense(ticket, trainer.placement, trainer.flat.values)
    np.testing.assert_allclose(trainer.flat.values, expected, rtol=1e-3, atol=1e-6)
    every = np.tile(np.arange(20, dtype=np.uint64), (3, 1))
    prepared = trainer.prepare(Batch(np.zeros(20, np.float32), np.zeros((20, 1), np.float32), every, []))
    servers.finish(trainer, prepared.ticket)
    embedded = trainer.layout.embed(prepared.ticket.groups, trainer.ps.rows(prepared.ticket), 20)
    want = torch.cat([tables["t"], tables["t"], tables["C"]], 1).detach().numpy()
    np.testing.assert_allclose(embedded, want, rtol=1e-3, atol=1e-6)


def test_a_push_whose_answer_is_lost_is_repeated_and_applied_once(servers: Servers) -> None:
    trainer = servers.trainer(Model())
    prepared = trainer.prepare(batch(0))
    servers.finish(trainer, prepared.ticket)
    _, ticket = trainer.train(prepared, epoch=0, k=0, seed=0, factor=1.0)
    for part, engine in enumerate(servers.engines):  # each applies it, and the answer gets lost
        for request in servers.received(part):
            groups = [
                (
                    np.frombuffer(request.buffer(1 + 2 * g), np.uint64),
                    counts,
                    np.frombuffer(request.buffer(2 + 2 * g), np.float32).reshape(-1, engine.groups[g].dim),
                )
                for g, counts in enumerate(request.body.counts)
            ]
            assert engine.push(0, 0, 1.0, np.frombuffer(request.buffer(0), np.float32), groups).applied
    after = [engine.pull_dense() for engine in servers.engines]
    trainer.ps.wait(0.0)
    assert ticket.missing == len(servers.engines)
    servers.now += 3.0
    servers.finish(trainer, ticket)
    for engine, dense in zip(servers.engines, after, strict=True):
        assert engine.version == 1
        assert np.array_equal(engine.pull_dense(), dense)


def test_answers_that_come_twice_or_late_count_once(servers: Servers) -> None:
    trainer = servers.trainer(Model())
    prepared = trainer.prepare(batch(0))
    requests = [servers.received(part) for part in range(len(servers.engines))]
    servers.now += 3.0
    trainer.ps.wait(0.0)  # asks again
    for part, server in enumerate(servers.servers):
        again = servers.received(part)
        assert [request.sequence for request in again] == [request.sequence for request in requests[part]]
        for request in (*requests[part], *again, *again):
            answer(servers.engines[part], server, request)
    servers.finish(trainer, prepared.ticket)
    for _ in range(3):
        trainer.ps.wait(0.0)
    assert prepared.ticket.missing == 0
    servers.step(trainer, batch(1), 1)
    assert all(engine.version == 1 for engine in servers.engines)


def test_a_silent_server_is_named_in_the_end(servers: Servers) -> None:
    trainer = servers.trainer(Model())
    trainer.prepare(batch(0))
    with pytest.raises(DeadlineExceeded, match=r"ps-0 did not answer Pull within \d+ s"):
        for _ in range(1000):
            servers.now += 1.0
            trainer.ps.wait(0.0)


def test_a_server_that_refuses_is_named(servers: Servers) -> None:
    layout = EmbeddingLayout(Model().embedding_fields, SCHEMA)
    ps = servers.client()
    ps.pull(layout.keys(batch(0).ids, ps.owners, ps.parts))
    servers.answer_all()  # never configured
    with pytest.raises(JobError, match="ps-"):
        for _ in range(100):
            ps.wait(0.01)


def test_staleness_counts_the_pushes_of_others(servers: Servers) -> None:
    torch.manual_seed(0)
    one, other = servers.trainer(Model()), servers.trainer(Model())
    prepared = one.prepare(batch(0))
    servers.finish(one, prepared.ticket)
    for k in range(1, 4):
        assert servers.step(other, batch(k), k).staleness == 0
    ahead = one.prepare(batch(5))  # a pull before this worker's own push
    servers.finish(one, ahead.ticket)
    _, ticket = one.train(prepared, epoch=0, k=0, seed=0, factor=1.0)
    servers.finish(one, ticket)
    assert ticket.staleness == 3
    _, ticket = one.train(ahead, epoch=0, k=5, seed=0, factor=1.0)
    servers.finish(one, ticket)
    assert ticket.staleness == 0  # its own push in between is no staleness


def test_workers_that_built_different_models_are_told(servers: Servers) -> None:
    servers.trainer(Model())
    ps = servers.client()
    layout = EmbeddingLayout([EmbeddingField("A", 3)], SCHEMA)
    wrong = Configure(1, layout.tables, DenseSpec(0, 0), SGD, SGD)
    left = iter(range(200))

    def wait(timeout_seconds: float = 0.0) -> None:
        next(left)
        servers.answer_all()
        PsClient.wait(ps, 0.01)

    ps.wait = wait  # type: ignore[method-assign]
    with pytest.raises(JobError, match="other tables, parameters or optimizers"):
        ps.configure([(wrong, np.empty(0, np.float32))] * ps.parts)


def test_scans_give_every_row_in_pieces(servers: Servers) -> None:
    trainer = servers.trainer(Model())
    servers.step(trainer, batch(0, samples=200), 0)
    ps = trainer.ps
    plain_wait = ps.wait

    def wait(timeout_seconds: float = 0.0) -> None:
        servers.answer_all()
        plain_wait(0.01)

    ps.wait = wait  # type: ignore[method-assign]
    found = set()
    for part in range(ps.parts):
        start: int | None = 0
        while start is not None:
            rows, (ids, tables, values) = ps.scan(part, 0, start, 7)
            assert len(values) == 3 * len(ids)
            assert set(tables.tolist()) <= {0}
            found |= {(part, key) for key in ids.tolist()}
            start = rows.next_start
    assert sorted(key for _, key in found) == list(range(20))


def test_a_loss_that_is_not_finite_pushes_nothing(servers: Servers) -> None:
    module = Model()
    module.loss = lambda logits, labels: logits.sum() / 0.0  # type: ignore[assignment]
    trainer = servers.trainer(module)
    prepared = trainer.prepare(batch(0))
    servers.finish(trainer, prepared.ticket)
    with pytest.raises(ModelError, match="minibatch 7 of epoch 2"):
        trainer.train(prepared, epoch=2, k=7, seed=0, factor=1.0)
    assert all(servers.received(part) == [] for part in range(trainer.ps.parts))


def test_a_wrong_number_of_logits_is_the_models_error(servers: Servers) -> None:
    class Wrong(Model):
        def forward(self, dense: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
            return super().forward(dense, embedded)[1:]

    module = Wrong()
    module.loss = lambda logits, labels: logits.sum()  # type: ignore[assignment]
    trainer = servers.trainer(module)
    for work in (trainer.evaluate, lambda prepared: trainer.gradients(prepared, epoch=0, k=0, seed=0)):
        prepared = trainer.prepare(batch(0))
        servers.finish(trainer, prepared.ticket)
        with pytest.raises(ModelError, match=r"shape \(31,\) for 32 samples"):
            work(prepared)
    assert trainer.module.training


def test_evaluation_changes_nothing_and_leaves_training_mode_on(servers: Servers) -> None:
    trainer = servers.trainer(Model())
    prepared = trainer.prepare(batch(0))
    servers.finish(trainer, prepared.ticket)
    logits = trainer.evaluate(prepared)
    assert logits.shape == (32,)
    assert trainer.module.training
    assert all(engine.version == engine.rows == 0 for engine in servers.engines)


def test_dropout_is_the_same_for_the_same_minibatch() -> None:
    class Dropout(Model):
        def forward(self, dense: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
            return super().forward(dense, nn.functional.dropout(embedded, 0.5))

    servers = Servers(1)
    trainer = servers.trainer(Dropout())
    outcomes = []
    for k in (0, 1, 0):
        prepared = trainer.prepare(batch(0))
        servers.finish(trainer, prepared.ticket)
        logits, _ = trainer.train(prepared, epoch=0, k=k, seed=minibatch_seed(7, 0, k), factor=0.0)
        outcomes.append(logits)
    assert np.array_equal(outcomes[0], outcomes[2])
    assert not np.array_equal(outcomes[0], outcomes[1])
    assert minibatch_seed(7, 0, 1) != minibatch_seed(7, 1, 0) != minibatch_seed(8, 1, 0)
    servers.close()
