"""How much of its time a worker waits for data under URLs, of a store that takes 30 ms for each request.

``python bench/_remote_reading.py``. A worker is played: it reads an epoch in its order, in leases of two seconds, and sleeps for the time
that a minibatch takes to be trained on. Three ways: nothing is expected; what the present lease has, as long as the next one isn't known;
and what the next one begins with, too, from the last quarter of the present one on. The store is moto's, behind a proxy that waits.
"""

from __future__ import annotations

import io
import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from dlrover_lite.data.base import Dataset  # noqa: E402
from dlrover_lite.data.block_cache import process_cache  # noqa: E402
from dlrover_lite.data.open import open_data  # noqa: E402
from dlrover_lite.data.order import BLOCK_SIZE, EpochOrder  # noqa: E402
from dlrover_lite.recipe.schema import CriteoData, Data, ParquetData  # noqa: E402
from tests.data.criteo_lines import generated_lines  # noqa: E402
from tests.data.object_store import CREDENTIALS, FaultyProxy, Trouble, store_process  # noqa: E402

LATENCY_SECONDS = 0.03
BATCH_SIZE, STEP_SECONDS, LEASE_MINIBATCHES = 512, 0.015, 133
SAMPLES = 600_000
WAYS = ("nothing", "this lease", "the next one, too")


class SlowProxy(FaultyProxy):
    def drawn(self) -> Trouble | None:
        time.sleep(LATENCY_SECONDS)
        return super().drawn()


def waiting_share(data: Dataset, way: str) -> float:
    """Read an epoch; return the share of the time that went into reading, without the first lease's beginning."""
    order = EpochOrder(data.samples, seed=1, epoch=0)
    count = data.samples // BATCH_SIZE
    waited = trained = 0.0
    for k in range(count):
        stop = min(count, k - k % LEASE_MINIBATCHES + LEASE_MINIBATCHES)
        last = min(stop * BATCH_SIZE, k * BATCH_SIZE + 3 * BLOCK_SIZE)
        ranges = order.blocks(k * BATCH_SIZE, last)
        if way == WAYS[2] and stop < count and stop - k <= LEASE_MINIBATCHES // 4:
            following = stop * BATCH_SIZE
            ranges += order.blocks(following, min(following + 3 * BLOCK_SIZE, count * BATCH_SIZE))
        began = time.perf_counter()
        if way != WAYS[0]:
            data.expect(ranges)
        data.read(order.numbers(k * BATCH_SIZE, (k + 1) * BATCH_SIZE))
        if k:
            waited += time.perf_counter() - began
        time.sleep(STEP_SECONDS)
        trained += STEP_SECONDS
    return waited / (waited + trained)


def parquet() -> bytes:
    random = np.random.default_rng(0)
    dense = {f"d{i}": random.normal(size=SAMPLES).astype(np.float32) for i in range(13)}
    ids = {f"c{i}": random.integers(0, 1 << 40, SAMPLES) for i in range(26)}
    target = io.BytesIO()
    pq.write_table(
        pa.table({"label": np.arange(SAMPLES) % 2, **dense, **ids}), target, row_group_size=32_768, use_dictionary=False
    )
    return target.getvalue()


def main() -> None:
    os.environ["DLROVER_LITE_HOME"] = tempfile.mkdtemp()
    with store_process() as store:
        proxy = SlowProxy(store)
        os.environ.update({**CREDENTIALS, "AWS_ENDPOINT_URL": proxy.url})
        text = [store.put("a.tsv", b"\n".join(generated_lines(SAMPLES)))]
        rows = [store.put("a.parquet", parquet())]
        columns = ParquetData(
            train=rows,
            label="label",
            dense=[f"d{i}" for i in range(13)],
            categorical=[f"c{i}" for i in range(26)],
            eval_share=0,
        )
        kinds: dict[str, Data] = {"text": CriteoData(train=text, eval_share=0), "parquet": columns}
        for name, recipe in kinds.items():
            for way in WAYS:
                data = open_data(recipe, directory=Path("/"), part="train")
                assert data is not None
                process_cache().close()  # what the index was made of
                process_cache.__globals__["_cache"].cache_clear()
                proxy.met.clear()
                share = waiting_share(data, way)
                print(
                    f"{name:8} expected: {way:18} waits for {share:.1%} of its time, {proxy.met['none']} requests",
                    flush=True,
                )
                data.close()
        proxy.close()


if __name__ == "__main__":
    main()
