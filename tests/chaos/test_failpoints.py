"""Each failpoint is known, and a process that is killed there costs no sample and leaves nothing."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from dlrover_lite import failpoints
from dlrover_lite.failpoints import POINTS
from dlrover_lite.ps.journal import STEPS
from tests.chaos.scenarios import SCENARIOS

PACKAGE = Path(failpoints.__file__).parent


def in_the_source() -> Iterator[str]:
    """Every failpoint's name, as often as it is there."""
    yield from STEPS
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == "failpoint":
                (name,) = node.args
                assert isinstance(name, ast.Constant), f"{path}:{node.lineno}: the name of a failpoint is written out"
                yield name.value


def test_every_failpoint_is_named_once() -> None:
    found = sorted(in_the_source())
    assert found == sorted(POINTS)


def test_every_scenario_is_played() -> None:
    assert {point.scenario for point in POINTS.values()} <= SCENARIOS.keys()


def of_scenario() -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for name, point in POINTS.items():
        found[point.scenario].append(name)
    return found


@pytest.mark.parametrize("scenario", sorted({point.scenario for point in POINTS.values()}))
def test_a_death_at_every_failpoint(tmp_path: Path, scenario: str) -> None:
    """All of them in one job: each process dies at the first that it comes to and where nobody has died before. `make chaos` has a job
    for each."""
    SCENARIOS[scenario](tmp_path, of_scenario()[scenario])
