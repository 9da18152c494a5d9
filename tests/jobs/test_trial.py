"""A recipe is tried before it is run: its first lines, and its model on two samples, whatever the model's code does."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from dlrover_lite.client import trial
from dlrover_lite.core.errors import RecipeError
from dlrover_lite.core.units import GIB, Resources
from dlrover_lite.models.trial import Found
from dlrover_lite.models.trial import try_recipe as try_here
from dlrover_lite.recipe.load import load_recipe

MACHINE = Resources(2.0, 4 * GIB)
MODEL = """
import os, sys, time
import torch
from dlrover_lite.models.fields import EmbeddingField

{at_import}

class Model(torch.nn.Module):
    def __init__(self, schema):
        super().__init__()
        self.embedding_fields = [EmbeddingField("user", 4)]
        self.layer = torch.nn.Linear(5, 1)
        {in_constructor}

    def forward(self, dense, embedded):
        {in_forward}
        return self.layer(torch.cat([dense, embedded], dim=1))
"""
RECIPE = """\
version: 1
name: j
model: model.py:Model
data:
  format: csv
  train: [a.csv, b.csv]
  label: clicked
  dense: [age]
  categorical: [user]
"""


class Directory:
    """With a recipe, a model and data that are all right, to begin with."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.recipe = path / "r.yaml"
        self.recipe.write_text(RECIPE)
        self.model()
        self.data("a.csv")
        self.data("b.csv")

    def model(self, at_import: str = "", in_constructor: str = "pass", in_forward: str = "pass") -> None:
        text = MODEL.format(at_import=at_import, in_constructor=in_constructor, in_forward=in_forward)
        (self.path / "model.py").write_text(text)

    def data(self, name: str, rows: int = 20, bad: int = 0, age: str = "30") -> None:
        lines = [f"{i % 2},{age},u{i}" if i >= bad else f"maybe,{age},u{i}" for i in range(rows)]
        (self.path / name).write_text("\n".join(["clicked,age,user", *lines, ""]))

    def found(self, deadline_seconds: float = 60.0) -> Found:
        """By a process."""
        return trial.try_recipe(load_recipe(self.recipe), MACHINE, deadline_seconds=deadline_seconds)

    def found_here(self) -> Found:
        return try_here(load_recipe(self.recipe))

    def refusal(self, found: Found, **overrides: object) -> str:
        error = trial.problems_of(found, load_recipe(self.recipe), self.recipe, overrides)
        assert isinstance(error, RecipeError)
        return str(error)

    def warnings(self, found: Found) -> list[str]:
        return trial.warnings_of(found, load_recipe(self.recipe))


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    return Directory(tmp_path)


def test_trial_of_a_good_recipe_counts_lines_and_parameters(directory: Directory) -> None:
    directory.model(at_import="print('hello', flush=True); os.write(2, b'x' * 300_000)")
    found = directory.found()
    assert found == Found(lines=40, whole=True, samples=40, estimated=True, dense_parameters=6, embedding_values=4)
    assert trial.problems_of(found, load_recipe(directory.recipe), directory.recipe, {}) is None
    assert directory.warnings(found) == []


@pytest.mark.parametrize(
    ("where", "code", "said"),
    [
        ("at_import", "os._exit(0)", "has ended the process with exit code 0\n"),
        ("in_forward", "os._exit(7)", "has ended the process with exit code 7\n"),
        ("in_constructor", "os.kill(os.getpid(), 11)", "has died of SIGSEGV\n"),
        ("in_forward", "os.kill(os.getpid(), 9)", "takes more memory than the 4 GiB that this machine has\n"),
        ("in_constructor", "self.large = torch.nn.Linear(40_000, 40_000)", "can't allocate memory"),
        ("in_forward", "raise SystemExit(0)", "SystemExit"),
    ],
)
def test_models_that_end_their_process_are_refused(directory: Directory, where: str, code: str, said: str) -> None:
    directory.model(**{where: code})
    refusal = directory.refusal(directory.found())
    assert refusal.startswith(f"{directory.recipe}:3: model.use: ")
    assert said in refusal


def test_a_hanging_model_is_ended_with_its_children(directory: Directory) -> None:
    fifo = directory.path / "alive"
    os.mkfifo(fifo)
    waits = "import subprocess; subprocess.Popen(['sleep', '1000'], stdout=open('alive', 'w')); open('alive', 'w')"
    reading = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    directory.model(at_import=f"{waits}; time.sleep(1000)")
    refusal = directory.refusal(directory.found(deadline_seconds=5.0))
    assert "has not come to an end within 5 s\n" in refusal
    os.set_blocking(reading, True)
    assert os.read(reading, 1) == b""  # nobody has it open any more
    os.close(reading)


@pytest.mark.parametrize(
    ("where", "code", "said"),
    [
        ("at_import", "import nothing_of_the_kind", "Importing {}/model.py failed: ModuleNotFoundError"),
        ("in_constructor", "self.missing(3)", "failed: AttributeError"),
        ("in_forward", "return dense", "loss depends on no parameter and no embedding"),
        ("in_forward", "return self.layer(dense)", "tried with two samples (dense [2, 1] and embedded [2, 4]), failed: RuntimeError"),
        ("in_forward", "return self.layer(torch.cat([dense, embedded], 1)) / 0 * 0", "nan] for two random samples"),
        ("in_forward", "dense = torch.exp(dense)", "inf] for two of the data's samples"),
        ("in_forward", "sys.exit('enough')", "SystemExit: enough"),
        ("in_forward", "raise KeyboardInterrupt", "KeyboardInterrupt"),
    ],
)  # fmt: skip
def test_failing_models_are_refused_with_a_reason(directory: Directory, where: str, code: str, said: str) -> None:
    directory.data("a.csv", age="200")
    directory.model(**{where: code})
    refusal = directory.refusal(directory.found_here())
    assert said.format(directory.path) in refusal
    assert refusal.startswith(f"{directory.recipe}:3: model.use: ")


def test_the_first_bad_lines_are_counted_and_shown(directory: Directory) -> None:
    directory.data("a.csv", rows=5000, bad=12)
    found = directory.found_here()
    assert (found.lines, found.bad_lines, found.whole) == (1020, 12, False)
    assert found.bad_examples[0].startswith(f"{directory.path}/a.csv:2: ")
    (warning,) = directory.warnings(found)
    assert "12 of the 1,020 lines read can't be used, and data.max_bad_share allows 0.001 of them" in warning
    assert trial.problems_of(found, load_recipe(directory.recipe), directory.recipe, {}) is None


def test_half_of_the_lines_bad_is_an_error(directory: Directory) -> None:
    directory.data("a.csv", rows=5000, bad=600)
    refusal = directory.refusal(directory.found_here())
    assert refusal.startswith(f"{directory.recipe}:6: data.train: 600 of the 1,020 lines read can't be used")
    assert f"{directory.path}/a.csv:2: " in refusal
    overridden = directory.refusal(directory.found_here(), **{"data.train": ["a.csv"]})
    assert overridden.startswith("override data.train: 600 of")


def test_one_bad_line_of_a_small_file_is_an_error(directory: Directory) -> None:
    directory.data("a.csv", bad=1)
    assert "1 of the 40 lines read can't be used" in directory.refusal(directory.found_here())
    directory.recipe.write_text(RECIPE + "  max_bad_share: 0.1\n")
    found = directory.found_here()
    assert trial.problems_of(found, load_recipe(directory.recipe), directory.recipe, {}) is None
    assert directory.warnings(found) == []


def test_a_machine_without_torch_is_no_fault_of_the_recipe(
    directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    found = directory.found_here()
    assert trial.problems_of(found, load_recipe(directory.recipe), directory.recipe, {}) is None
    assert "the model was not tried: import of torch halted" in directory.warnings(found)[0]
