"""Every way in which a recipe can be wrong is named with its file, line and key; all of them at once."""

# ruff: noqa: E501 - an error is one line

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml.reader import Reader

from dlrover_lite.core.errors import RecipeError
from dlrover_lite.recipe.load import load_recipe, parse_recipe

HEAD = "version: 1\nname: job\nmodel: wide_deep\n"
DATA = "data: {format: synthetic, samples: 1000}\n"
GOOD = HEAD + DATA


def errors(text: str, **settings: object) -> list[str]:
    """The lines of the RecipeError that this recipe raises; [] if it is fine."""
    try:
        parse_recipe(text, source="r.yaml", **settings)  # type: ignore[arg-type]
    except RecipeError as error:
        assert len(error.problems) == len(error.message.splitlines())
        assert error.exit_code == 2
        return error.message.splitlines()
    return []


def only_error(text: str, **settings: object) -> str:
    (line,) = errors(text, **settings)
    return line


def csv(more: str) -> str:
    return HEAD + "data:\n  format: csv\n  train: t.csv\n" + more


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("training:\n  batch_sise: 3\n", "r.yaml:6: training.batch_sise: unknown key; did you mean batch_size?"),
        ("training:\n  batch-size: 3\n", "r.yaml:6: training.batch-size: unknown key; did you mean batch_size?"),
        ("batch_size: 3\n", "r.yaml:5: batch_size: unknown key; did you mean training.batch_size?"),
        (
            "zzz: 3\n",
            "r.yaml:5: zzz: unknown key; known are version, name, model, data, training, resources, autoscale, priority, checkpoint, backend, "
            "export, health, directory",
        ),
        (
            "training: {batch_size: 0}\n",
            "r.yaml:5: training.batch_size: expected a whole number from 1 to 67,108,864, found 0",
        ),
        (
            "training: {epochs: 1.5}\n",
            "r.yaml:5: training.epochs: expected a whole number from 1 to 1,000,000, found 1.5",
        ),
        (
            "training: {epochs: '2'}\n",
            "r.yaml:5: training.epochs: expected a whole number from 1 to 1,000,000, found the text '2'; leave out the quotes",
        ),
        (
            "training: {epochs: yes}\n",
            "r.yaml:5: training.epochs: expected a whole number from 1 to 1,000,000, found the text 'yes'",
        ),
        (
            "training: {epochs: true}\n",
            "r.yaml:5: training.epochs: expected a whole number from 1 to 1,000,000, found true",
        ),
        (
            "training: {seed: 99999999999999999999}\n",
            "r.yaml:5: training.seed: expected a whole number of at least 0, found 99999999999999999999 (too large)",
        ),
        ("training: {shuffle: 1}\n", "r.yaml:5: training.shuffle: expected yes or no, found 1"),
        ("training: 3\n", "r.yaml:5: training: expected a section, found 3"),
        (
            "training:\n  optimizer: {learning_rate: .nan}\n",
            "r.yaml:6: training.optimizer.learning_rate: expected a number from 1e-30 to 1,000,000, found .nan",
        ),
        (
            "training: {optimizer: {learning_rate: .inf}}\n",
            "r.yaml:5: training.optimizer.learning_rate: expected a number from 1e-30 to 1,000,000, found .inf",
        ),
        (
            "training: {optimizer: adagrd}\n",
            "r.yaml:5: training.optimizer.use: expected one of adagrad, adam, ftrl, sgd, found the text 'adagrd'; "
            "did you mean adagrad?",
        ),
        (
            "training: {optimizer: {use: adam, beta1: 1}}\n",
            "r.yaml:5: training.optimizer.beta1: expected a number of at least 0 and below 1, found 1",
        ),
        (
            "training: {optimizer: {use: sgd, l2: 0}}\n",
            "r.yaml:5: training.optimizer.l2: sgd has no l2; it belongs to ftrl",
        ),
        (
            "training: {embedding_optimizer: {use: ftrl, epsilon: 1}}\n",
            "r.yaml:5: training.embedding_optimizer.epsilon: ftrl has no epsilon; it belongs to adagrad and adam",
        ),
        (
            "training:\n  schedule:\n    use: linear\n    warmup_samples: 10\n    decay_samples: 9\n",
            "r.yaml:9: training.schedule.decay_samples: 9 lies before the end of warmup_samples, 10",
        ),
        (
            "training: {schedule: {final_factor: 0.1}}\n",
            "r.yaml:5: training.schedule.final_factor: constant has no final_factor; it belongs to linear and cosine",
        ),
        (
            "checkpoint: {every_second: 60}\n",
            "r.yaml:5: checkpoint.every_second: unknown key; did you mean every_seconds?",
        ),
        (
            "checkpoint:\n  keep: 0\n",
            "r.yaml:6: checkpoint.keep: expected a whole number from 1 to 1,000,000, found 0",
        ),
        (
            "checkpoint: {directory: 'gopher://hole'}\n",
            "r.yaml:5: checkpoint.directory: gopher:// is nothing that fsspec knows; write a path, or a URL as s3://bucket/folder",
        ),
        (
            "checkpoint: [off]\n",
            "r.yaml:5: checkpoint: expected a section, found a list",
        ),
        (
            "checkpoint: 30m\n",
            "r.yaml:5: checkpoint: expected off, or a section as in {every_seconds: 600}, found the text '30m'",
        ),
        (
            "backend: k8\n",
            "r.yaml:5: backend: expected local, k8s, or a section as in {k8s: {image: …}}, found the text 'k8'; did you mean k8s?",
        ),
        (
            "backend: {k8s: {imagee: x}}\n",
            "r.yaml:5: backend.k8s.imagee: unknown key; did you mean image?",
        ),
        (
            "backend: {k8s: {image: x, env: {LEVEL: 1}}}\n",
            "r.yaml:5: backend.k8s.env.LEVEL: expected text, found 1; put it in quotes",
        ),
        (
            "backend: {k8s: {image: x, image_pull_policy: Sometimes}}\n",
            "r.yaml:5: backend.k8s.image_pull_policy: expected one of Always, IfNotPresent, Never, found the text 'Sometimes'",
        ),
        (
            "backend: k8s\n",
            "r.yaml:5: backend.k8s.image: missing; write the image of the job's pods, one that has this release of dlrover-lite "
            "(or: run --image)",
        ),
        (
            "resources: {ps: {count: 1, cores: 1, memory: 512Mib}}\n",
            "r.yaml:5: resources.ps.memory: '512Mib' is not an amount of memory (write 512MiB, 1.5GiB or a number of bytes)",
        ),
        (
            "resources: {worker: some}\n",
            "r.yaml:5: resources.worker: expected auto, or a section with count, cores, memory, found the text 'some'",
        ),
        (
            "resources: {ps: {count: 1, cores: 1}}\n",
            "r.yaml:5: resources.ps.memory: missing; expected an amount of memory, as in 512MiB",
        ),
        (
            "resources: {total: {cores: 0, memory: 1GiB}}\n",
            "r.yaml:5: resources.total.cores: expected a number from 0.01 to 100,000, found 0",
        ),
        (
            "resources:\n  total: {cores: 2, memory: 4GiB}\n  worker: {count: 3, cores: 1, memory: 1GiB}\n",
            "r.yaml:6: resources.total: 3 × worker take 3 cores, more than the total of 2",
        ),
        ("name: again\n", "r.yaml:5: name: given twice; the first one is in line 2"),
        (
            "export: {format: npy}\n",
            "r.yaml:5: export.format: expected one of none, npz, parquet, found the text 'npy'; did you mean npz?",
        ),
        (
            "training: {seed: !mine 3}\n",
            "r.yaml:5: training.seed: the YAML tag !mine is not understood here; leave it out",
        ),
        ("[a, b]: 3\n", "r.yaml:5: a key must be a word"),
    ],
)
def test_a_problem_is_reported_with_line_and_key(more: str, expected: str) -> None:
    assert expected in errors(GOOD + more)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "r.yaml: the recipe is empty"),
        ("# nothing\n", "r.yaml: the recipe is empty"),
        ("~\n", "r.yaml:1: the recipe is empty"),
        ("- 1\n", "r.yaml:1: expected a section with version, name, model and data; found a list"),
        ("hello\n", "r.yaml:1: expected a section with version, name, model and data; found the text 'hello'"),
        ("import os\nprint(os)\n# no: yes\n%x\n", "r.yaml:1: not a recipe: this is not a list of `key: value` lines"),
        ("a: 1\nb: [1\n", "r.yaml:3: not YAML: expected ',' or ']', but got '<stream end>'"),
        ("a:\n\tb: 1\n", "r.yaml:2: not YAML: found character '\\t' that cannot start any token; indent with spaces, not tabs"),
        ("a:\n  b: *.tsv\n", "r.yaml:2: not YAML: found undefined alias '.tsv'; text that starts with * needs quotes, as in \"*.tsv\""),
        ("a: 1\nb: c: d\n", "r.yaml:2: not YAML: mapping values are not allowed here; check the indentation, and quote text that contains ': '"),
        ("a: 1\nb: \x00\n", "r.yaml:2: not a recipe: this isn't text (a recipe is a YAML file)"),
        ("\n" + "[" * 1000, "r.yaml:2: not a recipe: nested too deeply"),
        ("a:\n" + "- b\n" * 30_000, "r.yaml:19999: not a recipe: more than 20,000 values"),
        (
            "version: 2\nnews: yes\n",
            "r.yaml:1: version: version 2: this recipe needs a newer dlrover-lite: pip install --upgrade dlrover-lite",
        ),
        (GOOD.replace("version: 1", "version: '1'"), "r.yaml:1: version: expected 1, found the text '1'"),
        (GOOD.replace("version: 1", "version: true"), "r.yaml:1: version: expected 1, found true"),
        (GOOD.replace("version: 1\n", ""), "r.yaml:1: version: missing; write `version: 1`"),
        (GOOD.replace("name: job", "name: My Job"), "r.yaml:2: name: expected a name of small letters, digits and inner hyphens, at most 42 long, found the text 'My Job'"),
        (GOOD.replace("wide_deep", "3"), "r.yaml:3: model: expected a name, or a section with use, found 3"),
        (GOOD.replace("wide_deep", "wide-dep"), "r.yaml:3: model.use: unknown model 'wide-dep'; did you mean wide_deep?"),
        (GOOD.replace("wide_deep", "m.py"), "r.yaml:3: model.use: names no class; write m.py:Class"),
        (GOOD.replace("wide_deep", "a.b:C"), "r.yaml:3: model.use: expected wide_deep, dcn, xdeepfm, dlrm, census or file.py:Class, found 'a.b:C'"),
        (HEAD, "r.yaml:1: data: missing; expected a section with format"),
        (HEAD + "data: x.tsv\n", "r.yaml:4: data: expected a section with format: criteo, csv, parquet, synthetic, census; found the text 'x.tsv'"),
        (HEAD + "data:\n  samples: 3\n", "r.yaml:4: data.format: missing; one of criteo, csv, parquet, synthetic, census"),
        (HEAD + "data:\n  format: cvs\n", "r.yaml:5: data.format: expected one of criteo, csv, parquet, synthetic, census; found the text 'cvs'; did you mean csv?"),
        (HEAD + "data:\n  format: synthetic\n  smaples: 1\n  samples: 2\n", "r.yaml:6: data.smaples: unknown key; did you mean samples?"),
        (
            HEAD + "data:\n  format: criteo\n  train: x\n  label: a\n",
            "r.yaml:7: data.label: format criteo has no such key (known for csv and parquet)",
        ),
        (HEAD + "data:\n  format: criteo\n  train: []\n", "r.yaml:6: data.train: expected a list with at least 1 entry, found an empty one"),
        (HEAD + "data:\n  format: criteo\n  train:\n  - x\n  - 7\n", "r.yaml:8: data.train: expected text, found 7; put it in quotes"),
        (HEAD + "data: {format: criteo, train: x, eval_share: 1.0}\n", "r.yaml:4: data.eval_share: nothing would be left to train on; expected a share below 1"),
        (csv("  label: y\n"), "r.yaml:4: data: names no features; list columns under dense, categorical or both"),
        (csv("  label: y\n  dense: [a, y]\n"), "r.yaml:8: data.dense: 'y' is the label, and can't be a feature too"),
        (csv("  label: y\n  dense: [a, a]\n"), "r.yaml:8: data.dense: 'a' is listed twice"),
        (csv("  label: y\n  dense: [a]\n  categorical: [a]\n"), "r.yaml:9: data.categorical: 'a' is listed under dense too"),
        (csv("  label: y\n  dense: pric\n  columns: [y, price]\n"), "r.yaml:8: data.dense: 'pric' is not among data.columns; did you mean price?"),
        (csv("  label: y\n  dense: a\n  delimiter: ', '\n"), "r.yaml:9: data.delimiter: expected a single character, found the text ', '"),
        (
            HEAD + "data: {format: synthetic, samples: 9, eval_samples: 0}\ntraining:\n  evaluate_every: 3\n",
            "r.yaml:6: training.evaluate_every: there is nothing to evaluate on: data.eval_samples is 0",
        ),
    ],
)  # fmt: skip
def test_a_problem_between_settings_is_reported_with_its_line(text: str, expected: str) -> None:
    assert expected in errors(text, check_files=False)


def test_all_problems_are_shown_in_the_order_of_the_lines() -> None:
    text = GOOD + "checkpoint: soon\ntraining:\n  epocs: 1\n  batch_size: 0\nresources:\n  pss: 1\n"
    lines = errors(text, overrides={"training.seed": "-1"})
    assert [line.split(": ")[:2] for line in lines] == [
        ["r.yaml:5", "checkpoint"],
        ["r.yaml:7", "training.epocs"],
        ["r.yaml:8", "training.batch_size"],
        ["r.yaml:10", "resources.pss"],
        ["override training.seed", "expected a whole number of at least 0, found -1"],
    ]


def test_deeply_nested_options_are_refused() -> None:
    text = f"version: 1\nname: j\nmodel:\n  use: my.py:Model\n  options:\n    x: {'[' * 90}{']' * 90}\n{DATA}"
    assert only_error(text, check_files=False) == "r.yaml:6: model.options.x: nested too deeply"


def test_aliases_that_never_end_are_refused() -> None:
    assert any("contains itself" in line for line in errors(GOOD + "training: &a\n  schedule: *a\n"))
    levels = "".join(f"    l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]\n" for n in range(1, 9))
    text = f"version: 1\nname: j\nmodel:\n  use: dcn\n  options:\n    l0: &l0 [x]\n{levels}{DATA}"
    assert any("far too many values" in line for line in errors(text))


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({"training.epocs": 2}, "override training.epocs: unknown key; did you mean training.epochs?"),
        ({"trainig.epochs": 2}, "override trainig.epochs: trainig: unknown key; did you mean training?"),
        ({"training.epochs": "two"}, "override training.epochs: expected a whole number from 1 to 1,000,000, found the text 'two'"),
        ({"training.epochs.x": "1"}, "override training.epochs.x: training.epochs is not a section"),
        ({"": 1}, "override : not a key; write it like training.epochs"),
        ({"data.train": "[x"}, "override data.train: '[x' is not YAML"),
        ({"resources.ps.count": "1"}, "override resources.ps.count: resources.ps.cores: missing; expected a number from 0.01 to 100,000"),
        ({"training.seed": object()}, "override training.seed: expected a whole number of at least 0, found a Python object"),
    ],
)  # fmt: skip
def test_wrong_overrides_are_named(overrides: dict[str, object], expected: str) -> None:
    text = GOOD + "training: {epochs: 1}\n"
    assert expected in errors(text, overrides=overrides)


def test_files_that_are_no_recipes_are_refused(tmp_path: Path) -> None:
    def message(path: Path) -> str:
        with pytest.raises(RecipeError) as caught:
            load_recipe(path)
        return str(caught.value)

    (tmp_path / "job.yaml").write_text(GOOD)
    assert message(tmp_path) == f"{tmp_path}: this is a directory; name the recipe file in it"
    assert f"{tmp_path}/jbo.yaml: no such file; did you mean {tmp_path}/job.yaml?" in message(tmp_path / "jbo.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"version: 1\nname: caf\xe9\n")
    assert message(tmp_path / "latin.yaml").startswith(f"{tmp_path}/latin.yaml:2: not a recipe: this isn't UTF-8 text")
    with (tmp_path / "large.yaml").open("wb") as file:
        file.truncate(5 << 20)
    assert "too large" in message(tmp_path / "large.yaml")
    (tmp_path / "empty.yaml").touch()
    assert "the recipe is empty\n`dlrover-lite recipe init" in message(tmp_path / "empty.yaml")


def model(options: str) -> str:
    return f"version: 1\nname: j\nmodel:\n  use: dcn\n  options:\n    {options}\n{DATA}"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("hiden: [64]", "hiden: dcn has no such option; did you mean hidden?"),
        ("zzz: 1", "zzz: dcn has no such option; its options are embedding_dim, init_scale, hidden, cross, cross_layers, low_rank"),
        ("schema: 1", "schema: dcn has no such option; its options are embedding_dim, init_scale, hidden, cross, cross_layers, low_rank"),
        ("embedding_dim: '8'", "embedding_dim: expected a whole number from 1 to 1,000,000, found the text '8'"),
        ("hidden: 64", "hidden: expected a list of layer sizes from 1 to 1,000,000, such as [256, 128], found 64"),
        ("cross: matrx", "cross: expected one of matrix, vector, found the text 'matrx'"),
        ("init_scale: -1", "init_scale: expected a number from 0 to 1,000,000, found -1"),
    ],
)  # fmt: skip
def test_wrong_options_of_built_in_models_are_named(options: str, expected: str) -> None:
    assert only_error(model(options)) == f"r.yaml:6: model.options.{expected}"


def test_misspelt_options_of_overrides_get_the_nearest() -> None:
    error = only_error(model("hidden: [64]"), overrides={"model.options.embeding_dim": "8"})
    assert error == "override model.options.embeding_dim: dcn has no such option; did you mean embedding_dim?"


def test_options_that_fit_are_accepted() -> None:
    assert errors(model("{embedding_dim: 8, hidden: [64], cross: vector, low_rank: 0, init_scale: 0}")) == []


def test_data_that_contains_itself_is_refused() -> None:
    options: dict[str, Any] = {}
    options["x"] = [options]
    with pytest.raises(RecipeError, match="nested too deeply"):
        parse_recipe({"version": 1, "name": "j", "model": {"use": "my.py:Model", "options": options}, "data": {}})


@pytest.mark.parametrize("opening", ["[", "{", "- ", "? ", "a: [", "{a: ", "[{a: "])
def test_endless_nesting_is_refused_before_all_of_it_is_read(opening: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading on would take time by the square of its length."""
    read: list[int] = []
    forward = Reader.forward

    def counted(self: Reader, length: int = 1) -> None:
        read.append(length)
        forward(self, length)

    monkeypatch.setattr(Reader, "forward", counted)
    assert only_error(opening * 100_000, check_files=False) == "r.yaml:1: not a recipe: nested too deeply"
    assert sum(read) < 10_000
