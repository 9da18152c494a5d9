"""What memory is forecast from profiles: by table where they say it, and with all rows together where they don't."""

from __future__ import annotations

import msgspec
import pytest

from dlrover_lite.brain.models.memory_forecast import TableCurve, forecast, memory_band, need_of
from dlrover_lite.brain.models.memory_model import index_bytes, row_bytes
from dlrover_lite.core.units import MIB
from dlrover_lite.protocol.demands import TableFacts
from dlrover_lite.protocol.profiles import Profile, PsUse, TableUse

BASE = 80 * MIB
TABLES = {"users": (16, 3.0, 0.9, 0.75), "pages": (4, 50.0, 0.5, 0.25)}
"""dim, factor and slope of its rows, and the share that the first PS has."""


def rows_of(name: str, samples: float) -> int:
    _, factor, slope, _ = TABLES[name]
    return int(factor * samples**slope)


def memory(samples: float, ps: int, state_parts: int) -> tuple[int, int]:
    """Rows of a PS, and the bytes of rows and indices."""
    rows, used = 0, 0.0
    for name, (dim, _, _, share) in TABLES.items():
        own = int(rows_of(name, samples) * (share if ps == 0 else 1 - share))
        rows += own
        used += own * row_bytes(dim, state_parts) + float(index_bytes(own))
    return rows, int(used)


def profile(samples: int, *, state_parts: int = 1, tables: bool = True) -> Profile:
    uses = []
    for ps in range(2):
        rows, used = memory(samples, ps, state_parts)
        uses.append(PsUse(f"ps-{ps}", "a", 1.0, 100, 1.0, rows=rows, row_bytes=used, used_bytes=used + BASE))
    found = tuple(
        TableUse(
            name, dim, {"ps-0": int(rows_of(name, samples) * share), "ps-1": int(rows_of(name, samples) * (1 - share))}
        )
        for name, (dim, _, _, share) in TABLES.items()
    )
    return Profile(
        "job", float(samples), 10.0, 1000, 100_000, samples, (), tuple(uses), (), tables=found if tables else ()
    )


def profiles(**fields: object) -> list[Profile]:
    return [profile(number * 400_000, **fields) for number in range(1, 13)]  # type: ignore[arg-type]


END = 20_000_000


@pytest.mark.parametrize("state_parts", [0, 1, 2])
def test_each_table_grows_in_its_own_way(state_parts: int) -> None:
    found = forecast(profiles(state_parts=state_parts))
    assert found is not None and len(found.tables) == 2
    for ps in range(2):
        band = memory_band(found, f"ps-{ps}", END, limit=0)
        assert band.lower <= band.expected <= band.upper
        assert band.expected == pytest.approx(memory(END, ps, state_parts)[1] + BASE, rel=0.15)


@pytest.mark.parametrize("state_parts", [0, 1])
def test_update_counts_of_rows_add_to_the_memory_forecast(state_parts: int) -> None:
    plain, counted = (
        forecast(profiles(state_parts=state_parts), facts=TableFacts(state_parts=state_parts, counted=counted))
        for counted in (False, True)
    )
    assert plain is not None and counted is not None
    rows = sum(rows_of(name, END) for name in TABLES)
    more = need_of(counted, END, worker=0).tables_band[1] - need_of(plain, END, worker=0).tables_band[1]
    assert more == pytest.approx(4 * rows, rel=0.15)


def test_memory_is_forecast_from_all_rows_when_tables_are_unknown() -> None:
    found = forecast(profiles(tables=False))
    assert found is not None and len(found.tables) == 1
    wanted = sum(memory(END, ps, 1)[1] + BASE for ps in range(2))
    assert sum(memory_band(found, f"ps-{ps}", END, limit=0).expected for ps in range(2)) == pytest.approx(
        wanted, rel=0.3
    )


def test_given_curves_go_before_what_profiles_say() -> None:
    curve = TableCurve(dim=8, state_parts=0, samples=(1e5, 1e6), rows=(1e4, 1e5))
    found = forecast(profiles(), [curve])
    assert found is not None and [table.dim for table in found.tables] == [8]


def test_no_new_rows_are_forecast_after_the_first_epoch() -> None:
    found, endless = forecast(profiles(), epoch_samples=5_000_000), forecast(profiles())
    assert found is not None and endless is not None
    assert memory_band(found, "ps-0", END, limit=0).expected < 0.6 * memory_band(endless, "ps-0", END, limit=0).expected


def test_memory_need_of_a_plan_covers_workers_servers_and_tables() -> None:
    found = forecast(profiles())
    assert found is not None
    need = need_of(found, END, worker=500 * MIB)
    assert need.worker == 500 * MIB and need.ps == pytest.approx(BASE * 1.06, rel=0.01) and need.tables_band is not None
    assert (
        need.tables_band[0]
        <= need.tables_band[1]
        <= need.tables_band[2]
        <= need.tables
        <= 1.38 * need.tables_band[1] + 1
    )


def test_no_forecast_without_profiles_of_servers() -> None:
    empty = msgspec.structs.replace(profile(1000), ps=())
    assert forecast([]) is None and forecast([empty]) is None
