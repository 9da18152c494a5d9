"""How much of its time a worker waits for data under URLs, of a store that takes 30 ms for each request.

``python bench/_remote_reading.py``. A worker is played: it reads an epoch in its order, in leases of two seconds, and sleeps for the time
that a minibatch takes to be trained on. Three ways: nothing is expected; what the present lease has, as long as the next one isn't known;
and what the next one begins with, too, from the last quarter of the present one on. The store is this process's memory and a sleep; what
the reading thread itself does, and waits for a core, isn't counted.
"""

from __future__ import annotations

import io
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from dlrover_lite.core.files.remote import RemoteFile, Version  # noqa: E402
from dlrover_lite.data.base import Dataset  # noqa: E402
from dlrover_lite.data.block_cache import process_cache  # noqa: E402
from dlrover_lite.data.open import open_data  # noqa: E402
from dlrover_lite.data.order import BLOCK_SIZE, EpochOrder  # noqa: E402
from dlrover_lite.recipe.schema import CriteoData, Data, ParquetData  # noqa: E402
from dlrover_lite.worker.run_delay import RunDelay  # noqa: E402
from tests.data.criteo_lines import generated_lines  # noqa: E402

LATENCY_SECONDS = 0.03
BATCH_SIZE, STEP_SECONDS, LEASE_MINIBATCHES = 512, 0.015, 133
SAMPLES = 250_000
ROUNDS = 2
WAYS = ("nothing", "this lease", "the next one, too")
STORED: dict[str, bytes] = {}


def read(file: RemoteFile, start: int, stop: int) -> bytes:
    time.sleep(LATENCY_SECONDS)
    return STORED[file.url][start:stop]


def current(file: RemoteFile) -> Version:
    time.sleep(LATENCY_SECONDS)
    return Version(len(STORED[file.url]), 1)


def waiting_share(data: Dataset, way: str, seed: int, delay: RunDelay) -> float:
    """Read an epoch; return the share of the time that the reading thread waited for bytes."""
    order = EpochOrder(data.samples, seed=seed, epoch=0)
    count = data.samples // BATCH_SIZE
    waited = 0.0
    for k in range(count):
        stop = min(count, k - k % LEASE_MINIBATCHES + LEASE_MINIBATCHES)
        ranges = order.blocks(k * BATCH_SIZE, min(stop * BATCH_SIZE, k * BATCH_SIZE + 3 * BLOCK_SIZE))
        if way == WAYS[2] and stop < count and stop - k - 1 <= LEASE_MINIBATCHES // 4:
            following = stop * BATCH_SIZE
            ranges += order.blocks(following, min(following + 3 * BLOCK_SIZE, count * BATCH_SIZE))
        began = time.perf_counter() - time.thread_time() - delay.seconds()
        if way != WAYS[0]:
            data.expect(ranges)
        data.read(order.numbers(k * BATCH_SIZE, (k + 1) * BATCH_SIZE))
        waited += time.perf_counter() - time.thread_time() - delay.seconds() - began
        time.sleep(STEP_SECONDS)
    return waited / (waited + count * STEP_SECONDS)


def parquet() -> bytes:
    random = np.random.default_rng(0)
    dense = {f"d{i}": random.normal(size=SAMPLES).astype(np.float32) for i in range(13)}
    ids = {f"c{i}": random.integers(0, 1 << 40, SAMPLES) for i in range(26)}
    table = pa.table({"label": np.arange(SAMPLES) % 2, **dense, **ids})
    target = io.BytesIO()
    pq.write_table(table, target, row_group_size=BLOCK_SIZE, use_dictionary=False)
    return target.getvalue()


def main() -> None:
    os.environ["DLROVER_LITE_HOME"] = tempfile.mkdtemp()
    RemoteFile.read = read  # type: ignore[assignment,method-assign]
    RemoteFile.current = current  # type: ignore[assignment,method-assign]
    STORED["s3://clicks/a.tsv"] = b"\n".join(generated_lines(SAMPLES))
    STORED["s3://clicks/a.parquet"] = parquet()
    dense, categorical = [f"d{i}" for i in range(13)], [f"c{i}" for i in range(26)]
    kinds: dict[str, Data] = {
        "text": CriteoData(train=["s3://clicks/a.tsv"], eval_share=0),
        "parquet": ParquetData(
            train=["s3://clicks/a.parquet"], label="label", dense=dense, categorical=categorical, eval_share=0
        ),
    }
    shares: dict[tuple[str, str], list[float]] = {}
    with RunDelay() as delay:
        for seed in range(ROUNDS):
            for name, recipe in kinds.items():
                for way in WAYS:
                    data = open_data(recipe, directory=Path("/"), part="train")
                    assert data is not None
                    process_cache().close()  # what the index was made of
                    process_cache.__globals__["_cache"].cache_clear()
                    share = waiting_share(data, way, seed, delay)
                    print(f"{name:8} expected: {way:18} waits for {share:.1%} of its time", flush=True)
                    shares.setdefault((name, way), []).append(share)
                    data.close()
    for (name, way), found in shares.items():
        print(f"{name:8} expected: {way:18} waits for {statistics.median(found):.1%} of its time (median)")


if __name__ == "__main__":
    main()
