"""What tables and optimizers must do, as plainly as it can be written: dicts and float64."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dlrover_lite.protocol.ps_messages import TableSpec
from dlrover_lite.recipe.schema import Optimizer
from dlrover_lite.tables.hashing import initial_rows


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
