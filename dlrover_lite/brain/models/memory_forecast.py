"""What memory the parameter servers (PS) of a job will need, from its profiles: as decisions take it."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from dlrover_lite.brain.models.memory_history import MemoryHistory
from dlrover_lite.brain.models.memory_model import (
    HEADROOM,
    MOST_OVER_EXPECTED,
    PsMemory,
    TableMemory,
    base_bytes,
    expected_bytes,
    index_bytes,
    peak_bytes,
    row_bytes,
)
from dlrover_lite.brain.models.table_rows import (
    Floats,
    Growth,
    IntArray,
    RowFit,
    fit_rows,
    fit_tables,
    growth_exponents,
)
from dlrover_lite.brain.planning.plan_grid import MemoryBand, MemoryNeed
from dlrover_lite.protocol.demands import TableFacts
from dlrover_lite.protocol.profiles import Level, Profile

__all__ = ["Forecast", "TableCurve", "forecast", "memory_band", "need_of", "samples_in", "stepped_up"]

_LEAST_LOOKS = 3
"""Least number of measurements of a PS before it is believed to need less than others beside its rows."""
_STEPS = 6
"""Number of steps in each doubling of the samples after which tables' laws are fitted anew, two thirds of a point."""
_STEPS_AHEAD = 12
"""Number of steps in each doubling in which is counted how far is looked ahead, so that what was computed of that holds for a while."""
_SURPRISE = 0.01
"""Relative difference of a table's rows from what its laws say, from which on these are fitted anew at once: the error that they have."""


class TableCurve(msgspec.Struct, frozen=True, kw_only=True):
    """A table's rows, all PS together, against samples that the job had trained on by then, over all epochs; both rising."""

    dim: int
    state_parts: int
    """Floats of optimizer state per value: 0 SGD, 1 Adagrad, 2 Adam and FTRL."""
    samples: tuple[float, ...]
    rows: tuple[float, ...]
    shares: dict[str, float] = {}
    """Share of the table's rows by PS; empty: as all rows together are divided now."""
    counted: bool = False
    """Rows have a count of updates, whatever the optimizer."""
    limit: float | None = None
    """Bound of the number of different ids; None: not known."""


class _Table(NamedTuple):
    dim: int
    state_parts: int
    fit: RowFit
    shares: dict[str, float]
    counted: bool
    scale: float = 1.0
    """Rows that there are, over those that the fit says."""

    def memory(self, share: float) -> TableMemory:
        return TableMemory(self.dim, self.fit, share * self.scale, self.state_parts, self.counted)


class _Laws(NamedTuple):
    """Tables' laws as they were fitted at some level, and what follows from them for the levels after it, [tables] each."""

    fits: Sequence[RowFit | None]
    rows: Floats
    counted: Floats
    exponents: Floats

    @staticmethod
    def of(fits: Sequence[RowFit | None]) -> _Laws:
        there = [one for one in fits if one is not None]
        rows, counted = (np.array([getattr(one, name) for one in there]) for name in ("rows", "counted"))
        return _Laws(fits, rows, counted, growth_exponents(there))

    def scales(self, growth: Growth, samples: float, rows: Floats) -> Floats | None:
        """Compute the ``rows`` that there are over those that the laws say; None where they don't say it of all tables, or one of these has
        grown otherwise."""
        if len(self.rows) < len(self.fits) or (rows <= 0).any():
            return None
        said = self.rows * (growth.counted(samples) / self.counted) ** self.exponents
        if (said <= 0).any():  # a job that began anew, whose PS still have the rows of before
            return None
        scales = rows / said
        return None if (np.abs(np.log(scales)) > _SURPRISE).any() else np.asarray(scales)


class Forecast(NamedTuple):
    """Forecast of the memory of one job's PS."""

    tables: tuple[_Table, ...]
    base: dict[str, int]
    """Bytes that each PS takes beside rows and index."""
    spill_part: float

    def of(self, ps: str) -> tuple[PsMemory, list[TableMemory]]:
        """Return a PS's memory as ``memory_model`` takes it; for a PS that isn't known, the largest base and an even share."""
        most = max(self.base.values(), default=0)
        even = 1 / max(1, len(self.base))
        memory = PsMemory(self.base.get(ps, most), self.spill_part)
        return memory, [t.memory(t.shares.get(ps, even)) for t in self.tables]


def forecast(
    profiles: Sequence[Profile | Level],
    curves: Sequence[TableCurve] = (),
    *,
    epoch_samples: float | None = None,
    evict_after_samples: float = math.inf,
    in_order: bool = False,
    spill_part: float = 0.0,
    facts: TableFacts | None = None,
) -> Forecast | None:
    """Forecast memory from profiles, or levels, by time. None while no PS has a row.

    Each table has a curve of its own: ``curves``, or those that the profiles tell; where they don't, all rows are taken as one table.
    ``evict_after_samples``, ``in_order``: as ``Growth`` has them, of all tables.

    A ``MemoryHistory`` keeps what was forecast from it, until there is another level.
    """
    growth = Growth(math.inf if epoch_samples is None else epoch_samples, evict_after_samples, in_order)
    facts = facts or TableFacts()
    history = profiles if isinstance(profiles, MemoryHistory) else MemoryHistory(map(_level, profiles))
    if curves:
        return _forecast(history, curves, growth, spill_part, facts)
    holds_for = len(history), history.version, history.last_at, growth, spill_part, facts
    return history.keep("forecast", holds_for, lambda: _forecast(history, (), growth, spill_part, facts))


def _level(one: Profile | Level) -> Level:
    return one if isinstance(one, Level) else Level.of(one)


def _forecast(
    history: MemoryHistory, curves: Sequence[TableCurve], growth: Growth, spill_part: float, facts: TableFacts
) -> Forecast | None:
    known = np.flatnonzero(history.some_ps) if len(history) else np.empty(0, np.int64)
    if not len(known):
        return None
    last = history[int(known[-1])]
    total = sum(use.rows for use in last.ps)
    if total <= 0:
        return None
    shares = {use.node: use.rows / total for use in last.ps}
    tables = [
        _Table(curve.dim, curve.state_parts, fit, curve.shares or shares, curve.counted)
        for curve in curves
        if (fit := fit_rows(curve.samples, curve.rows, growth=growth, limit=curve.limit)) is not None
    ]
    tables = tables if curves else _tables(history, known, last, growth, facts)
    base: dict[str, int] = {}
    young: list[str] = []
    for use in last.ps:
        used, held = history.beside_rows(use.node)
        base[use.node] = base_bytes(used, held)
        if len(used) < _LEAST_LOOKS:
            young.append(use.node)
    base |= dict.fromkeys(young, max(base.values()))
    return Forecast(tuple(tables), base, spill_part) if tables else None


def _tables(history: MemoryHistory, known: IntArray, last: Level, growth: Growth, facts: TableFacts) -> list[_Table]:
    """Fit each table's curve as the history has it; one of the rows of all tables, if its last level doesn't tell them apart."""
    there = [table for table in last.tables if table.total_rows]
    if not there:
        shares = {use.node: use.rows / sum(one.rows for one in last.ps) for use in last.ps}
        return [
            _Table(_mean_dim(last), 0, fit, shares, False, scale)
            for fit, scale in _fits(history, history.all_rows()[known], known, "all", growth, None)
            if fit is not None
        ]
    parts = _state_parts(last) if facts.state_parts is None else facts.state_parts
    names = tuple(table.table for table in there)
    fits = _fits(history, history.table_rows(names)[known], known, names, growth, facts.most_ids)
    return [
        _Table(table.dim, parts, fit, table.shares(use.node for use in last.ps), facts.counted, scale)
        for table, (fit, scale) in zip(there, fits, strict=True)
        if fit is not None
    ]


def _fits(
    history: MemoryHistory, rows: IntArray, known: IntArray, of: Hashable, growth: Growth, limit: float | None
) -> list[tuple[RowFit | None, float]]:
    """Fit tables to their ``rows`` [levels, tables]; return each fit with the rows that there are over those that it says. Laws that were
    fitted a little while ago still hold, if rows have grown since then as they say, and none are evicted."""
    samples, counts = history.samples[known], rows.astype(np.float64)
    if math.isinf(growth.evict_after_samples):
        until = _last_step(samples) + 1
        holds_for = float(samples[until - 1]), history.version, of, growth, limit
        laws = history.keep(
            "laws", holds_for, lambda: _Laws.of(fit_tables(samples[:until], counts[:until], growth=growth, limit=limit))
        )
        if (scales := laws.scales(growth, float(samples[-1]), counts[-1])) is not None:
            return list(zip(laws.fits, scales.tolist(), strict=True))
    return [(fit, 1.0) for fit in fit_tables(samples, counts, growth=growth, limit=limit)]


def _last_step(samples: Floats) -> int:
    """Return the position of the last level at which the samples had come to another step of ``_STEPS`` for each doubling."""
    steps = np.floor(np.log2(np.maximum(samples, 1.0)) * _STEPS)
    risen = np.flatnonzero(steps[1:] != steps[:-1])
    return int(risen[-1]) + 1 if len(risen) else 0


def _state_parts(profile: Level) -> int:
    """Find the floats of optimizer state per value: the number that explains best what rows and indices take."""
    used = sum(use.row_bytes for use in profile.ps)

    def taken(parts: int) -> float:
        total = 0.0
        for use in profile.ps:
            for dim in {table.dim for table in profile.tables}:
                rows = sum(table.rows.get(use.node, 0) for table in profile.tables if table.dim == dim)
                total += rows * row_bytes(dim, parts) + float(index_bytes(rows))
        return total

    return min((0, 1, 2), key=lambda parts: abs(taken(parts) - used))


def _mean_dim(last: Level) -> int:
    """Return the dimension of rows that are as large as those of all tables are on average."""
    rows, used = sum(use.rows for use in last.ps), sum(use.row_bytes for use in last.ps)
    index = float(sum(index_bytes(use.rows) for use in last.ps))
    each = max(0.0, used - index) / rows
    return max(1, math.ceil((each - row_bytes(0, 0)) / 4))


def samples_in(seconds: float, *, so_far: float, per_second: float, total: float | None) -> float:
    """Compute about how many samples, over all epochs, a job will have trained on in so many seconds: its ``total`` at the most, and
    else in steps."""
    ahead = so_far + per_second * seconds
    if total is not None and ahead >= total:
        return max(total, so_far)
    about: float = 2.0 ** (round(math.log2(max(ahead, 1.0)) * _STEPS_AHEAD) / _STEPS_AHEAD)
    return max(so_far, about if total is None else min(about, total))


def stepped_up(samples: float) -> float:
    """Return the next step at or after so many samples."""
    return float(2.0 ** (math.ceil(math.log2(max(samples, 1.0)) * _STEPS_AHEAD) / _STEPS_AHEAD))


def memory_band(found: Forecast, ps: str, samples: float, *, limit: int) -> MemoryBand:
    """Forecast the memory that one PS needs until the job has trained on ``samples``."""
    lower, upper = (int(value) for value in peak_bytes(*found.of(ps), samples, (0.1, 0.9))[:, 0])
    expected = int(expected_bytes(*found.of(ps), samples)[0])
    return MemoryBand(min(max(expected, lower), upper), lower, upper, limit)


def need_of(found: Forecast, samples: float, *, worker: int, most_per_ps: int | None = None) -> MemoryNeed:
    """Forecast what the job's nodes need until it has trained on ``samples``, over all epochs. ``worker``: bytes of each worker."""
    whole = [table.memory(1.0) for table in found.tables]
    none = PsMemory(0, found.spill_part)
    lower, expected, upper, safe = peak_bytes(none, whole, samples, (0.1, 0.5, 0.9, 0.95))[:, 0]
    return MemoryNeed(
        worker=worker,
        ps=math.ceil(max(found.base.values(), default=0) * HEADROOM),
        tables=math.ceil(min(safe * HEADROOM, expected * MOST_OVER_EXPECTED)),
        tables_band=(int(lower), int(expected), int(upper)),
        most_per_ps=most_per_ps,
    )
