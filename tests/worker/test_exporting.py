"""The model of a job that has trained, as a worker asks the parameter servers for it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dlrover_lite.core.rows import RowData
from dlrover_lite.models.serving import read_manifest
from dlrover_lite.protocol.messages import Export, Exported
from dlrover_lite.recipe.load import parse_recipe
from dlrover_lite.recipe.schema import Recipe
from dlrover_lite.tables.layout import groups_of
from dlrover_lite.worker.export import export_model
from dlrover_lite.worker.parameters.dry_configuration import declare
from tests.checkpoint.served_files import served

ROWS = 1000
TEXT = "version: 1\nname: x\nmodel: {use: dcn, options: {embedding_dim: 4, hidden: [4]}}\ndata: {format: synthetic, samples: 64}\n"


class Servers:
    """One server: ``ROWS`` rows of the first table, and all dense blocks."""

    def __init__(self, groups: list[Any], blocks: int) -> None:
        self.map = SimpleNamespace(parts=1, members=lambda _part: None)
        self.groups, self.blocks = groups, blocks
        self.bytes: list[int] = []
        """Of each answer."""

    def refresh(self) -> None: ...

    def scan(self, _members: Any, group: int, start: int, limit: int, *, state: bool) -> tuple[RowData, int | None]:
        spec = self.groups[group]
        total = self.blocks if spec.complete else ROWS
        stop = min(start + limit, total)
        keys = np.arange(start, stop, dtype=np.uint64)
        shape = (len(keys), spec.dim)
        values = np.zeros(shape, np.float32)
        kept = np.zeros(shape if state else (len(keys), 0), np.float32)
        updates = np.zeros(len(keys), np.uint32)
        self.bytes.append(values.nbytes + kept.nbytes + keys.nbytes)
        rows = RowData(keys, np.zeros(len(keys), np.uint16), updates, values, kept)
        return rows, stop if stop < total else None


def trainer_of(recipe: Recipe) -> Any:
    declared = declare(recipe)
    return SimpleNamespace(
        ps=Servers(groups_of(declared.configuration), declared.configuration.dense.parameter_blocks),
        module=declared.module,
        flat=declared.flat,
        layout=SimpleNamespace(tables=declared.configuration.tables),
        pull_dense=lambda: None,
    )


def test_a_model_is_brought_to_where_the_job_keeps_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = parse_recipe(TEXT)
    schema = declare(recipe).schema

    def export(destination: str) -> Exported:
        task = Export(destination, "npz")
        return export_model.export("worker-0", recipe, trainer_of(recipe), schema, task, mark=lambda _what, _rows: None)

    with served(tmp_path / "job", monkeypatch) as files:
        assert export(f"{files.url}/export") == export(str(tmp_path / "model")) == export(f"{files.url}/export")
    assert tree(tmp_path / "job" / "export") == tree(tmp_path / "model")
    assert "tables" in {path.parent.name for path in (tmp_path / "job" / "export").rglob("*.npz")}


def tree(directory: Path) -> dict[str, bytes]:
    files = (path for path in directory.rglob("*") if path.is_file())
    return {path.relative_to(directory).as_posix(): path.read_bytes() for path in files}


@pytest.mark.parametrize("state", [False, True])
def test_exporting_scans_a_few_rows_at_a_time_and_tells_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: bool
) -> None:
    recipe = parse_recipe(TEXT, overrides={"training.optimizer.use": "adagrad", "export.optimizer_state": state})
    declared, trainer = declare(recipe), trainer_of(recipe)
    servers = trainer.ps
    monkeypatch.setattr(export_model, "SCAN_BYTES", 64 << 10)
    told: list[tuple[str, int]] = []
    task = Export(str(tmp_path / "model"), "npz")
    done = export_model.export(
        "worker-0",
        recipe,
        trainer,
        declared.schema,
        task,
        mark=lambda what, rows: told.append((what, rows)),  # type: ignore[arg-type]
    )
    assert max(servers.bytes) <= 64 << 10
    assert done.rows == ROWS == sum(entry.rows for entry in read_manifest(tmp_path / "model").tables)
    written = [rows for _, rows in told]
    assert written[0] == 0 and written[-1] == ROWS and written == sorted(written)
    assert len({what for what, _ in told}) == 3, (
        "finishing the files takes long too: nobody is to think that it is stuck"
    )
