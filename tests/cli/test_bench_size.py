"""``bench/size.py``: which ids it draws, which job does what, and what figures it makes of when a worker did its steps."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from tests.repository.sources import ROOT

Module = Callable[[str], ModuleType]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Module:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    return importlib.import_module


@pytest.mark.parametrize("rows", [100, 50_000])
def test_zipf_ids_are_as_frequent_as_their_rank_says(bench: Module, rows: int) -> None:
    zipf = bench("_size_ids").Zipf(rows)
    count = 40_000
    ranks = zipf.ranks(np.random.default_rng(0), (26, count))
    assert ranks.min() == 0
    assert ranks.max() < rows
    chances = np.arange(1, rows + 1) ** -1.2
    wanted = 26 * count * chances / chances.sum()
    found = np.bincount(ranks.ravel(), minlength=rows)
    bounds = [0, 1, 2, 5, 20, rows // 2, rows] if rows < 4096 else [0, 1, 2, 10, 100, 4096, 10_000, rows]
    for first, last in pairwise(bounds):
        expected = wanted[first:last].sum()
        assert abs(found[first:last].sum() - expected) < 6 * np.sqrt(expected)


def test_each_rank_has_its_own_row_which_differs_between_tables(bench: Module) -> None:
    rows = 26 * 1024
    every = np.tile(np.arange(rows), (26, 1))
    ids = bench("_size_ids").Zipf(rows).scattered(every)
    assert all(len(np.unique(of_table)) == rows for of_table in ids)
    assert len(np.unique(ids[:, 0])) == 26
    assert np.abs(np.diff(ids[0].astype(np.int64))).min() > 1


@pytest.mark.parametrize("kind", ["uniform", "zipf"])
def test_tables_grow_to_the_wished_size_then_ids_cover_all_rows(bench: Module, tmp_path: Path, kind: str) -> None:
    worker = bench("_size_worker")
    data = worker.Growing(10**9, tmp_path / worker.WISH)
    seen: set[bytes] = set()
    before = at = 0
    for rows in (1024, 4096):
        worker.write_wish(tmp_path, rows, kind)
        batches = []
        for _ in range(60):
            batches.append(data.read(np.arange(at, at + 1024)).ids)
            at += 1024
        ids = np.concatenate(batches, 1)
        new = rows - before
        assert (ids[:, :new] == np.arange(before, rows)).all()
        drawn = [len(np.unique(of_table)) / rows for of_table in ids[:, new:]]
        assert min(drawn) > 0.6  # those of before alone are a quarter
        assert ids.max() == rows - 1
        seen |= {batch.tobytes() for batch in batches}
        before = rows
    assert len(seen) == 120


def test_each_job_runs_only_the_phases_its_figures_need(bench: Module) -> None:
    size = bench("size")
    parts = {(part.gib, part.kind): part for part in size.parts_of([8, 1, 4], ["uniform", "zipf"], size.NEEDS)}
    assert set(parts) == {(1, "uniform"), (1, "zipf"), (4, "uniform"), (8, "uniform"), (8, "zipf")}
    assert [key for key, part in parts.items() if part.restores] == [(8, "uniform")]
    assert [key for key, part in parts.items() if "move" not in part.phases] == [(4, "uniform")]
    assert [key[0] for key, part in parts.items() if part.minutes] == [8, 8]
    (only,) = size.parts_of([1], ["zipf"], ["recover_s"])
    assert only.phases == {"quiet", "recover"}


def test_stall_is_the_longest_step_over_the_usual_one(bench: Module) -> None:
    phases = bench("_size_phases")
    times = list(np.cumsum([0.1] * 50 + [0.35] + [0.1] * 20))  # the long one ends at 5.35
    quiet, busy = phases.Span(0.5, 4.0), phases.Span(5.1, 6.1)
    found = phases.of_span(times, busy, quiet)
    assert found["stall_ms"] == pytest.approx(250)
    assert found["without_ms"] == pytest.approx(0, abs=1e-6)
    assert found["kept"] == pytest.approx(0.8, abs=0.05)
    assert phases.of_span(times, busy, phases.Span(0.5, 5.1))["without_ms"] == pytest.approx(0, abs=1e-6)
    with pytest.raises(phases.NotDone):
        phases.of_span(times, phases.Span(100, 101), quiet)


def test_recovery_time_is_the_longest_pause_after_the_kill(bench: Module) -> None:
    times = [
        9.8,
        9.9,
        10.05,
        10.1,
        11.6,
        11.7,
        11.8,
        15.0,
    ]  # killed at 10: two more steps, then the pause; one long after
    assert bench("_size_phases").of_pause(times, 10.0) == pytest.approx(1.6)


def _course(bench: Module, gib: float, kind: str, worse: float) -> object:
    found = {
        "quiet": {"row_bytes": 140 * worse, "samples_s": 50_000 / worse},
        "resize": {"stall_ms": worse, "without_ms": 1},
        "growth": {"stall_ms": 2 * worse, "without_ms": 1},
        "cut": {"stall_ms": 3 * worse, "without_ms": 1, "kept": 1 - 0.1 * worse, "minute_s": 60},
        "after": {"samples_s": 1.0},
        "recover": {"recover_s": worse},
        "move": {"stall_ms": 4 * worse, "without_ms": 1, "kept": 1 - 0.1 * worse, "gib_s": 1 / worse},
        "restore": {
            "disk_direct_bytes_s": 4.0,
            "disk_buffered_bytes_s": 2.0,
            "onto_1_s": 1,
            "onto_1_bytes_s": 3.0,
            "onto_2_bytes_s": 2.0,
        },
    }
    course = bench("_size_phases").Course(gib, kind, found)
    bench("size").complete(course, full_minute=gib > 1)
    return course


def test_figures_take_the_worst_of_all_jobs(bench: Module) -> None:
    size = bench("size")
    courses = [_course(bench, 1, "uniform", 1), _course(bench, 8, "uniform", 2), _course(bench, 8, "zipf", 1.5)]
    plain = {(1, "uniform"): 100.0, (8, "uniform"): 80.0}
    values = {figure.figure: figure.value for figure in size.figures_of(courses, plain)}
    assert values == pytest.approx(
        {
            "size.stall_ms": 6,
            "size.growth_stall_ms": 4,
            "size.resize_stall_ms": 2,
            "size.kept": 0.8,
            "size.move_stall_ms": 8,
            "size.move_kept": 0.8,
            "size.move_rate": 0.5,
            "size.recover_s": 2,
            "size.restore_ratio": 0.5,
            "size.bytes_per_row": 280 / 136,
            "size.train_ratio": 0.5 / 0.8,
        }
    )
    assert {name.partition(".")[2] for name in values} == set(size.NEEDS)
    assert values.keys() <= bench("_figures").MEANINGS.keys()


def test_ratios_need_jobs_of_two_sizes(bench: Module) -> None:
    figures = bench("size").figures_of([_course(bench, 1, "uniform", 1)], {})
    assert not {"size.move_rate", "size.train_ratio", "size.kept"} & {figure.figure for figure in figures}
