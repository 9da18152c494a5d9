"""The census model's gradients are exact, and the check of its export finds a single update too few or too many."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from dlrover_lite.core.errors import ModelError, UsageError
from dlrover_lite.core.metrics import BinaryMetrics
from dlrover_lite.data.base import Schema
from dlrover_lite.data.census import CENSUS_SCHEMA
from dlrover_lite.models.census_check import CensusReport, WrongKey, check_export, reference
from dlrover_lite.models.digests import write_digests
from dlrover_lite.models.registry import build_model, loss_of
from dlrover_lite.models.serving import load_model
from dlrover_lite.models.tables import TableRows
from dlrover_lite.protocol.ps_messages import TableSpec
from dlrover_lite.ps.tables.table import TableGroup
from dlrover_lite.recipe.schema import Model, Optimizer, Schedule
from dlrover_lite.tables.hashing import initial_rows
from tests.models.simulated_census import BATCH, BLOCKS, DENSE, EPOCHS, SAMPLES, Fault, SimulatedCensus, census_recipe

OPTIMIZERS = ("sgd", "adagrad", "adam", "ftrl")
MINIBATCHES = EPOCHS * SAMPLES // BATCH


def check(census: SimulatedCensus, directory: Path, format: str = "npz") -> CensusReport:
    return check_export(census.export(directory / "export", format), census.recipe)


def wrong_keys(report: CensusReport) -> list[tuple[str, int, str]]:
    return [(one.table, one.key, one.problem) for one in report.examples]


def edited(rows: TableRows, change: Callable[[list[np.ndarray]], None]) -> TableRows:
    arrays = [array.copy() for array in rows if array is not None]
    change(arrays)
    return TableRows(*arrays)


@pytest.mark.parametrize("batch", [1, 8, 4096])
@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e6])
def test_census_gradients_are_exactly_one(batch: int, scale: float) -> None:
    options = {"embedding_dim": 5, "dense_values": 9000}
    module = build_model(Model(use="census", options=options), CENSUS_SCHEMA, directory=Path(), seed=2)
    with torch.no_grad():
        module.values.mul_(scale)
    embedded = (torch.randn(batch, 10) * scale).requires_grad_()
    logits = module(torch.empty(batch, 0), embedded)
    loss = loss_of(module)(logits, torch.zeros(batch))
    assert logits.shape == (batch,) and torch.isfinite(loss)
    loss.backward()
    assert torch.equal(embedded.grad, torch.ones(batch, 10))
    assert torch.equal(module.values.grad, torch.ones(9000))
    metrics = BinaryMetrics()
    metrics.add(logits.detach().numpy(), np.zeros(batch))
    assert metrics.auc is None and np.isfinite(metrics.log_loss)


def test_census_model_needs_the_census_columns() -> None:
    with pytest.raises(ModelError, match="'sample'"):
        build_model(Model(use="census"), Schema(dense=("a",), categorical=("b",)), directory=Path(), seed=0)


@pytest.mark.parametrize("use", OPTIMIZERS)
@pytest.mark.parametrize("updates", [1, 3, 30])
def test_reference_rows_equal_those_of_the_tables(use: str, updates: int) -> None:
    optimizer = Optimizer(use=use, **({"l1": 0.01, "l2": 0.1} if use == "ftrl" else {}))
    ids, counts = np.arange(50, dtype=np.uint64), np.array([50])
    group = TableGroup([TableSpec("t", 3, 0.05)], optimizer, seed=7)
    for _ in range(updates):
        group.update(ids, counts, np.full((50, 3), 256.0, np.float32))
    start = initial_rows(ids, table="t", seed=7, dim=3, scale=0.05)
    values, _ = reference(optimizer, start, 256.0, updates)
    assert np.array_equal(values.view(np.uint32), group.gather(ids, counts).view(np.uint32))


@pytest.mark.parametrize("use", OPTIMIZERS)
@pytest.mark.parametrize("format", ["npz", "parquet"])
def test_census_of_a_job_without_faults_is_exact(use: str, format: str, tmp_path: Path) -> None:
    report = check(SimulatedCensus(census_recipe(use)), tmp_path, format)
    assert report.exact and report.examples == []
    assert [(table.table, table.keys, table.updates) for table in report.tables] == [
        ("sample", SAMPLES, EPOCHS),
        ("everyone", 1, MINIBATCHES),
        (BLOCKS, 2, MINIBATCHES),
        ("dense.safetensors", DENSE, MINIBATCHES),
    ]
    assert (report.samples, report.epochs, report.minibatches) == (SAMPLES, EPOCHS, SAMPLES // BATCH)


def test_census_is_exact_with_an_embedding_optimizer(tmp_path: Path) -> None:
    recipe = census_recipe("adam", embedding_optimizer={"use": "ftrl", "l1": 0.001, "learning_rate": 0.1})
    assert check(SimulatedCensus(recipe), tmp_path).exact


@pytest.mark.parametrize("use", OPTIMIZERS)
@pytest.mark.parametrize("times", [0, 2])
@pytest.mark.parametrize(
    ("table", "key", "expected"), [("sample", 11, EPOCHS), ("everyone", 0, MINIBATCHES), (BLOCKS, 1, MINIBATCHES)]
)
def test_census_check_finds_one_lost_or_doubled_update(
    use: str, times: int, table: str, key: int, expected: int, tmp_path: Path
) -> None:
    report = check(SimulatedCensus(census_recipe(use), Fault(table, key, 1, times)), tmp_path)
    mine = next(one for one in report.tables if one.table == table)
    assert (mine.missing, mine.extra, mine.wrong) == (0, 0, 1)
    example = next(one for one in report.examples if one.table == table)
    assert (example.key, example.expected_updates, example.found_updates) == (key, expected, expected + times - 1)
    assert example.where == "value 0" and example.expected != example.found
    # of dense parameters, the trained model shows it too
    others = {one.table for one in report.tables if one.wrong} - {table}
    assert others == ({"dense.safetensors"} if table == BLOCKS else set())


@pytest.mark.parametrize("table", ["sample", BLOCKS])
@pytest.mark.parametrize(
    ("use", "part"),
    [(use, part) for use in OPTIMIZERS for part in ("vectors", "state", "counts") if (use, part) != ("sgd", "state")],
)
def test_census_check_finds_one_flipped_bit(use: str, table: str, part: str, tmp_path: Path) -> None:
    census = SimulatedCensus(census_recipe(use))

    def flip(arrays: list[np.ndarray]) -> None:
        arrays[("ids", "vectors", "counts", "state").index(part)].view(np.uint32).reshape(-1)[1] ^= 1

    census.tables[table] = edited(census.tables[table], flip)
    report = check(census, tmp_path)
    assert report.errors == 1
    (example,) = report.examples
    assert (example.table, example.problem) == (table, "wrong")
    assert example.where.partition(" ")[0] == {"vectors": "value", "state": "state", "counts": ""}[part]
    assert (example.found_updates != example.expected_updates) == (part == "counts")


@pytest.mark.parametrize("use", OPTIMIZERS)
def test_keys_that_are_missing_or_too_many_are_found(use: str, tmp_path: Path) -> None:
    census = SimulatedCensus(census_recipe(use))
    rows = census.tables["sample"]
    lost, stranger, twice = int(rows.ids[0]), SAMPLES, int(rows.ids[1])

    def change(arrays: list[np.ndarray]) -> None:
        for at, array in enumerate(arrays):
            arrays[at] = np.concatenate([array[1:], array[-1:], array[1:2]])
        arrays[0][-2] = stranger

    census.tables["sample"] = edited(rows, change)
    census.tables["everyone"] = edited(
        census.tables["everyone"], lambda arrays: arrays.__setitem__(slice(None), [array[:0] for array in arrays])
    )
    report = check(census, tmp_path)
    sample, everyone, *dense = report.tables
    assert (sample.missing, sample.extra, sample.wrong) == (1, 2, 0)
    assert (everyone.missing, everyone.extra, everyone.wrong) == (1, 0, 0)
    assert report.errors == 4 and not any(one.missing + one.extra + one.wrong for one in dense)
    assert set(wrong_keys(report)) == {
        ("sample", lost, "missing"),
        ("sample", stranger, "extra"),
        ("sample", twice, "extra"),
        ("everyone", 0, "missing"),
    }


def test_census_check_finds_a_row_that_comes_twice(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("dlrover_lite.models.tables._CHUNK_BYTES", 300)
    census = SimulatedCensus(census_recipe())
    assert check(census, tmp_path).exact
    census.tables["sample"] = edited(
        census.tables["sample"],
        lambda arrays: arrays.__setitem__(slice(None), [np.concatenate([array, array[:1]]) for array in arrays]),
    )
    report = check(census, tmp_path)
    assert report.errors == 1 and report.examples[0].problem == "extra"


def test_census_check_covers_the_trained_dense_parameters(tmp_path: Path) -> None:
    census = SimulatedCensus(census_recipe())
    census.dense.view(np.uint32)[7] ^= 1
    report = check(census, tmp_path)
    assert wrong_keys(report) == [("dense.safetensors", 7, "wrong")]
    census.dense = census.dense[:-2]
    assert report.errors == 1 and check(census, tmp_path).tables[-1].missing == 2


def test_padding_of_the_last_dense_block_is_ignored(tmp_path: Path) -> None:
    census = SimulatedCensus(census_recipe("adam"))

    def scribble(arrays: list[np.ndarray]) -> None:
        last = arrays[0] == 1
        arrays[1][last, DENSE - 4096 :] = 9.0
        for part in (0, 1):
            arrays[3].reshape(2, 2, 4096)[last, part, DENSE - 4096 :] = 9.0

    census.tables[BLOCKS] = edited(census.tables[BLOCKS], scribble)
    assert check(census, tmp_path).exact


def test_census_check_shows_few_examples_of_many_errors(tmp_path: Path) -> None:
    census = SimulatedCensus(census_recipe())
    census.tables["sample"] = edited(census.tables["sample"], lambda arrays: arrays[2].__iadd__(1))
    report = check(census, tmp_path)
    assert report.errors == SAMPLES
    assert 0 < len(report.examples) < 10 and all(isinstance(one, WrongKey) for one in report.examples)


def test_progress_of_the_census_check_counts_keys(tmp_path: Path) -> None:
    census, seen = SimulatedCensus(census_recipe()), []
    check_export(census.export(tmp_path / "export"), census.recipe, seen.append)
    assert seen[-1] == SAMPLES + 1 + 2


def test_exports_that_cannot_be_checked_are_refused_with_a_reason(tmp_path: Path) -> None:
    census = SimulatedCensus(census_recipe())
    target = census.export(tmp_path / "export")
    falling = msgspec.structs.replace(census.recipe.training, schedule=Schedule(use="linear"))
    with pytest.raises(UsageError, match=r"training\.schedule\.use"):
        check_export(target, msgspec.structs.replace(census.recipe, training=falling))
    with pytest.raises(UsageError, match="no census"):
        check_export(target, msgspec.structs.replace(census.recipe, model=Model(use="dlrm")))
    text = (target / "model.json").read_text()
    (target / "model.json").write_text(text.replace('"optimizers"', '"others"'))
    write_digests(target)
    with pytest.raises(UsageError, match="without optimizer state") as raised:
        check_export(target, census.recipe)
    assert "export.optimizer_state=yes" in raised.value.hint
    (target / "model.json").write_text(text)
    write_digests(target)
    (target / "dense_blocks.npz").unlink()
    with pytest.raises(ModelError, match=r"dense_blocks\.npz"):
        check_export(target, census.recipe)


def test_export_of_a_census_loads_as_a_model(tmp_path: Path) -> None:
    census = SimulatedCensus(census_recipe())
    model = load_model(census.export(tmp_path / "export"))
    assert torch.equal(model.network.values, torch.from_numpy(census.dense))
    ids = np.array([[3, 60], [0, 0]], np.uint64)
    assert torch.isfinite(model(np.empty((2, 0), np.float32), ids)).all()
