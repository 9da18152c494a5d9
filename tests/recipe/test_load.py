"""Recipes that are fine: shorthands, overrides, anchors, and the way back to YAML."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlrover_lite.core.errors import RecipeError
from dlrover_lite.core.units import GIB, MIB
from dlrover_lite.recipe.load import load_recipe, parse_recipe, resolved_yaml
from dlrover_lite.recipe.schema import (
    Checkpoint,
    CriteoData,
    JobCeiling,
    Model,
    Optimizer,
    Recipe,
    RoleResources,
    Schedule,
    SyntheticData,
)
from dlrover_lite.recipe.starter import starter, starter_name

ROOT = Path(__file__).resolve().parents[2]
GOOD = "version: 1\nname: job\nmodel: dcn\ndata: {format: synthetic, samples: 1_000}\n"


def parsed(more: str = "", **overrides: Any) -> Recipe:
    return parse_recipe(GOOD + more, overrides=overrides, check_files=False)


def test_the_least_recipe_has_the_defaults() -> None:
    data = SyntheticData(samples=1000)
    assert parsed() == Recipe(version=1, name="job", model=Model(use="dcn"), data=data, directory=str(Path.cwd()))


def test_shorthands_are_expanded() -> None:
    assert parsed("training: {optimizer: adam, schedule: cosine}\n").training.optimizer == Optimizer(use="adam")
    assert parsed("training: {schedule: cosine}\n").training.schedule == Schedule(use="cosine")
    assert parsed("training: {embedding_optimizer: ftrl}\n").training.embedding_optimizer == Optimizer(use="ftrl")
    criteo = parse_recipe(GOOD.replace("synthetic, samples: 1_000", "criteo, train: day.tsv"), check_files=False).data
    assert criteo == CriteoData(train=["day.tsv"])


@pytest.mark.parametrize(
    "written", ["", "resources:\n", "resources: {ps: auto}\n", "resources: {ps: , worker: auto}\n"]
)
def test_unset_resources_are_left_to_the_brain(written: str) -> None:
    resources = parsed(written).resources
    assert (resources.ps, resources.worker, resources.total) == (None, None, None)


def test_memory_is_read_with_units() -> None:
    text = "resources: {total: {cores: 4, memory: 8GiB}, ps: {count: 1, cores: 0.5, memory: 512MiB}}\n"
    resources = parsed(text).resources
    assert resources.total == JobCeiling(cores=4.0, memory=8 * GIB)
    assert resources.ps == RoleResources(count=1, cores=0.5, memory=512 * MIB)


@pytest.mark.parametrize("word", ["yes", "on", "true", "True", "YES"])
@pytest.mark.parametrize("head", ["", "%YAML 1.1\n---\n"])
def test_yes_and_no_are_read_in_all_spellings(head: str, word: str) -> None:
    opposite = {"yes": "no", "on": "off", "true": "false", "True": "False", "YES": "NO"}[word]
    for text, value in ((word, True), (opposite, False)):
        recipe = parse_recipe(f"{head}{GOOD}training: {{shuffle: {text}}}\n", check_files=False)
        assert recipe.training.shuffle is value


@pytest.mark.parametrize("head", ["", "%YAML 1.1\n---\n"])
def test_checkpoint_off_is_not_false(head: str) -> None:
    assert parse_recipe(f"{head}{GOOD}checkpoint: off\n").checkpoint == "off"


@pytest.mark.parametrize("head", ["", "%YAML 1.1\n---\n"])
def test_checkpoints_are_on_unless_they_are_off(head: str) -> None:
    for text in ("", "checkpoint: on\n", "checkpoint:\n", "checkpoint: {}\n", "checkpoint: yes\n"):
        assert parse_recipe(f"{head}{GOOD}{text}").checkpoint == Checkpoint()
    chosen = parse_recipe(f"{head}{GOOD}checkpoint: {{every_seconds: 60, compress: yes}}\n")
    assert chosen.checkpoint == Checkpoint(every_seconds=60, compress=True)
    for recipe in (chosen, parse_recipe(f"{head}{GOOD}checkpoint: off\n")):
        assert parse_recipe(resolved_yaml(recipe)).checkpoint == recipe.checkpoint
        assert msgspec.json.decode(msgspec.json.encode(recipe), type=Recipe) == recipe


def test_numbers_are_read_with_exponents_and_underscores() -> None:
    training = parsed("training: {batch_size: 1e3, optimizer: {learning_rate: 1e-3}, seed: 1_0}\n").training
    assert (training.batch_size, training.optimizer.learning_rate, training.seed) == (1000, 0.001, 10)
    assert isinstance(training.batch_size, int)
    assert isinstance(parsed("training: {optimizer: {learning_rate: 1}}\n").training.optimizer.learning_rate, float)


def test_yaml_anchors_and_merges_are_resolved() -> None:
    role = "  ps: &role {count: 1, cores: 1, memory: 1GiB}\n"
    resources = parsed(f"resources:\n{role}  worker: {{<<: *role, count: 3}}\n").resources
    assert resources.ps == RoleResources(count=1, cores=1, memory=GIB)
    assert resources.worker == RoleResources(count=3, cores=1, memory=GIB)
    same = parsed(f"resources:\n{role}  worker: *role\n", **{"resources.worker.count": 2}).resources
    assert (same.ps, same.worker) == (
        RoleResources(count=1, cores=1, memory=GIB),
        RoleResources(count=2, cores=1, memory=GIB),
    )


@pytest.mark.filterwarnings("error")
def test_a_redefined_yaml_anchor_counts_from_there_on() -> None:
    training = parsed("training:\n  batch_size: &n 64\n  seed: &n 7\n  epochs: *n\n").training
    assert (training.batch_size, training.seed, training.epochs) == (64, 7, 7)


def test_overrides_change_values_and_options() -> None:
    recipe = parsed(
        "training: {epochs: 5, optimizer: adam}\n",
        **{
            "training.epochs": "2",
            "training.batch_size": 64,
            "training.optimizer.learning_rate": "1e-2",
            "training.shuffle": "off",
            "model.options.hidden": "[32, 16]",
            "model.use": "my.py:Model",
            "model.options.note": "a: *b # c",
            "name": "123",
        },
    )
    assert (recipe.name, recipe.training.epochs, recipe.training.batch_size) == ("123", 2, 64)
    assert recipe.training.optimizer == Optimizer(use="adam", learning_rate=0.01)
    assert recipe.training.shuffle is False
    assert recipe.model == Model(use="my.py:Model", options={"hidden": [32, 16], "note": "a: *b # c"})


def test_overrides_take_globs_and_paths() -> None:
    text = GOOD.replace("synthetic, samples: 1_000", "criteo, train: day.tsv")
    for given_value in ("*.tsv", ["*.tsv"], ("*.tsv",), Path("*.tsv"), "['*.tsv']"):
        recipe = parse_recipe(text, overrides={"data.train": given_value}, check_files=False)
        assert recipe.data == CriteoData(train=["*.tsv"])


def test_a_recipe_may_be_plain_data() -> None:
    plain = {"version": 1, "name": "job", "model": "dcn", "data": {"format": "synthetic", "samples": 1000}}
    assert parse_recipe(plain, overrides={"training.epochs": 3}) == parsed("training: {epochs: 3}\n")
    assert "training" not in plain


def test_relative_paths_start_at_the_recipes_directory(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_bytes(b"\xef\xbb\xbf" + GOOD.encode())
    assert load_recipe(tmp_path / "job.yaml").directory == str(tmp_path)
    (tmp_path / "job.yaml").write_text(GOOD + "directory: below\n")
    assert load_recipe(tmp_path / "job.yaml").directory == str(tmp_path / "below")


# Back to YAML

texts = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), max_size=12)
filled = texts.filter(bool)
numbers = st.floats(min_value=1e-6, max_value=1e6)
shares = st.floats(min_value=0, max_value=0.99)
counts = st.integers(1, 10**12)
plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)


@st.composite
def optimizers(draw: st.DrawFn) -> dict[str, Any]:
    use = draw(st.sampled_from(["sgd", "adagrad", "adam", "ftrl"]))
    keys = {"sgd": [], "adagrad": ["epsilon"], "adam": ["epsilon", "beta1"], "ftrl": ["l1", "l2", "beta"]}[use]
    return {"use": use, "learning_rate": draw(numbers)} | {
        key: draw(shares) if key != "epsilon" else draw(numbers) for key in keys
    }


@st.composite
def data_sections(draw: st.DrawFn) -> dict[str, Any]:
    kind = draw(st.sampled_from(["criteo", "csv", "parquet", "synthetic", "census"]))
    if kind == "synthetic":
        return {"format": kind, "samples": draw(counts), "zipf_exponent": draw(st.floats(0, 100))}
    if kind == "census":
        return {"format": kind, "samples": draw(counts)}
    section = {"format": kind, "train": draw(st.lists(texts, min_size=1, max_size=3)), "eval_share": draw(shares)}
    if kind == "criteo":
        return section
    names = draw(st.lists(filled, min_size=3, max_size=6, unique=True))
    section |= {"label": names[0], "dense": names[1:2], "categorical": names[2:]}
    return section | ({"columns": names, "delimiter": draw(st.sampled_from("\t;|, "))} if kind == "csv" else {})


sizes = {"cores": st.floats(0.01, 1e5), "memory": st.integers(2**24, 2**50)}
roles = st.just("auto") | st.fixed_dictionaries({"count": st.integers(1, 99), **sizes})
recipes = st.fixed_dictionaries(
    {
        "version": st.just(1),
        "name": st.from_regex(r"\A[a-z0-9]([a-z0-9-]{0,40}[a-z0-9])?\Z"),
        "model": st.fixed_dictionaries(
            {"use": st.just("my.py:Model"), "options": st.dictionaries(texts, plain, max_size=3)}
        ),
        "data": data_sections(),
    },
    optional={
        "training": st.fixed_dictionaries(
            {"batch_size": st.integers(1, 2**26), "shuffle": st.booleans(), "optimizer": optimizers()},
            optional={
                "embedding_optimizer": optimizers(),
                "schedule": st.fixed_dictionaries({"use": st.just("linear"), "final_factor": shares}),
            },
        ),
        "resources": st.fixed_dictionaries({}, optional={"ps": roles, "worker": roles}),
    },
)


@settings(max_examples=30, deadline=None)
@given(recipes)
def test_a_resolved_recipe_reads_back_equal(written: dict[str, Any]) -> None:
    recipe = parse_recipe(written, check_files=False)
    again = parse_recipe(resolved_yaml(recipe), directory="/elsewhere", check_files=False)
    assert again == recipe


PIECES = ["version: 1\n", "model:", " ", "\n", "- ", "{", "&a ", "*a", "<<: ", "data:\n"]


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=60) | st.lists(st.sampled_from(PIECES)).map("".join))
def test_any_text_gives_a_recipe_error_not_a_crash(text: str) -> None:
    with pytest.raises(RecipeError):
        parse_recipe(text)


# What we ship


def test_starter_recipe_is_valid_as_it_stands() -> None:
    recipe = parse_recipe(starter("click-model", "click model.yaml"))
    assert (recipe.name, recipe.model.use) == ("click-model", "wide_deep")


def test_commented_out_settings_of_the_starter_are_valid() -> None:
    lines = starter().splitlines()
    sections = "\n".join(lines)
    for on in ("schedule: {use: cosine", "evaluate_every", "shuffle: yes", "seed: 0"):
        assert f"  # {on}" in sections
        sections = sections.replace(f"  # {on}", f"  {on}")
    for on in ("resources:", "  ps:", "  worker:", "export:", "  format: npz"):
        assert f"\n# {on}" in sections
        sections = sections.replace(f"\n# {on}", f"\n{on}")
    assert parse_recipe(sections).training.schedule.use == "cosine"


@pytest.mark.parametrize(
    ("stem", "name"), [("My Job_2", "my-job-2"), ("---", "my-job"), ("日本", "my-job"), ("a" * 60, "a" * 42)]
)
def test_job_names_are_made_from_file_names(stem: str, name: str) -> None:
    assert starter_name(stem) == name
    assert parse_recipe(starter(starter_name(stem))).name == name


def test_quickstart_recipe_fits_two_cores() -> None:
    recipe = load_recipe(ROOT / "recipes" / "quickstart.yaml")
    ps, worker = recipe.resources.ps, recipe.resources.worker
    assert ps is not None and worker is not None
    assert ps.count * ps.cores + worker.count * worker.cores <= 2
    assert recipe.training.evaluate_every > 0


def test_shipped_criteo_recipe_takes_another_file(tmp_path: Path) -> None:
    (tmp_path / "mine.tsv").write_text("1" + "\t7" * 13 + "\t1a" * 26 + "\n")
    recipe = load_recipe(ROOT / "recipes" / "criteo.yaml", {"data.train": [str(tmp_path / "mine.tsv")]})
    assert isinstance(recipe.data, CriteoData)
    assert recipe.data.train == [str(tmp_path / "mine.tsv")]
