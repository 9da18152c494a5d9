"""The model of a checkpoint, straight from its files: written to others, and loaded."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlrover_lite.checkpoint import newest_rows
from dlrover_lite.checkpoint.manifest import Manifest
from dlrover_lite.checkpoint.store import CheckpointStore
from dlrover_lite.core.errors import CheckpointDamaged, JobError
from dlrover_lite.models.serving import load_model, read_manifest
from dlrover_lite.models.tables import iterate_table
from dlrover_lite.recipe.load import parse_recipe
from dlrover_lite.recipe.schema import Recipe
from dlrover_lite.tables.layout import groups_of
from dlrover_lite.worker.export.checkpoint_model import cut_model
from dlrover_lite.worker.export.export_checkpoint import export_cut
from dlrover_lite.worker.parameters.dry_configuration import declare
from tests.checkpoint.record_cuts import Key, write_cut

TEXT = "version: 1\nname: x\nmodel: {use: dcn, options: {embedding_dim: 4, hidden: [4]}}\ndata: {format: synthetic, samples: 64}\n"
Told = list[tuple[str, float, float, str]]


def recipe_of(*, state: bool = False) -> Recipe:
    return parse_recipe(TEXT, overrides={"training.optimizer.use": "adagrad", "export.optimizer_state": state})


class Cuts:
    """Of a recipe's model: dense blocks are there, of the version of their cut."""

    def __init__(self, directory: str, recipe: Recipe) -> None:
        self.store, self.recipe = CheckpointStore(directory), recipe
        self.configuration = declare(recipe).configuration
        self.groups = groups_of(self.configuration)
        self.expected: dict[Key, float] = {}
        self.manifest: Manifest | None = None

    def write(self, changed: dict[Key, float], **options: Any) -> Manifest:
        cut = 1 if self.manifest is None else self.manifest.cut + 1
        dense = {(1, 0, i): float(cut) for i in range(self.configuration.dense.parameter_blocks)}
        before = None if self.manifest is None else self.manifest.cut
        self.manifest = write_cut(
            self.store, cut, self.configuration, {**changed, **dense}, builds_on=before, block_bytes=20_000, **options
        )
        self.expected |= changed
        return self.manifest

    def of_table(self, name: str) -> dict[int, float]:
        names = [table.name for table in self.groups[0].tables]
        return {key[2]: version for key, version in self.expected.items() if names[key[1]] == name}


KEYS = st.tuples(st.just(0), st.integers(0, 25), st.integers(0, 30))
CHANGES = st.lists(st.dictionaries(KEYS, st.integers(0, 1000).map(float), max_size=40), min_size=1, max_size=4)


@settings(max_examples=15)
@given(CHANGES, st.booleans(), st.sampled_from(["npz", "parquet"]), st.sampled_from([5, 1 << 20]))
def test_an_export_of_cuts_equals_a_dict_updated_by_each(
    changes: list[dict[Key, float]], state: bool, table_format: Any, known_ids: int
) -> None:
    pytest.importorskip("pyarrow")
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(newest_rows, "KNOWN_BYTES", known_ids * newest_rows._ID_BYTES)
        cuts = Cuts(f"{directory}/cuts", recipe_of(state=state))
        for changed in changes:
            manifest = cuts.write(changed, servers=2)
        told: Told = []
        target = Path(directory) / "model"
        written = export_cut(
            cuts.store, manifest, cuts.recipe, target, table_format, steps=lambda *step: told.append(step)
        )
        for entry in read_manifest(written).tables:
            expected = cuts.of_table(entry.name)
            found = {}
            for rows in iterate_table(written / entry.file, rows=entry.rows, dim=4, state_parts=entry.state_parts):
                assert (rows.counts is not None) == state
                for i, key in enumerate(rows.ids.tolist()):
                    assert key not in found
                    found[key] = float(rows.vectors[i, 0])
                    assert (rows.vectors[i] == rows.vectors[i, 0]).all()
                    if rows.counts is not None and rows.state is not None:
                        assert (rows.state[i] == 2 * found[key]).all() and rows.counts[i] == found[key]
            assert found == expected
        rows = [step for step in told if step[0] == "exporting"]
        if any(changes):
            assert rows[-1][1] == rows[-1][2] >= sum(map(len, changes))
        assert told[-1][0] == "computing digests" and told[-1][1] == told[-1][2]


@settings(max_examples=10)
@given(CHANGES, st.sampled_from([5, 1 << 20]))
def test_a_model_loaded_from_a_cut_equals_its_export(changes: list[dict[Key, float]], known_ids: int) -> None:
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(newest_rows, "KNOWN_BYTES", known_ids * newest_rows._ID_BYTES)
        cuts = Cuts(f"{directory}/cuts", recipe_of())
        for changed in changes:
            manifest = cuts.write(changed)
        recipe = cuts.recipe
        told: Told = []
        model = cut_model(cuts.store, manifest, recipe, lambda *step: told.append(step))
        exported = load_model(export_cut(cuts.store, manifest, recipe, Path(directory) / "model", "npz"))
        assert {name: len(table.ids) for name, table in model.tables.items()} == {
            name: len(table.ids) for name, table in exported.tables.items()
        }
        for name, table in exported.tables.items():
            assert np.array_equal(model.tables[name].ids, table.ids)
            assert np.array_equal(model.tables[name].vectors, table.vectors)
        random = np.random.default_rng(1)
        columns = exported.schema
        dense = random.normal(size=(9, len(columns.dense))).astype(np.float32)
        ids = random.integers(0, 40, (len(columns.categorical), 9), np.uint64)
        assert np.array_equal(model.predict(dense, ids).numpy(), exported.predict(dense, ids).numpy())
        if any(changes):
            steps = dict.fromkeys(step[0] for step in told)
            assert list(steps) == ["looking for ids", "loading"]
            ends = {what: [step[1:3] for step in told if step[0] == what][-1] for what in steps}
            assert set(ends.values()) == {(float(sum(map(len, changes))),) * 2}


def test_a_cut_that_does_not_fit_the_recipe_is_refused(tmp_path: Path) -> None:
    recipe = recipe_of()
    cuts = Cuts(str(tmp_path / "cuts"), recipe)
    manifest = cuts.write({(0, 0, 1): 1.0})
    other = parse_recipe(TEXT.replace("embedding_dim: 4", "embedding_dim: 8"))
    with pytest.raises(JobError, match="isn't that of checkpoint 1"):
        export_cut(cuts.store, manifest, other, tmp_path / "model", "npz")
    wrong = msgspec.structs.replace(manifest, groups=manifest.groups[::-1])
    with pytest.raises(CheckpointDamaged, match="its groups aren't"):
        export_cut(cuts.store, wrong, recipe, tmp_path / "model", "npz")
    assert not (tmp_path / "model").exists()


def test_a_cut_lacking_a_dense_block_is_damaged(tmp_path: Path) -> None:
    cuts = Cuts(str(tmp_path / "cuts"), recipe_of())
    blocks = cuts.configuration.dense.parameter_blocks
    for number, said in ((blocks, f"a dense block {blocks} of {blocks}"), (None, f"{blocks} of its {blocks} dense")):
        cut = 1 if number is not None else 2
        rows = {} if number is None else {(1, 0, number): 1.0}
        manifest = write_cut(cuts.store, cut, cuts.configuration, rows)
        with pytest.raises(CheckpointDamaged, match=said):
            cut_model(cuts.store, manifest, cuts.recipe)
