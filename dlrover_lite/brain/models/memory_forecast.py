"""What memory the parameter servers (PS) of a job will need, from its profiles: as decisions take it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from dlrover_lite.brain.models.memory_model import (
    PsMemory,
    TableMemory,
    base_bytes,
    expected_bytes,
    index_bytes,
    peak_bytes,
    row_bytes,
)
from dlrover_lite.brain.models.table_rows import Growth, RowFit, fit_rows
from dlrover_lite.brain.planning.plan_grid import MemoryBand, MemoryNeed
from dlrover_lite.protocol.demands import TableFacts
from dlrover_lite.protocol.profiles import Level, Profile, table_growth

__all__ = ["Forecast", "TableCurve", "forecast", "memory_band", "need_of"]

_LEAST_LOOKS = 3
"""Least number of measurements of a PS before it is believed to need less than others beside its rows."""
_HEADROOM, _MOST = 1.06, 1.38
"""Factors of tables' memory over their 95th percentile, and, at most, over what is expected: as ``memory_model.limit_for``."""


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

    def memory(self, share: float) -> TableMemory:
        return TableMemory(self.dim, self.fit, share, self.state_parts, self.counted)


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
    """
    profiles = [profile for profile in profiles if profile.ps]
    if not profiles:
        return None
    growth = Growth(math.inf if epoch_samples is None else epoch_samples, evict_after_samples, in_order)
    rows_now = {use.node: use.rows for use in profiles[-1].ps}
    total = sum(rows_now.values())
    if total <= 0:
        return None
    shares = {node: rows / total for node, rows in rows_now.items()}
    tables = [
        _Table(curve.dim, curve.state_parts, fit, curve.shares or shares, curve.counted)
        for curve in curves or _by_table(profiles, facts or TableFacts()) or [_all_rows(profiles)]
        if (fit := fit_rows(curve.samples, curve.rows, growth=growth, limit=curve.limit)) is not None
    ]
    base: dict[str, int] = {}
    young: list[str] = []
    for node in rows_now:
        uses = [use for profile in profiles for use in profile.ps if use.node == node]
        base[node] = base_bytes([use.used_bytes for use in uses], [use.row_bytes for use in uses])
        if len(uses) < _LEAST_LOOKS:
            young.append(node)
    base |= dict.fromkeys(young, max(base.values()))
    return Forecast(tuple(tables), base, spill_part) if tables else None


def _by_table(profiles: Sequence[Profile | Level], facts: TableFacts) -> list[TableCurve]:
    """Make each table's curve as the profiles have it; empty if the last one doesn't."""
    last = profiles[-1]
    if not any(table.total_rows for table in last.tables):
        return []
    growth = table_growth(profiles)
    parts = _state_parts(last) if facts.state_parts is None else facts.state_parts
    return [
        TableCurve(
            dim=table.dim,
            state_parts=parts,
            samples=tuple(map(float, growth[table.table][0])),
            rows=tuple(map(float, growth[table.table][1])),
            shares={use.node: table.share(use.node) for use in last.ps},
            counted=facts.counted,
            limit=facts.most_ids,
        )
        for table in last.tables
        if table.total_rows
    ]


def _state_parts(profile: Profile | Level) -> int:
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


def _all_rows(profiles: Sequence[Profile | Level]) -> TableCurve:
    """Make one curve of the rows of all tables, whose rows are as large as theirs are on average. Rows that move between PS change
    nothing."""
    last = profiles[-1].ps
    rows, used = sum(use.rows for use in last), sum(use.row_bytes for use in last)
    index = float(sum(index_bytes(use.rows) for use in last))
    each = max(0.0, used - index) / rows
    return TableCurve(
        dim=max(1, math.ceil((each - row_bytes(0, 0)) / 4)),
        state_parts=0,
        samples=tuple(float(profile.samples_so_far) for profile in profiles),
        rows=tuple(float(sum(use.rows for use in profile.ps)) for profile in profiles),
    )


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
        ps=math.ceil(max(found.base.values(), default=0) * _HEADROOM),
        tables=math.ceil(min(safe * _HEADROOM, expected * _MOST)),
        tables_band=(int(lower), int(expected), int(upper)),
        most_per_ps=most_per_ps,
    )
