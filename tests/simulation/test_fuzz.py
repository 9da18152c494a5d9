"""Simulated jobs with faults that a seed draws: nothing that mustn't be ever is, and the same seed does the same again."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from dlrover_lite.simulation.fuzz.__main__ import main
from dlrover_lite.simulation.fuzz.case import Case
from dlrover_lite.simulation.fuzz.faults import KINDS, LEAST, draw
from dlrover_lite.simulation.fuzz.run import run_seed

LEAST_STEPS, LEAST_FAULTS = 500, 5


@pytest.mark.parametrize("seed", [1, 2])
def test_nothing_breaks_under_faults(tmp_path: Path, seed: int) -> None:
    ran = run_seed(seed, directory=tmp_path)
    assert not ran.problems, ran.report()
    assert ran.steps >= LEAST_STEPS and len(ran.faults) >= LEAST_FAULTS


def test_the_same_seed_does_the_same_again(tmp_path: Path) -> None:
    first, second = (run_seed(3, directory=_made(tmp_path / name)) for name in ("first", "second"))
    assert first.log == second.log
    assert first.schedule == second.schedule


def _made(directory: Path) -> Path:
    directory.mkdir()
    return directory


def test_schedules_follow_from_the_seed_and_meet_all_kinds() -> None:
    schedules = [draw(seed, checkpoints=True, machines=1) for seed in range(300)]
    assert schedules == [draw(seed, checkpoints=True, machines=1) for seed in range(300)]
    assert {fault.kind for schedule in schedules for fault in schedule} == set(KINDS)
    assert min(map(len, schedules)) >= LEAST
    assert not {"machine fails"} & {fault.kind for fault in draw(1, checkpoints=False, machines=1)}


def test_a_seed_is_run_again_by_its_number(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["--seed", "1", "--keep", str(tmp_path)])
    assert result.exit_code == 0, result.output
    for line in Case(1).describe():
        assert line in result.output
    assert "again: python -m dlrover_lite.simulation.fuzz --seed 1" in result.output
