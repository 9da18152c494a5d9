"""Whether an export of the census model holds what applying every sample of every epoch exactly once makes, bit for bit.

Gradients are known beforehand (``built_in.census``), and optimizers work value by value, in the order of updates alone: so the reference
is the parameter servers' own kernel, applied the right number of times to all initial values side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from dlrover_lite.core.errors import ModelError, UsageError
from dlrover_lite.core.files.regular import check_regular
from dlrover_lite.core.kernels.compile import kernel
from dlrover_lite.data.census import CENSUS_SCHEMA, EVERYONE, SAMPLE
from dlrover_lite.models.check import fields_of_model
from dlrover_lite.models.export import DENSE_FILE, TableEntry
from dlrover_lite.models.export_reader import ExportReader
from dlrover_lite.models.fields import EmbeddingField
from dlrover_lite.models.registry import build_model
from dlrover_lite.models.tables import TableRows, iterate_table
from dlrover_lite.recipe.census import CENSUS, census_problems
from dlrover_lite.recipe.schema import CensusData, Optimizer, Recipe
from dlrover_lite.tables import optimizers
from dlrover_lite.tables.hashing import initial_rows
from dlrover_lite.tables.layout import BLOCK, PARAMETERS
from dlrover_lite.tables.optimizer_state import STATE_PARTS
from dlrover_lite.tables.optimizers import init_state, update_rows

__all__ = ["CensusReport", "TableCount", "WrongKey", "check_export", "reference"]

MOST_EXAMPLES = 5
"""Maximum number of examples of each table."""
_FEW_UPDATES = 8
"""Number of updates up to which finding equal initial values costs more than updating each of them."""

Floats = NDArray[np.float32]
Progress = Callable[[int], object]


class WrongKey(msgspec.Struct, frozen=True):
    """A key that isn't as it must be; ``problem`` extra: it must not be there at all, or was there before."""

    table: str
    key: int
    problem: Literal["missing", "extra", "wrong"]
    expected_updates: int | None = None
    found_updates: int | None = None
    where: str = ""
    """The first value that differs, as ``value 3``, or else the first of the state, as ``state 3``; empty: the updates alone differ."""
    expected: float | None = None
    """The value that is to be there."""
    found: float | None = None


class TableCount(msgspec.Struct, frozen=True):
    """Result for one table. ``keys`` are to be there, each with so many ``updates``. The key of a dense parameters' row is its block's
    number; in dense.safetensors, each value's position."""

    table: str
    keys: int
    updates: int
    missing: int
    extra: int
    wrong: int


class CensusReport(msgspec.Struct, frozen=True):
    samples: int
    epochs: int
    minibatches: int
    """Number of minibatches in each epoch."""
    tables: list[TableCount]
    examples: list[WrongKey]
    """The first few wrong keys of each table."""

    @property
    def errors(self) -> int:
        """Number of keys that aren't as they must be."""
        return sum(table.missing + table.extra + table.wrong for table in self.tables)

    @property
    def exact(self) -> bool:
        return self.errors == 0


@kernel
def _repeat(kind, hyper, row, size, grads, updates):  # type: ignore[no-untyped-def]
    """Update all values, as one long row with its state behind them, so many times with the same gradients."""
    zero, one = np.uint64(0), np.uint64(1)
    rows = np.zeros(1, np.uint64)
    steps = np.zeros(1, np.uint32)
    init_state(kind, hyper, row, zero, size)
    for _ in range(updates):
        steps[0] += np.uint32(1)
        update_rows(kind, hyper, np.float32(1.0), row, zero, zero, size, rows, one, grads, zero, steps)


def reference(optimizer: Optimizer, start: Floats, gradient: float, updates: int) -> tuple[Floats, Floats]:
    """Return rows [n, dim] that began as ``start`` [n, dim], after so many updates with the same gradient in each value; and their state
    [n, dim x parts]."""
    flat: Floats = start.reshape(-1)
    back: NDArray[np.int64] | None = None
    if updates > _FEW_UPDATES:  # equal ones stay equal
        bits, back = np.unique(flat.view(np.uint32), return_inverse=True)
        flat = bits.view(np.float32)
    n, parts = len(flat), STATE_PARTS[optimizer.use]
    row: Floats = np.empty((1 + parts) * n, np.float32)
    row[:n] = flat
    grads = np.full(n, gradient, np.float32)
    kind, hyper = optimizers.KINDS[optimizer.use], optimizers.hyperparameters(optimizer)
    _repeat(kind, hyper, row, np.uint64(n), grads, updates)
    values, state = row[:n], row[n:].reshape(parts, n)
    if back is not None:
        values, state = values[back], state[:, back]
    # parts of the one long row -> parts of each row
    by_row = state.reshape(parts, *start.shape).transpose(1, 0, 2)
    return values.reshape(start.shape), np.ascontiguousarray(by_row).reshape(len(start), parts * start.shape[1])


class _Expected(NamedTuple):
    """What a table must hold: the keys from 0 on, each as ``initial`` [n, dim] says and then updated."""

    table: str
    keys: int
    dim: int
    optimizer: Optimizer
    gradient: float
    updates: int
    initial: Callable[[NDArray[np.int64]], Floats]
    values: int
    """Number of values in all rows together; what the last row has more is padding."""

    @property
    def parts(self) -> int:
        return STATE_PARTS[self.optimizer.use]

    def rows(self, keys: NDArray[np.int64]) -> tuple[Floats, Floats]:
        return reference(self.optimizer, self.initial(keys), self.gradient, self.updates)

    def counted(self, keys: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which values of these keys' rows count [n, dim]: False for padding."""
        counted: NDArray[np.bool_] = keys[:, None] * self.dim + np.arange(self.dim) < self.values
        return counted


class _Tally:
    """What was found of one table."""

    def __init__(self, expected: _Expected) -> None:
        self.expected = expected
        self.examples: list[WrongKey] = []
        self._seen = np.zeros(expected.keys, np.bool_)
        self._extra = self._wrong = 0

    def add(self, rows: TableRows) -> None:
        counts, state = rows.counts, rows.state
        assert counts is not None and state is not None
        fresh = self._fresh(rows.ids)
        for at in self._sample(~fresh):
            self._example(int(rows.ids[at]), "extra", found_updates=int(counts[at]), found=float(rows.vectors[at, 0]))
        self._extra += int((~fresh).sum())
        if fresh.all():
            self._compare(rows.ids.astype(np.int64), rows.vectors, counts, state)
        elif fresh.any():
            self._compare(rows.ids[fresh].astype(np.int64), rows.vectors[fresh], counts[fresh], state[fresh])

    def _fresh(self, ids: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Return which of the rows are of keys that must be there, for the first time."""
        fresh = np.zeros(len(ids), np.bool_)
        fresh[np.unique(ids, return_index=True)[1]] = True
        fresh &= ids < np.uint64(self.expected.keys)
        known = ids[fresh].astype(np.int64)
        fresh[fresh] = ~self._seen[known]
        self._seen[known] = True
        return fresh

    def _compare(self, keys: NDArray[np.int64], values: Floats, counts: NDArray[np.uint32], state: Floats) -> None:
        expected_values, expected_state = self.expected.rows(keys)
        counted = self.expected.counted(keys)
        other_values = _differ(values, expected_values) & counted
        other_state = _differ(state, expected_state) & np.tile(counted, self.expected.parts)
        updates = self.expected.updates
        wrong = (counts != np.uint32(updates)) | other_values.any(1) | other_state.any(1)
        self._wrong += int(wrong.sum())
        for at in self._sample(wrong):
            more: dict[str, Any] = {}
            for where, other, one, two in (
                ("value", other_values[at], expected_values[at], values[at]),
                ("state", other_state[at], expected_state[at], state[at]),
            ):
                if not more and other.any():
                    first = int(other.argmax())
                    more = {"where": f"{where} {first}", "expected": float(one[first]), "found": float(two[first])}
            self._example(int(keys[at]), "wrong", expected_updates=updates, found_updates=int(counts[at]), **more)

    def _sample(self, which: NDArray[np.bool_]) -> list[int]:
        found: list[int] = np.flatnonzero(which)[: MOST_EXAMPLES - len(self.examples)].tolist()
        return found

    def _example(self, key: int, problem: Literal["missing", "extra", "wrong"], **more: Any) -> None:
        self.examples.append(WrongKey(self.expected.table, key, problem, **more))

    def finish(self) -> TableCount:
        """Return the result after all rows have been added."""
        for key in self._sample(~self._seen):
            self._example(key, "missing", expected_updates=self.expected.updates)
        missing = int((~self._seen).sum())
        expected = self.expected
        return TableCount(expected.table, expected.keys, expected.updates, missing, self._extra, self._wrong)


def _differ(one: Floats, other: Floats) -> NDArray[np.bool_]:
    """Compare bit by bit: a NaN equals itself, and 0 isn't -0."""
    different: NDArray[np.bool_] = _bits(one) != _bits(other)
    return different


def _bits(values: Floats) -> NDArray[np.uint32]:
    return np.ascontiguousarray(values, np.float32).view(np.uint32)


def check_export(directory: Path, recipe: Recipe, progress: Progress | None = None) -> CensusReport:
    """Compare every row of the export in ``directory`` with what ``recipe`` must have made of it.

    ``progress`` is called with the number of keys done. Raises UsageError when the recipe is no census that can be checked or the export
    is without optimizer state, ModelError when the export can't be read.
    """
    for key, message in census_problems(recipe):
        raise UsageError(f"This census can't be checked: {key}: {message}.")
    if recipe.model.use != CENSUS or not isinstance(recipe.data, CensusData):
        raise UsageError(f"This is no census: the model is {recipe.model.use}.")
    export = ExportReader(directory)
    manifest = export.manifest
    if manifest.optimizers is None:
        raise UsageError(
            f"The export in {directory} is without optimizer state, and can't be checked.",
            hint="Run the census again with --set export.optimizer_state=yes",
        )
    start, fields = _initial(recipe)
    entries: dict[str, TableEntry | None] = dict.fromkeys(field.table_name for field in fields)
    entries |= {entry.name: entry for entry in manifest.tables}
    blocks = _blocks(recipe, start)
    tallies, counts, done = [], [], 0
    for expected, entry in (
        *((_embedding(recipe, field), entries[field.table_name]) for field in fields),
        (blocks, manifest.dense_blocks),
    ):
        tally = _Tally(expected)
        for rows in _rows(export, entry, expected):
            tally.add(rows)
            done += len(rows.ids)
            if progress is not None:
                progress(done)
        counts.append(tally.finish())
        tallies.append(tally)
    count, examples = _check_tensors(export, blocks, start)
    return CensusReport(
        recipe.data.samples,
        recipe.training.epochs,
        recipe.data.samples // recipe.training.batch_size,
        [*counts, count],
        [*(example for tally in tallies for example in tally.examples), *examples],
    )


def _initial(recipe: Recipe) -> tuple[Floats, list[EmbeddingField]]:
    """Return the dense parameters that every worker starts with, one after the other, and the model's embedding fields."""
    seed = recipe.training.seed
    module = build_model(recipe.model, CENSUS_SCHEMA, directory=Path(recipe.directory), seed=seed)
    with torch.no_grad():
        flat: Floats = torch.cat([parameter.reshape(-1) for parameter in module.parameters()]).numpy()
    return flat, fields_of_model(module)


def _embedding(recipe: Recipe, field: EmbeddingField) -> _Expected:
    assert isinstance(recipe.data, CensusData)
    training, samples = recipe.training, recipe.data.samples
    updates_of = {SAMPLE: training.epochs, EVERYONE: training.epochs * (samples // training.batch_size)}
    keys = samples if field.column == SAMPLE else 1

    def initial(ids: NDArray[np.int64]) -> Floats:
        name, scale = field.table_name, field.init_scale
        return initial_rows(ids.astype(np.uint64), table=name, seed=training.seed, dim=field.dim, scale=scale)

    return _Expected(
        field.table_name,
        keys,
        field.dim,
        training.embedding_optimizer or training.optimizer,
        1.0 if field.column == SAMPLE else float(training.batch_size),
        updates_of[field.column],
        initial,
        keys * field.dim,
    )


def _blocks(recipe: Recipe, start: Floats) -> _Expected:
    assert isinstance(recipe.data, CensusData)
    training = recipe.training
    padded = np.zeros((-(-len(start) // BLOCK), BLOCK), np.float32)
    padded.reshape(-1)[: len(start)] = start
    updates = training.epochs * (recipe.data.samples // training.batch_size)
    return _Expected(
        PARAMETERS.name,
        len(padded),
        BLOCK,
        training.optimizer,
        1.0,
        updates,
        padded.__getitem__,
        len(start),
    )


def _rows(export: ExportReader, entry: TableEntry | None, expected: _Expected) -> Iterator[TableRows]:
    """Return the rows of a table; none where the export doesn't have it at all."""
    if entry is None:
        return iter(())
    (path,) = export.files(entry.file)
    return iterate_table(path, rows=entry.rows, dim=expected.dim, state_parts=expected.parts)


def _check_tensors(export: ExportReader, blocks: _Expected, start: Floats) -> tuple[TableCount, list[WrongKey]]:
    """Check the dense parameters as the trained model has them, which came by another way than their blocks."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    path = export.dense()
    try:
        check_regular(path)
        tensors = load_file(path)
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{path} can't be used: {str(error).rstrip('.')}.", hint="Run the census again.") from error
    parts = [tensors[entry.name].reshape(-1) for entry in export.manifest.dense if entry.name in tensors]
    found = np.concatenate([*parts, np.empty(0, np.float32)])
    values = blocks.rows(np.arange(blocks.keys))[0].reshape(-1)[: len(start)]
    common = min(len(found), len(values))
    other = _differ(found[:common], values[:common])
    examples = [
        WrongKey(
            DENSE_FILE,
            at,
            "wrong",
            where="value 0",
            expected=float(values[at]),
            found=float(found[at]),
        )
        for at in np.flatnonzero(other)[:MOST_EXAMPLES].tolist()
    ]
    missing, extra = len(values) - common, len(found) - common
    return TableCount(DENSE_FILE, len(values), blocks.updates, missing, extra, int(other.sum())), examples
