"""A census job without its processes: a parameter server of plain rows, pushed to minibatch by minibatch, and its export."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from dlrover_lite.data.census import CensusDataset
from dlrover_lite.data.order import EpochOrder
from dlrover_lite.models.export import ExportWriter, Manifest, Optimizers
from dlrover_lite.models.registry import build_model
from dlrover_lite.models.tables import TableRows
from dlrover_lite.recipe.load import parse_recipe
from dlrover_lite.recipe.schema import CensusData, Optimizer, Recipe
from dlrover_lite.tables.hashing import initial_rows
from dlrover_lite.tables.layout import BLOCK
from dlrover_lite.tables.optimizer_state import STATE_PARTS
from dlrover_lite.tables.optimizers import KINDS, hyperparameters, init_state, update_rows

SAMPLES, BATCH, EPOCHS, DENSE = 64, 8, 2, 5000
BLOCKS = "dense parameters"


class Fault(NamedTuple):
    """That a minibatch is applied to one key of one table another number of times than once."""

    table: str
    key: int
    epoch: int
    times: int


def census_recipe(optimizer: str = "adagrad", **more: Any) -> Recipe:
    training = {"batch_size": BATCH, "epochs": EPOCHS, "seed": 5, "optimizer": {"use": optimizer}}
    return parse_recipe(
        {
            "version": 1,
            "name": "census",
            "model": {"use": "census", "options": {"embedding_dim": 3, "dense_values": DENSE}},
            "data": {"format": "census", "samples": SAMPLES},
            "training": {**training, **more},
            "export": {"optimizer_state": True},
        }
    )


class _Rows:
    """The rows of one table, as a parameter server holds them."""

    def __init__(self, optimizer: Optimizer, initial: np.ndarray, *, present: bool) -> None:
        self.kind, self.hyper = KINDS[optimizer.use], hyperparameters(optimizer)
        self.parts, self.dim = STATE_PARTS[optimizer.use], initial.shape[1]
        self.rows = np.zeros((len(initial), self.dim * (1 + self.parts)), np.float32)
        self.rows[:, : self.dim] = initial
        self.counts = np.zeros(len(initial), np.uint32)
        self.present = np.full(len(initial), present)
        for row in range(len(initial)):
            start = np.uint64(row * self.rows.shape[1])
            init_state(self.kind, self.hyper, self.rows.reshape(-1), start, np.uint64(self.dim))

    @property
    def values(self) -> np.ndarray:
        return self.rows[:, : self.dim]

    def update(self, keys: np.ndarray, grads: np.ndarray) -> None:
        self.present[keys] = True
        self.counts[keys] += np.uint32(1)
        update_rows(
            self.kind,
            self.hyper,
            np.float32(1.0),
            self.rows.reshape(-1),
            np.uint64(self.rows.shape[1]),
            np.uint64(0),
            np.uint64(self.dim),
            keys.astype(np.uint64),
            np.uint64(len(keys)),
            np.ascontiguousarray(grads, np.float32).reshape(-1),
            np.uint64(0),
            self.counts[keys],
        )

    def found(self) -> TableRows:
        keys = np.random.default_rng(0).permutation(np.flatnonzero(self.present))
        state = self.rows[keys][:, self.dim :]
        return TableRows(keys.astype(np.uint64), self.values[keys].copy(), self.counts[keys].copy(), state.copy())


class SimulatedCensus:
    """``tables`` are what the parameter servers hold at the end, and ``export`` writes: tests may damage them before."""

    def __init__(self, recipe: Recipe, *faults: Fault) -> None:
        assert isinstance(recipe.data, CensusData)
        self.recipe, self.faults = recipe, faults
        self.dataset = CensusDataset(recipe.data)
        training = recipe.training
        self.module = build_model(recipe.model, self.dataset.schema, directory=Path(), seed=training.seed)
        self.embeddings = training.embedding_optimizer or training.optimizer
        self.rows = {
            field.column: _Rows(self.embeddings, self._initial(field, keys), present=False)
            for field, keys in zip(self.module.embedding_fields, (recipe.data.samples, 1), strict=True)
        }
        flat = self.module.values.detach().numpy().copy()
        padded = np.zeros((-(-len(flat) // BLOCK), BLOCK), np.float32)
        padded.reshape(-1)[: len(flat)] = flat
        self.rows[BLOCKS] = _Rows(training.optimizer, padded, present=True)
        for epoch in range(training.epochs):
            order = EpochOrder(recipe.data.samples, seed=training.seed, epoch=epoch)
            for start in range(0, recipe.data.samples, training.batch_size):
                self._minibatch(epoch, order.numbers(start, start + training.batch_size))
        self.tables = {name: rows.found() for name, rows in self.rows.items()}
        self.dense = self.rows[BLOCKS].values.reshape(-1)[: len(flat)].copy()

    def _initial(self, field: Any, keys: int) -> np.ndarray:
        ids, seed = np.arange(keys, dtype=np.uint64), self.recipe.training.seed
        return initial_rows(ids, table=field.table_name, seed=seed, dim=field.dim, scale=field.init_scale)

    def _minibatch(self, epoch: int, numbers: np.ndarray) -> None:
        batch = self.dataset.read(numbers)
        dim = self.rows["sample"].dim
        pulled = [
            self.rows[name].values[batch.ids[at].astype(np.int64)] for at, name in enumerate(("sample", "everyone"))
        ]
        embedded = torch.from_numpy(np.concatenate(pulled, 1)).requires_grad_()
        with torch.no_grad():
            self.module.values[:] = torch.from_numpy(self.rows[BLOCKS].values.reshape(-1)[: self.module.values.numel()])
        logits = self.module(torch.from_numpy(batch.dense), embedded)
        self.module.loss(logits, torch.from_numpy(batch.labels)).backward()
        gradient = np.zeros(self.rows[BLOCKS].values.shape, np.float32)
        gradient.reshape(-1)[: self.module.values.numel()] = self.module.values.grad.numpy()
        self.module.values.grad = None
        own, shared = embedded.grad.numpy()[:, :dim], embedded.grad.numpy()[:, dim:].sum(0, keepdims=True)
        self._push(epoch, "sample", numbers, own)
        self._push(epoch, "everyone", np.zeros(1, np.int64), shared)
        self._push(epoch, BLOCKS, np.arange(len(gradient)), gradient)

    def _push(self, epoch: int, table: str, keys: np.ndarray, grads: np.ndarray) -> None:
        times = np.ones(len(keys), np.int64)
        for at, fault in enumerate(self.faults):
            hit = (keys == fault.key) & (fault.table == table) & (fault.epoch == epoch)
            if hit.any():
                times[hit] = fault.times
                self.faults = self.faults[:at] + self.faults[at + 1 :]  # of this minibatch only
                break
        for again in range(times.max()):
            self.rows[table].update(keys[times > again], grads[times > again])

    def export(self, directory: Path, format: str = "npz") -> Path:
        training = self.recipe.training
        manifest = Manifest(
            model=self.recipe.model,
            schema=self.dataset.schema,
            fields=list(self.module.embedding_fields),
            seed=training.seed,
            data_format="census",
            optimizers=Optimizers(self.embeddings, training.optimizer),
        )
        with ExportWriter(directory, manifest, format) as writer:  # type: ignore[arg-type]
            writer.write_dense({"values": self.dense})
            for name in ("sample", "everyone"):
                writer.add_rows(name, *self.tables[name])
            writer.add_dense_blocks(*self.tables[BLOCKS])  # type: ignore[arg-type]
            return writer.finish()
