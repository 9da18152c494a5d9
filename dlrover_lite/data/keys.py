"""Keys of ids that a person has as Python or numpy values: as the readers make them of files, and of the kind that was trained on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dlrover_lite.core.errors import DataError
from dlrover_lite.data.kernels import criteo
from dlrover_lite.data.kernels.fields import category_id, integer_ids
from dlrover_lite.recipe.id_kinds import IdKind

__all__ = ["keys_of"]

_LARGEST_EXACT = 1 << 53


def keys_of(
    values: Sequence[Any] | NDArray[Any], column: str, kind: IdKind | None, data_format: str
) -> NDArray[np.uint64]:
    """Return keys, uint64 [n], of a categorical column's values: integers, or str or bytes; None and NaN are the empty field.

    Text that a model of the format ``criteo`` is asked about is hexadecimal, as there. ``kind`` None: nothing is known, the values say.
    Raises DataError for values of another kind.
    """
    listed = [value.item() if isinstance(value, np.generic) else value for value in values]
    hexadecimal = data_format in ("criteo", "synthetic")
    keys = np.zeros(len(listed), np.uint64)
    for at, value in enumerate(listed):
        found = _kind_of(value, column)
        if found is None:
            continue
        if found == "text" and hexadecimal:
            keys[at] = criteo.category_id(value if isinstance(value, str) else value.decode("utf-8", "surrogateescape"))
            continue
        if kind is not None and found != kind.kind:
            raise _other_kind(column, value, found, kind)
        keys[at] = category_id(value) if found == "text" else integer_ids(np.array([int(value) % 2**64], np.uint64))[0]
    return keys


def _kind_of(value: Any, column: str) -> Literal["integer", "text"] | None:
    """Return the kind of a value; None for a missing one. Raises DataError for what can't be an id."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, str | bytes):
        return "text"
    if isinstance(value, int) and -(2**63) <= value < 2**64:
        return "integer"
    if isinstance(value, float) and abs(value) <= _LARGEST_EXACT and value.is_integer():
        return "integer"  # as numpy and pandas have integers once one is missing
    raise DataError(
        f"column {column!r} has {value!r}, a {type(value).__name__}, which can't be an id.",
        hint="Ids are integers of up to 64 bits, or text.",
    )


def _other_kind(column: str, value: Any, found: str, kind: IdKind) -> DataError:
    source = f" ({kind.source})" if kind.source else ""
    if found == "integer":
        return DataError(
            f"column {column!r} has the integer {value!r}, and the model was trained on text{source}.",
            hint="Give the ids as they were written there, as str.",
        )
    return DataError(
        f"column {column!r} has the text {value!r}, and the model was trained on integers{source}.",
        hint="Give the ids as integers.",
    )
