"""What tables and optimizers must do, as plainly as it can be written: dicts and float64."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dlrover_lite.core.records import unpack_rows
from dlrover_lite.core.rows import RowData
from dlrover_lite.protocol.ps_messages import TableSpec
from dlrover_lite.ps.journal.applied_minibatches import AppliedEntries, AppliedMinibatches
from dlrover_lite.ps.journal.state_words import Header
from dlrover_lite.ps.memory.scratch import Scratch
from dlrover_lite.ps.tables.table import TableGroup
from dlrover_lite.recipe.schema import Optimizer
from dlrover_lite.tables.hashing import initial_rows


def read(group: TableGroup, rows: NDArray[np.uint64]) -> RowData:
    """Copies of these rows."""
    return unpack_rows(group.read_records(rows), group.shape, group._store.salts)


def owns(group: TableGroup, keys: NDArray[np.uint64], counts: NDArray[np.int64]) -> bool:
    """Whether all these keys are in slots owned."""
    return group._hash_owned(*group._keys(keys, counts))


def nothing_applied() -> AppliedMinibatches:
    """With entries of their own."""
    return AppliedMinibatches(AppliedEntries(Scratch(Header.END, np.uint64).array))


def summed(
    keys: NDArray[np.uint64], counts: NDArray[np.int64], grads: NDArray[np.float32]
) -> tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.float32]]:
    """The distinct keys of each table, their counts, and the sum of each one's gradients: as workers push them."""
    found, sums, start = [], [], 0
    for count in counts.tolist():
        distinct, inverse = np.unique(keys[start : start + count], return_inverse=True)
        total = np.zeros((len(distinct), grads.shape[1]), np.float32)
        np.add.at(total, inverse, grads[start : start + count])
        found.append(distinct)
        sums.append(total)
        start += count
    return np.concatenate(found), np.array([len(one) for one in found], np.int64), np.concatenate(sums)


class Reference:
    """Tables as dicts; optimizers from their papers. A row's state is made with its first gradient."""

    def __init__(self, tables: list[TableSpec], optimizer: Optimizer, seed: int) -> None:
        self.tables, self.optimizer, self.seed = tables, optimizer, seed
        self.rows: list[dict[int, dict[str, NDArray[np.float64]]]] = [{} for _ in tables]

    def initial(self, table: int, key: int) -> NDArray[np.float64]:
        spec = self.tables[table]
        ids = np.array([key], np.uint64)
        return initial_rows(ids, table=spec.name, seed=self.seed, dim=spec.dim, scale=spec.init_scale)[0].astype(float)

    def value(self, table: int, key: int) -> NDArray[np.float64]:
        row = self.rows[table].get(key)
        return self.initial(table, key) if row is None else row["w"]

    def update(self, table: int, keys: list[int], grads: NDArray[np.float64], factor: float) -> None:
        """Gradients of equal keys are summed first."""
        summed: dict[int, NDArray[np.float64]] = {}
        for key, grad in zip(keys, grads, strict=True):
            summed[key] = summed.get(key, 0.0) + grad.astype(float)
        for key, grad in summed.items():
            if key not in self.rows[table]:
                self.rows[table][key] = start(self.optimizer, self.initial(table, key))
            step(self.optimizer, self.rows[table][key], grad, factor)


def start(o: Optimizer, w: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
    z = -w * (o.beta / o.learning_rate + o.l2) - np.sign(w) * o.l1  # FTRL's z of which w is the weight
    return {"w": w, "n": np.zeros_like(w), "z": z, "m": np.zeros_like(w), "v": np.zeros_like(w), "t": np.zeros(1)}


def step(o: Optimizer, row: dict[str, NDArray[np.float64]], g: NDArray[np.float64], factor: float) -> None:
    lr = o.learning_rate * factor
    w = row["w"]
    if o.use == "sgd":
        row["w"] = w - lr * g
    elif o.use == "adagrad":
        row["n"] = row["n"] + g * g
        row["w"] = w - lr * g / (np.sqrt(row["n"]) + (o.epsilon or 1e-10))
    elif o.use == "adam":
        row["t"] = row["t"] + 1
        row["m"] = o.beta1 * row["m"] + (1 - o.beta1) * g
        row["v"] = o.beta2 * row["v"] + (1 - o.beta2) * g * g
        m, v = row["m"] / (1 - o.beta1 ** row["t"]), row["v"] / (1 - o.beta2 ** row["t"])
        row["w"] = w - lr * m / (np.sqrt(v) + (o.epsilon or 1e-8))
    else:  # McMahan et al. 2013, algorithm 1
        assert factor == 1.0, "the paper has a constant rate"
        sigma = (np.sqrt(row["n"] + g * g) - np.sqrt(row["n"])) / lr
        row["z"] = row["z"] + g - sigma * w
        row["n"] = row["n"] + g * g
        z = row["z"]
        active = -(z - np.sign(z) * o.l1) / ((o.beta + np.sqrt(row["n"])) / lr + o.l2)
        row["w"] = np.where(np.abs(z) <= o.l1, 0.0, active)
