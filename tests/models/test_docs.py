"""What docs/models.md shows works as it is printed."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
import torch

from dlrover_lite.data.base import Schema
from dlrover_lite.models.export import ExportWriter, Manifest
from dlrover_lite.models.registry import BUILT_IN, _find, build_model, loss_of
from dlrover_lite.recipe.schema import Model

TEXT = (Path(__file__).parents[2] / "docs" / "models.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{re.escape(language)}\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


@pytest.fixture
def example(tmp_path, monkeypatch) -> Path:
    (code,) = blocks("python file=my_model.py")
    (tmp_path / "my_model.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_docs_example_model_trains(example, schema):
    model = build_model(Model(use="my_model.py:MyModel", options={"dim": 4}), schema, directory=example, seed=0)
    embedded = torch.randn(6, 4 * 5, requires_grad=True)
    dense = torch.randn(6, 3)
    logits = model(dense, embedded)
    v = embedded.view(6, 4, 5)[:, :, 1:]
    pairs = sum((v[:, i] * v[:, j]).sum(1) for i in range(4) for j in range(i))
    linear = embedded.view(6, 4, 5)[:, :, 0].sum(1)
    torch.testing.assert_close(logits, model.dense(dense).squeeze(1) + linear + pairs)
    loss_of(model)(logits, torch.ones(6)).backward()
    assert embedded.grad is not None


def test_the_other_python_examples_run(example, schema, capsys):
    build, serve = blocks("python")
    exec(compile(build, "build example", "exec"), {})
    model = Model(use="my_model.py:MyModel", options={"dim": 4})
    module = build_model(model, schema, directory=example, seed=0)
    manifest = Manifest(model=model, schema=schema, fields=module.embedding_fields, seed=0)
    with ExportWriter(example / "export", manifest, model_directory=example) as writer:
        writer.write_dense({name: tensor.numpy() for name, tensor in module.state_dict().items()})
        writer.finish()
    exec(compile(serve, "serving example", "exec"), {})
    assert "tensor(" in capsys.readouterr().out


def test_docs_list_every_model_option_with_its_default():
    rows = {
        (model, cells[0].strip(" `")): cells[2].strip()
        for line in TEXT.splitlines()
        if line.startswith("| `") and len(cells := line.strip("|").split("|")) == 4
        for model in re.findall(r"`(\w+)`", cells[1])
    }
    real = {
        (use, name): str(list(parameter.default) if isinstance(parameter.default, tuple) else parameter.default)
        for use in BUILT_IN
        for name, parameter in inspect.signature(_find(use, Path())[0]).parameters.items()
        if name != "schema"
    }
    assert rows == real


def test_docs_example_model_takes_data_without_dense_columns(example):
    schema = Schema(dense=(), categorical=("C1", "C2"))
    build_model(Model(use="my_model.py:MyModel"), schema, directory=example, seed=0)
