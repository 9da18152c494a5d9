"""Nothing of an export is used that isn't as it was exported, and no half of one."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest

from dlrover_lite.core.errors import ModelError
from dlrover_lite.data.base import Schema
from dlrover_lite.models.copying import copy_export
from dlrover_lite.models.digests import DIGESTS_FILE, write_digests
from dlrover_lite.models.export import ExportWriter, Manifest, Optimizers
from dlrover_lite.models.registry import build_model
from dlrover_lite.models.serving import load_model, read_manifest
from dlrover_lite.recipe.schema import Model, Optimizer
from tests.file_calls import recorded

MODEL = """
import torch
from dlrover_lite.models.fields import EmbeddingField
from beside import SCALE

class Mine(torch.nn.Module):
    def __init__(self, schema):
        super().__init__()
        self.embedding_fields = [EmbeddingField(column, 2) for column in schema.categorical]
        self.dense = torch.nn.Linear(len(schema.dense), 1)

    def forward(self, dense, embedded):
        return SCALE * self.dense(dense).squeeze(1) + embedded.sum(1)
"""
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """An export with all kinds of files."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "mine.py").write_text(MODEL)
    (source / "beside.py").write_text("SCALE = 2.0\n")

    def write(target: Path, format: str = "npz", *, state: bool = True) -> Path:
        schema = Schema(dense=("I1",), categorical=("C1", "C2"))
        model = Model(use="mine.py:Mine")
        module = build_model(model, schema, directory=source, seed=1)
        manifest = Manifest(model=model, schema=schema, fields=list(module.embedding_fields), seed=3)
        if state:
            manifest = msgspec.structs.replace(
                manifest, optimizers=Optimizers(Optimizer(use="sgd"), Optimizer(use="sgd"))
            )
        ids = np.arange(20, dtype=np.uint64)
        counts = np.ones(20, np.uint32) if state else None
        with ExportWriter(target, manifest, format, model_directory=source) as writer:
            writer.write_dense({name: tensor.numpy() for name, tensor in module.state_dict().items()})
            for table in ("C1", "C2"):
                more = () if counts is None else (counts, np.empty((20, 0), np.float32))
                writer.add_rows(table, ids, np.ones((20, 2), np.float32), *more)
            if counts is not None:
                one = np.ones(1, np.uint32)
                writer.add_dense_blocks(
                    np.zeros(1, np.uint64), np.zeros((1, 4096), np.float32), one, np.empty((1, 0), np.float32)
                )
            return writer.finish()

    return write


def files_of(export: Path) -> list[Path]:
    return sorted(path for path in export.rglob("*") if path.is_file() and "__pycache__" not in path.parts)


def refused(act: Callable[[], object], path: Path) -> None:
    with pytest.raises(ModelError) as raised:
        act()
    assert str(path) in raised.value.message
    assert "dlrover-lite export JOB --to DIR" in raised.value.hint and "export --from JOB" in raised.value.hint


@pytest.mark.parametrize("format", ["npz", "parquet"])
def test_a_bit_flipped_in_any_file_of_an_export_is_reported(write: Write, tmp_path: Path, format: str) -> None:
    export, chance = write(tmp_path / "export", format), random.Random(1)
    load_model(export)
    for path in files_of(export):
        as_written = path.read_bytes()
        for _ in range(12):
            data = bytearray(as_written)
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
            path.write_bytes(data)
            with pytest.raises(ModelError) as raised:
                copy_export(export, tmp_path / "copy")  # which uses all of them
            assert str(export) in raised.value.message and "export" in raised.value.hint
            assert not (tmp_path / "copy").exists()
            if path.stem != "dense_blocks" and path.name != DIGESTS_FILE:
                refused(lambda: load_model(export), path)
        path.write_bytes(as_written)
    load_model(copy_export(export, tmp_path / "copy"))


def test_manifest_and_weights_are_checked_against_digests_when_loaded(write: Write, tmp_path: Path) -> None:
    export = write(tmp_path / "export", state=False)
    text = (export / "model.json").read_text()
    (export / "model.json").write_text(text.replace('"seed": 3', '"seed": 7'))
    refused(lambda: read_manifest(export), export / "model.json")
    (export / "model.json").write_text(text)
    weights = bytearray((export / "dense.safetensors").read_bytes())
    weights[-3] ^= 0x10
    (export / "dense.safetensors").write_bytes(weights)
    refused(lambda: load_model(export), export / "dense.safetensors")


def test_a_half_copied_export_is_refused(write: Write, tmp_path: Path) -> None:
    export = write(tmp_path / "export")
    for path in files_of(export):
        half = tmp_path / "half"
        shutil.copytree(export, half)
        (half / path.relative_to(export)).unlink()
        with pytest.raises(ModelError) as raised:
            copy_export(half, tmp_path / "copy")
        assert str(half / path.relative_to(export)) in raised.value.message
        shutil.rmtree(half)


def test_digests_are_written_last_and_exports_durable_before_renaming(write: Write, tmp_path: Path) -> None:
    with recorded() as calls:
        export = write(tmp_path / "export")
    calls.check_durable(export)
    files = [Path(call.path).name for call in calls.calls if call.what == "sync" and Path(call.path).suffix]
    synced = [
        name
        for name in (Path(call.path).name for call in calls.calls if call.what == "sync")
        if (export / name).is_file()
    ]
    assert synced[-1] == DIGESTS_FILE and synced.count(DIGESTS_FILE) == 1 and len(files) >= 5


def test_digests_can_be_checked_by_sha256sum(write: Write, tmp_path: Path) -> None:
    export = write(tmp_path / "export", "parquet")
    done = subprocess.run(
        ["sha256sum", "--strict", "-c", DIGESTS_FILE], cwd=export, capture_output=True, text=True, check=True
    )
    names = {str(path.relative_to(export)) for path in files_of(export)}
    assert {line.removesuffix(": OK") for line in done.stdout.splitlines()} == names - {DIGESTS_FILE}
    assert names >= {"model.json", "model/mine.py", "model/beside.py", "tables/C1.parquet", "dense_blocks.parquet"}


@pytest.mark.parametrize("name", ["../../other.npz", "/etc/passwd", "tables/../../x.npz", ""])
@pytest.mark.parametrize("where", ["table", "blocks", "code"])
def test_manifest_entries_outside_the_export_are_not_read(write: Write, tmp_path: Path, name: str, where: str) -> None:
    """Whoever can write a manifest can write its digest."""
    export = write(tmp_path / "export")
    manifest = json.loads((export / "model.json").read_text())
    if where == "table":
        manifest["tables"][0]["file"] = name
    elif where == "blocks":
        manifest["dense_blocks"]["file"] = name
    else:
        manifest["model"]["use"] = f"{name}:Mine"
    (export / "model.json").write_text(json.dumps(manifest))
    write_digests(export)
    for act in (
        lambda: load_model(export),
        lambda: copy_export(export, tmp_path / "copy"),
        lambda: read_manifest(export),
    ):
        with pytest.raises(ModelError, match=re.escape("names what isn't in the export")):
            act()


def test_permissions_of_exports_follow_the_umask(write: Write, tmp_path: Path) -> None:
    """They are for others to use, where a person's umask says so."""
    before = os.umask(0o027)
    try:
        export = write(tmp_path / "export")
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in files_of(export)} == {0o640}
    assert {path.stat().st_mode & 0o777 for path in (export, export / "tables", export / "model")} == {0o750}
