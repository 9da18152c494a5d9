"""The training loop: pull for minibatch i + 1, compute minibatch i, push i, and never wait for what isn't needed yet."""

from __future__ import annotations

import hashlib
import math
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from dlrover_lite.data.base import Batch, Dataset
from dlrover_lite.data.order import EpochOrder
from dlrover_lite.errors import DlroverLiteError, ModelError
from dlrover_lite.models.check import loss_of
from dlrover_lite.models.user import user_traceback
from dlrover_lite.recipe.schema import Recipe
from dlrover_lite.worker.client import PsClient, PullTicket, PushTicket
from dlrover_lite.worker.dense import FlatParameters
from dlrover_lite.worker.embedding import EmbeddingLayout
from dlrover_lite.worker.leases import HeldLease, LeaseBook
from dlrover_lite.worker.schedule import learning_rate_factor

__all__ = ["Prepared", "Trainer", "TrainingLoop", "minibatch_seed"]

MAX_UNACKNOWLEDGED = 2
"""Pushes a worker may have under way."""

UNPIPELINED_MINIBATCHES = 64
"""The first minibatches of a job are pulled after the push of the one before: the first steps are large, and a gradient from values
that miss the last one costs more there than all later ones together."""

_IDLE_SECONDS = 0.2


def minibatch_seed(job_seed: int, epoch: int, k: int) -> int:
    """Seed of a minibatch's randomness (dropout): the same wherever and however often it is computed."""
    digest = hashlib.blake2b(f"{job_seed}/{epoch}/{k}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


class Prepared:
    """A minibatch whose pull is under way."""

    def __init__(self, batch: Batch, ticket: PullTicket) -> None:
        self.labels = torch.from_numpy(batch.labels)
        self.dense = torch.from_numpy(batch.dense)
        self.ticket = ticket

    @property
    def samples(self) -> int:
        return len(self.labels)


class Trainer:
    """The arithmetic of one worker: from a batch to a pull, and from the pulled rows to a push."""

    def __init__(self, module: nn.Module, layout: EmbeddingLayout, ps: PsClient) -> None:
        self.module = module
        self.layout = layout
        self.ps = ps
        self.flat = FlatParameters(module)
        self.placement = ps.place_dense(self.flat.length)
        self._loss = loss_of(module)

    def prepare(self, batch: Batch) -> Prepared:
        """Hash and de-duplicate the ids, and ask for their rows."""
        groups = self.layout.keys(batch.ids, self.ps.owners, self.ps.parts)
        return Prepared(batch, self.ps.pull(groups))

    def wait(self, prepared: Prepared) -> None:
        while prepared.ticket.missing:
            self.ps.wait()

    def train(
        self, prepared: Prepared, *, epoch: int, k: int, seed: int, factor: float
    ) -> tuple[NDArray[np.float32], PushTicket]:
        """Forward, backward and push of a minibatch that has arrived; returns the logits before the update.

        Raises whatever the model raises, and ModelError for a loss that isn't finite; nothing is pushed then.
        """
        torch.default_generator.manual_seed(seed)
        embedded = self._embedded(prepared).requires_grad_()
        logits = self.module(prepared.dense, embedded).reshape(-1)
        loss = self._loss(logits, prepared.labels)
        if not math.isfinite(loss.item()):
            raise ModelError(
                f"the loss is {loss.item()} in minibatch {k} of epoch {epoch}",
                hint="Try a lower training.optimizer.learning_rate, or look for extreme values in the dense columns.",
            )
        loss.backward()  # type: ignore[no-untyped-call]
        grads = self.layout.collect(prepared.ticket.groups, _gradient(embedded))
        dense = self.flat.take_gradient()
        shares = [self.placement.take(part, dense) for part in range(self.ps.parts)]
        ticket = self.ps.push(epoch, k, factor, prepared.ticket, shares, grads)
        return logits.detach().numpy(), ticket

    def evaluate(self, prepared: Prepared) -> NDArray[np.float32]:
        """Logits of a minibatch that has arrived; nothing changes."""
        self.module.eval()
        try:
            with torch.no_grad():
                logits = self.module(prepared.dense, self._embedded(prepared))
        finally:
            self.module.train()
        return np.asarray(logits.numpy(), np.float32).reshape(-1)

    def forget_gradients(self) -> None:
        """After a minibatch that raised midway."""
        for _, parameter in self.flat.parameters:
            parameter.grad = None

    def _embedded(self, prepared: Prepared) -> torch.Tensor:
        self.ps.dense(prepared.ticket, self.placement, self.flat.values)
        self.flat.pulled()
        rows = self.ps.rows(prepared.ticket)
        return torch.from_numpy(self.layout.embed(prepared.ticket.groups, rows, prepared.samples))


def _gradient(embedded: torch.Tensor) -> NDArray[np.float32]:
    if embedded.grad is None:  # the model made no use of its embeddings in this minibatch
        return np.zeros(embedded.shape, np.float32)
    return embedded.grad.numpy()


def _is_among_the_first(current: tuple[Prepared, HeldLease, int]) -> bool:
    _, held, k = current
    return held.lease.kind == "train" and held.lease.index == 0 and k < UNPIPELINED_MINIBATCHES


class TrainingLoop:
    """Takes minibatches from the lease book until the master needs nothing more, or ``stop`` says so."""

    def __init__(
        self,
        recipe: Recipe,
        trainer: Trainer,
        book: LeaseBook,
        *,
        train: Dataset,
        evaluation: Dataset | None,
        stop: Callable[[], bool],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._recipe = recipe
        self._code_directory = (Path(recipe.directory) / recipe.model.use.rpartition(":")[0]).resolve().parent
        self._trainer = trainer
        self._book = book
        self._train = train
        self._evaluation = evaluation
        self._stop = stop
        self._clock = clock
        self._orders: dict[int, EpochOrder] = {}
        self._pushes: list[tuple[PushTicket, HeldLease]] = []

    def run(self) -> None:
        current: tuple[Prepared, HeldLease, int] | None = None
        while not self._stop():
            if current is not None and _is_among_the_first(current):
                self._compute(*current)
                self._collect_pushes(at_most=0)
                current = None
            upcoming = self._prepare_next()
            if current is not None:
                self._compute(*current)
            elif upcoming is None:
                self._collect_pushes(at_most=0)
                if self._book.finished or self._book.export is not None:
                    return
                self._book.idle(self._book.ask_again_in or _IDLE_SECONDS)
            current = upcoming
        self._collect_pushes(at_most=0)

    def _prepare_next(self) -> tuple[Prepared, HeldLease, int] | None:
        while (found := self._book.next()) is not None:
            held, k = found
            began = self._clock()
            batch = self._read(held, k)
            held.work.add_seconds("read", self._clock() - began)
            held.work.add_bad([f"{bad.file}:{bad.line}: {bad.why}" for bad in batch.bad])
            if len(batch.labels):
                return self._trainer.prepare(batch), held, k
            held.consumed(k)  # nothing but bad lines: there is nothing to pull, and no PS to acknowledge it
        return None

    def _read(self, held: HeldLease, k: int) -> Batch:
        size = self._recipe.training.batch_size
        if held.lease.kind == "eval":
            if self._evaluation is None:
                raise DlroverLiteError("the master asks for an evaluation, but there is no data to evaluate on")
            return self._evaluation.read(np.arange(k * size, min((k + 1) * size, self._evaluation.samples)))
        order = self._order(held.lease.index)
        return self._train.read(order.numbers(k * size, min((k + 1) * size, self._train.samples)))

    def _order(self, epoch: int) -> EpochOrder:
        if epoch not in self._orders:
            training = self._recipe.training
            self._orders = {e: order for e, order in self._orders.items() if e >= epoch - 1}
            self._orders[epoch] = EpochOrder(
                self._train.samples, seed=training.seed, epoch=epoch, shuffle=training.shuffle
            )
        return self._orders[epoch]

    def _compute(self, prepared: Prepared, held: HeldLease, k: int) -> None:
        began = self._clock()
        self._trainer.wait(prepared)
        arrived = self._clock()
        held.work.add_seconds("wait", arrived - began)
        try:
            if held.lease.kind == "eval":
                logits = self._trainer.evaluate(prepared)
                held.consumed(k)
            else:
                logits, ticket = self._train_one(prepared, held, k)
                self._pushes.append((ticket, held))
        except Exception as error:  # noqa: BLE001 - the person's own code: whatever it raises is reported with the minibatch it failed on
            self._trainer.forget_gradients()
            print(f"minibatch {k} failed:\n{traceback.format_exc()}", flush=True)
            held.failed(k, user_traceback(error, self._code_directory))
            return
        held.work.add_scores(logits, prepared.labels.numpy())
        held.work.add_seconds("compute", self._clock() - arrived)
        self._collect_pushes(at_most=MAX_UNACKNOWLEDGED)

    def _train_one(self, prepared: Prepared, held: HeldLease, k: int) -> tuple[NDArray[np.float32], PushTicket]:
        training, epoch = self._recipe.training, held.lease.index
        before = epoch * self._train.samples + k * training.batch_size
        factor = learning_rate_factor(training.schedule, before, training.epochs * self._train.samples)
        seed = minibatch_seed(training.seed, epoch, k)
        return self._trainer.train(prepared, epoch=epoch, k=k, seed=seed, factor=factor)

    def _collect_pushes(self, *, at_most: int) -> None:
        """Take acknowledgements; wait while more than ``at_most`` pushes are under way."""
        self._trainer.ps.wait(0.0)
        self._settle()
        while len(self._pushes) > at_most:
            self._trainer.ps.wait()
            self._settle()

    def _settle(self) -> None:
        open_pushes: list[tuple[PushTicket, HeldLease]] = []
        for ticket, held in self._pushes:
            if ticket.missing:
                open_pushes.append((ticket, held))
                continue
            held.consumed(ticket.k)
            staleness: dict[int, int] = held.work.staleness
            staleness[ticket.staleness] = staleness.get(ticket.staleness, 0) + 1
        self._pushes = open_pushes
