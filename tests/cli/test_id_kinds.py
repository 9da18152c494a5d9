"""Data whose ids are of another kind than a job has been trained with is refused by name, by whatever reads it; its checkpoints and its
model remember the kinds."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dlrover_lite.checkpoint.manifest import known_id_kinds
from dlrover_lite.cli.main import main
from dlrover_lite.client import resuming
from dlrover_lite.core.errors import DataError
from dlrover_lite.core.units import Resources
from dlrover_lite.jobs.checkpoint_location import locate
from dlrover_lite.jobs.store import Job
from dlrover_lite.master.checkpoints.restore import begin_generation
from dlrover_lite.master.events import EventLog
from dlrover_lite.master.work.ledger_store import LedgerStore
from dlrover_lite.master.work.shard_plan import look_at_data
from dlrover_lite.master.work.shards import ShardService
from dlrover_lite.models.serving import read_manifest
from dlrover_lite.protocol.hosts import Host
from dlrover_lite.protocol.plans import initial_plan
from dlrover_lite.recipe.load import parse_recipe
from dlrover_lite.recipe.schema import Recipe
from tests.cli.ended_jobs import cut_of, ended_job

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

ROWS = 600


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DLROVER_LITE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    users = [1000 + i * 7 % 50 for i in range(ROWS)]
    write("train", users)
    write("text", list(map(str, users)))
    write("floats", [f"{user}.0" for user in users])
    return tmp_path


def write(name: str, users: list[Any]) -> None:
    """As Parquet and as CSV."""
    columns = {"y": [i % 2 for i in range(ROWS)], "x": [float(i) for i in range(ROWS)], "user": users}
    pq.write_table(pa.table(columns), f"{name}.parquet")
    lines = [",".join(map(str, row)) for row in zip(*columns.values(), strict=True)]
    Path(f"{name}.csv").write_text("\n".join(["y,x,user", *lines]) + "\n")


def recipe_of(data_format: str, train: str, **changes: Any) -> Recipe:
    plain = {
        "version": 1,
        "name": "small",
        "model": {"use": "wide_deep", "options": {"embedding_dim": 4, "hidden": [8]}},
        "data": {"format": data_format, "train": [train], "label": "y", "dense": ["x"], "categorical": ["user"]},
        "training": {"batch_size": 60, "epochs": 2, "seed": 5},
    }
    return parse_recipe(plain, overrides=changes, directory=Path.cwd())


def said(capsys: pytest.CaptureFixture[str], *command: str) -> str:
    assert main(list(command)) in (1, 2)
    return capsys.readouterr().err.replace(f"{Path.cwd()}/", "")


@pytest.fixture
def trained() -> Callable[[str, str], Job]:
    def trained(data_format: str, train: str) -> Job:
        job = ended_job(recipe_of(data_format, train))
        cut_of(job)
        return job

    return trained


def exported(job: Job) -> str:
    assert main(["export", "--from", job.id, "--to", "model"]) == 0
    return "./model"


OTHERS = [
    (
        "train.parquet",
        "text.parquet",
        "'user' has text (string in text.parquet)",
        "has integers (int64 in train.parquet)",
    ),
    (
        "text.parquet",
        "train.parquet",
        "'user' has integers (int64 in train.parquet)",
        "has text (string in text.parquet)",
    ),
]


@pytest.mark.parametrize(("train", "other", "found", "expected"), OTHERS)
def test_evaluate_refuses_ids_of_another_kind(
    capsys: pytest.CaptureFixture[str], trained: Any, train: str, other: str, found: str, expected: str
) -> None:
    """A checkpoint, and an export of it; with the same data both are evaluated."""
    job = trained("parquet", train)
    model = exported(job)
    for of, name in (["--from", job.id], f"checkpoint 1 of {job.id}"), ([model], "the model in model"):
        text = said(capsys, "evaluate", *of, "--data", other)
        assert f"column {found}, {name} {expected}: none of its ids would be known" in text
        assert "Write the column as" in text
        assert main(["evaluate", *of, "--data", train, "--json"]) == 0
        # The checkpoint knows other ids, of the same kind.
        (warning,) = json.loads(capsys.readouterr().out)["warnings"]
        assert warning.startswith("100% of the ids evaluated in column 'user' were never trained")


def test_export_and_checkpoint_record_the_id_kinds(trained: Any, capsys: pytest.CaptureFixture[str]) -> None:
    job = trained("parquet", "train.parquet")
    exported(job)
    kinds = {"user": {"kind": "integer", "source": "int64 in train.parquet"}}
    assert msgspec.to_builtins(read_manifest(Path("model")).id_kinds) == kinds
    manifest = resuming.choose(locate(job.id)).manifest
    assert manifest.facts["id_kinds"] == kinds == msgspec.to_builtins(known_id_kinds(manifest))
    assert main(["export", "--from", job.id, "--to", "copy", "--format", "parquet"]) == 0
    assert read_manifest(Path("copy")).id_kinds == read_manifest(Path("model")).id_kinds


def test_checkpoints_and_exports_without_id_kinds_are_read(trained: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Without kinds; those of CSV follow from the format."""
    job = trained("csv", "text.csv")
    manifest = resuming.choose(locate(job.id)).manifest
    manifest.facts.pop("id_kinds")
    assert msgspec.to_builtins(known_id_kinds(manifest)) == {"user": {"kind": "text", "source": "csv"}}
    model = Path(exported(job))
    plain = json.loads((model / "model.json").read_text())
    del plain["id_kinds"], plain["unknown_ids"], plain["digests"]
    (model / "SHA256SUMS").unlink()
    (model / "model.json").write_text(json.dumps(plain))
    assert main(["evaluate", str(model.absolute()), "--data", "text.csv"]) == 0
    older = resuming.choose(locate(trained("parquet", "train.parquet").id)).manifest
    older.facts.pop("id_kinds")
    assert known_id_kinds(older) == {}


def test_starting_from_parameters_refuses_ids_of_another_kind(trained: Any) -> None:
    """With data of its own: strings have the keys that text of CSV has."""
    integers, text = (
        resuming.choose(locate(trained(*of).id)) for of in (("parquet", "train.parquet"), ("csv", "text.csv"))
    )
    refused = [(integers, "parquet", "text.parquet"), (integers, "csv", "text.csv"), (text, "parquet", "train.parquet")]
    for chosen, data_format, file in refused:
        job = chosen.manifest.job
        with pytest.raises(
            DataError, match=f"column 'user' has .*, checkpoint 1 of {job} has .*: none of its ids would be known"
        ):
            resuming.check_fits(chosen, recipe_of(data_format, file), only_parameters=True)
    resuming.check_fits(text, recipe_of("parquet", "text.parquet"), only_parameters=True)


def test_starting_from_a_checkpoint_refuses_replaced_data(trained: Any) -> None:
    job = trained("parquet", "train.parquet")
    Path("text.parquet").replace("train.parquet")
    with pytest.raises(DataError, match=f"column 'user' has text .*, checkpoint 1 of {job.id} has integers"):
        resuming.check_fits(
            resuming.choose(locate(job.id)), recipe_of("parquet", "train.parquet"), only_parameters=False
        )


def test_resuming_refuses_replaced_data(trained: Any, capsys: pytest.CaptureFixture[str]) -> None:
    job = trained("parquet", "train.parquet")
    Path("text.parquet").replace("train.parquet")
    text = said(capsys, "run", "--resume", job.id)
    assert f"column 'user' has text (string in train.parquet), checkpoint 1 of {job.id} has integers" in text


def test_restarted_master_refuses_replaced_data(trained: Any) -> None:
    job = trained("parquet", "train.parquet")
    Path("text.parquet").replace("train.parquet")
    now = look_at_data(job.recipe)
    with (
        LedgerStore(job.directory / "ledger.sqlite") as store,
        pytest.raises(DataError, match=r"column 'user' has text .*, the job has integers"),
    ):
        ShardService(store, now.plan, id_kinds=now.ids.kinds)


@pytest.mark.parametrize("only_parameters", [False, True])
def test_a_generation_begins_with_the_kinds_of_its_checkpoint(trained: Any, only_parameters: bool) -> None:
    """So that its master, too, refuses data that was replaced."""
    chosen = resuming.choose(locate(trained("parquet", "train.parquet").id))
    job = ended_job(recipe_of("parquet", "train.parquet"))
    job.write_beginning(resuming.beginning_of(chosen, only_parameters=only_parameters))
    Path("text.parquet").replace("train.parquet")
    now = look_at_data(job.recipe)
    story = EventLog(lambda entries: None, lambda: 0.0, [])
    machine = Resources(2.0, 4 << 30)
    plan = initial_plan(job.recipe.resources, [Host("here", machine)])
    begin_generation(
        job,
        now.plan,
        plan,
        machine,
        story,
        decision=0,
        began="",
        wall_clock=lambda: 0.0,
        clock=lambda: 0.0,
    )
    with (
        LedgerStore(job.ledger()) as store,
        pytest.raises(DataError, match=r"'user' has text .*, the job has integers"),
    ):
        ShardService(store, now.plan, id_kinds=now.ids.kinds)


def test_evaluate_refuses_parquet_after_csv_training_and_the_reverse(
    trained: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    model = exported(trained("csv", "text.csv"))
    text = said(capsys, "evaluate", model, "--data", "train.parquet")
    assert "the model in model was trained on CSV, and train.parquet is a Parquet file" in text
    assert "Write it as CSV, with the same columns." in text
    assert main(["export", "--from", trained("parquet", "train.parquet").id, "--to", "other"]) == 0
    text = said(capsys, "evaluate", "./other", "--data", "text.csv")
    assert "the model in other was trained on Parquet, and text.csv is no Parquet file" in text


def test_integers_written_as_floats_are_warned_about(trained: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """By evaluate, of a model that was trained on integers in CSV; and by validate, where files differ."""
    model = exported(trained("csv", "text.csv"))
    assert main(["evaluate", model, "--data", "floats.csv"]) == 0
    text = capsys.readouterr().err.replace(f"{Path.cwd()}/", "")
    assert "Warning: 600 of 600 ids looked at in column 'user' of floats.csv read as '10" in text
    assert "the model in model has integers without a point (csv in text.csv): these are other ids" in text
    Path("recipe.yaml").write_text(
        "version: 1\nname: j\nmodel: dcn\ndata:\n  format: csv\n  train: [text.csv]\n  eval: [floats.csv]\n  label: y\n"
        "  categorical: [user]\n"
    )
    assert main(["validate", "recipe.yaml", "--json"]) == 0
    warnings = json.loads(capsys.readouterr().out)["warnings"]
    assert any("in column 'user' of" in warning and "floats.csv read as '10" in warning for warning in warnings)


def test_validate_refuses_evaluation_ids_of_another_kind(capsys: pytest.CaptureFixture[str]) -> None:
    Path("recipe.yaml").write_text(
        "version: 1\nname: j\nmodel: dcn\ndata:\n  format: parquet\n  train: [train.parquet]\n  eval: [text.parquet]\n"
        "  label: y\n  categorical: [user]\n"
    )
    for command in ("validate", "run"):
        text = said(capsys, command, "recipe.yaml")
        assert (
            "recipe.yaml:9: data.categorical: column 'user' has text (string in text.parquet), the recipe has integers"
            in text
        )
