"""Exports are written in pieces, put in place in one step, and load as plain torch modules."""

from __future__ import annotations

import errno
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dlrover_lite.core.errors import DataError, JobError, ModelError
from dlrover_lite.data.base import Batch, Schema
from dlrover_lite.data.kernels.fields import category_id
from dlrover_lite.models import export, tables
from dlrover_lite.models.copying import copy_export
from dlrover_lite.models.digests import write_digests
from dlrover_lite.models.export import ExportWriter, Manifest, Optimizers, TableEntry
from dlrover_lite.models.registry import build_model
from dlrover_lite.models.serving import evaluate_export, load_model, read_manifest
from dlrover_lite.models.tables import TableRows
from dlrover_lite.recipe.id_kinds import FileIds, IdKind, SeenColumn
from dlrover_lite.recipe.schema import Model, Optimizer
from dlrover_lite.tables.hashing import initial_rows

SEED = 11
DIM = 4


class Trained:
    """A small model as a job would have it: a module, and tables by name."""

    def __init__(self, schema: Schema, directory: Path, use: str = "dlrm") -> None:
        self.model = Model(use=use, options={"embedding_dim": DIM})
        self.directory, self.schema = directory, schema
        self.data_format, self.id_kinds = "criteo", {}
        self.module = build_model(self.model, schema, directory=directory, seed=1)
        random = np.random.default_rng(0)
        self.tables = {}
        for field in self.module.embedding_fields:
            ids = random.permutation(np.r_[random.integers(0, 2**64, 300, np.uint64), np.uint64(0)])
            self.tables[field.table_name] = (ids, random.normal(size=(len(ids), field.dim)).astype(np.float32))

    @property
    def manifest(self) -> Manifest:
        fields = list(self.module.embedding_fields)
        kinds = self.id_kinds
        return Manifest(
            model=self.model, schema=self.schema, fields=fields, seed=SEED, data_format=self.data_format, id_kinds=kinds
        )

    def write(self, target: Path, format: str = "npz", **options) -> Path:
        writer = ExportWriter(target, self.manifest, format, model_directory=self.directory, **options)
        with writer:
            writer.write_dense({name: tensor.numpy() for name, tensor in self.module.state_dict().items()})
            for start in range(0, 301, 100):
                for name, (ids, vectors) in self.tables.items():
                    writer.add_rows(name, ids[start : start + 100], vectors[start : start + 100])
            return writer.finish()

    def logits(self, dense: np.ndarray, ids: np.ndarray) -> torch.Tensor:
        parts = []
        for row, field in enumerate(self.module.embedding_fields):
            keys, vectors = self.tables[field.table_name]
            known = dict(zip(keys.tolist(), vectors, strict=True))
            initial = initial_rows(ids[row], table=field.table_name, seed=SEED, dim=field.dim, scale=field.init_scale)
            parts.append(
                np.stack([known.get(key, start) for key, start in zip(ids[row].tolist(), initial, strict=True)])
            )
        with torch.no_grad():
            return self.module(torch.from_numpy(dense), torch.from_numpy(np.concatenate(parts, 1)))

    def inputs(self, samples: int = 20) -> tuple[np.ndarray, np.ndarray]:
        """Half of the ids known, half not."""
        random = np.random.default_rng(1)
        ids = np.stack([keys[:samples] for keys, _ in self.tables.values()])
        ids[:, samples // 2 :] = random.integers(0, 2**64, (len(ids), samples - samples // 2), np.uint64)
        return random.normal(size=(samples, len(self.schema.dense))).astype(np.float32), ids


def ends_of(told: list[tuple[str, float, float, str]]) -> list[str]:
    """The steps, of which each gets on all the time, and to its end before the next one begins."""
    found: dict[str, list[tuple[float, float]]] = {}
    for what, done, total, _ in told:
        found.setdefault(what, []).append((done, total))
        assert list(found)[-1] == what
    for news in found.values():
        amounts = [done for done, _ in news]
        assert amounts == sorted(amounts)
        assert news[-1][0] == news[-1][1] == news[0][1]
    return list(found)


@pytest.fixture
def trained(schema, tmp_path) -> Trained:
    return Trained(schema, tmp_path)


def without_digests(export: Path) -> None:
    """As versions wrote it that kept none."""
    manifest = json.loads((export / "model.json").read_text())
    assert manifest.pop("digests") == "SHA256SUMS"
    (export / "model.json").write_text(json.dumps(manifest))
    (export / "SHA256SUMS").unlink()


def leftovers(directory: Path) -> list[str]:
    return [path.name for path in directory.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("format", ["npz", "parquet"])
@pytest.mark.parametrize("buffered", [0, 64 << 20])
def test_a_loaded_export_gives_the_same_logits(trained, tmp_path, format, buffered, monkeypatch):
    monkeypatch.setattr(export, "BUFFERED_BYTES", buffered)
    target = trained.write(tmp_path / "out" / "model", format)
    model = load_model(target)
    dense, ids = trained.inputs()
    expected = trained.logits(dense, ids)
    with torch.no_grad():
        torch.testing.assert_close(model(dense, ids), expected)
        torch.testing.assert_close(model(torch.from_numpy(dense), torch.from_numpy(ids.view(np.int64))), expected)
    torch.testing.assert_close(model.predict(dense, ids), torch.sigmoid(expected))
    assert model.schema == trained.schema and not model.training
    assert leftovers(target.parent) == []
    assert sorted(path.name for path in target.iterdir()) == ["SHA256SUMS", "dense.safetensors", "model.json", "tables"]
    assert {path.suffix for path in (target / "tables").iterdir()} == {f".{format}"}


def test_an_npz_table_is_two_plain_arrays(trained, tmp_path):
    target = trained.write(tmp_path / "model")
    arrays = np.load(target / "tables" / "C1.npz")
    ids, vectors = trained.tables["C1"]
    assert np.array_equal(arrays["ids"], ids) and np.array_equal(arrays["vectors"], vectors)
    manifest = json.loads((target / "model.json").read_text())
    assert manifest["version"] == 1 and manifest["tables"][0]["rows"] == 301


def test_writing_an_export_needs_no_torch():
    code = "import sys, dlrover_lite.models.export, dlrover_lite.core.metrics; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_tables_without_rows_start_from_initial_values(trained, tmp_path):
    for format in ("npz", "parquet"):
        writer = ExportWriter(tmp_path / format, trained.manifest, format)
        writer.write_dense({name: tensor.numpy() for name, tensor in trained.module.state_dict().items()})
        model = load_model(writer.finish())
        rows = model.tables["C2"].find(np.array([5, 6], np.uint64))[0]
        assert np.array_equal(
            rows, initial_rows(np.array([5, 6], np.uint64), table="C2", seed=SEED, dim=DIM, scale=0.05)
        )


def test_export_of_a_user_model_includes_its_code(schema, tmp_path):
    source = tmp_path / "source"
    (source / "parts_of_mine").mkdir(parents=True)
    (source / "my_model.py").write_text(
        "import torch\nfrom torch import nn\nfrom layers_of_mine import head\n"
        "from dlrover_lite.models.fields import EmbeddingField\n"
        "class Mine(nn.Module):\n"
        "    def __init__(self, embedding_dim):\n"
        "        super().__init__()\n"
        "        self.embedding_fields = [EmbeddingField('C1', embedding_dim, table='t'),"
        " EmbeddingField('C3', embedding_dim, table='t')]\n"
        "        self.head = head(2 * embedding_dim)\n"
        "    def forward(self, dense, embedded):\n"
        "        return self.head(embedded)\n"
    )
    (source / "layers_of_mine.py").write_text(
        "from torch import nn\nfrom parts_of_mine.more import ONE\ndef head(n):\n    return nn.Linear(n, ONE)\n"
    )
    (source / "parts_of_mine" / "__init__.py").write_text("")
    (source / "parts_of_mine" / "more.py").write_text("ONE = 1\n")
    (source / "unrelated.py").write_text("")
    trained = Trained(schema, source, "my_model.py:Mine")
    target = trained.write(tmp_path / "export")
    copied = {str(path.relative_to(target / "model")) for path in (target / "model").rglob("*.py")}
    assert copied == {"my_model.py", "layers_of_mine.py", "parts_of_mine/__init__.py", "parts_of_mine/more.py"}
    (source / "my_model.py").unlink()
    ids = np.stack([trained.tables["t"][0][:5]] * 4)
    logits = load_model(target)(np.zeros((5, 3), np.float32), ids)
    vectors = torch.from_numpy(trained.tables["t"][1][:5])
    torch.testing.assert_close(logits, trained.module.head(torch.cat([vectors, vectors], 1)).squeeze(1))


def test_only_exports_and_empty_directories_are_replaced(trained, tmp_path):
    target = tmp_path / "model"
    target.mkdir()
    trained.write(target)
    (target / "stray").write_text("from the older export")
    trained.write(target, "parquet")
    assert not (target / "stray").exists() and leftovers(tmp_path) == []
    with pytest.raises(JobError, match="holds an exported model already"):
        trained.write(target, overwrite=False)
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.tex").write_text("x")
    with pytest.raises(JobError, match="not an exported model"):
        trained.write(precious)
    with pytest.raises(JobError, match="not an exported model"):
        trained.write(precious / "thesis.tex")
    assert (precious / "thesis.tex").read_text() == "x"


def test_aborting_an_export_leaves_the_older_one_unchanged(trained, tmp_path):
    target = trained.write(tmp_path / "model")
    before = (target / "model.json").read_bytes()
    for format in ("npz", "parquet"):
        with ExportWriter(target, trained.manifest, format) as writer:
            writer.add_rows("C1", *trained.tables["C1"])
    assert (target / "model.json").read_bytes() == before and leftovers(tmp_path) == []


@pytest.mark.parametrize("code, message", [(errno.ENOSPC, "disk is full"), (errno.EROFS, "can't be exported")])
def test_a_full_disk_names_the_directory_and_cleans_up(trained, tmp_path, monkeypatch, code, message):
    def full(self, rows):
        raise OSError(code, "no")

    monkeypatch.setattr(tables._NpzWriter, "add", full)
    with pytest.raises(JobError, match=message) as raised:
        trained.write(tmp_path / "model")
    assert str(tmp_path / "model") in raised.value.message and "another directory" in raised.value.hint
    with (
        pytest.raises(JobError) as in_a_job,
        ExportWriter(tmp_path / "model", trained.manifest, elsewhere="set X") as writer,
    ):
        writer.add_rows("C1", *trained.tables["C1"])
        writer.finish()
    assert in_a_job.value.hint.endswith(", or set X.")
    assert list(tmp_path.iterdir()) == []


def test_rows_of_another_shape_are_refused(trained, tmp_path):
    with ExportWriter(tmp_path / "model", trained.manifest) as writer:
        with pytest.raises(ValueError, match="no table 'C9'"):
            writer.add_rows("C9", np.zeros(1, np.uint64), np.zeros((1, DIM), np.float32))
        with pytest.raises(ValueError, match="vectors"):
            writer.add_rows("C1", np.zeros(2, np.uint64), np.zeros((2, DIM + 1), np.float32))


@pytest.mark.parametrize("format", ["npz", "parquet"])
@pytest.mark.parametrize("file", ["model.json", "dense.safetensors", "tables/C2"])
@pytest.mark.parametrize("damage", ["missing", "truncated", "garbage"])
@pytest.mark.parametrize("older", [False, True], ids=["with digests", "without digests"])
@pytest.mark.filterwarnings("ignore:The export in")
def test_missing_and_damaged_files_are_named(trained, tmp_path, format, file, damage, older):
    target = trained.write(tmp_path / "model", format)
    if older:
        without_digests(target)
    path = target / (f"{file}.{format}" if file.startswith("tables") else file)
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2] if damage == "truncated" else b"\x00" * 500)
    with pytest.raises(ModelError) as raised:
        load_model(target)
    assert str(path) in raised.value.message and raised.value.hint
    assert ".." not in raised.value.message.replace(str(path), "")


def test_a_job_without_an_export_is_told_apart():
    with pytest.raises(ModelError, match="no exported model"):
        load_model(None)


def test_a_newer_format_names_the_upgrade(trained, tmp_path):
    target = trained.write(tmp_path / "model")
    (target / "model.json").write_text('{"version": 2, "whatever": 1}')
    write_digests(target)
    with pytest.raises(ModelError, match="format 2") as raised:
        read_manifest(target)
    assert "pip install --upgrade" in raised.value.hint


def test_other_dense_parameters_are_refused(trained, tmp_path):
    with ExportWriter(tmp_path / "model", trained.manifest) as writer:
        state = {name: tensor.numpy() for name, tensor in trained.module.state_dict().items()}
        state.pop("top.0.bias")
        writer.write_dense(state)
        target = writer.finish()
    with pytest.raises(ModelError, match=r"top\.0\.bias"):
        load_model(target)


def test_inputs_of_another_shape_are_explained(trained, tmp_path):
    model = load_model(trained.write(tmp_path / "model"))
    dense, ids = trained.inputs()
    for wrong in ((dense, ids.T), (dense[:, :2], ids), (dense[:3], ids)):
        with pytest.raises(ModelError, match="got dense") as raised:
            model(*wrong)
        assert "[n, 3]" in raised.value.hint
    with pytest.raises(ModelError, match="float64"):
        model(dense, ids.astype(np.float64))


def unescaped(file: str) -> str:
    """Return the table name that ``escape`` was given."""
    raw = re.sub(rb"%([0-9A-F]{2})", lambda found: bytes([int(found[1], 16)]), file.encode())
    return "" if file == "%" else raw.decode()


@given(st.text(max_size=12), st.booleans())
def test_table_names_become_safe_file_names_and_back(name, every):
    file = tables.escape(name, every=every)
    assert unescaped(file) == name
    assert file and not file.startswith(".") and all(c.isascii() and (c.isalnum() or c in "%_.-") for c in file)


def test_tables_with_odd_or_similar_names_get_a_file_each(schema, tmp_path):
    names = ("a/b", "A", "a", "..", "ü")
    odd = Trained(Schema(("I1",), names), tmp_path)
    target = odd.write(tmp_path / "model")
    files = [entry.file for entry in read_manifest(target).tables]
    assert len({file.casefold() for file in files}) == len(names)
    dense, ids = odd.inputs()
    torch.testing.assert_close(load_model(target)(dense, ids).detach(), odd.logits(dense, ids))


class Rows:
    """A dataset of known samples, of which number 7 is bad."""

    def __init__(self, schema: Schema, dense: np.ndarray, ids: np.ndarray, labels: np.ndarray) -> None:
        self.schema, self.samples = schema, len(labels)
        self.dense, self.ids, self.labels = dense, ids, labels
        self.files: list[FileIds] = []
        self.expect = list

    def read(self, numbers: np.ndarray) -> Batch:
        good = numbers[numbers != 7]
        return Batch(self.labels[good], self.dense[good], self.ids[:, good], [])

    def look_at_ids(self) -> list[FileIds]:
        return self.files

    def close(self) -> None: ...


def test_export_is_evaluated_on_data(trained, tmp_path):
    target = trained.write(tmp_path / "model")
    dense, ids = trained.inputs(20)
    labels = np.tile([0.0, 1.0], 10).astype(np.float32)
    seen: list[int] = []
    result = evaluate_export(target, Rows(trained.schema, dense, ids, labels), 6, seen.append)
    assert result.unknown_ids == dict.fromkeys(trained.schema.categorical, 10 / 19)  # see ``inputs``; sample 7 is bad
    logits = np.delete(trained.logits(dense, ids).numpy(), 7)
    positive = np.delete(labels, 7) == 1
    pairs = logits[positive][:, None] - logits[~positive][None, :]
    assert result.samples == 19 and seen == [6, 12, 18, 20]
    assert result.auc == pytest.approx(np.mean(pairs > 0), abs=0.02)
    assert result.loss == pytest.approx(np.mean(np.logaddexp(0, np.where(positive, -logits, logits))), rel=1e-5)


def test_evaluation_on_other_columns_is_refused(trained, tmp_path):
    target = trained.write(tmp_path / "model")
    other = Rows(Schema(("I1",), ("C1",)), np.zeros((1, 1)), np.zeros((1, 1)), np.zeros(1))
    with pytest.raises(DataError, match="it has no C2, C3, C4, I2, I3"):
        evaluate_export(target, other)


def test_evaluation_on_ids_of_another_kind_is_refused(trained, tmp_path):
    """Without kinds in ``model.json``, as older versions wrote it, what follows from the format of the data counts."""
    target = trained.write(tmp_path / "model")
    rows = Rows(trained.schema, *trained.inputs(20), np.tile([0.0, 1.0], 10).astype(np.float32))
    rows.files = [FileIds("/a.parquet", {"C1": SeenColumn("text", "string")})]
    with pytest.raises(
        DataError, match=r"'C1' has text \(string in /a.parquet\), .* has integers \(criteo\): none of its ids"
    ):
        evaluate_export(target, rows)
    rows.files = [FileIds("/a.parquet", {"C1": SeenColumn("integer", "int64")})]
    assert evaluate_export(target, rows).samples == 19


@pytest.mark.parametrize("kept", [True, False])
def test_ids_that_are_no_keys_are_refused_by_a_loaded_model(trained, tmp_path, kept):
    trained.id_kinds = (
        {"C1": IdKind("integer", "int64 in a.parquet"), "C2": IdKind("text", "string in a.parquet")} if kept else {}
    )
    trained.data_format = "parquet"
    model = load_model(trained.write(tmp_path / "model"))
    dense, ids = trained.inputs(2)
    said = "integers in C1, text in C2" if kept else "keys that its data's reader made"
    for wrong in (ids.astype(str), ids.astype(object), ids.astype(np.float64), ids.astype(np.int32)):
        with pytest.raises(ModelError, match=f"not keys of ids: it was trained on {said}"):
            model.predict(dense, wrong)
    columns = {"C1": [1267, None], "C2": ["1267", ""], "C3": [5, 7], "C4": ["a", "b"]}
    keys = model.keys(columns)
    assert keys.dtype == np.uint64 and keys[0].tolist() == [1268, 0] and keys[1].tolist() == [category_id("1267"), 0]
    assert torch.equal(model.predict(dense, keys), torch.sigmoid(trained.logits(dense, keys)))
    if kept:
        with pytest.raises(
            DataError, match=r"'C1' has the text '1267', and the model was trained on integers \(int64 in a.parquet\)"
        ):
            model.keys({**columns, "C1": ["1267", "5"]})
    with pytest.raises(ModelError, match="C5: not the model's columns"):
        model.keys({**columns, "C5": [1, 2]})
    with pytest.raises(ModelError, match="C4: not the model's columns"):
        model.keys({name: values for name, values in columns.items() if name != "C4"})
    with pytest.raises(ModelError, match="different lengths"):
        model.keys({**columns, "C4": ["a"]})


@pytest.mark.parametrize(
    ("first", "second"), [("npz", "parquet"), ("parquet", "npz"), ("npz", None), ("parquet", None)]
)
def test_a_copied_export_holds_the_same_in_any_format(trained, tmp_path, monkeypatch, first, second) -> None:
    pytest.importorskip("pyarrow")
    source = trained.write(tmp_path / "source", first)
    monkeypatch.setattr(tables, "_CHUNK_BYTES", 1000)  # so that a table comes in several chunks
    told: list[tuple[str, float, float, str]] = []
    written = copy_export(source, tmp_path / "copy", second, steps=lambda *step: told.append(step))
    assert {path.suffix[1:] for path in (written / "tables").iterdir()} == {second or first}
    rows = sum(len(ids) for ids, _ in trained.tables.values())
    assert ("exporting", rows, rows, "rows") in told
    assert sum(step[0] == "exporting" for step in told) > len(trained.tables)
    assert ends_of(told) == [
        "exporting",
        *(["putting files together"] if (second or first) == "npz" else []),
        "computing digests",
    ]
    one, other = load_model(source), load_model(written)
    for name, table in one.tables.items():
        assert np.array_equal(table.ids, other.tables[name].ids)
        assert np.array_equal(table.vectors, other.tables[name].vectors)
    inputs = trained.inputs()
    assert torch.equal(one.predict(*inputs), other.predict(*inputs))


@pytest.fixture(params=["sgd", "adagrad", "adam"])
def with_state(request, trained, tmp_path) -> tuple[dict[str, TableRows], Callable[..., Path]]:
    """Rows by table (dense blocks as ""), and what writes an export of them."""
    parts = {"sgd": 0, "adagrad": 1, "adam": 2}[request.param]
    random = np.random.default_rng(2)

    def rows(ids: np.ndarray, vectors: np.ndarray) -> TableRows:
        n, dim = vectors.shape
        counts = random.integers(0, 2**32, n, np.uint32)
        return TableRows(ids, vectors, counts, random.normal(size=(n, dim * parts)).astype(np.float32))

    made = {name: rows(ids, vectors) for name, (ids, vectors) in trained.tables.items()}
    made[""] = rows(np.array([1, 0], np.uint64), random.normal(size=(2, 4096)).astype(np.float32))
    optimizers = Optimizers(Optimizer(use=request.param), Optimizer(use=request.param, learning_rate=0.5))

    def write(format: str, target: Path = tmp_path / "source") -> Path:
        manifest = msgspec.structs.replace(trained.manifest, optimizers=optimizers)
        with ExportWriter(target, manifest, format) as writer:
            writer.write_dense({name: tensor.numpy() for name, tensor in trained.module.state_dict().items()})
            for start in (0, 200):
                for name in trained.tables:
                    writer.add_rows(name, *(array[start : start + 200] for array in made[name]))
                writer.add_dense_blocks(*(array[start : start + 200] for array in made[""]))
            return writer.finish()

    return made, write


def all_rows(directory: Path, entry: TableEntry) -> TableRows:
    file = directory / entry.file
    return tables.joined(
        list(tables.iterate_table(file, rows=entry.rows, dim=entry.dim, state_parts=entry.state_parts))
    )


@pytest.mark.parametrize("format", ["npz", "parquet"])
@pytest.mark.parametrize("copied", [None, "npz", "parquet"])
def test_optimizer_state_survives_exporting_and_copying(
    with_state, trained, tmp_path, monkeypatch, format, copied
) -> None:
    monkeypatch.setattr(tables, "_CHUNK_BYTES", 5000)
    expected, write = with_state
    target = write(format)
    if copied:
        target = copy_export(target, tmp_path / "copy", copied)
    manifest = read_manifest(target)
    assert manifest.optimizers is not None and manifest.optimizers.dense.learning_rate == 0.5
    assert manifest.dense_blocks is not None and manifest.dense_blocks.file == f"dense_blocks.{copied or format}"
    for name, entry in [*((entry.name, entry) for entry in manifest.tables), ("", manifest.dense_blocks)]:
        for one, other in zip(all_rows(target, entry), expected[name], strict=True):
            assert one.dtype == other.dtype and np.array_equal(one, other)
    dense, ids = trained.inputs()
    torch.testing.assert_close(load_model(target)(dense, ids).detach(), trained.logits(dense, ids))


def test_rows_come_with_state_or_without_as_the_export_says(with_state, trained, tmp_path) -> None:
    expected, _ = with_state
    ids, vectors, counts, state = expected["C1"]
    with ExportWriter(tmp_path / "plain", trained.manifest) as writer:
        with pytest.raises(ValueError, match="'C1'"):
            writer.add_rows("C1", ids, vectors, counts, state)
        with pytest.raises(ValueError, match="without optimizer state"):
            writer.add_dense_blocks(*expected[""])
    optimizers = Optimizers(Optimizer(use="ftrl"), Optimizer(use="ftrl"))
    with ExportWriter(tmp_path / "full", msgspec.structs.replace(trained.manifest, optimizers=optimizers)) as writer:
        for wrong in ((), (counts,), (counts[1:], state), (counts, np.zeros((len(ids), 1), np.float32))):
            with pytest.raises(ValueError, match="'C1'"):
                writer.add_rows("C1", ids, vectors, *wrong)


@pytest.mark.parametrize("format", ["npz", "parquet"])
def test_missing_optimizer_state_is_an_error_naming_the_file(trained, tmp_path, format) -> None:
    target = trained.write(tmp_path / "model", format)
    entry = read_manifest(target).tables[0]
    with pytest.raises(ModelError, match=entry.file):
        list(tables.iterate_table(target / entry.file, rows=entry.rows, dim=entry.dim, state_parts=1))


def test_exports_without_optimizer_state_load(trained, tmp_path) -> None:
    target = trained.write(tmp_path / "model")
    written = json.loads((target / "model.json").read_text())
    for name in ("optimizers", "dense_blocks"):
        assert written.pop(name) is None
    for entry in written["tables"]:
        assert entry.pop("state_parts") is None
    (target / "model.json").write_text(json.dumps(written))
    without_digests(target)
    dense, ids = trained.inputs()
    with pytest.warns(UserWarning, match="kept no digests"):
        model = load_model(target)
    torch.testing.assert_close(model(dense, ids).detach(), trained.logits(dense, ids))
    said: list[str] = []
    copied = copy_export(target, tmp_path / "copy", "parquet", say=said.append)
    assert read_manifest(copied).tables[0].state_parts is None
    assert len(said) == 1 and str(target) in said[0]
    load_model(copied, say=said.append)
    assert len(said) == 1


def test_a_damaged_table_is_not_copied(trained, tmp_path) -> None:
    source = trained.write(tmp_path / "source")
    table = next((source / "tables").iterdir())
    table.write_bytes(table.read_bytes()[:200])
    with pytest.raises(ModelError, match="can't be used"):
        copy_export(source, tmp_path / "copy")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source"]


@pytest.mark.parametrize("format", ["npz", "parquet"])
def test_tables_are_loaded_a_chunk_at_a_time(trained, tmp_path, monkeypatch, format) -> None:
    pytest.importorskip("pyarrow")
    target = trained.write(tmp_path / "model", format)
    monkeypatch.setattr(tables, "_CHUNK_BYTES", 1000)
    asked: list[int] = []
    put = tables.SortedTable.put

    def counting(table, ids, vectors) -> bool:
        asked.append(ids.nbytes + vectors.nbytes)
        return put(table, ids, vectors)

    monkeypatch.setattr(tables.SortedTable, "put", counting)
    told: list[tuple[str, float, float, str]] = []
    model = load_model(target, steps=lambda *step: told.append(step))
    assert max(asked) <= 1000
    assert sum(asked) == sum(ids.nbytes + vectors.nbytes for ids, vectors in trained.tables.values())
    assert ends_of(told) == ["comparing digests", "loading"]
    for name, (ids, vectors) in trained.tables.items():
        order = np.argsort(ids)
        assert np.array_equal(model.tables[name].ids, ids[order])
        assert np.array_equal(model.tables[name].vectors, vectors[order])


@pytest.mark.parametrize("format", ["npz", "parquet"])
def test_a_table_with_an_id_twice_is_refused(tmp_path, format) -> None:
    pytest.importorskip("pyarrow")
    writer = tables.table_writer(tmp_path / "t", tables.RowShape(2), format)
    writer.add([TableRows(np.array([5, 1, 5], np.uint64), np.zeros((3, 2), np.float32))])
    writer.close()
    with pytest.raises(ModelError, match="an id twice"):
        tables.read_table(writer.path, rows=3, dim=2)
    with pytest.raises(ModelError, match="not 4"):
        tables.read_table(writer.path, rows=4, dim=2)
    with pytest.raises(ModelError, match="more than 2"):
        tables.read_table(writer.path, rows=2, dim=2)


def test_rows_are_held_back_only_up_to_a_bound(trained, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(export, "BUFFERED_BYTES", 4000)
    held: list[int] = []
    hold = export._Table.hold

    with ExportWriter(tmp_path / "model", trained.manifest, model_directory=trained.directory) as writer:

        def counting(table, rows) -> None:
            hold(table, rows)
            held.append(sum(one.waiting_bytes for one in writer._all_tables()))

        monkeypatch.setattr(export._Table, "hold", counting)
        for name, (ids, vectors) in trained.tables.items():
            for start in range(0, len(ids), 10):
                writer.add_rows(name, ids[start : start + 10], vectors[start : start + 10])
        writer.finish()
    most = max(10 * (8 + 4 * entry.dim) for entry in read_manifest(tmp_path / "model").tables)
    assert 4000 < max(held) <= 4000 + most
