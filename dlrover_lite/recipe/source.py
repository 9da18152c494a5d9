"""A recipe's text as a tree of values that know where they were written, and overrides put into that tree."""

from __future__ import annotations

import math
import operator
import os
import warnings
from collections.abc import Mapping
from typing import Any

import msgspec
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, ReusedAnchorWarning, YAMLError
from ruamel.yaml.events import CollectionEndEvent, CollectionStartEvent, NodeEvent
from ruamel.yaml.nodes import MappingNode, ScalarNode, SequenceNode
from ruamel.yaml.parser import Parser
from ruamel.yaml.reader import ReaderError

from dlrover_lite.core.problems import Place, Problems

__all__ = ["List", "Node", "Scalar", "Section", "apply_override", "read_mapping", "read_text", "written_at"]

_TAG = "tag:yaml.org,2002:"
_MERGE = _TAG + "merge"
_TEXT_TAGS = {_TAG + "str", _TAG + "timestamp", _TAG + "value", _MERGE, "!"}
_TYPED_TAGS = {_TAG + "int", _TAG + "float", _TAG + "bool", _TAG + "null"}
_COLLECTION_TAGS = {_TAG + "map", _TAG + "seq", "!"}
DEEPEST = 50
DEEPEST_PARSED = 4 * DEEPEST
"""Greatest depths: what is a little too deep is refused with its key; what is much too deep, before it takes time."""
MOST_VALUES = 20_000
"""The most values of a recipe: it has dozens, and more than this are another kind of file, or aliases of aliases."""


class Scalar(msgspec.Struct, frozen=True):
    """A single value. ``text`` is the scalar as written, if it was written; ``value`` what YAML makes of it."""

    place: Place
    value: Any
    text: str | None = None


class List(msgspec.Struct, frozen=True):
    place: Place
    items: list[Node]


class Section(msgspec.Struct, frozen=True):
    """A mapping; the place of each value is the line of its key."""

    place: Place
    entries: dict[str, Node]


Node = Scalar | List | Section


class _BeyondReason(Exception):
    """A document that is nested deeper, or has more values, than any recipe. ``line`` counts from 1."""

    def __init__(self, line: int, what: str) -> None:
        super().__init__(what)
        self.line = line


class _BoundedParser(Parser):
    """Gives up at the first value that goes beyond ``DEEPEST_PARSED`` or ``MOST_VALUES``: what follows would take time by its square."""

    def __init__(self, loader: Any) -> None:
        super().__init__(loader)
        self._depth = self._values = 0

    def get_event(self) -> Any:
        event = super().get_event()
        if isinstance(event, NodeEvent):
            self._values += 1
        if isinstance(event, CollectionStartEvent):
            self._depth += 1
        elif isinstance(event, CollectionEndEvent):
            self._depth -= 1
        if self._depth > DEEPEST_PARSED:
            raise _BeyondReason(event.start_mark.line + 1, "nested too deeply")
        if self._values > MOST_VALUES:
            raise _BeyondReason(event.start_mark.line + 1, f"more than {MOST_VALUES:,} values")
        return event


def read_text(text: str, source: str, problems: Problems, *, kind: str = "recipe") -> Node | None:
    """Read the tree of a YAML document; None when it is empty, or (with a problem noted) not YAML. ``kind``: of file, in words."""
    yaml = YAML(typ="safe", pure=True)
    yaml.Parser = _BoundedParser
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ReusedAnchorWarning)  # YAML allows it: the latest one counts
            root = yaml.compose(text)
    except _BeyondReason as error:
        line, message = error.line, f"not a {kind}: {error}"
    except ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        message = f"not a {kind}: this isn't text (a {kind} is a YAML file)"
    except MarkedYAMLError as error:
        mark, message = error.problem_mark or error.context_mark, _explain(error, kind)
        line = mark.line + 1 if mark is not None else 0
        if message.startswith(f"not a {kind}"):
            line = 1
    except RecursionError:
        line, message = 0, f"not a {kind}: nested too deeply"
    except YAMLError as error:
        line, message = 0, f"not YAML: {error}"
    else:
        if root is None:
            return None
        return _Reader(source, problems).convert(root, Place(source, root.start_mark.line + 1), "", ())
    problems.add(Place(source, line), "", message)
    return None


def _explain(error: MarkedYAMLError, kind: str) -> str:
    what = " ".join(str(error.problem or error.context or error).split())
    if "'<document start>'" in what:
        return f"not a {kind}: this is not a list of `key: value` lines"
    advice = ""
    if "'\\t'" in what:
        advice = "; indent with spaces, not tabs"
    elif "undefined alias" in what:
        advice = '; text that starts with * needs quotes, as in "*.tsv"'
    elif "mapping values are not allowed" in what:
        advice = "; check the indentation, and quote text that contains ': '"
    elif "single document" in what or "another document" in what:
        advice = f"; a {kind} is one document"
    return f"not YAML: {what}{advice}"


class _Reader:
    """Turns YAML nodes into our own, with duplicate keys, unknown tags, merges (``<<``) and endless aliases taken care of."""

    def __init__(self, source: str, problems: Problems) -> None:
        self._source = source
        self._problems = problems
        self._constructor = YAML(typ="safe", pure=True).constructor
        self._left = MOST_VALUES

    def convert(self, node: Any, place: Place, key: str, above: tuple[int, ...]) -> Node:
        self._left -= 1
        if len(above) > DEEPEST:
            self._problems.add(place, key, "nested too deeply")
            return Scalar(place, None)
        if self._left < 0 or id(node) in above:
            if self._left >= -1:
                self._problems.add(place, key, "an alias that contains itself, or far too many values")
                self._left = -2
            return Scalar(place, None)
        if isinstance(node, ScalarNode):
            return self._scalar(node, place, key)
        if str(node.tag) not in _COLLECTION_TAGS:
            self._problems.add(place, key, _unknown_tag(str(node.tag)))
        if isinstance(node, SequenceNode):
            return List(
                place,
                [
                    self.convert(item, Place(self._source, item.start_mark.line + 1), key, (*above, id(node)))
                    for item in node.value
                ],
            )
        return Section(place, self._entries(node, key, (*above, id(node))))

    def _entries(self, node: MappingNode, key: str, above: tuple[int, ...]) -> dict[str, Node]:
        entries: dict[str, Node] = {}
        merged: dict[str, Node] = {}
        for key_node, value_node in node.value:
            place = Place(self._source, key_node.start_mark.line + 1)
            if not isinstance(key_node, ScalarNode):
                self._problems.add(place, key, "a key must be a word")
                continue
            if str(key_node.tag) == _MERGE:
                for name, value in self._merge(value_node, place, key, above).items():
                    merged.setdefault(name, value)
                continue
            name = str(key_node.value)
            dotted = f"{key}.{name}" if key else name
            if name in entries:
                first = entries[name].place.line
                self._problems.add(place, dotted, f"given twice; the first one is in line {first}")
                continue
            entries[name] = self.convert(value_node, place, dotted, above)
        return {**merged, **entries}

    def _merge(self, node: Any, place: Place, key: str, above: tuple[int, ...]) -> dict[str, Node]:
        result: dict[str, Node] = {}
        for part in node.value if isinstance(node, SequenceNode) else [node]:
            section = self.convert(part, place, key, above)
            if isinstance(section, Section):
                for name, value in section.entries.items():
                    result.setdefault(name, value)
            elif self._left >= 0:
                self._problems.add(place, key, "<< needs an alias of a section, as in <<: *name")
        return result

    def _scalar(self, node: ScalarNode, place: Place, key: str) -> Scalar:
        tag = str(node.tag)
        if tag in _TEXT_TAGS:
            return Scalar(place, str(node.value), str(node.value))
        if tag not in _TYPED_TAGS:
            self._problems.add(place, key, _unknown_tag(tag))
            return Scalar(place, str(node.value), str(node.value))
        try:
            return Scalar(place, self._constructor.construct_object(node, deep=True), str(node.value))
        except (ValueError, OverflowError):  # "!!int x", or a number of thousands of digits
            return Scalar(place, str(node.value), str(node.value))


def _unknown_tag(tag: str) -> str:
    return f"the YAML tag {tag.replace(_TAG, '!!')} is not understood here; leave it out"


def read_mapping(value: Any, place: Place, problems: Problems) -> Node:
    """Read the tree of plain Python data. Paths become text, numpy's whole numbers int, tuples lists. Data that is nested deeper than any
    recipe, such as a list that contains itself, is a problem."""
    try:
        return _read_data(value, place, 0)
    except _BeyondReason as error:
        problems.add(place, place.override or "", f"not a recipe: {error}")
        return Scalar(place, None)


def _read_data(value: Any, place: Place, depth: int) -> Node:
    if depth > DEEPEST:
        raise _BeyondReason(place.line, "nested too deeply")
    if isinstance(value, Mapping):
        return Section(place, {str(name): _read_data(item, place, depth + 1) for name, item in value.items()})
    if isinstance(value, list | tuple):
        return List(place, [_read_data(item, place, depth + 1) for item in value])
    if isinstance(value, os.PathLike):
        return Scalar(place, os.fspath(value))
    if not isinstance(value, bool | int | float | str) and hasattr(value, "__index__"):
        return Scalar(place, operator.index(value))
    if isinstance(value, float) and not isinstance(value, bool) and math.isfinite(value):
        return Scalar(place, float(value))
    return Scalar(place, value)


def apply_override(root: Section, dotted: str, value: Any, problems: Problems) -> None:
    """Put ``value`` (text is read as YAML) at the dotted key of the tree; sections on the way are made as needed."""
    place = Place("", 0, dotted)
    names = dotted.split(".")
    if not all(names):
        problems.add(place, dotted, "not a key; write it like training.epochs")
        return
    section = root
    for depth, name in enumerate(names[:-1], start=1):
        child = section.entries.get(name)
        if isinstance(child, Scalar) and isinstance(child.value, str) and child.value != "auto":
            child = Section(child.place, {"use": child})  # model: dcn, optimizer: adam, schedule: cosine
        elif child is None or (isinstance(child, Scalar) and child.value in (None, "auto")):
            child = Section(place, {})
        if not isinstance(child, Section):
            problems.add(place, dotted, f"{'.'.join(names[:depth])} is not a section")
            return
        # Copied: an alias may use the same section elsewhere.
        child = Section(child.place, dict(child.entries))
        section.entries[name] = child
        section = child
    section.entries[names[-1]] = _override_value(value, place, dotted, problems)


def written_at(root: Node, dotted: str) -> Node:
    """Return what was written for this key, or the innermost section around it that was."""
    for name in dotted.split("."):
        if not isinstance(root, Section) or name not in root.entries:
            break
        root = root.entries[name]
    return root


def _override_value(value: Any, place: Place, dotted: str, problems: Problems) -> Node:
    if not isinstance(value, str):
        return read_mapping(value, place, problems)
    found = Problems()
    node: Node | None
    if value.lstrip()[:1] in ("[", "{", '"', "'"):
        node = read_text(value, "", found)
        if len(found):
            problems.add(place, dotted, f"{value!r} is not YAML")
    else:
        # Not parsed but resolved: *.tsv, a: b and # are fine in a shell, and no YAML.
        resolver = YAML(typ="safe", pure=True).resolver
        tag = resolver.resolve(ScalarNode, value, (True, False))
        node = _Reader("", found).convert(ScalarNode(tag, value), place, dotted, ())
    return _moved(node, place) if node is not None else Scalar(place, None)


def _moved(node: Node, place: Place) -> Node:
    if isinstance(node, Section):
        return Section(place, {name: _moved(child, place) for name, child in node.entries.items()})
    if isinstance(node, List):
        return List(place, [_moved(child, place) for child in node.items])
    return Scalar(place, node.value, node.text)
