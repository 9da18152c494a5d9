"""The JSON Schema accepts what we ship and every shorthand, and refuses what no recipe may have."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from dlrover_lite.recipe.checks import BUILT_IN_MODELS
from dlrover_lite.recipe.json_schema import field_descriptions, json_schema
from dlrover_lite.recipe.load import load_recipe, parse_recipe, resolved_yaml
from dlrover_lite.recipe.starter import starter

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = json_schema()
TYPES = {
    "array": list,
    "boolean": bool,
    "integer": int,
    "null": type(None),
    "number": (int, float),
    "object": dict,
    "string": str,
}


def accepts(schema: dict[str, Any], value: Any) -> bool:
    """The part of JSON Schema that ours uses."""
    if "$ref" in schema and not accepts(SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]], value):
        return False
    if "anyOf" in schema and not any(accepts(choice, value) for choice in schema["anyOf"]):
        return False
    if "enum" in schema and not any(value == item and type(value) is type(item) for item in schema["enum"]):
        return False
    types = schema.get("type", list(TYPES))
    if not any(is_a(value, name) for name in ([types] if isinstance(types, str) else types)):
        return False
    if isinstance(value, dict):
        return accepts_object(schema, value)
    if isinstance(value, list):
        items = schema.get("items", {})
        return len(value) >= schema.get("minItems", 0) and all(accepts(items, item) for item in value)
    if isinstance(value, str):
        long = schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value))
        return long and re.search(schema.get("pattern", ""), value) is not None
    if isinstance(value, int | float) and not isinstance(value, bool):
        above = value > schema.get("exclusiveMinimum", value - 1) and value >= schema.get("minimum", value)
        return above and value < schema.get("exclusiveMaximum", value + 1) and value <= schema.get("maximum", value)
    return True


def is_a(value: Any, name: str) -> bool:
    return isinstance(value, TYPES[name]) and (name == "boolean" or not isinstance(value, bool))


def accepts_object(schema: dict[str, Any], value: dict[str, Any]) -> bool:
    properties = schema.get("properties", {})
    unknown = set(value) - set(properties)
    return (
        set(schema.get("required", [])) <= set(value)
        and (schema.get("additionalProperties", True) is not False or not unknown)
        and all(accepts(properties[name], item) for name, item in value.items() if name in properties)
    )


def plain(text: str) -> Any:
    return YAML(typ="safe", pure=True).load(text)


def test_schema_is_json() -> None:
    assert json.loads(json.dumps(SCHEMA)) == SCHEMA


@pytest.mark.parametrize("path", sorted((ROOT / "recipes").glob("*.yaml")), ids=lambda path: path.name)
def test_schema_accepts_shipped_recipes(path: Path) -> None:
    assert accepts(SCHEMA, plain(path.read_text()))
    recipe = load_recipe(path, check_files=False)
    assert accepts(SCHEMA, plain(resolved_yaml(recipe)))


def test_schema_accepts_the_starter_recipe() -> None:
    assert accepts(SCHEMA, plain(starter()))


GOOD = "version: 1\nname: job\nmodel: dcn\ndata: {format: synthetic, samples: 1000}\n"


@pytest.mark.parametrize(
    "more",
    [
        "training: {optimizer: adam, embedding_optimizer: ftrl, schedule: cosine}",
        "training: {shuffle: on}",
        "training: {embedding_optimizer: }",
        "checkpoint: off",
        "checkpoint: on",
        "checkpoint:",
        "checkpoint: {directory: checkpoints, every_seconds: 60, keep: 3, keep_every_hours: 24, full_every: 1, compress: yes}",
        "checkpoint: false",
        "resources: {ps: auto, worker: {count: 1, cores: 0.5, memory: 1.5 GiB}}",
        "resources: {total: {cores: 4, memory: 1073741824}}",
        "backend: local",
        "backend: {k8s: {image: x, env: {A: b}, storage_size: 5GiB, tolerations: [{operator: Exists}]}}",
    ],
)
def test_schema_accepts_shorthands(more: str) -> None:
    text = GOOD + more
    parse_recipe(text)
    assert accepts(SCHEMA, plain(text))


@pytest.mark.parametrize(
    "text",
    [
        GOOD.replace("version: 1", "version: 2"),
        GOOD.replace("job", "My Job"),
        GOOD.replace("dcn", "dnc"),
        GOOD.replace("synthetic", "criteo"),
        GOOD + "training: {batch_size: 0}",
        GOOD + "training: {batch_sise: 10}",
        GOOD + "training: {optimizer: adagrd}",
        GOOD + "checkpoint: 30m",
        GOOD + "backend: cluster",
        GOOD + "resources: {ps: {count: 1, cores: 1, memory: 1Gib}}",
        GOOD + "zzz: 1",
    ],
)
def test_schema_refuses_invalid_recipes(text: str) -> None:
    assert not accepts(SCHEMA, plain(text))


def test_schema_lists_the_registrys_models() -> None:
    registry = pytest.importorskip("dlrover_lite.models.registry", exc_type=ModuleNotFoundError)
    assert set(BUILT_IN_MODELS) == set(registry.BUILT_IN)


def test_schema_has_descriptions_of_fields() -> None:
    descriptions = field_descriptions()
    assert "recipe's directory" in descriptions["CsvData"]["train"]
    assert SCHEMA["$defs"]["Training"]["properties"]["evaluate_every"]["description"].startswith("Consumed samples")


def test_docs_explain_every_recipe_key() -> None:
    text = (ROOT / "docs" / "recipe.md").read_text(encoding="utf-8")
    keys: set[str] = set()
    for struct in SCHEMA["$defs"].values():
        section = next((choice for choice in struct.get("anyOf", []) if "properties" in choice), struct)
        keys |= set(section["properties"])
    assert {key for key in keys if f"`{key}`" not in text} == set()
