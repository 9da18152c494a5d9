"""Rows/s of a PS's embedding table in process, on one thread: look-ups over ``torch.embedding_bag`` gathers, Adagrad updates over
``torch.optim.Adagrad`` with sparse gradients, on the same indices (4 M rows, dim 16; Zipf 1.2 and uniform; the worse of both counts).

Our side hashes 64-bit ids and, before updates, sums the duplicates, as workers do; torch's side gets row numbers. The detail of
``lookup_ratio`` has the limit of any look-up by id: a loop that is given a bucket of the index and a row number for each key, and reads
the bucket's first word, then the row's values.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch
from common import Figure, arguments, emit, medians
from numpy.typing import NDArray
from reference import zipf_ids

from dlrover_lite.core.kernels.compile import kernel, prefetch
from dlrover_lite.protocol.ps_messages import TableSpec
from dlrover_lite.ps.tables.table import TableGroup
from dlrover_lite.recipe.schema import Optimizer
from dlrover_lite.tables.dedupe import Deduplicator

ROWS, DIM = 4_000_000, 16
BATCH = 26 * 1024
"""Ids of a minibatch of 1,024 samples with 26 features."""


_CHUNK = 128
_DIM = np.uint64(DIM)
_BUCKET_WORDS = 16


@kernel
def gather_through_index(buckets, rows, index, floats, row_words, values_at, out):  # type: ignore[no-untyped-def]
    """The memory accesses of a look-up and nothing else: no hash, no probing, no unknown keys, no record that is compared. ``index`` holds
    zeros."""
    found = np.empty(_CHUNK, np.uint64)
    for start in range(0, buckets.shape[0], _CHUNK):
        n = min(_CHUNK, buckets.shape[0] - start)
        for i in range(n):
            prefetch(index, buckets[start + i] * _BUCKET_WORDS)
        for i in range(n):
            row = rows[start + i] + np.uint64(index[np.uint64(buckets[start + i] * _BUCKET_WORDS)])
            found[i] = row * row_words + values_at
            prefetch(floats, np.int64(found[i]))
            prefetch(floats, np.int64(found[i] + _DIM - np.uint64(1)))
        for i in range(n):
            for j in range(_DIM):
                out[np.uint64(start + i) * _DIM + j] = floats[found[i] + j]


@kernel
def sum_rows(grads, inverse, out):  # type: ignore[no-untyped-def]
    """Sum the gradients of equal ids into ``out``."""
    out[:] = np.float32(0.0)
    for i in range(np.uint64(inverse.shape[0])):
        for j in range(_DIM):
            out[np.uint64(inverse[i]), j] += grads[i, j]


def filled_table() -> TableGroup:
    """All ids present, their rows in random order."""
    table = TableGroup([TableSpec("t", DIM, 0.05)], Optimizer(use="adagrad", learning_rate=0.01), seed=0)
    ids = np.random.default_rng(0).permutation(ROWS).astype(np.uint64)
    for part in np.array_split(ids, 40):
        table.update(part, np.array([len(part)]), np.zeros((len(part), DIM), np.float32))
    return table


def draw(kind: str, batches: int) -> list[NDArray[np.int64]]:
    random = np.random.default_rng(1)
    if kind == "zipf":
        drawn = zipf_ids(batches * BATCH, ids=ROWS, exponent=1.2, random=random)
    else:
        drawn = random.integers(0, ROWS, batches * BATCH)
    return list(drawn.reshape(batches, BATCH))


def rate(one: Callable[[int], object], batches: int) -> Callable[[], float]:
    """Rows/s of ``one(i)`` over all batches."""

    def measure() -> float:
        start = time.perf_counter()
        for i in range(batches):
            one(i)
        return batches * BATCH / (time.perf_counter() - start)

    return measure


def measure(*, rounds: int, batches: int) -> list[Figure]:
    torch.set_num_threads(1)
    table = filled_table()
    weight = torch.nn.Parameter(torch.full((ROWS, DIM), 0.01))
    adagrad = torch.optim.Adagrad([weight], 0.01)
    deduplicator = Deduplicator()
    counts, offsets = np.array([BATCH]), torch.arange(BATCH)
    grads = np.random.default_rng(2).standard_normal((BATCH, DIM)).astype(np.float32)
    torch_grads = torch.from_numpy(grads)
    index, store = np.zeros(table._index.size * _BUCKET_WORDS, np.uint32), table._store
    index[:] = 0  # or all its pages would be the one page of zeros
    buckets_of = np.random.default_rng(3).integers(0, table._index.size, ROWS)
    out = np.empty(BATCH * DIM, np.float32)
    results: dict[str, dict[str, float]] = {}
    for kind in ("zipf", "uniform"):
        drawn = draw(kind, batches)
        ids = [part.astype(np.uint64) for part in drawn]
        indices = [torch.from_numpy(part) for part in drawn]
        buckets = [buckets_of[part] for part in drawn]

        def limit(i: int, ids: list[NDArray[np.uint64]] = ids, buckets: list[NDArray[np.int64]] = buckets) -> None:
            gather_through_index(buckets[i], ids[i], index, store.floats, store.row_words, store.values_at, out)

        def update(i: int, ids: list[NDArray[np.uint64]] = ids) -> None:
            distinct, distinct_counts, inverse = deduplicator.unique(ids[i], counts)
            summed = np.empty((len(distinct), DIM), np.float32)
            sum_rows(grads, inverse, summed)
            table.update(distinct, distinct_counts, summed)

        def torch_update(i: int, indices: list[torch.Tensor] = indices) -> None:
            weight.grad = torch.sparse_coo_tensor(indices[i][None], torch_grads, (ROWS, DIM), check_invariants=False)
            adagrad.step()

        def torch_lookup(i: int, indices: list[torch.Tensor] = indices) -> None:
            torch.nn.functional.embedding_bag(indices[i], weight, offsets, mode="sum")

        with torch.no_grad():
            results[kind] = medians(
                {
                    "lookup": rate(lambda i, ids=ids: table.gather(ids[i], counts), batches),  # type: ignore[misc]
                    "torch lookup": rate(torch_lookup, batches),
                    "limit of look-ups": rate(limit, batches),
                    "update": rate(update, batches),
                    "torch update": rate(torch_update, max(4, batches // 8)),
                },
                rounds,
            )
    return [figure("lookup", ">= 1.0", results), figure("update", ">= 3", results)]


def figure(what: str, target: str, results: dict[str, dict[str, float]]) -> Figure:
    ratios = {kind: rates[what] / rates[f"torch {what}"] for kind, rates in results.items()}
    worse = min(ratios, key=ratios.__getitem__)
    detail: dict[str, object] = {
        "worse_of": ratios,
        "rows_per_second": {kind: rates[what] for kind, rates in results.items()},
    }
    if what == "lookup":
        detail["limit"] = {kind: rates["limit of look-ups"] / rates["torch lookup"] for kind, rates in results.items()}
    return Figure(f"tables.{what}_ratio", ratios[worse], "x", target, results[worse][f"torch {what}"], detail)


def main() -> None:
    options = arguments(__doc__ or "")
    emit(options, measure(rounds=3 if options.quick else 11, batches=16 if options.quick else 40))


if __name__ == "__main__":
    main()
