"""What memory a parameter server (PS) will need, what limit to give it, and how likely it is to run out of it.

    base + rows of embeddings + their index + spill of a snapshot + rows that a move brings + frames in flight

Tables grow by ``table_rows``; all of a PS grow together, fast or slowly: that is what a quantile of its memory means.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import ArrayLike

from dlrover_lite.brain.models.table_rows import IntArray, RowFit, rows_of_tables
from dlrover_lite.brain.models.throughput_forms import Floats
from dlrover_lite.core.units import MIB

__all__ = [
    "ACT_TIMES",
    "HEADROOM",
    "LEAST_PS",
    "LEAST_WORKER",
    "MOST_OVER_EXPECTED",
    "OomRisk",
    "PsMemory",
    "TableMemory",
    "at_most_bytes",
    "base_bytes",
    "decayed_quantile",
    "expected_bytes",
    "index_bytes",
    "limit_for",
    "oom_chance",
    "oom_risk",
    "peak_bytes",
    "row_bytes",
    "worker_limit",
]

_ROW_HEAD, _ROW_COUNT = 12, 4
"""Bytes of a row beside values and optimizer state: hash, table and epoch; a count of updates, which Adam needs, and an export of optimizer
state."""
_BUCKET, _FIRST_BUCKETS = 64, 64
"""Bytes of a bucket of the index, and how many there are at first."""
_FULLEST = 12 * 0.84
"""The most rows in a bucket, on average."""
_BUCKET_ROWS = _FULLEST / 1.125
"""Least number of rows in a bucket: beyond 0.84 of its 12 entries the index grows, by an eighth. (One of fewer than 2,048 buckets, 128 KiB,
doubles: that isn't worth a word.)"""
_LARGEST_INDEX = (_ROW_HEAD + 4 + _BUCKET / _BUCKET_ROWS) / (_ROW_HEAD + 4 + _BUCKET / _FULLEST)
"""Memory of rows with an index that has just grown over that of as many with one that is about to, at most: where rows have one value
each."""
SPILL_PART = 0.25
"""The most of the rows' memory, as a share, that a snapshot may use for rows that change before they are written."""

ACT_TIMES = 3.0
"""Number of measured times to act within which nothing may go wrong."""
_MEASURED_SD = 0.03
"""Relative standard deviation of a PS's memory about the model, beside what rows are uncertain by."""
_QUANTILES = (np.arange(32) + 0.5) / 32
"""Quantiles whose mean stands for the mean of a distribution."""
HEADROOM = 1.06
"""Factor of a limit over the memory that it is to hold: what the model leaves out, and the allocator keeps."""
MOST_OVER_EXPECTED = 1.38
"""The most of a limit over the expected peak: where the forecast is wider than that, more would be wasted than is risked."""
_SAFE, _SURE = 0.95, 0.99
"""Quantiles of what a PS may need: as far as it is looked ahead, and until another limit can be given."""

LEAST_WORKER, LEAST_PS = 64 * MIB, 64 * MIB
"""Least bytes of a worker's and a PS's limit, whatever was measured of the like: a process that is a little larger than another must not be
killed for it. (What it has from the process it was forked from isn't counted; a worker of a Wide&Deep then takes 45 to 70 MiB, a PS without
rows 40.)"""
_WORKER_HEADROOM, _STEADY_HEADROOM = 1.25, 1.15
"""Factors of a worker's limit over the most memory that any has used: while that still rises now and then, and once it has been the same
for minutes. A worker that uses nine tenths of its limit gets more at once (``master.autoscale.memory_reflex``): from 4% above that on."""


class TableMemory(NamedTuple):
    """A table, as one PS has it."""

    dim: int
    fit: RowFit
    share: float
    """Share of the table's rows that are on this PS."""
    state_parts: int
    """Floats of optimizer state per value: 0 SGD, 1 Adagrad, 2 Adam and FTRL."""
    counted: bool = False
    """Rows have a count of updates, whatever the optimizer."""


class PsMemory(msgspec.Struct, frozen=True):
    """What of a PS's memory doesn't follow from its tables' rows. All in bytes."""

    base: int
    """Bytes of the process, dense parameters, journal and marks: ``base_bytes``."""
    spill_part: float = 0.0
    """Share of the rows' memory that snapshots take at their peak: as measured, or ``SPILL_PART`` at most; 0 without checkpoints."""
    arriving: int = 0
    """Bytes of rows that moves under way will bring, with their index."""
    frames: int = 0
    """Bytes of requests and answers in flight at once: minibatches that workers have under way, times bytes of each."""


class OomRisk(msgspec.Struct, frozen=True):
    soon: float
    """Chance that the PS crosses its limit before a relief that is begun now has taken effect, with room for two failures."""
    by_end: float
    """Chance that the PS crosses its limit before the job ends."""
    seconds_left: float | None
    """Seconds until it is as likely as not that the PS has crossed its limit; None if that isn't so by the job's end."""


def row_bytes(dim: int, state_parts: int, *, counted: bool = False) -> int:
    """Compute the bytes of one row, without its index."""
    return _ROW_HEAD + _ROW_COUNT * (counted or state_parts == 2) + 4 * dim * (1 + state_parts)


def index_bytes(rows: ArrayLike) -> Floats:
    """Tell the bytes that the index of so many rows takes, at most."""
    return np.asarray(_BUCKET * np.maximum(_FIRST_BUCKETS, np.asarray(rows, np.float64) / _BUCKET_ROWS), np.float64)


def base_bytes(used: Sequence[int] | IntArray, row_memory: Sequence[int] | IntArray) -> int:
    """Estimate the bytes that a PS takes beside rows and index: the 95th percentile of what was measured of it, both lists by time. A
    snapshot's spill and what moves brought should not be in ``used``."""
    rest = np.sort(np.asarray(used, np.float64) - np.asarray(row_memory, np.float64))
    if not len(rest):
        return 0
    at = 0.95 * (len(rest) - 1)
    return int(max(0.0, float(np.interp(at, np.arange(len(rest)), rest))))


def peak_bytes(
    memory: PsMemory, tables: Sequence[TableMemory], samples: ArrayLike, quantiles: ArrayLike = (0.1, 0.5, 0.9)
) -> Floats:
    """Compute the most memory [quantiles, samples] that the PS needs from now until the job has trained on ``samples`` since it began."""
    samples, quantiles = np.atleast_1d(np.asarray(samples, np.float64)), np.atleast_1d(np.asarray(quantiles))
    total = np.zeros((len(quantiles), len(samples)))
    of_tables = rows_of_tables([table.fit for table in tables], samples, quantiles)
    for dim in sorted({table.dim for table in tables}):
        group = [(table, its) for table, its in zip(tables, of_tables, strict=True) if table.dim == dim]
        first = group[0][0]
        size = row_bytes(dim, first.state_parts, counted=first.counted)
        shares = np.array([table.share for table, _ in group])[:, None, None]
        rows = np.add.reduce(np.array([its for _, its in group]) * shares, axis=0)
        total += rows * size * (1 + memory.spill_part) + index_bytes(rows)
    return total + memory.base + memory.arriving + memory.frames


def expected_bytes(memory: PsMemory, tables: Sequence[TableMemory], samples: ArrayLike) -> Floats:
    """Compute the most memory [samples] that the PS is to be expected to need, as ``peak_bytes``: the mean of all courses. The middle one
    is nearer in most jobs, but further off in those that are the hardest to foresee: where ids change with time, and come again in another
    epoch."""
    found: Floats = peak_bytes(memory, tables, samples, _QUANTILES).mean(axis=0)
    return found


def at_most_bytes(used: int, row_memory: int, times: float, *, spill_part: float) -> float:
    """Bound what a PS needs when it has ``times`` as many rows as now. It uses ``used`` bytes now, and ``row_memory`` of these for rows and
    index. No forecast is above it whose rows aren't."""
    return max(0, used - row_memory) + row_memory * _LARGEST_INDEX * times * (1 + spill_part)


def oom_chance(memory: PsMemory, tables: Sequence[TableMemory], *, limit: int, samples: float) -> float:
    """Estimate the chance that a PS limited to ``limit`` bytes has crossed that when the job has trained on so many samples."""
    return float(_chances(peak_bytes(memory, tables, samples, _QUANTILES), limit)[0])


def _chances(peaks: Floats, limit: int) -> Floats:
    """Compute the chances [samples] that ``peaks`` of all ``_QUANTILES`` cross a limit."""
    from scipy.special import ndtr

    return np.asarray(ndtr(np.log(peaks / limit) / _MEASURED_SD).mean(axis=0))


def oom_risk(
    memory: PsMemory,
    tables: Sequence[TableMemory],
    *,
    limit: int,
    samples: float,
    total_samples: float,
    samples_per_second: float,
    seconds_to_act: float,
    seconds_since: float = 0.0,
) -> OomRisk:
    """Estimate the chances that a PS limited to ``limit`` bytes crosses that; ``samples`` has been trained on of ``total_samples``, over
    all epochs. ``seconds_to_act`` is what it takes a relief to take effect, as measured; ``seconds_since``: how long ago all this was
    so."""
    soon = min(total_samples, samples + samples_per_second * (seconds_since + seconds_to_act * ACT_TIMES))
    # the times in between, for when it becomes likely
    ahead = np.concatenate([[samples, soon], np.linspace(samples, total_samples, 17)[1:]])
    chances = _chances(peak_bytes(memory, tables, ahead, _QUANTILES), limit)
    likely = np.flatnonzero(chances[2:] >= 0.5)
    left = None
    if chances[0] >= 0.5:
        left = 0.0
    elif len(likely) and samples_per_second > 0:
        left = float(ahead[2 + likely[0]] - samples) / samples_per_second
    return OomRisk(float(chances[1]), float(max(chances[1], chances[-1])), left)


def limit_for(
    memory: PsMemory,
    tables: Sequence[TableMemory],
    samples: float,
    *,
    surely: float = 0.0,
    used: int = 0,
    granularity: int = MIB,
) -> int:
    """Compute the bytes to limit a PS to, so that it gets to ``samples`` (over all epochs since the job began): enough for 19 of 20 courses
    that it may take, and not over 1.38 times the expected peak; but for what it already uses (``used``), and what 99 of 100 courses need
    until ``surely``, before which there can be no other limit."""
    expected, high = peak_bytes(memory, tables, samples, (0.5, _SAFE))[:, 0]
    limit = min(high * HEADROOM, expected * MOST_OVER_EXPECTED)
    if surely:
        limit = max(limit, float(peak_bytes(memory, tables, surely, _SURE)[0, 0]) * HEADROOM)
    return math.ceil(max(float(limit), used * HEADROOM) / granularity) * granularity


def worker_limit(used: int, *, steady: bool = False, granularity: int = MIB) -> int:
    """Compute the bytes to limit a worker to, where workers like it have used so much at most; ``steady``: and none more for minutes."""
    headroom = _STEADY_HEADROOM if steady else _WORKER_HEADROOM
    return math.ceil(max(used * headroom, LEAST_WORKER) / granularity) * granularity


def decayed_quantile(
    values: Sequence[float], ages: Sequence[float], *, half_life: float, quantile: float = 0.95
) -> float:
    """Compute the quantile of values of which each counts half as much for every ``half_life`` of its age: bytes per row of jobs past, say.

    Raises ValueError without values.
    """
    if not values:
        raise ValueError("no values")
    order = np.argsort(values)
    weights = 0.5 ** (np.asarray(ages, np.float64)[order] / half_life)
    reached = np.cumsum(weights) >= quantile * weights.sum() * (1 - 1e-12)
    return float(np.asarray(values, np.float64)[order][int(reached.argmax())])
