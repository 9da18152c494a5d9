"""A job whose data lie in an object store that throttles, and cuts connections."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import s3fs

from dlrover_lite.client.trained_models import evaluate
from dlrover_lite.data.block_cache import CACHE_VARIABLE
from dlrover_lite.data.synthetic import write_tsv
from dlrover_lite.recipe.schema import SyntheticData
from tests.data.object_store import CREDENTIALS, FaultyProxy, store_process
from tests.end_to_end.support import SEED, SMALL_WIDE_DEEP, start, succeeded

SAMPLES = 9_000
HELD_OUT = 0.2


@pytest.fixture
def far_and_near(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, str]]:
    """The same samples in an object store, and here."""
    near = tmp_path / "clicks.tsv"
    write_tsv(near, SyntheticData(samples=SAMPLES, ids_per_field=50, seed=3), SAMPLES, False)
    with store_process() as store:
        proxy = FaultyProxy(store.port, SEED)
        for name, value in {**CREDENTIALS, "AWS_ENDPOINT_URL": proxy.url, CACHE_VARIABLE: "32MiB"}.items():
            monkeypatch.setenv(name, value)
        far = store.put("clicks.tsv", near.read_bytes())
        proxy.troubles, proxy.share = ["busy", "cut", "short"], 0.1
        yield far, str(near)
        proxy.close()
        s3fs.S3FileSystem.clear_instance_cache()


def test_a_job_trains_on_an_object_as_on_the_same_file(far_and_near: tuple[str, str]) -> None:
    auc = []
    for url in far_and_near:
        data = {"format": "criteo", "train": [url], "eval_share": HELD_OUT}
        handle = start(SMALL_WIDE_DEEP, data, workers=2, epochs=2, seed=1)
        status = succeeded(handle)
        assert status["samples"] == 2 * SAMPLES * (1 - HELD_OUT)
        assert status["bad_lines"] == 0
        auc.append(status["evaluations"][-1]["auc"])
        # where the samples lie makes no difference to a model, not even in the last bit
        found = [evaluate(handle.id, data=[place]) for place in far_and_near]
        assert found[0].samples == SAMPLES
        assert (found[0].auc, found[0].loss) == (found[1].auc, found[1].loss)
        kept = b"".join(path.read_bytes() for path in handle.directory.rglob("*") if path.is_file())
        assert CREDENTIALS["AWS_SECRET_ACCESS_KEY"].encode() not in kept
    assert auc[0] == pytest.approx(auc[1], abs=0.02)  # two workers never push in the same order twice
    assert auc[0] > 0.65
