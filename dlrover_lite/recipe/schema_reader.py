"""From the tree of a recipe's text to the structs of ``schema.py``, guided by nothing but those structs' types; or, for another file of
its kind, to those of that file."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import msgspec
from msgspec import inspect as mi

from dlrover_lite.core.problems import Place, Problems, nearest
from dlrover_lite.core.units import LEAST_MEMORY, MOST_MEMORY, format_bytes, parse_memory
from dlrover_lite.recipe.schema import Checkpoint, Cluster, Recipe, RoleResources
from dlrover_lite.recipe.source import List, Node, Scalar, Section
from dlrover_lite.recipe.words import expected, found

__all__ = ["INVALID", "Given", "Walker"]

YES, NO = ("yes", "on", "true", "y"), ("no", "off", "false", "n")
LARGEST = 2**63 - 1
MEMORY = "an amount of memory, as in 512MiB"
_AMOUNTS = ("memory", "storage_size", "scratch_size")
"""Fields with an amount of memory, or storage."""


class _Invalid:
    """A mark in place of a value that has at least one problem."""


INVALID = _Invalid()


class Given(msgspec.Struct, frozen=True):
    """Which keys of a section were written, and where; what the checks of a section report to."""

    key: str
    place: Place
    keys: dict[str, Place]
    problems: Problems

    def add(self, field: str, message: str, *, place: Place | None = None, hint: str = "") -> None:
        """Add a problem of ``field`` ("" for the section as a whole)."""
        dotted = ".".join(part for part in (self.key, field) if part)
        self.problems.add(place or self.keys.get(field, self.place), dotted, message, hint=hint)


Check = Callable[[Any, Given, Node], None]


class Walker:
    """Reads sections. ``checks`` holds, by struct class, what to call with each valid section (value, keys given, tree); ``schema`` is the
    struct of the whole file."""

    def __init__(self, problems: Problems, checks: dict[type, Check], schema: type[msgspec.Struct] = Recipe) -> None:
        self._problems = problems
        self._checks = checks
        self._schema = schema

    def read(self, root: Section) -> Any:
        """Return the whole file's value."""
        return self._value(mi.type_info(self._schema), root, "")

    def _value(self, kind: mi.Type, node: Node, key: str) -> Any:
        match kind:
            case mi.Metadata():
                return self._value(kind.type, node, key)
            case mi.UnionType():
                return self._union(kind, node, key)
            case mi.StructType():
                return self._struct(kind, node, key)
            case mi.ListType():
                return self._list(kind, node, key)
            case mi.DictType(value_type=mi.StrType() as text):
                return self._texts(text, node, key)
            case mi.DictType():
                return self._options(node, key)
            case mi.LiteralType():
                return self._literal(kind, node, key)
            case mi.BoolType():
                return self._bool(kind, node, key)
            case mi.IntType() | mi.FloatType():
                return self._number(kind, node, key)
            case mi.StrType():
                return self._text(kind, node, key)
        raise TypeError(f"the schema of {key} has a type that recipes don't know: {kind}")

    def _wrong(self, kind: mi.Type | str, node: Node, key: str, *, more: str = "") -> _Invalid:
        """Refuse what was written where something of this type, or what a text says, is expected."""
        what = kind if isinstance(kind, str) else expected(kind)
        return self._refuse(node, key, f"expected {what}, found {found(node)}{more}")

    def _refuse(self, node: Node, key: str, message: str) -> _Invalid:
        self._problems.add(node.place, key, message)
        return INVALID

    # Sections

    def _union(self, kind: mi.UnionType, node: Node, key: str) -> Any:
        members = [member for member in kind.types if not isinstance(member, mi.NoneType)]
        if len(members) < len(kind.types) and isinstance(node, Scalar):
            roles = isinstance(members[0], mi.StructType) and members[0].cls is RoleResources
            if node.value is None or (roles and node.value == "auto"):
                return None
        if any(isinstance(member, mi.LiteralType) for member in members):  # a word in place of the section: see _field
            (section,) = (member for member in members if isinstance(member, mi.StructType))
            return self._struct(section, node, key)
        if len(members) > 1:
            chosen = self._tagged([member for member in members if isinstance(member, mi.StructType)], node, key)
            return INVALID if chosen is None else self._struct(chosen, node, key)
        if isinstance(node, Scalar) and len(members) < len(kind.types) and isinstance(members[0], mi.StructType):
            return self._optional_section(members[0], node, key)
        return self._value(members[0], node, key)

    def _optional_section(self, kind: mi.StructType, node: Scalar, key: str) -> Any:
        if "use" in kind.cls.__struct_fields__:
            return self._struct(kind, node, key)
        auto = "auto, or " if kind.cls is RoleResources else ""
        return self._wrong(f"{auto}{expected(kind)}", node, key)

    def _tagged(self, members: list[mi.StructType], node: Node, key: str) -> mi.StructType | None:
        """Find the struct that the section's tag (``data.format``) names."""
        tag = str(members[0].tag_field)
        by_tag = {str(member.tag): member for member in members}
        known = ", ".join(by_tag)
        if not isinstance(node, Section):
            self._problems.add(node.place, key, f"expected a section with {tag}: {known}; found {found(node)}")
            return None
        if tag not in node.entries:
            self._problems.add(node.place, f"{key}.{tag}", f"missing; one of {known}")
            return None
        value = node.entries[tag]
        if isinstance(value, Scalar) and isinstance(value.value, str) and value.value in by_tag:
            return by_tag[value.value]
        close = nearest(value.value, by_tag) if isinstance(value, Scalar) and isinstance(value.value, str) else None
        more = f"; did you mean {close}?" if close else ""
        self._problems.add(value.place, f"{key}.{tag}", f"expected one of {known}; found {found(value)}{more}")
        return None

    def _struct(self, kind: mi.StructType, node: Node, key: str) -> Any:
        names = [field.name for field in kind.fields]
        if isinstance(node, Scalar) and "use" in names and isinstance(node.value, str):
            node = Section(node.place, {"use": node})
        elif isinstance(node, Scalar) and node.value is None:
            node = Section(node.place, {})  # "training:" with nothing below it
        if not isinstance(node, Section):
            return self._wrong(kind, node, key)
        valid = True
        for name, child in node.entries.items():
            if name not in names and name != kind.tag_field:
                self._unknown(kind, names, name, child.place, key)
        values: dict[str, Any] = {}
        for field in kind.fields:
            dotted = _join(key, field.name)
            if field.name in node.entries:
                values[field.name] = self._field(field, node.entries[field.name], dotted)
                valid = valid and values[field.name] is not INVALID
            elif field.required:
                self._problems.add(node.place, dotted, _missing(field, dotted))
                valid = False
        if not valid:
            return INVALID
        section = kind.cls(**values)
        if kind.cls in self._checks:
            places = {name: child.place for name, child in node.entries.items()}
            self._checks[kind.cls](section, Given(key, node.place, places, self._problems), node)
        return section

    def _unknown(self, kind: mi.StructType, names: list[str], name: str, place: Place, key: str) -> None:
        dotted = _join(key, name)
        known = [*([str(kind.tag_field)] if kind.tag_field else []), *names]
        others = [str(tag) for tag, fields in _tags_of(self._schema, key).items() if name in fields]
        elsewhere = _paths(self._schema).get(name.replace("-", "_"), [])
        if others:
            message = f"{kind.tag_field} {kind.tag} has no such key (known for {' and '.join(others)})"
        elif close := nearest(name, known):
            message = f"unknown key; did you mean {_join(key, close) if place.override is not None else close}?"
        elif elsewhere:
            message = f"unknown key; did you mean {' or '.join(elsewhere)}?"
        else:
            message = f"unknown key; known are {', '.join(known)}"
        self._problems.add(place, dotted, message)

    def _field(self, field: mi.Field, node: Node, dotted: str) -> Any:
        if isinstance(node, Scalar):
            if field.name in _AMOUNTS:
                return self._memory(node, dotted, or_none=field.default == 0)
            if dotted == "version":
                return self._version(node)
            if dotted == "checkpoint":
                return self._checkpoint(node)
            if dotted == "backend":
                return self._backend(node)
        return self._value(field.type, node, dotted)

    def _version(self, node: Scalar) -> Any:
        value = node.value
        if value is True or not isinstance(value, int) or value != 1:  # newer ones: see load.py
            return self._wrong("1", node, "version")
        return 1

    def _checkpoint(self, node: Scalar) -> Any:
        """Read on or off (which YAML 1.1 reads as true and false), or nothing at all for the defaults."""
        word = node.value.lower() if isinstance(node.value, str) else node.value
        if word is False or word in NO:
            return "off"
        if word is None or word is True or word in YES:
            return Checkpoint()
        return self._wrong("off, or a section as in {every_seconds: 600}", node, "checkpoint")

    def _backend(self, node: Scalar) -> Any:
        """Read the name of a backend, with which all settings are the usual ones."""
        if node.value in ("local", "k8s"):
            return "local" if node.value == "local" else Cluster()
        close = nearest(node.value, ("local", "k8s", "kubernetes")) if isinstance(node.value, str) else None
        more = f"; did you mean {'local' if close == 'local' else 'k8s'}?" if close else ""
        return self._wrong("local, k8s, or a section as in {k8s: {image: …}}", node, "backend", more=more)

    # Values

    def _list(self, kind: mi.ListType, node: Node, key: str) -> Any:
        if isinstance(node, Section):
            return self._wrong(kind, node, key)
        if isinstance(node, Scalar):
            node = List(node.place, [] if node.value is None else [node])
        items = [self._value(kind.item_type, item, key) for item in node.items]
        if len(items) < (kind.min_length or 0):
            return self._refuse(node, key, f"expected a list with at least {kind.min_length} entry, found an empty one")
        return INVALID if INVALID in items else items

    def _text(self, kind: mi.StrType, node: Node, key: str) -> Any:
        if not isinstance(node, Scalar):
            return self._wrong(kind, node, key)
        # What a shell passes has no quotes to say "this is text".
        value = node.text if node.place.override is not None and node.text is not None else node.value
        if not isinstance(value, str):
            more = "; put it in quotes" if node.text and not isinstance(value, float | type(None)) else ""
            return self._wrong(kind, node, key, more=more)
        short, long = len(value) < (kind.min_length or 0), len(value) > (kind.max_length or LARGEST)
        if short or long or (kind.pattern is not None and re.search(kind.pattern, value) is None):
            return self._wrong(kind, node, key)
        return value

    def _bool(self, kind: mi.BoolType, node: Node, key: str) -> Any:
        if isinstance(node, Scalar):
            if isinstance(node.value, bool):
                return node.value
            if isinstance(node.value, str) and node.value.lower() in (*YES, *NO):
                return node.value.lower() in YES
        return self._wrong(kind, node, key)

    def _number(self, kind: mi.IntType | mi.FloatType, node: Node, key: str) -> Any:
        value = node.value if isinstance(node, Scalar) else None
        if isinstance(value, bool) or not isinstance(value, int | float):
            quoted = isinstance(value, str) and re.fullmatch(r"[-+]?[\d.]+(e[-+]?\d+)?", value)
            return self._wrong(kind, node, key, more="; leave out the quotes" if quoted else "")
        if isinstance(value, float) and not math.isfinite(value):
            return self._wrong(kind, node, key)
        if isinstance(kind, mi.IntType):
            if value != int(value):
                return self._wrong(kind, node, key)
            value = int(value)  # 1e6 is a whole number
        low = (kind.ge is not None and value < kind.ge) or (kind.gt is not None and value <= kind.gt)
        high = (kind.le is not None and value > kind.le) or (kind.lt is not None and value >= kind.lt)
        if low or high:
            return self._wrong(kind, node, key)
        if abs(value) > LARGEST and (isinstance(kind, mi.IntType) or isinstance(value, int)):
            return self._wrong(kind, node, key, more=" (too large)")
        return value if isinstance(kind, mi.IntType) else float(value)

    def _memory(self, node: Scalar, key: str, *, or_none: bool = False) -> Any:
        """Read an amount of memory. ``or_none``: 0 stands for what follows from something else."""
        amount: int | None = None
        if isinstance(node.value, str):
            try:
                amount = parse_memory(node.value)
            except (ValueError, OverflowError) as error:
                return self._refuse(node, key, str(error))
            node = Scalar(node.place, amount, node.text)
        whole = isinstance(node.value, int) and not isinstance(node.value, bool)
        if not whole:
            return self._wrong(MEMORY, node, key)
        if or_none and node.value == 0:
            return 0
        if not LEAST_MEMORY <= node.value <= MOST_MEMORY:
            bounds = f"from {format_bytes(LEAST_MEMORY)} to {format_bytes(MOST_MEMORY)}"
            shown = f"{found(node)}, in bytes" if amount is None else format_bytes(amount)
            return self._refuse(node, key, f"expected {MEMORY}, {bounds}; found {shown}")
        return node.value

    def _literal(self, kind: mi.LiteralType, node: Node, key: str) -> Any:
        value = node.value if isinstance(node, Scalar) else None
        if isinstance(value, bool) and {"on", "off"} <= set(kind.values):  # YAML 1.1 reads them as true and false
            value = "on" if value else "off"
        for known in kind.values:
            if type(known) is type(value) and known == value:
                return known
        close = nearest(value, [str(known) for known in kind.values]) if isinstance(value, str) else None
        return self._wrong(kind, node, key, more=f"; did you mean {close}?" if close else "")

    def _options(self, node: Node, key: str) -> Any:
        if isinstance(node, Scalar) and node.value is None:
            return {}
        if not isinstance(node, Section):
            return self._wrong("a section of options", node, key)
        values = {name: self._any(child, _join(key, name)) for name, child in node.entries.items()}
        return INVALID if INVALID in values.values() else values

    def _texts(self, kind: mi.StrType, node: Node, key: str) -> Any:
        """Read a section whose keys may be any, with a text for each."""
        if isinstance(node, Scalar) and node.value is None:
            return {}
        if not isinstance(node, Section):
            return self._wrong("a section of texts", node, key)
        values = {name: self._text(kind, child, _join(key, name)) for name, child in node.entries.items()}
        return INVALID if INVALID in values.values() else values

    def _any(self, node: Node, key: str) -> Any:
        if isinstance(node, Section):
            return self._options(node, key)
        if isinstance(node, List):
            items = [self._any(item, key) for item in node.items]
            return INVALID if INVALID in items else items
        value = node.value
        plain = value is None or isinstance(value, bool | str | int | float)
        finite = not isinstance(value, float) or math.isfinite(value)
        small = isinstance(value, bool) or not isinstance(value, int) or abs(value) <= LARGEST
        if plain and finite and small:
            return value
        return self._wrong("a number, text, yes or no, a list or a section", node, key)


def _join(key: str, name: str) -> str:
    return f"{key}.{name}" if key else name


def _missing(field: mi.Field, dotted: str) -> str:
    if dotted == "version":
        return "missing; write `version: 1`"
    return f"missing; expected {MEMORY if field.name == 'memory' else expected(field.type)}"


@cache
def _tags_of(schema: type, key: str) -> dict[str, frozenset[str]]:
    """Return the keys by tag of the tagged section at this key; empty when there is none."""
    for dotted, kind in _fields(mi.type_info(schema), ""):
        if dotted == key and isinstance(kind, mi.UnionType):
            members = [member for member in kind.types if isinstance(member, mi.StructType) and member.tag_field]
            return {str(member.tag): frozenset(field.name for field in member.fields) for member in members}
    return {}


@cache
def _paths(schema: type) -> dict[str, list[str]]:
    """List where each key of the schema may stand."""
    paths: dict[str, list[str]] = {}
    for dotted, _ in _fields(mi.type_info(schema), ""):
        places = paths.setdefault(dotted.rpartition(".")[2], [])
        if dotted not in places:
            places.append(dotted)
    return paths


def _fields(kind: mi.Type, key: str) -> Iterator[tuple[str, mi.Type]]:
    if isinstance(kind, mi.UnionType):
        for member in kind.types:
            yield from _fields(member, key)
    elif isinstance(kind, mi.StructType):
        for field in kind.fields:
            dotted = _join(key, field.name)
            yield dotted, field.type
            yield from _fields(field.type, dotted)
