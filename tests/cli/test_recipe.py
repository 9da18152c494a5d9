"""validate, recipe schema, recipe init."""

from __future__ import annotations

import json
import resource
from pathlib import Path

import pytest

from dlrover_lite.cli.main import main
from dlrover_lite.core.units import Resources
from dlrover_lite.models.trial import Found
from dlrover_lite.recipe.load import load_recipe
from tests.cli.conftest import PATIENCE_SECONDS, start

Capture = pytest.CaptureFixture[str]
CRITEO_LINE = "1" + "\t7" * 13 + "\t1a" * 26 + "\n"
RECIPE = """\
version: 1
name: clicks
model: {use: dcn, options: {embedding_dim: 8}}
data: {format: criteo, train: day.tsv}
training: {epochs: 2, embedding_optimizer: ftrl, schedule: cosine, evaluate_every: 5000}
resources: {total: {cores: 2, memory: 4GiB}, worker: {count: 2, cores: 0.5, memory: 512MiB}}
"""


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").write_text(RECIPE)
    (tmp_path / "day.tsv").write_text(CRITEO_LINE)
    monkeypatch.setattr("dlrover_lite.backends.host.machine.machine_resources", lambda *_: Resources(2.0, 8 << 30))
    return tmp_path


@pytest.fixture
def untried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the seconds that a process with torch takes."""
    found = Found(lines=9, samples=8, dense_parameters=7, embedding_values=8)
    monkeypatch.setattr("dlrover_lite.client.trial.try_recipe", lambda *_: found)


def test_validate_says_what_the_job_will_do(directory: Path, capsys: Capture) -> None:
    assert main(["validate", "job.yaml"]) == 0
    output = capsys.readouterr()
    assert output.err == ""
    assert output.out.splitlines() == [
        "job        clicks",
        "model      dcn (embedding_dim=8)",
        "data       criteo: day.tsv; 0.1 of it held out",
        "training   2 epochs in batches of 1,024, shuffled, evaluated every 5,000 samples",
        "optimizer  adagrad, learning rate 0.02; embeddings: ftrl, learning rate 0.02; cosine schedule",
        "resources  1 PS with 1 cores, 320 MiB (auto); 2 workers with 0.5 cores, 512 MiB; together at most 2 cores, 4 GiB",
        "           auto: as the brain would begin now, for about 1 samples, by the files' sizes (dlrover-lite plan); it takes back "
        "memory that isn't used",
        "export     npz",
        "lines      1 read, all can be used (all there are)",
        "tried      two samples through the model: 237,265 dense parameters, 208 embedding values each",
    ]


def test_validate_shows_all_errors(directory: Path, capsys: Capture) -> None:
    (directory / "job.yaml").write_text(RECIPE.replace("epochs", "epocs").replace("day.tsv", "dya.tsv"))
    assert main(["validate", "job.yaml", "--set", "training.seed=-1"]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.splitlines() == [
        f"job.yaml:4: data.train: {directory}/dya.tsv: no such file; did you mean day.tsv?",
        "job.yaml:5: training.epocs: unknown key; did you mean epochs?",
        "override training.seed: expected a whole number of at least 0, found -1",
        "--data FILE takes the place of data.train.",
    ]


def test_validate_counts_bad_lines(directory: Path, capsys: Capture) -> None:
    (directory / "day.tsv").write_text(CRITEO_LINE * 1000 + CRITEO_LINE.replace("1", "maybe", 1))
    (directory / "other.tsv").write_text(CRITEO_LINE.replace("1", "maybe", 1) * 9 + CRITEO_LINE)
    assert main(["validate", "job.yaml", "--data", "day.tsv", "--data", "other.tsv"]) == 0
    output = capsys.readouterr()
    assert "lines      1,010 read, 9 can't be used\n" in output.out and f"{directory}/other.tsv:1: " in output.out
    assert "Warning: 9 of the 1,010 lines read can't be used" in output.err
    assert main(["validate", "job.yaml", "--data", "other.tsv", "--json"]) == 2
    (error,) = json.loads(capsys.readouterr().out)["errors"]
    assert error["key"] == "data.train" and "9 of the 10 lines read can't be used" in error["message"]


@pytest.mark.parametrize("roles", ["{}", "{worker: {count: 1, cores: 0.5, memory: 512MiB}}"])
def test_validate_and_plan_give_the_same_plan(
    roles: str, directory: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cores and memory of what a job would begin with."""
    monkeypatch.setattr("dlrover_lite.client.trial.try_recipe", lambda *_: Found(samples=900))
    (directory / "day.tsv").write_text(CRITEO_LINE * 1000)
    arguments = ["job.yaml", "--json", "--set", f"resources={roles}"]
    assert main(["validate", *arguments]) == 0
    validated = json.loads(capsys.readouterr().out)["plan"]
    assert main(["plan", *arguments]) == 0
    ours = json.loads(capsys.readouterr().out)
    assert ours["plan"] == validated and "paper" not in ours["reason"]
    assert main(["plan", *arguments, "--policy", "paper"]) == 0
    papers = json.loads(capsys.readouterr().out)
    assert ": by the paper's policy: it starts with " in papers["reason"]
    assert papers["index"] != ours["index"], "a plan that was shown is one that this policy decides"


@pytest.mark.usefixtures("untried")
def test_validate_as_json(directory: Path, capsys: Capture) -> None:
    assert main(["validate", "job.yaml", "--json", "--set", "training.batch_size=64"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["ok"] is True
    assert result["recipe"]["training"]["batch_size"] == 64
    assert result["recipe"]["data"]["format"] == "criteo"
    assert result["plan"]["worker"] == {"count": 2, "each": {"cores": 0.5, "memory": 512 << 20}}
    assert result["warnings"] == []
    assert result["tried"] == {
        "lines": 9,
        "bad_lines": 0,
        "bad_examples": [],
        "dense_parameters": 7,
        "embedding_values": 8,
    }
    assert main(["validate", "job.yaml", "--json", "--set", "training.batch_size=0"]) == 2
    result = json.loads(capsys.readouterr().out)
    message = "expected a whole number from 1 to 67,108,864, found 0"
    assert result["errors"] == [{"file": None, "line": None, "key": "training.batch_size", "message": message}]
    (directory / "job.yaml").write_text("version: 1\nname: [\n")
    assert main(["validate", "job.yaml", "--json"]) == 2
    (error,) = json.loads(capsys.readouterr().out)["errors"]
    assert (error["file"], error["line"]) == ("job.yaml", 3)


@pytest.mark.usefixtures("untried")
def test_paths_of_the_data_option_start_at_the_current_directory(
    directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    (directory / "elsewhere").mkdir()
    (directory / "elsewhere" / "mine.tsv").write_text(CRITEO_LINE)
    monkeypatch.chdir(directory / "elsewhere")
    assert main(["validate", "../job.yaml", "--data", "mine.tsv", "--json"]) == 0
    recipe = json.loads(capsys.readouterr().out)["recipe"]
    assert recipe["data"]["train"] == [str(directory / "elsewhere" / "mine.tsv")]


def test_init_prints_a_recipe(capsys: Capture) -> None:
    assert main(["recipe", "init"]) == 0
    output = capsys.readouterr()
    assert output.out.startswith("# A dlrover-lite recipe") and output.err == ""


def test_init_writes_a_recipe_and_never_over_another(directory: Path, capsys: Capture) -> None:
    assert main(["recipe", "init", "My Clicks.yaml"]) == 0
    output = capsys.readouterr()
    assert output.out == "" and output.err.endswith("dlrover-lite run 'My Clicks.yaml'\n")
    assert load_recipe("My Clicks.yaml").name == "my-clicks"
    assert main(["recipe", "init", "job.yaml"]) == 2
    assert capsys.readouterr().err == "Error: job.yaml exists already\n--force replaces it.\n"
    assert (directory / "job.yaml").read_text() == RECIPE
    assert main(["recipe", "init", "--force", "job.yaml"]) == 0
    assert load_recipe("job.yaml").name == "job"


@pytest.mark.parametrize("path", ["nowhere/job.yaml", "."])
def test_init_into_an_unwritable_place_is_an_error(path: str, directory: Path, capsys: Capture) -> None:
    assert main(["recipe", "init", "--force", path]) == 2
    assert capsys.readouterr().err.startswith(f"Error: {path} can't be written: ")


def test_schema_is_json(capsys: Capture) -> None:
    assert main(["recipe", "schema"]) == 0
    assert json.loads(capsys.readouterr().out)["title"] == "dlrover-lite recipe"


@pytest.mark.parametrize("options", [[], ["--force"]])
def test_init_on_a_full_disk_leaves_files_unchanged(options: list[str], tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    if options:
        path.write_text("mine")
    limit = (resource.RLIMIT_FSIZE, (100, 100))
    init = start(["recipe", "init", str(path), *options], preexec_fn=lambda: resource.setrlimit(*limit))
    assert "can't be written" in init.communicate(timeout=PATIENCE_SECONDS)[1]
    assert init.returncode == 2
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == ([("job.yaml", "mine")] if options else [])


def test_a_missing_file_of_the_data_option_gets_no_advice(directory: Path, capsys: Capture) -> None:
    assert main(["validate", "job.yaml", "--data", "nope.tsv"]) == 2
    assert capsys.readouterr().err == f"override data.train: {directory}/nope.tsv: no such file\n"


@pytest.mark.usefixtures("untried")
def test_validate_warns_of_what_the_machine_lacks(directory: Path, capsys: Capture) -> None:
    sizes = "{count: 2, cores: 100, memory: 5GiB}"
    assert main(["validate", "job.yaml", "--set", "resources.total=", "--set", f"resources.worker={sizes}"]) == 0
    assert capsys.readouterr().err.splitlines() == [
        "Warning: a worker is to have 100 cores, and this machine has 2",
        "Warning: 2 workers may take 10 GiB of memory together, and this machine has 8 GiB: the job fails "
        "if they use it",
    ]


@pytest.mark.parametrize("command", ["validate", "run"])
def test_a_node_larger_than_the_machine_is_refused(command: str, directory: Path, capsys: Capture) -> None:
    text = RECIPE.replace("total: {cores: 2, memory: 4GiB}, ", "").replace("512MiB", "1TiB")
    (directory / "job.yaml").write_text(text)
    assert main([command, "job.yaml"]) == 2
    assert capsys.readouterr().err == (
        "job.yaml:6: resources.worker.memory: 1 TiB for each is more than the 8 GiB of memory that this machine has\n"
    )
