"""A large fact as rows of the ledger: of what has many parts, a commit writes those that have changed.

A struct's fields that are split are left out of its own row, which says what parts they have instead. Put together again, rows are the
JSON of the whole struct, as a fact is that has no parts. A field is split by its kind: a mapping by its keys, a list by the ``id`` of its
members, and bytes into pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import msgspec

from dlrover_lite.core.decoding import from_json

__all__ = ["FactRows", "whole"]

_PIECE_BYTES = 768
"""Length of pieces: their base64 is that of the whole, piece by piece, where it is a multiple of 3."""
_PARTS: Final = "/"
"""Name under which a struct's own row has the parts of a field, which is no field's name."""
_MARKED: Final = f'{{"{_PARTS}":['
"""How the text of such a field begins. A mapping with that key begins otherwise, as its members are no lists."""


class FactRows:
    """The rows of one fact, as they were handed over last. ``split``: fields that have rows of their own for each part."""

    def __init__(self, name: str, split: tuple[str, ...]) -> None:
        self._name, self._split = name, split
        self._own = ""
        self._parts: dict[str, dict[str, Any]] = {field: {} for field in split}

    def changed(self, value: msgspec.Struct) -> Iterator[tuple[str, str | None]]:
        """Yield names and texts of rows that are others than before; None: the row is no more."""
        own: dict[str, Any] = {field: getattr(value, field) for field in value.__struct_fields__}
        for field in self._split:
            before, now = self._parts[field], _parts_of(own[field])
            for key, part in now.items():
                if (known := before.get(key)) is not part and known != part:
                    yield f"{self._name}/{field}/{key}", msgspec.json.encode(part).decode()
            for key in [key for key in before if key not in now]:
                yield f"{self._name}/{field}/{key}", None
            self._parts[field] = now
            own[field] = {_PARTS: list(now), "of": _kind_of(own[field])}
        if (text := msgspec.json.encode(own).decode()) != self._own:
            self._own = text
            yield self._name, text


def whole(name: str, own: str | None, rows: Callable[[str], Mapping[str, str]]) -> str | None:
    """Return the JSON of a fact whose own row is this one: all of it, or what its parts complete. ``rows`` gives rows by a prefix of their
    names."""
    if own is None or _MARKED not in own:
        return own
    found = rows(f"{name}/")
    texts = []
    for field, raw in from_json(own, dict[str, msgspec.Raw]).items():
        text = bytes(raw).decode()
        if text.startswith(_MARKED):
            marker = from_json(text, dict[str, Any])
            parts = [(key, found[f"{name}/{field}/{key}"]) for key in marker[_PARTS]]
            text = _joined(marker["of"], parts)
        texts.append(f"{_quoted(field)}:{text}")
    return "{" + ",".join(texts) + "}"


def _parts_of(value: Any) -> dict[str, Any]:
    if isinstance(value, bytes):
        return {str(at): value[at : at + _PIECE_BYTES] for at in range(0, len(value), _PIECE_BYTES)}
    if isinstance(value, Mapping):
        return dict(value)
    return {str(part.id): part for part in value}


def _kind_of(value: Any) -> str:
    return "bytes" if isinstance(value, bytes) else "mapping" if isinstance(value, Mapping) else "list"


def _joined(kind: str, parts: list[tuple[str, str]]) -> str:
    if kind == "bytes":
        return '"' + "".join(text[1:-1] for _, text in parts) + '"'
    if kind == "mapping":
        return "{" + ",".join(f"{_quoted(key)}:{text}" for key, text in parts) + "}"
    return "[" + ",".join(text for _, text in parts) + "]"


def _quoted(text: str) -> str:
    return msgspec.json.encode(text).decode()
