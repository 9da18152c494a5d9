from __future__ import annotations

import gzip
import json
import math
import os
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from dlrover_lite.cli.commands.model.data import data as data_command
from dlrover_lite.core.errors import DataError, UsageError
from dlrover_lite.data.open import open_data
from dlrover_lite.data.synthetic import BEST_AUC, POSITIVE_SHARE, SyntheticDataset, best_auc, write_tsv
from dlrover_lite.recipe.schema import CriteoData, SyntheticData

SPEC = SyntheticData(samples=20_000, ids_per_field=1000, seed=7)


def dataset(spec: SyntheticData = SPEC, first: int = 0) -> SyntheticDataset:
    return SyntheticDataset(spec, first=first, samples=spec.samples)


def test_a_synthetic_sample_depends_on_its_number_alone() -> None:
    whole = dataset().read(np.arange(3000))
    some = np.random.default_rng(0).permutation(3000)[:500]
    picked = dataset(first=100).read(some[some >= 100] - 100)
    some = some[some >= 100]
    assert np.array_equal(picked.labels, whole.labels[some])
    assert np.array_equal(picked.dense, whole.dense[some])
    assert np.array_equal(picked.ids, whole.ids[:, some])


def test_seeds_give_different_samples() -> None:
    other = SyntheticData(samples=100, ids_per_field=1000, seed=8)
    left, right = dataset().read(np.arange(100)), dataset(other).read(np.arange(100))
    assert (left.ids == right.ids).mean() < 0.5
    assert not np.array_equal(left.labels, right.labels)


@pytest.mark.parametrize(("ids_per_field", "exponent"), [(1, 1.0), (50, 0.0), (1000, 1.2), (200_000, 1.2)])
def test_ids_follow_the_distribution(ids_per_field: int, exponent: float) -> None:
    spec = SyntheticData(samples=20_000, ids_per_field=ids_per_field, zipf_exponent=exponent)
    ids = dataset(spec).read(np.arange(20_000)).ids
    expected = np.arange(1, ids_per_field + 1) ** -exponent
    expected /= expected.sum()
    for field in range(24):
        found, counts = np.unique(ids[field][ids[field] > 0], return_counts=True)
        assert len(found) <= ids_per_field
        counts = np.sort(counts)[::-1]
        assert counts[0] / counts.sum() == pytest.approx(expected[0], abs=0.015)
        assert counts[:20].sum() / counts.sum() == pytest.approx(expected[:20].sum(), abs=0.05)


@pytest.mark.parametrize("ids_per_field", [1, 1000, 100_000])
@pytest.mark.parametrize("seed", [0, 1])
def test_labels_have_the_promised_share_and_auc(ids_per_field: int, seed: int) -> None:
    spec = SyntheticData(samples=20_000, ids_per_field=ids_per_field, seed=seed)
    assert dataset(spec).read(np.arange(20_000)).labels.mean() == pytest.approx(POSITIVE_SHARE, abs=0.02)
    assert best_auc(spec) == pytest.approx(BEST_AUC, abs=0.02)


def test_ids_alone_explain_most_of_the_labels() -> None:
    """Added-up log odds of each id, counted on some samples, rank others nearly as well as the teacher does."""
    count = 60_000
    spec = SyntheticData(samples=count, eval_samples=5000, ids_per_field=100)
    train, test = (
        dataset(spec).read(np.arange(count)),
        SyntheticDataset(spec, first=count, samples=5000).read(np.arange(5000)),
    )
    scores = np.zeros(len(test.labels))
    for field in range(26):
        known, places = np.unique(np.concatenate([train.ids[field], test.ids[field]]), return_inverse=True)
        clicks = np.bincount(places[:count], train.labels, len(known)) + 25
        misses = np.bincount(places[:count], 1 - train.labels, len(known)) + 75
        scores += np.log(clicks / misses)[places[count:]]
    positive, negative = scores[test.labels == 1], scores[test.labels == 0]
    auc = (positive[:, None] > negative[None, :]).mean()
    assert auc > best_auc(spec) - 0.05


def test_best_auc_without_both_labels_is_nan() -> None:
    assert math.isnan(best_auc(SPEC, 0, 1))


@pytest.mark.parametrize("gz", [False, True])
def test_a_written_file_reads_as_the_same_samples(tmp_path: Path, gz: bool) -> None:
    path = tmp_path / "a.tsv"
    calls: list[tuple[str, int, int]] = []
    auc = write_tsv(path, SPEC, 9000, gz, lambda *call: calls.append(call))
    assert calls[-1] == ("writing a.tsv", 9000, 9000)
    assert auc == pytest.approx(best_auc(SPEC, 0, 9000))
    opened = open_data(CriteoData(train=[str(path)], eval_share=0), directory=tmp_path, part="train")
    assert opened is not None
    assert opened.samples == 9000
    numbers = np.arange(9000)
    batch, expected = opened.read(numbers), dataset().read(numbers)
    assert batch.bad == []
    assert np.array_equal(batch.labels, expected.labels)
    assert np.array_equal(batch.ids, expected.ids)
    np.testing.assert_allclose(batch.dense, expected.dense, rtol=1e-6)
    lines = (gzip.decompress(path.read_bytes()) if gz else path.read_bytes()).splitlines()
    assert {38, 40} <= {line.count(b"\t") + 1 for line in lines}
    assert any(b"\t\t" in line for line in lines)
    assert (batch.dense < 0).any()


def test_the_same_options_write_the_same_file(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_tsv(tmp_path / name, SPEC, 500, True)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere/a\.tsv can't be written"):
        write_tsv(tmp_path / "nowhere" / "a.tsv", SPEC, 10, False)


def test_a_pipe_is_not_replaced_by_the_written_file(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.tsv"
    os.mkfifo(pipe)
    with pytest.raises(DataError, match=r"pipe\.tsv is no file"):
        write_tsv(pipe, SPEC, 10, gz=False)
    assert pipe.is_fifo() and list(tmp_path.iterdir()) == [pipe]


def test_more_ids_than_the_table_holds_are_refused() -> None:
    with pytest.raises(DataError, match="ids per field"):
        dataset(SyntheticData(samples=1, ids_per_field=10**12))


def test_the_command_prints_how_to_use_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv.gz"
    result = CliRunner().invoke(data_command, ["synth", str(path), "--samples", "2000", "--ids-per-field", "100"])
    assert result.exit_code == 0
    assert "Best reachable AUC on them: 0.8" in result.stdout or "Best reachable AUC on them: 0.7" in result.stdout
    assert f'data:\n  format: criteo\n  train: ["{path}"]\n' in result.stdout
    assert len(gzip.decompress(path.read_bytes()).splitlines()) == 2000
    assert result.stderr == ""
    assert [entry.name for entry in tmp_path.iterdir() if entry.name != "home"] == ["a.tsv.gz"]


def test_data_synth_as_json(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    result = CliRunner().invoke(data_command, ["synth", str(path), "--samples", "2000", "--seed", "3", "--json"])
    found = json.loads(result.stdout)
    assert found.pop("best_auc") == pytest.approx(BEST_AUC, abs=0.05)
    assert found == {"path": str(path), "samples": 2000, "bytes": path.stat().st_size}


def test_the_command_keeps_a_file_that_exists(tmp_path: Path) -> None:
    path = tmp_path / "real.tsv"
    path.write_text("somebody's clicks\n")
    arguments = ["synth", str(path), "--samples", "50", "--ids-per-field", "100"]
    refused = CliRunner().invoke(data_command, arguments)
    assert isinstance(refused.exception, UsageError)
    assert "exists already" in str(refused.exception) and "--overwrite" in str(refused.exception)
    assert path.read_text() == "somebody's clicks\n"
    assert CliRunner().invoke(data_command, [*arguments, "--overwrite"]).exit_code == 0
    assert len(path.read_text().splitlines()) == 50
