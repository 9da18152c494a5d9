"""The same models in plain single-process PyTorch: what training here is compared with, in quality and in speed.

- ``train_plain`` trains any model of a recipe, minibatch by minibatch in the order it is given, from the same initial
  values; for tests of quality.
- ``PlainWideDeep`` is Wide & Deep as fast as we could make it in PyTorch alone; ``samples_per_second`` measures it.
  Run as a script, it times the variants: one table per feature, or one table for all with an offset per feature.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dlrover_lite.core.metrics import BinaryMetrics
from dlrover_lite.data.base import Batch, Dataset
from dlrover_lite.models.check import fields_of_model, loss_of
from dlrover_lite.models.matmul import use_onednn
from dlrover_lite.models.registry import build_model
from dlrover_lite.recipe.schema import Model
from dlrover_lite.tables.hashing import initial_rows

__all__ = [
    "PlainModel",
    "PlainWideDeep",
    "WideDeepBatch",
    "samples_per_second",
    "train_plain",
    "wide_deep_batches",
    "zipf_ids",
]

EVALUATION_BATCH = 4096


class PlainModel(nn.Module):
    """A recipe's model with its tables as ``nn.Embedding``s, whose rows start as the parameter servers start them.

    Tables of the same dim are one embedding, one after another in it: one look-up and one sparse update a step, with the same results
    as one each. ``ids`` are the ids of each table that occur in training; an id that doesn't keeps its initial vector.
    """

    def __init__(
        self, network: nn.Module, ids: dict[str, NDArray[np.uint64]], columns: Sequence[str], seed: int
    ) -> None:
        super().__init__()
        self.network, self.ids, self.seed = network, ids, seed
        self.fields = fields_of_model(network)
        self.columns = [list(columns).index(field.column) for field in self.fields]
        self.first: dict[str, int] = {}
        """Row of each table in the embedding of its dim."""
        starts: dict[int, list[NDArray[np.float32]]] = {}
        for field in self.fields:
            if field.table_name not in self.first:
                start = initial_rows(
                    ids[field.table_name], table=field.table_name, seed=seed, dim=field.dim, scale=field.init_scale
                )
                before = starts.setdefault(field.dim, [])
                self.first[field.table_name] = sum(map(len, before))
                before.append(start)
        self.dims = list(starts)
        weights = [torch.from_numpy(np.concatenate(parts)) for parts in starts.values()]
        self.embeddings = nn.ModuleList(
            [nn.Embedding(len(found), found.shape[1], sparse=True, _weight=found) for found in weights]
        )

    def rows(self, table: str) -> Tensor:
        """Of the ids of this table, in their order."""
        dim = next(field.dim for field in self.fields if field.table_name == table)
        weight = self.embeddings[self.dims.index(dim)].weight
        assert isinstance(weight, Tensor)
        return weight.detach()[self.first[table] :][: len(self.ids[table])]

    def forward(self, dense: NDArray[np.float32], ids: NDArray[np.uint64]) -> Tensor:
        """Logits, float32 [n], of dense [n, dense columns] and ids [categorical columns, n]."""
        parts: dict[int, Tensor] = {}
        for dim, embedding in zip(self.dims, self.embeddings, strict=True):
            numbers = [number for number, field in enumerate(self.fields) if field.dim == dim]
            places = [self._places(number, ids) for number in numbers]
            vectors = embedding(torch.from_numpy(np.stack([at for at, _ in places])))
            for number, found, (_, missing) in zip(numbers, vectors, places, strict=True):
                parts[number] = self._with_initial(number, found, missing, ids) if len(missing) else found
        embedded = torch.cat([parts[number] for number in sorted(parts)], 1) if parts else torch.empty(len(dense), 0)
        logits: Tensor = self.network(torch.from_numpy(dense), embedded)
        return logits.reshape(len(dense))

    def _places(self, number: int, ids: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Of a field's ids in the embedding; and which of them aren't there."""
        table, asked = self.fields[number].table_name, ids[self.columns[number]]
        known = self.ids[table]
        at = np.minimum(np.searchsorted(known, asked), len(known) - 1)
        return at + self.first[table], np.flatnonzero(known[at] != asked)

    def _with_initial(
        self, number: int, vectors: Tensor, missing: NDArray[np.int64], ids: NDArray[np.uint64]
    ) -> Tensor:
        field = self.fields[number]
        start = initial_rows(
            ids[self.columns[number]][missing],
            table=field.table_name,
            seed=self.seed,
            dim=field.dim,
            scale=field.init_scale,
        )
        return vectors.index_copy(0, torch.from_numpy(missing), torch.from_numpy(start))


def train_plain(
    model: Model,
    dataset: Dataset,
    minibatches: Iterable[NDArray[np.int64]],
    *,
    directory: Path,
    seed: int,
    learning_rate: float = 0.02,
    evaluate_on: Dataset | None = None,
) -> tuple[PlainModel, float | None]:
    """Trains with Adagrad, one step per entry of ``minibatches`` (sample numbers), as a job would, one after another.

    Returns the trained module and its AUC on ``evaluate_on`` (default: the training data); None with one class only.
    """
    network = build_model(model, dataset.schema, directory=directory, seed=seed)
    plain = PlainModel(network, _ids_by_table(network, dataset), dataset.schema.categorical, seed)
    optimizers = [
        torch.optim.Adagrad(parameters, learning_rate, eps=1e-10)
        for parameters in (list(plain.embeddings.parameters()), list(network.parameters()))
        if parameters
    ]
    loss_function = loss_of(network)
    network.train()
    for numbers in minibatches:
        batch = dataset.read(numbers)
        if not len(batch.labels):
            continue
        plain.zero_grad(set_to_none=True)
        loss_function(plain(batch.dense, batch.ids), torch.from_numpy(batch.labels)).backward()  # type: ignore[no-untyped-call]
        for optimizer in optimizers:
            optimizer.step()
    return plain, _auc(plain, evaluate_on or dataset)


def _batches_of(dataset: Dataset) -> Iterable[Batch]:
    for start in range(0, dataset.samples, EVALUATION_BATCH):
        yield dataset.read(np.arange(start, min(start + EVALUATION_BATCH, dataset.samples), dtype=np.int64))


def _ids_by_table(network: nn.Module, dataset: Dataset) -> dict[str, NDArray[np.uint64]]:
    """Sorted ids that occur in the columns of each table (0, the empty field, at least)."""
    found: dict[str, list[NDArray[np.uint64]]] = {}
    for batch in _batches_of(dataset):
        for field in fields_of_model(network):
            row = dataset.schema.categorical.index(field.column)
            found.setdefault(field.table_name, [np.zeros(1, np.uint64)]).append(np.unique(batch.ids[row]))
    return {table: np.unique(np.concatenate(parts)) for table, parts in found.items()}


def _auc(plain: PlainModel, dataset: Dataset) -> float | None:
    metrics = BinaryMetrics()
    plain.eval()
    with torch.no_grad():
        for batch in _batches_of(dataset):
            if len(batch.labels):
                metrics.add(plain(batch.dense, batch.ids).numpy(), batch.labels)
    return metrics.auc


class WideDeepBatch:
    """A minibatch as a PyTorch user would hold it: dense [n, 13], indices int64 [n, features], labels [n]."""

    def __init__(self, dense: Tensor, indices: Tensor, labels: Tensor) -> None:
        self.dense, self.indices, self.labels = dense, indices, labels


class PlainWideDeep(nn.Module):
    """Wide & Deep with sparse gradients. An id's linear weight is value 0 of its vector: one look-up, not two.

    ``fused`` puts all features into one table, an offset each: one look-up and one sparse update per step instead of
    one per feature. It is the faster one (run this file), and the baseline.
    """

    def __init__(
        self, *, rows_per_feature: int, features: int = 26, dense: int = 13, dim: int = 16, fused: bool = True
    ) -> None:
        super().__init__()
        self.features, self.dim, self.fused = features, dim, fused
        counts = [features * rows_per_feature] if fused else [rows_per_feature] * features
        self.tables = nn.ModuleList([self._table(rows, dim + 1) for rows in counts])
        self.offsets = torch.arange(features) * rows_per_feature
        self.deep = nn.Sequential(
            nn.Linear(features * dim + dense, 256),
            nn.ReLU(inplace=True),
            nn.Linear(256, 128),
            nn.ReLU(inplace=True),
            nn.Linear(128, 1),
        )
        self.linear_dense = nn.Linear(dense, 1, bias=False)

    @staticmethod
    def _table(rows: int, dim: int) -> nn.Embedding:
        # Constant values: random ones would take a minute for all tables, and look-ups cost the same.
        return nn.Embedding(rows, dim, sparse=True, _weight=torch.full((rows, dim), 0.01))

    def forward(self, dense: Tensor, indices: Tensor) -> Tensor:
        """Logits, float32 [n], of dense [n, dense columns] and indices int64 [n, features]."""
        if self.fused:
            vectors: Tensor = self.tables[0](indices + self.offsets)
        else:
            vectors = torch.stack(
                [table(column) for table, column in zip(self.tables, indices.unbind(1), strict=True)], 1
            )
        linear, embeddings = torch.split(vectors, [1, self.dim], 2)
        logits: Tensor = self.deep(torch.cat([embeddings.flatten(1), dense], 1)) + self.linear_dense(dense)
        return logits.squeeze(1).add(linear.sum((1, 2)))

    def optimizers(self, learning_rate: float = 0.02) -> list[torch.optim.Optimizer]:
        """Adagrad on sparse gradients for the tables; the fused kernel, which has no sparse form, for the rest."""
        rest = [*self.deep.parameters(), *self.linear_dense.parameters()]
        return [
            torch.optim.Adagrad(self.tables.parameters(), learning_rate),
            torch.optim.Adagrad(rest, learning_rate, fused=True),
        ]


def zipf_ids(count: int, *, ids: int, exponent: float, random: np.random.Generator) -> NDArray[np.int64]:
    """``count`` draws from 0..ids-1 with probability proportional to (rank ** -exponent), ranks spread over the ids."""
    chances = np.cumsum(np.arange(1, ids + 1, dtype=np.float64) ** -exponent)
    ranks = np.searchsorted(chances, random.random(count) * chances[-1])
    # A step coprime to most sizes spreads the frequent ids, which would otherwise be neighbours in memory.
    return np.asarray(ranks * 7_368_787 % ids, np.int64)


def wide_deep_batches(
    count: int,
    *,
    batch_size: int = 1024,
    features: int = 26,
    ids: int = 1_000_000,
    exponent: float = 1.2,
    seed: int = 0,
) -> list[WideDeepBatch]:
    """Random minibatches with Zipf ids."""
    random = np.random.default_rng(seed)
    drawn = zipf_ids(count * batch_size * features, ids=ids, exponent=exponent, random=random)
    indices = torch.from_numpy(drawn.reshape(count, batch_size, features))
    dense = torch.from_numpy(random.normal(size=(count, batch_size, 13)).astype(np.float32))
    labels = torch.from_numpy((random.random((count, batch_size)) < 0.25).astype(np.float32))
    return [WideDeepBatch(*parts) for parts in zip(dense, indices, labels, strict=True)]


def samples_per_second(
    model: PlainWideDeep, optimizers: Sequence[torch.optim.Optimizer], batches: Iterable[WideDeepBatch]
) -> float:
    """Samples trained per second of wall time: forward, loss, backward and both optimizer steps of each minibatch.

    Batches are in memory, so reading data isn't in it. Set the threads (``torch.set_num_threads``) and what multiplies matrices
    (``use_onednn``), and train a few minibatches before: the first ones pay for allocations.
    """
    samples, start = 0, time.perf_counter()
    for batch in batches:
        model.zero_grad(set_to_none=True)
        logits = model(batch.dense, batch.indices)
        nn.functional.binary_cross_entropy_with_logits(logits, batch.labels).backward()  # type: ignore[no-untyped-call]
        for optimizer in optimizers:
            optimizer.step()
        samples += len(batch.labels)
    return samples / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description="Samples/s of Wide & Deep in plain PyTorch, on two threads.")
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows per feature (1 M needs 4 GB of memory)")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(2)
    use_onednn()  # as workers do
    batches = wide_deep_batches(40, ids=options.rows)
    for name, fused in (("one table", True), ("a table per feature", False)):
        model = PlainWideDeep(rows_per_feature=options.rows, fused=fused)
        optimizers = model.optimizers()
        samples_per_second(model, optimizers, batches[:10])
        rates = [samples_per_second(model, optimizers, batches) for _ in range(options.rounds)]
        print(json.dumps({"baseline": name, "samples_per_second": round(statistics.median(rates))}), flush=True)


if __name__ == "__main__":
    main()
