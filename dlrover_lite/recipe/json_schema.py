"""The recipe as JSON Schema, for editors: made from the structs of a recipe, with the shorthands that ``load.py`` reads."""

from __future__ import annotations

import ast
import inspect
from typing import Any

import msgspec

from dlrover_lite.recipe import kubernetes, schema
from dlrover_lite.recipe.checks import BUILT_IN_MODELS
from dlrover_lite.recipe.schema_reader import NO, YES

__all__ = ["field_descriptions", "json_schema"]


def json_schema() -> dict[str, Any]:
    """Make the JSON Schema (2020-12) of a recipe. It is wider than ``load_recipe``, which checks what goes together too."""
    made = msgspec.json.schema(schema.Recipe)
    descriptions = field_descriptions()
    for name, struct in made["$defs"].items():
        for field, kind in struct["properties"].items():
            struct["properties"][field] = _with_shorthands(field, kind)
            if description := descriptions.get(name, {}).get(field):
                struct["properties"][field].setdefault("description", description)
    for name in ("Model", "Optimizer", "Schedule"):
        _allow_name(made["$defs"], name)
    made["$defs"]["ResourceLimits"]["properties"].update({role: _role() for role in ("ps", "worker")})
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "dlrover-lite recipe",
        "$ref": made["$ref"],
        "$defs": made["$defs"],
    }


def _with_shorthands(field: str, kind: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of one field, together with the other ways in which it may be written."""
    if "default" in kind:
        kind = {key: value for key, value in kind.items() if key != "default" or not isinstance(value, dict)}
    if "pattern" in kind:  # Python's anchors; JSON Schema has JavaScript's
        kind = {**kind, "pattern": kind["pattern"].replace(r"\A", "^").replace(r"\Z", "$")}
    other: dict[str, Any] | None = None
    if field in ("memory", "storage_size", "scratch_size"):
        other = {"type": "string", "pattern": r"^\s*\d+(\.\d+)?\s*([KMGT]iB|[kMGT]?B)?\s*$"}
    elif kind.get("type") == "array":
        other = {"type": "string"}
        if not kind.get("minItems"):
            other = {"type": ["string", "null"]}
    elif kind.get("type") == "boolean":
        other = {"enum": [*YES, *NO]}
    elif field == "checkpoint":
        words = {"enum": [*YES, *NO, True, False, None]}  # YAML 1.1 reads off as false
        section = next(choice for choice in kind["anyOf"] if "$ref" in choice)
        return {"anyOf": [words, section]}
    elif field == "backend":
        section = next(choice for choice in kind["anyOf"] if "$ref" in choice)
        about: dict[str, Any] = {key: kind[key] for key in ("description", "default") if key in kind}
        return {**about, "anyOf": [{"enum": ["local", "k8s"]}, section]}
    elif field == "autoscale":
        other = {"type": "boolean"}  # as YAML 1.1 reads on and off
    if other is None:
        return kind
    outer: dict[str, Any] = {key: kind[key] for key in ("description", "default") if key in kind}
    return {**outer, "anyOf": [{key: value for key, value in kind.items() if key not in outer}, other]}


def _allow_name(definitions: dict[str, Any], name: str) -> None:
    """Allow ``model: dcn`` for ``model: {use: dcn}``, and so for everything that has a ``use``."""
    section = definitions[name]
    use = section["properties"]["use"]
    if name == "Model":
        anything = {"type": "string", "pattern": r"\.py:[A-Za-z_]\w*$"}
        use = section["properties"]["use"] = {"anyOf": [{"enum": list(BUILT_IN_MODELS)}, anything]}
    outer = {key: section.pop(key) for key in ("title", "description") if key in section}
    written = {key: value for key, value in use.items() if key not in ("default", "description")}
    definitions[name] = {**outer, "anyOf": [written, section]}


def _role() -> dict[str, Any]:
    return {"anyOf": [{"enum": ["auto", None]}, {"$ref": "#/$defs/RoleResources"}], "default": "auto"}


def field_descriptions() -> dict[str, dict[str, str]]:
    """Collect the text below each field in ``schema.py``, by struct and field (inherited fields included)."""
    found: dict[str, dict[str, str]] = {}
    for node in [*ast.parse(inspect.getsource(kubernetes)).body, *ast.parse(inspect.getsource(schema)).body]:
        if not isinstance(node, ast.ClassDef):
            continue
        fields: dict[str, str] = {}
        for base in node.bases:
            fields |= found.get(base.id, {}) if isinstance(base, ast.Name) else {}
        for statement, below in zip(node.body, node.body[1:], strict=False):
            match statement, below:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    fields[name] = " ".join(text.replace("``", "`").split())
        found[node.name] = fields
    return found
