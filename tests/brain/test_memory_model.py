"""The memory model: how tables grow, what a parameter server needs for them, and when it runs out."""

from __future__ import annotations

import functools
import math
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlrover_lite.brain.models.memory_model import (
    PsMemory,
    TableMemory,
    at_most_bytes,
    base_bytes,
    decayed_quantile,
    index_bytes,
    limit_for,
    oom_risk,
    peak_bytes,
    row_bytes,
)
from dlrover_lite.brain.models.table_rows import Growth, RowFit, fit_rows, quantile_rows
from dlrover_lite.core.units import MIB

SAMPLES = 200_000


def distinct(ids: np.ndarray) -> np.ndarray:
    """How many different ones there are among the first n."""
    first = np.zeros(len(ids), np.int64)
    first[np.unique(ids, return_index=True)[1]] = 1
    return np.cumsum(first)


def zipf(exponent: float, ids: int) -> np.ndarray:
    chances = 1 / np.arange(1, ids + 1) ** exponent
    return np.random.default_rng(1).choice(ids, SAMPLES, p=chances / chances.sum())


def changing() -> np.ndarray:
    """A tenth of the samples have an id that never was before: data in the order of time."""
    rng, order = np.random.default_rng(2), np.arange(SAMPLES)
    return np.where(rng.random(SAMPLES) < 0.1, 10**9 + order, zipf(1.2, 30_000))


def moving() -> np.ndarray:
    """Ids of a window that moves on, evenly, over the whole course: most have been seen when it leaves them."""
    rng, ids = np.random.default_rng(5), SAMPLES // 10
    return (np.linspace(0, 2 * ids, SAMPLES) + rng.exponential(ids / 4, SAMPLES)).astype(np.int64)


CURVES = {
    "zipf 0.9, of 50,000": lambda: zipf(0.9, 50_000),
    "zipf 1.05, of 1,000,000": lambda: zipf(1.05, 1_000_000),
    "zipf 1.2, of 10,000": lambda: zipf(1.2, 10_000),
    "zipf 1.3, endless": lambda: np.random.default_rng(3).zipf(1.3, SAMPLES),
    "even, of 2,000": lambda: np.random.default_rng(4).integers(0, 2_000, SAMPLES),
    "even, of 100,000": lambda: np.random.default_rng(4).integers(0, 100_000, SAMPLES),
    "even, of 1,000,000": lambda: np.random.default_rng(4).integers(0, 1_000_000, SAMPLES),
    "in the order of time": changing,
    "of a window that moves": moving,
}


@functools.cache
def curve(name: str) -> np.ndarray:
    return distinct(CURVES[name]())


def seen(rows: np.ndarray, part: float) -> tuple[np.ndarray, np.ndarray]:
    """What a profiler would have by then: 40 measurements at equal distances."""
    at = np.linspace(0, len(rows) * part, 41)[1:].astype(int)
    return at.astype(float), rows[at - 1].astype(float)


def fitted(rows: np.ndarray, part: float, **known: object) -> RowFit:
    found = fit_rows(*seen(rows, part), **known)  # type: ignore[arg-type]
    assert found is not None
    return found


# --- rows -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CURVES)
def test_rows_at_the_end_from_three_tenths_of_an_epoch(name: str) -> None:
    rows = curve(name)
    low, middle, high = quantile_rows(fitted(rows, 0.3), SAMPLES, [0.05, 0.5, 0.95])[:, 0]
    assert middle == pytest.approx(rows[-1], rel=0.15)
    assert low * 0.97 <= rows[-1] <= high * 1.03


@pytest.mark.parametrize("name", ["zipf 1.2, of 10,000", "zipf 1.3, endless"])
def test_later_epochs_bring_no_new_rows(name: str) -> None:
    """A plain power law would be far too high."""
    rows = curve(name)
    three = np.concatenate([rows, np.full(2 * SAMPLES, rows[-1])])
    growth = Growth(epoch_samples=SAMPLES)
    for part in (0.1, 0.3, 0.5):
        middle = quantile_rows(fitted(three, part, growth=growth), 3 * SAMPLES, 0.5)[0, 0]
        assert middle == pytest.approx(rows[-1], rel=0.15), part
    assert quantile_rows(fitted(three, 0.3), 3 * SAMPLES, 0.5)[0, 0] > 1.2 * rows[-1]


def test_with_eviction_a_table_holds_only_recent_ids() -> None:
    """Rows not seen in 30,000 samples are removed: growth ends there, whatever new ids still come."""
    window, ids = 30_000, changing()
    rows = np.array([len(np.unique(ids[max(0, n - window) : n])) for n in range(4000, SAMPLES + 1, 4000)], float)
    at = np.arange(4000, SAMPLES + 1, 4000, dtype=float)
    found = fit_rows(at[:10], rows[:10], growth=Growth(evict_after_samples=window))
    assert found is not None
    assert quantile_rows(found, SAMPLES, 0.5)[0, 0] == pytest.approx(rows[-1], rel=0.15)


def test_fewer_rows_for_a_while_are_no_fewer_in_the_end() -> None:
    """Where an epoch ends, what was seen of late is seen again sooner than usual, and fewer ids are about."""
    at, rows = np.arange(1000.0, 13000.0, 1000.0), np.array([*range(1000, 6000, 1000), *[5000] * 5, 4200, 4000], float)
    found = fit_rows(at, rows, growth=Growth(epoch_samples=10_000, evict_after_samples=5000))
    assert found is not None
    assert quantile_rows(found, 30_000, 0.5)[0, 0] == pytest.approx(5000, rel=0.05)


def of_late(ids: np.ndarray, at: np.ndarray, window: int) -> np.ndarray:
    return np.array([len(np.unique(ids[max(0, int(n) - window) : int(n)])) for n in at], float)


def test_ordered_data_with_eviction_peaks_where_epochs_meet() -> None:
    """In the order of time there are two populations at once then, each of half of the samples."""
    epoch, window = 100_000, 40_000
    rng = np.random.default_rng(7)
    ids = (np.linspace(0, 20_000, epoch) + rng.exponential(2500, epoch)).astype(np.int64)
    at = np.arange(5000.0, 3 * epoch + 1, 5000.0)
    rows = of_late(np.concatenate([ids] * 3), at, window)
    alone, peak = rows[: epoch // 5000].max(), rows.max()
    assert peak > 1.2 * alone

    def foreseen(until: float, *, in_order: bool, samples: float = 3 * epoch) -> np.ndarray:
        known = at <= until
        growth = Growth(epoch_samples=epoch, evict_after_samples=window, in_order=in_order)
        found = fit_rows(at[known], rows[known], growth=growth)
        assert found is not None
        return quantile_rows(found, samples, [0.5, 0.95])[:, 0]

    before = foreseen(0.9 * epoch, in_order=True)
    assert before[1] == pytest.approx(peak, rel=0.1)
    assert foreseen(0.9 * epoch, in_order=False)[1] < before[1]
    assert foreseen(0.9 * epoch, in_order=True, samples=epoch)[1] == pytest.approx(alone, rel=0.01)  # not there yet
    assert foreseen(1.1 * epoch, in_order=True)[1] == pytest.approx(peak, rel=0.1)
    # what has been met is known, and comes no larger
    assert foreseen(1.5 * epoch, in_order=True) == pytest.approx([peak, peak], rel=0.01)


def test_ids_that_dont_change_over_time_have_no_peak_between_epochs() -> None:
    ids = np.random.default_rng(7).integers(0, 5000, 100_000)
    at = np.arange(5000.0, 90_001.0, 5000.0)
    growth = Growth(epoch_samples=100_000, evict_after_samples=40_000, in_order=True)
    found = fit_rows(at, of_late(ids, at, 40_000), growth=growth)
    assert found is not None
    assert quantile_rows(found, 300_000, 0.5)[0, 0] == pytest.approx(5000, rel=0.05)


def test_order_of_data_does_not_matter_without_eviction() -> None:
    found = [
        fit_rows(*seen(curve("zipf 1.2, of 10,000"), 0.1), growth=Growth(epoch_samples=SAMPLES, in_order=in_order))
        for in_order in (False, True)
    ]
    assert found[0] is not None and found[1] is not None
    low, high = (quantile_rows(one, 3 * SAMPLES, [0.1, 0.5, 0.95])[:, 0] for one in found)
    assert low.tolist() == high.tolist()


def test_growth_is_fitted_from_the_second_epoch_on_alone() -> None:
    at, rows = np.array([160.0, 170.0, 180.0]), np.array([40.0, 40.0, 41.0])
    found = fit_rows(at, rows, growth=Growth(epoch_samples=100, evict_after_samples=40, in_order=True))
    assert found is not None
    assert quantile_rows(found, 300, 0.5)[0, 0] == pytest.approx(41, rel=0.05)


def test_forecast_of_rows_keeps_to_a_known_bound() -> None:
    rows = curve("zipf 1.2, of 10,000")
    early = fitted(rows, 0.02, limit=10_000)
    assert quantile_rows(early, 100 * SAMPLES, [0.5, 0.99])[:, 0].max() <= 10_000
    free, bound = (quantile_rows(found, SAMPLES, [0.1, 0.9])[:, 0] for found in (fitted(rows, 0.02), early))
    assert bound[1] - bound[0] < free[1] - free[0]


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1000), st.floats(0.3, 1.0), st.floats(1.0, 100.0), st.floats(1e3, 1e7), st.integers(1, 60))
def test_forecast_rows_only_rise_with_samples_and_quantile(
    seed: int, slope: float, factor: float, limit: float, points: int
) -> None:
    """With samples and with the quantile, from what there is now on, up to what is possible; however few the measurements."""
    rng = np.random.default_rng(seed)
    n = np.cumsum(rng.uniform(1, 1000, points))
    rows = np.ceil(limit * -np.expm1(-factor * n**slope / limit))
    found = fit_rows(n, rows, limit=limit * 2)
    assert found is not None
    ahead = quantile_rows(found, n[-1] * np.array([0.5, 1.0, 1.5, 3.0, 100.0]), [0.05, 0.5, 0.95])
    assert np.isfinite(ahead).all()
    assert (np.diff(ahead, axis=0) >= -1e-6).all()
    assert (np.diff(ahead, axis=1) >= -1e-6 * ahead[:, 1:]).all()
    assert ahead.min() >= rows[-1] * (1 - 1e-9)
    assert ahead.max() <= max(limit * 2, rows[-1]) * (1 + 1e-9)


@settings(max_examples=40, deadline=None)
@given(st.floats(0.2, 0.85), st.floats(0.0, 0.95), st.floats(1.5, 3.0), st.integers(0, 1000))
def test_linear_growth_is_told_from_growth_that_slows_down(slope: float, share: float, ahead: float, seed: int) -> None:
    """rows = K n^g + c n, with the noise of counting."""
    n = np.linspace(0, 1e6, 41)[1:]
    line = share * 2e5 * n / 1e6
    exact = (1 - share) * 2e5 * (n / 1e6) ** slope + line
    found = fit_rows(n, exact + np.random.default_rng(seed).normal(0, 1, 40) * np.sqrt(exact))
    assert found is not None
    expected = (1 - share) * 2e5 * ahead**slope + share * 2e5 * ahead
    assert quantile_rows(found, ahead * 1e6, 0.5)[0, 0] == pytest.approx(expected, rel=0.13)


def test_no_growth_curve_without_rows() -> None:
    assert fit_rows([10.0, 20.0], [0.0, 0.0]) is None


# --- memory of a server ---------------------------------------------------------------------------------------------


def test_rows_and_index_take_what_the_server_says() -> None:
    """Against the real tables: what they say that they take while they grow is never more than the model's, but for rows that have memory
    ahead, to the end of a huge page where there is one, nor is the model's much more than that."""
    from dlrover_lite.protocol.ps_messages import TableSpec
    from dlrover_lite.ps.memory.aligned_mapping import HUGE_BYTES
    from dlrover_lite.ps.tables.table import TableGroup
    from dlrover_lite.recipe.schema import Optimizer

    group = TableGroup([TableSpec("t", 8, 0.1)], Optimizer(use="adagrad"), seed=1)
    assert group.row_bytes == row_bytes(8, 1)
    ahead, pushed = group._arena.slack * group.row_bytes + HUGE_BYTES, 2_000
    grown, indexes, ratios = set(), [], []
    for step in range(300):
        ids = np.arange(step * pushed, (step + 1) * pushed, dtype=np.uint64)
        group.update(ids, np.array([pushed], np.int64), np.zeros((pushed, 8), np.float32))
        if group.rows < 25_000:
            continue  # its index doubles
        index, records = group._index.bytes, group.rows * group.row_bytes
        grown.add(index)
        assert records <= group._arena.bytes <= records + ahead
        model = float(index_bytes(group.rows))
        assert index <= model
        indexes.append(index / model)
        ratios.append((records + index) / (records + model))
    assert len(grown) > 20
    assert min(indexes) > 1 / 1.125 - 0.01 and max(indexes) > 0.99
    assert np.median(ratios) > 0.99


@pytest.mark.parametrize(("dim", "parts"), [(1, 0), (8, 1), (64, 2)])
@pytest.mark.parametrize("rows", [30_000, 31_000, 34_000, 1_000_000])
@pytest.mark.parametrize("times", [1.0, 1.3, 4.0])
def test_no_forecast_is_above_what_is_needed_at_most(dim: int, parts: int, rows: int, times: float) -> None:
    """Though the index may be as full as it gets now, and have just grown then."""
    fullest = math.ceil(rows / (12 * 0.86)) * 64
    now = rows * row_bytes(dim, parts) + fullest
    every_id_new = RowFit(Growth(), rows, 1e6, math.inf, [1.0], [math.inf], [math.log(rows / 1e6)], [1.0], [0.0])
    memory = PsMemory(base=10 * MIB, spill_part=0.25)
    foreseen = peak_bytes(memory, [TableMemory(dim, every_id_new, 1.0, parts)], times * 1e6, 0.5)[0, 0]
    most = at_most_bytes(10 * MIB + now, now, times, spill_part=0.25)
    assert foreseen <= most <= 1.1 * foreseen


@pytest.mark.parametrize(("use", "parts"), [("sgd", 0), ("adagrad", 1), ("adam", 2), ("ftrl", 2)])
def test_a_row_takes_what_each_optimizer_needs(use: Any, parts: int) -> None:
    from dlrover_lite.protocol.ps_messages import TableSpec
    from dlrover_lite.ps.tables.table import TableGroup
    from dlrover_lite.recipe.schema import Optimizer

    group = TableGroup([TableSpec("t", 16, 0.1)], Optimizer(use=use), seed=1)
    assert group.row_bytes == row_bytes(16, parts) - (4 if use == "ftrl" else 0)
    counted = TableGroup([TableSpec("t", 16, 0.1)], Optimizer(use=use), seed=1, counted=True)
    assert counted.row_bytes == row_bytes(16, parts, counted=True)


def table(rows: float, *, slope: float = 0.8, dim: int = 16, counted: float = 1e6) -> TableMemory:
    """All on this server, with the law known for certain."""
    factor = math.log(rows) - slope * math.log(counted)
    fit = RowFit(Growth(), rows, counted, math.inf, [1.0], [math.inf], [factor], [slope], [0.0])
    return TableMemory(dim, fit, 1.0, 1)


def test_peak_memory_adds_everything_beside_rows() -> None:
    tables = [table(1e6), table(1e4, dim=4)]
    rows = peak_bytes(PsMemory(base=0), tables, 1e6, 0.5)[0, 0]
    full = peak_bytes(PsMemory(base=7, spill_part=0.25, arriving=11, frames=13), tables, 1e6, 0.5)[0, 0]
    spill = 0.25 * (1e6 * row_bytes(16, 1) + 1e4 * row_bytes(4, 1))
    assert full - rows == pytest.approx(31 + spill, rel=1e-6)


def risk(limit: float, **changes: float) -> tuple[float, float, float | None]:
    values = {"samples": 1e6, "total_samples": 4e6, "samples_per_second": 1e4, "seconds_to_act": 5.0} | changes
    found = oom_risk(PsMemory(base=100 * MIB), [table(4e5)], limit=int(limit), **values)
    return found.soon, found.by_end, found.seconds_left


def test_risk_of_running_out_of_memory_soon_and_by_the_end() -> None:
    now = peak_bytes(PsMemory(base=100 * MIB), [table(4e5)], 1e6, 0.5)[0, 0]
    end = peak_bytes(PsMemory(base=100 * MIB), [table(4e5)], 4e6, 0.5)[0, 0]
    soon, by_end, left = risk(end * 1.2)
    assert (soon < 0.01, by_end < 0.01, left) == (True, True, None)
    soon, by_end, left = risk((now + end) / 2)
    assert soon < 0.01
    assert by_end > 0.99
    assert left is not None and 50 < left < 250  # of 300 s
    assert risk((now + end) / 2, seconds_to_act=80.0)[0] > 0.9, "relief would come too late"
    assert risk(now * 0.8)[2] == 0.0


@pytest.mark.parametrize("chance", [1e-9, 0.001, 0.011, 0.02, 0.3, 0.5, 0.98])
def test_probabilities_are_those_of_the_normal_distribution(chance: float) -> None:
    """Without rows, all that is uncertain is how well a server's memory is known: 3%."""
    limit = 1e12 * math.exp(-0.03 * NormalDist().inv_cdf(chance))
    found = oom_risk(
        PsMemory(base=10**12), [], limit=int(limit), samples=1.0, total_samples=1.0, samples_per_second=1.0, seconds_to_act=1.0
    )  # fmt: skip
    assert found.soon == pytest.approx(chance, rel=1e-3)


@settings(max_examples=25, deadline=None)
@given(st.floats(0.7, 2.5), st.floats(1.0, 1.5), st.floats(1.0, 60.0), st.floats(1.0, 3.0))
def test_a_higher_limit_is_never_riskier_nor_a_quicker_relief(
    part: float, more: float, act: float, slower: float
) -> None:
    limit = part * 150 * MIB
    soon, by_end, _ = risk(limit, seconds_to_act=act)
    higher_soon, higher_end, _ = risk(limit * more, seconds_to_act=act)
    assert higher_soon <= soon + 1e-9 and higher_end <= by_end + 1e-9
    assert risk(limit, seconds_to_act=act * slower)[0] >= soon - 1e-9
    assert soon <= by_end + 1e-9


@pytest.mark.parametrize("name", CURVES)
def test_memory_limits_suffice_without_much_waste(name: str) -> None:
    rows = curve(name)
    memory, parts = PsMemory(base=60 * MIB), 1
    limit = limit_for(memory, [TableMemory(64, fitted(rows, 0.5), 1.0, parts)], SAMPLES)
    # its peak on the way from half of the samples to the end, now that it is known
    half = float(rows[SAMPLES // 2 - 1])
    slope = math.log2(float(rows[-1]) / half)
    known = RowFit(
        Growth(),
        half,
        SAMPLES / 2,
        math.inf,
        [1.0],
        [math.inf],
        [math.log(half) - slope * math.log(SAMPLES / 2)],
        [slope],
        [0.0],
    )
    peak = peak_bytes(memory, [TableMemory(64, known, 1.0, parts)], SAMPLES, 0.5)[0, 0]
    assert peak <= limit <= 1.4 * peak


def test_a_limit_is_never_below_what_is_used() -> None:
    assert limit_for(PsMemory(base=0), [table(1e4)], 2e6, used=3 * 10**9) >= 3 * 10**9


def test_base_bytes_of_a_server_are_what_it_takes_beside_rows() -> None:
    assert base_bytes([], []) == 0
    assert base_bytes([100, 210, 320], [0, 100, 200]) == pytest.approx(119, abs=1)


def test_decayed_quantile_lets_old_values_fade() -> None:
    assert decayed_quantile([10.0, 20.0, 30.0], [0.0, 0.0, 0.0], half_life=1.0) == 30.0
    assert decayed_quantile([10.0, 20.0, 30.0], [0.0, 0.0, 20.0], half_life=1.0) == 20.0
    with pytest.raises(ValueError, match="no values"):
        decayed_quantile([], [], half_life=1.0)
