"""The worker's view of its parameter servers: scripted ones that are slow, forgetful or talkative. What moves: test_moving."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from dlrover_lite.core.errors import DeadlineExceeded, JobError, ModelError
from dlrover_lite.data.base import Batch, Schema
from dlrover_lite.models.check import fields_of_model
from dlrover_lite.models.fields import EmbeddingField
from dlrover_lite.recipe.load import parse_recipe
from dlrover_lite.recipe.schema import Optimizer
from dlrover_lite.worker.parameters.dry_configuration import declare
from dlrover_lite.worker.parameters.embedding import EmbeddingLayout
from dlrover_lite.worker.parameters.requests import PushTicket
from dlrover_lite.worker.trainer import Prepared, Trainer, minibatch_seed
from tests.worker.scripted import ScriptedJob

SCHEMA = Schema(dense=("x",), categorical=("A", "B", "C"))
SGD = Optimizer(use="sgd", learning_rate=0.1)


class Model(nn.Module):
    """Two table groups, a shared table, and dense parameters over several blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding_fields = [EmbeddingField("A", 3, "t"), EmbeddingField("B", 3, "t"), EmbeddingField("C", 5)]
        self.layers = nn.Sequential(nn.Linear(12, 1000), nn.ReLU(), nn.Linear(1000, 1))

    def forward(self, dense: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
        return self.layers(torch.cat([dense, embedded], 1)).squeeze(1)


def prepare(trainer: Trainer, batch: Batch) -> Prepared:
    return trainer.pull(batch, trainer.keys(batch.ids))


def train(
    trainer: Trainer, prepared: Prepared, *, epoch: int, k: int, seed: int, factor: float
) -> tuple[NDArray[np.float32], PushTicket]:
    """Embed, compute and push a minibatch whose pull has arrived; return the logits before the update, and the push."""
    trainer.embed(prepared)
    found = trainer.gradients(prepared, epoch=epoch, k=k, seed=seed)
    return found.logits, trainer.push(prepared, found, epoch=epoch, k=k, factor=factor)


class Servers(ScriptedJob):
    """With trainers."""

    def trainer(self, module: nn.Module) -> Trainer:
        ps = self.client()
        trainer = Trainer(module, EmbeddingLayout(module.embedding_fields, SCHEMA), ps)  # type: ignore[arg-type]
        ps.pumped = True
        trainer.configure(1, SGD, SGD)
        ps.pumped = False
        return trainer

    def step(self, trainer: Trainer, batch: Batch, k: int, factor: float = 1.0) -> PushTicket:
        prepared = prepare(trainer, batch)
        self.finish(prepared.ticket)
        _, ticket = train(trainer, prepared, epoch=0, k=k, seed=minibatch_seed(0, 0, k), factor=factor)
        self.finish(ticket)
        return ticket


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
    from dlrover_lite.tables.hashing import initial_rows

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

    trainer.ps.pumped = True  # type: ignore[attr-defined]
    trainer.pull_dense()
    np.testing.assert_allclose(trainer.flat.values[: len(expected)], expected, rtol=1e-3, atol=1e-6)
    assert not trainer.flat.values[len(expected) :].any()
    every = np.tile(np.arange(20, dtype=np.uint64), (3, 1))
    prepared = prepare(trainer, Batch(np.zeros(20, np.float32), np.zeros((20, 1), np.float32), every, []))
    servers.finish(prepared.ticket)
    trainer.embed(prepared)
    want = torch.cat([tables["t"], tables["t"], tables["C"]], 1).detach().numpy()
    np.testing.assert_allclose(prepared.embedded, want, rtol=1e-3, atol=1e-6)


class Steep(Model):
    """Its loss is finite, and the gradient of one of its inputs isn't: that of the square root at 0."""

    def __init__(self, steep: str) -> None:
        super().__init__()
        self.steep = steep

    def forward(self, dense: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
        logits = super().forward(dense, embedded)
        at_zero = {"embedded": embedded[:, 0], "dense": self.layers[0].weight[0, 0]}.get(self.steep)
        return logits if at_zero is None else logits + torch.sqrt(at_zero - at_zero.detach())


@pytest.mark.parametrize(("steep", "named"), [("embedded", "the embeddings"), ("dense", "layers.0.weight")])
def test_a_gradient_that_is_not_finite_never_reaches_the_parameters(servers: Servers, steep: str, named: str) -> None:
    trainer = servers.trainer(Steep(steep))
    with pytest.raises(ModelError, match=rf"the gradient of {named} is not finite in minibatch 0 of epoch 0"):
        servers.step(trainer, batch(0), 0)
    assert all(ps.pushes == 0 for ps in servers.all)
    trainer.module.steep = ""  # type: ignore[assignment]
    servers.step(trainer, batch(1), 1)
    assert all(ps.pushes == 1 for ps in servers.all)
    assert all(np.isfinite(row).all() for ps in servers.all for row in ps.rows.values())


def test_a_push_whose_answer_is_lost_is_repeated_and_applied_once(servers: Servers) -> None:
    trainer = servers.trainer(Model())
    prepared = prepare(trainer, batch(0))
    servers.finish(prepared.ticket)
    _, ticket = train(trainer, prepared, epoch=0, k=0, seed=0, factor=1.0)
    for ps in servers.all:  # each applies it, and the answer gets lost
        for request in ps.received():
            ps.answer(request, lose_reply=True)
    after = [copy.deepcopy(ps.rows) for ps in servers.all]
    trainer.ps.wait(0.0)
    assert ticket.missing == len(servers.all)
    servers.now += 3.0
    servers.finish(ticket)
    for ps, rows in zip(servers.all, after, strict=True):
        assert ps.pushes == 1
        assert ps.asked["Push"] == 2
        assert all(np.array_equal(row, rows[key]) for key, row in ps.rows.items())


def test_answers_that_come_twice_or_late_count_once(servers: Servers) -> None:
    trainer = servers.trainer(Model())
    prepared = prepare(trainer, batch(0))
    requests = [ps.received() for ps in servers.all]
    servers.now += 3.0
    trainer.ps.wait(0.0)  # asks again
    for ps, first in zip(servers.all, requests, strict=True):
        again = ps.received()
        assert [request.sequence for request in again] == [request.sequence for request in first]
        for request in (*first, *again, *again):
            ps.answer(request)
    servers.finish(prepared.ticket)
    for _ in range(3):
        trainer.ps.wait(0.0)
    assert prepared.ticket.missing == 0
    servers.step(trainer, batch(1), 1)
    assert all(ps.pushes == 1 for ps in servers.all)


def test_a_silent_server_is_named_in_the_end(servers: Servers) -> None:
    trainer = servers.trainer(Model())
    prepare(trainer, batch(0))
    with pytest.raises(DeadlineExceeded, match=r"ps-0 did not answer Pull within \d+ s"):
        for _ in range(1000):
            servers.now += 1.0
            trainer.ps.wait(0.0)


def test_staleness_counts_all_pushes_since_the_pull(servers: Servers) -> None:
    torch.manual_seed(0)
    one, other = servers.trainer(Model()), servers.trainer(Model())
    prepared = prepare(one, batch(0))
    servers.finish(prepared.ticket)
    for k in range(1, 4):
        assert servers.step(other, batch(k), k).staleness == 0
    ahead = prepare(one, batch(5))  # a pull before this worker's own push
    servers.finish(ahead.ticket)
    _, ticket = train(one, prepared, epoch=0, k=0, seed=0, factor=1.0)
    servers.finish(ticket)
    assert ticket.staleness == 3
    servers.step(other, batch(6), 6)
    _, ticket = train(one, ahead, epoch=0, k=5, seed=0, factor=1.0)
    servers.finish(ticket)
    assert ticket.staleness == 2  # its own push, and that of the other one


def test_workers_with_different_models_are_refused(servers: Servers) -> None:
    servers.trainer(Model())
    ps = servers.client()
    ps.pumped = True
    wrong = Trainer(nn.Linear(2, 2), EmbeddingLayout([EmbeddingField("A", 3)], SCHEMA), ps)
    with pytest.raises(JobError, match=r"ps-.: a worker declares other tables"):
        wrong.configure(1, SGD, SGD)


@pytest.mark.parametrize("counted", [False, True])
def test_servers_are_configured_to_count_updates_or_not(servers: Servers, counted: bool) -> None:
    """As a recipe without any server says it, too."""
    data = {"format": "synthetic", "samples": 9}
    given = {"version": 1, "name": "x", "model": "dlrm", "data": data, "export": {"optimizer_state": counted}}
    declared = declare(parse_recipe(given))
    ps, fields = servers.client(), fields_of_model(declared.module)
    ps.pumped = True
    training = Trainer(declared.module, EmbeddingLayout(fields, declared.schema), ps)
    told = declared.configuration
    training.configure(told.seed, told.optimizer, told.embedding_optimizer, counted=counted)
    assert told.counted == counted
    assert [one.configuration for one in servers.all] == [told] * len(servers.all)


def test_scans_give_every_row_in_pieces(servers: Servers) -> None:
    trainer = servers.trainer(Model())
    servers.step(trainer, batch(0, samples=200), 0)
    trainer.ps.pumped = True  # type: ignore[attr-defined]
    found = []
    for part in range(trainer.ps.map.parts):
        members, start = trainer.ps.map.members(part), 0
        while start is not None:
            rows, start = trainer.ps.scan(members, 0, start, 7, state=True)
            assert len(rows.values) == len(rows.state) == 3 * len(rows.ids)
            assert len(rows.counts) == len(rows.ids) <= 7
            assert set(rows.tables.tolist()) <= {0}
            found += rows.ids.tolist()
    assert sorted(found) == list(range(20))
    assert not len(trainer.ps.scan(trainer.ps.map.members(0), 0, 0, 7)[0].state)


def test_a_loss_that_is_not_finite_pushes_nothing(servers: Servers) -> None:
    module = Model()
    module.loss = lambda logits, labels: logits.sum() / 0.0  # type: ignore[assignment]
    trainer = servers.trainer(module)
    prepared = prepare(trainer, batch(0))
    servers.finish(prepared.ticket)
    with pytest.raises(ModelError, match="minibatch 7 of epoch 2"):
        train(trainer, prepared, epoch=2, k=7, seed=0, factor=1.0)
    assert all(ps.received() == [] for ps in servers.all)


def test_a_wrong_number_of_logits_is_a_model_error(servers: Servers) -> None:
    class Wrong(Model):
        def forward(self, dense: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
            return super().forward(dense, embedded)[1:]

    module = Wrong()
    module.loss = lambda logits, labels: logits.sum()  # type: ignore[assignment]
    trainer = servers.trainer(module)
    for work in (trainer.evaluate, lambda prepared: trainer.gradients(prepared, epoch=0, k=0, seed=0)):
        prepared = prepare(trainer, batch(0))
        servers.finish(prepared.ticket)
        with pytest.raises(ModelError, match=r"shape \(31,\) for 32 samples"):
            work(prepared)
    assert trainer.module.training


def test_evaluation_pushes_nothing_and_leaves_training_mode_on(servers: Servers) -> None:
    trainer = servers.trainer(Model())
    prepared = prepare(trainer, batch(0))
    servers.finish(prepared.ticket)
    logits = trainer.evaluate(prepared)
    assert logits.shape == (32,)
    assert trainer.module.training
    assert not any(ps.asked["Push"] for ps in servers.all)


def test_dropout_is_the_same_for_the_same_minibatch() -> None:
    class Dropout(Model):
        def forward(self, dense: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
            return super().forward(dense, nn.functional.dropout(embedded, 0.5))

    servers = Servers(1)
    trainer = servers.trainer(Dropout())
    outcomes = []
    for k in (0, 1, 0):
        prepared = prepare(trainer, batch(0))
        servers.finish(prepared.ticket)
        logits, _ = train(trainer, prepared, epoch=0, k=k, seed=minibatch_seed(7, 0, k), factor=0.0)
        outcomes.append(logits)
    assert np.array_equal(outcomes[0], outcomes[2])
    assert not np.array_equal(outcomes[0], outcomes[1])
    assert minibatch_seed(7, 0, 1) != minibatch_seed(7, 1, 0) != minibatch_seed(8, 1, 0)
    servers.close()
