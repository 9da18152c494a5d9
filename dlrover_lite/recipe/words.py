"""The schema's types, and a recipe's values, in words for messages."""

from __future__ import annotations

from typing import Any

from msgspec import inspect as mi

from dlrover_lite.recipe.schema import NAME_PATTERN
from dlrover_lite.recipe.source import List, Node, Scalar

__all__ = ["expected", "found"]

_PATTERNS = {NAME_PATTERN: "a name of small letters, digits and inner hyphens, at most 42 long"}


def expected(kind: mi.Type) -> str:
    """Say what this type accepts: "a whole number of at least 1"."""
    match kind:
        case mi.UnionType():
            members = [expected(member) for member in kind.types if not isinstance(member, mi.NoneType)]
            return " or ".join(dict.fromkeys(members))
        case mi.StructType():
            return _section(kind)
        case mi.ListType():
            return "a list of texts" if isinstance(kind.item_type, mi.StrType) else "a list"
        case mi.DictType():
            return "a section"
        case mi.LiteralType():
            values = [str(value) for value in kind.values if value != ""]
            return values[0] if len(values) == 1 else f"one of {', '.join(values)}"
        case mi.BoolType():
            return "yes or no"
        case mi.IntType() | mi.FloatType():
            return _number(kind)
        case mi.StrType():
            return _text(kind)
    return "a value"


def _section(kind: mi.StructType) -> str:
    required = [field.name for field in kind.fields if field.required]
    if "use" in kind.cls.__struct_fields__:
        return "a name, or a section with use"
    if kind.tag_field:
        return f"a section with {kind.tag_field}"
    return f"a section with {', '.join(required)}" if required else "a section"


def _number(kind: mi.IntType | mi.FloatType) -> str:
    noun = "a whole number" if isinstance(kind, mi.IntType) else "a number"
    low, high = kind.ge, kind.le
    if low is not None and high is not None:
        return f"{noun} from {_shown(low)} to {_shown(high)}"
    parts = []
    if low is not None:
        parts.append(f"of at least {_shown(low)}")
    if kind.gt is not None:
        parts.append(f"above {_shown(kind.gt)}")
    if high is not None:
        parts.append(f"of at most {_shown(high)}")
    if kind.lt is not None:
        parts.append(f"below {_shown(kind.lt)}")
    return " ".join([noun, " and ".join(parts)]) if parts else noun


def _shown(bound: float) -> str:
    return f"{bound:,.0f}" if 1 <= abs(bound) < 1e15 and bound == int(bound) else f"{bound:g}"


def _text(kind: mi.StrType) -> str:
    if kind.pattern is not None:
        return _PATTERNS.get(kind.pattern, f"text that matches {kind.pattern}")
    if kind.min_length is not None and kind.min_length == kind.max_length == 1:
        return "a single character"
    return "text"


def found(node: Node) -> str:
    """Say what stands there: "the text 'abc'", "0", "a list"."""
    if isinstance(node, List):
        return "a list"
    if not isinstance(node, Scalar):
        return "a section"
    value: Any = node.value
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return node.text or ("yes" if value else "no")
    if isinstance(value, str):
        return f"the text {value[:60]!r}" + ("…" if len(value) > 60 else "")
    if isinstance(value, int | float):
        text = node.text or (str(value) if abs(value) < 10**60 else "a huge number")
        return text[:60] + ("…" if len(text) > 60 else "")
    return f"a Python {type(value).__name__}"
