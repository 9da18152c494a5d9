"""The plain PyTorch reference learns, and starts where a job starts."""

from __future__ import annotations

import importlib.util
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from dlrover_lite.data.base import Batch, Schema
from dlrover_lite.models.registry import BUILT_IN
from dlrover_lite.recipe.schema import Model
from dlrover_lite.tables.hashing import initial_rows


@pytest.fixture(scope="module")
def reference():
    path = Path(__file__).parents[2] / "bench" / "reference.py"
    spec = importlib.util.spec_from_file_location("bench_reference", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    yield spec.loader.exec_module(module) or module
    del sys.modules[spec.name]


class Clicks:
    """Labels depend on the id of one column and on one dense column."""

    def __init__(self, schema: Schema, samples: int, seed: int) -> None:
        random = np.random.default_rng(seed)
        self.schema, self.samples = schema, samples
        self.ids = random.integers(0, 20, (len(schema.categorical), samples)).astype(np.uint64)
        self.dense = random.normal(size=(samples, len(schema.dense))).astype(np.float32)
        score = (self.ids[0] % 2).astype(np.float32) * 3 - 1.5 + self.dense[:, 0]
        self.labels = (random.random(samples) < 1 / (1 + np.exp(-2 * score))).astype(np.float32)

    def read(self, numbers: np.ndarray) -> Batch:
        return Batch(self.labels[numbers], self.dense[numbers], self.ids[:, numbers], [])

    def close(self) -> None: ...


@pytest.mark.parametrize("use", [use for use in BUILT_IN if use != "census"])  # which learns nothing
def test_reference_learns_every_model(reference, schema, tmp_path, use):
    train, held_out = Clicks(schema, 2000, 0), Clicks(schema, 1000, 1)
    grid = [np.arange(start, start + 100) for start in range(0, 2000, 100)] * 3
    model = Model(use=use, options={"embedding_dim": 4, **({"cin_sizes": [4]} if use == "xdeepfm" else {})})
    options = {"directory": tmp_path, "seed": 0, "learning_rate": 0.05, "evaluate_on": held_out}
    _, auc = reference.train_plain(model, train, grid, **options)
    _, untrained = reference.train_plain(model, train, [], **options)
    assert auc > 0.85 and auc > untrained + 0.1


def test_reference_starts_from_the_initial_rows(reference, schema, tmp_path):
    data = Clicks(schema, 50, 0)
    plain, _ = reference.train_plain(
        Model(use="dlrm", options={"embedding_dim": 4}), data, [], directory=tmp_path, seed=5
    )
    expected = initial_rows(plain.ids["C2"], table="C2", seed=5, dim=4, scale=0.05)
    assert np.array_equal(plain.rows("C2").numpy(), expected)


def test_both_forms_of_the_fast_baseline_train_the_same(reference):
    losses = []
    for fused in (True, False):
        torch.manual_seed(0)
        model = reference.PlainWideDeep(rows_per_feature=50, fused=fused)
        batches = reference.wide_deep_batches(3, batch_size=64, ids=50)
        assert reference.samples_per_second(model, model.optimizers(), batches) > 0
        losses.append(model(batches[0].dense, batches[0].indices))
    torch.testing.assert_close(losses[0], losses[1])


def test_zipf_draws_are_as_frequent_as_their_rank_says(reference):
    drawn = reference.zipf_ids(50_000, ids=1000, exponent=1.2, random=np.random.default_rng(0))
    counts = np.sort(np.bincount(drawn, minlength=1000))[::-1]
    assert counts[0] / counts[1] == pytest.approx(2**1.2, rel=0.1)
    assert drawn.min() >= 0 and drawn.max() < 1000


def test_each_part_of_a_step_is_measured_once(reference, monkeypatch):
    """What is done twice makes the baseline slower than plain PyTorch is."""
    model = reference.PlainWideDeep(rows_per_feature=10)
    optimizers = model.optimizers()
    counts = Counter()

    def counted(where, name):
        real = getattr(where, name)
        monkeypatch.setattr(where, name, lambda *given, **named: (counts.update([name]), real(*given, **named))[1])

    counted(model, "zero_grad")
    counted(model, "forward")
    counted(torch.Tensor, "backward")
    for optimizer in optimizers:
        counted(optimizer, "step")
    assert reference.samples_per_second(model, optimizers, reference.wide_deep_batches(3, batch_size=8, ids=10)) > 0
    assert counts == {"zero_grad": 3, "forward": 3, "backward": 3, "step": 3 * len(optimizers)}
