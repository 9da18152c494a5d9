"""What parameter servers held, kept in arrays: the same levels, and the same forecasts, as from the levels themselves."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from dlrover_lite.brain.models import memory_forecast
from dlrover_lite.brain.models.memory_forecast import Forecast, forecast, memory_band, need_of, samples_in
from dlrover_lite.brain.models.memory_history import MemoryHistory
from dlrover_lite.brain.models.table_rows import quantile_rows
from dlrover_lite.core.units import GIB, MIB
from dlrover_lite.protocol.demands import TableFacts
from dlrover_lite.protocol.profiles import Level, PsLevel, TableUse

FACTS = TableFacts(state_parts=1)


def level(number: int, samples: float, rows: dict[str, float], servers: int = 2) -> Level:
    """A level whose tables are spread evenly."""
    of_ps = {name: {f"ps-{at}": int(count / servers) for at in range(servers)} for name, count in rows.items()}
    each = sum(int(count / servers) for count in rows.values())
    held = [PsLevel(f"ps-{at}", each, 150 * each, 90 * MIB + 150 * each + at * MIB) for at in range(servers)]
    tables = tuple(TableUse(name, 16, its) for name, its in of_ps.items())
    return Level(1000.0 + number, int(samples), 5000.0, tuple(held), tables)


def course(seed: int) -> list[Level]:
    """Levels of a job: a table that comes late, another number of PS in between, one table that grows faster of a sudden."""
    random = np.random.default_rng(seed)
    slopes, late, turn = random.uniform(0.4, 0.9, 3), int(random.integers(5, 40)), int(random.integers(50, 100))
    found, samples = [], 1e4
    for number in range(150):
        samples *= 1 + random.uniform(0.002, 0.15)
        rows = {f"t-{at}": 20 * samples**slope for at, slope in enumerate(slopes.tolist()) if at or number >= late}
        if number > turn:
            rows["t-1"] *= 1.02 ** (number - turn)
        found.append(level(number, samples, rows, servers=3 if 30 < number < 60 else 2))
    return found


def needs(found: Forecast | None, samples: float) -> object:
    if found is None:
        return None
    bands = [memory_band(found, ps, 2 * samples, limit=GIB) for ps in found.base]
    return need_of(found, 2 * samples, worker=0), bands, found.base


def test_memory_that_rows_have_just_left_is_not_taken_for_what_a_server_needs_beside_rows() -> None:
    """It has half of the rows from the fifth level on, and all of their memory for a moment more."""
    rows, each = [100_000, 200_000, 300_000, 400_000, 210_000, 220_000], 150
    levels = [level(at, 1e5 * (at + 1), {"t": float(count)}, servers=1) for at, count in enumerate(rows)]
    late = msgspec.structs.replace(levels[4].ps[0], used_bytes=90 * MIB + each * rows[3])
    levels[4] = msgspec.structs.replace(levels[4], ps=(late,))
    found = forecast(levels, facts=FACTS)
    assert found is not None and found.base == {"ps-0": 90 * MIB}


@pytest.mark.parametrize("seed", range(6))
def test_what_is_kept_forecasts_as_what_is_not(seed: int) -> None:
    history = MemoryHistory()
    for number, one in enumerate(course(seed)):
        history.append(one)
        history.thin(64)
        if number % 3 == 0:  # what is kept has to hold, however often it is asked
            kept = needs(forecast(history, facts=FACTS, epoch_samples=1e9), one.samples_so_far)
            anew = needs(forecast(list(history), facts=FACTS, epoch_samples=1e9), one.samples_so_far)
            assert kept == anew
            assert kept == needs(forecast(history, facts=FACTS, epoch_samples=1e9), one.samples_so_far)


def test_other_questions_are_answered_anew() -> None:
    history = MemoryHistory(course(1))
    samples = history[-1].samples_so_far
    whole = forecast(history, facts=FACTS)
    assert forecast(history, facts=FACTS) is whole
    over = forecast(history, facts=FACTS, epoch_samples=samples)
    assert whole is not None and over is not None
    assert need_of(over, 4 * samples, worker=0).tables < need_of(whole, 4 * samples, worker=0).tables
    assert forecast(history, facts=FACTS, spill_part=0.25).spill_part == 0.25  # type: ignore[union-attr]


def test_laws_are_fitted_anew_as_samples_grow_and_at_once_when_they_are_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    fitted: list[int] = []
    fit_tables = memory_forecast.fit_tables

    def counted(samples: np.ndarray, *args: object, **kwargs: object) -> object:
        fitted.append(int(samples[-1]))
        return fit_tables(samples, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(memory_forecast, "fit_tables", counted)
    history, samples = MemoryHistory(), 1e6
    for number in range(60):
        samples *= 1.01
        history.append(level(number, samples, {"t": 10 * samples**0.8}))
        forecast(history, facts=FACTS)
    assert 4 <= len(fitted) <= 7
    before = need_of(forecast(history, facts=FACTS), 3 * samples, worker=0)  # type: ignore[arg-type]
    for number in range(60, 63):
        samples *= 1.01
        history.append(level(number, samples, {"t": 10 * samples**0.8 * 1.05 ** (number - 59)}))
    ahead = need_of(forecast(history, facts=FACTS), 3 * samples, worker=0)  # type: ignore[arg-type]
    assert fitted[-1] == int(samples)
    assert ahead.tables > 1.25 * before.tables


def test_laws_of_before_go_through_the_newest_rows() -> None:
    history, samples = MemoryHistory(), 2.0**20
    for number in range(40):
        samples *= 1.01
        history.append(level(number, samples, {"t": 10 * samples**0.8, "u": 5 * samples**0.6}))
    laws = [table.fit for table in forecast(history, facts=FACTS).tables]  # type: ignore[union-attr]
    samples *= 1.005
    rows = {"t": 10 * samples**0.8 * 1.006, "u": 5 * samples**0.6 * 0.994}
    history.append(level(40, samples, rows))
    found = forecast(history, facts=FACTS)
    assert found is not None and all(table.fit is law for table, law in zip(found.tables, laws, strict=True))
    for table, count in zip(found.tables, rows.values(), strict=True):
        now = quantile_rows(table.fit, samples, 0.5)[0, 0] * table.scale
        assert now == pytest.approx(count, rel=1e-3)


@pytest.mark.filterwarnings("error")
def test_a_job_that_begins_anew_over_rows_of_before_is_foreseen() -> None:
    """Found by seed 970738: the law of before says that there are no rows at 0 samples."""
    history = MemoryHistory()
    history.append(level(0, 281.0, {"t": 2758.0}))
    assert forecast(history, facts=FACTS) is not None
    history.append(level(1, 0.0, {"t": 2970.0}))
    found = forecast(history, facts=FACTS)
    assert found is not None and np.isfinite(need_of(found, 562.0, worker=0).tables)


def test_looking_ahead_goes_in_steps_up_to_the_last_sample() -> None:
    def ahead(**fields: float | None) -> float:
        return samples_in(3600.0, **{"so_far": 1e6, "per_second": 1e3, "total": None, **fields})  # type: ignore[arg-type]

    assert ahead() == ahead(per_second=1.002e3) == pytest.approx(4.6e6, rel=0.03)
    assert ahead(per_second=1.2e3) > ahead()
    assert ahead(total=4.6e6) == ahead(total=4.5e6) + 1e5 == 4.6e6
    assert ahead(per_second=0.0) >= 1e6
    assert ahead(per_second=0.0, so_far=0.0) <= 1.0
    assert ahead(total=5e5) == 1e6


def test_levels_come_back_with_the_rows_of_all_servers_together() -> None:
    told = [level(0, 1e5, {"a": 100}), level(1, 2e5, {"a": 150, "b": 10}, servers=1), level(2, 3e5, {"b": 20})]
    history = MemoryHistory(told)
    assert len(history) == 3 and history[-1] is told[-1] and history.last_at == told[-1].at
    for kept, one in zip(history, told, strict=True):
        assert (kept.at, kept.samples_so_far, kept.samples_per_second) == (
            one.at,
            one.samples_so_far,
            one.samples_per_second,
        )
        assert kept.ps == one.ps
        assert [(t.table, t.dim, t.total_rows) for t in kept.tables] == [
            (t.table, t.dim, t.total_rows) for t in one.tables
        ]
    again = msgspec.json.decode(msgspec.json.encode(tuple(history)), type=tuple[Level, ...])
    assert needs(forecast(again), 3e5) == needs(forecast(told), 3e5)


def test_thinning_keeps_the_newer_half_and_forgets_who_is_gone() -> None:
    told = [level(at, 1e5 * (at + 1), {"old" if at == 1 else "t": 100.0}) for at in range(9)]
    history = MemoryHistory(told)
    history.thin(9)
    assert len(history) == 9 and history.version == 0
    history.thin(8)
    assert [one.at for one in history] == [told[at].at for at in (0, 2, 4, 5, 6, 7, 8)]
    assert history.version == 1
    assert (history.table_rows(["old"]) == -1).all() and (history.table_rows(["t"]) == 100).all()
