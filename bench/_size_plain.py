"""What memory alone costs larger tables: a process that looks up the distinct ids of minibatches with ``embedding_bag`` and updates their
rows as Adagrad does, on one core, as a parameter server has it. Run as a script: rows of each table, kind of ids, seconds; it prints
minibatches/s of the look-ups and updates, without the drawing of ids, as JSON.
"""

from __future__ import annotations

import json
import statistics
import sys
import time

import numpy as np
import torch
from _size_ids import TABLES, draw_of
from torch import Tensor
from torch.nn.functional import embedding_bag

DIM, BATCH_SIZE = 17, 1024
LEARNING_RATE, EPSILON = 0.02, 1e-10
WARM_UP_STEPS = 20


def step(weight: Tensor, state: Tensor, rows: Tensor, gradient: Tensor) -> float:
    """Seconds that a look-up and an update of these rows takes."""
    began = time.perf_counter()
    found = embedding_bag(rows.view(-1, 1), weight, mode="sum")
    gradient += 1e-6 * found
    sums = state.index_select(0, rows).addcmul_(gradient, gradient)
    state.index_copy_(0, rows, sums)
    weight.index_add_(0, rows, gradient / sums.sqrt_().add_(EPSILON), alpha=-LEARNING_RATE)
    return time.perf_counter() - began


def main(rows: int, kind: str, seconds: float) -> None:
    torch.set_num_threads(1)
    weight, state = (torch.full((TABLES * rows, DIM), 0.01) for _ in range(2))
    draw, random = draw_of(kind, rows), np.random.default_rng(0)
    gradients = torch.randn((TABLES * BATCH_SIZE, DIM))
    offsets = np.arange(TABLES, dtype=np.int64)[:, None] * rows
    taken: list[float] = []
    end = time.monotonic() + seconds
    while len(taken) < 2 * WARM_UP_STEPS or time.monotonic() < end:
        ids = draw(random, BATCH_SIZE).astype(np.int64) + offsets
        distinct = np.concatenate([np.unique(of_table) for of_table in ids])
        random.shuffle(distinct)
        taken.append(step(weight, state, torch.from_numpy(distinct), gradients[: len(distinct)].clone()))
    print(json.dumps({"minibatches_per_second": 1 / statistics.median(taken[WARM_UP_STEPS:])}), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], float(sys.argv[3]))
