"""The arithmetic of one worker: from a batch to a pull, from pulled rows to gradients, from gradients to a push."""

from __future__ import annotations

import hashlib
import math
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from dlrover_lite.core.errors import ModelError
from dlrover_lite.data.base import Batch
from dlrover_lite.models.check import loss_of
from dlrover_lite.protocol.messages import UnknownIds
from dlrover_lite.protocol.ps_messages import Configure
from dlrover_lite.recipe.schema import Optimizer
from dlrover_lite.worker.parameters.client import PsClient
from dlrover_lite.worker.parameters.dense import DensePlacement, FlatParameters
from dlrover_lite.worker.parameters.embedding import EmbeddingLayout
from dlrover_lite.worker.parameters.requests import MinibatchKeys, PullTicket, PushTicket

__all__ = ["Gradients", "Prepared", "Trainer", "minibatch_seed"]


def minibatch_seed(job_seed: int, epoch: int, k: int) -> int:
    """Return the seed of a minibatch's randomness (dropout): the same wherever and however often it is computed."""
    digest = hashlib.blake2b(f"{job_seed}/{epoch}/{k}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


class Prepared:
    """A minibatch whose pull is under way, or has arrived."""

    def __init__(self, batch: Batch, ticket: PullTicket) -> None:
        self.labels = torch.from_numpy(batch.labels)
        self.dense = torch.from_numpy(batch.dense)
        self.ticket = ticket
        self.embedded: NDArray[np.float32] | None = None
        """The embedded tensor [samples, width], once ``Trainer.embed`` has made it."""

    @property
    def samples(self) -> int:
        return len(self.labels)


class Gradients(NamedTuple):
    """What a minibatch's backward gives: logits before the update [samples], the embedded tensor's gradient [samples, width], and
    the dense parameters' (``FlatParameters.take_gradient``)."""

    logits: NDArray[np.float32]
    embedded: NDArray[np.float32]
    dense: list[torch.Tensor | None]


class Trainer:
    """The model and its parameters on parameter servers. ``gradients`` and ``evaluate`` touch the module, the other methods the parameter
    servers: they may run on two threads."""

    def __init__(self, module: nn.Module, layout: EmbeddingLayout, ps: PsClient) -> None:
        self.module = module
        self.layout = layout
        self.ps = ps
        self.flat = FlatParameters(module)
        self.placement = DensePlacement(self.flat.spec)
        self._loss = loss_of(module)

    def configure(
        self, seed: int, optimizer: Optimizer, embedding_optimizer: Optimizer, *, counted: bool = False
    ) -> None:
        """Tell every PS what it keeps, with this module's values as the first ones; waits. ``counted``: as in ``Configure``."""
        configuration = Configure(seed, self.layout.tables, self.flat.spec, optimizer, embedding_optimizer, counted)
        keys = MinibatchKeys(self.ps.map, [], self.placement.keys(self.ps.map))
        self.ps.configure(configuration, keys, self.placement.take(keys.dense, self.flat.values))

    def keys(self, ids: NDArray[np.uint64]) -> MinibatchKeys:
        """Return the distinct keys of ``ids`` [columns, samples] and all dense blocks, by table group and PS of the current map."""
        now = self.ps.map
        return MinibatchKeys(now, self.layout.keys(ids, now.owners, now.parts), self.placement.keys(now))

    def pull(self, batch: Batch, keys: MinibatchKeys, *, unknown: bool = False) -> Prepared:
        """Ask for dense parameters and rows; ``keys`` may be by an older map. ``unknown``: for ``unknown_ids`` too."""
        return Prepared(batch, self.ps.pull(keys, unknown=unknown))

    def unknown_ids(self, prepared: Prepared) -> list[UnknownIds]:
        """Count the ids that had never been trained, in each embedded column of an evaluation's minibatch whose pull has arrived."""
        ticket = prepared.ticket
        groups = range(len(ticket.keys.embedding))
        flags, rows = [ticket.unknown(g) for g in groups], [ticket.table_rows(g) for g in groups]
        return self.layout.unknown_ids(ticket.keys.embedding, flags, rows)

    def embed(self, prepared: Prepared) -> None:
        """Lay out the rows of a pull that has arrived."""
        ticket = prepared.ticket
        rows = [ticket.rows(group) for group in range(len(ticket.keys.embedding))]
        prepared.embedded = self.layout.embed(ticket.keys.embedding, rows, prepared.samples)

    def pull_dense(self) -> None:
        """Give the module the dense parameters as they are now; waits."""
        ticket = self.ps.pull(self.keys(np.empty((len(self.layout.columns), 0), np.uint64)))
        self.ps.finish(ticket)
        self._take_over(ticket)

    def gradients(self, prepared: Prepared, *, epoch: int, k: int, seed: int) -> Gradients:
        """Compute forward and backward of an embedded minibatch.

        Raises whatever the model raises, and ModelError for a loss or a gradient that isn't finite: such a one must never reach the
        parameters. The module's gradients are gone then.
        """
        torch.default_generator.manual_seed(seed)
        embedded = self._inputs(prepared).requires_grad_()
        try:
            logits = _checked(self.module(prepared.dense, embedded), prepared)
            loss = self._loss(logits, prepared.labels)
            if not math.isfinite(loss.item()):
                raise ModelError(f"the loss is {loss.item()} in minibatch {k} of epoch {epoch}", hint=_NOT_FINITE)
            loss.backward()  # type: ignore[no-untyped-call]
        except BaseException:
            self.flat.forget_gradient()
            raise
        found = Gradients(logits.detach().numpy(), _gradient(embedded), self.flat.take_gradient())
        if (name := self._not_finite(found)) is not None:
            raise ModelError(
                f"the gradient of {name} is not finite in minibatch {k} of epoch {epoch}, though the loss is",
                hint=_NOT_FINITE,
            )
        return found

    def _not_finite(self, found: Gradients) -> str | None:
        """Name what has a gradient with a NaN or an infinity in it."""
        if not _is_finite(torch.from_numpy(found.embedded)):
            return "the embeddings"
        names = [*(name for name, _ in self.flat.parameters), "the averaged buffers"]
        pairs = zip(names, found.dense, strict=False)
        return next((name for name, gradient in pairs if gradient is not None and not _is_finite(gradient)), None)

    def push(self, prepared: Prepared, gradients: Gradients, *, epoch: int, k: int, factor: float) -> PushTicket:
        """Send each PS its share of the gradients."""
        keys = prepared.ticket.keys
        rows = self.layout.collect(keys.embedding, gradients.embedded)
        dense = self.placement.take(keys.dense, self.flat.flatten(gradients.dense))
        return self.ps.push(epoch, k, factor, prepared.ticket, rows + dense)

    def evaluate(self, prepared: Prepared) -> NDArray[np.float32]:
        """Return the logits of an embedded minibatch; nothing changes."""
        self.module.eval()
        try:
            with torch.no_grad():
                logits = _checked(self.module(prepared.dense, self._inputs(prepared)), prepared)
        finally:
            self.module.train()
        return logits.numpy()

    def _inputs(self, prepared: Prepared) -> torch.Tensor:
        """Take over the pulled dense parameters; return the embedded tensor."""
        if prepared.embedded is None:
            self.embed(prepared)
        self._take_over(prepared.ticket)
        return torch.from_numpy(prepared.embedded)

    def _take_over(self, ticket: PullTicket) -> None:
        """Write the dense parameters of a finished pull into the module."""
        first = len(ticket.keys.embedding)
        shares = [ticket.shares(first + kind) for kind in range(len(ticket.keys.dense))]
        self.placement.put(ticket.keys.dense, shares, self.flat.values)
        self.flat.pulled()


_NOT_FINITE = "Try a lower training.optimizer.learning_rate, or look for extreme values in the dense columns."


def _is_finite(values: torch.Tensor) -> bool:
    """Say whether no value is NaN or infinite. A sum is cheaper than looking at each, and finite only if all are."""
    return math.isfinite(values.sum().item()) or bool(torch.isfinite(values).all())


def _checked(logits: torch.Tensor, prepared: Prepared) -> torch.Tensor:
    """Return the logits as float32 [samples]. Raises ModelError for another number of them."""
    if logits.numel() != prepared.samples:
        raise ModelError(
            f"the model returned a tensor of shape {tuple(logits.shape)} for {prepared.samples} samples",
            hint="forward() must return one logit per sample: [batch] or [batch, 1].",
        )
    return logits.reshape(-1).float()


def _gradient(embedded: torch.Tensor) -> NDArray[np.float32]:
    if embedded.grad is None:  # the model made no use of its embeddings in this minibatch
        return np.zeros(embedded.shape, np.float32)
    return embedded.grad.numpy()
